/* postgresql.c: taking, waiting and giving back. See postgresql.h for the whole.
 *
 * A claim is first tried, in any session. Only when it is busy does it wait, in a session that holds nothing, by
 * statements that the server ends itself after 1, 2, 5, 5... seconds: a statement that waits for ever would hold a
 * snapshot for ever, and CREATE INDEX CONCURRENTLY would wait for it. */
#include "postgresql.h"
#include "clock.h"
#include "module.h"
#include "token.h"
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define POLL_LOW_MS 50 /* waiters beyond max_waiters ask from time to time */
#define POLL_HIGH_MS 1000
#define LATE_MS 10 /* an answer that took longer may be old */

struct waiting { /* claim->of */
    struct bk *bk;
    int slices;
    int64_t answer_ns; /* when the server must have answered at the latest */
};

static int slice_ms(const struct waiting *w) { return w->slices == 0 ? 1000 : w->slices == 1 ? 2000 : 5000; }

/* application_name has 63 bytes: if not all fields fit, those that do, what tells most about a holder first. */
static void introduce(struct bk *bk, int64_t ttl_ms, const char *about) {
    static const char *const fields[] = {"pid=", "label=", "host=", "command=", "user="};
    size_t n = (size_t)snprintf(bk->application, sizeof bk->application, "pawl ");
    bk->ttl_ms = ttl_ms;
    if (n + strlen(about) < sizeof bk->application) {
        strcpy(bk->application + n, about);
        return;
    }
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        for (const char *at = about; *at; at += strcspn(at, "&"), at += *at == '&') {
            size_t length = strcspn(at, "&"), room = sizeof bk->application - n;
            if (strncmp(at, fields[i], strlen(fields[i])) != 0 || length + 2 > room) continue;
            n += (size_t)snprintf(bk->application + n, room, "%s%.*s",
                                  i > 0 && bk->application[n - 1] != ' ' ? "&" : "", (int)length, at);
        }
}

/* --- the answer --- */

/* It was granted, and may have ended again while the answer lay here unread, as when this process stood still. */
static bool has_ended(struct bk_session *s) {
    struct pollfd p = {.fd = PQsocket(s->conn), .events = POLLIN | POLLRDHUP};
    while (poll(&p, 1, 0) > 0)
        if (!PQconsumeInput(s->conn)) return true;
    return PQisBusy(s->conn) || s->gone || PQstatus(s->conn) != CONNECTION_OK; /* the first one hears what came */
}

/* asked_ns: when; an answer that came at once is not looked behind. */
static enum bk_says grant(struct bk_session *s, const char *token, int64_t asked_ns, struct bk_grant *ret,
                          pawl_error *error) {
    uint64_t n = strtoull(token, NULL, 10);
    if (s->bk->tokens && (n == 0 || n > TOKEN_MAX)) {
        error_set(error, PAWL_EUNSAFE, s->node, "%s: the numbers of pawl.token are used up, or were tampered with (%s)",
                  s->node, token);
        return BK_UNKNOWN; /* the session goes, and the lock with it */
    }
    if (clock_now_ns() - asked_ns > LATE_MS * NS_PER_MS && has_ended(s)) {
        error_set(error, PAWL_EUNREACHABLE, s->node, "%s: granted, but the connection ended before the answer was read",
                  s->node);
        return BK_UNKNOWN;
    }
    *ret = (struct bk_grant){.claim = ret->claim, .token = n, .left_ms = -1, .pin = s};
    return BK_YES;
}

static void stop_waiting(struct bk_claim *claim) {
    struct waiting *w = claim->of;
    if (w) atomic_fetch_sub(&w->bk->waiting, 1);
    free(w);
    claim->of = NULL;
    claim->pin = NULL;
}

/* --- giving back --- */

static enum bk_says unlock(struct bk_session *s, const struct bk_claim *claim, struct bk_until until,
                           pawl_error *error) {
    AUTO_RESULT result = NULL;
    struct key key;
    if (!key_of(s->bk->key, claim->name, claim->name_len, &key, error)) return BK_FAULT;
    enum bk_says says = question(s, claim->shared ? UNLOCK_S : UNLOCK_X, key.n, key.values, until, &result, error);
    if (says != BK_YES) return says;
    return strcmp(PQgetvalue(result, 0, 0), "t") == 0 ? BK_YES : BK_NO;
}

/* The session goes, and with it whatever it may have of a lock that nobody knows of. */
static enum bk_says end_session(struct bk_session *s) {
    s->gone = true;
    return BK_UNKNOWN;
}

/* A statement that fails behind the lock, as where no number may be drawn, leaves the lock with the session. To free
 * what may not be there needs no room in a lock table that is full, unlike looking. Where a shared one may be held
 * already, as often as nobody knows, the session goes if it is there. alone: the session waited, and holds no other. */
static enum bk_says refused(struct bk_session *s, struct bk_claim *claim, bool alone, struct bk_until until) {
    struct bk_grant perhaps = {.claim = claim};
    bool free_it = alone || !claim->shared;
    enum bk_says says = free_it ? unlock(s, claim, until, NULL) : look_prove(s, &perhaps, until, NULL);
    return says == BK_NO || (says == BK_YES && free_it) ? BK_FAULT : end_session(s);
}

/* --- waiting --- */

static enum bk_says still_waiting(struct bk_session *s, const struct waiting *w, int64_t now, struct bk_busy *ret) {
    ret->queued = true;
    ret->later = !*ret->holder && w->slices <= 1;
    ret->wake_fd = PQsocket(s->conn);
    ret->ask_again_ms = (w->answer_ns - now) / NS_PER_MS;
    return BK_NO;
}

static enum bk_says send_slice(struct bk_session *s, struct bk_claim *claim, struct bk_until until,
                               struct bk_busy *ret_busy, pawl_error *error) {
    struct waiting *w = claim->of;
    struct key key;
    char ms[16];
    if (!key_of(s->bk->key, claim->name, claim->name_len, &key, error)) return BK_FAULT;
    const char *values[4] = {key.values[0], key.values[1]};
    snprintf(ms, sizeof ms, "%d", slice_ms(w));
    values[key.n] = claim->shared ? "true" : "false";
    values[key.n + 1] = ms;
    enum bk_says says;
    if (s->bk->tokens) {
        says = question_send(s, WAIT, key.n + 2, values, until, error);
    } else {
        AUTO_RESULT result = NULL;
        says = question(s, WAIT, key.n + 2, values, until, &result, error);
        if (says == BK_YES) says = question_send_script(s, statement_bare_wait, until, error);
    }
    if (says != BK_YES) return says;
    int64_t now = clock_now_ns(), grace_ms = s->bk->ttl_ms / 3 > 1000 ? s->bk->ttl_ms / 3 : 1000;
    w->answer_ns = clock_after_ms(now, slice_ms(w) + grace_ms);
    w->slices++;
    claim->pin = s;
    return still_waiting(s, w, now, ret_busy);
}

static enum bk_says begin_waiting(struct bk_session *s, struct bk_claim *claim, struct bk_until until,
                                  struct bk_busy *ret_busy, pawl_error *error) {
    struct waiting *w = malloc(sizeof *w);
    if (!w) {
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        return BK_FAULT;
    }
    *w = (struct waiting){.bk = s->bk};
    atomic_fetch_add(&s->bk->waiting, 1);
    claim->of = w;
    return send_slice(s, claim, until, ret_busy, error);
}

/* Something came, or should have come. */
static enum bk_says go_on_waiting(struct bk_session *s, struct bk_claim *claim, struct bk_until until,
                                  struct bk_grant *ret, struct bk_busy *ret_busy, pawl_error *error) {
    AUTO_RESULT result = NULL;
    const struct waiting *w = claim->of;
    struct pollfd p = {.fd = PQsocket(s->conn), .events = POLLIN};
    if (poll(&p, 1, 0) > 0) PQconsumeInput(s->conn);
    int64_t now = clock_now_ns();
    if (PQstatus(s->conn) == CONNECTION_OK && PQisBusy(s->conn) && now < w->answer_ns) /* woken for nothing yet */
        return still_waiting(s, w, now, ret_busy);
    struct bk_until answer = until;
    if (now >= w->answer_ns) answer.at_ns = now; /* silent beyond its slice: another connection may do better */
    enum bk_says says = question_answer(s, answer, &result, error);
    if (says == BK_FAULT) return refused(s, claim, true, until);
    if (says != BK_YES) return says;
    if (PQgetisnull(result, 0, 0)) {
        look_holder(s, claim, until, ret_busy->holder);
        return send_slice(s, claim, until, ret_busy, error);
    }
    return grant(s, PQgetvalue(result, 0, 0), 0, ret, error);
}

/* --- the contract --- */

static enum bk_says try_it(struct bk_session *s, struct bk_claim *claim, struct bk_until until, struct bk_grant *ret,
                           struct bk_busy *ret_busy, pawl_error *error) {
    AUTO_RESULT result = NULL;
    struct key key;
    if (!key_of(s->bk->key, claim->name, claim->name_len, &key, error)) return BK_FAULT;
    int64_t asked_ns = clock_now_ns();
    enum bk_says says = question(s, claim->shared ? TRY_S : TRY_X, key.n, key.values, until, &result, error);
    if (says == BK_FAULT && !s->owes) return refused(s, claim, false, until);
    if (says != BK_YES) return says;
    if (!PQgetisnull(result, 0, 0)) return grant(s, PQgetvalue(result, 0, 0), asked_ns, ret, error);
    ret_busy->ask_again_ms = POLL_LOW_MS;
    ret_busy->later =
        claim->patient; /* it costs several times what a lock does: who waits looks behind its first slice */
    if (claim->patient) return BK_NO;
    look_holder(s, claim, until, ret_busy->holder);
    ret_busy->foreign = !strstr(ret_busy->holder, "pid=");
    return BK_NO;
}

static enum bk_says take(struct bk_session *s, struct bk_claim *claim, bool queue, struct bk_until until,
                         struct bk_grant *ret, struct bk_busy *ret_busy, pawl_error *error) {
    struct bk_busy busy = {.wake_fd = -1};
    enum bk_says says;
    if (claim->of && claim->pin != s) stop_waiting(claim); /* its connection is gone, and its place */
    if (claim->of) says = go_on_waiting(s, claim, until, ret, &busy, error);
    else if (queue && atomic_load(&s->bk->waiting) < s->bk->max_waiters)
        says = begin_waiting(s, claim, until, &busy, error);
    else says = try_it(s, claim, until, ret, &busy, error);
    if (says == BK_NO) {
        if (queue && !busy.queued) busy.ask_again_ms = POLL_HIGH_MS;
        *ret_busy = busy;
    } else {
        stop_waiting(claim);
    }
    return says;
}

/* PQcancel blocks, so it has a thread of its own, which is left behind when time is up; the last to leave frees this.
 */
struct cancellation {
    atomic_int users;
    int done_fd;
    PGcancel *handle;
};

static void leave(struct cancellation *c) {
    if (atomic_fetch_sub(&c->users, 1) > 1) return;
    if (c->done_fd >= 0) close(c->done_fd);
    PQfreeCancel(c->handle);
    free(c);
}

static void *cancel_in_thread(void *data) {
    struct cancellation *c = data;
    char text[256];
    PQcancel(c->handle, text, sizeof text);
    eventfd_write(c->done_fd, 1);
    leave(c);
    return NULL;
}

static bool start_thread(struct cancellation *c) {
    pthread_t thread;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    atomic_fetch_add(&c->users, 1);
    bool started = pthread_create(&thread, NULL, cancel_in_thread, c) == 0;
    if (started) pthread_detach(thread);
    else atomic_fetch_sub(&c->users, 1);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return started;
}

/* Ends the statement that is being executed. Waits until the server has passed the cancellation on: one that comes late
 * would end our next statement. */
static bool cancel(struct bk_session *s, struct bk_until until) {
    struct cancellation *c = calloc(1, sizeof *c);
    if (!c) return false;
    *c = (struct cancellation){.users = 1, .done_fd = eventfd(0, EFD_CLOEXEC), .handle = PQgetCancel(s->conn)};
    bool done = c->handle && c->done_fd >= 0 && start_thread(c) &&
                clock_wait_fd(c->done_fd, POLLIN, until.at_ns, until.cancel_fd) == 1;
    leave(c);
    return done;
}

/* What was taken in a connection that is gone went with it: only a wait that goes on here is left to be ended. */
static enum bk_says forget(struct bk_session *s, struct bk_claim *claim, struct bk_until until, pawl_error *error) {
    AUTO_RESULT result = NULL;
    bool waits = claim->of && claim->pin == s;
    stop_waiting(claim);
    if (!waits) return BK_NO;
    if (!cancel(s, until)) {
        error_set(error, PAWL_EUNREACHABLE, s->node, "%s did not end a waiting statement in time", s->node);
        return BK_UNKNOWN; /* the connection goes, and the wait with it */
    }
    enum bk_says says = question_answer(s, until, &result, error);
    if (says == BK_UNKNOWN) return says;
    /* If it was cancelled, the lock may have been granted in that very moment: the answer of the lock table counts. */
    struct bk_grant perhaps = {.claim = claim};
    bool granted = says == BK_YES && !PQgetisnull(result, 0, 0);
    says = granted ? BK_YES : look_prove(s, &perhaps, until, error);
    if (says == BK_YES) says = unlock(s, claim, until, error);
    return says == BK_FAULT ? end_session(s) : says;
}

static enum bk_says release(struct bk_session *s, struct bk_grant *const grants[], int n, struct bk_until until,
                            enum bk_says ret[], pawl_error *error) {
    static char sent;
    for (int i = 0; i < n; i++) ret[i] = BK_UNKNOWN;
    for (int i = 0; i < n; i++) {
        if (grants[i]->of == &sent) { /* a second unlock could meet a grant of somebody else in this session */
            ret[i] = question_settle(s, until, error);
        } else {
            ret[i] = unlock(s, grants[i]->claim, until, error);
            if (ret[i] == BK_UNKNOWN) grants[i]->of = &sent;
        }
        if (ret[i] > BK_NO) return ret[i];
    }
    return BK_YES;
}

static void end(struct bk_grant *grant, bool forked) { (void)grant, (void)forked; }

static const char *init_text(void) { return pawl_sql; }

static const struct backend postgresql_backend = {
    .caps = {.scheme = "postgresql",
             .life = BK_LIFE_NONE,
             .session_bound = true,
             .shared = true,
             .fifo = true,
             .per_session = 256},
    .open = dsn_open,
    .close = dsn_close,
    .introduce = introduce,
    .connect = session_connect,
    .drop = session_drop,
    .beat = question_beat,
    .fds = session_fds,
    .take = take,
    .forget = forget,
    .release = release,
    .prove = look_prove,
    .end = end,
    .records = look_records,
    .evict = look_evict,
    .doctor = look_doctor,
    .tokens = look_tokens,
    .init = session_init,
    .init_text = init_text,
};
MODULE_EXPORT_BACKEND(postgresql_backend);
