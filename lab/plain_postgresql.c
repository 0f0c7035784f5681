/* plain_postgresql.c: pg_advisory_lock in a session, as the manual shows it: no settings, no look at what answers. */
#include "clock.h"
#include "error.h"
#include "plain.h"
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct client {
    PGconn *conn;
    char name[64];
};

static int open_client(const char *url, int64_t ttl_ms, void **ret, pawl_error *error) {
    char bare[512];
    (void)ttl_ms;
    snprintf(bare, sizeof bare, "%.*s", (int)strcspn(url, "?"), url);
    PGconn *conn = PQconnectdb(bare);
    if (PQstatus(conn) != CONNECTION_OK) {
        int code = error_set(error, PAWL_EUNREACHABLE, NULL, "%.300s", PQerrorMessage(conn));
        PQfinish(conn);
        return code;
    }
    struct client *c = calloc(1, sizeof *c);
    if (!c) abort();
    c->conn = conn;
    *ret = c;
    return PAWL_OK;
}

static void close_client(void *of) {
    struct client *c = of;
    PQfinish(c->conn);
    free(c);
}

static int ask(struct client *c, const char *sql, pawl_error *error) {
    char text[256];
    snprintf(text, sizeof text, sql, c->name);
    PGresult *result = PQexec(c->conn, text);
    bool rows = PQresultStatus(result) == PGRES_TUPLES_OK, yes = rows && strcmp(PQgetvalue(result, 0, 0), "t") == 0;
    PQclear(result);
    if (yes) return PAWL_OK;
    return rows ? error_set(error, PAWL_EBUSY, NULL, "the answer is false")
                : error_set(error, PAWL_EUNREACHABLE, NULL, "%.300s", PQerrorMessage(c->conn));
}

static int once(void *of, const char *name, int64_t *ret_token, pawl_error *error) {
    struct client *c = of;
    snprintf(c->name, sizeof c->name, "%s", name);
    *ret_token = 0;
    return ask(c, "SELECT pg_try_advisory_lock(hashtextextended('%s', 0))", error);
}

static int take(void *client, const char *name, int64_t wait_ms, int64_t *ret_token, pawl_error *error) {
    return plain_poll(once, client, name, wait_ms, ret_token, error);
}

static int release(void *of, pawl_error *error) {
    return ask(of, "SELECT pg_advisory_unlock(hashtextextended('%s', 0))", error);
}

const struct plain plain_postgresql = {"pg_try_advisory_lock every 50 ms in a session; pg_advisory_unlock", open_client,
                                       take, release, close_client};
