/* hub.c: one subscription a client to each instance. A release tells the first waiter of each queue "g <what was
 * released> <owner>"; who hears that from a quorum asks again at once, who hears it from fewer a moment later. A
 * message is a hint only: a waiter that was not told looks by itself in the end.
 *
 * hub_fd is an epoll descriptor over the sockets and a timer. A hub that lost an instance closes itself after a while,
 * so that it is opened anew, with all that are there then. */
#include "clock.h"
#include "redis/verdict.h"
#include "redlock.h"
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define FEWER_MS 60 /* told by some, but not yet by a quorum */
#define AGED_MS 5000
#define REOPEN_MS 5000

struct hint {
    unsigned char owner[16];
    char released[OWNER_CHARS];
    peers from;
    bool done;
    int64_t at_ns; /* when it is acted on at the latest */
};
struct hub {
    struct bk_session *s;
    int epoll_fd, timer_fd;
    int64_t reopen_ns; /* INT64_MAX: none is missing */
    struct hint *hints;
    size_t n, room;
};

static void end(struct hub *h, bool quiet) {
    if (h->s) redlock_drop(h->s, quiet);
    if (h->epoll_fd >= 0) close(h->epoll_fd);
    if (h->timer_fd >= 0) close(h->timer_fd);
    free(h->hints);
    free(h);
}

/* --- opening --- */

/* SUBSCRIBE is answered by a quorum before anybody queues. */
static enum bk_says subscribe(struct bk *bk, struct hub *h, struct bk_until until, pawl_error *error) {
    struct question q = {.args.n = 0};
    redisReply *reply;
    char channel[PREFIX_MAX + 24];
    int n = 0, i;
    h->s->verb = "subscribing to wake-ups";
    h->s->name = "";
    snprintf(channel, sizeof channel, "%s%%w:%s", bk->place.prefix, bk->client_id);
    arg_text(&q.args, "SUBSCRIBE");
    arg_text(&q.args, channel);
    round_start(h->s, &q, everybody(h->s), 0, until);
    while (round_next(h->s, &i, &reply) == BK_YES) {
        struct peer *p = &h->s->peers[i];
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
        if (reply->type == REDIS_REPLY_ERROR) {
            verdict(&p->wire, reply->str, &p->why);
        } else if (epoll_ctl(h->epoll_fd, EPOLL_CTL_ADD, p->wire.fd, &event) == 0) {
            wire_keep_alive(&p->wire);
            n++;
        }
        freeReplyObject(reply);
    }
    if (n < bk->n) h->reopen_ns = clock_after_ms(clock_now_ns(), REOPEN_MS);
    if (n >= bk->quorum) return BK_YES;
    round_no_quorum(h->s, n, error);
    return BK_FAULT;
}

static void arm(struct hub *h) {
    struct itimerspec when = {{0, 0}, {0, 0}};
    int64_t first = h->reopen_ns;
    for (size_t i = 0; i < h->n; i++)
        if (!h->hints[i].done && h->hints[i].at_ns < first) first = h->hints[i].at_ns;
    if (first < INT64_MAX) {
        when.it_value.tv_sec = first / NS_PER_S;
        when.it_value.tv_nsec = first % NS_PER_S;
    }
    timerfd_settime(h->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

enum bk_says hub_open(struct bk *bk, struct bk_until until, pawl_error *error) {
    struct hub *h = calloc(1, sizeof *h);
    struct epoll_event tick = {.events = EPOLLIN, .data.u32 = PEERS_MAX};
    if (!h) {
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        return BK_FAULT;
    }
    h->reopen_ns = INT64_MAX;
    h->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    h->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    enum bk_says says = BK_FAULT;
    if (h->epoll_fd < 0 || h->timer_fd < 0 || epoll_ctl(h->epoll_fd, EPOLL_CTL_ADD, h->timer_fd, &tick))
        error_errno(error, PAWL_EINTERNAL, NULL, "cannot make descriptors");
    else says = redlock_connect(bk, until, &h->s, error);
    if (says == BK_YES) says = subscribe(bk, h, until, error);
    if (says != BK_YES) {
        end(h, true);
        return says;
    }
    arm(h);
    hub_close(bk, false);
    bk->hub = h;
    return BK_YES;
}

int hub_fd(struct bk *bk) { return bk->hub ? bk->hub->epoll_fd : -1; }

void hub_close(struct bk *bk, bool forked) {
    if (bk->hub) end(bk->hub, forked);
    bk->hub = NULL;
}

/* --- messages --- */

/* The 32 hex digits behind the client id. */
static bool parse_owner(const char *text, unsigned char ret[16]) {
    for (int i = 0; i < 16; i++) {
        char pair[3] = {text[16 + 2 * i], text[17 + 2 * i], 0};
        if (!isxdigit((unsigned char)pair[0]) || !isxdigit((unsigned char)pair[1])) return false;
        ret[i] = (unsigned char)strtoul(pair, NULL, 16);
    }
    return true;
}

/* The entry of that waiter; old ones of others make room. NULL: no memory. */
static struct hint *hint_of(struct hub *h, const unsigned char owner[16], int64_t now) {
    for (size_t i = 0; i < h->n; i++)
        if (memcmp(h->hints[i].owner, owner, 16) == 0) return &h->hints[i];
    for (size_t i = 0; i < h->n;)
        if (h->hints[i].done && now - h->hints[i].at_ns > AGED_MS * NS_PER_MS) h->hints[i] = h->hints[--h->n];
        else i++;
    if (h->n == h->room) {
        size_t room = h->room ? 2 * h->room : 16;
        struct hint *hints = realloc(h->hints, room * sizeof *hints);
        if (!hints) return NULL;
        h->hints = hints;
        h->room = room;
    }
    struct hint *hint = &h->hints[h->n++];
    memset(hint, 0, sizeof *hint);
    memcpy(hint->owner, owner, 16);
    return hint;
}

static void message(struct hub *h, int from, const char *text, bk_wake *wake, void *data) {
    unsigned char owner[16];
    int64_t now = clock_now_ns();
    if (strlen(text) != 2 + OWNER_CHARS + 1 + OWNER_CHARS || text[0] != 'g' ||
        !parse_owner(text + 3 + OWNER_CHARS, owner))
        return;
    struct hint *hint = hint_of(h, owner, now);
    if (!hint) {
        wake(owner, data);
        return;
    }
    if (memcmp(hint->released, text + 2, OWNER_CHARS) != 0) {
        memcpy(hint->released, text + 2, OWNER_CHARS);
        hint->from = 0;
        hint->done = false;
        hint->at_ns = clock_after_ms(now, FEWER_MS);
    }
    if (hint->from >> from & 1) return;
    hint->from |= 1u << from;
    if (__builtin_popcount(hint->from) != h->s->bk->quorum) return;
    hint->done = true;
    wake(owner, data);
}

static void due(struct hub *h, bk_wake *wake, void *data) {
    int64_t now = clock_now_ns();
    uint64_t ticks;
    if (read(h->timer_fd, &ticks, sizeof ticks) < 0) return;
    for (size_t i = 0; i < h->n; i++) {
        if (h->hints[i].done || h->hints[i].at_ns > now) continue;
        h->hints[i].done = true;
        wake(h->hints[i].owner, data);
    }
}

static void read_all(struct hub *h, int i, bk_wake *wake, void *data) {
    struct peer *p = &h->s->peers[i];
    while (p->wire.fd >= 0) {
        AUTO_REPLY reply = NULL;
        enum bk_says says = wire_poll(&p->wire, &reply, &p->why);
        if (says == BK_NO) return;
        if (says == BK_FAULT) {
            peer_close(p, true);
            h->reopen_ns = clock_after_ms(clock_now_ns(), REOPEN_MS);
        } else if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 3 && reply->element[2]->str) {
            message(h, i, reply->element[2]->str, wake, data);
        }
    }
}

enum bk_says hub_io(struct bk *bk, bk_wake *wake, void *data, pawl_error *error) {
    struct hub *h = bk->hub;
    struct epoll_event events[PEERS_MAX + 1];
    int alive = 0;
    if (!h) return BK_YES;
    int n = epoll_wait(h->epoll_fd, events, PEERS_MAX + 1, 0);
    for (int i = 0; i < n; i++) {
        if (events[i].data.u32 < PEERS_MAX) read_all(h, (int)events[i].data.u32, wake, data);
        else due(h, wake, data);
    }
    for (int i = 0; i < bk->n; i++) alive += h->s->peers[i].wire.fd >= 0;
    if (alive < bk->quorum || clock_now_ns() >= h->reopen_ns) {
        if (alive < bk->quorum) round_no_quorum(h->s, alive, error);
        else error_set(error, PAWL_EUNREACHABLE, NULL, "an instance had been away: subscribing anew");
        hub_close(bk, false);
        return BK_FAULT;
    }
    arm(h);
    return BK_YES;
}
