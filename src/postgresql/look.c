/* look.c: who holds and who waits, as far as the server tells: pg_locks knows numbers and sessions, not names; a
 * session of pawl says in its application_name what about.h says. Where the numbers of the tokens stand. */
#include "about.h"
#include "clock.h"
#include "postgresql.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MARK "pawl "

static void add(char *text, size_t size, const char *key, const char *value) {
    char piece[128];
    snprintf(piece, sizeof piece, "%s%s=", *text ? "&" : "", key);
    if (*value && url_escape(piece, sizeof piece, value, strnlen(value, 32), "-_.") &&
        strlen(text) + strlen(piece) < size)
        strcat(text, piece);
}

static bool is_pawls(const char *application) { return strncmp(application, MARK, strlen(MARK)) == 0; }

/* Columns application_name, pid, usename, client address from `first` on. */
static void about_of(const PGresult *r, int row, int first, char ret[ABOUT_SIZE]) {
    const char *application = PQgetvalue(r, row, first);
    *ret = 0;
    if (is_pawls(application)) {
        snprintf(ret, ABOUT_SIZE, "%s", application + strlen(MARK));
        return;
    }
    add(ret, ABOUT_SIZE, "host", PQgetvalue(r, row, first + 3));
    add(ret, ABOUT_SIZE, "user", PQgetvalue(r, row, first + 2));
    add(ret, ABOUT_SIZE, "command",
        PQgetisnull(r, row, first + 1) ? "a prepared transaction"
        : *application                 ? application
                                       : "a session");
    add(ret, ABOUT_SIZE, "pid", PQgetvalue(r, row, first + 1));
}

void look_holder(struct bk_session *s, const struct bk_claim *claim, struct bk_until until, char ret[256]) {
    AUTO_RESULT result = NULL;
    struct key key;
    *ret = 0;
    if (!key_of(s->bk->key, claim->name, claim->name_len, &key, NULL)) return;
    if (question(s, HOLDER, key.n, key.values, until, &result, NULL) == BK_YES && PQntuples(result) > 0)
        about_of(result, 0, 0, ret);
}

enum bk_says look_prove(struct bk_session *s, const struct bk_grant *grant, struct bk_until until, pawl_error *error) {
    AUTO_RESULT result = NULL;
    struct key key;
    if (!key_of(s->bk->key, grant->claim->name, grant->claim->name_len, &key, error)) return BK_FAULT;
    enum bk_says says = question(s, HELD, key.n, key.values, until, &result, error);
    if (says != BK_YES) return says;
    const char *wanted = grant->claim->shared ? "ShareLock" : "ExclusiveLock";
    for (int i = 0; i < PQntuples(result); i++)
        if (strcmp(PQgetvalue(result, i, 0), wanted) == 0) return BK_YES;
    return BK_NO;
}

/* The server knows numbers. Where they are not what locks are called by (?key=), they are shown as what they are. */
static bool show(enum key_mode mode, const PGresult *r, int row, const char *name, int place, bk_each *each,
                 void *data) {
    char about[ABOUT_SIZE], number[48];
    bool two = strcmp(PQgetvalue(r, row, 2), "2") == 0;
    long long class = strtoll(PQgetvalue(r, row, 0), NULL, 10), obj = strtoll(PQgetvalue(r, row, 1), NULL, 10);
    const char *mark = mode == (two ? KEY_INT4X2 : KEY_INT8) ? "" : "key:";
    if (two) snprintf(number, sizeof number, "%s%d/%d", mark, (int)(uint32_t) class, (int)(uint32_t)obj);
    else snprintf(number, sizeof number, "%s%lld", mark, (long long)(((uint64_t) class << 32) | (uint64_t)obj));
    about_of(r, row, 5, about);
    bool has_since = place && !is_pawls(PQgetvalue(r, row, 5)); /* of ours the server knows the current slice only */
    struct bk_record record = {.name = name ? name : number,
                               .about = about,
                               .left_ms = -1,
                               .since_ms = has_since ? strtoll(PQgetvalue(r, row, 9), NULL, 10) : 0,
                               .shared = strcmp(PQgetvalue(r, row, 4), "ShareLock") == 0,
                               .place = place};
    return each(&record, data);
}

/* "AND ...": the locks of a name: those of its key, *ret, and, where the name is one that only pawl ls gives, those of
 * the number that it shows. */
static bool target_of(const struct bk_session *s, const char *name, size_t length, struct key *ret, char *text,
                      size_t size, pawl_error *error) {
    char own[400] = "false", shown[200] = "";
    int64_t n[2];
    int numbers = key_shown(name, n);
    if (key_of(s->bk->key, name, length, ret, numbers ? NULL : error))
        snprintf(own, sizeof own,
                 s->bk->key == KEY_INT4X2 ? "l.objsubid = 2 AND l.classid::int8 = (" KEY_PART(
                                                "$1") ")::int8 & 4294967295 AND l.objid::int8 = "
                                                      "(" KEY_PART("$2") ")::int8 & 4294967295%.0s"
                                          : "l.objsubid = 1 AND (l.classid::int8 << 32 | l.objid::int8) = %s",
                 key_expression(s->bk->key));
    else if (numbers) ret->n = 0;
    else return false;
    if (numbers == 1)
        snprintf(shown, sizeof shown, " OR l.objsubid = 1 AND (l.classid::int8 << 32 | l.objid::int8) = '%lld'::int8",
                 (long long)n[0]);
    if (numbers == 2)
        snprintf(shown, sizeof shown, " OR l.objsubid = 2 AND l.classid::int8 = %lld AND l.objid::int8 = %lld",
                 (long long)n[0] & 0xFFFFFFFF, (long long)n[1] & 0xFFFFFFFF);
    snprintf(text, size, "AND (%s%s)", own, shown);
    return true;
}

enum bk_says look_records(struct bk_session *s, const char *name, bk_each *each, void *data, struct bk_until until,
                          pawl_error *error) {
    AUTO_RESULT result = NULL;
    struct key key = {.n = 0};
    char sql[2048];
    char target[640] = "";
    if (name && !target_of(s, name, strlen(name), &key, target, sizeof target, error)) return BK_FAULT;
    snprintf(sql, sizeof sql,
             "SELECT l.classid, l.objid, l.objsubid, l.granted, l.mode, a.application_name, a.pid, a.usename, "
             "coalesce(host(a.client_addr), ''), coalesce((extract(epoch FROM %s) * 1000)::int8, 0) FROM pg_locks l "
             "LEFT JOIN pg_stat_activity a ON a.pid = l.pid WHERE l.locktype = 'advisory' "
             "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) %s "
             "ORDER BY 1, 2, 3, l.granted DESC, 10, a.pid",
             PQserverVersion(s->conn) >= 140000 ? "l.waitstart" : "a.state_change", target);
    enum bk_says says = question_once(s, sql, key.n, key.values, until, &result, error);
    if (says != BK_YES) return says;
    int place = 0;
    for (int i = 0; i < PQntuples(result); i++) {
        bool granted = strcmp(PQgetvalue(result, i, 3), "t") == 0, same = i > 0;
        for (int k = 0; k < 3 && same; k++) same = strcmp(PQgetvalue(result, i, k), PQgetvalue(result, i - 1, k)) == 0;
        place = granted ? 0 : same ? place + 1 : 1;
        if (!show(s->bk->key, result, i, name, place, each, data)) break;
    }
    return BK_YES;
}

/* --- taking it away --- */

#define LOOK_AGAIN_MS 20
#define LAST_ANSWER_MS 2000 /* for the last look, which tells what is still there */

/* Columns: application_name, pid, usename, client address, and a prepared transaction's name as SQL has it. */
static enum bk_says ask_holders(struct bk_session *s, const struct bk_claim *claim, bool end, struct bk_until until,
                                PGresult **ret, pawl_error *error) {
    char sql[2048], target[640];
    struct key key;
    if (!target_of(s, claim->name, claim->name_len, &key, target, sizeof target, error)) return BK_FAULT;
    snprintf(
        sql, sizeof sql,
        "SELECT a.application_name, l.pid, a.usename, coalesce(host(a.client_addr), ''), quote_literal(p.gid)%s "
        "FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid "
        "LEFT JOIN (SELECT x.virtualtransaction, g.gid FROM pg_locks x JOIN pg_prepared_xacts g ON g.transaction = "
        "x.transactionid WHERE x.pid IS NULL) p ON l.pid IS NULL AND p.virtualtransaction = l.virtualtransaction "
        "WHERE l.locktype = 'advisory' AND l.granted "
        "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) %s",
        end ? ", pg_terminate_backend(l.pid)" : "", target);
    return question_once(s, sql, key.n, key.values, until, ret, error);
}

/* One of those that were told to end, and that has it still. -1: none. */
static int still_there(const PGresult *told, const PGresult *now) {
    for (int i = 0; i < PQntuples(now); i++)
        for (int k = 0; k < PQntuples(told); k++)
            if (strcmp(PQgetvalue(now, i, 1), PQgetvalue(told, k, 1)) == 0) return i;
    return -1;
}

static bool pause_until(struct bk_until until) {
    int64_t next_ns = clock_after_ms(clock_now_ns(), LOOK_AGAIN_MS);
    return next_ns < until.at_ns && clock_wait_fd(-1, 0, next_ns, until.cancel_fd) == 0;
}

/* A session that was told to end may be long about it, or stand still; and a prepared transaction has none. */
static enum bk_says see_them_go(struct bk_session *s, const struct bk_claim *claim, const PGresult *told,
                                struct bk_until until, pawl_error *error) {
    for (int i = 0; i < PQntuples(told); i++)
        if (PQgetisnull(told, i, 1)) {
            const char *name = PQgetisnull(told, i, 4) ? "'its name'" : PQgetvalue(told, i, 4);
            error_set(error, PAWL_EBUSY, s->node,
                      "%s: held by a prepared transaction, which no session has that could be ended: ROLLBACK PREPARED "
                      "%.200s, or COMMIT PREPARED",
                      s->node, name);
            return BK_FAULT;
        }
    struct bk_until answer = until;
    answer.at_ns = clock_after_ms(until.at_ns, LAST_ANSWER_MS);
    for (;;) {
        AUTO_RESULT now = NULL;
        enum bk_says says = ask_holders(s, claim, false, answer, &now, error);
        if (says != BK_YES) return says;
        int left = still_there(told, now);
        if (left < 0) return BK_YES;
        if (pause_until(until)) continue;
        error_set(error, PAWL_ETIMEOUT, s->node,
                  "%s: process %s of the server (user %s) was told to end, and still holds the lock: if it stands "
                  "still, only ending it there helps, or waiting (-w)",
                  s->node, PQgetvalue(now, left, 1), PQgetvalue(now, left, 2));
        return BK_FAULT;
    }
}

/* Whoever has it learns it from the end of his connection; what else that session held goes with it. */
enum bk_says look_evict(struct bk_session *s, const struct bk_claim *claim, bool at_once, struct bk_until until,
                        struct bk_evicted *ret, pawl_error *error) {
    (void)at_once;
    AUTO_RESULT told = NULL;
    enum bk_says says = ask_holders(s, claim, true, until, &told, error);
    if (says != BK_YES) return says;
    if (PQntuples(told) == 0) return BK_NO;
    about_of(told, 0, 0, ret->holder);
    return see_them_go(s, claim, told, until, error);
}

/* --- numbers --- */

enum bk_says look_tokens(struct bk_session *s, bool advance, uint64_t to, struct bk_until until, struct bk_tokens *ret,
                         pawl_error *error) {
    AUTO_RESULT advanced = NULL;
    AUTO_RESULT result = NULL;
    char number[32];
    const char *values[] = {number};
    snprintf(number, sizeof number, "%llu", (unsigned long long)to);
    enum bk_says says = BK_YES;
    if (advance) says = question_once(s, "SELECT pawl.advance($1)", 1, values, until, &advanced, error);
    if (says == BK_YES)
        says = question_once(s,
                             "SELECT t.last_value, b.last_value, s.last_value, hashtextextended(pawl.identity(), 0) & "
                             "9223372036854775807, "
                             "pawl.clock_us() FROM pawl.token t, pawl.since b, pawl.server s",
                             0, NULL, until, &result, error);
    if (says != BK_YES) return says;
    *ret = (struct bk_tokens){.last = strtoull(PQgetvalue(result, 0, 0), NULL, 10),
                              .since = strtoull(PQgetvalue(result, 0, 1), NULL, 10),
                              .clock_us = strtoll(PQgetvalue(result, 0, 4), NULL, 10)};
    snprintf(ret->stored, sizeof ret->stored, "%s", PQgetvalue(result, 0, 2));
    snprintf(ret->answering, sizeof ret->answering, "%s", PQgetvalue(result, 0, 3));
    return BK_YES;
}
