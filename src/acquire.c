/* acquire.c: the calls of pawl.h that take, keep and give back a lock. */
#include "clock.h"
#include "export.h"
#include "lock.h"
#include "process.h"
#include "random.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define UNDO_INLINE_MS 50 /* a caller that gives up waits so long for the undo; then the keeper goes on with it */

/* --- acquire --- */

/* Sleeps until the next step is due or somebody wakes us. */
static int wait_for_step(pawl_lock *l, pawl_error *error) {
    pawl_client *c = l->client;
    eventfd_t drained;
    bool told = l->backend_fd < 0 || c->be->caps.hub || !atomic_load(&l->admitted); /* by another thread */
    if (l->wake_fd < 0 && told) {
        pthread_mutex_lock(&c->mutex);
        l->wake_fd = c->spare_wake_fd >= 0 ? c->spare_wake_fd : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        c->spare_wake_fd = -1;
        pthread_mutex_unlock(&c->mutex);
        if (l->wake_fd < 0) return error_errno(error, PAWL_EINTERNAL, NULL, "cannot wait: no descriptor left");
    }
    struct pollfd p[] = {{.fd = l->wake_fd, .events = POLLIN},
                         {.fd = l->cancel_fd, .events = POLLIN},
                         {.fd = l->backend_fd, .events = POLLIN},
                         {.fd = -1, .events = POLLIN}};
    int code = STEP_WAIT;
    bool heard = false;
    while (code == STEP_WAIT && !atomic_load(&l->woken)) {
        if (c->be->caps.hub) p[3].fd = hub_listen(l, heard);
        if (atomic_load(&l->woken)) break;
        int n = poll(p, 4, clock_poll_ms(client_now(c), lock_next_step_ns(l)));
        if (n < 0 && errno != EINTR) code = error_errno(error, PAWL_EINTERNAL, NULL, "cannot wait: poll failed");
        if (n <= 0) break;
        heard = p[3].revents;
        if (p[0].revents) eventfd_read(l->wake_fd, &drained);
        if (p[1].revents) code = error_set(error, PAWL_ECANCELLED, NULL, "cancelled while waiting");
        if (p[2].revents) atomic_store(&l->woken, true);
    }
    hub_go_on(l);
    return code;
}

/* The attempt failed: leaves no trace if that can be done at once, else hands the rest to the keeper. */
static void give_up(pawl_lock *l) {
    pawl_client *c = l->client;
    bool over = !l->dirty || ((l->contact || l->granted) && lock_end_step(l, UNDO_INLINE_MS, NULL));
    pthread_mutex_lock(&c->mutex);
    l->state = LOCK_ENDING;
    if (over) lock_unref_locked(l);
    else {
        lock_leave_locked(l);
        l->backoff_ms = 0;
        keeper_work_locked(l, client_now(c));
    }
    pthread_mutex_unlock(&c->mutex);
}

static int start(pawl_client *c, const char *name, const pawl_acquire_options *o, void *user, bool event_form,
                 pawl_lock **ret, pawl_error *error) {
    pawl_lock *l;
    int code = client_enter(c, error);
    if (code == PAWL_OK) code = lock_new(c, name, o, user, &l, error);
    if (code) return code;
    l->event_form = event_form;
    pthread_mutex_lock(&c->mutex);
    code = lock_enter_locked(l, error);
    if (code == PAWL_OK && (event_form || l->max_hold_ms > 0)) code = keeper_start_locked(c, error);
    if (code == PAWL_OK && event_form) keeper_work_locked(l, lock_next_step_ns(l));
    if (code) lock_unref_locked(l);
    pthread_mutex_unlock(&c->mutex);
    if (code == PAWL_OK) *ret = l;
    return code;
}

PAWL_EXPORT int pawl_acquire(pawl_client *c, const char *name, const pawl_acquire_options *o, pawl_lock **ret_lock,
                             pawl_error *error) {
    pawl_lock *l;
    pawl_error own = PAWL_ERROR_INIT;
    int code = start(c, name, o, NULL, false, &l, &own);
    if (code) {
        error_copy(error, &own);
        return code;
    }
    while ((code = lock_step(l, QUESTION_MS, l->cancel_fd, &own)) == STEP_WAIT)
        if ((code = wait_for_step(l, &own)) != STEP_WAIT) break;
    if (code) {
        observe(l, PAWL_FAILED, code, own.text);
        give_up(l);
        error_copy(error, &own);
        return code;
    }
    pthread_mutex_lock(&c->mutex);
    lock_held_locked(l);
    if (c->spare_wake_fd < 0)
        c->spare_wake_fd = l->wake_fd; /* what it may still say wakes the next one once too often */
    else if (l->wake_fd >= 0) close(l->wake_fd);
    l->wake_fd = -1;
    pthread_mutex_unlock(&c->mutex);
    *ret_lock = l;
    return PAWL_OK;
}

PAWL_EXPORT int pawl_acquire_start(pawl_client *c, const char *name, const pawl_acquire_options *o, void *user,
                                   pawl_lock **ret_lock, pawl_error *error) {
    return start(c, name, o, user, true, ret_lock, error);
}

/* --- release --- */

/* Asks until it is over or time is up. Twice asked and nothing found is "released", as far as anybody can know. */
static int release_now(pawl_lock *l, int64_t wait_ms, pawl_error *error) {
    pawl_client *c = l->client;
    int64_t now = client_now(c), end = clock_after_ms(now, wait_ms), pause_ms = 10;
    bool in_time = now < lock_safe_until(l), asked = false;
    pawl_error own = PAWL_ERROR_INIT;
    for (;;) {
        enum bk_says says = lock_undo(l, (struct bk_until){.at_ns = end, .cancel_fd = -1}, &own);
        if (says == BK_YES || (says == BK_NO && asked && in_time)) return PAWL_OK;
        if (says == BK_NO)
            return error_set(error, PAWL_ELOST, NULL, "the lock was not ours any more when it was to be released");
        if (says == BK_UNKNOWN) asked = true;
        now = client_now(c);
        if (own.code != PAWL_EUNREACHABLE || clock_after_ms(now, pause_ms) >= end) break;
        poll(NULL, 0, (int)random_between(pause_ms / 2, pause_ms));
        pause_ms = pause_ms < 500 ? 2 * pause_ms : pause_ms;
    }
    return error_set(error, own.code ? own.code : PAWL_EUNREACHABLE, own.node,
                     "not released for certain: %.300s; it ends by itself within %lld ms", own.text,
                     (long long)l->claim.ttl_ms);
}

/* Nothing to wait for: it is not held, or the keeper is asking for it right now. He does the rest. */
static void leave_to_keeper_locked(pawl_lock *l, enum lock_state was) {
    if (l->in_keeper && was == LOCK_PENDING) observe_let_go(l);
    else observe(l, PAWL_RELEASED, was == LOCK_LOST ? PAWL_ELOST : PAWL_OK, NULL);
    names_leave_locked(l);
    if (was == LOCK_FAILED && !l->dirty) {
        lock_unref_locked(l);
    } else if (!l->in_keeper) {
        l->backoff_ms = 0;
        keeper_work_locked(l, client_now(l->client));
    }
}

static int lost(const char *why, pawl_error *error) {
    return error_set(error, PAWL_ELOST, NULL, "the lock was lost%s%s", why ? ": " : "", why ? why : "");
}

/* Takes the lock out of everybody's hands but ours. false: it is the keeper's, or gone, and *ret is the outcome. */
static bool begin_release(pawl_lock *l, int64_t wait_ms, enum lock_state *ret_was, int *ret, pawl_error *error) {
    pawl_client *c = l->client;
    int64_t until_ns = clock_after_ms(client_now(c), wait_ms);
    pthread_mutex_lock(&c->mutex);
    while ((l->state == LOCK_HELD || l->state == LOCK_LOST) && l->in_keeper && /* it is being proved */
           client_wait_locked(c, &c->proved, until_ns)) {
    }
    enum lock_state was = *ret_was = l->state;
    bool ours = !l->in_keeper && (was == LOCK_HELD || was == LOCK_LOST);
    l->state = LOCK_ENDING;
    event_forget_locked(l);
    heap_remove(&c->work, &l->timer);
    if (l->lease && l->lease->own) heap_remove(&c->leases, &l->lease->timer);
    if (!ours) {
        *ret = PAWL_OK;
        if (was == LOCK_LOST) *ret = lost(l->end_text, error);
        else if (was == LOCK_HELD && wait_ms > 0)
            *ret = error_set(error, PAWL_EUNREACHABLE, NULL,
                             "not released for certain: no answer in time; it ends by "
                             "itself within %lld ms",
                             (long long)l->claim.ttl_ms);
        leave_to_keeper_locked(l, was);
    }
    pthread_mutex_unlock(&c->mutex);
    return ours;
}

PAWL_EXPORT int pawl_release(pawl_lock *l, int64_t wait_ms, pawl_error *error) {
    if (!l) return PAWL_OK;
    pawl_client *c = l->client;
    enum lock_state was;
    int code = client_enter(c, error);
    if (code || !begin_release(l, wait_ms, &was, &code, error)) return code;
    bool over = !l->granted;
    int64_t safe_until = lock_safe_until(l);
    if (was == LOCK_HELD && safe_until != LIFE_ENDLESS && safe_until <= client_now(c))
        observe(l, PAWL_LOST, PAWL_ELOST, "released after its deadline");
    if (l->granted && (wait_ms > 0 || client_needs_no_service(c))) {
        code = release_now(l, wait_ms, error);
        over = (code == PAWL_OK || code == PAWL_ELOST) &&
               (!l->in_flight_until_ns || client_now(c) >= l->in_flight_until_ns);
    }
    if (was == LOCK_LOST) code = lost(l->end_text, error);
    observe(l, PAWL_RELEASED, code, NULL);
    pthread_mutex_lock(&c->mutex);
    names_leave_locked(l);
    l->backoff_ms = 0;
    if (over) lock_unref_locked(l);
    else keeper_work_locked(l, client_now(c));
    pthread_mutex_unlock(&c->mutex);
    return code;
}

/* --- a held lock --- */

PAWL_EXPORT int64_t pawl_token(const pawl_lock *l) { return l->granted ? (int64_t)l->grant.token : 0; }
PAWL_EXPORT const char *pawl_name(const pawl_lock *l) { return l->name; }

PAWL_EXPORT int pawl_check(const pawl_lock *l) {
    if (l->client->pid != process_id()) return PAWL_ELOST;
    int64_t until = lock_safe_until(l);
    return until == LIFE_ENDLESS || client_now(l->client) < until ? PAWL_OK : PAWL_ELOST;
}

PAWL_EXPORT int64_t pawl_remaining_ms(const pawl_lock *l) {
    if (l->client->pid != process_id()) return 0;
    int64_t until = lock_safe_until(l);
    if (until == LIFE_ENDLESS) return PAWL_FOREVER;
    if (until == INT64_MIN) return 0;
    return (until - client_now(l->client)) / NS_PER_MS;
}

PAWL_EXPORT int pawl_verify(pawl_lock *l, int64_t wait_ms, pawl_error *error) {
    pawl_client *c = l->client;
    struct session *s;
    pawl_error own = PAWL_ERROR_INIT;
    int code = client_enter(c, error);
    if (code) return code;
    if (!l->granted) return error_set(error, PAWL_ELOST, NULL, "the lock is not held");
    struct bk_until until = {.at_ns = clock_after_ms(client_now(c), wait_ms > 0 ? wait_ms : QUESTION_MS),
                             .cancel_fd = -1};
    enum bk_says says;
    bool stale;
    do { /* a connection that had gone stale says nothing of the service: another one is asked */
        own = (pawl_error)PAWL_ERROR_INIT;
        code = l->session ? session_borrow_this(c, s = l->session, until, error)
                          : session_borrow(c, SESSION_ANY, until, &s, error);
        if (code) return code;
        stale = !l->session && !s->fresh;
        says = c->be->prove(s->bk, &l->grant, until, &own);
        bool broken = says == BK_UNKNOWN || (says == BK_FAULT && own.code == PAWL_EUNREACHABLE);
        session_return(c, s, broken);
        stale = stale && broken;
    } while (stale && client_now(c) < until.at_ns);
    if (says == BK_YES)
        return pawl_check(l) ? error_set(error, PAWL_ELOST, NULL, "the lock passed its deadline") : PAWL_OK;
    if (says == BK_NO) return error_set(error, PAWL_ELOST, NULL, "the service says that the lock is not ours any more");
    error_copy(error, &own);
    return own.code ? own.code : PAWL_EUNREACHABLE;
}

PAWL_EXPORT int pawl_holding_fds(pawl_lock *l, int *ret_fds, int max) {
    pawl_client *c = l->client;
    if (client_enter(c, NULL) || !l->granted || c->be->caps.life == BK_LIFE_LOCK) return 0;
    return c->be->fds(l->session ? l->session->bk : NULL, &l->grant, ret_fds, max);
}
