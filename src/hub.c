/* hub.c: who listens to the hub. A waiter of the blocking form does it itself, so that a wake-up does not change
 * threads on its way: one of those who rest in pawl_acquire, and when it goes on, the next of them. For waiters of the
 * event form the keeper listens. Whoever reads a message has the mutex, and wakes the waiter it is for; the keeper
 * opens the hub. */
#include "client.h"
#include "clock.h"
#include "random.h"
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

#define BACKOFF_FIRST_MS 100
#define BACKOFF_LAST_MS 30000

static bool wake(const unsigned char owner[16], void *data) {
    pawl_client *c = data;
    bool any = false;
    if (!owner) {
        for (pawl_lock *l = c->locks; l; l = l->next)
            if (l->in_waiters && l->state == LOCK_PENDING) lock_wake_locked(l);
        return true;
    }
    for (struct map_node *node = map_find(&c->waiters, map_hash(owner, 16)); node; node = map_next(node)) {
        pawl_lock *l = container_of(node, pawl_lock, by_owner);
        if (memcmp(l->claim.owner, owner, 16) != 0) continue;
        any |= l->state == LOCK_HELD || l->state == LOCK_PENDING;
        if (l->state == LOCK_HELD) keeper_work_locked(l, client_now(c));
        else lock_wake_locked(l);
    }
    return any;
}

void hub_enter_locked(pawl_lock *l) {
    if (l->in_waiters) return;
    map_add(&l->client->waiters, &l->by_owner, map_hash(l->claim.owner, sizeof l->claim.owner));
    l->in_waiters = true;
    l->keeper_hears = l->event_form || l->state == LOCK_HELD;
    if (l->keeper_hears) l->client->keeper_hears++;
}

void hub_leave_locked(pawl_lock *l) {
    if (!l->in_waiters) return;
    map_remove(&l->client->waiters, &l->by_owner);
    l->in_waiters = false;
    if (l->keeper_hears) l->client->keeper_hears--;
    l->keeper_hears = false;
}

void hub_watch_locked(pawl_lock *l) {
    pawl_client *c = l->client;
    if (!c->be->hub_watch || l->state != LOCK_HELD) return;
    hub_enter_locked(l);
    c->hub_wanted = true;
    if (c->hub_ready) c->be->hub_watch(c->bk, &l->grant);
}

static void closed_locked(pawl_client *c) {
    int64_t most = 2 * c->hub_backoff_ms < BACKOFF_LAST_MS ? 2 * c->hub_backoff_ms : BACKOFF_LAST_MS;
    c->hub_ready = false;
    c->hub_backoff_ms = c->hub_backoff_ms ? most : BACKOFF_FIRST_MS;
    c->hub_retry_ns = clock_after_ms(client_now(c), random_between(c->hub_backoff_ms / 2, c->hub_backoff_ms));
}

static void read_locked(pawl_client *c) {
    if (c->be->hub_io(c->bk, wake, c, NULL) != BK_FAULT) return;
    closed_locked(c);
    wake(NULL, c);
    keeper_want_locked(c, c->hub_retry_ns);
}

/* Said once a client, to one of those who wait. */
static void remark_locked(pawl_client *c, const char *why) {
    pawl_lock *l = c->locks;
    char text[sizeof((pawl_error *)0)->text];
    while (l && !(l->in_waiters && l->state == LOCK_PENDING)) l = l->next;
    if (!l || c->hub_refused) return;
    c->hub_refused = true;
    snprintf(text, sizeof text, "who waits asks again and again, since it may not be told: %.420s", why);
    observe(l, PAWL_REMARK, PAWL_OK, text);
}

bool hub_keeper_listens_locked(const pawl_client *c) { return c->hub_ready && c->keeper_hears > 0; }

int64_t hub_keeper_locked(pawl_client *c) {
    pawl_error error = PAWL_ERROR_INIT;
    if (hub_keeper_listens_locked(c)) read_locked(c);
    if (c->hub_ready || !c->hub_wanted || c->waiters.n == 0) return LIFE_ENDLESS;
    if (client_now(c) < c->hub_retry_ns) return c->hub_retry_ns;
    struct bk_until until = {.at_ns = clock_after_ms(client_now(c), keeper_question_ms_locked(c)), .cancel_fd = -1};
    pthread_mutex_unlock(&c->mutex);
    enum bk_says says = c->be->hub_open(c->bk, until, &error);
    pthread_mutex_lock(&c->mutex);
    if (says != BK_YES) {
        closed_locked(c);
        if (error.code == PAWL_EDENIED) remark_locked(c, error.text);
        return c->hub_retry_ns;
    }
    c->hub_ready = true;
    c->hub_backoff_ms = 0;
    wake(NULL, c);
    for (pawl_lock *l = c->locks; l; l = l->next)
        if (l->in_waiters) hub_watch_locked(l);
    if (hub_keeper_listens_locked(c)) read_locked(c);
    return LIFE_ENDLESS;
}

int hub_listen(pawl_lock *l, bool readable) {
    pawl_client *c = l->client;
    pthread_mutex_lock(&c->mutex);
    if (!l->rests) {
        l->rests = true;
        l->rest_next = c->resting;
        l->rest_previous = NULL;
        if (c->resting) c->resting->rest_previous = l;
        c->resting = l;
    }
    if (!c->listener) c->listener = l;
    l->hears = true;
    if (c->listener == l && c->hub_ready && readable) read_locked(c);
    l->hears = false;
    int fd = c->listener == l && c->hub_ready ? c->be->hub_fd(c->bk) : -1;
    pthread_mutex_unlock(&c->mutex);
    return fd;
}

/* Who does not rest looks at `woken` before it does, and so does who has just read the message itself. */
bool hub_must_tell_locked(const pawl_lock *l) { return !l->client->be->caps.hub || (l->rests && !l->hears); }

void hub_go_on(pawl_lock *l) {
    pawl_client *c = l->client;
    if (!l->rests) return;
    pthread_mutex_lock(&c->mutex);
    l->rests = false;
    if (l->rest_previous) l->rest_previous->rest_next = l->rest_next;
    else c->resting = l->rest_next;
    if (l->rest_next) l->rest_next->rest_previous = l->rest_previous;
    if (c->listener == l) {
        c->listener = c->resting;
        if (c->listener) eventfd_write(c->listener->wake_fd, 1); /* it is not to ask, only to listen */
    }
    pthread_mutex_unlock(&c->mutex);
}
