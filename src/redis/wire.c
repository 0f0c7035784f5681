#include "wire.h"
#include "clock.h"
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define REPLY_MAX (64u << 20) /* nothing that we ask for comes near */

/* The socket blocks, but never for longer than a glance: an answer that comes at once then costs one system call, not
 * two. */
#define GLANCE_MS 10

static void glance(int fd) {
    struct timeval limit = {.tv_usec = GLANCE_MS * 1000};
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0)
        fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
}

bool wire_open(struct wire *w, int fd, struct tls *tls, const char *node, const char *prefix) {
    memset(w, 0, sizeof *w);
    w->fd = fd;
    w->tls = tls;
    if (!tls) glance(fd);
    w->reader = redisReaderCreate();
    w->prefix = prefix;
    w->verb = "connecting";
    w->name = "";
    snprintf(w->node, sizeof w->node, "%s", node);
    if (w->reader) return true;
    wire_close(w, true);
    return false;
}

void wire_close(struct wire *w, bool quiet) {
    tls_end(w->tls, quiet);
    if (w->fd >= 0) close(w->fd);
    if (w->reader) redisReaderFree(w->reader);
    free(w->out);
    memset(w, 0, sizeof *w);
    w->fd = -1;
}

void wire_keep_alive(struct wire *w) {
    int idle_s = 5, interval_s = 2, probes = 3;
    setsockopt(w->fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(w->fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(w->fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

void arg_text(struct args *a, const char *value) { arg(a, value, strlen(value)); }

static bool room(struct wire *w, size_t more) {
    if (w->out_size - w->out_used >= more) return true;
    size_t size = (w->out_used + more) * 2;
    char *out = realloc(w->out, size);
    if (!out) {
        w->failed = true;
        return false;
    }
    w->out = out;
    w->out_size = size;
    return true;
}

static void put_count(struct wire *w, char type, size_t count) {
    char digits[24], *at = digits + sizeof digits;
    *--at = '\n';
    *--at = '\r';
    do *--at = (char)('0' + count % 10);
    while (count /= 10);
    *--at = type;
    size_t length = (size_t)(digits + sizeof digits - at);
    memcpy(w->out + w->out_used, at, length);
    w->out_used += length;
}

void wire_add(struct wire *w, const struct args *a) {
    size_t need = 32;
    for (int i = 0; i < a->n; i++) need += a->length[i] + 32;
    if (!room(w, need)) return;
    put_count(w, '*', (size_t)a->n);
    for (int i = 0; i < a->n; i++) {
        put_count(w, '$', a->length[i]);
        memcpy(w->out + w->out_used, a->value[i], a->length[i]);
        w->out_used += a->length[i];
        w->out[w->out_used++] = '\r';
        w->out[w->out_used++] = '\n';
    }
}

void wire_words(struct wire *w, const char *const words[]) {
    struct args a;
    a.n = 0;
    for (; *words; words++) arg_text(&a, *words);
    wire_add(w, &a);
}

static void complain(const struct wire *w, int code, pawl_error *error, const char *what) {
    const char *space = *w->name ? " '" : "", *quote = *w->name ? "'" : "";
    if (errno) error_errno(error, code, w->node, "%s: %s%s%s%s: %s", w->node, w->verb, space, w->name, quote, what);
    else error_set(error, code, w->node, "%s: %s%s%s%s: %s", w->node, w->verb, space, w->name, quote, what);
}

/* The result of clock_wait_fd when it was not 1, in a wait that began at from_ns. */
static void not_ready(const struct wire *w, int result, int64_t from_ns, pawl_error *error) {
    char late[80];
    errno = result == -2 ? errno : 0;
    snprintf(late, sizeof late, "the server did not answer in time (%.1f s)",
             (double)(clock_now_ns() - from_ns) / NS_PER_S);
    if (result == -1) complain(w, PAWL_ECANCELLED, error, "cancelled");
    else if (result == 0) complain(w, PAWL_EUNREACHABLE, error, late);
    else complain(w, PAWL_EINTERNAL, error, "poll");
}

static ssize_t send_some(struct wire *w, const char *from, size_t size) {
    w->events = POLLOUT;
    return w->tls ? tls_send(w->tls, from, size, &w->events) : send(w->fd, from, size, MSG_NOSIGNAL | MSG_DONTWAIT);
}

enum bk_says wire_flush(struct wire *w, struct bk_until until, pawl_error *error) {
    size_t done = 0, all = w->out_used;
    int64_t from_ns = 0;
    w->out_used = 0;
    if (w->failed) {
        errno = 0;
        complain(w, PAWL_EINTERNAL, error, "out of memory");
        return BK_FAULT;
    }
    while (done < all) {
        ssize_t n = send_some(w, w->out + done, all - done);
        if (n >= 0) {
            done += (size_t)n;
            continue;
        }
        if (errno == EINTR) continue;
        if (errno != EAGAIN) {
            complain(w, PAWL_EUNREACHABLE, error, "the connection broke");
            return done || w->tls ? BK_UNKNOWN : BK_FAULT;
        }
        if (!from_ns) from_ns = clock_now_ns();
        int ready = clock_wait_fd(w->fd, (short)w->events, until.at_ns, until.cancel_fd);
        if (ready == 1) continue;
        not_ready(w, ready, from_ns, error);
        return done || w->tls ? BK_UNKNOWN : BK_FAULT;
    }
    return BK_YES;
}

/* 1: a reply, 0: none yet, -1: not RESP. */
static int parse(struct wire *w, redisReply **ret, pawl_error *error) {
    void *reply = NULL;
    if (redisReaderGetReply(w->reader, &reply) != REDIS_OK || w->reader->len > REPLY_MAX) {
        errno = 0;
        complain(w, PAWL_EUNREACHABLE, error,
                 w->strange ? w->strange : "what answers does not speak the Redis protocol");
        return -1;
    }
    if (!reply) return 0;
    *ret = reply;
    return 1;
}

static const char *not_redis(const char *first, size_t n) {
    if (n >= 5 && memcmp(first, "HTTP/", 5) == 0)
        return "what answers speaks HTTP, not the Redis protocol: if it is etcd, write etcd:// or etcds://";
    return first[0] == 21 ? "what answers speaks TLS, not the Redis protocol: write rediss:// or redlocks://" : NULL;
}

/* The connection ended, errno tells how (0: it was closed). */
static void ended(const struct wire *w, pawl_error *error) {
    char text[120];
    snprintf(text, sizeof text, "%s%s%s%s", errno ? "the connection broke" : "the server closed the connection",
             w->heard ? "" : " without a word (is it Redis that listens there",
             w->heard || w->tls ? "" : ", without TLS", w->heard ? "" : "?)");
    complain(w, PAWL_EUNREACHABLE, error, text);
}

/* 1: got some bytes, 0: would wait, -1: gone. */
static int receive(struct wire *w, int flags, pawl_error *error) {
    char buffer[16384];
    w->events = POLLIN;
    ssize_t n;
    do n = w->tls ? tls_recv(w->tls, buffer, sizeof buffer, &w->events) : recv(w->fd, buffer, sizeof buffer, flags);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN) return 0;
    if (n <= 0) {
        if (n == 0) errno = 0;
        ended(w, error);
        return -1;
    }
    if (!w->heard) w->strange = not_redis(buffer, (size_t)n);
    w->heard = true;
    if (redisReaderFeed(w->reader, buffer, (size_t)n) == REDIS_OK) return 1;
    errno = 0;
    complain(w, PAWL_EINTERNAL, error, "out of memory");
    return -1;
}

static enum bk_says look(struct wire *w, int flags, redisReply **ret, pawl_error *error) {
    for (;;) {
        int result = parse(w, ret, error);
        if (result) return result > 0 ? BK_YES : BK_FAULT;
        result = receive(w, flags, error);
        if (result <= 0) return result ? BK_FAULT : BK_NO;
    }
}

enum bk_says wire_poll(struct wire *w, redisReply **ret, pawl_error *error) {
    return look(w, MSG_DONTWAIT, ret, error);
}

bool wire_has_more(const struct wire *w) { return w->tls || w->reader->pos < w->reader->len; }

enum bk_says wire_reply(struct wire *w, struct bk_until until, redisReply **ret, pawl_error *error) {
    bool time = until.at_ns == INT64_MAX || until.at_ns - clock_now_ns() > GLANCE_MS * NS_PER_MS;
    int64_t from_ns = 0;
    for (int flags = time ? 0 : MSG_DONTWAIT;; flags = MSG_DONTWAIT) {
        enum bk_says says = look(w, flags, ret, error);
        if (says == BK_YES) return BK_YES;
        if (says == BK_FAULT) return BK_UNKNOWN;
        if (!from_ns) from_ns = clock_now_ns();
        int ready = clock_wait_fd(w->fd, (short)w->events, until.at_ns, until.cancel_fd);
        if (ready == 1) continue;
        not_ready(w, ready, from_ns, error);
        return BK_UNKNOWN;
    }
}

enum bk_says wire_ask(struct wire *w, const struct args *a, struct bk_until until, redisReply **ret,
                      pawl_error *error) {
    wire_add(w, a);
    enum bk_says says = wire_flush(w, until, error);
    return says == BK_YES ? wire_reply(w, until, ret, error) : says;
}
