/* lock.c: one lock from its first question to its end. The same steps are taken by a calling thread (blocking form) and
 * by the keeper (event form): a step asks at most one question and says when to come back.
 *
 * An attempt is one owner value from its first send to grant, refusal or finished undo. A question that ended unknown
 * is repeated with the same owner value, which tells whether it had happened; what cannot be told is undone. */
#include "lock.h"
#include "clock.h"
#include "random.h"
#include "sized.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define BACKOFF_FIRST_MS 50
#define BACKOFF_LAST_MS 2000
#define TRIES_WITHOUT_CONTACT 2
#define SILENT_MS 1000 /* who has not answered for so long is silent; until then the answer before counts */
#define UNDO_TRIES 3
#define NO_ROOM_MS 1000
#define PATIENT_MS 2000
#define LATE_GRANTS 3 /* so many grants with nothing usable left: the ttl is too short for this service */
#define ANSWER_GRACE_MS 50

static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

/* --- making and freeing --- */

static int check_arguments(pawl_client *c, const char *name, const pawl_acquire_options *o, pawl_error *error) {
    const struct bk_caps *caps = &c->be->caps;
    int code = client_check_name(name, error);
    if (code) return code;
    if (o->wait_ms < 0 || o->max_hold_ms < 0)
        return error_set(error, PAWL_EINVALID, NULL, "a time to wait or to hold cannot be negative");
    if (o->cancel_fd >= 0 && fcntl(o->cancel_fd, F_GETFD) < 0)
        return error_set(error, PAWL_EINVALID, NULL, "the cancel descriptor %d is not open", o->cancel_fd);
    if (o->shared && !caps->shared)
        return error_set(error, PAWL_EUNSUPPORTED, NULL, "%s: has no shared mode; file: and postgresql: have one",
                         caps->scheme);
    return client_check_ttl(c, o->ttl_ms, error);
}

int lock_new(pawl_client *c, const char *name, const pawl_acquire_options *given, void *user, pawl_lock **ret,
             pawl_error *error) {
    pawl_acquire_options o = PAWL_ACQUIRE_INIT;
    int code = sized_take(&o, given, "acquire options", error);
    if (code == PAWL_OK) code = check_arguments(c, name, &o, error);
    if (code) return code;
    size_t length = strlen(name);
    pawl_lock *l = malloc(sizeof *l + length + 1); /* calloc would not take the one freed last */
    if (l) memset(l, 0, sizeof *l);
    if (l && o.label && !(l->about = malloc(ABOUT_SIZE))) {
        free(l);
        l = NULL;
    }
    if (!l) return error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
    if (l->about) about_self(o.label, c->options.pid, l->about);
    memcpy(l->name, name, length + 1);
    l->client = c;
    l->refs = 1;
    l->user = user;
    l->is_try = o.wait_ms == 0;
    l->max_hold_ms = o.max_hold_ms;
    l->cancel_fd = o.cancel_fd;
    l->max_until_ns = INT64_MAX;
    l->wake_fd = l->backend_fd = l->lost_fd = -1;
    int64_t ttl_ms = o.ttl_ms > 0 ? o.ttl_ms : c->options.ttl_ms;
    l->claim = (struct bk_claim){.name = l->name,
                                 .name_len = length,
                                 .shared = o.shared != 0,
                                 .ttl_ms = ttl_ms,
                                 .about = l->about ? l->about : c->about};
    l->began_ns = l->ask_at_ns = l->last_sent_ns = client_now(c);
    l->give_up_ns = clock_after_ms(l->began_ns, l->is_try ? QUESTION_MS : o.wait_ms);
    random_bytes(l->claim.owner, sizeof l->claim.owner);
    *ret = l;
    return PAWL_OK;
}

int lock_enter_locked(pawl_lock *l, pawl_error *error) {
    pawl_client *c = l->client;
    /* Room is made now, so that nothing later on can fail for want of memory. */
    if (!heap_reserve(&c->leases, c->n_locks + c->n_shared_leases) || !heap_reserve(&c->work, c->n_locks) ||
        (c->be->caps.hub && !map_reserve(&c->waiters)))
        return error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
    int code = names_enter_locked(l);
    if (code == PAWL_EBUSY) return lock_busy(l, true, error);
    if (code) return error_set(error, code, NULL, "out of memory");
    names_give_place_locked(l);
    if (c->be->caps.hub && !l->is_try) hub_enter_locked(l);
    if ((l->next = c->locks)) l->next->previous = l;
    c->locks = l;
    c->n_locks++;
    l->linked = true;
    return lease_attach_locked(l) ? PAWL_OK : error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
}

void lock_leave_locked(pawl_lock *l) {
    names_leave_locked(l);
    hub_leave_locked(l);
    heap_remove(&l->client->work, &l->timer);
}

void lock_free(pawl_lock *l, bool forked) {
    observe_end(l);
    if (l->granted || l->given_back) l->client->be->end(&l->grant, forked);
    int fds[] = {l->wake_fd, l->lost_fd};
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0) close(fds[i]);
    free(l->holder);
    free(l->end_text);
    free(l->about);
    free(l);
}

static void lock_let_go_locked(pawl_lock *l) {
    struct session *s = l->session;
    l->session = NULL;
    if (s) session_let_go_locked(l->client, s);
}

void lock_unref_locked(pawl_lock *l) {
    pawl_client *c = l->client;
    if (--l->refs > 0) return;
    lock_leave_locked(l);
    names_take_place_locked(l);
    lease_detach_locked(l);
    event_forget_locked(l);
    lock_let_go_locked(l);
    if (l->linked) {
        if (l->previous) l->previous->next = l->next;
        else c->locks = l->next;
        if (l->next) l->next->previous = l->previous;
        c->n_locks--;
    }
    lock_free(l, false);
}

/* --- waking and losing --- */

void lock_wake_locked(pawl_lock *l) {
    atomic_store(&l->woken, true);
    if (l->wake_fd >= 0 && hub_must_tell_locked(l)) eventfd_write(l->wake_fd, 1);
    if (l->event_form && l->state == LOCK_PENDING && !l->in_keeper) keeper_work_locked(l, client_now(l->client));
}

void lock_end_text(pawl_lock *l, int code, const char *text) {
    l->end_code = code;
    free(l->end_text);
    l->end_text = text && *text ? strdup(text) : NULL;
}

void lock_lose_locked(pawl_lock *l, int reason, const char *text) {
    if (l->state != LOCK_HELD) return;
    atomic_store_explicit(&l->max_until_ns, INT64_MIN, memory_order_release);
    if (l->lease->own) heap_remove(&l->client->leases, &l->lease->timer);
    l->state = LOCK_LOST;
    l->lost_reason = (unsigned char)reason;
    lock_end_text(l, PAWL_ELOST, text);
    lock_leave_locked(l);
    observe(l, PAWL_LOST, PAWL_ELOST, text); /* first: who is woken by the loss may want to say why */
    event_loss_locked(l);
}

void lock_held_locked(pawl_lock *l) {
    pawl_client *c = l->client;
    l->state = LOCK_HELD;
    hub_leave_locked(l);
    heap_remove(&c->work, &l->timer);
    lease_held_locked(l);
    event_lost_fd_locked(l);
    if (l->state == LOCK_LOST) return;
    if (l->session && l->session->dead) {
        lock_lose_locked(l, PAWL_LOST_SESSION, "the connection that held the lock ended");
        return;
    }
    if (l->max_until_ns < INT64_MAX) keeper_work_locked(l, l->max_until_ns);
    event_deadline_locked(c, lock_safe_until(l));
}

int64_t lock_safe_until(const pawl_lock *l) {
    if (!atomic_load_explicit(&l->granted, memory_order_acquire)) return INT64_MIN;
    int64_t until = atomic_load_explicit(&l->lease->life.safe_until_ns, memory_order_acquire);
    int64_t most = atomic_load_explicit(&l->max_until_ns, memory_order_acquire);
    return until < most ? until : most;
}

/* --- the attempt --- */

int lock_busy(pawl_lock *l, bool here, pawl_error *error) {
    char holder[400], waited[64] = "";
    int64_t ms = (client_now(l->client) - l->began_ns) / NS_PER_MS;
    if (!l->is_try)
        snprintf(waited, sizeof waited, " (waited %lld.%03lld s)", (long long)(ms / 1000), (long long)(ms % 1000));
    if (here) snprintf(holder, sizeof holder, "this very process");
    else about_describe(l->holder ? l->holder : "", holder, sizeof holder);
    return error_set(error, l->is_try ? PAWL_EBUSY : PAWL_ETIMEOUT, NULL, "busy, held by %s%s", holder, waited);
}

/* The question could not be asked, or nobody knows what became of it. */
static int trouble(pawl_lock *l, bool fresh, bool unknown, pawl_error *error) {
    pawl_client *c = l->client;
    int64_t now = client_now(c);
    int code = error->code ? error->code : PAWL_EUNREACHABLE;
    bool answered = l->contact && !l->unanswered && now - l->last_sent_ns < SILENT_MS * NS_PER_MS;
    l->unanswered = true;
    if (code != PAWL_EUNREACHABLE) return code;
    if (now >= l->give_up_ns) return answered ? lock_busy(l, false, error) : code;
    if (!fresh) { /* a connection that had gone stale says nothing of the service */
        l->ask_at_ns = now;
        return STEP_WAIT;
    }
    l->fruitless++;
    /* Who waits for a time waits for the service, too; who waits for ever, only for one that was there. */
    if (!l->contact && (l->is_try || l->give_up_ns == INT64_MAX) &&
        (!unknown || l->fruitless >= TRIES_WITHOUT_CONTACT || now - l->began_ns >= QUESTION_MS * NS_PER_MS))
        return code;
    l->backoff_ms = l->backoff_ms ? earlier(2 * l->backoff_ms, BACKOFF_LAST_MS) : BACKOFF_FIRST_MS;
    /* The last question is asked when time is up: without an answer there is no other word than its trouble. */
    l->ask_at_ns = earlier(clock_after_ms(now, random_between(l->backoff_ms / 2, l->backoff_ms)), l->give_up_ns);
    observe(l, PAWL_DOUBT, code, error->text);
    return STEP_WAIT;
}

/* It is busy: have us told. Once the hub is open, all who wait ask again, and queue. */
static void want_hub(pawl_client *c) {
    pthread_mutex_lock(&c->mutex);
    if (!c->hub_ready) {
        c->hub_wanted = true;
        keeper_want_locked(c, c->hub_retry_ns);
    }
    pthread_mutex_unlock(&c->mutex);
}

static int busy(pawl_lock *l, const struct bk_busy *b, pawl_error *error) {
    pawl_client *c = l->client;
    int64_t now = client_now(c);
    bool first = !l->contact;
    if (l->fruitless) observe(l, PAWL_DOUBT_OVER, PAWL_OK, NULL);
    l->contact = true;
    l->unanswered = false;
    l->fruitless = 0;
    l->backoff_ms = 0;
    l->dirty = l->dirty || b->queued || l->claim.of || l->claim.pin;
    if (!l->holder || (strcmp(l->holder, b->holder) != 0 && (*b->holder || !b->queued))) {
        free(l->holder);
        l->holder = strdup(b->holder);
    }
    l->backend_fd = b->wake_fd;
    if (l->is_try || now >= l->give_up_ns) return lock_busy(l, false, error);
    if (c->be->caps.hub && !b->queued) want_hub(c);
    if (!l->waiting_told && !b->later) {
        l->waiting_told = true;
        observe(l, PAWL_WAITING, PAWL_EBUSY, l->holder);
    }
    int64_t ask_ms = later(b->ask_again_ms, 1);
    if (first && c->be->caps.session_bound) ask_ms = 0;
    l->ask_at_ns = clock_after_ms(now, ask_ms + random_between(0, ask_ms / 8));
    return STEP_WAIT;
}

/* Gives up what this owner value has or may have, and makes the lock a new attempt with another one. */
static int begin_anew(pawl_lock *l, pawl_error *error) {
    pawl_client *c = l->client;
    int64_t now = client_now(c), most_ms = l->event_form ? KEEPER_QUESTION_MS : QUESTION_MS;
    struct bk_until until = {.at_ns = clock_after_ms(now, earlier(l->claim.ttl_ms, most_ms)), .cancel_fd = -1};
    enum bk_says says = l->dirty ? lock_undo(l, until, error) : BK_NO;
    if (says > BK_NO) {                               /* it is tried again, if it goes on waiting */
        if (l->granted) c->be->end(&l->grant, false); /* and undone as what may be there */
        l->granted = false;
        return trouble(l, true, says == BK_UNKNOWN, error);
    }
    if (l->given_back) c->be->end(&l->grant, false); /* nobody has begun to renew it */
    l->given_back = false;
    pthread_mutex_lock(&c->mutex);
    bool waits = l->in_waiters;
    hub_leave_locked(l);
    names_take_place_locked(l); /* and takes no other: what was sent with the old owner value may still come */
    random_bytes(l->claim.owner, sizeof l->claim.owner);
    if (waits) hub_enter_locked(l);
    bool attached = lease_attach_locked(l); /* to another one */
    pthread_mutex_unlock(&c->mutex);
    l->dirty = false;
    if (!attached) return error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
    l->in_flight_until_ns = 0;
    l->ask_at_ns = now;
    return STEP_WAIT;
}

/* Grants came, but nothing usable was left of them. Nobody is in the way: the service is too slow for this ttl. That is
 * told also if what was tried after that had no answer at all. */
static int too_late(const pawl_lock *l, pawl_error *error) {
    return error_set(error, PAWL_EUNREACHABLE, NULL,
                     "granted too late: the answer took %lld ms of a ttl of %lld ms, of which %lld ms are kept as a "
                     "margin; use a larger ttl",
                     (long long)l->late_ms, (long long)l->claim.ttl_ms,
                     (long long)(l->lease->life.margin_ns / NS_PER_MS));
}

static int granted(pawl_lock *l, pawl_error *error) {
    /* A shared lease keeps its present deadline: the reply to this claim says nothing of it. */
    if (l->lease->own) life_confirm(&l->lease->life, l->last_sent_ns, l->grant.left_ms);
    int64_t now = client_now(l->client);
    if (life_due(&l->lease->life, now) == LIFE_LOSE) {
        l->late_ms = (now - l->last_sent_ns) / NS_PER_MS;
        bool again = ++l->late_grants < LATE_GRANTS && !l->is_try && now < l->give_up_ns;
        return again ? begin_anew(l, error) : too_late(l, error);
    }
    if (l->max_hold_ms > 0) l->max_until_ns = clock_after_ms(now, l->max_hold_ms);
    observe(l, PAWL_GRANTED, PAWL_OK, NULL);
    return PAWL_OK;
}

static bool wants_queue_locked(pawl_lock *l) {
    pawl_client *c = l->client;
    if (l->is_try) return false;
    /* A wait may need a connection of its own: so it is tried first, in any. */
    if (c->be->caps.session_bound) return l->contact;
    return !c->be->caps.hub || c->hub_ready;
}

/* A session to ask with: the one where the grant lives or the claim waits already, or any. */
static int borrow(pawl_lock *l, bool queue, struct bk_until until, struct session **ret, pawl_error *error) {
    pawl_client *c = l->client;
    if (l->keeps_session) {
        *ret = l->session;
        return PAWL_OK;
    }
    if (l->session) {
        *ret = l->session;
        return session_borrow_this(c, l->session, until, error);
    }
    return session_borrow(c, queue && c->be->caps.session_bound ? SESSION_EMPTY : SESSION_ANY, until, ret, error);
}

/* Gives the session back, unless the claim waits in it; a session-bound grant stays on it. */
static void give_back(pawl_lock *l, struct session *s, bool waits, bool holds, bool broken) {
    pawl_client *c = l->client;
    l->keeps_session = waits;
    l->session = waits || holds ? s : NULL;
    if (waits) {
        pthread_mutex_lock(&c->mutex);
        session_waits_locked(c, s);
        pthread_mutex_unlock(&c->mutex);
        return;
    }
    if (broken) {
        l->claim.pin = NULL;
        l->backend_fd = -1;
    }
    if (holds) {
        pthread_mutex_lock(&c->mutex);
        s->holds++;
        pthread_mutex_unlock(&c->mutex);
    }
    session_return(c, s, broken);
}

static int ask(pawl_lock *l, int64_t now, int64_t question_ms, int cancel_fd, pawl_error *error) {
    pawl_client *c = l->client;
    struct bk_until until = {
        .at_ns = earlier(clock_after_ms(now, question_ms), later(l->give_up_ns, clock_after_ms(now, ANSWER_GRACE_MS))),
        .cancel_fd = cancel_fd};
    pawl_error own = PAWL_ERROR_INIT;
    struct bk_busy b = {.wake_fd = -1};
    struct session *s;
    pthread_mutex_lock(&c->mutex);
    bool queue = wants_queue_locked(l), lease_ended = l->lease->state == LEASE_ENDED;
    pthread_mutex_unlock(&c->mutex);
    if (lease_ended) return begin_anew(l, error);
    int code = borrow(l, queue, until, &s, &own);
    bool no_room = code == PAWL_EUNREACHABLE && queue && c->be->caps.session_bound;
    if (no_room)
        code = borrow(l, queue = false, until, &s, &own); /* no connection to wait in: from time to time, then */
    if (code) {
        code = trouble(l, true, false, &own);
        if (code != STEP_WAIT) error_copy(error, &own);
        return code;
    }
    bool fresh = s->fresh;
    enum bk_says says = BK_FAULT;
    code = lease_begin(l, s->bk, until, &says, &own);
    if (code == PAWL_EBUSY) {
        session_return(c, s, false);
        if (now >= l->give_up_ns)
            return error_set(error, PAWL_EUNREACHABLE, NULL, "waited in vain for an answer about the lease");
        l->ask_at_ns = earlier(clock_after_ms(now, question_ms), l->give_up_ns);
        return STEP_WAIT;
    }
    l->last_sent_ns = client_now(c);
    l->claim.patient = !l->is_try && !l->contact && clock_after_ms(now, PATIENT_MS) < l->give_up_ns;
    if (code == PAWL_OK) says = c->be->take(s->bk, &l->claim, queue, until, &l->grant, &b, &own);
    bool broken = says == BK_UNKNOWN || (says == BK_FAULT && own.code == PAWL_EUNREACHABLE);
    if (says == BK_UNKNOWN && code == PAWL_OK) { /* or it was the lease that nobody heard of: nothing hangs on that */
        l->dirty = l->unsure = true;
        l->in_flight_until_ns = clock_after_ms(client_now(c), l->claim.ttl_ms);
    }
    if (says == BK_YES) {
        l->granted = l->dirty = true;
        l->grant.claim = &l->claim;
    }
    give_back(l, s, says == BK_NO && l->claim.pin, says == BK_YES && c->be->caps.session_bound, broken);
    if (says <= BK_NO && own.code == PAWL_OK && *own.text) observe(l, PAWL_REMARK, PAWL_OK, own.text);
    if (says == BK_YES) code = granted(l, &own);
    if (says == BK_NO && no_room) b.ask_again_ms = NO_ROOM_MS;
    if (says == BK_NO) code = busy(l, &b, &own);
    if (says == BK_FAULT && own.code == PAWL_ELOST &&
        !l->lease->own) { /* what it would hang on: with another one, then */
        lease_gone(l);
        l->ask_at_ns = now;
        return STEP_WAIT;
    }
    if (broken || says == BK_FAULT) code = trouble(l, fresh, says == BK_UNKNOWN, &own);
    if (code > 0) error_copy(error, &own);
    return code;
}

int lock_step(pawl_lock *l, int64_t question_ms, int cancel_fd, pawl_error *error) {
    int64_t now = client_now(l->client);
    bool woken = atomic_exchange(&l->woken, false);
    if (!atomic_load(&l->admitted)) {
        l->ask_at_ns = now;
        return l->is_try || now >= l->give_up_ns ? lock_busy(l, true, error) : STEP_WAIT;
    }
    if (now >= l->give_up_ns && l->contact && !l->unanswered) return lock_busy(l, false, error);
    if (!woken && now < l->ask_at_ns) return STEP_WAIT;
    int code = ask(l, now, question_ms, cancel_fd, error);
    return code == PAWL_EUNREACHABLE && l->late_grants ? too_late(l, error) : code;
}

int64_t lock_next_step_ns(const pawl_lock *l) {
    return l->is_try || atomic_load(&l->admitted) ? earlier(l->ask_at_ns, l->give_up_ns) : l->give_up_ns;
}

/* --- release and undo --- */

enum bk_says lock_undo(pawl_lock *l, struct bk_until until, pawl_error *error) {
    pawl_client *c = l->client;
    pawl_error own = PAWL_ERROR_INIT;
    struct session *s;
    int code = borrow(l, false, until, &s, &own);
    enum bk_says says = BK_FAULT, each = BK_UNKNOWN;
    if (code == PAWL_ELOST) says = BK_NO; /* the session is gone, and all that was in it */
    if (code == PAWL_OK) {
        bool holds = l->granted && l->session;
        struct bk_grant *const one[] = {&l->grant};
        if (!l->granted) {
            says = c->be->forget(s->bk, &l->claim, until, &own);
        } else {
            says = c->be->release(s->bk, one, 1, until, &each, &own);
            if (says == BK_YES) says = each;
        }
        l->unsure = l->unsure || says == BK_UNKNOWN;
        l->keeps_session = false;
        if (!holds) l->session = NULL;
        session_return(c, s, says == BK_UNKNOWN || (says == BK_FAULT && own.code == PAWL_EUNREACHABLE));
    }
    if (says <= BK_NO && l->granted) {
        l->granted = false;
        l->given_back = true;
        if (l->session) {
            pthread_mutex_lock(&c->mutex);
            lock_let_go_locked(l);
            pthread_mutex_unlock(&c->mutex);
        }
    }
    if (says <= BK_NO && own.code == PAWL_OK && *own.text) observe(l, PAWL_REMARK, PAWL_OK, own.text);
    if (says > BK_NO) error_copy(error, &own);
    return says;
}

bool lock_end_step(pawl_lock *l, int64_t question_ms, pawl_error *error) {
    pawl_client *c = l->client;
    if (!l->granted && !l->dirty) return true;
    int64_t now = client_now(c);
    if (l->undo_tries++ == 0) l->undo_since_ns = now;
    enum bk_says says =
        lock_undo(l, (struct bk_until){.at_ns = clock_after_ms(now, question_ms), .cancel_fd = -1}, error);
    now = client_now(c);
    if (says <= BK_NO && now >= l->in_flight_until_ns) return true;
    /* What may still be there ends by itself one ttl after the last question that could have made or kept it; what
     * hangs on a shared lease ends with that, which may outlast its deadline here by a ttl. A place in a queue does
     * not, so it is left only after some tries, and a ttl of trying. */
    int64_t since = later(l->last_sent_ns, l->undo_since_ns);
    pthread_mutex_lock(&c->mutex);
    bool over = l->undo_tries >= UNDO_TRIES &&
                (l->lease->own ? now >= clock_after_ms(since, l->claim.ttl_ms) : l->lease->state == LEASE_ENDED);
    pthread_mutex_unlock(&c->mutex);
    if (over) return true;
    l->backoff_ms = l->backoff_ms ? earlier(2 * l->backoff_ms, BACKOFF_LAST_MS) : BACKOFF_FIRST_MS;
    l->ask_at_ns = clock_after_ms(now, random_between(l->backoff_ms / 2, l->backoff_ms));
    return false;
}
