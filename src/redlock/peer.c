#include "peer.h"
#include "clock.h"
#include "random.h"
#include "redis/verdict.h"
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKOFF_FIRST_MS 20
#define BACKOFF_LAST_MS 1000
#define HANDSHAKE_MS 3000 /* TLS */

void peer_init(struct peer *p, const struct place *place, const struct url_host *host) {
    memset(p, 0, sizeof *p);
    p->place = place;
    p->host = host;
    p->fd = p->wire.fd = -1;
    p->why = (pawl_error)PAWL_ERROR_INIT;
    snprintf(p->node, sizeof p->node, strchr(host->host, ':') ? "[%.110s]:%d" : "%.110s:%d", host->host, host->port);
}

void peer_close(struct peer *p, bool quiet) {
    bool was_well = p->state == PEER_READY;
    if (p->wire.fd >= 0) wire_close(&p->wire, quiet);
    tls_end(p->tls, true);
    if (p->fd >= 0) close(p->fd);
    p->tls = NULL;
    p->fd = p->wire.fd = -1;
    p->state = PEER_CLOSED;
    p->owed = p->stale = 0;
    p->known = 0;
    p->retry_ns = 0;
    if (was_well) return; /* a connection that had gone stale says nothing of the instance */
    p->backoff_ms = p->backoff_ms ? 2 * p->backoff_ms : BACKOFF_FIRST_MS;
    if (p->backoff_ms > BACKOFF_LAST_MS) p->backoff_ms = BACKOFF_LAST_MS;
    p->retry_ns = clock_after_ms(clock_now_ns(), random_between(p->backoff_ms / 2, p->backoff_ms));
}

/* --- dialling --- */

static void dial_next(struct peer *p) {
    int on = 1;
    for (; p->address < p->resolved.n; p->address++) {
        const struct sockaddr *to = (const struct sockaddr *)&p->resolved.address[p->address];
        p->fd = socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (p->fd < 0) break;
        setsockopt(p->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(p->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
        if (connect(p->fd, to, p->resolved.length[p->address]) == 0 || errno == EINPROGRESS) {
            p->state = PEER_DIALLING;
            return;
        }
        error_errno(&p->why, PAWL_EUNREACHABLE, p->node, "%s: cannot connect", p->node);
        close(p->fd);
        p->fd = -1;
    }
    if (p->fd < 0 && p->address < p->resolved.n)
        error_errno(&p->why, PAWL_EINTERNAL, p->node, "%s: no socket left", p->node);
    peer_close(p, true);
}

void peer_dial(struct peer *p, struct bk_until until) {
    if (p->state != PEER_CLOSED || clock_now_ns() < p->retry_ns) return;
    p->refused = false;
    p->address = 0;
    if (resolve(p->host->host, p->host->port, until, &p->resolved, &p->why) == BK_YES) dial_next(p);
    else peer_close(p, true);
}

static void greet(struct peer *p, struct bk_until until) {
    struct tls *tls = p->tls;
    int fd = p->fd;
    p->fd = -1;
    p->tls = NULL;
    p->greeting = (struct greeting){.next = 0};
    p->state = PEER_GREETING;
    char meta[PREFIX_MAX + 8];
    snprintf(meta, sizeof meta, "%s%%r", p->place->prefix);
    bool made = wire_open(&p->wire, fd, tls, p->node, p->place->prefix);
    if (made) {
        greet_ask(p->place, &p->wire);
        wire_words(&p->wire, (const char *const[]){"GET", meta, NULL});
    } else {
        error_set(&p->why, PAWL_EINTERNAL, p->node, "out of memory");
    }
    if (!made || wire_flush(&p->wire, until, &p->why) != BK_YES) peer_close(p, true);
}

/* One that hangs half-way is dialled anew; nobody waits for it meanwhile. */
static void shake(struct peer *p, struct bk_until until) {
    enum bk_says says = tls_shake(p->tls, &p->events, &p->why);
    if (says == BK_YES) {
        greet(p, until);
    } else if (says == BK_FAULT) {
        p->refused = p->why.code != PAWL_EUNREACHABLE;
        peer_close(p, true);
    } else if (clock_now_ns() >= p->shaken_ns) {
        tls_late(&p->place->tls_options, p->node, &p->why);
        peer_close(p, true);
    }
}

static void connected(struct peer *p, struct bk_until until) {
    if (!p->place->tls) {
        greet(p, until);
        return;
    }
    p->state = PEER_SHAKING;
    p->shaken_ns = clock_after_ms(clock_now_ns(), HANDSHAKE_MS);
    if (tls_begin(p->fd, &p->place->tls_options, p->host->host, p->node, &p->tls, &p->why) == BK_YES) {
        shake(p, until);
    } else {
        p->refused = true;
        peer_close(p, true);
    }
}

static void dialled(struct peer *p, struct bk_until until) {
    struct pollfd ready = {.fd = p->fd, .events = POLLOUT};
    int number = 0;
    socklen_t size = sizeof number;
    if (poll(&ready, 1, 0) == 0) return;
    if (getsockopt(p->fd, SOL_SOCKET, SO_ERROR, &number, &size) == 0 && number == 0) {
        connected(p, until);
        return;
    }
    errno = number;
    error_errno(&p->why, PAWL_EUNREACHABLE, p->node, "%s: cannot connect", p->node);
    close(p->fd);
    p->fd = -1;
    p->address++;
    dial_next(p);
}

/* --- greeting --- */

/* What it keeps, and whether that is its own. */
static bool read_meta(struct peer *p, const redisReply *reply) {
    p->empty = reply->type == REDIS_REPLY_NIL;
    if (reply->type == REDIS_REPLY_ERROR) {
        verdict(&p->wire, verdict_is(reply->str, "WRONGTYPE") ? "PAWLMETA" : reply->str, &p->why);
        return false;
    }
    if (!p->empty && (reply->type != REDIS_REPLY_STRING || reply->len != META_CHARS)) {
        verdict(&p->wire, "PAWLMETA", &p->why);
        return false;
    }
    snprintf(p->epoch, sizeof p->epoch, "%.*s", EPOCH_CHARS, p->empty ? "" : reply->str + 34);
    p->lost = p->empty || memcmp(reply->str + 68, p->greeting.run_id, 40) != 0;
    p->state = PEER_READY;
    p->backoff_ms = 0;
    p->why.code = PAWL_OK;
    return true;
}

static void greeted(struct peer *p) {
    while (p->state == PEER_GREETING) {
        AUTO_REPLY reply = NULL;
        bool fine = true;
        enum bk_says says = wire_poll(&p->wire, &reply, &p->why);
        if (says == BK_NO) return;
        if (says == BK_FAULT) {
            fine = false;
        } else if (p->greeting.next < 4) {
            fine = greet_hear(p->place, &p->wire, reply, &p->greeting, &p->why) != BK_FAULT;
            p->refused = !fine && (p->greeting.replica || p->why.code != PAWL_EUNREACHABLE);
        } else {
            fine = read_meta(p, reply);
            p->refused = !fine && p->why.code != PAWL_EUNREACHABLE;
        }
        if (!fine) peer_close(p, true);
    }
}

void peer_step(struct peer *p, struct bk_until until) {
    if (p->state == PEER_DIALLING) dialled(p, until);
    else if (p->state == PEER_SHAKING) shake(p, until);
    if (p->state == PEER_GREETING) greeted(p);
}

int peer_fd(const struct peer *p, short *ret_events) {
    *ret_events = p->state == PEER_DIALLING ? POLLOUT : p->state == PEER_SHAKING ? (short)p->events : POLLIN;
    return p->state == PEER_CLOSED ? -1 : p->fd >= 0 ? p->fd : p->wire.fd;
}

/* --- asking --- */

static void by_script(struct peer *p, const struct script *script, struct args *a, int keys, char count[8]) {
    /* Once in each connection: NOSCRIPT would cost a second round trip. A release each time: nobody may wait for its
     * answer, and what it does not give back stays there for a ttl. */
    bool text = !(p->known & script->bit) || script == &script_release;
    p->known |= script->bit;
    a->value[0] = text ? "EVAL" : "EVALSHA";
    a->length[0] = strlen(a->value[0]);
    a->value[1] = text ? script->text : script->sha;
    a->length[1] = strlen(a->value[1]);
    a->value[2] = count;
    a->length[2] = (size_t)snprintf(count, 8, "%d", keys);
}

bool peer_ask(struct peer *p, const struct script *script, struct args *a, int keys) {
    char count[8];
    if (p->state != PEER_READY || p->owed >= PEER_OWED) return false;
    if (script) by_script(p, script, a, keys, count);
    wire_add(&p->wire, a);
    p->owed++;
    if (wire_flush(&p->wire, (struct bk_until){.at_ns = 0, .cancel_fd = -1}, &p->why) == BK_YES) return true;
    peer_close(p, true);
    return false;
}

enum bk_says peer_hear(struct peer *p, redisReply **ret) {
    for (;;) {
        AUTO_REPLY reply = NULL;
        enum bk_says says = p->state == PEER_READY ? wire_poll(&p->wire, &reply, &p->why) : BK_NO;
        if (says == BK_NO) return says;
        if (says == BK_FAULT || p->owed == 0) {
            peer_close(p, true);
            return BK_FAULT;
        }
        p->owed--;
        if (p->stale > 0) {
            p->stale--;
            if (reply->type == REDIS_REPLY_ERROR && verdict_is(reply->str, "NOSCRIPT")) p->known = 0;
            continue;
        }
        *ret = reply;
        reply = NULL;
        return BK_YES;
    }
}
