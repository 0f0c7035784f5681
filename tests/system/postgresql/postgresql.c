/* postgresql.c: advisory locks on real servers: what is refused, what is lost and how soon, and that tokens rise over a
 * restart and over the promotion of a standby that had missed the last of them. */
#include "clock.h"
#include "pawl.h"
#include "ran.h"
#include "server.h"
#include "sql.h"
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static struct server standby, pooler;

static pawl_client *client(const char *url) {
    pawl_client *c;
    pawl_error error = PAWL_ERROR_INIT;
    if (pawl_open(url, NULL, &c, &error)) fail_msg("%s", error.text);
    return c;
}

static pawl_lock *take(pawl_client *c, const char *name, int64_t wait_ms) {
    pawl_acquire_options o = PAWL_ACQUIRE_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    pawl_lock *lock;
    o.wait_ms = wait_ms;
    if (pawl_acquire(c, name, &o, &lock, &error)) fail_msg("%s: %s", name, error.text);
    return lock;
}

static int64_t token(const char *url) {
    pawl_client *c = client(url);
    pawl_lock *lock = take(c, "n", 10000);
    int64_t n = pawl_token(lock);
    assert_int_equal(pawl_release(lock, 2000, NULL), PAWL_OK);
    pawl_close(c);
    return n;
}

static int64_t number(const struct server *s, const char *sql) {
    char *text = server_sql(s->port, "%s", sql);
    int64_t n = text && *text != '-' ? strtoll(text, NULL, 10) : -1;
    free(text);
    return n;
}

static int teardown(void **state) {
    (void)state;
    server_stop(&pooler);
    server_stop(&standby);
    return 0;
}

static void test_not_installed_is_said(void **state) {
    (void)state;
    char bare[128], url[160];
    free(server_sql(primary.port, "CREATE DATABASE bare"));
    snprintf(bare, sizeof bare, "postgresql://postgres@127.0.0.1:%d/bare", primary.port);
    pawl_client *c = client(bare);
    pawl_error error = PAWL_ERROR_INIT;
    assert_int_equal(pawl_connect(c, 5000, &error), PAWL_EUNSAFE);
    assert_non_null(strstr(error.text, "pawl init"));
    pawl_close(c);
    snprintf(url, sizeof url, "%s?token=off", bare); /* needs nothing */
    c = client(url);
    pawl_lock *lock = take(c, "n", 0);
    assert_int_equal(pawl_token(lock), 0);
    assert_int_equal(pawl_release(lock, 10000, NULL), PAWL_OK);
    pawl_close(c);
}

static void test_wrong_password_and_no_server(void **state) {
    (void)state;
    char url[256];
    pawl_error error = PAWL_ERROR_INIT;
    snprintf(url, sizeof url, "postgresql://postgres:s3cret@127.0.0.1:%d/nowhere", primary.port);
    pawl_client *c = client(url);
    assert_int_equal(pawl_connect(c, 5000, &error), PAWL_EDENIED);
    assert_non_null(strstr(error.text, "nowhere"));
    assert_null(strstr(error.text, "s3cret"));
    pawl_close(c);
    c = client("postgresql://127.0.0.1:1/x");
    assert_int_equal(pawl_connect(c, 5000, &error), PAWL_EUNREACHABLE);
    pawl_close(c);
}

static bool lost_within(pawl_lock *lock, int ms) {
    struct pollfd p = {.fd = pawl_lost_fd(lock), .events = POLLIN};
    return poll(&p, 1, ms) == 1 && pawl_check(lock) == PAWL_ELOST;
}

static void test_loss_is_noticed_at_once(void **state) {
    (void)state;
    pawl_client *c = client(primary.url);
    pawl_lock *lock = take(c, "n", 0);
    assert_int_equal(pawl_remaining_ms(lock), PAWL_FOREVER);
    int64_t start = ran_ns(); /* it would ask by itself after 5 s */
    assert_int_equal(
        number(&primary, "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory'"), 1);
    assert_true(lost_within(lock, 10000));
    assert_true(ran_ns() - start < 3000 * NS_PER_MS);
    pawl_error error = PAWL_ERROR_INIT;
    assert_int_equal(pawl_release(lock, 10000, &error), PAWL_ELOST);
    lock = take(c, "n", 10000); /* the client lives on */
    start = ran_ns();
    server_kill(&primary, SIGQUIT);
    assert_true(lost_within(lock, 10000));
    assert_true(ran_ns() - start < 3000 * NS_PER_MS);
    pawl_release(lock, 0, NULL);
    pawl_close(c);
    server_run(&primary);
}

static bool nobody_waits(void *data) {
    return number(data, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") == 0;
}

static void test_a_cancelled_wait_leaves_no_trace(void **state) {
    (void)state;
    pawl_client *a = client(primary.url), *b = client(primary.url);
    pawl_lock *held = take(a, "n", 0), *lock;
    pawl_acquire_options o = PAWL_ACQUIRE_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    o.wait_ms = 1000;
    int64_t began = ran_ns();
    assert_int_equal(pawl_acquire(b, "n", &o, &lock, &error), PAWL_ETIMEOUT);
    assert_true(ran_ns() - began < 2000 * NS_PER_MS);
    assert_true(server_until(nobody_waits, &primary, 20000));
    assert_int_equal(pawl_release(held, 10000, NULL), PAWL_OK);
    lock = take(b, "n", 0);
    assert_int_equal(pawl_release(lock, 10000, NULL), PAWL_OK);
    assert_int_equal(number(&primary, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), 0);
    pawl_close(a);
    pawl_close(b);
}

static void test_waiting_writes_nothing_into_the_log(void **state) {
    (void)state;
    char command[128];
    pawl_client *a = client(primary.url), *b = client(primary.url);
    pawl_lock *held = take(a, "n", 0), *lock;
    pawl_acquire_options o = PAWL_ACQUIRE_INIT;
    snprintf(command, sizeof command, "grep -vc ' checkpoint' %s/log", primary.dir);
    FILE *before = popen(command, "r");
    int lines = -1, after_lines = -2;
    assert_int_equal(fscanf(before, "%d", &lines), 1);
    pclose(before);
    o.wait_ms = 3500; /* slices of 1 and 2 s end in it */
    assert_int_equal(pawl_acquire(b, "n", &o, &lock, NULL), PAWL_ETIMEOUT);
    FILE *after = popen(command, "r");
    assert_int_equal(fscanf(after, "%d", &after_lines), 1);
    pclose(after);
    assert_int_equal(after_lines, lines);
    pawl_release(held, 10000, NULL);
    pawl_close(a);
    pawl_close(b);
}

static void test_a_killed_holder_frees(void **state) {
    (void)state;
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t holder = fork();
    if (holder == 0) {
        pawl_client *c = client(primary.url);
        take(c, "n", 0);
        if (write(ready[1], "x", 1) != 1) _exit(1);
        pause();
        _exit(0);
    }
    char byte;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    pawl_client *c = client(primary.url);
    pawl_acquire_options o = PAWL_ACQUIRE_INIT;
    pawl_lock *lock;
    o.wait_ms = 0;
    pawl_error error = PAWL_ERROR_INIT;
    assert_int_equal(pawl_acquire(c, "n", &o, &lock, &error), PAWL_EBUSY);
    kill(holder, SIGKILL);
    waitpid(holder, NULL, 0);
    lock = take(c, "n", 10000);
    pawl_release(lock, 10000, NULL);
    pawl_close(c);
    close(ready[0]);
    close(ready[1]);
}

static void test_tokens_rise_over_a_restart(void **state) {
    (void)state;
    int64_t before = token(primary.url);
    assert_int_equal(token(primary.url), before + 1); /* nothing happened: it counts */
    server_restart(&primary);
    int64_t after = token(primary.url);
    assert_true(after > before + 1000);
}

static bool installed(void *data) { return number(data, "SELECT count(*) FROM pawl.meta") == 1; }
static bool cut_off(void *data) { return number(data, "SELECT count(*) FROM pg_stat_wal_receiver") == 0; }
static bool promoted(void *data) { return number(data, "SELECT count(*) WHERE NOT pg_is_in_recovery()") == 1; }

static void test_promotion(void **state) {
    (void)state;
    server_start_standby(&standby, &primary, "");
    assert_true(server_until(installed, &standby, 10000));
    pawl_client *c = client(standby.url);
    pawl_error error = PAWL_ERROR_INIT;
    assert_int_equal(pawl_connect(c, 5000, &error), PAWL_EUNREACHABLE);
    assert_non_null(strstr(error.text, "standby"));
    pawl_close(c);
    free(server_sql(standby.port, "ALTER SYSTEM SET primary_conninfo = ''"));
    free(server_sql(standby.port, "SELECT pg_reload_conf()"));
    assert_true(server_until(cut_off, &standby, 10000)); /* it misses what comes now */
    pawl_client *old_side = client(primary.url);
    pawl_lock *held = take(old_side, "held", 0);
    char both[256];
    snprintf(both, sizeof both,
             "postgresql://postgres@127.0.0.1:%d,127.0.0.1:%d/postgres?target_session_attrs=read-write", primary.port,
             standby.port);
    pawl_client *moves = client(both);
    pawl_lock *moved = take(moves, "moved", 0);
    int64_t moved_token = pawl_token(moved);
    for (int i = 0; i < 100; i++) token(primary.url);
    int64_t before = token(primary.url);
    assert_true(number(&standby, "SELECT last_value FROM pawl.token") < before);
    free(server_sql(standby.port, "SELECT pg_promote()"));
    assert_true(server_until(promoted, &standby, 15000));
    int64_t after = token(standby.url), zombie = token(primary.url);
    assert_true(after > before);
    assert_true(zombie < after); /* the old primary goes on granting; a guard that saw the new side refuses it */
    pawl_client *new_side = client(standby.url);
    pawl_lock *twice =
        take(new_side, "held", 0); /* the lock table of the new primary is empty: the promise table says so */
    assert_true(pawl_token(twice) > pawl_token(held));
    pawl_release(twice, 10000, NULL);
    pawl_release(held, 10000, NULL);
    pawl_close(new_side);
    pawl_close(old_side);
    /* Whoever holds a lock there is told when that one goes, and finds the new primary. */
    assert_int_equal(pawl_check(moved), PAWL_OK);
    server_kill(&primary, SIGQUIT);
    assert_true(lost_within(moved, 10000));
    assert_int_equal(pawl_release(moved, 1000, NULL), PAWL_ELOST);
    moved = take(moves, "moved", 20000);
    print_message("# before %lld, the old primary then %lld, the new one %lld, again %lld\n", (long long)before,
                  (long long)zombie, (long long)after, (long long)pawl_token(moved));
    assert_true(pawl_token(moved) > after && after > moved_token);
    assert_int_equal(number(&standby, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), 1);
    assert_int_equal(pawl_release(moved, 5000, NULL), PAWL_OK);
    pawl_close(moves);
    server_run(&primary);
}

static void test_a_pooler_is_refused(void **state) {
    (void)state;
    if (!server_has_pgbouncer()) skip();
    server_start_pgbouncer(&pooler, &primary, "transaction", "");
    pawl_client *c = client(pooler.url);
    pawl_error error = PAWL_ERROR_INIT;
    assert_int_equal(pawl_connect(c, 5000, &error), PAWL_EUNSAFE);
    assert_non_null(strstr(error.text, "pooler"));
    assert_non_null(strstr(error.text, "pooler=session"));
    pawl_close(c);
    server_stop(&pooler);
    server_start_pgbouncer(&pooler, &primary, "session", "");
    char url[256];
    snprintf(url, sizeof url, "%s?pooler=session", pooler.url);
    c = client(url);
    pawl_lock *lock = take(c, "n", 0);
    assert_true(pawl_token(lock) > 0);
    assert_int_equal(pawl_release(lock, 10000, NULL), PAWL_OK);
    pawl_close(c);
}

int main(void) {
    if (access("/usr/lib/postgresql", X_OK)) {
        printf("1..0 # SKIP no PostgreSQL server here\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {
#define EACH(f) cmocka_unit_test_teardown(f, teardown)
        EACH(test_not_installed_is_said),
        EACH(test_wrong_password_and_no_server),
        EACH(test_loss_is_noticed_at_once),
        EACH(test_a_cancelled_wait_leaves_no_trace),
        EACH(test_waiting_writes_nothing_into_the_log),
        EACH(test_a_killed_holder_frees),
        EACH(test_tokens_rise_over_a_restart),
        EACH(test_promotion),
        EACH(test_a_pooler_is_refused),
    };
    return cmocka_run_group_tests_name("postgresql", tests, sql_group_setup, sql_group_teardown);
}
