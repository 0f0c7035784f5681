/* statement.c: the statements, as they follow from the parameters of the URL. The order inside the first two is their
 * point: lock, then number, then the test whether the number is on disk; a waiter that drew its number before it had
 * the lock could hold with a lower one than its predecessor. The branches of one CASE are evaluated in order, and no
 * further than needed; a level of its own for each would cost more than the numbers do. */
#include "postgresql.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static char *format(const char *text, ...) __attribute__((format(printf, 1, 2)));
static char *format(const char *text, ...) {
    char *made;
    va_list arguments;
    va_start(arguments, text);
    if (vasprintf(&made, text, arguments) < 0) made = NULL;
    va_end(arguments);
    return made;
}

static char *try_and_token(const struct bk *bk, const char *shared) {
    const char *key = key_expression(bk->key);
    if (!bk->tokens) return format("SELECT CASE WHEN pg_try_advisory_lock%s(%s) THEN 0 END", shared, key);
    if (!bk->flush)
        return format("SELECT CASE WHEN pg_try_advisory_lock%s(%s) THEN nextval('pawl.token') END", shared, key);
    return format("SELECT CASE WHEN NOT pg_try_advisory_lock%s(%s) THEN NULL "
                  "WHEN nextval('pawl.token') IS NULL THEN NULL " /* it never is */
                  "WHEN pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn() THEN lastval() "
                  "WHEN pg_logical_emit_message(true, 'pawl', ''::text) IS NOT NULL THEN lastval() END",
                  shared, key);
}

/* How the lock stands in pg_locks: class, obj, sub. */
static char *place(const struct bk *bk) {
    if (bk->key == KEY_INT4X2)
        return format(
            "(SELECT (" KEY_PART("$1") ")::int8 & 4294967295 AS class, (" KEY_PART("$2") ")::int8 & 4294967295 AS obj, "
                                                                                         "2 AS sub)");
    return format("(SELECT k >> 32 & 4294967295 AS class, k & 4294967295 AS obj, 1 AS sub FROM (SELECT %s AS k) e)",
                  key_expression(bk->key));
}

#define IN_LOCKS                                                                                                       \
    "l.locktype = 'advisory' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) "       \
    "AND l.classid::int8 = p.class AND l.objid::int8 = p.obj AND l.objsubid = p.sub"

static char *looking(const struct bk *bk, const char *columns, const char *from, const char *where) {
    char *at = place(bk), *made = NULL;
    if (at)
        made = format("SELECT %s FROM pg_locks l CROSS JOIN %s p %s WHERE " IN_LOCKS " %s", columns, at, from, where);
    free(at);
    return made;
}

const char statement_bare_wait[] =
    "DO $$ DECLARE a bigint[] := string_to_array(current_setting('pawl.wait'), ',')::bigint[];"
    "BEGIN PERFORM set_config('lock_timeout', a[2]::text, true);"
    "IF a[1] = 1 THEN IF a[4] IS NULL THEN PERFORM pg_advisory_lock_shared(a[3]);"
    "ELSE PERFORM pg_advisory_lock_shared(a[3]::int4, a[4]::int4); END IF;"
    "ELSIF a[4] IS NULL THEN PERFORM pg_advisory_lock(a[3]);"
    "ELSE PERFORM pg_advisory_lock(a[3]::int4, a[4]::int4); END IF;"
    "EXCEPTION WHEN lock_not_available OR query_canceled THEN NULL; END $$;"
    "SELECT CASE WHEN EXISTS (SELECT FROM pg_locks l CROSS JOIN (SELECT b[1] AS shared, b[3] AS first, b[4] AS second "
    "FROM (SELECT string_to_array(current_setting('pawl.wait'), ',')::bigint[] AS b) x) w "
    "WHERE l.locktype = 'advisory' AND l.granted AND l.pid = pg_backend_pid() "
    "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND l.classid::int8 = CASE WHEN second IS NULL THEN first >> 32 ELSE first END & 4294967295 "
    "AND l.objid::int8 = coalesce(second, first) & 4294967295 AND l.objsubid = CASE WHEN second IS NULL THEN 1 ELSE 2 "
    "END AND l.mode = CASE shared WHEN 1 THEN 'ShareLock' ELSE 'ExclusiveLock' END) THEN 0 END";

bool statements_make(struct bk *bk) {
    const char *key = key_expression(bk->key), *two = bk->key == KEY_INT4X2 ? "NULL, " : "",
               *none = *two ? "" : ", NULL, NULL";
    int next = bk->key == KEY_INT4X2 ? 3 : 2;
    bk->sql[TRY_X] = try_and_token(bk, "");
    bk->sql[TRY_S] = try_and_token(bk, "_shared");
    bk->sql[UNLOCK_X] = format("SELECT pg_advisory_unlock(%s)", key);
    bk->sql[UNLOCK_S] = format("SELECT pg_advisory_unlock_shared(%s)", key);
    bk->sql[WAIT] = bk->tokens
                        ? format("SELECT pawl.wait(%s%s%s, $%d, $%d, true, %s)", two, key, none, next, next + 1,
                                 bk->flush ? "true" : "false")
                        : format("SELECT set_config('pawl.wait', concat_ws(',', $%d::bool::int4, $%d::int4, %s), "
                                 "false)",
                                 next, next + 1, key);
    bk->sql[HELD] = looking(bk, "l.mode", "", "AND l.granted AND l.pid = pg_backend_pid()");
    bk->sql[HOLDER] = looking(bk, "a.application_name, a.pid, a.usename, host(a.client_addr)",
                              "LEFT JOIN pg_stat_activity a ON a.pid = l.pid", "AND l.granted LIMIT 1");
    for (int i = 0; i < N_STATEMENTS; i++)
        if (!bk->sql[i]) return false;
    return true;
}

void statements_free(struct bk *bk) {
    for (int i = 0; i < N_STATEMENTS; i++) free(bk->sql[i]);
}
