/* question.c: one statement and its answer over a non-blocking connection. libpq never blocks here: it is told when the
 * socket is ready. A statement that was sent and whose answer did not come may have been executed: UNKNOWN. */
#include "clock.h"
#include "postgresql.h"
#include "refusal.h"
#include <poll.h>
#include <stdio.h>
#include <string.h>

static void lost(const struct bk_session *s, const char *what, pawl_error *error) {
    char text[300];
    if (*s->goodbye) snprintf(text, sizeof text, "%s", s->goodbye);
    else refusal_text(s->conn, text, sizeof text);
    error_set(error, PAWL_EUNREACHABLE, s->node, "%s: %s: %s", s->node, what, *text ? text : "the connection ended");
}

static enum bk_says timed_out(const struct bk_session *s, int ready, enum bk_says says, pawl_error *error) {
    if (ready == -1) error_set(error, PAWL_ECANCELLED, s->node, "cancelled while waiting for %s", s->node);
    else error_set(error, PAWL_EUNREACHABLE, s->node, "%s does not answer (timed out)", s->node);
    return says;
}

/* Until everything is handed to the kernel; reads what comes meanwhile, or both ends may fill up. */
static enum bk_says flush(struct bk_session *s, struct bk_until until, pawl_error *error) {
    for (;;) {
        int left = PQflush(s->conn);
        if (left == 0) return BK_YES;
        if (left < 0) return lost(s, "sending failed", error), BK_UNKNOWN;
        int ready = clock_wait_fd(PQsocket(s->conn), POLLIN | POLLOUT, until.at_ns, until.cancel_fd);
        if (ready != 1) return timed_out(s, ready, BK_UNKNOWN, error);
        if (!PQconsumeInput(s->conn)) return lost(s, "sending failed", error), BK_UNKNOWN;
    }
}

static enum bk_says send_once(struct bk_session *s, const char *sql, int n, const char *const values[],
                              struct bk_until until, pawl_error *error) {
    s->owes = OWES_ANSWER;
    if (PQsendQueryParams(s->conn, sql, n, NULL, values, NULL, NULL, 0)) return flush(s, until, error);
    s->owes = OWES_NOTHING;
    return lost(s, "sending failed", error), BK_FAULT;
}

static enum bk_says give_back(struct bk_session *s, struct bk_until until, pawl_error *error) {
    char sql[160];
    bool two = s->bk->key == KEY_INT4X2;
    const char *values[2] = {s->owed_key[0], s->owed_key[1]};
    snprintf(sql, sizeof sql, "SELECT pg_advisory_unlock%s(%s)", s->owed == TRY_S ? "_shared" : "",
             key_expression(s->bk->key));
    return send_once(s, sql, two ? 2 : 1, values, until, error) == BK_FAULT ? BK_FAULT : BK_YES;
}

enum bk_says question_settle(struct bk_session *s, struct bk_until until, pawl_error *error) {
    if (s->gone) return lost(s, "its state is not known", error), BK_FAULT;
    while (s->owes) {
        AUTO_RESULT result = NULL;
        int owes = s->owes;
        if (question_answer(s, until, &result, error) != BK_YES) {
            if (s->owes && PQstatus(s->conn) == CONNECTION_OK) return BK_FAULT; /* still to come */
            if (owes != OWES_ANSWER) s->gone = true; /* who knows what it took, or what is prepared */
            if (s->gone || PQstatus(s->conn) != CONNECTION_OK) return BK_FAULT;
        }
        if (owes == OWES_PREPARED) s->prepared |= 1u << s->owed;
        if (owes == OWES_TRY && result && !PQgetisnull(result, 0, 0) && give_back(s, until, error) != BK_YES)
            return BK_FAULT;
    }
    return BK_YES;
}

/* An empty query: no snapshot, no lock, nothing in the log. */
enum bk_says question_beat(struct bk_session *s, pawl_error *error) {
    struct bk_until at_once = {.at_ns = 0, .cancel_fd = -1};
    if (!s->owes) {
        if (PQconsumeInput(s->conn)) (void)PQisBusy(s->conn); /* hears why it was ended */
        if (s->gone) return lost(s, "the server ended the connection", error), BK_UNKNOWN;
        if (!PQsendQuery(s->conn, "")) return lost(s, "sending failed", error), BK_UNKNOWN;
        s->owes = OWES_ANSWER;
    }
    if (PQflush(s->conn) < 0 || !PQconsumeInput(s->conn)) return lost(s, "no answer", error), BK_UNKNOWN;
    enum bk_says says = question_settle(s, at_once, error);
    if (says == BK_YES) return BK_YES;
    return s->gone || PQstatus(s->conn) != CONNECTION_OK ? BK_UNKNOWN : BK_NO;
}

static enum bk_says prepare(struct bk_session *s, enum statement statement, struct bk_until until, pawl_error *error) {
    char name[16];
    AUTO_RESULT result = NULL;
    snprintf(name, sizeof name, "pawl%d", (int)statement);
    enum bk_says says = question_settle(s, until, error);
    if (says != BK_YES || s->prepared & 1u << statement) return says;
    s->owed = statement;
    if (!PQsendPrepare(s->conn, name, s->bk->sql[statement], 0, NULL))
        return lost(s, "sending failed", error), BK_FAULT;
    s->owes = OWES_PREPARED;
    says = flush(s, until, error);
    if (says == BK_YES) says = question_answer(s, until, &result, error);
    if (says == BK_YES) s->prepared |= 1u << statement;
    return says == BK_UNKNOWN ? BK_FAULT : says; /* a statement that was only prepared did nothing */
}

enum bk_says question_send(struct bk_session *s, enum statement statement, int n, const char *const values[],
                           struct bk_until until, pawl_error *error) {
    char name[16];
    enum bk_says says = prepare(s, statement, until, error);
    if (says != BK_YES) return says;
    snprintf(name, sizeof name, "pawl%d", (int)statement);
    if (!PQsendQueryPrepared(s->conn, name, n, values, NULL, NULL, 0))
        return lost(s, "sending failed", error), BK_FAULT;
    s->owes = OWES_ANSWER;
    if (statement == TRY_X || statement == TRY_S) {
        s->owes = OWES_TRY;
        s->owed = statement;
        for (int i = 0; i < n; i++) snprintf(s->owed_key[i], sizeof s->owed_key[i], "%s", values[i]);
    }
    return flush(s, until, error);
}

enum bk_says question_answer(struct bk_session *s, struct bk_until until, PGresult **ret, pawl_error *error) {
    PGresult *last = NULL, *next;
    for (;;) {
        while (PQisBusy(s->conn)) {
            int ready = clock_wait_fd(PQsocket(s->conn), POLLIN, until.at_ns, until.cancel_fd);
            if (ready != 1 || !PQconsumeInput(s->conn)) {
                PQclear(last);
                if (ready != 1) return timed_out(s, ready, BK_UNKNOWN, error);
                return lost(s, "no answer", error), BK_UNKNOWN;
            }
        }
        next = PQgetResult(s->conn);
        if (!next) break;
        if (last && PQresultStatus(last) == PGRES_FATAL_ERROR) PQclear(next); /* the first error counts */
        else {
            PQclear(last);
            last = next;
        }
    }
    s->owes = OWES_NOTHING;
    ExecStatusType status = PQresultStatus(last);
    if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK || status == PGRES_EMPTY_QUERY) {
        *ret = last;
        return BK_YES;
    }
    enum bk_says says = BK_UNKNOWN;
    if (last && PQstatus(s->conn) == CONNECTION_OK) {
        refusal(last, s->node,
                error); /* nothing of the statement remains, but for an advisory lock, as the callers know */
        says = BK_FAULT;
    } else lost(s, "no answer", error);
    PQclear(last);
    return says;
}

enum bk_says question(struct bk_session *s, enum statement statement, int n, const char *const values[],
                      struct bk_until until, PGresult **ret, pawl_error *error) {
    enum bk_says says = question_send(s, statement, n, values, until, error);
    return says == BK_YES ? question_answer(s, until, ret, error) : says;
}

enum bk_says question_once(struct bk_session *s, const char *sql, int n, const char *const values[],
                           struct bk_until until, PGresult **ret, pawl_error *error) {
    enum bk_says says = question_settle(s, until, error);
    if (says == BK_YES) says = send_once(s, sql, n, values, until, error);
    return says == BK_YES ? question_answer(s, until, ret, error) : says;
}

enum bk_says question_send_script(struct bk_session *s, const char *sql, struct bk_until until, pawl_error *error) {
    enum bk_says says = question_settle(s, until, error);
    if (says != BK_YES) return says;
    if (!PQsendQuery(s->conn, sql)) return lost(s, "sending failed", error), BK_FAULT;
    s->owes = OWES_ANSWER;
    return flush(s, until, error);
}

enum bk_says question_script(struct bk_session *s, const char *sql, struct bk_until until, PGresult **ret,
                             pawl_error *error) {
    enum bk_says says = question_send_script(s, sql, until, error);
    return says == BK_YES ? question_answer(s, until, ret, error) : says;
}
