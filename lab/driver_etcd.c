/* driver_etcd.c: the floor of etcd locks, on the gRPC that pawl itself uses. Uncontended: one transaction that puts a
 * key if it is absent, and a delete. Contended: the recipe without its care: a key in a line, a watch from now on the
 * one before it and one look when the watch stands; nothing is renewed or proven. */
#include "clock.h"
#include "driver.h"
#include "error.h"
#include "etcd.pb-c.h"
#include "grpc.h"
#include "random.h"
#include "resolve.h"
#include "url.h"
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TTL_S 600
#define BATCH 100 /* keys in one transaction; etcd takes 128 */

struct client {
    struct http2 *h;
    struct grpc_stream watch;
    bool contended, watching;
    int64_t lease, watches;
    char key[256], own[320], end[264];
};

static ProtobufCBinaryData text(const char *s) {
    return (ProtobufCBinaryData){.data = (uint8_t *)(uintptr_t)s, .len = strlen(s)};
}
static struct bk_until soon(void) {
    return (struct bk_until){.at_ns = clock_after_ms(clock_now_ns(), 30000), .cancel_fd = -1};
}

static int ask(struct client *c, const char *path, const ProtobufCMessage *message, struct grpc_reply *ret,
               pawl_error *error) {
    size_t size = protobuf_c_message_get_packed_size(message);
    unsigned char *packed = malloc(size + 1);
    if (!packed) abort();
    protobuf_c_message_pack(message, packed);
    enum bk_says says = grpc_call(c->h, path, NULL, packed, size, soon(), ret, error);
    free(packed);
    if (says != BK_YES) return PAWL_EUNREACHABLE;
    if (ret->status == GRPC_OK) return PAWL_OK;
    return error_set(error, PAWL_EUNREACHABLE, NULL, "raw %s: %.200s", path, ret->message);
}

static int txn(struct client *c, const Pb__TxnRequest *request, Pb__TxnResponse **ret, pawl_error *error) {
    struct grpc_reply reply = {0};
    int r = ask(c, "/etcdserverpb.KV/Txn", &request->base, &reply, error);
    *ret = r ? NULL : pb__txn_response__unpack(NULL, reply.size, reply.body);
    free(reply.body);
    return r || *ret ? r : error_set(error, PAWL_EUNREACHABLE, NULL, "raw Txn: not an answer");
}

/* --- opening and closing --- */

static int lease(struct client *c, pawl_error *error) {
    Pb__LeaseGrantRequest request = PB__LEASE_GRANT_REQUEST__INIT;
    struct grpc_reply reply = {0};
    random_bytes(&c->lease, sizeof c->lease);
    c->lease &= INT64_MAX;
    request.id = c->lease;
    request.ttl = TTL_S;
    int r = ask(c, "/etcdserverpb.Lease/LeaseGrant", &request.base, &reply, error);
    free(reply.body);
    return r;
}

static void close_client(void *of, bool sweep) {
    struct client *c = of;
    struct grpc_reply reply = {0};
    Pb__LeaseRevokeRequest request = PB__LEASE_REVOKE_REQUEST__INIT;
    (void)sweep;
    request.id = c->lease;
    if (c->lease) ask(c, "/etcdserverpb.Lease/LeaseRevoke", &request.base, &reply, NULL);
    free(reply.body);
    if (c->watching) grpc_stream_close(c->h, &c->watch);
    http2_close(c->h, false);
    free(c);
}

static struct http2 *dial(const struct url *url, pawl_error *error) {
    const char *host = url->n_hosts && *url->hosts[0].host ? url->hosts[0].host : "127.0.0.1";
    int port = url->n_hosts && url->hosts[0].port ? url->hosts[0].port : 2379, fd;
    char node[160];
    snprintf(node, sizeof node, "%.120s:%d", host, port);
    pawl_error own = PAWL_ERROR_INIT; /* it may speak of an address that failed before another one did not */
    if (resolve_connect(host, port, soon(), &fd, &own) == BK_YES) return http2_open(fd, NULL, node, false, node);
    error_copy(error, &own);
    return NULL;
}

static int open_client(const char *at, const char *key, bool contended, void **ret, pawl_error *error) {
    struct url *url;
    int r = url_parse(at, &url, error);
    if (r) return r;
    struct client *c = calloc(1, sizeof *c);
    if (!c) abort();
    c->contended = contended;
    c->h = dial(url, error);
    url_free(url);
    if (!c->h) {
        free(c);
        return PAWL_EUNREACHABLE;
    }
    snprintf(c->key, sizeof c->key, "/pawl-lab/raw/%.200s/", key);
    snprintf(c->end, sizeof c->end, "%s", c->key);
    c->end[strlen(c->end) - 1]++;
    r = lease(c, error);
    snprintf(c->own, sizeof c->own, "%s%" PRIx64, c->key, (uint64_t)(contended ? c->lease : 0));
    if (r == PAWL_OK && contended) c->watching = grpc_stream_open(c->h, &c->watch, "/etcdserverpb.Watch/Watch", NULL);
    if (r) close_client(c, false);
    else *ret = c;
    return r;
}

/* --- one lock --- */

static int take_free(struct client *c, pawl_error *error) {
    Pb__Compare absent = PB__COMPARE__INIT, *compares[] = {&absent};
    Pb__PutRequest put = PB__PUT_REQUEST__INIT;
    Pb__RequestOp op = PB__REQUEST_OP__INIT, *ops[] = {&op};
    Pb__TxnRequest request = PB__TXN_REQUEST__INIT;
    Pb__TxnResponse *answer;
    absent.target = PB__COMPARE__TARGET__CREATE;
    absent.target_union_case = PB__COMPARE__TARGET_UNION_CREATE_REVISION;
    absent.key = put.key = text(c->own);
    put.lease = c->lease;
    op.request_case = PB__REQUEST_OP__REQUEST_REQUEST_PUT;
    op.request_put = &put;
    request.n_compare = request.n_success = 1;
    request.compare = compares;
    request.success = ops;
    int r = txn(c, &request, &answer, error);
    if (r == PAWL_OK && !answer->succeeded) r = error_set(error, PAWL_EBUSY, NULL, "raw Txn: the key is there");
    pb__txn_response__free_unpacked(answer, NULL);
    return r;
}

/* Who is before us, with put: after our key was put there. *ret NULL: nobody. To be freed. */
static int before(struct client *c, bool puts, int64_t *revision, char **ret, pawl_error *error) {
    Pb__PutRequest put = PB__PUT_REQUEST__INIT;
    Pb__RangeRequest last = PB__RANGE_REQUEST__INIT;
    Pb__RequestOp both[2] = {PB__REQUEST_OP__INIT, PB__REQUEST_OP__INIT}, *ops[] = {&both[0], &both[1]};
    Pb__TxnRequest request = PB__TXN_REQUEST__INIT;
    Pb__TxnResponse *answer;
    put.key = text(c->own);
    put.lease = c->lease;
    last.key = text(c->key);
    last.range_end = text(c->end);
    last.limit = puts ? 2 : 1;
    last.sort_order = PB__RANGE_REQUEST__ORDER__DESCEND;
    last.sort_target = PB__RANGE_REQUEST__TARGET__CREATE;
    last.max_create_revision = puts ? 0 : *revision - 1;
    both[0].request_case = PB__REQUEST_OP__REQUEST_REQUEST_PUT;
    both[0].request_put = &put;
    both[1].request_case = PB__REQUEST_OP__REQUEST_REQUEST_RANGE;
    both[1].request_range = &last;
    request.success = puts ? ops : ops + 1;
    request.n_success = puts ? 2 : 1;
    *ret = NULL;
    int r = txn(c, &request, &answer, error);
    if (r) return r;
    if (puts) *revision = answer->header->revision;
    const Pb__ResponseOp *op = answer->n_responses ? answer->responses[answer->n_responses - 1] : NULL;
    const Pb__RangeResponse *range =
        op && op->response_case == PB__RESPONSE_OP__RESPONSE_RESPONSE_RANGE ? op->response_range : NULL;
    size_t at = puts ? 1 : 0;
    if (range && range->n_kvs > at) *ret = strndup((char *)range->kvs[at]->key.data, range->kvs[at]->key.len);
    pb__txn_response__free_unpacked(answer, NULL);
    return PAWL_OK;
}

static bool begin_watch(struct client *c, const char *key) {
    static Pb__WatchCreateRequest__Filter only_deletes[] = {PB__WATCH_CREATE_REQUEST__FILTER__NOPUT};
    Pb__WatchCreateRequest create = PB__WATCH_CREATE_REQUEST__INIT;
    Pb__WatchRequest request = PB__WATCH_REQUEST__INIT;
    unsigned char packed[1024];
    create.key = text(key);
    create.filters = only_deletes;
    create.n_filters = 1;
    create.watch_id = ++c->watches;
    request.request_union_case = PB__WATCH_REQUEST__REQUEST_UNION_CREATE_REQUEST;
    request.create_request = &create;
    return grpc_stream_send(c->h, &c->watch, packed, pb__watch_request__pack(&request, packed));
}

static void end_watch(struct client *c) {
    Pb__WatchCancelRequest cancel = PB__WATCH_CANCEL_REQUEST__INIT;
    Pb__WatchRequest request = PB__WATCH_REQUEST__INIT;
    unsigned char packed[64];
    cancel.watch_id = c->watches;
    request.request_union_case = PB__WATCH_REQUEST__REQUEST_UNION_CANCEL_REQUEST;
    request.cancel_request = &cancel;
    grpc_stream_send(c->h, &c->watch, packed, pb__watch_request__pack(&request, packed));
}

/* The next message about the present watch. */
static int listen_once(struct client *c, pawl_error *error) {
    for (;;) {
        unsigned char *message;
        size_t size;
        enum bk_says says = grpc_stream_next(c->h, &c->watch, &message, &size, error);
        if (says == BK_FAULT || (says == BK_NO && http2_pump(c->h, true, soon(), error) != BK_YES))
            return PAWL_EUNREACHABLE;
        if (says != BK_YES) continue;
        Pb__WatchResponse *r = pb__watch_response__unpack(NULL, size, message);
        bool ours = r && r->watch_id == c->watches && !r->canceled;
        free(message);
        pb__watch_response__free_unpacked(r, NULL);
        if (ours) return PAWL_OK;
    }
}

static int acquire(void *of, pawl_error *error) {
    struct client *c = of;
    int64_t revision = 0;
    char *first, *again;
    if (!c->contended) return take_free(c, error);
    int r = before(c, true, &revision, &first, error);
    while (r == PAWL_OK && first) {
        if (!begin_watch(c, first)) r = error_set(error, PAWL_EUNREACHABLE, NULL, "raw Watch: the stream ended");
        if (r == PAWL_OK) r = listen_once(c, error); /* it stands */
        again = NULL;
        if (r == PAWL_OK) r = before(c, false, &revision, &again, error);
        if (r == PAWL_OK && again && strcmp(again, first) == 0) {
            free(again);
            again = NULL;
            r = listen_once(c, error); /* deleted */
            if (r == PAWL_OK) r = before(c, false, &revision, &again, error);
        }
        end_watch(c);
        free(first);
        first = again;
    }
    return r;
}

static int release(void *of, pawl_error *error) {
    struct client *c = of;
    Pb__DeleteRangeRequest request = PB__DELETE_RANGE_REQUEST__INIT;
    struct grpc_reply reply = {0};
    request.key = text(c->own);
    int r = ask(c, "/etcdserverpb.KV/DeleteRange", &request.base, &reply, error);
    free(reply.body);
    return r;
}

static int64_t token(const void *of) {
    (void)of;
    return 0;
}

/* --- many --- */

static int take_many(void *of, long n, pawl_error *error) {
    struct client *c = of;
    static Pb__PutRequest puts[BATCH];
    static Pb__RequestOp ops[BATCH], *all[BATCH];
    static char keys[BATCH][320];
    int r = PAWL_OK;
    for (long done = 0; done < n && r == PAWL_OK;) {
        Pb__TxnRequest request = PB__TXN_REQUEST__INIT;
        Pb__TxnResponse *answer;
        long batch = n - done < BATCH ? n - done : BATCH;
        for (long i = 0; i < batch; i++) {
            snprintf(keys[i], sizeof keys[i], "%s%ld/%" PRIx64, c->key, done + i, (uint64_t)c->lease);
            puts[i] = (Pb__PutRequest)PB__PUT_REQUEST__INIT;
            puts[i].key = text(keys[i]);
            puts[i].lease = c->lease;
            ops[i] = (Pb__RequestOp)PB__REQUEST_OP__INIT;
            ops[i].request_case = PB__REQUEST_OP__REQUEST_REQUEST_PUT;
            ops[i].request_put = &puts[i];
            all[i] = &ops[i];
        }
        request.success = all;
        request.n_success = (size_t)batch;
        r = txn(c, &request, &answer, error);
        pb__txn_response__free_unpacked(answer, NULL);
        done += batch;
    }
    return r;
}

const struct driver driver_etcd = {
    .name = "raw",
    .does = "put if absent, delete (contended: a line of keys, watched from now) over the same gRPC",
    .open = open_client,
    .acquire = acquire,
    .release = release,
    .token = token,
    .close = close_client,
    .take_many = take_many};

/* A page of the server's HTTP side; to be freed; NULL: none. */
static char *page(const struct url *url, const char *path) {
    const char *host = url->n_hosts && *url->hosts[0].host ? url->hosts[0].host : "127.0.0.1";
    int port = url->n_hosts && url->hosts[0].port ? url->hosts[0].port : 2379, fd;
    char request[256], *all = malloc(1 << 20);
    size_t used = 0, length = (size_t)snprintf(request, sizeof request, "GET %s HTTP/1.0\r\n\r\n", path);
    if (!all || resolve_connect(host, port, soon(), &fd, NULL) != BK_YES) {
        free(all);
        return NULL;
    }
    if (write(fd, request, length) == (ssize_t)length)
        for (ssize_t n;
             clock_wait_fd(fd, POLLIN, soon().at_ns, -1) == 1 && (n = read(fd, all + used, (1 << 20) - 1 - used)) > 0;)
            used += (size_t)n;
    close(fd);
    all[used] = 0;
    return all;
}

void driver_etcd_about(const char *at, char *ret_version, size_t size, uint64_t *ret_requests) {
    static const char counter[] = "\ngrpc_server_msg_received_total{", key[] = "\"etcdserver\":\"";
    struct url *url;
    if (url_parse(at, &url, NULL)) return;
    char *version = page(url, "/version"), *metrics = page(url, "/metrics");
    url_free(url);
    const char *found = version ? strstr(version, key) : NULL;
    if (found)
        snprintf(ret_version, size, "etcd %.*s", (int)strcspn(found + sizeof key - 1, "\""), found + sizeof key - 1);
    for (const char *line = metrics ? strstr(metrics, counter) : NULL; line; line = strstr(line + 1, counter)) {
        const char *value = strstr(line, "} ");
        if (value) *ret_requests += (uint64_t)strtod(value + 2, NULL);
    }
    free(version);
    free(metrics);
}
