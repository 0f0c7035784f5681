/* Any bytes as the answers of all three instances. The first byte chooses the question. */
#include "../../src/redlock/redlock.h"
#include "clock.h"
#include "fuzz.h"
#include "module.h"
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

extern const struct backend *const pawl_backend;

static bool each(const struct bk_record *r, void *data) {
    (void)data;
    MUST(r->name && r->about);
    return true;
}

/* Nobody listens at those: a connection that ended is not made again. */
static struct bk *opened(void) {
    static struct bk *bk;
    struct url *url = NULL;
    if (bk) return bk;
    MUST(url_parse("redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", &url, NULL) == PAWL_OK);
    MUST(pawl_backend->open(url, &bk, NULL) == BK_YES);
    url_free(url);
    return bk;
}

static void ask(struct bk_session *s, int question) {
    const struct backend *be = pawl_backend;
    struct bk_until until = {clock_after_ms(clock_now_ns(), 100), -1};
    struct bk_claim claim = {.name = "nightly", .name_len = 7, .ttl_ms = 15000, .about = "host=h"};
    struct bk_grant grant = {.claim = &claim, .token = 1796043852700012};
    struct bk_life life = {.ttl_ms = 15000, .grant = &grant}, *lives[] = {&life, &life};
    struct bk_grant *grants[] = {&grant, &grant};
    struct bk_busy busy = {.wake_fd = -1};
    struct bk_tokens tokens;
    enum bk_says says = BK_YES, each_says[2];
    int64_t left[2];
    pawl_error error = PAWL_ERROR_INIT;
    switch (question) {
    case 0:
    case 1:
        says = be->take(s, &claim, question, until, &grant, &busy, &error);
        if (says == BK_YES) MUST(grant.token > 0);
        if (says == BK_NO) MUST(busy.ask_again_ms > 0 && busy.wake_fd == -1);
        if (says == BK_YES) be->end(&grant, false);
        break;
    case 2: says = be->forget(s, &claim, until, &error); break;
    case 3: says = be->release(s, grants, 2, until, each_says, &error); break;
    case 4:
        says = be->renew(s, lives, 2, until, each_says, left, &error);
        for (int i = 0; i < 2; i++) MUST(each_says[i] <= BK_UNKNOWN);
        break;
    case 5: says = be->prove(s, &grant, until, &error); break;
    case 6: says = be->records(s, "nightly", each, NULL, until, &error); break;
    case 7: says = be->records(s, NULL, each, NULL, until, &error); break;
    default: says = be->tokens(s, true, 5, until, &tokens, &error);
    }
    if (says == BK_FAULT || says == BK_UNKNOWN) MUST(error.code && error.text[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct bk *bk = opened();
    int ends[PEERS_MAX][2];
    if (size < 1 || size > 60000) return 0;
    struct bk_session *s = calloc(1, sizeof *s + 3 * sizeof *s->peers);
    MUST(s);
    s->bk = bk;
    s->name = "";
    strcpy(s->epoch, "0000000000000001.aaaaaaaaaaaaaaaa");
    for (int i = 0; i < bk->n; i++) {
        struct peer *p = &s->peers[i];
        MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends[i]) == 0);
        MUST(write(ends[i][1], data + 1, size - 1) == (ssize_t)size - 1 && shutdown(ends[i][1], SHUT_WR) == 0);
        peer_init(p, &bk->place, &bk->place.hosts[i]);
        MUST(wire_open(&p->wire, ends[i][0], NULL, p->node, "pawl:"));
        p->state = data[0] & 16 ? PEER_GREETING : PEER_READY;
        memcpy(p->epoch, s->epoch, sizeof p->epoch);
        atomic_store(&bk->slow[i], false);
    }
    ask(s, data[0] % 16 % 9);
    for (int i = 0; i < bk->n; i++) close(ends[i][1]);
    redlock_drop(s, true);
    return 0;
}
