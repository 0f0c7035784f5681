/* hub.c: one watch stream a client, on a connection of its own, worked by the keeper alone. Waiters tell it through a
 * pipe which key they wait for; it tells them when the watch stands (the key may have gone just before: they look once
 * more) and when the key is deleted. If the stream ends, everybody looks for himself and says anew what is to be
 * watched. */
#include "clock.h"
#include "etcd.h"
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

struct wish { /* written to the pipe in one piece */
    unsigned char owner[16];
    uint16_t length;
    unsigned char key[KEY_SIZE];
};

struct watch {
    struct watch *next;
    int64_t id;
    unsigned char owner[16];
};

struct hub {
    struct http2 *h;
    struct grpc_stream stream;
    int epoll;
    int64_t last_id;
    struct watch *watches;
};

void hub_wish(struct bk *bk, const unsigned char owner[16], const unsigned char *key, size_t length) {
    struct wish wish = {.length = (uint16_t)length};
    memcpy(wish.owner, owner, 16);
    if (length > 0) memcpy(wish.key, key, length);
    /* A full pipe loses the wish: its waiter still looks from time to time. */
    if (write(bk->wish_write, &wish, offsetof(struct wish, key) + length) < 0) errno = 0;
}

static bool send_request(struct hub *hub, const Pb__WatchRequest *request) {
    unsigned char packed[KEY_SIZE + 64];
    if (pb__watch_request__get_packed_size(request) > sizeof packed) return false;
    return grpc_stream_send(hub->h, &hub->stream, packed, pb__watch_request__pack(request, packed));
}

static void unwatch(struct hub *hub, struct watch **at) {
    struct watch *gone = *at;
    Pb__WatchCancelRequest cancel = PB__WATCH_CANCEL_REQUEST__INIT;
    Pb__WatchRequest request = PB__WATCH_REQUEST__INIT;
    *at = gone->next;
    cancel.watch_id = gone->id;
    request.request_union_case = PB__WATCH_REQUEST__REQUEST_UNION_CANCEL_REQUEST;
    request.cancel_request = &cancel;
    send_request(hub, &request);
    free(gone);
}

static void fulfil(struct hub *hub, const struct wish *wish) {
    static Pb__WatchCreateRequest__Filter only_deletes[] = {PB__WATCH_CREATE_REQUEST__FILTER__NOPUT};
    Pb__WatchCreateRequest create = PB__WATCH_CREATE_REQUEST__INIT;
    Pb__WatchRequest request = PB__WATCH_REQUEST__INIT;
    for (struct watch **at = &hub->watches; *at;)
        if (memcmp((*at)->owner, wish->owner, 16) == 0) unwatch(hub, at);
        else at = &(*at)->next;
    if (wish->length == 0) return;
    struct watch *watch = malloc(sizeof *watch);
    if (!watch) return;
    *watch = (struct watch){.next = hub->watches, .id = ++hub->last_id};
    memcpy(watch->owner, wish->owner, 16);
    create.key = (ProtobufCBinaryData){.data = (uint8_t *)(uintptr_t)wish->key, .len = wish->length};
    create.filters = only_deletes;
    create.n_filters = 1;
    create.watch_id = watch->id;
    request.request_union_case = PB__WATCH_REQUEST__REQUEST_UNION_CREATE_REQUEST;
    request.create_request = &create;
    if (!send_request(hub, &request)) {
        free(watch);
        return;
    }
    hub->watches = watch;
}

static void read_wishes(struct bk *bk) {
    unsigned char buffer[sizeof(struct wish)];
    for (;;) {
        struct wish wish;
        const size_t head = offsetof(struct wish, key);
        if (read(bk->wish_read, buffer, head) != (ssize_t)head) return;
        memcpy(&wish, buffer, head);
        if (wish.length > sizeof wish.key ||
            (wish.length > 0 && read(bk->wish_read, wish.key, wish.length) != wish.length))
            return;
        fulfil(bk->hub, &wish);
    }
}

static const struct watch *by_id(const struct hub *hub, int64_t id) {
    const struct watch *watch = hub->watches;
    while (watch && watch->id != id) watch = watch->next;
    return watch;
}

/* false: the stream as a whole is of no use any more. */
static bool hear(struct hub *hub, const unsigned char *body, size_t size, bk_wake *wake, void *data,
                 pawl_error *error) {
    Pb__WatchResponse *r = pb__watch_response__unpack(NULL, size, body);
    bool good = r != NULL;
    const struct watch *watch = good ? by_id(hub, r->watch_id) : NULL;
    if (good && r->canceled && r->watch_id < 0) { /* as when the login ran out */
        error_set(error, PAWL_EUNREACHABLE, http2_node(hub->h), "%s refuses to watch: %.200s", http2_node(hub->h),
                  r->cancel_reason);
        good = false;
    } else if (watch && (r->created || r->canceled || r->n_events > 0)) {
        wake(watch->owner, data); /* also for a watch that the server ended, as by compaction: he looks for himself */
    }
    pb__watch_response__free_unpacked(r, NULL);
    return good;
}

enum bk_says hub_open(struct bk *bk, struct bk_until until, pawl_error *error) {
    char token[512];
    struct hub *hub = calloc(1, sizeof *hub);
    if (!hub) {
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        return BK_FAULT;
    }
    enum bk_says says = dial(bk, until, &hub->h, token, error);
    if (says != BK_YES) {
        free(hub);
        return says;
    }
    struct epoll_event in = {.events = EPOLLIN};
    hub->epoll = epoll_create1(EPOLL_CLOEXEC);
    bk->hub = hub;
    if (hub->epoll >= 0 && epoll_ctl(hub->epoll, EPOLL_CTL_ADD, bk->wish_read, &in) == 0 &&
        epoll_ctl(hub->epoll, EPOLL_CTL_ADD, http2_fd(hub->h), &in) == 0 &&
        grpc_stream_open(hub->h, &hub->stream, "/etcdserverpb.Watch/Watch", *token ? token : NULL) &&
        http2_pump(hub->h, false, until, error) != BK_FAULT) {
        atomic_fetch_add(&bk->hub_number, 1);
        return BK_YES;
    }
    if (!error || !error->code) error_errno(error, PAWL_EINTERNAL, http2_node(hub->h), "cannot open the watch stream");
    hub_close(bk, false);
    return BK_FAULT;
}

int hub_fd(struct bk *bk) { return bk->hub ? bk->hub->epoll : -1; }

enum bk_says hub_io(struct bk *bk, bk_wake *wake, void *data, pawl_error *error) {
    struct hub *hub = bk->hub;
    struct bk_until now = {.at_ns = 0, .cancel_fd = -1};
    if (!hub) return BK_FAULT;
    read_wishes(bk);
    bool good = true;
    while (good && http2_pump(hub->h, false, now, error) == BK_YES) continue;
    for (unsigned char *body; good;) {
        size_t size;
        enum bk_says says = grpc_stream_next(hub->h, &hub->stream, &body, &size, error);
        if (says == BK_NO) break;
        good = says == BK_YES && hear(hub, body, size, wake, data, error);
        if (says == BK_YES) free(body);
    }
    good = good && !http2_worn(hub->h);
    if (good) return BK_YES;
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
    for (struct watch *watch = hub->watches, *next; watch; watch = next) {
        next = watch->next;
        free(watch);
    }
    free(hub);
}
