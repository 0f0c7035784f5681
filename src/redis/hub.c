/* hub.c: one subscription a client, to a channel of its own. The scripts publish there "g <owner>": ask now, or
 * "n <ms> <owner>": look in so many milliseconds. A message is a hint only; the truth is the lock's key, and a waiter
 * that was not told looks by itself in the end. hub_fd is an epoll descriptor over the socket, a timer for the looks,
 * and an eventfd by which a session says that it was connected to another server than this. */
#include "clock.h"
#include "dial.h"
#include "verdict.h"
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

struct look {
    int64_t at_ns;
    unsigned char owner[16];
};
struct hub {
    struct wire wire;
    int epoll_fd, timer_fd;
    uint64_t server;    /* as bk->dialled */
    int64_t armed_ns;   /* when the timer fires; INT64_MAX: never */
    struct look *looks; /* in no order: there are as many as locks that this client is the second to wait for */
    size_t n, size;
};

/* FNV-1a; 0 is kept for "none yet". */
static uint64_t hash(const char *run_id) {
    uint64_t h = UINT64_C(14695981039346656037);
    for (; *run_id; run_id++) h = (h ^ (unsigned char)*run_id) * UINT64_C(1099511628211);
    return h ? h : 1;
}

void hub_agree(struct bk *bk, const char *run_id) {
    uint64_t server = hash(run_id);
    int kick_fd = bk->kick_fd;
    if (atomic_exchange(&bk->dialled, server) == server || kick_fd < 0) return;
    eventfd_write(kick_fd, 1);
    atomic_store(&bk->kicked, true);
}

static bool watch_fd(struct hub *h, int fd) {
    struct epoll_event event = {.events = EPOLLIN};
    return epoll_ctl(h->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

static void end(struct hub *h, bool quiet) {
    wire_close(&h->wire, quiet);
    if (h->epoll_fd >= 0) close(h->epoll_fd);
    if (h->timer_fd >= 0) close(h->timer_fd);
    free(h->looks);
    free(h);
}

/* SUBSCRIBE is answered before anybody queues, so that no message can be missed. */
static enum bk_says subscribed(struct hub *h, struct bk_until until, pawl_error *error) {
    AUTO_REPLY reply = NULL;
    h->wire.verb = "subscribing to wake-ups";
    h->wire.name = "";
    if (wire_reply(&h->wire, until, &reply, error) != BK_YES) return BK_FAULT;
    if (reply->type == REDIS_REPLY_ERROR) {
        verdict(&h->wire, reply->str, error);
        return BK_FAULT;
    }
    return BK_YES;
}

enum bk_says hub_open(struct bk *bk, struct bk_until until, pawl_error *error) {
    struct hub *h = calloc(1, sizeof *h);
    struct watch watch = {.wire.fd = -1};
    char run_id[41], channel[PREFIX_MAX + 24];
    if (!h) {
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        return BK_FAULT;
    }
    snprintf(channel, sizeof channel, "%s%%w:%s", bk->place.prefix, bk->client_id);
    h->wire.fd = -1;
    h->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    h->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    enum bk_says says = BK_FAULT;
    if (bk->kick_fd < 0) bk->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (h->epoll_fd < 0 || h->timer_fd < 0 || bk->kick_fd < 0)
        error_errno(error, PAWL_EINTERNAL, NULL, "cannot make descriptors");
    else says = dial(bk, channel, until, &h->wire, run_id, &watch, error);
    watch_end(&watch, false);
    if (says == BK_YES) says = subscribed(h, until, error);
    if (says == BK_YES && (!watch_fd(h, h->wire.fd) || !watch_fd(h, h->timer_fd) || !watch_fd(h, bk->kick_fd))) {
        error_errno(error, PAWL_EINTERNAL, NULL, "cannot watch descriptors");
        says = BK_FAULT;
    }
    if (says != BK_YES) {
        end(h, true);
        return says;
    }
    hub_close(bk, false);
    wire_keep_alive(&h->wire);
    h->server = hash(run_id);
    h->armed_ns = INT64_MAX;
    bk->hub = h;
    return BK_YES;
}

int hub_fd(struct bk *bk) { return bk->hub ? bk->hub->epoll_fd : -1; }

void hub_close(struct bk *bk, bool forked) {
    if (bk->hub) end(bk->hub, forked);
    bk->hub = NULL;
}

/* --- looks --- */

/* At the first look, or sooner: one that is forgotten does not cost a system call. */
static void arm(struct hub *h, int64_t at_ns) {
    struct itimerspec when = {{0, 0}, {0, 0}};
    if (at_ns != INT64_MAX) {
        when.it_value.tv_sec = at_ns / NS_PER_S;
        when.it_value.tv_nsec = at_ns % NS_PER_S;
    }
    timerfd_settime(h->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
    h->armed_ns = at_ns;
}

static void forget_look(struct hub *h, const unsigned char owner[16]) {
    for (size_t i = 0; i < h->n; i++) {
        if (memcmp(h->looks[i].owner, owner, 16) != 0) continue;
        h->looks[i] = h->looks[--h->n];
        return;
    }
}

/* Without memory the waiter looks by itself, later. */
static void add_look(struct hub *h, const unsigned char owner[16], int64_t ms) {
    forget_look(h, owner);
    if (h->n == h->size) {
        size_t size = h->size ? h->size * 2 : 16;
        struct look *looks = realloc(h->looks, size * sizeof *looks);
        if (!looks) return;
        h->looks = looks;
        h->size = size;
    }
    h->looks[h->n].at_ns = clock_after_ms(clock_now_ns(), ms + 2);
    if (h->looks[h->n].at_ns < h->armed_ns) arm(h, h->looks[h->n].at_ns);
    memcpy(h->looks[h->n++].owner, owner, 16);
}

static void due_looks(struct hub *h, bk_wake *wake, void *data) {
    int64_t now = clock_now_ns(), first = INT64_MAX;
    if (now < h->armed_ns) return;
    for (size_t i = 0; i < h->n;) {
        if (h->looks[i].at_ns <= now) {
            struct look due = h->looks[i];
            h->looks[i] = h->looks[--h->n];
            wake(due.owner, data);
            continue;
        }
        if (h->looks[i].at_ns < first) first = h->looks[i].at_ns;
        i++;
    }
    arm(h, first); /* which also takes back that it fired */
}

/* --- messages --- */

/* The 32 hex digits behind the client id. */
static bool parse_owner(const char *text, unsigned char ret[16]) {
    if (strlen(text) != OWNER_CHARS) return false;
    for (int i = 0; i < 16; i++) {
        char pair[3] = {text[16 + 2 * i], text[17 + 2 * i], 0};
        if (!isxdigit((unsigned char)pair[0]) || !isxdigit((unsigned char)pair[1])) return false;
        ret[i] = (unsigned char)strtoul(pair, NULL, 16);
    }
    return true;
}

static void message(struct hub *h, const char *text, bk_wake *wake, void *data) {
    unsigned char owner[16];
    const char *space = strrchr(text, ' ');
    if (!space || !parse_owner(space + 1, owner)) return;
    if (text[0] == 'g') {
        forget_look(h, owner);
        wake(owner, data);
    } else if (text[0] == 'n') {
        long ms = strtol(text + 1, NULL, 10);
        if (ms >= 0 && ms < LOOK_MS) add_look(h, owner, ms); /* else its own look comes sooner */
    }
}

enum bk_says hub_io(struct bk *bk, bk_wake *wake, void *data, pawl_error *error) {
    struct hub *h = bk->hub;
    eventfd_t kicks;
    if (!h) return BK_YES;
    if (atomic_exchange(&bk->kicked, false) && eventfd_read(bk->kick_fd, &kicks) == 0 && bk->dialled != h->server) {
        error_set(error, PAWL_EUNREACHABLE, h->wire.node, "%s is not the primary any more", h->wire.node);
        hub_close(bk, false);
        return BK_FAULT;
    }
    due_looks(h, wake, data);
    do {
        AUTO_REPLY reply = NULL;
        enum bk_says says = wire_poll(&h->wire, &reply, error);
        if (says == BK_NO) return BK_YES;
        if (says == BK_FAULT) {
            hub_close(bk, false);
            return BK_FAULT;
        }
        if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 3 && reply->element[2]->str)
            message(h, reply->element[2]->str, wake, data);
    } while (wire_has_more(&h->wire));
    return BK_YES;
}
