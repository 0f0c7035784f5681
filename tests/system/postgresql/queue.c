/* queue.c: waiters: what they leave behind when they are killed, and what they do not stand in the way of. */
#include "holding.h"
#include "ran.h"
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static struct server server;

static int group_setup(void **state) {
    (void)state;
    server_start_postgres(&server, "log_lock_waits = off\n");
    sql_install(server.url);
    return 0;
}

static int group_teardown(void **state) {
    (void)state;
    server_stop(&server);
    return 0;
}

static bool waiting(void *data) { return advisory(server.port, false) == *(const int *)data; }

/* n processes that wait for the lock, hold it for a moment and go on to wait again. */
static void start_waiters(pid_t pids[], int n, const char *name) {
    for (int i = 0; i < n; i++) {
        pids[i] = fork();
        if (pids[i]) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pawl_client *client = client_of(server.url, 0);
        for (pawl_lock *lock; take(client, name, PAWL_FOREVER, &lock) == PAWL_OK;) pawl_release(lock, 1000, NULL);
        _exit(1);
    }
    assert_true(server_until(waiting, &n, 20000));
}

static void kill_all(const pid_t pids[], int n) {
    for (int i = 0; i < n; i++) kill(pids[i], SIGKILL);
    for (int i = 0; i < n; i++) waitpid(pids[i], NULL, 0);
}

static void test_a_killed_waiter_leaves_the_queue(void **state) {
    (void)state;
    pawl_client *client = client_of(server.url, 0);
    pawl_lock *held = hold(client, "killed");
    pid_t pids[3];
    int none = 0;
    start_waiters(pids, 3, "killed");
    int64_t start = ran_ns();
    kill_all(pids, 3);
    assert_true(server_until(waiting, &none, 20000));
    print_message("# gone after %lld ms\n", (long long)ran_since(start));
    assert_true(ran_since(start) <= 2000);
    let_go(held);
    let_go(hold(client, "killed"));
    pawl_close(client);
}

/* It waits for every snapshot that is older than itself: also for those of statements that wait for a lock. */
static void test_an_index_is_made_under_the_lock(void **state) {
    (void)state;
    pawl_client *client = client_of(server.url, 0);
    pawl_lock *held = hold(client, "migration");
    pid_t pids[3];
    int none = 0;
    PGconn *conn = sql_dial(server.port, "");
    sql_does(conn, "CREATE TABLE big AS SELECT i FROM generate_series(1, 1000) i");
    sql_does(conn, "SET statement_timeout = '60s'");
    start_waiters(pids, 3, "migration");
    int64_t start = clock_now_ns();
    sql_does(conn, "CREATE INDEX CONCURRENTLY big_i ON big (i)");
    print_message("# made after %lld ms\n", (long long)ms_since(start));
    assert_int_equal(
        sql_number(conn, "SELECT count(*) FROM pg_index WHERE indexrelid = 'big_i'::regclass AND indisvalid"), 1);
    must(pawl_verify(held, 5000, &holding_error));
    kill_all(pids, 3);
    assert_true(server_until(waiting, &none, 20000));
    let_go(held);
    PQfinish(conn);
    pawl_close(client);
}

/* An open transaction of the holder would hold up others in the same way. */
static void test_a_held_lock_keeps_no_transaction_open(void **state) {
    (void)state;
    pawl_client *client = client_of(server.url, 0);
    pawl_lock *held = hold(client, "own");
    PGconn *conn = sql_dial(server.port, "");
    assert_int_equal(sql_number(conn, "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE "
                                      "l.locktype = 'advisory' AND a.state <> 'idle'"),
                     0); /* no snapshot, no transaction is open while a lock is held */
    let_go(held);
    PQfinish(conn);
    pawl_close(client);
}

/* Who waited for it and may draw no number has it by then: it must not stay with his session, which lives on. read:
 * the refusal is read by the wait; else the wait is given up before, and nothing may be looked up either. */
static void refused_behind_the_lock(bool shared, bool read) {
    char url[128];
    int one = 1;
    pawl_client *a = client_of(server.url, 0), *b;
    pawl_lock *held = hold(a, "refused"), *lock;
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    pawl_event event = PAWL_EVENT_INIT;
    PGconn *conn = sql_dial(server.port, "");
    sql_does(conn, "GRANT USAGE ON SEQUENCE pawl.token TO PUBLIC; GRANT SELECT ON pg_catalog.pg_locks TO PUBLIC");
    snprintf(url, sizeof url, "postgresql://bob@127.0.0.1:%d/postgres", server.port);
    b = client_of(url, 0);
    options.shared = shared;
    must(pawl_acquire_start(b, "refused", &options, NULL, &lock, &holding_error));
    assert_true(server_until(waiting, &one, 20000));
    sql_does(conn, "REVOKE ALL ON SEQUENCE pawl.token FROM PUBLIC");
    if (!read) sql_does(conn, "REVOKE ALL ON pg_catalog.pg_locks FROM PUBLIC");
    let_go(held);
    if (read) {
        for (int64_t end = clock_now_ns() + 20 * NS_PER_S; !pawl_next_event(b, &event) && clock_now_ns() < end;)
            continue;
        assert_int_equal(event.type, PAWL_FAILED);
        assert_int_equal(event.code, PAWL_EDENIED);
    } else {
        pawl_release(lock, 5000, NULL);
    }
    must(take(a, "refused", 20000, &held));
    let_go(held);
    sql_does(conn,
             "GRANT USAGE, SELECT ON SEQUENCE pawl.token TO PUBLIC; GRANT SELECT ON pg_catalog.pg_locks TO PUBLIC");
    PQfinish(conn);
    pawl_close(b);
    pawl_close(a);
}

static void test_what_was_refused_behind_the_lock_is_given_back(void **state) {
    (void)state;
    PGconn *conn = sql_dial(server.port, "");
    sql_does(conn, "CREATE ROLE bob LOGIN");
    PQfinish(conn);
    for (int i = 0; i < 4; i++) refused_behind_the_lock(i & 1, i & 2);
}

int main(void) {
    if (access("/usr/lib/postgresql", X_OK)) {
        printf("1..0 # SKIP no PostgreSQL server here\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_killed_waiter_leaves_the_queue),
        cmocka_unit_test(test_an_index_is_made_under_the_lock),
        cmocka_unit_test(test_a_held_lock_keeps_no_transaction_open),
        cmocka_unit_test(test_what_was_refused_behind_the_lock_is_given_back),
    };
    return cmocka_run_group_tests_name("postgresql queue", tests, group_setup, group_teardown);
}
