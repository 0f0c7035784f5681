/* Any bytes as the bodies of etcd's answers, or as messages of its watch stream. The first byte chooses the question;
 * then each answer is a status byte, two bytes of length, and the body. Below the recipe everything is a double. */
#include "../../src/etcd/hub.c" /* whose insides are needed: a hub without a server */
#include "fuzz.h"
#include "module.h"

extern const struct backend *const pawl_backend;

static const uint8_t *input;
static size_t input_size;

/* --- the double of http2.h and grpc.h --- */

int http2_fd(const struct http2 *h) { return h ? 0 : -1; }
const char *http2_node(const struct http2 *h) { return h ? "a" : "server"; }
void http2_doing(struct http2 *h, const char *verb, const char *name) { (void)h, (void)verb, (void)name; }
const char *http2_at(struct http2 *h) { return http2_node(h); }
bool http2_worn(const struct http2 *h) { return h != NULL; }
bool http2_would_send(const struct http2 *h) { return h != NULL; }
void http2_close(struct http2 *h, bool quiet) { (void)h, (void)quiet; }
struct http2 *http2_open(int fd, struct tls *tls, const char *authority, bool secure, const char *node) {
    (void)fd, (void)tls, (void)authority, (void)secure, (void)node;
    return NULL;
}
enum bk_says http2_pump(struct http2 *h, bool would_wait, struct bk_until until, pawl_error *error) {
    (void)h, (void)would_wait, (void)until, (void)error;
    return BK_NO;
}

static bool next_answer(int *ret_status, unsigned char **ret, size_t *ret_size) {
    if (input_size < 3) return false;
    size_t length = (size_t)input[1] << 8 | input[2];
    *ret_status = input[0] % 20;
    input += 3, input_size -= 3;
    if (length > input_size) length = input_size;
    *ret = malloc(length + 1);
    MUST(*ret);
    memcpy(*ret, input, length);
    *ret_size = length;
    input += length, input_size -= length;
    return true;
}

enum bk_says grpc_call(struct http2 *h, const char *path, const char *token, const void *message, size_t size,
                       struct bk_until until, struct grpc_reply *ret, pawl_error *error) {
    (void)h, (void)path, (void)token, (void)until;
    MUST(message && size < 100000);
    struct grpc_reply reply = {0};
    if (!next_answer(&reply.status, &reply.body, &reply.size)) {
        error_set(error, PAWL_EUNREACHABLE, "server", "no answer");
        return BK_UNKNOWN;
    }
    if (reply.status != GRPC_OK) {
        snprintf(reply.message, sizeof reply.message, "%.*s", (int)reply.size, (char *)reply.body);
        free(reply.body);
        reply.body = NULL;
    }
    *ret = reply;
    return BK_YES;
}

bool grpc_stream_open(struct http2 *h, struct grpc_stream *stream, const char *path, const char *token) {
    (void)h, (void)path, (void)token;
    memset(stream, 0, sizeof *stream);
    return true;
}
bool grpc_stream_send(struct http2 *h, struct grpc_stream *stream, const void *message, size_t size) {
    (void)h, (void)stream, (void)size;
    return message != NULL;
}
enum bk_says grpc_stream_next(struct http2 *h, struct grpc_stream *stream, unsigned char **ret, size_t *ret_size,
                              pawl_error *error) {
    int status;
    (void)h, (void)stream, (void)error;
    return next_answer(&status, ret, ret_size) ? BK_YES : BK_NO;
}
void grpc_stream_close(struct http2 *h, struct grpc_stream *stream) { (void)h, (void)stream; }

/* --- the questions --- */

static bool each(const struct bk_record *r, void *data) {
    (void)data;
    MUST(r->name && *r->name && r->about && strlen(r->about) <= 256);
    return true;
}
static bool wake(const unsigned char owner[16], void *data) {
    MUST(owner);
    return ++*(int *)data % 2;
}

static struct bk *opened(void) {
    static struct bk *bk;
    struct url *url = NULL;
    if (bk) return bk;
    MUST(url_parse("etcd://user:password@localhost/locks/", &url, NULL) == PAWL_OK);
    MUST(pawl_backend->open(url, &bk, NULL) == BK_YES);
    url_free(url);
    return bk;
}

static void listening(struct bk *bk) {
    int woken = 0;
    pawl_error error = PAWL_ERROR_INIT;
    struct hub *h = calloc(1, sizeof *h);
    MUST(h);
    h->epoll = -1;
    h->timer = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    h->turn = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    h->room = OWN_AT_A_TIME;
    bk->hub = h;
    bk->watch_id = 0;
    bk->revision = 0;
    for (int i = 1; i <= 3; i++) {
        struct wish wish = {.id = next_id(bk), .from = i == 3 ? 40 : 0, .seen = 30, .length = 9};
        memcpy(wish.key, "/locks/n/", 9);
        MUST(add_watch(h, &wish));
    }
    begin_some(bk);
    MUST(h->unsent == 0);
    if (hub_io(bk, wake, &woken, &error) == BK_FAULT) MUST(error.code && !bk->hub);
    hub_close(bk, true);
}

static void ask(struct bk_session *s, uint8_t question) {
    const struct backend *be = pawl_backend;
    struct bk_until until = {.at_ns = clock_after_ms(clock_now_ns(), 1000), .cancel_fd = -1};
    int64_t lease = 77, left[2] = {0};
    struct bk_life life = {.ttl_ms = 6000, .of = &lease}, fresh = {.ttl_ms = 6000}, *lives[2] = {&life, &life};
    struct bk_claim claim = {.name = "n", .name_len = 1, .ttl_ms = 6000, .about = "pid=1", .life = &life};
    struct bk_grant grant = {.claim = &claim};
    struct bk_busy busy = {0};
    struct bk_tokens tokens;
    pawl_error error = PAWL_ERROR_INIT;
    enum bk_says says = BK_YES, each_says[2];
    switch (question) {
    case 0:
    case 1:
    case 2:
        says = be->take(s, &claim, question > 0, until, &grant, &busy, &error);
        if (says == BK_NO && question == 2) says = be->take(s, &claim, true, until, &grant, &busy, &error);
        if (says == BK_NO) MUST(busy.ask_again_ms > 0 && busy.wake_fd == -1);
        if (says != BK_YES) {
            if (says != BK_NO) MUST(error.code && error.text[0]);
            says = be->forget(s, &claim, until, &error);
            break;
        }
        MUST(grant.token > 0 && grant.token < UINT64_C(1) << 53 && !claim.of);
        grant.claim = &claim;
        be->prove(s, &grant, until, &error);
        says = be->release(s, (struct bk_grant *const[]){&grant}, 1, until, each_says, &error);
        be->end(&grant, false);
        break;
    case 3: says = be->renew(s, lives, 2, until, each_says, left, &error); break;
    case 4:
        says = be->begin_life(s, &fresh, until, left, &error);
        if (says == BK_YES) MUST(left[0] > 0);
        be->free_life(&fresh);
        break;
    case 5: says = be->end_life(s, &life, until, &error); break;
    case 6: says = be->records(s, "n", each, NULL, until, &error); break;
    case 7: says = be->records(s, NULL, each, NULL, until, &error); break;
    default: says = be->tokens(s, question == 8, 5, until, &tokens, &error);
    }
    if (says == BK_FAULT || says == BK_UNKNOWN) MUST(error.code && error.text[0]);
    free(claim.of);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct bk *bk = opened();
    if (size < 1 || size > 60000) return 0;
    input = data + 1;
    input_size = size - 1;
    struct bk_session s = {.bk = bk, .admitted = data[0] & 16};
    for (char drained[4096]; read(bk->wish_read, drained, sizeof drained) > 0;) continue;
    if (data[0] % 16 >= 10) listening(bk);
    else ask(&s, data[0] % 16);
    return 0;
}
