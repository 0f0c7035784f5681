/* Any bytes as the answers of a Redis server, or as its messages to the hub. The first byte chooses the question. */
#include "../../src/redis/hub.c" /* whose insides are needed: a hub without a server */
#include "fuzz.h"
#include "module.h"
#include <sys/socket.h>

extern const struct backend *const pawl_backend;

static bool each(const struct bk_record *r, void *data) {
    (void)data;
    MUST(r->name && r->about);
    return true;
}
static bool wake(const unsigned char owner[16], void *data) {
    (void)owner;
    return ++*(int *)data > 0;
}

static struct bk *opened(void) {
    static struct bk *bk;
    struct url *url = NULL;
    if (bk) return bk;
    MUST(url_parse("redis://localhost", &url, NULL) == PAWL_OK);
    MUST(pawl_backend->open(url, &bk, NULL) == BK_YES);
    url_free(url);
    return bk;
}

static void hub(struct bk *bk, const uint8_t *data, size_t size) {
    char text[256];
    int woken = 0;
    struct hub *h = calloc(1, sizeof *h);
    MUST(h);
    h->wire.fd = h->epoll_fd = -1;
    h->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    (void)bk;
    for (size_t i = 0; i < size;) { /* a message a line */
        size_t n = 0;
        while (i < size && data[i] != '\n' && n < sizeof text - 1) text[n++] = (char)data[i++];
        text[n] = 0;
        message(h, text, wake, &woken);
        i++;
    }
    MUST(h->n <= h->size);
    end(h, true);
}

static void ask(struct bk_session *s, uint8_t question, const char *name) {
    const struct backend *be = pawl_backend;
    struct bk_until until = {.at_ns = clock_after_ms(clock_now_ns(), 1000), .cancel_fd = -1};
    struct bk_claim claim = {.name = name, .name_len = strlen(name), .ttl_ms = 1000, .about = "pid=1"};
    struct bk_grant grant = {.claim = &claim, .token = 77}, *grants[2] = {&grant, &grant};
    struct bk_life life = {.ttl_ms = 1000, .grant = &grant}, *lives[2] = {&life, &life};
    struct bk_busy busy = {0};
    struct bk_tokens tokens;
    enum bk_says says = BK_YES, each_says[2];
    int64_t left[2];
    pawl_error error = PAWL_ERROR_INIT;
    switch (question % 9) {
    case 0:
    case 1:
        says = be->take(s, &claim, question % 9, until, &grant, &busy, &error);
        if (says == BK_YES) MUST(grant.token > 0 && grant.left_ms > 0);
        if (says == BK_NO) MUST(busy.ask_again_ms > 0 && busy.wake_fd == -1);
        break;
    case 2: says = be->forget(s, &claim, until, &error); break;
    case 3: says = be->release(s, grants, 2, until, each_says, &error); break;
    case 4: says = be->renew(s, lives, 2, until, each_says, left, &error); break;
    case 5: says = be->prove(s, &grant, until, &error); break;
    case 6: says = be->records(s, name, each, NULL, until, &error); break;
    case 7: says = be->records(s, NULL, each, NULL, until, &error); break;
    default: says = be->tokens(s, true, 5, until, &tokens, &error);
    }
    if (says == BK_FAULT || says == BK_UNKNOWN) MUST(error.code && error.text[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct bk *bk = opened();
    int ends[2];
    if (size < 1 || size > 60000) return 0;
    if (data[0] % 10 == 9) {
        hub(bk, data + 1, size - 1);
        return 0;
    }
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    MUST(write(ends[1], data + 1, size - 1) == (ssize_t)size - 1 && shutdown(ends[1], SHUT_WR) == 0);
    struct bk_session session = {
        .bk = bk, .count = "pawl:%n:0123456789012345678901234567890123456789", .count_length = 48};
    MUST(wire_open(&session.wire, ends[0], NULL, "server", "pawl:"));
    ask(&session, data[0] % 10, "nightly");
    wire_close(&session.wire, true);
    close(ends[1]);
    return 0;
}
