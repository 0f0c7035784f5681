/* guard.c: guard in a PostgreSQL database: one call of pawl.guard_step (sql/guard.sql) a step, in a transaction of its
 * own.
 *
 * A single statement on a connection without settings of its own, so a pooler may stand between. */
#include "guard/guard.h"
#include "clock.h"
#include "postgresql.h"
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA_MAX (INT64_C(128) << 20) /* it is sent as two digits a byte */

extern const struct backend *const pawl_backend;

struct guard_store {
    struct bk *bk;
    struct bk_session *session; /* NULL: not connected */
};

static int postgresql_guard_open(const struct url *url, struct guard_store **ret, pawl_error *error) {
    struct guard_store *store = calloc(1, sizeof *store);
    pawl_error own = PAWL_ERROR_INIT;
    if (!store) return error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
    if (pawl_backend->open(url, &store->bk, &own) != BK_YES) {
        error_copy(error, &own);
        free(store);
        return own.code;
    }
    for (size_t i = 0; i < url->n_params; i++)
        url->params[i].read = true; /* libpq knows them, or said that it does not */
    *ret = store;
    return PAWL_OK;
}

static void disconnect(struct guard_store *store) {
    if (store->session) pawl_backend->drop(store->session, false);
    store->session = NULL;
}

static void postgresql_guard_close(struct guard_store *store) {
    disconnect(store);
    pawl_backend->close(store->bk, false);
    free(store);
}

/* --- asking --- */

/* Whatever the server has to say before it is asked is a goodbye. */
static bool is_spoilt(const struct guard_store *store) {
    struct pollfd p = {.fd = PQsocket(store->session->conn), .events = POLLIN};
    return p.fd < 0 || poll(&p, 1, 0) != 0;
}

static int failed(struct guard_store *store, enum bk_says says, const char *resource, const pawl_error *own,
                  pawl_error *error) {
    if (own->code == PAWL_EBUSY) /* lock_timeout */
        return error_set(error, PAWL_ETIMEOUT, own->node, "%s: another transaction kept '%s' locked all the time",
                         own->node, resource);
    if (says == BK_UNKNOWN || own->code == PAWL_EUNREACHABLE) disconnect(store);
    error_copy(error, own);
    return own->code;
}

static int ask_sql(struct guard_store *store, const char *sql, int n, const char *const values[], const char *resource,
                   struct bk_until until, PGresult **ret, pawl_error *error) {
    for (;;) {
        pawl_error own = PAWL_ERROR_INIT;
        if (store->session && is_spoilt(store)) disconnect(store);
        if (!store->session && session_bare(store->bk, until, &store->session, &own) != BK_YES) {
            store->session = NULL;
            error_copy(error, &own);
            return own.code;
        }
        enum bk_says says = question_once(store->session, sql, n, values, until, ret, &own);
        if (says == BK_YES) return PAWL_OK;
        /* the role's default isolation is higher than READ COMMITTED, or a deadlock was ended: nothing was done */
        bool again = strstr(own.text, "(40001)") || strstr(own.text, "(40P01)");
        if (!again || clock_now_ns() >= until.at_ns) return failed(store, says, resource, &own, error);
    }
}

static int64_t number(const PGresult *result, int row, int column) {
    return strtoll(PQgetvalue(result, row, column), NULL, 10);
}

/* Columns from `first` on: lock token seq rule used written writer at service. */
static void fill_mark(const PGresult *result, int first, struct guard_mark *ret) {
    *ret = (struct guard_mark){.token = (uint64_t)number(result, 0, first + 1),
                               .seq = (uint64_t)number(result, 0, first + 2),
                               .rule = guard_rule_by_name(PQgetvalue(result, 0, first + 3)),
                               .used = *PQgetvalue(result, 0, first + 4) == 't',
                               .written = *PQgetvalue(result, 0, first + 5) == 't',
                               .at_us = number(result, 0, first + 7)};
    snprintf(ret->lock, sizeof ret->lock, "%s", PQgetvalue(result, 0, first));
    snprintf(ret->by, sizeof ret->by, "%s", PQgetvalue(result, 0, first + 6));
    snprintf(ret->service, sizeof ret->service, "%s", PQgetvalue(result, 0, first + 8));
}

static int understand(const struct guard_store *store, const PGresult *result, struct guard_found *ret,
                      pawl_error *error) {
    static const struct {
        const char *word;
        int code;
    } words[] = {{"ok", PAWL_OK},
                 {"stale", PAWL_GSTALE},
                 {"wrong-lock", PAWL_GWRONGLOCK},
                 {"damaged", PAWL_GDAMAGED},
                 {"no-token", PAWL_GNOTOKEN},
                 {"rule", PAWL_EINVALID},
                 {"seq", PAWL_EINVALID}};
    const char *word = PQntuples(result) == 1 && PQnfields(result) == 11 ? PQgetvalue(result, 0, 0) : "";
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(words[i].word, word) != 0) continue;
        fill_mark(result, 2, &ret->mark);
        ret->now_us = number(result, 0, 1);
        ret->judged = words[i].code != PAWL_OK;
        return words[i].code;
    }
    return error_set(error, PAWL_EUNREACHABLE, store->session->node,
                     "%s: the answer is not of the form that pawl.guard_step gives", store->session->node);
}

/* bytea as text; to be freed; NULL: out of memory. */
static char *bytea_text(const unsigned char *data, size_t length) {
    static const char digits[] = "0123456789abcdef";
    char *text = malloc(2 * length + 3), *to = text;
    if (!text) return NULL;
    *to++ = '\\';
    *to++ = 'x';
    for (size_t i = 0; i < length; i++) {
        *to++ = digits[data[i] >> 4];
        *to++ = digits[data[i] & 15];
    }
    *to = 0;
    return text;
}

static int reset(struct guard_store *store, const struct guard_step *step, const struct guard_ask *q,
                 pawl_error *error) {
    char token[24];
    AUTO_RESULT result = NULL;
    const char *values[] = {step->resource, token, q->why, q->by};
    struct bk_until until = {step->until_ns, -1};
    snprintf(token, sizeof token, "%" PRId64, q->claim.token);
    int code =
        ask_sql(store, "SELECT pawl.guard_reset($1, $2, $3, $4)", 4, values, step->resource, until, &result, error);
    if (code) return code;
    return PQntuples(result) == 1 && *PQgetvalue(result, 0, 0) == 't' ? PAWL_OK : PAWL_GNORECORD;
}

static int postgresql_guard_ask(struct guard_store *store, const struct guard_step *step, const struct guard_ask *q,
                                struct guard_found *ret, pawl_error *error) {
    char token[24], seq[24], wait[24];
    AUTO_RESULT result = NULL;
    struct bk_until until = {step->until_ns, -1};
    if (q->intent == GUARD_RESET) return reset(store, step, q, error);
    if (q->length > DATA_MAX)
        return error_set(error, PAWL_EINVALID, NULL, "'%s': more than 128 MiB are too much for a row", step->resource);
    char *data = q->intent == GUARD_WRITE ? bytea_text(q->data ? q->data : "", q->length) : NULL;
    if (q->intent == GUARD_WRITE && !data) return error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
    int wait_ms = clock_poll_ms(clock_now_ns(), step->until_ns);
    snprintf(token, sizeof token, "%" PRId64, q->claim.token);
    snprintf(seq, sizeof seq, "%" PRId64, q->claim.seq);
    snprintf(wait, sizeof wait, "%d", wait_ms < 0 ? 0 : wait_ms);
    const char *values[] = {q->intent == GUARD_WRITE ? "put" : "seal",
                            step->resource,
                            q->claim.lock,
                            token,
                            seq,
                            q->claim.rule ? guard_rule_name(q->claim.rule) : "",
                            q->by,
                            q->claim.service ? q->claim.service : "",
                            q->claim.accept_jump ? "t" : "f",
                            data,
                            wait_ms < 0 ? NULL : wait};
    if (until.at_ns < INT64_MAX - NS_PER_S) until.at_ns += NS_PER_S / 2; /* the server is to end it first */
    int code = ask_sql(store, "SELECT * FROM pawl.guard_step($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)", 11, values,
                       step->resource, until, &result, error);
    free(data);
    return code ? code : understand(store, result, ret, error);
}

/* --- reading --- */

static int make_record(const char *resource, const PGresult *result, const PGresult *resets, pawl_guard_record **ret) {
    struct guard_mark mark;
    size_t n = (size_t)PQntuples(resets), length = 0;
    pawl_guard_reset_entry *entries = calloc(n + 1, sizeof *entries);
    unsigned char *data = PQunescapeBytea((const unsigned char *)PQgetvalue(result, 0, 9), &length);
    fill_mark(result, 0, &mark);
    for (size_t i = 0; entries && i < n; i++)
        entries[i] = (pawl_guard_reset_entry){PQgetvalue(resets, (int)i, 3), PQgetvalue(resets, (int)i, 4),
                                              number(resets, (int)i, 1), number(resets, (int)i, 2),
                                              number(resets, (int)i, 0) / 1000};
    if (entries && data) *ret = guard_record_make(resource, &mark, data, length, entries, n);
    free(entries);
    PQfreemem(data);
    return *ret ? PAWL_OK : PAWL_EINTERNAL;
}

static int postgresql_guard_read(struct guard_store *store, const struct guard_step *step, pawl_guard_record **ret,
                                 pawl_error *error) {
    AUTO_RESULT result = NULL;
    AUTO_RESULT resets = NULL;
    struct bk_until until = {step->until_ns, -1};
    const char *values[] = {step->resource};
    int code = ask_sql(store,
                       "SELECT lock, token, seq, rule, used, written, writer, at_us, service, data FROM pawl.guarded "
                       "WHERE resource OPERATOR(pg_catalog.=) $1::pg_catalog.text",
                       1, values, step->resource, until, &result, error);
    if (code) return code;
    if (PQntuples(result) == 0) return PAWL_GNORECORD;
    code = ask_sql(store,
                   "SELECT at_us, from_token, to_token, writer, why FROM pawl.guard_reset WHERE resource "
                   "OPERATOR(pg_catalog.=) $1::pg_catalog.text ORDER BY id",
                   1, values, step->resource, until, &resets, error);
    if (code) return code;
    *ret = NULL;
    code = make_record(step->resource, result, resets, ret);
    return code ? error_set(error, code, NULL, "out of memory") : code;
}

/* --- preparing --- */

static int postgresql_guard_install(struct guard_store *store, int rule, int64_t until_ns, pawl_error *error) {
    AUTO_RESULT result = NULL;
    struct bk_until until = {until_ns, -1};
    const char *values[] = {guard_rule_name(rule)};
    pawl_error own = PAWL_ERROR_INIT;
    if (pawl_backend->init(store->bk, until, &own) != BK_YES) {
        error_copy(error, &own);
        return own.code;
    }
    int code =
        ask_sql(store,
                "WITH made AS (INSERT INTO pawl.guard_set (rule) VALUES ($1) ON CONFLICT DO NOTHING RETURNING rule) "
                "SELECT rule FROM made UNION ALL SELECT rule FROM pawl.guard_set",
                1, values, "guards", until, &result, error);
    if (code) return code;
    const char *there = PQntuples(result) > 0 ? PQgetvalue(result, 0, 0) : values[0]; /* 0: made by another just now */
    if (strcmp(there, values[0]) == 0) return PAWL_OK;
    return error_set(error, PAWL_EINVALID, store->session->node, "%s was installed with rule %s, not %s",
                     store->session->node, there, values[0]);
}

/* A table or a column that is not there is the user's: the schema answered already. */
static int postgresql_guard_protect(struct guard_store *store, const char *table, const char *expression,
                                    int64_t until_ns, pawl_error *error) {
    AUTO_RESULT layout = NULL;
    AUTO_RESULT result = NULL;
    struct bk_until until = {until_ns, -1};
    const char *values[] = {table, expression};
    pawl_error own = PAWL_ERROR_INIT;
    int code = ask_sql(
        store,
        "SELECT layout, 'pawl.protect(pg_catalog.regclass,pg_catalog.text)'::pg_catalog.regprocedure FROM pawl.meta", 0,
        NULL, table, until, &layout, error);
    if (code) return code;
    code = ask_sql(store, "SELECT pawl.protect($1::pg_catalog.text::pg_catalog.regclass, $2)", 2, values, table, until,
                   &result, &own);
    if (code != PAWL_EUNSAFE) error_copy(error, &own);
    else {
        char *blame = strstr(own.text, ": pawl is not installed there");
        error_set(error, code = PAWL_EINVALID, own.node,
                  "%.*s; is '%s' the table's name, with its schema, and in double "
                  "quotes where SQL wants them?",
                  blame ? (int)(blame - own.text) : 400, own.text, table);
    }
    return code;
}

static const struct guard_kind guard_postgresql = {.scheme = "postgresql",
                                                   .open = postgresql_guard_open,
                                                   .close = postgresql_guard_close,
                                                   .ask = postgresql_guard_ask,
                                                   .read = postgresql_guard_read,
                                                   .install = postgresql_guard_install,
                                                   .protect = postgresql_guard_protect,
                                                   .install_text = pawl_sql};

__attribute__((visibility("default"))) extern const struct guard_kind *const pawl_guard_kind;
const struct guard_kind *const pawl_guard_kind = &guard_postgresql;
