/* keeper.c: the one thread of a client. It renews due lives, many in one question; loses those past their deadline;
 * drives the acquisitions of the event form, and releases and undos that nobody waits for; listens to the hub; watches
 * session-bound sessions for a hang-up, and asks them whether they still answer. Lives come first: between two
 * questions for anything else it looks for due lives again.
 *
 * keeper_run is the whole of it, so that the simulation can run it in virtual time; the thread only sleeps between
 * runs. */
#include "clock.h"
#include "lock.h"
#include "random.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define SUSPECT_AGAIN_MS 500

static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

/* --- sleeping and waking --- */

void keeper_want_locked(pawl_client *c, int64_t at_ns) {
    if (at_ns >= c->keeper_sleeps_until_ns) return;
    /* no thread, and none to be had: the next one who wants it tries again, and pawl_close does what is left */
    if (keeper_start_locked(c, NULL)) return;
    c->keeper_sleeps_until_ns = INT64_MIN; /* it is told once */
    if (c->poke_fd >= 0) eventfd_write(c->poke_fd, 1);
}

void keeper_work_locked(pawl_lock *l, int64_t at_ns) {
    heap_set(&l->client->work, &l->timer, at_ns);
    keeper_want_locked(l->client, at_ns);
}

/* --- pending locks of the event form, and locks that end --- */

static void pending_locked(pawl_lock *l, int64_t question_ms) {
    pawl_client *c = l->client;
    pawl_error error = PAWL_ERROR_INIT;
    pthread_mutex_unlock(&c->mutex);
    int code = lock_step(l, question_ms, -1, &error);
    pthread_mutex_lock(&c->mutex);
    if (l->state == LOCK_ENDING) { /* released meanwhile */
        keeper_work_locked(l, client_now(c));
    } else if (code == STEP_WAIT) {
        keeper_work_locked(l, atomic_load(&l->woken) ? client_now(c) : lock_next_step_ns(l));
    } else if (code == PAWL_OK) {
        lock_held_locked(l);
        event_result_locked(l);
    } else {
        observe(l, PAWL_FAILED, code, error.text);
        l->state = LOCK_FAILED;
        lock_end_text(l, code, error.text);
        lock_leave_locked(l);
        event_result_locked(l);
        if (l->dirty) keeper_work_locked(l, client_now(c));
    }
}

static void ending_locked(pawl_lock *l, int64_t question_ms) {
    pawl_client *c = l->client;
    pthread_mutex_unlock(&c->mutex);
    bool over = lock_end_step(l, question_ms, NULL);
    pthread_mutex_lock(&c->mutex);
    if (!over) keeper_work_locked(l, l->ask_at_ns);
    else if (l->state == LOCK_ENDING) lock_unref_locked(l);
    else l->dirty = false; /* failed, and not yet released by the user */
}

/* The hub says that the service may have lost it: ask. pawl_release waits meanwhile, for the grant is in use. */
static void suspect_locked(pawl_lock *l, int64_t question_ms) {
    pawl_client *c = l->client;
    pawl_error error = PAWL_ERROR_INIT;
    struct bk_until until = {.at_ns = clock_after_ms(client_now(c), question_ms), .cancel_fd = -1};
    enum bk_says says = BK_UNKNOWN;
    struct session *s;
    pthread_mutex_unlock(&c->mutex);
    if (session_borrow(c, SESSION_ANY, until, &s, &error) == PAWL_OK) {
        says = c->be->prove(s->bk, &l->grant, until, &error);
        session_return(c, s, says == BK_UNKNOWN || (says == BK_FAULT && error.code == PAWL_EUNREACHABLE));
    }
    pthread_mutex_lock(&c->mutex);
    pthread_cond_broadcast(&c->proved);
    if (l->state == LOCK_ENDING) keeper_work_locked(l, client_now(c)); /* released meanwhile */
    if (l->state != LOCK_HELD) return;
    if (says == BK_NO) lock_lose_locked(l, PAWL_LOST_GONE, "it was removed from the service by somebody else");
    else if (says > BK_NO)
        keeper_work_locked(l, earlier(clock_after_ms(client_now(c), SUSPECT_AGAIN_MS), l->max_until_ns));
    else if (l->max_until_ns < INT64_MAX) keeper_work_locked(l, l->max_until_ns);
}

/* How long a question may take that is not a renewal: half of what is left to the earliest deadline, so that a service
 * that falls silent in it leaves time for renewals on another connection. */
int64_t keeper_question_ms_locked(pawl_client *c) {
    int64_t now = client_now(c);
    int64_t earliest_ns = event_earliest_locked(c);
    int64_t left_ms = earliest_ns == LIFE_ENDLESS ? INT64_MAX : (earliest_ns - now) / NS_PER_MS / 2;
    return later(1, earlier(KEEPER_QUESTION_MS, left_ms));
}

/* One piece of work; false: none is due. */
static bool work_locked(pawl_client *c) {
    int64_t now = client_now(c);
    struct heap_node *first = heap_first(&c->work);
    if (!first || first->at_ns > now) return false;
    pawl_lock *l = container_of(first, pawl_lock, timer);
    heap_remove(&c->work, &l->timer);
    int64_t question_ms = keeper_question_ms_locked(c);
    l->refs++;
    l->in_keeper = true;
    if (l->state == LOCK_PENDING) pending_locked(l, question_ms);
    else if (l->state == LOCK_HELD && now < l->max_until_ns) suspect_locked(l, question_ms);
    else if (l->state == LOCK_HELD) lock_lose_locked(l, PAWL_LOST_MAX_HOLD, "held for the longest time allowed");
    else ending_locked(l, question_ms);
    l->in_keeper = false;
    lock_unref_locked(l);
    return true;
}

/* --- the run, and the thread --- */

int64_t keeper_run(pawl_client *c) {
    pthread_mutex_lock(&c->mutex);
    c->keeper_sleeps_until_ns = INT64_MIN;
    int64_t hub = LIFE_ENDLESS;
    do {
        lease_renew_due_locked(c);
        if (c->be->caps.hub) hub = hub_keeper_locked(c);
    } while (!c->stop && work_locked(c)); /* pawl_close does the rest, within its time */
    int64_t next = earlier(hub, session_beats_locked(c));
    const struct heap_node *lease = heap_first(&c->leases), *work = heap_first(&c->work);
    if (lease) next = earlier(next, lease->at_ns);
    if (work) next = earlier(next, work->at_ns);
    /* Who took a lock lately will take another: a sleep that ends before its first renewal spares every acquire the
     * waking of this thread. Once nothing was taken for so long, it sleeps for ever. */
    if (c->lease_planned) next = earlier(next, clock_after_ms(client_now(c), c->options.ttl_ms / 4));
    c->lease_planned = false;
    c->keeper_sleeps_until_ns = next;
    pthread_mutex_unlock(&c->mutex);
    return next;
}

#define WATCH_FEW 8
#define WATCH_SHORT_MS 100 /* how long to sleep if not everything can be watched */

struct watch {                              /* what the thread polls; made anew for each sleep, the room is kept */
    struct pollfd *fds, few_fds[WATCH_FEW]; /* so that poke and hub are watched even if memory is out */
    void **whose, *few_whose[WATCH_FEW];    /* NULL: poke, hub or hang-ups; or a pawl_lock */
    size_t n, room;
    bool incomplete;
};

static void watch_free(struct watch *w) {
    if (w->fds == w->few_fds) return;
    free(w->fds);
    free(w->whose);
}

static bool watch_grow(struct watch *w) {
    size_t room = 2 * w->room;
    struct pollfd *fds = malloc(room * sizeof *fds);
    void **whose = malloc(room * sizeof *whose);
    if (!fds || !whose) {
        free(fds);
        free(whose);
        return false;
    }
    memcpy(fds, w->fds, w->n * sizeof *fds);
    memcpy(whose, w->whose, w->n * sizeof *whose);
    watch_free(w);
    w->fds = fds;
    w->whose = whose;
    w->room = room;
    return true;
}

static bool watch_add(struct watch *w, int fd, short events, void *whose) {
    if (w->n == w->room && !watch_grow(w)) {
        w->incomplete = true;
        return false;
    }
    w->fds[w->n] = (struct pollfd){.fd = fd, .events = events};
    w->whose[w->n++] = whose;
    return true;
}

static void watch_locked(pawl_client *c, struct watch *w) {
    w->n = 0;
    w->incomplete = false;
    watch_add(w, c->poke_fd, POLLIN, NULL);
    if (hub_keeper_listens_locked(c)) watch_add(w, c->be->hub_fd(c->bk), POLLIN, NULL);
    if (c->hang_up_fd >= 0) watch_add(w, c->hang_up_fd, POLLIN, NULL);
    if (!c->be->caps.hub)
        for (size_t i = 0; i < c->work.n; i++) {
            pawl_lock *l = container_of(c->work.nodes[i], pawl_lock, timer);
            if (l->state == LOCK_PENDING && l->backend_fd >= 0 && watch_add(w, l->backend_fd, POLLIN, l)) l->refs++;
        }
}

static void seen_locked(pawl_client *c, struct watch *w) {
    for (size_t i = 0; i < w->n; i++) {
        if (!w->whose[i]) continue;
        pawl_lock *l = w->whose[i];
        if (w->fds[i].revents && l->state == LOCK_PENDING) lock_wake_locked(l);
        lock_unref_locked(l);
    }
    session_hang_ups_locked(c);
}

static void *keeper(void *data) {
    pawl_client *c = data;
    struct watch w = {.room = WATCH_FEW};
    w.fds = w.few_fds;
    w.whose = w.few_whose;
    for (;;) {
        int64_t next = keeper_run(c);
        pthread_mutex_lock(&c->mutex);
        bool stop = c->stop;
        watch_locked(c, &w);
        pthread_mutex_unlock(&c->mutex);
        if (w.incomplete) next = earlier(next, clock_after_ms(client_now(c), WATCH_SHORT_MS));
        if (!stop && poll(w.fds, (nfds_t)w.n, clock_poll_ms(client_now(c), next)) > 0 && w.fds[0].revents) {
            eventfd_t drained;
            eventfd_read(c->poke_fd, &drained);
        }
        pthread_mutex_lock(&c->mutex);
        c->keeper_sleeps_until_ns = INT64_MIN;
        seen_locked(c, &w);
        pthread_mutex_unlock(&c->mutex);
        if (stop) break;
    }
    watch_free(&w);
    return NULL;
}

int keeper_start_locked(pawl_client *c, pawl_error *error) {
    sigset_t all, old;
    if (c->manual || c->stop || c->poke_fd >= 0) return PAWL_OK;
    c->poke_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->poke_fd < 0) return error_errno(error, PAWL_EINTERNAL, NULL, "no descriptor left for the client's thread");
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    errno = pthread_create(&c->keeper, NULL, keeper, c);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (errno == 0) return PAWL_OK;
    error_errno(error, PAWL_EINTERNAL, NULL, "cannot start the client's thread");
    close(c->poke_fd);
    c->poke_fd = -1;
    return PAWL_EINTERNAL;
}

void keeper_stop(pawl_client *c) {
    pthread_mutex_lock(&c->mutex);
    c->stop = true;
    bool runs = c->poke_fd >= 0;
    if (runs) eventfd_write(c->poke_fd, 1);
    pthread_mutex_unlock(&c->mutex);
    if (runs) pthread_join(c->keeper, NULL);
}
