/* guarded.c: guards on the program's own connection (pawl_postgres.h). */
#include "export.h"
#include "pawl_postgres.h"
#include "refusal.h"
#include "sized.h"
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_open(PGconn *conn, pawl_error *error) {
    PGTransactionStatusType status = PQtransactionStatus(conn);
    if (status == PQTRANS_INTRANS) return PAWL_OK;
    return error_set(error, status == PQTRANS_UNKNOWN ? PAWL_EUNREACHABLE : PAWL_EINVALID, PQhost(conn),
                     status == PQTRANS_IDLE      ? "no transaction is open: BEGIN first"
                     : status == PQTRANS_INERROR ? "the transaction is aborted: ROLLBACK"
                                                 : "the connection is busy, or gone");
}

PAWL_EXPORT int pawl_postgres_guard_result(const PGresult *result, pawl_error *error) {
    static const struct {
        const char *state;
        int code;
    } rows[] = {{"PW001", PAWL_GSTALE}, {"PW002", PAWL_GWRONGLOCK}, {"PW003", PAWL_GNOTOKEN}, {"PW004", PAWL_GDAMAGED}};
    ExecStatusType status = PQresultStatus(result);
    if (status != PGRES_FATAL_ERROR && status != PGRES_BAD_RESPONSE) return PAWL_OK;
    const char *state = result ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;
    if (!state)
        return error_set(error, PAWL_EUNREACHABLE, NULL, "%.300s",
                         result ? PQresultErrorMessage(result) : "the connection is gone");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].state, state) == 0)
            return error_set(
                error, rows[i].code, NULL, "%.300s (%.150s)", PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY),
                PQresultErrorField(result, PG_DIAG_MESSAGE_DETAIL) ? PQresultErrorField(result, PG_DIAG_MESSAGE_DETAIL)
                                                                   : "");
    return refusal(result, "PostgreSQL", error);
}

static int run(PGconn *conn, const char *sql, int n, const char *const values[], pawl_error *error) {
    PGresult *result = PQexecParams(conn, sql, n, NULL, values, NULL, NULL, 0);
    int code = pawl_postgres_guard_result(result, error);
    PQclear(result);
    return code;
}

PAWL_EXPORT int pawl_postgres_guard_tell(PGconn *conn, const pawl_guard_write *given, pawl_error *error) {
    pawl_guard_write write = PAWL_GUARD_WRITE_INIT;
    int code = sized_take(&write, given, "guarded write", error);
    if (code) return code;
    char token[24];
    const char *values[] = {write.lock, token, write.by ? write.by : "", write.service ? write.service : ""};
    snprintf(token, sizeof token, "%" PRId64, write.token);
    if ((code = check_open(conn, error))) return code;
    return run(conn,
               "SELECT pg_catalog.set_config('pawl.lock', $1, true), pg_catalog.set_config('pawl.token', $2, true),"
               " pg_catalog.set_config('pawl.writer', $3, true), pg_catalog.set_config('pawl.service', $4, true)",
               4, values, error);
}

PAWL_EXPORT int pawl_postgres_guard(PGconn *conn, const pawl_guard_write *given, pawl_error *error) {
    pawl_guard_write write = PAWL_GUARD_WRITE_INIT;
    int code = sized_take(&write, given, "guarded write", error);
    if (code) return code;
    char token[24], seq[24];
    const char *values[] = {write.resource, write.lock, token, seq, write.by, write.service ? write.service : ""};
    snprintf(token, sizeof token, "%" PRId64, write.token);
    snprintf(seq, sizeof seq, "%" PRId64, write.seq);
    if ((code = check_open(conn, error))) return code;
    return run(conn,
               write.service
                   ? "SELECT pawl.guard($1, $2, $3, $4, $5) FROM pg_catalog.set_config('pawl.service', $6, true)"
                   : "SELECT pawl.guard($1, $2, $3, $4, $5) WHERE $6 OPERATOR(pg_catalog.=) ''::pg_catalog.text",
               6, values, error);
}

/* No row was changed: another token, or none? Asked in a statement of its own, which sees what the first one waited
 * for. */
static int missed(PGconn *conn, const pawl_postgres_fence *f, const char *key, const pawl_guard_write *write,
                  pawl_error *error) {
    char *sql = NULL;
    if (asprintf(&sql, "SELECT %s, %s FROM %s WHERE %s = $1", f->fence, f->by ? f->by : "''", f->table, f->key) < 0)
        return error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
    PGresult *result = PQexecParams(conn, sql, 1, NULL, &key, NULL, NULL, 0);
    free(sql);
    int code = pawl_postgres_guard_result(result, error);
    if (code == PAWL_OK && PQntuples(result) == 0)
        code = error_set(error, PAWL_GNORECORD, NULL, "no such row: %s has none with %s = '%s'", f->table, f->key, key);
    else if (code == PAWL_OK)
        code = error_set(error, PAWL_GSTALE, NULL,
                         "stale token %" PRId64 "%s%s; current is %s, written by %s. Nothing was changed.",
                         write->token, write->by ? " from " : "", write->by ? write->by : "", PQgetvalue(result, 0, 0),
                         *PQgetvalue(result, 0, 1) ? PQgetvalue(result, 0, 1) : "another");
    PQclear(result);
    return code;
}

static pawl_postgres_fence whole_fence(const pawl_postgres_fence *given) {
    pawl_postgres_fence f = {0};
    memcpy(&f, given, given->size < sizeof f ? given->size : sizeof f);
    return f;
}

/* The parameters: key, those of `set`, token, and who. To be freed; NULL: see *error. */
static char *update_text(const pawl_postgres_fence *f, const char *set, int n, pawl_error *error) {
    char *sql = NULL, by[64] = "";
    if (n < 0 || n > 1000) {
        error_set(error, PAWL_EINVALID, NULL, "from 0 to 1000 parameters, not %d", n);
        return NULL;
    }
    if (f->by) snprintf(by, sizeof by, " = $%d", n + 3);
    if (asprintf(&sql, "UPDATE %s SET %s, %s = $%d%s%s%s WHERE %s = $1 AND %s <= $%d", f->table, set, f->fence, n + 2,
                 f->by ? ", " : "", f->by ? f->by : "", by, f->key, f->fence, n + 2) >= 0)
        return sql;
    error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
    return NULL;
}

PAWL_EXPORT int pawl_postgres_guard_prepare(PGconn *conn, const pawl_postgres_fence *given, const char *set, int n,
                                            pawl_error *error) {
    pawl_error own = PAWL_ERROR_INIT;
    pawl_postgres_fence f = whole_fence(given);
    if (!f.statement) return error_set(error, PAWL_EINVALID, NULL, "a statement to be prepared needs a name");
    char *sql = update_text(&f, set, n, &own);
    if (!sql) return error_set(error, own.code, NULL, "%s", own.text);
    PGresult *result = PQprepare(conn, f.statement, sql, 0, NULL);
    free(sql);
    int code = pawl_postgres_guard_result(result, error);
    PQclear(result);
    return code;
}

static PGresult *update(PGconn *conn, const pawl_postgres_fence *f, const char *set, int n, const char *const all[],
                        pawl_error *own) {
    int parameters = n + (f->by ? 3 : 2);
    if (f->statement) return PQexecPrepared(conn, f->statement, parameters, all, NULL, NULL, 0);
    char *sql = update_text(f, set, n, own);
    PGresult *result = sql ? PQexecParams(conn, sql, parameters, NULL, all, NULL, NULL, 0) : NULL;
    free(sql);
    return result;
}

PAWL_EXPORT int pawl_postgres_guard_update(PGconn *conn, const pawl_postgres_fence *given, const char *key,
                                           const char *set, int n, const char *const values[],
                                           const pawl_guard_write *write_given, pawl_error *error) {
    pawl_error own = PAWL_ERROR_INIT;
    pawl_postgres_fence f = whole_fence(given);
    pawl_guard_write write = PAWL_GUARD_WRITE_INIT;
    int code = sized_take(&write, write_given, "guarded write", error);
    if (code) return code;
    char token[24];
    if (write.token == 0) return error_set(error, PAWL_GNOTOKEN, NULL, "no token: an update needs the lock's");
    if (write.token < 0 || write.token > INT64_C(9007199254740991))
        return error_set(error, PAWL_GDAMAGED, NULL, "damaged token %" PRId64 ": a token is 1 to 2^53-1", write.token);
    const char **all = calloc(n < 0 ? 1 : (size_t)n + 3, sizeof *all);
    if (!all) return error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
    snprintf(token, sizeof token, "%" PRId64, write.token);
    all[0] = key;
    for (int i = 0; i < n; i++) all[i + 1] = values[i];
    if (n >= 0) all[n + 1] = token, all[n + 2] = write.by;
    PGresult *result = update(conn, &f, set, n, all, &own);
    free(all);
    code = own.code ? error_set(error, own.code, NULL, "%s", own.text) : pawl_postgres_guard_result(result, error);
    bool none = code == PAWL_OK && strcmp(PQcmdTuples(result), "0") == 0;
    PQclear(result);
    return none ? missed(conn, &f, key, &write, error) : code;
}
