/* tokens.c: how a number is drawn: after the lock, once, on disk before it is used, at no cost on an idle server; and
 * how a server that was started anew is admitted without keeping anybody waiting. */
#include "clock.h"
#include "pawl.h"
#include "postgresql/postgresql.h"
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

/* What a planner may be told to do. */
static const char *const planners[] = {
    "RESET ALL",
    "SET force_parallel_mode = on; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET "
    "min_parallel_table_scan_size = 0; "
    "SET max_parallel_workers_per_gather = 4",
    "SET jit = on; SET jit_above_cost = 0; SET jit_inline_above_cost = 0; SET jit_optimize_above_cost = 0",
    "SET from_collapse_limit = 1; SET join_collapse_limit = 1; SET geqo_threshold = 2",
    "SET from_collapse_limit = 100; SET join_collapse_limit = 100; SET cursor_tuple_fraction = 0",
    "SET enable_seqscan = off; SET enable_material = off; SET enable_hashagg = off; SET enable_sort = off; SET "
    "enable_nestloop = off",
    "SET plan_cache_mode = force_generic_plan",
    "SET plan_cache_mode = force_custom_plan",
};
enum { PLANNERS = sizeof planners / sizeof *planners };

/* The whole plan as one text; good until the next. */
static const char *plan(PGconn *conn, const char *sql, const char *arguments) {
    static char text[4096];
    FILE *to = fmemopen(text, sizeof text, "w");
    sql_does(conn, "PREPARE p AS %s", sql);
    char explain[128];
    snprintf(explain, sizeof explain, "EXPLAIN (VERBOSE, COSTS OFF) EXECUTE p(%s)", arguments);
    PGresult *result = PQexec(conn, explain);
    if (PQresultStatus(result) != PGRES_TUPLES_OK) fail_msg("%s", PQerrorMessage(conn));
    for (int i = 0; i < PQntuples(result); i++) fprintf(to, "%s\n", PQgetvalue(result, i, 0));
    fclose(to);
    PQclear(result);
    sql_does(conn, "DEALLOCATE p");
    return text;
}

/* All is computed in one CASE of one node, whose branches stand in the order in which they must happen. */
static void in_order(const char *text, bool flush) {
    const char *const steps[] = {"Output: CASE WHEN ", "pg_try_advisory_lock", "nextval('pawl.token'",
                                 "WHEN (pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()) THEN lastval()",
                                 "WHEN (pg_logical_emit_message(true, 'pawl'"};
    const char *at = text;
    for (int i = 0; i < (flush ? 5 : 3); i++) {
        const char *found = strstr(at, steps[i]);
        if (!found || strstr(found + 1, steps[i])) fail_msg("step %d:\n%s", i, text);
        at = found;
    }
    assert_int_equal(strncmp(text, "Result\n", 7), 0);
    assert_null(strstr(text, "->")); /* no other node */
    assert_ptr_equal(strchr(strstr(text, "Output:"), '\n'), strrchr(text, '\n'));
}

static void test_plan(void **state) {
    (void)state;
    PGconn *c = sql_dial(primary.port, "");
    for (int flush = 0; flush < 2; flush++)
        for (enum key_mode key = KEY_HASHTEXTEXTENDED; key <= KEY_INT4X2; key++) {
            struct bk bk = {.key = key, .tokens = true, .flush = flush};
            assert_true(statements_make(&bk));
            for (int i = 0; i < PLANNERS; i++)
                for (int shared = 0; shared < 2; shared++) {
                    sql_does(c, "%s", planners[i]);
                    in_order(plan(c, bk.sql[shared ? TRY_S : TRY_X], key == KEY_INT4X2 ? "'7', '8'" : "'7'"), flush);
                    sql_does(c, "RESET ALL");
                }
            statements_free(&bk);
        }
    PQfinish(c);
}

/* Whatever the planner does: a busy lock draws no number, a grant exactly one. */
static void test_one_number_a_grant(void **state) {
    (void)state;
    PGconn *c = sql_dial(primary.port, ""), *holder = sql_dial(primary.port, "");
    struct bk bk = {.key = KEY_HASHTEXTEXTENDED, .tokens = true, .flush = true};
    assert_true(statements_make(&bk));
    sql_does(c, "SELECT pawl.admit()");
    sql_does(holder, "SELECT pg_advisory_lock(hashtextextended('held', 0))");
    for (int i = 0; i < PLANNERS; i++) {
        sql_does(c, "%s", planners[i]);
        sql_does(c, "PREPARE t AS %s", bk.sql[TRY_X]);
        int64_t last = sql_number(c, "SELECT last_value FROM pawl.token");
        assert_int_equal(sql_number(c, "EXECUTE t('held')"), 0);
        assert_int_equal(sql_number(c, "SELECT last_value FROM pawl.token"), last);
        assert_int_equal(sql_number(c, "EXECUTE t('free')"), last + 1);
        assert_int_equal(sql_number(c, "SELECT last_value FROM pawl.token"), last + 1);
        if (sql_number(c, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") != 2)
            fail_msg("%s", planners[i]);
        sql_does(c, "SELECT pg_advisory_unlock_all()");
        sql_does(c, "DEALLOCATE t; BEGIN");
        assert_int_equal(sql_number(c, "SELECT pawl.try_lock('held')"), 0);
        assert_int_equal(sql_number(c, "SELECT pawl.try_lock('free')"), last + 2);
        sql_does(c, "COMMIT; RESET ALL");
    }
    statements_free(&bk);
    PQfinish(c);
    PQfinish(holder);
}

/* ?token=off: what else the session holds, or that lock in the other mode, is not what it waited for. */
static void test_a_bare_wait_finds_its_own_lock(void **state) {
    (void)state;
    static const char *const keys[] = {"7", "-5000000007", "-7,2147483647"};
    PGconn *c = sql_dial(primary.port, ""), *holder = sql_dial(primary.port, "");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        for (int shared = 0; shared < 2; shared++) {
            sql_does(c, "SELECT pg_advisory_lock_shared(4711), pg_advisory_lock(4712), pg_advisory_lock(0, 7)");
            sql_does(holder, "SELECT pg_advisory_lock(%s)", keys[i]);
            sql_does(c, "SET pawl.wait = '%d,50,%s'", shared, keys[i]);
            char *answer = sql_ask(c, statement_bare_wait);
            assert_string_equal(answer, "");
            free(answer);
            sql_does(holder, "SELECT pg_advisory_unlock_all()");
            answer = sql_ask(c, statement_bare_wait);
            assert_string_equal(answer, "0");
            free(answer);
            sql_does(c, "SET pawl.wait = '%d,50,%s'", !shared, keys[i]);
            sql_does(holder, "SELECT pg_try_advisory_lock_shared(%s)", keys[i]);
            answer = sql_ask(c, statement_bare_wait);
            assert_string_equal(answer, shared ? "" : "0"); /* nobody keeps a session from what it has itself */
            free(answer);
            sql_does(holder, "SELECT pg_advisory_unlock_all()");
            sql_does(c, "SELECT pg_advisory_unlock_all()");
        }
    PQfinish(c);
    PQfinish(holder);
}

static int64_t transactions(PGconn *c) { return sql_number(c, "SELECT pg_snapshot_xmax(pg_current_snapshot())"); }

/* A number of 32 is written ahead; the others come from memory, without a transaction id and without a flush. */
static void test_idle_server_burns_no_transaction_ids(void **state) {
    (void)state;
    enum { N = 320 };
    PGconn *c = sql_dial(primary.port, "");
    pawl_client *client;
    pawl_error error = PAWL_ERROR_INIT;
    assert_int_equal(pawl_open(primary.url, NULL, &client, &error), PAWL_OK);
    if (pawl_connect(client, 5000, &error)) fail_msg("%s", error.text);
    sql_does(c, "CHECKPOINT");
    int64_t before = transactions(c);
    for (int i = 0; i < N; i++) {
        pawl_lock *lock;
        if (pawl_acquire(client, "n", NULL, &lock, &error)) fail_msg("%s", error.text);
        assert_int_equal(pawl_release(lock, 2000, &error), PAWL_OK);
    }
    int64_t after = transactions(c);
    print_message("# %d grants of a session: %d transaction ids\n", N, (int)(after - before));
    assert_in_range(after - before, N / 32 - 1, N / 32 + 5);
    for (int i = 0; i < N; i++) {
        sql_does(c, "BEGIN");
        sql_does(c, "SELECT pawl.lock('n')");
        sql_does(c, "COMMIT");
    }
    print_message("# %d grants of a transaction: %d\n", N, (int)(transactions(c) - after));
    assert_in_range(transactions(c) - after, N / 32 - 1, N / 32 + 5);
    pawl_close(client);
    PQfinish(c);
}

/* Only when something is not on disk does a grant write a record of its own, so that its commit waits for the disk. */
static void test_flush_when_needed(void **state) {
    (void)state;
    PGconn *c = sql_dial(primary.port, ""), *other = sql_dial(primary.port, "");
    struct bk bk = {.key = KEY_HASHTEXTEXTENDED, .tokens = true, .flush = true};
    assert_true(statements_make(&bk));
    sql_does(c, "PREPARE t AS %s", bk.sql[TRY_X]);
    const char *const draws[] = {"EXECUTE t('n')", "SELECT pawl.lock('n')"};
    for (int i = 0; i < 2; i++) {
        bool planted = false;
        while (sql_number(c, "SELECT log_cnt FROM pawl.token") < 5) sql_does(c, "SELECT pawl.next_token()");
        for (int attempt = 0; attempt < 10 && !planted; attempt++) { /* until nobody flushed in between */
            sql_does(c, "SELECT pg_logical_emit_message(true, 'is', 'flushed')");
            sql_does(c, "BEGIN");
            assert_int_equal(sql_number(c, "SELECT pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn()"), 0);
            sql_does(c, "%s", draws[i]);
            assert_int_equal(sql_number(c, "SELECT txid_current_if_assigned()"), 0);
            sql_does(c, "COMMIT");
            sql_does(other, "BEGIN; SELECT pg_logical_emit_message(true, 'not', 'flushed')");
            sql_does(c, "BEGIN");
            sql_does(c, "%s", draws[i]);
            planted = sql_number(c, "SELECT txid_current_if_assigned()") > 0;
            sql_does(c, "COMMIT");
            assert_true(!planted ||
                        sql_number(c, "SELECT pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn()") == 0);
            sql_does(other, "ROLLBACK");
        }
        assert_true(planted);
    }
    statements_free(&bk);
    PQfinish(c);
    PQfinish(other);
}

/* The first lock after a restart is taken in a transaction that stays open: nobody waits for it. */
static void test_admission_keeps_nobody_waiting(void **state) {
    (void)state;
    PGconn *c[8];
    server_restart(&primary);
    c[0] = sql_dial(primary.port, "");
    sql_does(c[0], "SET lock_timeout = '5s'; BEGIN");
    int64_t first = sql_number(c[0], "SELECT pawl.lock('n0')"),
            since = sql_number(c[0], "SELECT last_value FROM pawl.since");
    assert_int_equal(first, since + 1);
    assert_int_equal(sql_number(c[0], "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), 1);
    for (int i = 1; i < 8; i++) {
        c[i] = sql_dial(primary.port, "");
        sql_does(c[i], "SET lock_timeout = '5s'; BEGIN");
        assert_int_equal(sql_number(c[i], "SELECT pawl.lock('n%d')", i), first + i);
    }
    sql_does(c[0], "ROLLBACK"); /* what it began stays begun */
    assert_int_equal(sql_number(c[0], "SELECT last_value FROM pawl.since"), since);
    sql_does(c[0], "BEGIN");
    assert_int_equal(sql_number(c[0], "SELECT pawl.lock('n0')"), first + 8);
    for (int i = 0; i < 8; i++) PQfinish(c[i]);
}

/* All at once: the numbers begin anew once, and nobody draws before. */
static void test_admission_by_many(void **state) {
    (void)state;
    PGconn *c[8];
    int64_t tokens[8];
    for (int round = 0; round < 3; round++) {
        server_restart(&primary);
        for (int i = 0; i < 8; i++) c[i] = sql_dial(primary.port, "");
        for (int i = 0; i < 8; i++) assert_int_equal(PQsendQuery(c[i], "SELECT pawl.next_token()"), 1);
        for (int i = 0; i < 8; i++) {
            PGresult *result = PQgetResult(c[i]);
            if (PQresultStatus(result) != PGRES_TUPLES_OK) fail_msg("%s", PQerrorMessage(c[i]));
            tokens[i] = strtoll(PQgetvalue(result, 0, 0), NULL, 10);
            PQclear(result);
            assert_null(PQgetResult(c[i]));
        }
        int64_t since = sql_number(c[0], "SELECT last_value FROM pawl.since");
        uint64_t seen = 0;
        for (int i = 0; i < 8; i++) {
            assert_in_range(tokens[i], since + 1, since + 8);
            seen |= UINT64_C(1) << (tokens[i] - since);
        }
        assert_int_equal(seen, 0x1fe);
        for (int i = 0; i < 8; i++) PQfinish(c[i]);
    }
}

/* A server whose clock is far off would leave the numbers there: nothing is written. */
static void test_clocks_too_far_apart(void **state) {
    (void)state;
    server_restart(&primary);
    PGconn *c = sql_dial(primary.port, "");
    int64_t before = sql_number(c, "SELECT last_value FROM pawl.token");
    sql_refuses(c, "SELECT pawl.admit(pawl.clock_us() - 86500000000)", "PW006", "more than a day apart");
    sql_refuses(c, "SELECT pawl.admit(pawl.clock_us() + 86500000000)", "PW006", "more than a day apart");
    assert_int_equal(sql_number(c, "SELECT last_value FROM pawl.token"), before);
    sql_does(c, "SELECT pawl.admit(pawl.clock_us() - 80000000000)");
    assert_true(sql_number(c, "SELECT last_value FROM pawl.token") > before);
    PQfinish(c);
}

int main(void) {
    if (access("/usr/lib/postgresql", X_OK)) {
        printf("1..0 # SKIP no PostgreSQL server here\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_one_number_a_grant),
        cmocka_unit_test(test_a_bare_wait_finds_its_own_lock),
        cmocka_unit_test(test_idle_server_burns_no_transaction_ids),
        cmocka_unit_test(test_flush_when_needed),
        cmocka_unit_test(test_admission_keeps_nobody_waiting),
        cmocka_unit_test(test_admission_by_many),
        cmocka_unit_test(test_clocks_too_far_apart),
    };
    sql_settings = "autovacuum = off\nwal_writer_delay = 10s\nmax_worker_processes = 8\n";
    return cmocka_run_group_tests_name("tokens", tests, sql_group_setup, sql_group_teardown);
}
