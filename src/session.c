/* session.c: connections, lent to one party at a time. A session that ended a question without an answer is dropped. */
#include "client.h"
#include "clock.h"
#include <poll.h>
#include <stdlib.h>

#define IDLE_CHECK_NS NS_PER_S /* a session that rested longer is looked at for a hang-up before it is lent */

static bool hung_up(pawl_client *c, const struct session *s) {
    int fds[8];
    int n = c->be->fds(s->bk, NULL, fds, 8);
    struct pollfd p[8];
    for (int i = 0; i < n; i++) p[i] = (struct pollfd){.fd = fds[i], .events = POLLIN | POLLRDHUP};
    return n > 0 && poll(p, (nfds_t)n, 0) > 0;
}

static void drop_locked(pawl_client *c, struct session *s) {
    for (struct session **at = &c->sessions; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    c->n_sessions--;
    c->be->drop(s->bk, false);
    free(s);
    pthread_cond_broadcast(&c->session_free);
}

static struct session *idle_locked(pawl_client *c, enum session_want want) {
    int64_t now = client_now(c);
    for (struct session *s = c->sessions, *next; s; s = next) {
        next = s->next;
        if (s->busy || s->dead || (want == SESSION_EMPTY && s->holds > 0)) continue;
        if (c->be->caps.session_bound && s->holds >= c->be->caps.per_session) continue;
        if (s->holds == 0 && now - s->idle_since_ns > IDLE_CHECK_NS && hung_up(c, s)) {
            drop_locked(c, s);
            continue;
        }
        return s;
    }
    return NULL;
}

/* Waits until somebody returned a session. The deadline is looked at again each time; the wait itself is short. */
static bool wait_locked(pawl_client *c, struct bk_until until) {
    int64_t now = client_now(c), left = until.at_ns - now;
    if (left <= 0) return false;
    if (left > NS_PER_S) left = NS_PER_S;
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at); /* not the deadline: condition variables know no CLOCK_BOOTTIME */
    at.tv_sec += left / NS_PER_S;
    at.tv_nsec += left % NS_PER_S;
    if (at.tv_nsec >= NS_PER_S) at.tv_sec++, at.tv_nsec -= NS_PER_S;
    pthread_cond_clockwait(&c->session_free, &c->mutex, CLOCK_MONOTONIC, &at);
    return true;
}

static int too_busy(pawl_error *error) {
    return error_set(error, PAWL_EUNREACHABLE, NULL,
                     "no connection became free in time: all of them wait for the service");
}

static int connect_new(pawl_client *c, struct bk_until until, struct session **ret, pawl_error *error) {
    struct session *s = calloc(1, sizeof *s);
    enum bk_says says = BK_FAULT;
    if (!s) error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
    else says = c->be->connect(c->bk, until, &s->bk, error);
    pthread_mutex_lock(&c->mutex);
    if (says == BK_YES) {
        s->busy = true;
        s->fresh = true;
        s->next = c->sessions;
        c->sessions = s;
    } else {
        c->n_sessions--;
        pthread_cond_signal(&c->session_free);
        free(s);
    }
    pthread_mutex_unlock(&c->mutex);
    if (says != BK_YES) return error && error->code ? error->code : PAWL_EUNREACHABLE;
    *ret = s;
    return PAWL_OK;
}

int session_borrow(pawl_client *c, enum session_want want, struct bk_until until, struct session **ret,
                   pawl_error *error) {
    pthread_mutex_lock(&c->mutex);
    for (;;) {
        struct session *s = idle_locked(c, want);
        if (s) {
            s->busy = true;
            s->fresh = false;
            pthread_mutex_unlock(&c->mutex);
            *ret = s;
            return PAWL_OK;
        }
        if (c->be->caps.session_bound || c->n_sessions < SESSIONS_MAX) {
            c->n_sessions++;
            pthread_mutex_unlock(&c->mutex);
            return connect_new(c, until, ret, error);
        }
        if (!wait_locked(c, until)) {
            pthread_mutex_unlock(&c->mutex);
            return too_busy(error);
        }
    }
}

int session_borrow_this(pawl_client *c, struct session *s, struct bk_until until, pawl_error *error) {
    pthread_mutex_lock(&c->mutex);
    while (s->busy && !s->dead)
        if (!wait_locked(c, until)) {
            pthread_mutex_unlock(&c->mutex);
            return too_busy(error);
        }
    bool dead = s->dead;
    if (!dead) s->busy = true;
    s->fresh = false;
    pthread_mutex_unlock(&c->mutex);
    return dead ? error_set(error, PAWL_ELOST, NULL, "the connection that held the lock is gone") : PAWL_OK;
}

void session_return(pawl_client *c, struct session *s, bool broken) {
    pthread_mutex_lock(&c->mutex);
    s->busy = false;
    s->idle_since_ns = client_now(c);
    if (broken) s->dead = true;
    if (s->holds > 0 && !s->dead) keeper_want_locked(c, s->idle_since_ns); /* it is to be watched from now on */
    if (s->dead) session_died_locked(c, s);
    pthread_cond_signal(&c->session_free);
    pthread_mutex_unlock(&c->mutex);
}

void session_died_locked(pawl_client *c, struct session *s) {
    s->dead = true;
    for (pawl_lock *l = s->holds > 0 ? c->locks : NULL, *next; l; l = next) {
        next = l->next;
        if (l->session == s && l->state == LOCK_HELD)
            lock_lose_locked(l, PAWL_ELOST, "the connection that held the lock ended");
    }
    if (!s->busy && s->holds == 0) drop_locked(c, s);
}

void session_let_go_locked(pawl_client *c, struct session *s) {
    s->holds--;
    if (s->dead && !s->busy && s->holds == 0) drop_locked(c, s);
}

void session_drop_all(pawl_client *c, bool forked) {
    for (struct session *s = c->sessions, *next; s; s = next) {
        next = s->next;
        c->be->drop(s->bk, forked);
        free(s);
    }
    c->sessions = NULL;
    c->n_sessions = 0;
}
