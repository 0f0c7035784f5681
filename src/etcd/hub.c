/* hub.c: one watch stream a client, on a connection of its own. Two kinds of keys are
 * watched, each by its own watch on that stream:
 *   - the key just before a waiter's, from now on. Waiters tell of it through a pipe; they are told when it is
 *     deleted, and when the watch stands, if anything was written since they saw the key: then they look once more;
 *   - a holder's own key, from the revision at which it was granted, so that nothing needs a second look. Some at a
 *     time, for each costs the server as much as a lock does, and those who wait for one come first.
 * If the stream ends, everybody looks for himself and says anew what is to be watched. */
#include "ask.h"
#include "clock.h"
#include "etcd.h"
#include "map.h"
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define WISHES_BYTES (1 << 20) /* 256 packets, a page each; more needs a privilege */
#define SIGN_S 4 /* a sign of life is asked for so often; it is dead if none came until the next one is due */
#define OVER_MAX 16
#define OWN_AT_A_TIME 256 /* holders' keys in a second: some 20 ms of the server's time */
/* Revisions. For watches that begin in the past the server reads all that was written since, while others wait. */
#define FAR_BACK 10000

struct wish { /* one packet of the pipe */
    int64_t id, from, seen;
    unsigned char owner[16];
    uint16_t length; /* 0: never mind */
    unsigned char key[KEY_SIZE];
};

struct watch {
    struct map_node node; /* hash: the id */
    int64_t from, seen;   /* from 0: now; seen: the key was there at that revision */
    unsigned char owner[16];
    uint16_t length;
    bool sent; /* or it is its turn when hub->sent_to comes there */
    unsigned char key[];
};

struct hub {
    struct http2 *h;
    struct grpc_stream stream;
    int epoll, timer, turn;
    bool heard; /* since the timer's last tick */
    struct map watches;
    int unsent;             /* watches of holders' keys that are still to be sent */
    int64_t sent_to;        /* all up to this id were */
    int room;               /* how many more until `turn` ticks; it does while there is less than all */
    int64_t over[OVER_MAX]; /* watches of keys that are gone: cancelled when something else is sent */
    int n_over;
};

static int64_t next_id(struct bk *bk) { return atomic_fetch_add(&bk->watch_id, 1) + 1; }

/* A pipe has room for 16 packets; it is made larger when more wishes come at once than the keeper reads, no sooner, as
 * what a user's pipes may have together is bounded. */
static bool tell(struct bk *bk, const struct wish *wish) {
    size_t size = offsetof(struct wish, key) + wish->length;
    if (write(bk->wish_write, wish, size) >= 0) return true;
    fcntl(bk->wish_write, F_SETPIPE_SZ, WISHES_BYTES);
    bool told = write(bk->wish_write, wish, size) >= 0;
    errno = 0;
    return told;
}

int64_t hub_wish(struct bk *bk, const unsigned char owner[16], const unsigned char *key, size_t length, int64_t seen) {
    struct wish wish = {.id = next_id(bk), .seen = seen, .length = (uint16_t)length};
    if (length == 0 || length > sizeof wish.key) return 0; /* somebody else's long key */
    memcpy(wish.owner, owner, 16);
    memcpy(wish.key, key, length);
    return tell(bk, &wish) ? wish.id : 0;
}

void hub_never_mind(struct bk *bk, int64_t watch_id) {
    struct wish wish = {.id = watch_id};
    tell(bk, &wish);
}

/* --- what is said on the stream --- */

static bool send_request(struct hub *hub, const Pb__WatchRequest *request) {
    unsigned char packed[KEY_SIZE + 64];
    if (pb__watch_request__get_packed_size(request) > sizeof packed) return false;
    return grpc_stream_send(hub->h, &hub->stream, packed, pb__watch_request__pack(request, packed));
}

static void send_cancel(struct hub *hub, int64_t id) {
    Pb__WatchCancelRequest cancel = PB__WATCH_CANCEL_REQUEST__INIT;
    Pb__WatchRequest request = PB__WATCH_REQUEST__INIT;
    cancel.watch_id = id;
    request.request_union_case = PB__WATCH_REQUEST__REQUEST_UNION_CANCEL_REQUEST;
    request.cancel_request = &cancel;
    send_request(hub, &request);
}

static void cancel_what_is_over(struct hub *hub) {
    while (hub->n_over > 0) send_cancel(hub, hub->over[--hub->n_over]);
}

static bool send_create(struct hub *hub, const struct watch *watch) {
    static Pb__WatchCreateRequest__Filter only_deletes[] = {PB__WATCH_CREATE_REQUEST__FILTER__NOPUT};
    Pb__WatchCreateRequest create = PB__WATCH_CREATE_REQUEST__INIT;
    Pb__WatchRequest request = PB__WATCH_REQUEST__INIT;
    cancel_what_is_over(hub);
    create.key = (ProtobufCBinaryData){.data = (uint8_t *)(uintptr_t)watch->key, .len = watch->length};
    create.filters = only_deletes;
    create.n_filters = 1;
    create.watch_id = (int64_t)watch->node.hash;
    create.start_revision = watch->from;
    request.request_union_case = PB__WATCH_REQUEST__REQUEST_UNION_CREATE_REQUEST;
    request.create_request = &create;
    return send_request(hub, &request);
}

static bool ask_for_a_sign(struct hub *hub) {
    Pb__WatchProgressRequest progress = PB__WATCH_PROGRESS_REQUEST__INIT;
    Pb__WatchRequest request = PB__WATCH_REQUEST__INIT;
    cancel_what_is_over(hub);
    request.request_union_case = PB__WATCH_REQUEST__REQUEST_UNION_PROGRESS_REQUEST;
    request.progress_request = &progress;
    return send_request(hub, &request);
}

/* --- watches --- */

static struct watch *by_id(const struct hub *hub, int64_t id) { /* the node is its first member */
    return (struct watch *)(void *)map_find(&hub->watches, (uint64_t)id);
}

static void unwatch(struct hub *hub, struct watch *gone) {
    if (hub->n_over == OVER_MAX) cancel_what_is_over(hub);
    if (gone->sent) hub->over[hub->n_over++] = (int64_t)gone->node.hash;
    else hub->unsent--;
    map_remove(&hub->watches, &gone->node);
    free(gone);
}

static struct watch *add_watch(struct hub *hub, const struct wish *wish) {
    struct watch *watch = map_reserve(&hub->watches) ? malloc(sizeof *watch + wish->length) : NULL;
    if (!watch) return NULL;
    watch->from = wish->from;
    watch->seen = wish->seen;
    watch->length = wish->length;
    watch->sent = false;
    hub->unsent++;
    memcpy(watch->owner, wish->owner, 16);
    memcpy(watch->key, wish->key, wish->length);
    map_add(&hub->watches, &watch->node, (uint64_t)wish->id);
    return watch;
}

static void begin_watch(struct hub *hub, struct watch *watch) {
    hub->unsent--;
    watch->sent = true;
    if (!send_create(hub, watch)) unwatch(hub, watch);
}

/* The oldest first; the others when the timer ticks. */
static void begin_some(struct bk *bk) {
    struct hub *hub = bk->hub;
    int64_t last = atomic_load(&bk->watch_id), known = atomic_load(&bk->revision);
    struct itimerspec once = {.it_value.tv_sec = 1};
    while (hub->unsent > 0 && hub->room > 0 && hub->sent_to < last) {
        struct watch *watch = by_id(hub, ++hub->sent_to);
        if (!watch || watch->sent) continue;
        if (hub->room-- == OWN_AT_A_TIME) timerfd_settime(hub->turn, 0, &once, NULL);
        if (known - watch->seen > FAR_BACK) watch->from = 0; /* and whoever it is for looks once */
        begin_watch(hub, watch);
    }
}

/* The server ended it, as by compaction, or would begin it in a future that a restored store may never reach: it begins
 * now, and whoever it is for looks once more. */
static void begin_anew(struct bk *bk, struct watch *watch) {
    if (!watch->sent) return; /* then that is no answer to anything */
    send_cancel(bk->hub, (int64_t)watch->node.hash);
    map_remove(&bk->hub->watches, &watch->node);
    watch->from = watch->seen = 0;
    map_add(&bk->hub->watches, &watch->node, (uint64_t)next_id(bk));
    send_create(bk->hub, watch);
}

void hub_watch(struct bk *bk, const struct bk_grant *grant) {
    struct place_in_line *line = grant->of;
    unsigned hub = atomic_load(&bk->hub_number);
    struct wish wish = {.from = line->seen + 1, .seen = line->seen};
    struct keys k;
    if (!bk->hub || (line->hub == hub && line->watch_id)) return;
    keys_of(bk, grant->claim, &k);
    line->hub = hub;
    line->watch_id = wish.id = next_id(bk);
    if (bk->hub->unsent == 0) bk->hub->sent_to = wish.id - 1;
    wish.length = (uint16_t)strlen(k.own);
    memcpy(wish.owner, grant->claim->owner, 16);
    memcpy(wish.key, k.own, wish.length);
    if (add_watch(bk->hub, &wish)) begin_some(bk);
}

static void read_wishes(struct bk *bk) {
    const ssize_t head = offsetof(struct wish, key);
    struct wish wish;
    for (ssize_t n; (n = read(bk->wish_read, &wish, sizeof wish)) >= head;) {
        struct watch *known = by_id(bk->hub, wish.id);
        if (n != head + wish.length) continue;
        if (known) unwatch(bk->hub, known);
        else if (wish.length > 0 && (known = add_watch(bk->hub, &wish))) begin_watch(bk->hub, known);
    }
}

/* --- what is heard --- */

/* false: the stream as a whole is of no use any more. */
static bool hear(struct bk *bk, const unsigned char *body, size_t size, bk_wake *wake, void *data, pawl_error *error) {
    struct hub *hub = bk->hub;
    Pb__WatchResponse *r = pb__watch_response__unpack(NULL, size, body);
    bool good = r != NULL;
    struct watch *watch = good ? by_id(hub, r->watch_id) : NULL;
    hub->heard = true;
    if (good && r->header) heard_revision(bk, r->header->revision);
    if (!good) {
        error_set(error, PAWL_EUNREACHABLE, http2_node(hub->h), "%s: the answer is not a watch's", http2_at(hub->h));
    } else if (r->canceled && (r->created || r->watch_id < 0)) { /* as when the login ran out */
        error_set(error, PAWL_EUNREACHABLE, http2_node(hub->h), "%s: etcd refuses: %.200s", http2_at(hub->h),
                  r->cancel_reason);
        good = false;
    } else if (watch && (r->canceled || (r->created && r->header && r->header->revision + 1 < watch->from))) {
        begin_anew(bk, watch);
    } else if (watch && r->n_events > 0) {
        wake(watch->owner, data);
        unwatch(hub, watch); /* it was deleted; only a key of that name could come again */
    } else if (watch && r->created && watch->from == 0 && !(r->header && r->header->revision <= watch->seen)) {
        if (!wake(watch->owner, data)) unwatch(hub, watch); /* it was released before the watch began */
    }
    pb__watch_response__free_unpacked(r, NULL);
    return good;
}

static bool tick(struct hub *hub, pawl_error *error) {
    uint64_t ticks;
    if (read(hub->timer, &ticks, sizeof ticks) < 0) return true; /* not yet */
    if (!hub->heard) {
        error_set(error, PAWL_EUNREACHABLE, http2_node(hub->h), "%s: the server did not answer in time",
                  http2_at(hub->h));
        return false;
    }
    hub->heard = false;
    return ask_for_a_sign(hub);
}

static void next_turn(struct bk *bk) {
    uint64_t ticks;
    if (read(bk->hub->turn, &ticks, sizeof ticks) < 0) return;
    bk->hub->room = OWN_AT_A_TIME;
    begin_some(bk);
}

/* --- the stream --- */

static bool listen_to(struct hub *hub, int fd) {
    struct epoll_event in = {.events = EPOLLIN, .data.fd = fd};
    return epoll_ctl(hub->epoll, EPOLL_CTL_ADD, fd, &in) == 0;
}

static bool begin(struct bk *bk, struct hub *hub, const char *token, struct bk_until until, pawl_error *error) {
    struct itimerspec each = {.it_interval.tv_sec = SIGN_S, .it_value.tv_sec = SIGN_S};
    hub->epoll = epoll_create1(EPOLL_CLOEXEC);
    hub->timer = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    hub->turn = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    if (hub->epoll < 0 || hub->timer < 0 || hub->turn < 0 || timerfd_settime(hub->timer, 0, &each, NULL) ||
        !listen_to(hub, hub->timer) || !listen_to(hub, hub->turn) || !listen_to(hub, bk->wish_read) ||
        !listen_to(hub, http2_fd(hub->h))) {
        error_errno(error, PAWL_EINTERNAL, http2_node(hub->h), "cannot watch descriptors");
        return false;
    }
    if (grpc_stream_open(hub->h, &hub->stream, "/etcdserverpb.Watch/Watch", *token ? token : NULL))
        return http2_pump(hub->h, false, until, error) != BK_FAULT;
    error_set(error, PAWL_EUNREACHABLE, http2_node(hub->h), "%s: the connection is closed", http2_at(hub->h));
    return false;
}

enum bk_says hub_open(struct bk *bk, struct bk_until until, pawl_error *error) {
    struct bk_session way = {0};
    struct hub *hub = calloc(1, sizeof *hub);
    if (!hub) {
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        return BK_FAULT;
    }
    hub->epoll = hub->timer = hub->turn = -1;
    hub->heard = true;
    hub->room = OWN_AT_A_TIME;
    enum bk_says says = dial(bk, until, &way, error);
    if (says != BK_YES) {
        free(hub);
        return says;
    }
    hub->h = way.h;
    http2_doing(hub->h, "watching keys", NULL);
    bk->hub = hub;
    if (begin(bk, hub, way.token, until, error)) {
        atomic_fetch_add(&bk->hub_number, 1);
        return BK_YES;
    }
    hub_close(bk, false);
    return BK_FAULT;
}

int hub_fd(struct bk *bk) { return bk->hub ? bk->hub->epoll : -1; }

/* All messages that are complete. false: the stream is of no use any more. */
static bool hear_all(struct bk *bk, bk_wake *wake, void *data, pawl_error *error) {
    for (unsigned char *body;;) {
        size_t size;
        enum bk_says says = grpc_stream_next(bk->hub->h, &bk->hub->stream, &body, &size, error);
        if (says == BK_NO) return true;
        if (says != BK_YES) return false;
        bool good = hear(bk, body, size, wake, data, error);
        free(body);
        if (!good) return false;
    }
}

enum bk_says hub_io(struct bk *bk, bk_wake *wake, void *data, pawl_error *error) {
    struct bk_until now = {.at_ns = 0, .cancel_fd = -1};
    struct epoll_event ready[4];
    if (!bk->hub) return BK_FAULT;
    bool good = true;
    for (int i = epoll_wait(bk->hub->epoll, ready, 4, 0) - 1; i >= 0; i--) {
        if (ready[i].data.fd == bk->wish_read) read_wishes(bk);
        if (ready[i].data.fd == bk->hub->timer) good = tick(bk->hub, error);
        if (ready[i].data.fd == bk->hub->turn) next_turn(bk);
    }
    /* What is heard may be answered, and what is answered is sent at once. */
    for (enum bk_says moved = BK_YES; good && moved == BK_YES;) {
        moved = http2_pump(bk->hub->h, false, now, error);
        good = hear_all(bk, wake, data, error) && moved != BK_FAULT;
        if (!http2_would_send(bk->hub->h)) break;
    }
    if (good && !http2_worn(bk->hub->h)) return BK_YES;
    atomic_fetch_add(&bk->next, 1); /* another member may be better */
    hub_close(bk, false);
    return BK_FAULT;
}

void hub_close(struct bk *bk, bool forked) {
    struct hub *hub = bk->hub;
    if (!hub) return;
    bk->hub = NULL;
    atomic_fetch_add(&bk->hub_number, 1);
    grpc_stream_close(hub->h, &hub->stream);
    http2_close(hub->h, forked);
    if (hub->epoll >= 0) close(hub->epoll);
    if (hub->timer >= 0) close(hub->timer);
    if (hub->turn >= 0) close(hub->turn);
    for (size_t i = 0; i < hub->watches.n_slots; i++)
        for (struct map_node *node = hub->watches.slots[i], *next; node; node = next) {
            next = node->next;
            free(node);
        }
    map_free(&hub->watches);
    free(hub);
}
