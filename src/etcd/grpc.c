#include "grpc.h"
#include "clock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX 5 /* compressed (1 byte), length (4, big-endian) */
#define MESSAGE_MAX (32u << 20)
#define DEADLINE_LEAD_MS 20 /* the server gives up before we do, so that its words reach us */

static bool send_message(struct http2 *h, struct http2_call *call, const void *message, size_t size, bool end) {
    unsigned char prefix[PREFIX] = {0, (unsigned char)(size >> 24), (unsigned char)(size >> 16),
                                    (unsigned char)(size >> 8), (unsigned char)size};
    return http2_write(h, call, prefix, PREFIX, false) && http2_write(h, call, message, size, end);
}

/* 1: taken out of the call's bytes; 0: not complete; -1: not a gRPC message. */
static int take_message(struct http2_call *call, unsigned char **ret, size_t *ret_size) {
    if (call->in_used < PREFIX) return 0;
    const unsigned char *p = call->in;
    size_t size = (size_t)p[1] << 24 | (size_t)p[2] << 16 | (size_t)p[3] << 8 | p[4];
    if (p[0] != 0 || size > MESSAGE_MAX) return -1;
    if (call->in_used < PREFIX + size) return 0;
    unsigned char *body = malloc(size + 1);
    if (!body) return -1;
    memcpy(body, call->in + PREFIX, size);
    call->in_used -= PREFIX + size;
    memmove(call->in, call->in + PREFIX + size, call->in_used);
    *ret = body;
    *ret_size = size;
    return 1;
}

static bool start(struct http2 *h, struct http2_call *call, const char *path, const char *token, const char *timeout,
                  bool leader) {
    struct http2_header headers[3];
    int n = 0;
    if (timeout) headers[n++] = (struct http2_header){"grpc-timeout", timeout};
    if (token) headers[n++] = (struct http2_header){"token", token};
    if (leader)
        headers[n++] = (struct http2_header){"hasleader", "true"}; /* or a stream stays silent without a quorum */
    return http2_start(h, call, path, headers, n);
}

/* What does not speak gRPC did nothing if it blames the request itself. Anything else, a proxy that gave up waiting or
 * a stream that broke off after it began, leaves open what the service behind it did. */
static bool surely_not_done(int http_status) {
    return http_status >= 400 && http_status <= 499 && http_status != 408 && http_status != 499; /* 499: nginx's 408 */
}

static enum bk_says conclude(struct http2 *h, struct http2_call *call, struct grpc_reply *ret, pawl_error *error) {
    struct grpc_reply reply = {.status = call->grpc_status};
    if (call->refused) {
        error_set(error, PAWL_EUNREACHABLE, http2_node(h), "%s: the server refused the request; it is going away",
                  http2_at(h));
        return BK_FAULT;
    }
    if (call->grpc_status < 0) {
        error_set(error, PAWL_EUNREACHABLE, http2_node(h), "%s: the answer is not gRPC (HTTP status %d)", http2_at(h),
                  call->status);
        return surely_not_done(call->status) ? BK_FAULT : BK_UNKNOWN;
    }
    snprintf(reply.message, sizeof reply.message, "%s", call->grpc_message);
    if (call->grpc_status == GRPC_OK && take_message(call, &reply.body, &reply.size) != 1) {
        error_set(error, PAWL_EUNREACHABLE, http2_node(h), "%s: the answer is not a whole gRPC message", http2_at(h));
        return BK_UNKNOWN;
    }
    *ret = reply;
    return BK_YES;
}

enum bk_says grpc_call(struct http2 *h, const char *path, const char *token, const void *message, size_t size,
                       struct bk_until until, struct grpc_reply *ret, pawl_error *error) {
    struct http2_call call = {0};
    char timeout[16];
    int64_t left_ms = until.at_ns == INT64_MAX ? 60000 : (until.at_ns - clock_now_ns()) / NS_PER_MS - DEADLINE_LEAD_MS;
    snprintf(timeout, sizeof timeout, "%lldm", (long long)(left_ms < 1 ? 1 : left_ms > 3600000 ? 3600000 : left_ms));
    if (!start(h, &call, path, token, timeout, strstr(path, "KeepAlive") != NULL) ||
        !send_message(h, &call, message, size, true)) {
        http2_done(h, &call);
        error_set(error, PAWL_EUNREACHABLE, http2_node(h), "%s: the connection is closed", http2_at(h));
        return BK_FAULT;
    }
    enum bk_says says = BK_UNKNOWN;
    for (;;) {
        if (call.closed) {
            says = conclude(h, &call, ret, error);
            break;
        }
        enum bk_says pumped = http2_pump(h, true, until, error);
        if (pumped == BK_YES || (pumped == BK_FAULT && call.grpc_status >= 0)) continue;
        if (pumped == BK_FAULT && call.refused) says = BK_FAULT;
        break;
    }
    http2_done(h, &call);
    return says;
}

bool grpc_stream_open(struct http2 *h, struct grpc_stream *stream, const char *path, const char *token) {
    memset(stream, 0, sizeof *stream);
    return start(h, &stream->call, path, token, NULL, true);
}

bool grpc_stream_send(struct http2 *h, struct grpc_stream *stream, const void *message, size_t size) {
    return !stream->call.closed && send_message(h, &stream->call, message, size, false);
}

enum bk_says grpc_stream_next(struct http2 *h, struct grpc_stream *stream, unsigned char **ret, size_t *ret_size,
                              pawl_error *error) {
    int taken = take_message(&stream->call, ret, ret_size);
    if (taken > 0) return BK_YES;
    if (taken == 0 && !stream->call.closed) return BK_NO;
    error_set(error, PAWL_EUNREACHABLE, http2_node(h), "%s: the server ended the stream: %s", http2_at(h),
              *stream->call.grpc_message ? stream->call.grpc_message : "no reason given");
    return BK_FAULT;
}

void grpc_stream_close(struct http2 *h, struct grpc_stream *stream) { http2_done(h, &stream->call); }
