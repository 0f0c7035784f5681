/* driver_postgresql.c: the floor of PostgreSQL locks, with nothing but libpq and prepared statements. Uncontended:
 * pg_try_advisory_lock and pg_advisory_unlock. Contended: pg_advisory_lock, the server's own queue. No token, no limit
 * to the wait, no look at what answers. */
#include "driver.h"
#include "error.h"
#include <inttypes.h>
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct client {
    PGconn *conn;
    char key[240];
};

static int failed(const struct client *c, const char *what, pawl_error *error) {
    return error_set(error, PAWL_EUNREACHABLE, NULL, "raw %s: %s", what, PQerrorMessage(c->conn));
}

/* Our own parameters are not libpq's. */
static PGconn *dial(const char *url) {
    char bare[512];
    snprintf(bare, sizeof bare, "%.*s", (int)strcspn(url, "?"), url);
    return PQconnectdb(bare);
}

static void close_client(void *of, bool sweep) {
    (void)sweep;
    struct client *c = of;
    PQfinish(c->conn);
    free(c);
}

static bool prepare(struct client *c, const char *name, const char *sql) {
    PGresult *result = PQprepare(c->conn, name, sql, 0, NULL);
    bool good = PQresultStatus(result) == PGRES_COMMAND_OK;
    PQclear(result);
    return good;
}

static int open_client(const char *url, const char *key, bool contended, void **ret, pawl_error *error) {
    struct client *c = calloc(1, sizeof *c);
    if (!c) abort();
    snprintf(c->key, sizeof c->key, "raw:%s", key);
    c->conn = dial(url);
    if (PQstatus(c->conn) == CONNECTION_OK &&
        prepare(c, "acquire",
                contended ? "SELECT pg_advisory_lock(hashtextextended($1, 0)), true"
                          : "SELECT NULL, pg_try_advisory_lock(hashtextextended($1, 0))") &&
        prepare(c, "release", "SELECT NULL, pg_advisory_unlock(hashtextextended($1, 0))")) {
        *ret = c;
        return PAWL_OK;
    }
    int r = failed(c, "connect", error);
    close_client(c, false);
    return r;
}

static int ask(struct client *c, const char *name, pawl_error *error) {
    const char *values[] = {c->key};
    PGresult *result = PQexecPrepared(c->conn, name, 1, values, NULL, NULL, 0);
    bool good = PQresultStatus(result) == PGRES_TUPLES_OK && *PQgetvalue(result, 0, 1) == 't';
    int r = good ? PAWL_OK : failed(c, name, error);
    PQclear(result);
    return r;
}

static int acquire(void *of, pawl_error *error) { return ask(of, "acquire", error); }
static int release(void *of, pawl_error *error) { return ask(of, "release", error); }

static int64_t token(const void *of) {
    (void)of;
    return 0;
}

static int take_many(void *of, long n, pawl_error *error) {
    struct client *c = of;
    char sql[256];
    snprintf(sql, sizeof sql,
             "SELECT NULL, count(*) FILTER (WHERE pg_try_advisory_lock(hashtextextended($1 || ':' || i, 0))) = %ld "
             "FROM generate_series(1, %ld) i",
             n, n);
    return prepare(c, "many", sql) ? ask(c, "many", error) : failed(c, "many", error);
}

const struct driver driver_postgresql = {.name = "raw",
                                         .does = "pg_try_advisory_lock, pg_advisory_unlock (contended: "
                                                 "pg_advisory_lock) through libpq, prepared",
                                         .open = open_client,
                                         .acquire = acquire,
                                         .release = release,
                                         .token = token,
                                         .close = close_client,
                                         .take_many = take_many};

/* Requests are counted in transactions, which a session reports when it ends. */
void driver_postgresql_about(const char *url, char *ret_version, size_t size, uint64_t *ret_requests) {
    PGconn *conn = dial(url);
    PGresult *result = PQexec(conn, "SELECT 'postgresql ' || split_part(current_setting('server_version'), ' ', 1), "
                                    "xact_commit + xact_rollback FROM pg_stat_database WHERE datname = "
                                    "current_database()");
    if (PQresultStatus(result) == PGRES_TUPLES_OK) {
        snprintf(ret_version, size, "%s", PQgetvalue(result, 0, 0));
        *ret_requests = strtoull(PQgetvalue(result, 0, 1), NULL, 10);
    }
    PQclear(result);
    PQfinish(conn);
}
