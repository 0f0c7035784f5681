/* lease.c: renewing, many in one question. The decisions are life.c's; here they meet the service. */
#include "lease.h"
#include "client.h"
#include "clock.h"
#include <stdlib.h>

#define BATCH_MAX 256

static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

/* --- own and shared --- */

static void init(struct lease *lease, pawl_client *c, int64_t ttl_ms, pawl_lock *own) {
    *lease = (struct lease){.client = c, .own = own, .bk = {.ttl_ms = ttl_ms, .grant = own ? &own->grant : NULL}};
    life_init(&lease->life, ttl_ms, c->options.margin_ms);
}

static void forget_shared_locked(pawl_client *c, struct lease *lease) {
    for (struct lease **at = &c->shared_leases; *at; at = &(*at)->next)
        if (*at == lease) {
            *at = lease->next;
            c->n_shared_leases--;
            return;
        }
}

static void unuse_locked(struct lease *lease) {
    if (--lease->users > 0 || lease->state != LEASE_ENDED) return;
    lease->client->be->free_life(&lease->bk);
    free(lease);
}

bool lease_attach_locked(pawl_lock *l) {
    pawl_client *c = l->client;
    struct lease *lease = &l->own_lease, *before = l->lease;
    if (c->be->caps.life != BK_LIFE_TTL) {
        if (before) heap_remove(&c->leases, &before->timer);
        init(lease, c, l->claim.ttl_ms, l);
    } else {
        for (lease = c->shared_leases; lease && lease->bk.ttl_ms != l->claim.ttl_ms;) lease = lease->next;
        if (!lease) {
            if (!heap_reserve(&c->leases, c->n_locks + ++c->n_shared_leases) || !(lease = malloc(sizeof *lease)))
                return false;
            init(lease, c, l->claim.ttl_ms, NULL);
            lease->next = c->shared_leases;
            c->shared_leases = lease;
        }
        lease->users++;
    }
    l->lease = lease;
    l->claim.life = c->be->caps.life == BK_LIFE_NONE ? NULL : &lease->bk;
    if (before && !before->own) unuse_locked(before);
    return true;
}

void lease_detach_locked(pawl_lock *l) {
    struct lease *lease = l->lease;
    l->lease = NULL;
    l->claim.life = NULL;
    if (!lease) return;
    if (lease->own) heap_remove(&l->client->leases, &lease->timer);
    else unuse_locked(lease); /* with nobody left it is ended when its renewal is due: the next lock may come sooner */
}

static void wake_pending_locked(pawl_client *c, const struct lease *lease) {
    for (pawl_lock *l = c->locks; l; l = l->next)
        if (l->lease == lease && l->state == LOCK_PENDING) lock_wake_locked(l);
}

void lease_plan_locked(struct lease *lease) {
    pawl_client *c = lease->client;
    lease->state = LEASE_ALIVE;
    if (lease->life.next_ns == INT64_MAX) return;
    heap_set(&c->leases, &lease->timer, lease->life.next_ns);
    c->lease_planned = true;
    keeper_want_locked(c, lease->life.next_ns);
    event_deadline_locked(c, atomic_load(&lease->life.safe_until_ns));
}

/* --- losing --- */

static void lose_locked(struct lease *lease, int reason, const char *why) {
    pawl_client *c = lease->client;
    heap_remove(&c->leases, &lease->timer);
    life_end(&lease->life);
    lease->state = LEASE_ENDED;
    if (lease->own) {
        lock_lose_locked(lease->own, reason, why);
        return;
    }
    lease->users++; /* so that it is freed here if nobody uses it */
    forget_shared_locked(c, lease);
    for (pawl_lock *l = c->locks, *next; l; l = next) {
        next = l->next;
        if (l->lease != lease) continue;
        if (l->state == LOCK_PENDING) lock_wake_locked(l);
        else lock_lose_locked(l, reason, why);
    }
    unuse_locked(lease);
}

/* Its deadline passed, but nobody holds what hangs on it: so there is no deadline to keep, and the service's word
 * decides. Whoever waits asks for it first, and if it lives he stands where he stood. It is asked for by a renewal,
 * which never makes it again: an answer that is under way still may say that a lock was granted, as the lease was then.
 */
static bool unsure_locked(struct lease *lease) {
    pawl_client *c = lease->client;
    bool waits = false;
    for (const pawl_lock *l = c->locks; l; l = l->next) {
        if (l->lease != lease) continue;
        if (l->granted) return false;
        waits = waits || l->state == LOCK_PENDING;
    }
    if (lease->own || !waits) return false;
    heap_remove(&c->leases, &lease->timer);
    life_end(&lease->life);
    lease->state = LEASE_UNSURE;
    wake_pending_locked(c, lease);
    event_deadlines_moved_locked(c);
    return true;
}

void lease_held_locked(pawl_lock *l) {
    struct lease *lease = l->lease;
    if (lease->own) lease_plan_locked(lease);
    else if (lease->state == LEASE_ENDED)
        lock_lose_locked(l, PAWL_LOST_UNPROVEN, "its lease ended while it was granted");
    else if (lease->state != LEASE_ALIVE) /* nor is it asked for: what hangs on it would live on with it */
        lose_locked(lease, PAWL_LOST_UNPROVEN, "its lease passed its deadline while it was granted");
}

void lease_gone(pawl_lock *l) {
    pawl_client *c = l->client;
    pthread_mutex_lock(&c->mutex);
    if (l->lease->state == LEASE_ALIVE)
        lose_locked(l->lease, PAWL_LOST_GONE, "the service says that the lease is gone");
    pthread_mutex_unlock(&c->mutex);
}

/* --- beginning --- */

/* Asks the service for it: to make it, or, if it was there, only whether it still is. */
static enum bk_says ask_for(struct lease *lease, enum lease_state was, struct bk_session *session,
                            struct bk_until until, int64_t *ret_left_ms, pawl_error *error) {
    const struct backend *be = lease->client->be;
    struct bk_life *const one[] = {&lease->bk};
    enum bk_says each = BK_UNKNOWN;
    *error = (pawl_error)PAWL_ERROR_INIT; /* a remark is to be told from old words */
    if (was == LEASE_NEW) return be->begin_life(session, &lease->bk, until, ret_left_ms, error);
    enum bk_says says = be->renew(session, one, 1, until, &each, ret_left_ms, error);
    return says == BK_YES ? each : says;
}

int lease_begin(pawl_lock *l, struct bk_session *session, struct bk_until until, enum bk_says *ret_says,
                pawl_error *error) {
    pawl_client *c = l->client;
    struct lease *lease = l->lease;
    if (c->be->caps.life != BK_LIFE_TTL) return PAWL_OK;
    pthread_mutex_lock(&c->mutex);
    enum lease_state was = lease->state;
    bool asks = was == LEASE_NEW || was == LEASE_UNSURE;
    if (asks) lease->state = LEASE_ASKED;
    pthread_mutex_unlock(&c->mutex);
    if (!asks) return was == LEASE_ASKED ? PAWL_EBUSY : PAWL_OK;
    int64_t sent_ns = client_now(c), left_ms;
    *ret_says = ask_for(lease, was, session, until, &left_ms, error);
    bool remark = *ret_says == BK_YES && error->text[0];
    pthread_mutex_lock(&c->mutex);
    if (lease->state != LEASE_ASKED) { /* it ended meanwhile */
    } else if (*ret_says == BK_YES) {
        /* A service may give more than was asked for, its least: then it is renewed less often. */
        if (left_ms > lease->bk.ttl_ms) lease->life.ttl_ns = left_ms * NS_PER_MS;
        life_confirm(&lease->life, sent_ns, left_ms);
        lease_plan_locked(lease);
    } else if (*ret_says == BK_NO) {
        lose_locked(lease, PAWL_LOST_GONE, "the service says that the lease is gone");
    } else {
        lease->state = was;
    }
    wake_pending_locked(c, lease);
    pthread_mutex_unlock(&c->mutex);
    if (remark) observe(l, PAWL_REMARK, PAWL_OK, error->text);
    return *ret_says == BK_YES ? PAWL_OK : *ret_says == BK_NO ? PAWL_EBUSY : PAWL_EUNREACHABLE;
}

/* --- renewing --- */

struct batch {
    struct lease *leases[BATCH_MAX];
    struct bk_life *lives[BATCH_MAX];
    enum bk_says says[BATCH_MAX];
    int64_t left_ms[BATCH_MAX], sent_ns;
    int n;
};

static struct lease *first_of(const struct heap *heap) {
    struct heap_node *node = heap_first(heap);
    return node ? container_of(node, struct lease, timer) : NULL;
}

static void use_locked(struct lease *lease) {
    if (lease->own) lease->own->refs++;
    else lease->users++;
}

static void done_locked(struct lease *lease) {
    if (lease->own) lock_unref_locked(lease->own);
    else unuse_locked(lease);
}

/* Nobody hangs on it any more: give it back. A refusal or silence changes nothing: it ends by itself. */
static void end_idle_locked(pawl_client *c, struct lease *lease) {
    struct session *s;
    heap_remove(&c->leases, &lease->timer);
    lease->state = LEASE_ENDED;
    forget_shared_locked(c, lease);
    lease->users++;
    struct bk_until until = {.at_ns = clock_after_ms(client_now(c), keeper_question_ms_locked(c)), .cancel_fd = -1};
    pthread_mutex_unlock(&c->mutex);
    if (session_borrow(c, SESSION_ANY, until, &s, NULL) == PAWL_OK)
        session_return(c, s, c->be->end_life(s->bk, &lease->bk, until, NULL) != BK_YES);
    pthread_mutex_lock(&c->mutex);
    unuse_locked(lease);
}

static void tell_locked(struct lease *lease, int type, int code, const char *text) {
    pawl_client *c = lease->client;
    if (lease->own) {
        observe(lease->own, type, code, text);
        if (type == PAWL_RENEWED) event_lost_fd_locked(lease->own);
        return;
    }
    for (pawl_lock *l = c->locks; l; l = l->next) {
        if (l->lease != lease || l->state != LOCK_HELD) continue;
        observe(l, type, code, text);
        if (type != PAWL_RENEWED) continue;
        event_lost_fd_locked(l);
        hub_watch_locked(l); /* only now: a lock that is held for a moment shall not cost a watch */
    }
}

/* Collects what is due, and what is due so soon that it may as well go with it. */
static void collect_locked(pawl_client *c, struct batch *b) {
    int most = c->be->caps.renew_batch < BATCH_MAX ? c->be->caps.renew_batch : BATCH_MAX, lost = 0;
    b->n = 0;
    for (struct lease *lease; b->n < most && (lease = first_of(&c->leases));) {
        int64_t now = client_now(c), soon = b->n > 0 ? lease->life.ttl_ns / 8 : 0;
        if (lease->timer.at_ns > now + soon) break;
        if (life_due(&lease->life, now) == LIFE_LOSE) {
            if (unsure_locked(lease)) continue;
            lose_locked(lease, PAWL_LOST_UNPROVEN, "no renewal was confirmed before the deadline");
            if (++lost % LOSSES_AT_ONCE) continue;
            pthread_mutex_unlock(&c->mutex); /* many are lost at once: others want the mutex too */
            pthread_mutex_lock(&c->mutex);
        } else if (!lease->own && lease->users == 0) {
            if (b->n > 0) break; /* those who need it come first */
            end_idle_locked(c, lease);
        } else {
            int64_t late_ns = now - lease->timer.at_ns;
            if (late_ns > lease->life.ttl_ns / 3)
                tell_locked(lease, PAWL_LATE, PAWL_OK,
                            "the renewal begins late: this process gets too little processor time");
            heap_remove(&c->leases, &lease->timer);
            use_locked(lease);
            b->lives[b->n] = &lease->bk;
            b->leases[b->n++] = lease;
        }
    }
}

static void ask(pawl_client *c, struct batch *b, int64_t earliest_ns, pawl_error *error) {
    struct session *s;
    int64_t now = client_now(c), ttl_ms = b->leases[0]->bk.ttl_ms;
    /* A part of the time left for trying, so that a silent server leaves time for another connection; and never beyond
     * the earliest deadline of any life. */
    int64_t most_ms = later(earlier(ttl_ms / 6, QUESTION_MS), 20);
    struct bk_until until = {.at_ns = earlier(earliest_ns, clock_after_ms(now, most_ms)), .cancel_fd = -1};
    for (int i = 0; i < b->n; i++) b->says[i] = BK_UNKNOWN;
    b->sent_ns = now;
    if (session_borrow(c, SESSION_ANY, until, &s, error)) return;
    b->sent_ns = client_now(c);
    enum bk_says says = c->be->renew(s->bk, b->lives, b->n, until, b->says, b->left_ms, error);
    session_return(c, s, says == BK_UNKNOWN || (says == BK_FAULT && error->code == PAWL_EUNREACHABLE));
    if (says != BK_YES)
        for (int i = 0; i < b->n; i++) b->says[i] = BK_UNKNOWN;
}

static void apply_locked(pawl_client *c, struct lease *lease, enum bk_says says, int64_t sent_ns, int64_t left_ms,
                         const pawl_error *error) {
    bool wanted = lease->state == LEASE_ALIVE && (!lease->own || lease->own->state == LOCK_HELD);
    if (lease->own) lease->own->last_sent_ns = later(lease->own->last_sent_ns, sent_ns);
    if (wanted && says == BK_NO) {
        lose_locked(lease, PAWL_LOST_GONE, "the service says that it is not ours any more");
    } else if (wanted && life_due(&lease->life, client_now(c)) == LIFE_LOSE) {
        if (!unsure_locked(lease))
            lose_locked(lease, PAWL_LOST_UNPROVEN, /* whoever asked meanwhile was told so */
                        says == BK_YES ? "a renewal was confirmed only behind the deadline"
                                       : "no renewal was confirmed before the deadline");
    } else if (wanted && says == BK_YES) {
        if (life_confirm(&lease->life, sent_ns, left_ms)) tell_locked(lease, PAWL_DOUBT_OVER, PAWL_OK, NULL);
        tell_locked(lease, PAWL_RENEWED, PAWL_OK, NULL);
        heap_set(&c->leases, &lease->timer, lease->life.next_ns);
    } else if (wanted) {
        if (life_doubt(&lease->life, client_now(c))) tell_locked(lease, PAWL_DOUBT, PAWL_EUNREACHABLE, error->text);
        heap_set(&c->leases, &lease->timer, lease->life.next_ns);
    }
    done_locked(lease);
}

void lease_renew_due_locked(pawl_client *c) {
    struct batch b;
    bool asked = false;
    for (collect_locked(c, &b); b.n > 0; collect_locked(c, &b)) {
        pawl_error error = PAWL_ERROR_INIT;
        int64_t earliest_ns = event_earliest_locked(c);
        pthread_mutex_unlock(&c->mutex);
        ask(c, &b, earliest_ns, &error);
        pthread_mutex_lock(&c->mutex);
        for (int i = 0; i < b.n; i++) apply_locked(c, b.leases[i], b.says[i], b.sent_ns, b.left_ms[i], &error);
        asked = true;
    }
    if (asked) event_deadlines_moved_locked(c);
}

void lease_close(pawl_client *c, int64_t until_ns, bool forked) {
    struct bk_until until = {.at_ns = until_ns, .cancel_fd = -1};
    struct session *s;
    for (struct lease *lease = c->shared_leases, *next; lease; lease = next) {
        next = lease->next;
        /* also one that was asked for, and nobody heard the answer */
        if (!forked && lease->bk.of && client_now(c) < until_ns &&
            session_borrow(c, SESSION_ANY, until, &s, NULL) == PAWL_OK)
            session_return(c, s, c->be->end_life(s->bk, &lease->bk, until, NULL) != BK_YES);
        c->be->free_life(&lease->bk);
        free(lease);
    }
    c->shared_leases = NULL;
}
