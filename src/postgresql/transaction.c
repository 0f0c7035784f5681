/* transaction.c: pawl_postgres.h: one statement on the caller's connection, in the caller's transaction. The work is
 * done by sql/lock.sql; here is what the server cannot know: the state of the connection, and when to stop waiting. */
#include "clock.h"
#include "export.h"
#include "pawl_postgres.h"
#include "refusal.h"
#include "sized.h"
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define GRACE_MS 10000 /* for the answer of a server that was told how long to wait */
#define NAME_SIZE 512
enum { OID_BYTEA = 17, OID_TEXT = 25, OID_FLOAT8 = 701 };

PAWL_EXPORT void pawl_postgres_options_init(pawl_postgres_options *options, size_t size) {
    const pawl_postgres_options defaults = PAWL_POSTGRES_INIT;
    sized_init(options, size, &defaults);
}

static void name_node(const PGconn *conn, char *ret, size_t size) {
    const char *host = PQhost(conn), *port = PQport(conn);
    snprintf(ret, size, "%.90s:%.20s", host ? host : "?", port ? port : "?");
}

static int check_state(const PGconn *conn, const char *node, pawl_error *error) {
    char text[256];
    if (PQstatus(conn) != CONNECTION_OK) {
        refusal_text(conn, text, sizeof text);
        return error_set(error, PAWL_EUNREACHABLE, node, "%s: the connection is closed: %s", node, text);
    }
    if (PQpipelineStatus(conn) != PQ_PIPELINE_OFF)
        return error_set(error, PAWL_EINVALID, node, "%s: the connection is in pipeline mode", node);
    switch (PQtransactionStatus(conn)) {
    case PQTRANS_INTRANS: return PAWL_OK;
    case PQTRANS_IDLE:
        return error_set(error, PAWL_EINVALID, node,
                         "%s: no transaction is open: the lock would end with its own statement; BEGIN first", node);
    case PQTRANS_INERROR:
        return error_set(error, PAWL_EINVALID, node, "%s: the transaction is aborted already; ROLLBACK first", node);
    case PQTRANS_ACTIVE:
        return error_set(error, PAWL_EINVALID, node,
                         "%s: another command is being executed on this connection; read its results first", node);
    case PQTRANS_UNKNOWN: break;
    }
    return error_set(error, PAWL_EUNREACHABLE, node, "%s: the state of the connection is unknown; close it", node);
}

static int gone(const PGconn *conn, const char *node, pawl_error *error) {
    char text[256];
    refusal_text(conn, text, sizeof text);
    return error_set(error, PAWL_EUNREACHABLE, node, "%s: no answer to the question for the lock: %s", node,
                     *text ? text : "the connection ended");
}

/* Until all is sent and the whole answer is here, whether the connection blocks or not. */
static int converse(PGconn *conn, int64_t until_ns, const char *node, PGresult **ret, pawl_error *error) {
    PGresult *next;
    for (;;) {
        int left = PQflush(conn);
        if (left < 0 || !PQconsumeInput(conn)) return gone(conn, node, error);
        if (!PQisBusy(conn)) break;
        if (clock_wait_fd(PQsocket(conn), left > 0 ? POLLIN | POLLOUT : POLLIN, until_ns, -1) != 1)
            return error_set(error, PAWL_EUNREACHABLE, node,
                             "%s does not answer (timed out); close the connection, its transaction is in doubt", node);
    }
    *ret = PQgetResult(conn);
    while ((next = PQgetResult(conn))) { /* at the end of one statement: NULL at once */
        PQclear(*ret);
        *ret = next;
    }
    return *ret ? PAWL_OK : gone(conn, node, error);
}

static int judge(const PGconn *conn, const PGresult *result, const pawl_postgres_options *o, const char *name,
                 const char *node, int64_t *ret_token, pawl_error *error) {
    if (PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) == 1) {
        if (PQgetisnull(result, 0, 0))
            return error_set(error, o->wait_ms > 0 ? PAWL_ETIMEOUT : PAWL_EBUSY, node, "%s: %.200s is busy%s", node,
                             name, o->wait_ms > 0 ? ", and was for as long as we waited" : "");
        long long token = 0;
        sscanf(PQgetvalue(result, 0, 0), "%lld", &token);
        *ret_token = token;
        return PAWL_OK;
    }
    if (PQstatus(conn) != CONNECTION_OK) return gone(conn, node, error);
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    int code = refusal(result, node, error);
    if (state && strcmp(state, "57014") == 0) code = PAWL_ECANCELLED;
    if (state && strcmp(state, "55P03") == 0) code = PAWL_ETIMEOUT;
    if (error) error->code = code;
    return code;
}

PAWL_EXPORT int pawl_postgres_lock(struct pg_conn *conn, const char *name, const pawl_postgres_options *options,
                                   int64_t *ret_token, pawl_error *error) {
    pawl_postgres_options o = PAWL_POSTGRES_INIT;
    int code = sized_take(&o, options, "options of pawl_postgres_lock", error);
    if (code) return code;
    size_t length = name ? strlen(name) : 0;
    if (!conn || length == 0 || length > NAME_SIZE || o.wait_ms < 0)
        return error_set(error, PAWL_EINVALID, NULL,
                         "a connection, a name of 1 to 512 bytes, and a time that is not negative are needed");
    char node[128], seconds[32], sql[192];
    name_node(conn, node, sizeof node);
    code = check_state(conn, node, error);
    if (code) return code;
    bool forever = o.wait_ms == PAWL_FOREVER;
    snprintf(seconds, sizeof seconds, "%.3f", (double)o.wait_ms / 1000);
    snprintf(sql, sizeof sql,
             "SELECT pawl.%slock%s(pg_catalog.convert_from($1, 'UTF8'), pg_catalog.make_interval(secs => $2), $3)",
             forever ? "" : "try_", o.shared ? "_shared" : "");
    const char *values[] = {name, forever ? NULL : seconds, o.key ? o.key : "hashtextextended"};
    const Oid types[] = {OID_BYTEA, OID_FLOAT8, OID_TEXT};
    const int lengths[] = {(int)length, 0, 0},
              formats[] = {1, 0, 0}; /* bytes: their meaning is ours, not the session's */
    if (!PQsendQueryParams(conn, sql, 3, types, values, lengths, formats, 0)) return gone(conn, node, error);
    PGresult *result = NULL;
    int64_t until_ns = forever ? INT64_MAX : clock_after_ms(clock_after_ms(clock_now_ns(), o.wait_ms), GRACE_MS);
    code = converse(conn, until_ns, node, &result, error);
    if (code == PAWL_OK) code = judge(conn, result, &o, name, node, ret_token, error);
    PQclear(result);
    return code;
}
