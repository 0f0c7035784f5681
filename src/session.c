/* session.c: connections, lent to one party at a time. One that ended a question without an answer is dropped, unless
 * it holds grants: they are not to be lost because somebody else's question had little time. It is then asked whether
 * it still answers, and a third of the ttl without an answer is its end. */
#include "client.h"
#include "clock.h"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>

#define IDLE_CHECK_NS NS_PER_S /* a session that rested longer is looked at for a hang-up before it is lent */

/* Else nobody can hang up, and the time does not matter: reading it three times would be a hundredth of a lock. */
static bool connected(const pawl_client *c) { return c->be->caps.session_bound || c->be->caps.life != BK_LIFE_NONE; }

static bool hung_up(pawl_client *c, const struct session *s) {
    int fds[8];
    int n = c->be->fds(s->bk, NULL, fds, 8);
    struct pollfd p[8];
    for (int i = 0; i < n; i++) p[i] = (struct pollfd){.fd = fds[i], .events = POLLIN | POLLRDHUP};
    return n > 0 && poll(p, (nfds_t)n, 0) > 0;
}

/* The keeper is told of a hang-up through one descriptor for all sessions, so that lending one costs nothing. A dead
 * session's descriptor may live on in another process (pawl_holding_fds), hence the explicit end. */
static bool watch_locked(pawl_client *c, struct session *s, int operation) {
    int fds[8], n = c->be->caps.session_bound ? c->be->fds(s->bk, NULL, fds, 8) : 0;
    if (n > 0 && c->hang_up_fd < 0) {
        if ((c->hang_up_fd = epoll_create1(EPOLL_CLOEXEC)) < 0) return false;
        keeper_want_locked(c, INT64_MIN + 1); /* it is to look at that one too */
    }
    for (int i = 0; i < n; i++) {
        struct epoll_event event = {.events = EPOLLRDHUP | EPOLLET, .data.ptr = s};
        if (epoll_ctl(c->hang_up_fd, operation, fds[i], &event) && operation == EPOLL_CTL_ADD) return false;
    }
    return true;
}

static void drop_locked(pawl_client *c, struct session *s) {
    for (struct session **at = &c->sessions; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    c->n_sessions--;
    watch_locked(c, s, EPOLL_CTL_DEL);
    c->be->drop(s->bk, false);
    free(s);
    pthread_cond_broadcast(&c->session_free);
}

static struct session *idle_locked(pawl_client *c, enum session_want want) {
    int64_t now = connected(c) ? client_now(c) : 0;
    for (struct session *s = c->sessions, *next; s; s = next) {
        next = s->next;
        if (s->busy || s->dead || s->doubt || s->wanted || (want == SESSION_EMPTY && s->holds > 0)) continue;
        if (c->be->caps.session_bound && s->holds >= c->be->caps.per_session) continue;
        if (connected(c) && s->holds == 0 && now - s->idle_since_ns > IDLE_CHECK_NS && hung_up(c, s)) {
            drop_locked(c, s);
            continue;
        }
        return s;
    }
    return NULL;
}

/* The deadline is looked at again each time; the wait itself is short. */
bool client_wait_locked(pawl_client *c, pthread_cond_t *what, int64_t until_ns) {
    int64_t now = client_now(c), left = until_ns - now;
    if (left <= 0) return false;
    if (left > NS_PER_S) left = NS_PER_S;
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at); /* not the deadline: condition variables know no CLOCK_BOOTTIME */
    at.tv_sec += left / NS_PER_S;
    at.tv_nsec += left % NS_PER_S;
    if (at.tv_nsec >= NS_PER_S) at.tv_sec++, at.tv_nsec -= NS_PER_S;
    pthread_cond_clockwait(what, &c->mutex, CLOCK_MONOTONIC, &at);
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
    if (says == BK_YES && !watch_locked(c, s, EPOLL_CTL_ADD)) {
        error_errno(error, PAWL_EINTERNAL, NULL, "cannot watch a connection");
        c->be->drop(s->bk, false);
        says = BK_FAULT;
    }
    if (says == BK_YES) {
        s->busy = true;
        s->fresh = true;
        s->next = c->sessions;
        c->sessions = s;
    } else {
        c->n_sessions--;
        c->n_asking--;
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
            c->n_asking++;
            pthread_mutex_unlock(&c->mutex);
            *ret = s;
            return PAWL_OK;
        }
        if ((c->be->caps.session_bound ? c->n_asking : c->n_sessions) < SESSIONS_MAX) {
            c->n_sessions++;
            c->n_asking++;
            pthread_mutex_unlock(&c->mutex);
            return connect_new(c, until, ret, error);
        }
        if (!client_wait_locked(c, &c->session_free, until.at_ns)) {
            pthread_mutex_unlock(&c->mutex);
            return too_busy(error);
        }
    }
}

int session_borrow_this(pawl_client *c, struct session *s, struct bk_until until, pawl_error *error) {
    bool in_time = true;
    pthread_mutex_lock(&c->mutex);
    s->wanted++;
    while (s->busy && !s->dead && in_time) in_time = client_wait_locked(c, &c->session_free, until.at_ns);
    s->wanted--;
    bool dead = s->dead;
    if (!dead && in_time) {
        s->busy = true;
        s->fresh = false;
        c->n_asking++;
    }
    pthread_mutex_unlock(&c->mutex);
    if (!in_time) return too_busy(error);
    return dead ? error_set(error, PAWL_ELOST, NULL, "the connection that held the lock is gone") : PAWL_OK;
}

static void answered(const pawl_client *c, struct session *s, int64_t now) {
    s->asked_ns = 0;
    s->doubt = false;
    s->beat_ns = clock_after_ms(now, c->options.ttl_ms / 3);
}

void session_waits_locked(pawl_client *c, struct session *s) {
    if (s->waits) return;
    s->waits = true;
    c->n_asking--;
    pthread_cond_signal(&c->session_free);
}

void session_return(pawl_client *c, struct session *s, bool broken) {
    pthread_mutex_lock(&c->mutex);
    if (!s->waits) c->n_asking--;
    s->busy = s->waits = false;
    s->idle_since_ns = connected(c) ? client_now(c) : 0;
    bool wanted = s->wanted > 0;
    s->doubt = broken && s->holds > 0 && c->be->beat;
    if (broken && !s->doubt) s->dead = true;
    if (!s->doubt) answered(c, s, s->idle_since_ns);
    else if (!s->asked_ns) s->asked_ns = s->beat_ns = s->idle_since_ns;
    if (s->holds > 0 && !s->dead) {
        c->lease_planned = true;
        keeper_want_locked(c, s->beat_ns);
    }
    if (s->dead) session_died_locked(c, s, "");
    if (wanted) pthread_cond_broadcast(&c->session_free); /* one signal might meet somebody else */
    else pthread_cond_signal(&c->session_free);
    pthread_mutex_unlock(&c->mutex);
}

/* What the other end said before it hung up is read by asking. */
static void hung_up_locked(pawl_client *c, struct session *s) {
    pawl_error error = PAWL_ERROR_INIT;
    if (c->be->beat && !s->busy && !s->dead) c->be->beat(s->bk, &error);
    session_died_locked(c, s, error.text);
}

void session_hang_ups_locked(pawl_client *c) {
    struct epoll_event events[16];
    for (int n; c->hang_up_fd >= 0 && (n = epoll_wait(c->hang_up_fd, events, 16, 0)) > 0;)
        for (int i = 0; i < n; i++) { /* it is there: whoever drops it ends the watch first */
            bool again = false;
            for (int k = 0; k < i; k++) again = again || events[k].data.ptr == events[i].data.ptr;
            if (!again) hung_up_locked(c, events[i].data.ptr);
        }
}

/* Asks, or looks for the answer. */
static void beat_locked(pawl_client *c, struct session *s, int64_t now) {
    pawl_error error = PAWL_ERROR_INIT;
    int64_t third_ms = c->options.ttl_ms / 3;
    enum bk_says says = c->be->beat(s->bk, &error);
    if (says == BK_YES) {
        answered(c, s, now);
    } else if (says == BK_NO && (!s->asked_ns || now < clock_after_ms(s->asked_ns, third_ms))) {
        if (!s->asked_ns) s->asked_ns = now;
        s->beat_ns = clock_after_ms(now, third_ms / 16 + 1);
    } else {
        session_died_locked(c, s, error.text);
    }
}

int64_t session_beats_locked(pawl_client *c) {
    int64_t now = client_now(c), next = LIFE_ENDLESS;
    for (struct session *s = c->be->beat ? c->sessions : NULL, *after; s; s = after) {
        after = s->next;
        if (s->busy || s->dead || s->holds == 0) continue;
        if (now >= s->beat_ns) beat_locked(c, s, now);
        if (!s->dead && s->beat_ns < next) next = s->beat_ns;
    }
    return next;
}

void session_died_locked(pawl_client *c, struct session *s, const char *why) {
    char text[600];
    snprintf(text, sizeof text, "the connection that held the lock ended%s%s", *why ? ": " : "", why);
    s->dead = true;
    for (pawl_lock *l = s->holds > 0 ? c->locks : NULL, *next; l; l = next) {
        next = l->next;
        if (l->session == s && l->state == LOCK_HELD) lock_lose_locked(l, PAWL_LOST_SESSION, text);
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
