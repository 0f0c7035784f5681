#include "http2.h"
#include "clock.h"
#include <errno.h>
#include <nghttp2/nghttp2.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BODY_MAX (64u << 20)      /* nothing that we ask for comes near */
#define LAST_STREAM_ID 0x7ffffff0 /* ids end at 2^31: a new connection before that */
#define WINDOW (1 << 20)
#define OUT_SIZE 4096
/* A grpc-go server pings after what we send, to learn how much may be under way, and goes on doing so as soon as it was
 * answered: two more packets a request. So such a ping is answered with what we send so much later. */
#define PONG_NS (250 * NS_PER_MS)

struct http2 {
    int fd;
    struct tls *tls;
    nghttp2_session *session;
    struct http2_call *calls;
    char authority[160], node[128], at[512];
    const char *verb, *name;             /* what is being attempted; name NULL: it has none */
    bool secure, broken, leaving, heard; /* leaving: GOAWAY came; heard: anything at all */
    const char *strange;                 /* what came first is not HTTP/2; NULL: it is */
    const uint8_t *frame;                /* bytes of nghttp2 that are not in out yet */
    size_t frame_left;
    uint8_t out[OUT_SIZE]; /* frames in one piece, so that a request is one packet: from out_at on not sent yet */
    size_t out_at, out_used;
    int64_t sent_ns, pinged_ns; /* the last send; a ping that is not answered yet, 0: none */
    uint8_t ping[8];
    int events;
};

static struct http2_call *find(const struct http2 *h, int32_t id) {
    struct http2_call *call = h->calls;
    while (call && call->id != id) call = call->next;
    return call;
}

static bool room(unsigned char **bytes, size_t used, size_t *size, size_t more) {
    if (*size - used >= more) return true;
    size_t bigger = (used + more) * 2;
    unsigned char *made = realloc(*bytes, bigger);
    if (!made) return false;
    *bytes = made;
    *size = bigger;
    return true;
}

/* --- what nghttp2 calls --- */

static int hex(char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

static void decode(const char *from, size_t n, char *to, size_t size) {
    size_t used = 0;
    for (size_t i = 0; i < n && used + 1 < size; i++) {
        char c = from[i];
        if (c == '%' && i + 2 < n && hex(from[i + 1]) >= 0 && hex(from[i + 2]) >= 0) {
            c = (char)(hex(from[i + 1]) * 16 + hex(from[i + 2]));
            i += 2;
        }
        to[used++] = (unsigned char)c < 32 ? ' ' : c;
    }
    to[used] = 0;
}

static bool is(const uint8_t *name, size_t length, const char *wanted) {
    return length == strlen(wanted) && memcmp(name, wanted, length) == 0;
}

static int number(const uint8_t *value, size_t length) {
    int n = 0;
    if (length == 0 || length > 5) return -1;
    for (size_t i = 0; i < length; i++) {
        if (value[i] < '0' || value[i] > '9') return -1;
        n = n * 10 + (value[i] - '0');
    }
    return n;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_length,
                     const uint8_t *value, size_t length, uint8_t flags, void *data) {
    (void)session, (void)flags;
    struct http2_call *call = find(data, frame->hd.stream_id);
    if (!call) return 0;
    if (is(name, name_length, ":status")) call->status = number(value, length);
    else if (is(name, name_length, "grpc-status")) call->grpc_status = number(value, length);
    else if (is(name, name_length, "grpc-message"))
        decode((const char *)value, length, call->grpc_message, sizeof call->grpc_message);
    return 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *bytes, size_t length,
                   void *data) {
    (void)session, (void)flags;
    struct http2_call *call = find(data, id);
    if (!call) return 0;
    if (call->in_used + length > BODY_MAX || !room(&call->in, call->in_used, &call->in_size, length))
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    memcpy(call->in + call->in_used, bytes, length);
    call->in_used += length;
    return 0;
}

static int on_close(nghttp2_session *session, int32_t id, uint32_t code, void *data) {
    (void)session;
    struct http2_call *call = find(data, id);
    if (!call) return 0;
    call->closed = true;
    call->refused = code == NGHTTP2_REFUSED_STREAM;
    return 0;
}

static void on_ping(struct http2 *h, const uint8_t ping[8]) {
    int64_t now = clock_now_ns();
    if (h->pinged_ns || now - h->sent_ns > PONG_NS) { /* asks whether we live */
        nghttp2_submit_ping(h->session, NGHTTP2_FLAG_ACK, ping);
        return;
    }
    memcpy(h->ping, ping, sizeof h->ping);
    h->pinged_ns = now;
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *data) {
    struct http2 *h = data;
    (void)session;
    if (frame->hd.type == NGHTTP2_GOAWAY) h->leaving = true; /* streams above its last id are closed as refused */
    if (frame->hd.type == NGHTTP2_PING && !(frame->hd.flags & NGHTTP2_FLAG_ACK)) on_ping(h, frame->ping.opaque_data);
    return 0;
}

static ssize_t give_body(nghttp2_session *session, int32_t id, uint8_t *buffer, size_t size, uint32_t *flags,
                         nghttp2_data_source *source, void *data) {
    struct http2_call *call = find(data, id); /* not source: a call may be done before its reset is sent */
    (void)session, (void)source;
    if (!call) return NGHTTP2_ERR_DEFERRED;
    size_t n = call->out_used < size ? call->out_used : size;
    if (n == 0 && !call->out_ended) return NGHTTP2_ERR_DEFERRED;
    if (n > 0) memcpy(buffer, call->out, n);
    call->out_used -= n;
    if (call->out_used > 0) memmove(call->out, call->out + n, call->out_used);
    if (call->out_used == 0 && call->out_ended) *flags |= NGHTTP2_DATA_FLAG_EOF;
    return (ssize_t)n;
}

/* --- the connection --- */

static bool begin(struct http2 *h) {
    nghttp2_session_callbacks *callbacks;
    nghttp2_option *option;
    nghttp2_settings_entry settings[] = {{NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
                                         {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, WINDOW}};
    if (nghttp2_option_new(&option)) return false;
    if (nghttp2_session_callbacks_new(&callbacks)) {
        nghttp2_option_del(option);
        return false;
    }
    nghttp2_option_set_no_auto_ping_ack(option, 1);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_close);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
    int failed = nghttp2_session_client_new2(&h->session, callbacks, h, option);
    nghttp2_session_callbacks_del(callbacks);
    nghttp2_option_del(option);
    return !failed && !nghttp2_submit_settings(h->session, NGHTTP2_FLAG_NONE, settings, 2) &&
           !nghttp2_session_set_local_window_size(h->session, NGHTTP2_FLAG_NONE, 0, 8 * WINDOW);
}

struct http2 *http2_open(int fd, struct tls *tls, const char *authority, bool secure, const char *node) {
    struct http2 *h = calloc(1, sizeof *h);
    if (!h) {
        tls_end(tls, true);
        close(fd);
        return NULL;
    }
    *h = (struct http2){.fd = fd, .tls = tls, .secure = secure, .verb = "connecting"};
    snprintf(h->authority, sizeof h->authority, "%s", authority);
    snprintf(h->node, sizeof h->node, "%s", node);
    if (begin(h)) return h;
    http2_close(h, true);
    return NULL;
}

void http2_close(struct http2 *h, bool quiet) {
    if (!h) return;
    if (h->session) nghttp2_session_del(h->session);
    tls_end(h->tls, quiet);
    close(h->fd);
    free(h);
}

int http2_fd(const struct http2 *h) { return h->fd; }
const char *http2_node(const struct http2 *h) { return h->node; }

void http2_doing(struct http2 *h, const char *verb, const char *name) {
    h->verb = verb;
    h->name = name;
}

const char *http2_at(struct http2 *h) {
    snprintf(h->at, sizeof h->at, h->name ? "%s: %s '%s'" : "%s: %s", h->node, h->verb, h->name);
    return h->at;
}

bool http2_would_send(const struct http2 *h) { return h->out_used > 0 || nghttp2_session_want_write(h->session); }
bool http2_worn(const struct http2 *h) {
    return h->broken || h->leaving || nghttp2_session_get_next_stream_id(h->session) > LAST_STREAM_ID;
}

static enum bk_says broke(struct http2 *h, const char *what, pawl_error *error) {
    const char *alert = h->tls ? tls_alert(h->tls) : "";
    if (*alert)
        error_set(error, strstr(alert, "certificate") ? PAWL_EDENIED : PAWL_EUNREACHABLE, h->node,
                  "%s: the server refuses the TLS connection: %s (see cert and key)", http2_at(h), alert);
    else if (h->strange)
        error_set(error, PAWL_EUNREACHABLE, h->node, "%s: what answers there %s", http2_at(h), h->strange);
    else if (!h->heard && !h->tls)
        error_set(error, PAWL_EUNREACHABLE, h->node,
                  "%s: the server closed the connection without a word (is it etcd that listens there? if with TLS, "
                  "write etcds://)",
                  http2_at(h));
    else if (errno) error_errno(error, PAWL_EUNREACHABLE, h->node, "%s: %s", http2_at(h), what);
    else error_set(error, PAWL_EUNREACHABLE, h->node, "%s: %s", http2_at(h), what);
    h->broken = true;
    for (struct http2_call *call = h->calls; call; call = call->next) call->closed = true;
    return BK_FAULT;
}

static bool gather(struct http2 *h) {
    while (h->out_used < sizeof h->out) {
        if (h->frame_left == 0) {
            ssize_t n = nghttp2_session_mem_send(h->session, &h->frame);
            if (n < 0) return false;
            if (n == 0) return true;
            h->frame_left = (size_t)n;
        }
        size_t room = sizeof h->out - h->out_used, n = h->frame_left < room ? h->frame_left : room;
        memcpy(h->out + h->out_used, h->frame, n);
        h->out_used += n;
        h->frame += n;
        h->frame_left -= n;
    }
    return true;
}

/* 1: all is sent; 0: the socket takes no more now; -1: broken. */
static int send_all(struct http2 *h, bool *moved) {
    if (h->pinged_ns && nghttp2_session_want_write(h->session) && clock_now_ns() - h->pinged_ns > PONG_NS) {
        nghttp2_submit_ping(h->session, NGHTTP2_FLAG_ACK, h->ping);
        h->pinged_ns = 0;
    }
    for (;;) {
        if (!gather(h)) return errno = EPROTO, -1;
        if (h->out_used == 0) return 1;
        const uint8_t *from = h->out + h->out_at;
        size_t left = h->out_used - h->out_at;
        h->events = POLLOUT;
        ssize_t n =
            h->tls ? tls_send(h->tls, from, left, &h->events) : send(h->fd, from, left, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) {
            h->out_at += (size_t)n;
            if (h->out_at == h->out_used) h->out_at = h->out_used = 0;
            h->sent_ns = clock_now_ns();
            *moved = true;
        } else if (errno == EAGAIN) {
            return 0;
        } else if (errno != EINTR) {
            return -1;
        }
    }
}

/* A server's first frame is its settings. */
static const char *not_http2(const uint8_t *first, size_t n) {
    if (n < 4 || first[3] == NGHTTP2_SETTINGS) return NULL;
    if (first[0] == '-' || first[0] == '+') return "speaks as Redis does, not etcd: write redis://";
    if (first[0] == 21 && first[1] == 3) return "speaks TLS: write etcds://"; /* an alert */
    return "does not speak HTTP/2: is that a client URL of etcd?";
}

/* 0: nothing more is there; -1: broken, or closed (errno 0). */
static int receive_all(struct http2 *h, bool *moved) {
    uint8_t buffer[16384];
    for (;;) {
        h->events = POLLIN;
        ssize_t n = h->tls ? tls_recv(h->tls, buffer, sizeof buffer, &h->events)
                           : recv(h->fd, buffer, sizeof buffer, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return 0;
        if (n == 0) errno = 0;
        if (n <= 0) return -1;
        if (!h->heard) h->strange = not_http2(buffer, (size_t)n);
        *moved = h->heard = true;
        if (h->strange) return errno = EPROTO, -1;
        if (nghttp2_session_mem_recv(h->session, buffer, (size_t)n) != n) return errno = EPROTO, -1;
        if (!h->tls && (size_t)n < sizeof buffer) return 0; /* it is empty now */
    }
}

static bool wait_for_it(struct http2 *h, int events, struct bk_until until, pawl_error *error) {
    int ready = clock_wait_fd(h->fd, (short)(POLLIN | events), until.at_ns, until.cancel_fd);
    if (ready == 1) return true;
    if (ready == -1) error_set(error, PAWL_ECANCELLED, h->node, "%s: cancelled", http2_at(h));
    else if (ready == 0)
        error_set(error, PAWL_EUNREACHABLE, h->node, "%s: the server did not answer in time (%.1f s)", http2_at(h),
                  h->sent_ns ? (double)(clock_now_ns() - h->sent_ns) / NS_PER_S : 0);
    else error_errno(error, PAWL_EINTERNAL, h->node, "%s: poll", http2_at(h));
    return false;
}

enum bk_says http2_pump(struct http2 *h, bool would_wait, struct bk_until until, pawl_error *error) {
    bool moved = false;
    errno = 0;
    if (h->broken) return broke(h, "the connection is closed", error);
    int sent = send_all(h, &moved), number = errno, events = sent == 0 ? h->events : 0;
    /* All that had come was read before: what is waited for is yet to come. (TLS may keep bytes that poll cannot see.)
     */
    bool waits = would_wait && sent >= 0 && !h->tls;
    if (waits && !wait_for_it(h, events, until, error)) return BK_NO;
    /* After a failed send a last word may still wait to be read: why the server hung up. */
    if (receive_all(h, &moved) < 0)
        return broke(h, errno ? "the connection broke" : "the server closed the connection", error);
    if (sent < 0) return errno = number, broke(h, "the connection broke", error);
    if (moved || waits) return BK_YES;
    return would_wait && wait_for_it(h, events, until, error) ? BK_YES : BK_NO;
}

/* --- calls --- */

bool http2_start(struct http2 *h, struct http2_call *call, const char *path, const struct http2_header *headers,
                 int n) {
    nghttp2_nv all[16];
    const struct http2_header fixed[] = {{":method", "POST"},
                                         {":scheme", h->secure ? "https" : "http"},
                                         {":path", path},
                                         {":authority", h->authority},
                                         {"te", "trailers"},
                                         {"content-type", "application/grpc"},
                                         {"user-agent", "pawl/" PAWL_VERSION_TEXT}};
    const int n_fixed = sizeof fixed / sizeof *fixed;
    for (int i = 0; i < n_fixed + n; i++) {
        const struct http2_header *from = i < n_fixed ? &fixed[i] : &headers[i - n_fixed];
        bool changes = strcmp(from->name, "grpc-timeout") == 0 || strcmp(from->name, "token") == 0;
        all[i] = (nghttp2_nv){.name = (uint8_t *)(uintptr_t)from->name,
                              .value = (uint8_t *)(uintptr_t)from->value,
                              .namelen = strlen(from->name),
                              .valuelen = strlen(from->value),
                              .flags = changes ? NGHTTP2_NV_FLAG_NO_INDEX : NGHTTP2_NV_FLAG_NONE};
    }
    nghttp2_data_provider provider = {.read_callback = give_body};
    call->grpc_status = -1;
    if (http2_worn(h)) return false;
    call->id = nghttp2_submit_request(h->session, NULL, all, (size_t)(n_fixed + n), &provider, NULL);
    if (call->id < 0) return false;
    call->next = h->calls;
    h->calls = call;
    return true;
}

bool http2_write(struct http2 *h, struct http2_call *call, const void *data, size_t size, bool end) {
    if (!room(&call->out, call->out_used, &call->out_size, size)) return false;
    if (size > 0) memcpy(call->out + call->out_used, data, size);
    call->out_used += size;
    call->out_ended = end;
    nghttp2_session_resume_data(h->session, call->id); /* fails harmlessly if it was not waiting */
    return true;
}

void http2_done(struct http2 *h, struct http2_call *call) {
    for (struct http2_call **at = &h->calls; *at; at = &(*at)->next)
        if (*at == call) {
            *at = call->next;
            if (!call->closed && !h->broken) {
                nghttp2_submit_rst_stream(h->session, NGHTTP2_FLAG_NONE, call->id, NGHTTP2_CANCEL);
                bool moved;
                if (send_all(h, &moved) < 0) h->broken = true;
            }
            break;
        }
    free(call->in);
    free(call->out);
    memset(call, 0, sizeof *call);
}
