/* pawl_postgres.h: a lock inside a PostgreSQL transaction of your own, on a connection of your own (libpq).
 *
 * The lock ends with the transaction, so it is right behind a pooler in transaction mode, where a lock of a session is
 * not. It excludes, and is excluded by, pawl's other locks of the same database, name and key: pawl.lock() in SQL, and
 * sessions (`pawl run -u postgresql:...`). `pawl init URL` once, before the first use.
 *
 *     PQexec(conn, "BEGIN");
 *     code = pawl_postgres_lock(conn, "acct:7", NULL, &token, &error);
 *     ... statements that read and write what the lock protects ...
 *     PQexec(conn, "COMMIT");
 *
 * Link with -lpawl-postgres (pkg-config libpawl-postgres), which needs libpq, but not libpawl. */
#ifndef PAWL_POSTGRES_H
#define PAWL_POSTGRES_H
#include "pawl.h"
#include "pawl_guard.h"
#ifdef __cplusplus
extern "C" {
#endif

struct pg_conn; /* PGconn of <libpq-fe.h> */

typedef struct {
    size_t size;
    int64_t wait_ms; /* 0: try once; PAWL_FOREVER: as long as lock_timeout of the session allows */
    int shared;      /* not zero: with other shared holders */
    const char *key; /* how the name becomes a number, as ?key= of a URL: "hashtext"; NULL: "hashtextextended" */
} pawl_postgres_options;
#define PAWL_POSTGRES_INIT                                                                                             \
    { sizeof(pawl_postgres_options), PAWL_FOREVER, 0, NULL }

/* Takes the lock `name` (1 to 512 bytes of UTF-8, whatever the client_encoding) for the transaction that is open on
 * `conn`, which it neither begins nor ends. The connection is used by one thread at a time, as libpq demands, and must
 * not be in pipeline mode. Blocks for at most wait_ms + 10 s.
 *
 * The token is 1 .. 2^53-1 and rises with every grant of the name. It is as durable as the transaction: what you tell
 * to the world outside before COMMIT may have to be told again with the same token after a crash of the server.
 *
 * PAWL_EBUSY, PAWL_ETIMEOUT: not taken, and the transaction goes on. Otherwise, once the server has refused, the
 * transaction is aborted (PQtransactionStatus tells) and only ROLLBACK helps:
 * - PAWL_EINVALID: no transaction is open, it is aborted already, the connection is busy, or name or key are wrong
 * - PAWL_EUNSAFE: REPEATABLE READ or SERIALIZABLE, whose snapshot may be older than the lock; or pawl is not installed
 * - PAWL_ECANCELLED: PQcancel, statement_timeout
 * - PAWL_ETIMEOUT: with PAWL_FOREVER: lock_timeout of the session
 * - PAWL_EBUSY: with wait_ms not 0: the server ended a deadlock
 * - PAWL_EUNREACHABLE: the connection is gone, or gave no answer in time (close it); a standby; shutting down
 * - PAWL_EDENIED: this role may not use the schema */
int pawl_postgres_lock(struct pg_conn *conn, const char *name, const pawl_postgres_options *options, int64_t *ret_token,
                       pawl_error *error);

/* PAWL_POSTGRES_INIT, for languages without a preprocessor. */
void pawl_postgres_options_init(pawl_postgres_options *options, size_t size);

/* --- guards: the resource's side, in the transaction that changes it; `pawl init` or `pawl guard install` once.
 *
 * Of a write these use resource, lock, token, seq, by and service. Each blocks as long as its statement does
 * (lock_timeout and statement_timeout of the session). A refusal is PAWL_G..., and its text names both workers and both
 * tokens; all but pawl_postgres_guard_update leave the transaction aborted then, so that nothing is changed. */

struct pg_result; /* PGresult of <libpq-fe.h> */

/* pawl.guard(): before the statements that change what the resource stands for. Raises the mark, with the transaction.
 */
int pawl_postgres_guard(struct pg_conn *conn, const pawl_guard_write *write, pawl_error *error);
/* For protected tables: tells them who writes, until the transaction ends. Checks nothing. */
int pawl_postgres_guard_tell(struct pg_conn *conn, const pawl_guard_write *write, pawl_error *error);
/* What the result of any statement of a protected table means: PAWL_OK, PAWL_G..., or PAWL_E... . */
int pawl_postgres_guard_result(const struct pg_result *result, pawl_error *error);

/* Where a table of yours keeps the token; SQL identifiers, quoted if they need it. */
typedef struct {
    size_t size;
    const char *table, *key; /* key: the column that names the row */
    const char *fence, *by;  /* columns: bigint NOT NULL DEFAULT 0, and text or NULL: none */
    const char *statement;   /* NULL, or the name of the prepared statement that does it, as you chose it */
} pawl_postgres_fence;

/* UPDATE table SET `set`, fence = token, by = who WHERE key = $1 AND fence <= token: one atomic step in READ COMMITTED.
 * The parameters of `set` are $2 and on, n of them. PAWL_GSTALE; PAWL_GNORECORD: there is no such row, which a bare
 * UPDATE cannot tell from stale. The cheapest guard; only as good as every writer's use of it. */
int pawl_postgres_guard_update(struct pg_conn *conn, const pawl_postgres_fence *fence, const char *key, const char *set,
                               int n, const char *const values[], const pawl_guard_write *write, pawl_error *error);

/* Prepares that statement on this connection, under the name in `fence`; pawl_postgres_guard_update then executes it,
 * and does not look at `set`. Parsed once it costs as much as an UPDATE without a guard. Not behind a pooler that gives
 * the next transaction another server connection. */
int pawl_postgres_guard_prepare(struct pg_conn *conn, const pawl_postgres_fence *fence, const char *set, int n,
                                pawl_error *error);

#ifdef __cplusplus
}
#endif
#endif
