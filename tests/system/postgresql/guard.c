/* guard.c: pawl.guard, protected tables, and pawl_postgres.h's guards, on a real server. */
#include "clock.h"
#include "pawl_postgres.h"
#include "server.h"
#include "sql.h"
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct server pooler;
static PGconn *a, *b; /* two workers */

static int set_up(void **state) {
    (void)state;
    a = sql_dial(primary.port, "application_name=a");
    b = sql_dial(primary.port, "application_name=b");
    sql_does(
        a, "SET client_min_messages = warning; TRUNCATE pawl.guarded; DROP SCHEMA IF EXISTS t CASCADE; CREATE SCHEMA t;"
           "SET search_path = t");
    sql_does(b, "SET search_path = t");
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    PQfinish(a);
    PQfinish(b);
    server_stop(&pooler);
    return 0;
}

/* Statements in one transaction with a token. */
static void with(PGconn *conn, const char *lock, long long token, const char *sql) {
    sql_does(conn, "BEGIN; SET LOCAL pawl.lock = '%s'; SET LOCAL pawl.token = '%lld'; %s; COMMIT", lock, token, sql);
}

static void refused(PGconn *conn, const char *lock, long long token, const char *sql, const char *state,
                    const char *saying) {
    char text[2000];
    snprintf(text, sizeof text, "BEGIN; SET LOCAL pawl.lock = '%s'; SET LOCAL pawl.token = '%lld'; %s", lock, token,
             sql);
    sql_refuses(conn, text, state, saying);
    sql_does(conn, "ROLLBACK");
}

static void is(const char *sql, const char *want) {
    char *got = sql_ask(a, sql);
    assert_string_equal(got, want);
    free(got);
}

/* Waits for a lock that somebody holds: yes, as pg_locks says. */
static bool waits(void *conn) {
    return sql_number(a, "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = %d", PQbackendPID(conn)) > 0;
}

static void test_answers(void **state) {
    (void)state;
    assert_int_equal(sql_number(a, "SELECT pawl.guard('r', 'acct', 7)"), 7);
    assert_int_equal(sql_number(a, "SELECT pawl.guard('r', 'acct', 7)"), 7);
    assert_int_equal(sql_number(a, "SELECT pawl.guard('r', 'acct', 8, 0, 'worker 2')"), 8);
    sql_refuses(a, "SELECT pawl.guard('r', 'acct', 7, 0, 'worker 1')", "PW001",
                "stale token 7 from worker 1; current is 8, written by worker 2");
    sql_refuses(a, "SELECT pawl.guard('r', 'other', 9)", "PW002", "'r' belongs to lock 'acct', not 'other'");
    sql_refuses(a, "SELECT pawl.guard('r', 'acct', NULL)", "PW003", "brought no token");
    sql_refuses(a, "SELECT pawl.guard('r', NULL, 9)", "PW003", "brought no token");
    sql_refuses(a, "SELECT pawl.guard('r', 'acct', 0)", "PW003", "brought no token");
    sql_refuses(a, "SELECT pawl.guard('r', 'acct', -1)", "PW004", "damaged token -1");
    sql_refuses(a, "SELECT pawl.guard('r', 'acct', 9007199254740991)", "PW004", "damaged token 9007199254740991");
    sql_refuses(a, "SELECT pawl.guard('r', 'acct', 8, 1)", "22023", "sequence number");
    sql_refuses(a, "SELECT pawl.guard('', 'acct', 8)", "22023", "1 to 512 bytes");
    is("SELECT lock || token || writer FROM pawl.guarded", "acct8worker 2");
    PGresult *result = PQexec(a, "SELECT pawl.guard('r', 'acct', 7, 0, 'worker 1')");
    const char *detail = PQresultErrorField(result, PG_DIAG_MESSAGE_DETAIL);
    assert_non_null(detail);
    for (const char **part = (const char *[]){"\"worker\" : \"worker 1\"", "\"attempted\" : \"7\"",
                                              "\"current\" : \"8\"", "\"by\" : \"worker 2\"", NULL};
         *part; part++)
        if (!strstr(detail, *part)) fail_msg("%s has no %s", detail, *part);
    PQclear(result);
    sql_does(a, "BEGIN; SELECT pawl.guard('r', 'acct', 9); ROLLBACK"); /* the mark is of the transaction */
    is("SELECT token FROM pawl.guarded", "8");
    sql_does(a, "INSERT INTO pawl.guarded SELECT 's', 'acct', 5, 3, 'seq', true, true, 'w', 0, '', ''");
    sql_refuses(a, "SELECT pawl.guard('s', 'acct', 5, 3)", "PW001", "written already");
    sql_refuses(a, "SELECT pawl.guard('s', 'acct', 5)", "22023", "rule seq");
    assert_int_equal(sql_number(a, "SELECT pawl.guard('s', 'acct', 5, 4)"), 5);
}

/* A row is its first tuple still: nothing new was written. And two of the same holder go on side by side. */
static void test_an_equal_token_shares_and_writes_nothing(void **state) {
    (void)state;
    sql_does(a, "SELECT pawl.guard('r', 'acct', 7)");
    char *before = sql_ask(a, "SELECT ctid || xmin::text FROM pawl.guarded");
    sql_does(a, "BEGIN; SELECT pawl.guard('r', 'acct', 7)");
    sql_does(b, "BEGIN; SET LOCAL lock_timeout = '5s'; SELECT pawl.guard('r', 'acct', 7); COMMIT");
    sql_does(a, "COMMIT");
    is("SELECT ctid || xmin::text FROM pawl.guarded", before);
    free(before);
}

/* Whoever comes with a higher token waits for the older one's transaction to end; then the older one is refused. */
static void test_a_later_holder_waits_for_what_is_under_way(void **state) {
    (void)state;
    PGconn *later = sql_dial(primary.port, "");
    sql_does(a, "CREATE TABLE acct (id int PRIMARY KEY, balance int); INSERT INTO acct VALUES (1, 0);"
                "SELECT pawl.guard('r', 'acct', 7)");
    sql_does(b, "BEGIN; SELECT pawl.guard('r', 'acct', 7); UPDATE acct SET balance = 7");
    assert_int_equal(PQsendQuery(later, "SELECT pawl.guard('r', 'acct', 8), (SELECT balance FROM t.acct)"), 1);
    PQflush(later);
    if (!server_until(waits, later, 10000)) fail_msg("the later one did not wait");
    sql_does(b, "COMMIT");
    PGresult *result = PQgetResult(later);
    assert_int_equal(PQresultStatus(result), PGRES_TUPLES_OK);
    PQclear(result);
    PQclear(PQgetResult(later));
    sql_refuses(b, "SELECT pawl.guard('r', 'acct', 7)", "PW001", "current is 8");
    PQfinish(later);
}

/* Many that raise the mark at the same time: no deadlock, and the highest stays. */
static void test_writers_at_once(void **state) {
    (void)state;
    enum { N = 8, ROUNDS = 40 };
    PGconn *conns[N];
    int stale = 0;
    for (int i = 0; i < N; i++) conns[i] = sql_dial(primary.port, "");
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < N; i++) {
            char sql[100];
            snprintf(sql, sizeof sql, "SELECT pawl.guard('race%d', 'acct', %d)", round % 20,
                     1000 + round * N + (i * 5 + round) % N);
            assert_int_equal(PQsendQuery(conns[i], sql), 1);
            PQflush(conns[i]);
        }
        for (int i = 0; i < N; i++) {
            PGresult *result = PQgetResult(conns[i]);
            const char *code = PQresultErrorField(result, PG_DIAG_SQLSTATE);
            if (code && strcmp(code, "PW001") != 0) fail_msg("%s", PQresultErrorMessage(result));
            stale += code != NULL;
            PQclear(result);
            PQclear(PQgetResult(conns[i]));
        }
        char sql[80], want[24];
        snprintf(sql, sizeof sql, "SELECT token FROM pawl.guarded WHERE resource = 'race%d'", round % 20);
        snprintf(want, sizeof want, "%d", 1000 + round * N + N - 1);
        is(sql, want);
    }
    print_message("# %d of %d were stale\n", stale, N * ROUNDS);
    for (int i = 0; i < N; i++) PQfinish(conns[i]);
}

/* A snapshot that is older than the mark is an error of the database, never a stale write. */
static void test_repeatable_read(void **state) {
    (void)state;
    sql_does(a, "SELECT pawl.guard('r', 'acct', 7)");
    sql_does(b, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pawl.guarded");
    sql_does(a, "SELECT pawl.guard('r', 'acct', 8)");
    sql_refuses(b, "SELECT pawl.guard('r', 'acct', 7)", "40001", "serialize");
    sql_does(b, "ROLLBACK");
}

static void test_a_protected_table(void **state) {
    (void)state;
    sql_does(a, "CREATE TABLE acct (id text PRIMARY KEY, balance int); SELECT pawl.protect('acct')");
    sql_refuses(a, "INSERT INTO acct VALUES ('9021', 1000)", "PW003", "'t.acct:9021' is guarded");
    with(a, "l", 7, "INSERT INTO acct VALUES ('9021', 1000)");
    sql_refuses(a, "UPDATE acct SET balance = 1", "PW003", "brought no token");
    sql_refuses(a, "DELETE FROM acct", "PW003", "brought no token");
    with(a, "l", 8, "UPDATE acct SET balance = 2500 WHERE id = '9021'");
    sql_refuses(a, "BEGIN; SET LOCAL pawl.lock = 'l'; SET LOCAL pawl.token = '-8'; UPDATE acct SET balance = 1",
                "PW004", "damaged token -8");
    sql_does(a, "ROLLBACK");
    with(a, "l", 8, "UPDATE acct SET balance = 2600 WHERE id = '9021'");
    refused(a, "l", 7, "UPDATE acct SET balance = 1500", "PW001", "stale token 7 from a (process");
    refused(a, "m", 9, "UPDATE acct SET balance = 1500", "PW002", "belongs to lock 'l'");
    refused(a, "l", 7, "DELETE FROM acct", "PW001", "current is 8");
    sql_refuses(a, "BEGIN; SET LOCAL pawl.lock = 'l'; SET LOCAL pawl.token = '8x'; UPDATE acct SET balance = 1",
                "PW004", "damaged token '8x'");
    sql_does(a, "ROLLBACK");
    sql_refuses(a, "TRUNCATE acct", "PW003", "TRUNCATE");
    is("SELECT balance FROM acct", "2600");
    refused(a, "l", 7, "UPDATE acct SET id = 'fresh'", "PW001", "current is 8"); /* both names count */
    with(a, "l", 9, "INSERT INTO acct VALUES ('other', 1)");
    refused(a, "l", 8, "UPDATE acct SET id = 'other2' WHERE id = 'other'", "PW001", "current is 9");
    with(a, "l", 9, "DELETE FROM acct WHERE id = 'other'");
    sql_does(a, "SELECT pawl.unprotect('acct'); UPDATE acct SET balance = 0; TRUNCATE acct");
    sql_refuses(a, "CREATE TABLE keyless (n int); SELECT pawl.protect('keyless')", "22023", "no primary key");
    sql_refuses(a, "CREATE VIEW v AS SELECT 1 AS n; SELECT pawl.protect('v')", "42809", "not a table");
}

static void test_quoting(void **state) {
    (void)state;
    sql_does(a, "CREATE TABLE \"My \"\"Table's\"\" %%s\" (\"the Key's \"\"name\"\"\" text PRIMARY KEY, n int);"
                "SELECT pawl.protect('\"My \"\"Table''s\"\" %%s\"')");
    static const char *const keys[] = {
        "it''s", "with space", "\xC3\xA9t\xC3\xA9 \xE2\x82\xAC", "a\"b", "a\\b", "%s %% $1", "new\nline", ""};
    char sql[1500], longest[301];
    memset(longest, 'k', 300);
    longest[300] = 0;
    for (size_t i = 0; i <= sizeof keys / sizeof *keys; i++) {
        const char *key = i < sizeof keys / sizeof *keys ? keys[i] : longest;
        snprintf(sql, sizeof sql, "INSERT INTO \"My \"\"Table's\"\" %%s\" VALUES ('%s', 1)", key);
        with(a, "lock ''of'' \"it\"", 10, sql);
        snprintf(sql, sizeof sql, "UPDATE \"My \"\"Table's\"\" %%s\" SET n = 2 WHERE \"the Key's \"\"name\"\"\" = '%s'",
                 key);
        refused(a, "lock ''of'' \"it\"", 9, sql, "PW001", "current is 10");
        with(a, "lock ''of'' \"it\"", 11, sql);
        snprintf(sql, sizeof sql,
                 "SELECT count(*) FROM pawl.guarded WHERE resource = 't.My \"Table''s\" %%s:' || '%s' AND token = 11",
                 key);
        is(sql, "1");
    }
    is("SELECT sum(n) FROM \"My \"\"Table's\"\" %s\"", "18");
    memset(longest, 'x', 300);
    snprintf(sql, sizeof sql, "INSERT INTO \"My \"\"Table's\"\" %%s\" VALUES ('%s%s', 1)", longest, longest);
    refused(a, "l", 10, sql, "22023", "1 to 512 bytes");
}

static void test_resource_expression_and_composite_keys(void **state) {
    (void)state;
    sql_does(
        a, "CREATE TABLE post (id int PRIMARY KEY, owner text, cents int);"
           "SELECT pawl.protect('post', '''acct '' || owner || CASE WHEN cents %% 2 = 0 THEN '''' ELSE '' odd'' END')");
    with(a, "l", 7, "INSERT INTO post VALUES (1, 'ana', 2), (2, 'ana', 4), (3, 'bob', 1)");
    is("SELECT string_agg(resource, ', ' ORDER BY resource) FROM pawl.guarded", "acct ana, acct bob odd");
    sql_refuses(a, "SELECT pawl.protect('post', 'no_such_column')", "42703", "no_such_column");
    sql_does(a, "TRUNCATE pawl.guarded; CREATE TABLE pair (a text, b timestamptz, n int, PRIMARY KEY (a, b)); SELECT "
                "pawl.protect('pair')");
    with(a, "l", 7, "INSERT INTO pair VALUES ('x,y', '2026-01-02 03:04:05+00')");
    sql_does(a, "SET timezone = 'Asia/Tokyo'; SET datestyle = 'German'");
    with(a, "l", 7, "UPDATE pair SET n = 1");
    is("SELECT string_agg(resource, ' ' ORDER BY resource) FROM pawl.guarded",
       "t.pair:(\"x,y\",\"2026-01-02 03:04:05+00\")");
}

/* A row must have a resource; a table may be renamed; pawl's own tables are not to be protected. */
static void test_rows_without_a_resource_and_renamed_tables(void **state) {
    (void)state;
    sql_does(a,
             "CREATE TABLE loose (id int PRIMARY KEY, owner text); SELECT pawl.protect('loose', '''acct '' || owner')");
    with(a, "l", 7, "INSERT INTO loose VALUES (1, 'ana')");
    sql_refuses(a, "INSERT INTO loose VALUES (2, NULL)", "22004", "without a resource");
    refused(a, "l", 8, "INSERT INTO loose VALUES (2, NULL)", "22004", "without a resource");
    refused(a, "l", 8, "UPDATE loose SET owner = NULL", "22004", "without a resource");
    sql_does(a,
             "CREATE TABLE sw (id int PRIMARY KEY, v int); SELECT pawl.protect('sw', '''old '' || v');"
             "ALTER TABLE sw RENAME TO sw_old; CREATE TABLE sw (id int PRIMARY KEY, v int); SELECT pawl.protect('sw')");
    with(a, "l", 9, "INSERT INTO sw_old VALUES (1, 5)");
    is("SELECT string_agg(resource, ', ') FROM pawl.guarded WHERE token = 9", "old 5");
    sql_does(a, "SELECT pawl.unprotect('sw'), pawl.unprotect('sw_old'); INSERT INTO sw_old VALUES (2, 2)");
    sql_refuses(a, "SELECT pawl.protect('pawl.guarded')", "42809", "pawl's own");
}

/* A key of a collation for which other bytes are equal is a name by its bytes; and so is what pawl.guard is given. */
static void test_collations(void **state) {
    (void)state;
    sql_does(a, "CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
                "CREATE TABLE ci (id text COLLATE ci PRIMARY KEY, n int); SELECT pawl.protect('ci')");
    with(a, "l", 7, "INSERT INTO ci VALUES ('Name', 1)");
    with(a, "l", 8, "UPDATE ci SET id = 'NAME' WHERE id = 'name'");
    refused(a, "l", 7, "UPDATE ci SET n = 2 WHERE id = 'name'", "PW001", "current is 8");
    is("SELECT string_agg(resource || token, ' ' ORDER BY resource) FROM pawl.guarded", "t.ci:NAME8 t.ci:Name8");
    assert_int_equal(sql_number(a, "SELECT pawl.guard('r ' || id, 'l', 9) FROM ci"), 9);
    assert_int_equal(sql_number(a, "SELECT pawl.guard('r ' || id, 'l', 9) FROM ci"), 9);
}

static void test_partitions_inheritance_conflicts_and_copy(void **state) {
    (void)state;
    sql_does(a, "CREATE TABLE p (id int, n int, PRIMARY KEY (id)) PARTITION BY RANGE (id);"
                "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10); SELECT pawl.protect('p');"
                "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)");
    with(a, "l", 7, "INSERT INTO p VALUES (1, 1), (11, 1)");
    refused(a, "l", 6, "UPDATE p SET n = 2 WHERE id = 11", "PW001", "current is 7");
    refused(a, "l", 6, "UPDATE p2 SET n = 2", "PW001", "current is 7");
    sql_refuses(a, "UPDATE p1 SET n = 2", "PW003", "'t.p:1' is guarded");
    refused(a, "l", 6, "UPDATE p SET id = 12 WHERE id = 1", "PW001", "current is 7"); /* from one to the other */
    with(a, "l", 8, "UPDATE p SET id = 12 WHERE id = 1");
    sql_refuses(a, "TRUNCATE p1", "PW003", "TRUNCATE");
    sql_does(a, "CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent);"
                "SELECT pawl.protect('parent')");
    sql_refuses(a, "INSERT INTO child VALUES (1)", "PW003", "'t.parent:1' is guarded");
    with(a, "l", 7, "INSERT INTO child VALUES (1)");
    refused(a, "l", 6, "DELETE FROM parent", "PW001", "current is 7");
    sql_does(a, "CREATE TABLE acct (id int PRIMARY KEY, n int); SELECT pawl.protect('acct')");
    with(a, "l", 7, "INSERT INTO acct VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET n = acct.n + 1");
    with(a, "l", 8, "INSERT INTO acct VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET n = acct.n + 1");
    refused(a, "l", 7, "INSERT INTO acct VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET n = 0", "PW001", "current is 8");
    sql_does(a, "INSERT INTO acct VALUES (1, 1) ON CONFLICT DO NOTHING"); /* it writes nothing */
    is("SELECT n FROM acct", "2");
    PGresult *copy = PQexec(a, "COPY acct FROM STDIN");
    assert_int_equal(PQresultStatus(copy), PGRES_COPY_IN);
    PQclear(copy);
    PQputCopyData(a, "2\t2\n", 4);
    PQputCopyEnd(a, NULL);
    copy = PQgetResult(a);
    assert_string_equal(PQresultErrorField(copy, PG_DIAG_SQLSTATE), "PW003");
    PQclear(copy);
    PQclear(PQgetResult(a));
    is("SELECT count(*) FROM acct", "1");
}

/* One that may use it, no owner: it cannot lower a mark, and can do nothing round the functions. */
static void test_roles(void **state) {
    (void)state;
    sql_does(a, "DROP ROLE IF EXISTS app; CREATE ROLE app; GRANT USAGE ON SCHEMA t TO app; CREATE TABLE acct (id int "
                "PRIMARY KEY, n int);"
                "GRANT ALL ON acct TO app; SELECT pawl.protect('acct'); SET ROLE app");
    with(a, "l", 7, "INSERT INTO acct VALUES (1, 1)");
    refused(a, "l", 6, "UPDATE acct SET n = 2", "PW001", "current is 7");
    sql_refuses(a, "SELECT pawl.guard_reset('t.acct:1', 1, 'x')", "42501", "permission denied");
    sql_refuses(a, "UPDATE pawl.guarded SET token = 1", "42501", "permission denied");
    sql_refuses(a, "ALTER TABLE acct DISABLE TRIGGER pawl_guard", "42501", "must be owner");
    sql_does(a, "RESET ROLE; SELECT pawl.guard_reset('t.acct:1', 3, 'counter lost', 'ana')");
    with(a, "l", 4, "UPDATE acct SET n = 2");
    is("SELECT from_token || ' ' || to_token || ' ' || writer || ' ' || why FROM pawl.guard_reset",
       "7 3 ana counter lost");
    sql_does(a, "DROP OWNED BY app; DROP ROLE app");
}

/* The trigger looks with the rights of the schema's owner. What a user puts into the way of names, or makes of a type,
 * and even the trigger on a table of his own, runs with his. */
static void test_nothing_of_the_users_runs_as_the_owner(void **state) {
    (void)state;
    sql_does(a,
             "DROP ROLE IF EXISTS app; CREATE ROLE app; GRANT CREATE, USAGE ON SCHEMA t TO app; SET ROLE app;"
             "CREATE FUNCTION tell(text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN IF current_user <> 'app' THEN RAISE "
             "'as %%', current_user; END IF; RETURN $1; END $$;"
             "CREATE FUNCTION eq(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT tell(''t'')::boolean';"
             "CREATE FUNCTION eq(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT tell(''t'')::boolean';"
             "CREATE OPERATOR = (leftarg = text, rightarg = text, function = eq);"
             "CREATE OPERATOR = (leftarg = bigint, rightarg = bigint, function = eq);"
             "CREATE FUNCTION current_setting(text, boolean) RETURNS text LANGUAGE sql AS 'SELECT tell(''8'')';"
             "CREATE FUNCTION concat(text, text) RETURNS text LANGUAGE sql AS 'SELECT tell($1)';"
             "CREATE TYPE sly AS (v int); CREATE FUNCTION sly(sly) RETURNS text LANGUAGE sql AS 'SELECT tell(''x'')';"
             "CREATE CAST (sly AS text) WITH FUNCTION sly(sly) AS IMPLICIT;"
             "CREATE TABLE own (id sly, n int); CREATE TABLE acct (id int PRIMARY KEY, n int); RESET ROLE;"
             "SELECT pawl.protect('acct'); SET ROLE app; SET search_path = t, pg_catalog");
    assert_int_equal(sql_number(a, "SELECT count(*) FROM (VALUES ('a'::text)) v(x) WHERE x = 'b'"),
                     1); /* it is in the way */
    char *oid = sql_ask(a, "SELECT 't.acct'::regclass::oid");
    sql_does(a, "CREATE TRIGGER theirs AFTER INSERT ON own FOR EACH ROW EXECUTE FUNCTION pawl.protect_%s()", oid);
    free(oid);
    for (int i = 0; i < 2; i++) {
        with(a, "l", 8, "INSERT INTO own VALUES (ROW(1), 1)");
        with(a, "l", 8, i ? "UPDATE acct SET n = 2" : "INSERT INTO acct VALUES (1, 1)");
    }
    refused(a, "l", 7, "UPDATE acct SET n = 2", "PW001", "current is 8");
    sql_does(a, "RESET ROLE; DROP OWNED BY app CASCADE; DROP ROLE app; SET search_path = t");
    is("SELECT string_agg(resource, ' ' ORDER BY resource) FROM pawl.guarded", "t.acct:(1) t.acct:1");
}

static void test_refusals_are_kept(void **state) {
    (void)state;
    pawl_guard *guard;
    pawl_guard_write write = PAWL_GUARD_WRITE_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    write.resource = "kept", write.lock = "acct", write.token = 8, write.by = "worker 2";
    assert_int_equal(pawl_guard_open(primary.url, NULL, &guard, &error), PAWL_OK);
    assert_int_equal(pawl_guard_put(guard, &write, "x", 1, &error), PAWL_OK);
    write.token = 7, write.by = "worker 1";
    assert_int_equal(pawl_guard_put(guard, &write, "y", 1, &error), PAWL_GSTALE);
    pawl_guard_close(guard);
    is("SELECT answer || ' ' || worker || ' ' || attempted || ' ' || current || ' ' || writer FROM pawl.refusal WHERE "
       "resource = 'kept'",
       "stale worker 1 7 8 worker 2");
    sql_refuses(a, "SELECT pawl.guard('kept', 'acct', 5, 0, 'zombie')", "PW001", "stale");
    char command[300];
    snprintf(command, sizeof command,
             "grep -q 'stale token 5 from zombie; current is 8' %s/log %s/data/log/* 2>/dev/null", primary.dir,
             primary.dir);
    assert_int_equal(system(command), 0); /* the log keeps those of a transaction that failed */
}

static void test_behind_pgbouncer(void **state) {
    (void)state;
    if (!server_has_pgbouncer()) skip();
    sql_does(a, "CREATE TABLE acct (id int PRIMARY KEY, n int); SELECT pawl.protect('acct')");
    server_start_pgbouncer(&pooler, &primary, "transaction", "default_pool_size = 1\n");
    PGconn *one = sql_dial(pooler.port, ""), *two = sql_dial(pooler.port, "");
    with(one, "l", 7, "INSERT INTO t.acct VALUES (1, 1)");
    sql_refuses(two, "UPDATE t.acct SET n = 2", "PW003",
                "brought no token"); /* the token stayed with its transaction */
    with(two, "l", 8, "UPDATE t.acct SET n = 3");
    refused(one, "l", 7, "UPDATE t.acct SET n = 4", "PW001", "current is 8");
    PQfinish(one);
    PQfinish(two);
    char url[128];
    pawl_guard *guard;
    pawl_guard_write write = PAWL_GUARD_WRITE_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    write.resource = "pooled", write.lock = "acct", write.token = 8;
    snprintf(url, sizeof url, "postgresql://postgres@127.0.0.1:%d/postgres", pooler.port);
    assert_int_equal(pawl_guard_open(url, NULL, &guard, &error), PAWL_OK);
    for (int i = 0; i < 3; i++)
        if (pawl_guard_put(guard, &write, "x", 1, &error)) fail_msg("%s", error.text);
    write.token = 7;
    assert_int_equal(pawl_guard_put(guard, &write, "x", 1, &error), PAWL_GSTALE);
    pawl_guard_close(guard);
}

static void test_c(void **state) {
    (void)state;
    pawl_guard_write write = PAWL_GUARD_WRITE_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    pawl_postgres_fence fence = {sizeof fence, "acct", "id", "fence", "fenced_by", NULL};
    const char *values[] = {"2500"};
    write.resource = "r", write.lock = "acct", write.token = 8, write.by = "worker 2", write.service = "redis";
    assert_int_equal(pawl_postgres_guard(a, &write, &error), PAWL_EINVALID);
    assert_non_null(strstr(error.text, "BEGIN first"));
    sql_does(a, "CREATE TABLE acct (id text PRIMARY KEY, balance int, fence bigint NOT NULL DEFAULT 0, fenced_by text);"
                "INSERT INTO acct VALUES ('9021', 1000)");
    sql_does(a, "BEGIN");
    if (pawl_postgres_guard(a, &write, &error)) fail_msg("%s", error.text);
    write.token = 7, write.by = "worker 1", write.service = NULL;
    assert_int_equal(pawl_postgres_guard(a, &write, &error), PAWL_GSTALE);
    assert_non_null(strstr(error.text, "stale token 7 from worker 1; current is 8, written by worker 2"));
    assert_int_equal(pawl_postgres_guard(a, &write, &error), PAWL_EINVALID); /* aborted */
    sql_does(a, "ROLLBACK");
    write.token = 8;
    assert_int_equal(pawl_postgres_guard_update(a, &fence, "9021", "balance = $2", 1, values, &write, &error), PAWL_OK);
    assert_int_equal(pawl_postgres_guard_update(a, &fence, "9021", "balance = balance + 1", 0, NULL, &write, &error),
                     PAWL_OK);
    write.token = 7, write.by = "worker 3";
    assert_int_equal(pawl_postgres_guard_update(a, &fence, "9021", "balance = $2", 1, values, &write, &error),
                     PAWL_GSTALE);
    assert_non_null(strstr(error.text, "stale token 7 from worker 3; current is 8, written by worker 1"));
    assert_int_equal(pawl_postgres_guard_update(a, &fence, "9022", "balance = $2", 1, values, &write, &error),
                     PAWL_GNORECORD);
    assert_non_null(strstr(error.text, "no such row"));
    write.token = 0;
    assert_int_equal(pawl_postgres_guard_update(a, &fence, "9021", "balance = 0", 0, NULL, &write, &error),
                     PAWL_GNOTOKEN);
    is("SELECT balance || ' ' || fence || ' ' || fenced_by FROM acct", "2501 8 worker 1");
    fence.statement = "withdraw";
    write.token = 9;
    assert_int_equal(pawl_postgres_guard_update(a, &fence, "9021", NULL, 1, values, &write, &error), PAWL_EINVALID);
    assert_non_null(strstr(error.text, "prepare it"));
    if (pawl_postgres_guard_prepare(a, &fence, "balance = $2", 1, &error)) fail_msg("%s", error.text);
    assert_int_equal(pawl_postgres_guard_update(a, &fence, "9021", NULL, 1, values, &write, &error), PAWL_OK);
    write.token = 8;
    assert_int_equal(pawl_postgres_guard_update(a, &fence, "9021", NULL, 1, values, &write, &error), PAWL_GSTALE);
    assert_int_equal(pawl_postgres_guard_update(a, &fence, "9022", NULL, 1, values, &write, &error), PAWL_GNORECORD);
    is("SELECT balance || ' ' || fence || ' ' || fenced_by FROM acct", "2500 9 worker 3");
    sql_does(a, "SELECT pawl.protect('acct'); BEGIN");
    write.token = 9;
    assert_int_equal(pawl_postgres_guard_tell(a, &write, &error), PAWL_OK);
    sql_does(a, "UPDATE acct SET balance = 1; COMMIT");
    PGresult *result = PQexec(a, "UPDATE acct SET balance = 2");
    assert_int_equal(pawl_postgres_guard_result(result, &error), PAWL_GNOTOKEN);
    PQclear(result);
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {T(test_answers),
                                       T(test_an_equal_token_shares_and_writes_nothing),
                                       T(test_a_later_holder_waits_for_what_is_under_way),
                                       T(test_writers_at_once),
                                       T(test_repeatable_read),
                                       T(test_a_protected_table),
                                       T(test_quoting),
                                       T(test_resource_expression_and_composite_keys),
                                       T(test_rows_without_a_resource_and_renamed_tables),
                                       T(test_collations),
                                       T(test_partitions_inheritance_conflicts_and_copy),
                                       T(test_roles),
                                       T(test_nothing_of_the_users_runs_as_the_owner),
                                       T(test_refusals_are_kept),
                                       T(test_behind_pgbouncer),
                                       T(test_c)};
    return cmocka_run_group_tests_name("guard", tests, sql_group_setup, sql_group_teardown);
}
