/* dial.c: connections and calls: endpoints in turn, TLS, login; what the server's words mean for a question. */
#include "clock.h"
#include "etcd.h"
#include "resolve.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ATTEMPT_MS                                                                                                     \
    1000 /* a member that lost the leader keeps a request for seconds that another one answers at once                 \
          */

static enum bk_says connect_one(struct bk *bk, const struct url_host *host, struct bk_until until, struct http2 **ret,
                                pawl_error *error) {
    struct tls *tls = NULL;
    char node[128];
    int fd;
    snprintf(node, sizeof node, strchr(host->host, ':') ? "[%.110s]:%d" : "%.110s:%d", host->host, host->port);
    enum bk_says says = resolve_connect(host->host, host->port, until, &fd, error);
    if (says != BK_YES) return says;
    if (bk->place.tls &&
        (says = tls_start(fd, &bk->place.tls_options, host->host, node, until, &tls, error)) != BK_YES) {
        close(fd);
        return says;
    }
    *ret = http2_open(fd, tls, node, bk->place.tls, node);
    if (*ret) return BK_YES;
    error_set(error, PAWL_EINTERNAL, node, "out of memory");
    return BK_FAULT;
}

/* In words, and as a verdict: what etcd says when it does not do what was asked. */
static enum bk_says verdict(const struct place *place, struct http2 *h, const struct grpc_reply *reply,
                            pawl_error *error) {
    const char *node = http2_node(h), *text = reply->message;
    enum bk_says says = BK_FAULT;
    int code = PAWL_EINTERNAL;
    const char *advice = "";
    char rights[PREFIX_MAX + 64];
    switch (reply->status) {
    case GRPC_DENIED:
        code = PAWL_EDENIED;
        snprintf(rights, sizeof rights, " (the role needs readwrite on the prefix %s)", place->prefix);
        advice = rights;
        break;
    case GRPC_UNAUTHENTICATED: code = PAWL_EDENIED; break;
    case GRPC_INVALID:
        if (strstr(text, "user name is empty")) advice = " (it wants a user: etcd://user:password@host)";
        if (strstr(text, "authentication failed")) advice = " (user or password is wrong)";
        code = *advice ? PAWL_EDENIED : PAWL_EINTERNAL;
        break;
    case GRPC_EXHAUSTED:
        code = PAWL_EUNREACHABLE;
        if (strstr(text, "space"))
            advice =
                ": its space quota is used up, so no new lock can be taken (what is held is renewed and released); "
                "compact, defragment, then etcdctl alarm disarm";
        break;
    case GRPC_UNAVAILABLE:
        code = PAWL_EUNREACHABLE;
        if (strstr(text, "no leader")) advice = " (most of its members are down or cut off: bring them back)";
        else says = BK_UNKNOWN; /* "request timed out": it may have been applied */
        break;
    case GRPC_UNIMPLEMENTED:
        code = PAWL_EUNSUPPORTED;
        advice = " (is that etcd v3?)";
        break;
    case GRPC_NOT_FOUND: code = PAWL_ELOST; break; /* the lease: keys are never "not found" */
    case GRPC_PRECONDITION: break;
    default:
        if (strstr(text, "context canceled"))
            advice = " (a grpc-proxy? it carries no renewals of ours: name the members)";
        code = PAWL_EUNREACHABLE;
        says = BK_UNKNOWN; /* "context deadline exceeded", and what nobody knows */
    }
    error_set(error, code, node, "%s: etcd says: %.250s (gRPC status %d)%s", http2_at(h), text, reply->status, advice);
    return says;
}

static enum bk_says login(const struct place *place, struct http2 *h, struct bk_until until, char ret[LOGIN_MAX],
                          pawl_error *error) {
    Pb__AuthenticateRequest request = PB__AUTHENTICATE_REQUEST__INIT;
    unsigned char packed[2048];
    struct grpc_reply reply;
    *ret = 0;
    if (!place->user) return BK_YES;
    request.name = place->user;
    request.password = place->password;
    if (pb__authenticate_request__get_packed_size(&request) > sizeof packed) {
        error_set(error, PAWL_EINVALID, NULL, "user or password is too long");
        return BK_FAULT;
    }
    size_t size = pb__authenticate_request__pack(&request, packed);
    enum bk_says says = grpc_call(h, "/etcdserverpb.Auth/Authenticate", NULL, packed, size, until, &reply, error);
    explicit_bzero(packed, sizeof packed);
    if (says != BK_YES) return BK_FAULT;
    if (reply.status == GRPC_PRECONDITION) return BK_YES; /* authentication is not enabled there */
    if (reply.status != GRPC_OK) {
        verdict(place, h, &reply, error);
        return BK_FAULT;
    }
    Pb__AuthenticateResponse *answer = pb__authenticate_response__unpack(NULL, reply.size, reply.body);
    bool fits = answer && strlen(answer->token) < LOGIN_MAX;
    if (fits) strcpy(ret, answer->token);
    pb__authenticate_response__free_unpacked(answer, NULL);
    free(reply.body);
    if (fits) return BK_YES;
    error_set(error, PAWL_EUNSUPPORTED, http2_node(h), "%s: the login's token has more than %d bytes", http2_at(h),
              LOGIN_MAX - 1);
    return BK_FAULT;
}

enum bk_says dial_one(struct bk *bk, size_t i, struct bk_until until, struct bk_session *ret, pawl_error *error) {
    struct http2 *h = NULL;
    enum bk_says says = connect_one(bk, &bk->place.hosts[i], until, &h, error);
    if (says == BK_YES) {
        http2_doing(h, "logging in as", bk->place.user);
        says = login(&bk->place, h, until, ret->token, error);
    }
    if (says != BK_YES) {
        http2_close(h, true);
        return says;
    }
    ret->bk = bk;
    ret->h = h;
    ret->at = i;
    ret->admitted = false;
    return BK_YES;
}

enum bk_says dial(struct bk *bk, struct bk_until until, struct bk_session *ret, pawl_error *error) {
    size_t n = bk->place.n_hosts;
    unsigned first = atomic_load(&bk->next);
    for (size_t i = 0; i < n; i++) {
        int64_t now = clock_now_ns();
        /* Each may have its share of the time that is left, the last one all of it. */
        int64_t left = until.at_ns == INT64_MAX ? INT64_MAX : (until.at_ns - now) / (int64_t)(n - i);
        struct bk_until share = {.at_ns = until.at_ns, .cancel_fd = until.cancel_fd};
        if (i + 1 < n) share.at_ns = now + (left < ATTEMPT_MS * NS_PER_MS ? left : ATTEMPT_MS * NS_PER_MS);
        pawl_error one = PAWL_ERROR_INIT;
        if (dial_one(bk, (first + i) % n, share, ret, &one) == BK_YES) {
            atomic_store(&bk->next, (first + (unsigned)i) % (unsigned)n);
            return BK_YES;
        }
        error_copy(error, &one);
        if (one.code == PAWL_ECANCELLED) break;
        atomic_store(&bk->next, (first + (unsigned)i + 1) % (unsigned)n);
    }
    return BK_FAULT;
}

/* An attempt is short; if it ends without an answer, the next connection goes to another member. */
static struct bk_until attempt(struct bk_until until) {
    int64_t end = clock_after_ms(clock_now_ns(), ATTEMPT_MS);
    return (struct bk_until){.at_ns = until.at_ns < end ? until.at_ns : end, .cancel_fd = until.cancel_fd};
}

static enum bk_says call_once(struct bk_session *s, const char *path, const unsigned char *packed, size_t size,
                              struct bk_until until, struct grpc_reply *ret, pawl_error *error) {
    enum bk_says says = grpc_call(s->h, path, *s->token ? s->token : NULL, packed, size, attempt(until), ret, error);
    if (says != BK_YES) atomic_fetch_add(&s->bk->next, 1);
    return says;
}

/* The token ran out; users and roles were changed; or there was nothing to log in to when the connection was made: each
 * has words of its own. */
static bool login_is_over(const struct grpc_reply *reply) {
    return reply->status == GRPC_UNAUTHENTICATED ||
           (reply->status == GRPC_INVALID &&
            (strstr(reply->message, "revision of auth store is old") || strstr(reply->message, "user name is empty")));
}

enum bk_says call(struct bk_session *s, const char *path, const ProtobufCMessage *message, struct bk_until until,
                  struct grpc_reply *ret, int *ret_status, pawl_error *error) {
    size_t size = protobuf_c_message_get_packed_size(message);
    unsigned char *packed = malloc(size + 1);
    struct grpc_reply reply = {0};
    if (!packed) {
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        return BK_FAULT;
    }
    protobuf_c_message_pack(message, packed);
    enum bk_says says = call_once(s, path, packed, size, until, &reply, error);
    if (says == BK_YES && login_is_over(&reply) && s->bk->place.user) { /* surely not executed: log in again */
        free(reply.body);
        reply = (struct grpc_reply){0};
        says = login(&s->bk->place, s->h, until, s->token, error);
        if (says == BK_YES) says = call_once(s, path, packed, size, until, &reply, error);
    }
    free(packed);
    if (says != BK_YES) return says;
    if (ret_status) *ret_status = reply.status;
    if (reply.status == GRPC_OK) {
        *ret = reply;
        return BK_YES;
    }
    free(reply.body);
    says = verdict(&s->bk->place, s->h, &reply, error);
    if (reply.status == GRPC_UNAVAILABLE) atomic_fetch_add(&s->bk->next, 1);
    return says;
}

void heard_revision(struct bk *bk, int64_t revision) {
    long long known = atomic_load(&bk->revision);
    while (known < revision && !atomic_compare_exchange_weak(&bk->revision, &known, revision)) continue;
}

enum bk_says txn(struct bk_session *s, const Pb__TxnRequest *request, struct bk_until until, Pb__TxnResponse **ret,
                 pawl_error *error) {
    struct grpc_reply reply;
    enum bk_says says = call(s, "/etcdserverpb.KV/Txn", &request->base, until, &reply, NULL, error);
    if (says != BK_YES) return says;
    *ret = pb__txn_response__unpack(NULL, reply.size, reply.body);
    free(reply.body);
    if (*ret && (*ret)->header) {
        heard_revision(s->bk, (*ret)->header->revision);
        return BK_YES;
    }
    error_set(error, PAWL_EUNREACHABLE, http2_node(s->h), "%s: the answer is not a transaction's", http2_at(s->h));
    return BK_UNKNOWN;
}

const Pb__RangeResponse *range_at(const Pb__TxnResponse *t, size_t i) {
    if (i >= t->n_responses || t->responses[i]->response_case != PB__RESPONSE_OP__RESPONSE_RESPONSE_RANGE) return NULL;
    return t->responses[i]->response_range;
}

enum bk_says nonsense(const struct bk_session *s, pawl_error *error) {
    error_set(error, PAWL_EUNREACHABLE, http2_node(s->h), "%s: the answer does not fit the question", http2_at(s->h));
    return BK_UNKNOWN;
}
