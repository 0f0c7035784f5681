/* event.c: what the event form tells, and through which descriptors. An event is a mark on its lock, queued through the
 * lock itself, so that none can be dropped for want of memory. The client's descriptor is an epoll of an eventfd
 * (something is queued) and a timerfd (the earliest deadline), so that it becomes readable even if the keeper hangs. */
#include "client.h"
#include "clock.h"
#include "export.h"
#include "sized.h"
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }

static void arm(int timer_fd, int64_t at_ns) {
    struct itimerspec spec = {0};
    if (at_ns != LIFE_ENDLESS) {
        if (at_ns < 1) at_ns = 1;
        spec.it_value = (struct timespec){.tv_sec = at_ns / NS_PER_S, .tv_nsec = at_ns % NS_PER_S};
    }
    timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &spec, NULL);
}

static void enqueue_locked(pawl_lock *l) {
    pawl_client *c = l->client;
    if (l->in_events) return;
    bool was_empty = !c->event_first;
    l->in_events = true;
    l->event_next = NULL;
    if (c->event_last) c->event_last->event_next = l;
    else c->event_first = l;
    c->event_last = l;
    if (was_empty && c->queue_fd >= 0) eventfd_write(c->queue_fd, 1);
}

static void dequeue_locked(pawl_client *c, pawl_lock *l, pawl_lock *before) {
    if (before) before->event_next = l->event_next;
    else c->event_first = l->event_next;
    if (c->event_last == l) c->event_last = before;
    l->in_events = false;
    eventfd_t drained;
    if (!c->event_first && c->queue_fd >= 0) eventfd_read(c->queue_fd, &drained);
}

void event_result_locked(pawl_lock *l) {
    if (!l->event_form) return;
    l->result_waits = true;
    enqueue_locked(l);
}

void event_loss_locked(pawl_lock *l) {
    event_lost_fd_locked(l);
    if (!l->event_form) return;
    l->loss_waits = true;
    enqueue_locked(l);
}

void event_forget_locked(pawl_lock *l) {
    pawl_client *c = l->client;
    l->result_waits = l->loss_waits = false;
    if (!l->in_events) return;
    pawl_lock *before = NULL;
    for (pawl_lock *at = c->event_first; at != l; at = at->event_next) before = at;
    dequeue_locked(c, l, before);
}

void event_deadline_locked(pawl_client *c, int64_t safe_until_ns) {
    if (safe_until_ns >= c->earliest_ns) return;
    c->earliest_ns = safe_until_ns;
    if (c->deadline_fd >= 0) arm(c->deadline_fd, safe_until_ns);
}

void event_deadlines_moved_locked(pawl_client *c) {
    int64_t earliest = LIFE_ENDLESS;
    for (const pawl_lock *l = c->locks; l; l = l->next) /* not the heap: what is being renewed is not in it */
        if (l->state == LOCK_HELD) earliest = earlier(earliest, lock_safe_until(l));
    c->earliest_ns = earliest;
    if (c->deadline_fd >= 0) arm(c->deadline_fd, earliest);
}

int64_t event_earliest_locked(pawl_client *c) {
    if (c->earliest_ns <= client_now(c)) event_deadlines_moved_locked(c);
    return c->earliest_ns;
}

void event_lost_fd_locked(pawl_lock *l) {
    if (l->lost_fd >= 0) arm(l->lost_fd, l->state == LOCK_PENDING ? LIFE_ENDLESS : lock_safe_until(l));
}

static bool make_event_fd_locked(pawl_client *c) {
    struct epoll_event readable = {.events = EPOLLIN};
    c->event_fd = epoll_create1(EPOLL_CLOEXEC);
    c->queue_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    c->deadline_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    if (c->event_fd >= 0 && c->queue_fd >= 0 && c->deadline_fd >= 0 &&
        epoll_ctl(c->event_fd, EPOLL_CTL_ADD, c->queue_fd, &readable) == 0 &&
        epoll_ctl(c->event_fd, EPOLL_CTL_ADD, c->deadline_fd, &readable) == 0)
        return true;
    int *fds[] = {&c->event_fd, &c->queue_fd, &c->deadline_fd};
    for (int i = 0; i < 3; i++) {
        if (*fds[i] >= 0) close(*fds[i]);
        *fds[i] = -1;
    }
    return false;
}

PAWL_EXPORT int pawl_event_fd(pawl_client *c) {
    if (client_enter(c, NULL)) return -1;
    pthread_mutex_lock(&c->mutex);
    if (c->event_fd < 0 && make_event_fd_locked(c)) {
        event_deadlines_moved_locked(c);
        if (c->event_first) eventfd_write(c->queue_fd, 1);
    }
    int fd = c->event_fd;
    pthread_mutex_unlock(&c->mutex);
    return fd;
}

/* Deadlines that passed while the keeper was not looking. Only some at a time, so that the loss of many does not keep
 * the caller's loop: the earliest deadline stays in the past, and the next call goes on. */
static void notice_losses_locked(pawl_client *c) {
    int64_t now = client_now(c);
    if (now < c->earliest_ns) return;
    int most = LOSSES_AT_ONCE;
    for (pawl_lock *l = c->locks, *next; l; l = next) {
        next = l->next;
        if (l->state != LOCK_HELD || lock_safe_until(l) > now) continue;
        if (most-- == 0) return;
        if (l->max_until_ns <= now) lock_lose_locked(l, PAWL_LOST_MAX_HOLD, "held for the longest time allowed");
        else lock_lose_locked(l, PAWL_LOST_UNPROVEN, "no renewal was confirmed before the deadline");
    }
    event_deadlines_moved_locked(c);
}

PAWL_EXPORT int pawl_next_event(pawl_client *c, pawl_event *ret_event) {
    if (client_enter(c, NULL)) return 0;
    pthread_mutex_lock(&c->mutex);
    notice_losses_locked(c);
    pawl_lock *l = c->event_first;
    if (!l) {
        pthread_mutex_unlock(&c->mutex);
        return 0;
    }
    dequeue_locked(c, l, NULL);
    pawl_event event = PAWL_EVENT_INIT;
    event.lock = l;
    event.user = l->user;
    event.token = l->granted ? (int64_t)l->grant.token : 0;
    if (l->result_waits) {
        l->result_waits = false;
        bool failed = l->state == LOCK_FAILED;
        event.type = failed ? PAWL_FAILED : PAWL_GRANTED;
        event.code = failed ? l->end_code : PAWL_OK;
        if (failed && l->end_text) snprintf(event.text, sizeof event.text, "%s", l->end_text);
        if (l->loss_waits) enqueue_locked(l);
    } else {
        l->loss_waits = false;
        event.type = PAWL_LOST;
        event.code = PAWL_ELOST;
        event.reason = l->lost_reason;
        if (l->end_text) snprintf(event.text, sizeof event.text, "%s", l->end_text);
    }
    pthread_mutex_unlock(&c->mutex);
    sized_give(ret_event, &event);
    return 1;
}

PAWL_EXPORT int pawl_lost_fd(pawl_lock *l) {
    pawl_client *c = l->client;
    if (client_enter(c, NULL)) return -1;
    pthread_mutex_lock(&c->mutex);
    if (l->lost_fd < 0) {
        l->lost_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
        event_lost_fd_locked(l);
    }
    int fd = l->lost_fd;
    pthread_mutex_unlock(&c->mutex);
    return fd;
}
