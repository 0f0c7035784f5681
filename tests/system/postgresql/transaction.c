/* transaction.c: locks that end with the caller's transaction, in SQL and through pawl_postgres.h, also behind
 * PgBouncer; and what is refused because the lock would be worth nothing. */
#include "clock.h"
#include "pawl.h"
#include "pawl_postgres.h"
#include "server.h"
#include "sql.h"
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct server pooler;

static int teardown(void **state) {
    (void)state;
    server_stop(&pooler);
    return 0;
}

/* --- SQL --- */

static void test_lock_lives_as_long_as_its_transaction(void **state) {
    (void)state;
    PGconn *a = sql_dial(primary.port, ""), *b = sql_dial(primary.port, "");
    sql_does(a, "BEGIN");
    int64_t first = sql_number(a, "SELECT pawl.lock('n')");
    assert_true(first > 0);
    assert_true(sql_number(a, "SELECT pawl.lock('n')") > first); /* the same transaction may take it again */
    sql_does(b, "BEGIN");
    assert_int_equal(sql_number(b, "SELECT pawl.try_lock('n')"), 0);
    assert_int_equal(sql_number(b, "SELECT pawl.try_lock_shared('n')"), 0);
    sql_does(a, "COMMIT");
    int64_t second = sql_number(b, "SELECT pawl.try_lock_shared('n')");
    assert_true(second > first);
    sql_does(a, "BEGIN");
    assert_true(sql_number(a, "SELECT pawl.lock_shared('n')") > second);
    assert_int_equal(sql_number(a, "SELECT pawl.try_lock('n')"), 0);
    sql_does(a, "ROLLBACK");
    sql_does(b, "ROLLBACK");
    assert_int_equal(sql_number(a, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), 0);
    PQfinish(a);
    PQfinish(b);
}

static void test_a_wait_is_bounded_and_leaves_nothing(void **state) {
    (void)state;
    PGconn *a = sql_dial(primary.port, "application_name=payroll"), *b = sql_dial(primary.port, "");
    sql_does(a, "BEGIN");
    sql_number(a, "SELECT pawl.lock('n')");
    sql_does(b, "BEGIN");
    sql_does(b, "SET LOCAL lock_timeout = '7s'");
    int64_t began = clock_now_ns();
    assert_int_equal(sql_number(b, "SELECT pawl.try_lock('n', '200ms')"), 0); /* the transaction goes on */
    assert_in_range(clock_now_ns() - began, 190 * NS_PER_MS, 5000 * NS_PER_MS);
    char *text = sql_ask(b, "SHOW lock_timeout");
    assert_string_equal(text, "7s");
    free(text);
    assert_int_equal(sql_number(b, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), 1);
    sql_refuses(b, "SELECT pawl.lock('n', '100ms')", "55P03",
                "payroll"); /* says who has it, and ends the transaction */
    sql_does(b, "ROLLBACK");
    sql_does(b, "BEGIN; SET LOCAL lock_timeout = '100ms'");
    sql_refuses(b, "SELECT pawl.lock('n')", "55P03", ""); /* as long as the caller's own setting allows */
    sql_does(b, "ROLLBACK");
    sql_does(b, "BEGIN; SET LOCAL statement_timeout = '100ms'");
    sql_refuses(b, "SELECT pawl.try_lock('n', '1 hour')", "57014", "");
    sql_does(b, "ROLLBACK");
    sql_does(a, "COMMIT");
    sql_does(b, "BEGIN");
    assert_true(sql_number(b, "SELECT pawl.try_lock('n', '1 hour')") > 0);
    assert_true(sql_number(b, "SELECT pawl.lock('other', '100 years')") > 0); /* more than lock_timeout holds */
    sql_does(b, "COMMIT");
    PQfinish(a);
    PQfinish(b);
}

/* A waiter that the lock is handed to holds it, and reads what the holder before it wrote. */
static void test_handed_over_at_commit(void **state) {
    (void)state;
    PGconn *a = sql_dial(primary.port, ""), *b = sql_dial(primary.port, "");
    sql_does(a, "CREATE TABLE account (balance bigint); INSERT INTO account VALUES (1000)");
    sql_does(a, "BEGIN");
    int64_t first = sql_number(a, "SELECT pawl.lock('n')");
    sql_does(b, "BEGIN; SET LOCAL lock_timeout = '7ms'");
    assert_int_equal(sql_number(b, "SELECT balance FROM account"), 1000);
    assert_int_equal(PQsendQuery(b, "SELECT pawl.lock('n', '1 minute')"), 1);
    while (sql_number(a, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") == 0) {
    }
    sql_does(a, "UPDATE account SET balance = 900");
    sql_does(a, "COMMIT");
    PGresult *result = PQgetResult(b);
    assert_int_equal(PQresultStatus(result), PGRES_TUPLES_OK);
    assert_true(strtoll(PQgetvalue(result, 0, 0), NULL, 10) > first);
    PQclear(result);
    assert_null(PQgetResult(b));
    assert_int_equal(sql_number(b, "SELECT balance FROM account"), 900);
    assert_int_equal(sql_number(b, "SHOW lock_timeout"), 7); /* ms, as it was */
    sql_does(b, "COMMIT; DROP TABLE account");
    PQfinish(a);
    PQfinish(b);
}

static void test_what_would_be_worth_nothing_is_refused(void **state) {
    (void)state;
    PGconn *c = sql_dial(primary.port, "");
    static const char *const levels[] = {"REPEATABLE READ", "SERIALIZABLE"};
    for (int i = 0; i < 2; i++) {
        sql_does(c, "BEGIN ISOLATION LEVEL %s", levels[i]);
        sql_refuses(c, "SELECT pawl.try_lock('n')", "PW005", "READ COMMITTED");
        sql_refuses(c, "SELECT pawl.lock('n')", "25P02", "aborted");
        sql_does(c, "ROLLBACK");
    }
    sql_does(c, "BEGIN ISOLATION LEVEL READ UNCOMMITTED"); /* PostgreSQL knows no less than READ COMMITTED */
    assert_true(sql_number(c, "SELECT pawl.lock('n')") > 0);
    sql_does(c, "ROLLBACK");
    static const char *const alone[] = {"SELECT pawl.lock('n')", "SELECT pawl.try_lock_shared('n', '1s') AS t;",
                                        "WITH l AS (SELECT \"pawl\" . \"lock\" ('n') AS t) SELECT t FROM l"};
    for (int i = 0; i < 3; i++) sql_refuses(c, alone[i], "PW007", "BEGIN first");
    /* One query that does its work under the lock is a transaction. */
    assert_true(sql_number(c, "BEGIN; SELECT pawl.lock('n')") > 0);
    sql_does(c, "COMMIT");
    sql_does(c, "DO $$ BEGIN PERFORM pawl.lock('n'); PERFORM 1; END $$");
    assert_int_equal(sql_number(c, "SELECT pawl.lock('n'); SELECT 7"), 7);
    sql_does(c, "BEGIN READ ONLY");
    sql_refuses(c, "SELECT pawl.lock('n')", "25006", "read-only");
    sql_does(c, "ROLLBACK");
    sql_does(c, "BEGIN");
    sql_refuses(c, "SELECT pawl.try_lock(NULL)", "22023", "1 to 512 bytes"); /* not NULL, which means busy */
    sql_does(c, "ROLLBACK; BEGIN");
    sql_refuses(c, "SELECT pawl.lock(repeat('x', 513))", "22023", "1 to 512 bytes");
    sql_does(c, "ROLLBACK; BEGIN");
    sql_refuses(c, "SELECT pawl.lock('n', key => 'md5')", "22023", "hashtextextended");
    sql_does(c, "ROLLBACK; BEGIN");
    sql_refuses(c, "SELECT pawl.lock(7)", "42883", "does not exist"); /* a number is no name, and no key by accident */
    PQfinish(c);
}

/* As some drivers send it: with parameters, and BEGIN in one batch with the statement behind it. */
static void test_extended_protocol(void **state) {
    (void)state;
    const char *const values[] = {"n"};
    PGconn *c = sql_dial(primary.port, "");
    for (int i = 0; i < 100; i++) {
        assert_int_equal(PQenterPipelineMode(c), 1);
        assert_int_equal(PQsendQueryParams(c, "BEGIN", 0, NULL, NULL, NULL, NULL, 0), 1);
        assert_int_equal(PQsendQueryParams(c, "SELECT pawl.lock($1)", 1, NULL, values, NULL, NULL, 0), 1);
        assert_int_equal(PQsendQueryParams(c, "COMMIT", 0, NULL, NULL, NULL, NULL, 0), 1);
        assert_int_equal(PQpipelineSync(c), 1);
        for (int seen = 0; seen < 4;) { /* three answers, each with a NULL behind it, and the sync */
            PGresult *result = PQgetResult(c);
            if (!result) continue;
            ExecStatusType status = PQresultStatus(result);
            if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK && status != PGRES_PIPELINE_SYNC)
                fail_msg("%s", PQerrorMessage(c));
            PQclear(result);
            seen++;
        }
        assert_int_equal(PQexitPipelineMode(c), 1);
    }
    PQfinish(c);
}

/* The same lock as `pawl run -u postgresql:` takes, both ways. */
static void test_excludes_sessions(void **state) {
    (void)state;
    PGconn *c = sql_dial(primary.port, "");
    pawl_client *client;
    pawl_lock *lock;
    pawl_error error = PAWL_ERROR_INIT;
    pawl_acquire_options o = PAWL_ACQUIRE_INIT;
    o.wait_ms = 0;
    assert_int_equal(pawl_open(primary.url, NULL, &client, &error), PAWL_OK);
    assert_int_equal(pawl_acquire(client, "n", &o, &lock, &error), PAWL_OK);
    sql_does(c, "BEGIN");
    assert_int_equal(sql_number(c, "SELECT pawl.try_lock('n')"), 0);
    assert_int_equal(pawl_release(lock, 2000, &error), PAWL_OK);
    int64_t token = sql_number(c, "SELECT pawl.try_lock('n')");
    assert_true(token > 0);
    assert_int_equal(pawl_acquire(client, "n", &o, &lock, &error), PAWL_EBUSY);
    sql_does(c, "COMMIT");
    assert_int_equal(pawl_acquire(client, "n", &o, &lock, &error), PAWL_OK);
    assert_true(pawl_token(lock) > token);
    assert_int_equal(pawl_release(lock, 2000, &error), PAWL_OK);
    pawl_close(client);
    PQfinish(c);
}

/* --- PgBouncer --- */

static void test_sql_behind_pgbouncer(void **state) {
    (void)state;
    if (!server_has_pgbouncer()) skip();
    server_start_pgbouncer(&pooler, &primary, "transaction", "default_pool_size = 2\n");
    PGconn *a = sql_dial(pooler.port, ""), *b = sql_dial(pooler.port, ""), *direct = sql_dial(primary.port, "");
    int64_t last = 0;
    for (int i = 0; i < 20; i++) {
        PGconn *mine = i % 2 ? a : b, *other = i % 2 ? b : a;
        sql_does(mine, "BEGIN");
        int64_t token = sql_number(mine, "SELECT pawl.lock('n')");
        assert_true(token > last);
        last = token;
        sql_does(other, "BEGIN");
        assert_int_equal(sql_number(other, "SELECT pawl.try_lock('n')"), 0);
        sql_does(other, "COMMIT");
        sql_does(mine, i % 3 ? "COMMIT" : "ROLLBACK");
    }
    sql_refuses(a, "SELECT pawl.lock('n')", "PW007", "transaction mode");
    assert_int_equal(sql_number(direct, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"),
                     0); /* nothing leaks */
    PQfinish(a);
    PQfinish(b);
    server_stop(&pooler);
    server_start_pgbouncer(&pooler, &primary, "statement", "");
    a = sql_dial(pooler.port, "");
    sql_refuses(a, "SELECT pawl.lock('n')", "PW007", "transaction mode");
    PQfinish(a);
    PQfinish(direct);
}

/* --- C --- */

static int c_lock(PGconn *conn, const char *name, int64_t wait_ms, int64_t *token, pawl_error *error) {
    pawl_postgres_options o = PAWL_POSTGRES_INIT;
    o.wait_ms = wait_ms;
    return pawl_postgres_lock(conn, name, &o, token, error);
}

static void test_c_neither_begins_nor_ends(void **state) {
    (void)state;
    PGconn *a = sql_dial(primary.port, ""), *b = sql_dial(primary.port, "client_encoding=LATIN1");
    pawl_error error = PAWL_ERROR_INIT;
    int64_t token = 0, later = 0;
    sql_does(a, "BEGIN");
    if (pawl_postgres_lock(a, "zażółć", NULL, &token, &error)) fail_msg("%s", error.text);
    assert_int_equal(PQtransactionStatus(a), PQTRANS_INTRANS);
    sql_does(b, "BEGIN");
    assert_int_equal(c_lock(b, "zażółć", 0, &later, &error), PAWL_EBUSY); /* whatever the encodings */
    assert_int_equal(c_lock(b, "zażółć", 1000, &later, &error), PAWL_ETIMEOUT);
    assert_int_equal(PQtransactionStatus(b), PQTRANS_INTRANS); /* it goes on */
    assert_int_equal(later, 0);
    sql_does(a, "COMMIT");
    PQsetnonblocking(b, 1);
    assert_int_equal(c_lock(b, "zażółć", 10000, &later, &error), PAWL_OK);
    assert_int_equal(PQisnonblocking(b), 1);
    PQsetnonblocking(b, 0);
    assert_true(later > token);
    sql_does(a, "BEGIN");
    pawl_postgres_options shared = PAWL_POSTGRES_INIT;
    shared.shared = 1;
    shared.wait_ms = 0;
    assert_int_equal(pawl_postgres_lock(a, "zażółć", &shared, &later, &error), PAWL_EBUSY);
    sql_does(b, "ROLLBACK");
    sql_does(b, "BEGIN");
    assert_int_equal(pawl_postgres_lock(a, "zażółć", &shared, &later, &error), PAWL_OK);
    assert_int_equal(pawl_postgres_lock(b, "zażółć", &shared, &later, &error), PAWL_OK);
    sql_does(b, "COMMIT");
    PQfinish(a);
    PQfinish(b);
}

static void test_c_refusals(void **state) {
    (void)state;
    PGconn *c = sql_dial(primary.port, ""), *other = sql_dial(primary.port, "");
    pawl_error error = PAWL_ERROR_INIT;
    int64_t token = 0;
    assert_int_equal(c_lock(NULL, "n", 0, &token, &error), PAWL_EINVALID);
    assert_int_equal(c_lock(c, "n", 0, &token, &error), PAWL_EINVALID);
    assert_non_null(strstr(error.text, "BEGIN first"));
    sql_does(c, "BEGIN");
    assert_int_equal(c_lock(c, "", 0, &token, &error), PAWL_EINVALID);
    assert_int_equal(c_lock(c, "n", -1, &token, &error), PAWL_EINVALID);
    free(sql_ask(c, "SELECT 1 / 0"));
    assert_int_equal(c_lock(c, "n", 0, &token, &error), PAWL_EINVALID);
    assert_non_null(strstr(error.text, "ROLLBACK first"));
    sql_does(c, "ROLLBACK; BEGIN ISOLATION LEVEL REPEATABLE READ");
    assert_int_equal(c_lock(c, "n", 0, &token, &error), PAWL_EUNSAFE);
    assert_non_null(strstr(error.text, "PW005"));
    sql_does(c, "ROLLBACK; BEGIN");
    assert_int_equal(c_lock(c, "bad \xff", 0, &token, &error), PAWL_EINVALID);
    sql_does(c, "ROLLBACK; BEGIN");
    assert_int_equal(PQsendQuery(c, "SELECT 1"), 1);
    assert_int_equal(c_lock(c, "n", 0, &token, &error), PAWL_EINVALID);
    PQclear(PQgetResult(c));
    assert_null(PQgetResult(c));
    assert_int_equal(PQenterPipelineMode(c), 1);
    assert_int_equal(c_lock(c, "n", 0, &token, &error), PAWL_EINVALID);
    assert_non_null(strstr(error.text, "pipeline"));
    assert_int_equal(PQexitPipelineMode(c), 1);
    sql_does(other, "BEGIN");
    assert_int_equal(c_lock(other, "n", 0, &token, &error), PAWL_OK);
    sql_does(c, "SET LOCAL lock_timeout = '100ms'");
    assert_int_equal(c_lock(c, "n", PAWL_FOREVER, &token, &error), PAWL_ETIMEOUT);
    assert_int_equal(error.code, PAWL_ETIMEOUT);
    sql_does(c, "ROLLBACK; BEGIN; SET LOCAL statement_timeout = '100ms'");
    assert_int_equal(c_lock(c, "n", PAWL_FOREVER, &token, &error), PAWL_ECANCELLED);
    sql_does(c, "ROLLBACK; BEGIN");
    sql_does(other, "SELECT pg_terminate_backend(%d)", PQbackendPID(c));
    assert_int_equal(c_lock(c, "n", 0, &token, &error), PAWL_EUNREACHABLE);
    assert_int_equal(c_lock(c, "n", 0, &token, &error), PAWL_EUNREACHABLE);
    PQfinish(c);
    PQfinish(other);
}

/* A server that hangs: the call ends some time after the wait that it was told. */
static void test_c_a_silent_server(void **state) {
    (void)state;
    if (!getenv("PAWL_TEST_FULL")) {
        print_message("# a silent server: only with PAWL_TEST_FULL=1, since it takes 10 s\n");
        return;
    }
    PGconn *c = sql_dial(primary.port, "");
    pawl_error error = PAWL_ERROR_INIT;
    int64_t token = 0;
    sql_does(c, "BEGIN");
    pid_t backend = PQbackendPID(c);
    assert_int_equal(kill(backend, SIGSTOP), 0);
    int64_t began = clock_now_ns();
    assert_int_equal(c_lock(c, "n", 0, &token, &error), PAWL_EUNREACHABLE);
    assert_in_range(clock_now_ns() - began, 9000 * NS_PER_MS, 20000 * NS_PER_MS);
    kill(backend, SIGCONT);
    PQfinish(c);
}

static void test_c_behind_pgbouncer(void **state) {
    (void)state;
    if (!server_has_pgbouncer()) skip();
    server_start_pgbouncer(&pooler, &primary, "transaction", "");
    PGconn *a = sql_dial(pooler.port, ""), *b = sql_dial(pooler.port, "");
    pawl_error error = PAWL_ERROR_INIT;
    int64_t token = 0, later = 0;
    sql_does(a, "BEGIN");
    assert_int_equal(c_lock(a, "n", 0, &token, &error), PAWL_OK);
    sql_does(b, "BEGIN");
    assert_int_equal(c_lock(b, "n", 1000, &later, &error), PAWL_ETIMEOUT);
    sql_does(a, "COMMIT");
    assert_int_equal(c_lock(b, "n", 10000, &later, &error), PAWL_OK);
    assert_true(later > token);
    sql_does(b, "COMMIT");
    assert_int_equal(c_lock(b, "n", 0, &later, &error), PAWL_EINVALID);
    PQfinish(a);
    PQfinish(b);
    server_stop(&pooler);
    server_start_pgbouncer(&pooler, &primary, "statement", "");
    a = sql_dial(pooler.port, "");
    char *said = sql_ask(a, "BEGIN"); /* there a transaction cannot be begun, and the connection ends */
    assert_non_null(strstr(said, "statement pooling mode"));
    free(said);
    assert_int_equal(c_lock(a, "n", 0, &token, &error), PAWL_EUNREACHABLE);
    PQfinish(a);
}

/* It is given back with the savepoint that it was taken after, and by a block that catches an exception. */
static void test_savepoints(void **state) {
    (void)state;
    PGconn *c = sql_dial(primary.port, ""), *other = sql_dial(primary.port, "");
    static const char *const takes[] = {
        "BEGIN; SAVEPOINT s; SELECT pawl.lock('sp'); ROLLBACK TO SAVEPOINT s",
        "BEGIN; DO $$ BEGIN PERFORM pawl.lock('sp'); RAISE 'x'; EXCEPTION WHEN OTHERS THEN NULL; END $$"};
    for (int i = 0; i < 2; i++) {
        sql_does(c, "%s", takes[i]);
        sql_does(other, "BEGIN");
        assert_true(sql_number(other, "SELECT pawl.try_lock('sp')") > 0);
        sql_does(other, "COMMIT");
        sql_does(c, "COMMIT");
    }
    PQfinish(c);
    PQfinish(other);
}

int main(void) {
    if (access("/usr/lib/postgresql", X_OK)) {
        printf("1..0 # SKIP no PostgreSQL server here\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lock_lives_as_long_as_its_transaction),
        cmocka_unit_test(test_a_wait_is_bounded_and_leaves_nothing),
        cmocka_unit_test(test_handed_over_at_commit),
        cmocka_unit_test(test_what_would_be_worth_nothing_is_refused),
        cmocka_unit_test(test_extended_protocol),
        cmocka_unit_test(test_savepoints),
        cmocka_unit_test(test_excludes_sessions),
        cmocka_unit_test_teardown(test_sql_behind_pgbouncer, teardown),
        cmocka_unit_test(test_c_neither_begins_nor_ends),
        cmocka_unit_test(test_c_refusals),
        cmocka_unit_test(test_c_a_silent_server),
        cmocka_unit_test_teardown(test_c_behind_pgbouncer, teardown),
    };
    return cmocka_run_group_tests_name("transaction", tests, sql_group_setup, sql_group_teardown);
}
