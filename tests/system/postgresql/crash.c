/* crash.c: what becomes of the numbers when a server loses the last of what it wrote, all it wrote since a copy, or the
 * lead: tokens rise over it. */
#include "clock.h"
#include "pawl.h"
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

/* Nothing is written to disk but by commits. */
#define SETTINGS "autovacuum = off\nwal_writer_delay = 10s\n"

static struct server siblings[2];

static int group_teardown(void **state) {
    server_stop(&siblings[0]);
    server_stop(&siblings[1]);
    return sql_group_teardown(state);
}

static int64_t token(const struct server *s, const char *parameters) {
    char url[160];
    pawl_client *client;
    pawl_lock *lock;
    pawl_error error = PAWL_ERROR_INIT;
    pawl_acquire_options o = PAWL_ACQUIRE_INIT;
    o.wait_ms = 10000;
    snprintf(url, sizeof url, "%s%s", s->url, parameters);
    if (pawl_open(url, NULL, &client, &error) || pawl_acquire(client, "n", &o, &lock, &error))
        fail_msg("%s", error.text);
    int64_t n = pawl_token(lock);
    assert_int_equal(pawl_release(lock, 5000, NULL), PAWL_OK);
    pawl_close(client);
    return n;
}

static int64_t number(const struct server *s, const char *sql) {
    char *text = server_sql(s->port, "%s", sql);
    int64_t n = text && *text != '-' ? strtoll(text, NULL, 10) : -1;
    free(text);
    return n;
}

/* A transaction that is open has written the record that covers the next 32 numbers; nobody has flushed it. Returns a
 * number of these that a lock was granted with, and the process of that transaction. */
static int64_t planted(const char *parameters, pid_t *ret_open) {
    token(&primary, parameters); /* admitted */
    PGconn *open = sql_dial(primary.port, "");
    while (sql_number(open, "SELECT log_cnt FROM pawl.token") > 0) sql_does(open, "SELECT pawl.next_token()");
    sql_does(open, "BEGIN; SELECT nextval('pawl.token')");
    *ret_open = PQbackendPID(open);
    return token(&primary, parameters); /* the connection stays, and dies with its server */
}

static bool answers(void *data) { return number(data, "SELECT 1") == 1; }
static bool down(void *data) { return !answers(data); }
static void up_again(struct server *s) {
    if (!server_until(answers, s, 60000)) shell("tail -20 %s/log >&2; false", s->dir);
}

/* Numbers that run ahead of the clock, as they do after restarts in quick succession, begin there: not at the clock,
 * which alone tells two losses apart. */
static bool caught_up(void *data) {
    return number(data, "SELECT count(*) FROM pawl.token WHERE last_value + 1048576 < pawl.clock_us()") == 1;
}
static void await_clock(struct server *s) { assert_true(server_until(caught_up, s, 60000)); }

/* A backend is killed: the server ends all others and recovers what is on disk. It is the same server still: nothing is
 * admitted anew, so only what was flushed keeps a number from being given twice. */
static int64_t rises_over_a_killed_backend(const char *parameters) {
    pid_t victim;
    char *before = server_sql(primary.port, "SELECT pawl.identity()");
    int64_t given = planted(parameters, &victim);
    assert_int_equal(kill(victim, SIGKILL), 0);
    server_until(down, &primary, 1000); /* or it was quicker than we can see */
    up_again(&primary);
    char *after = server_sql(primary.port, "SELECT pawl.identity()");
    assert_string_equal(before, after);
    free(before);
    free(after);
    int64_t next = token(&primary, parameters);
    print_message("# %s: %lld before the crash, %lld behind it\n", *parameters ? parameters : "flushed",
                  (long long)given, (long long)next);
    return next - given;
}

static void test_killed_backend(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) assert_true(rises_over_a_killed_backend("") > 0);
    bool repeated = false;
    for (int i = 0; i < 10 && !repeated; i++) repeated = rises_over_a_killed_backend("?flush=off") <= 0;
    assert_true(repeated); /* what flush=off gives up, and what this test would see */
}

/* An immediate stop: the same loss, but the server is started anew, and the numbers begin at the clock. */
static void test_immediate_stop(void **state) {
    (void)state;
    bool lost = false;
    for (int i = 0; i < 12; i++) {
        bool flush = i % 2;
        const char *parameters = flush ? "" : "?flush=off";
        pid_t ignored;
        int64_t given = planted(parameters, &ignored);
        server_kill(&primary, SIGQUIT);
        server_run(&primary);
        int64_t kept = number(&primary, "SELECT last_value + log_cnt FROM pawl.token");
        assert_true(!flush || kept >= given); /* on disk before it was handed out */
        lost = lost || kept < given;
        assert_true(token(&primary, parameters) > given); /* either way */
        if (lost && flush) break;
    }
    assert_true(lost);
}

static void copy(const char *from, const char *to) {
    const char *dir = primary.dir;
    shell("rm -rf '%s/%s' && cp -a '%s/%s' '%s/%s'", dir, to, dir, from, dir, to);
}

/* The data folder as it was some time ago: a backup, or a snapshot of the file system. */
static void test_restored_snapshot(void **state) {
    (void)state;
    token(&primary, "");
    await_clock(&primary);
    server_kill(&primary, SIGINT);
    copy("data", "copy");
    server_run(&primary);
    int64_t last = 0;
    for (int i = 0; i < 50; i++) last = token(&primary, "");
    await_clock(&primary);
    server_kill(&primary, SIGINT);
    copy("copy", "data");
    server_run(&primary);
    assert_true(number(&primary, "SELECT last_value FROM pawl.token") < last); /* it was put back */
    assert_true(token(&primary, "") > last);
}

/* A dump that is put back while the server runs: over the schema, and as a database of the same name. */
static void test_restored_dump(void **state) {
    (void)state;
    char where[64], url[128], more[16] = "dbname=dumped";
    snprintf(where, sizeof where, "-h 127.0.0.1 -p %d -U postgres", primary.port);
    snprintf(url, sizeof url, "postgresql://postgres@127.0.0.1:%d/dumped", primary.port);
    free(server_sql(primary.port, "CREATE DATABASE dumped"));
    sql_install(url);
    PGconn *c = sql_dial(primary.port, more);
    int64_t last = sql_number(c, "SELECT pawl.next_token()");
    shell("pg_dump %s dumped > '%s/dump'", where, primary.dir);
    for (int i = 0; i < 50; i++) last = sql_number(c, "SELECT pawl.next_token()");
    while (!sql_number(c, "SELECT (pawl.clock_us() > %lld)::int", (long long)last + 1048576)) {
    }
    sql_does(c, "SET client_min_messages = warning; DROP SCHEMA pawl CASCADE");
    shell("psql -q -v ON_ERROR_STOP=1 %s -d dumped -f '%s/dump' >/dev/null", where, primary.dir);
    assert_true(sql_number(c, "SELECT last_value FROM pawl.token") < last);
    PGconn *fresh = sql_dial(primary.port, more);
    int64_t first = sql_number(fresh, "SELECT pawl.next_token()"), second = sql_number(c, "SELECT pawl.next_token()");
    assert_true(first > last);
    assert_true(second > first); /* a session that was there before, too */
    while (!sql_number(c, "SELECT (pawl.clock_us() > %lld)::int", (long long)second + 1048576)) {
    }
    PQfinish(c);
    PQfinish(fresh);
    free(server_sql(primary.port, "DROP DATABASE dumped WITH (FORCE)"));
    free(server_sql(primary.port, "CREATE DATABASE dumped"));
    shell("psql -q -v ON_ERROR_STOP=1 %s -d dumped -f '%s/dump' >/dev/null", where, primary.dir);
    c = sql_dial(primary.port, more);
    assert_true(sql_number(c, "SELECT last_value FROM pawl.token") < last);
    assert_true(sql_number(c, "SELECT pawl.next_token()") > second);
    PQfinish(c);
}

static bool streams(void *data) {
    const struct server *s = data;
    return number(s, "SELECT count(*) FROM pg_stat_wal_receiver WHERE status = 'streaming'") == 1;
}
static bool cut(void *data) { return number(data, "SELECT count(*) FROM pg_stat_wal_receiver") == 0; }
static bool leads(void *data) { return number(data, "SELECT count(*) WHERE NOT pg_is_in_recovery()") == 1; }

static void start_sibling(struct server *s) {
    server_start_standby(s, &primary, SETTINGS);
    assert_true(server_until(streams, s, 20000));
}

/* It gets nothing any more. */
static void cut_off(struct server *s) {
    free(server_sql(s->port, "ALTER SYSTEM SET primary_conninfo = ''"));
    free(server_sql(s->port, "SELECT pg_reload_conf()"));
    assert_true(server_until(cut, s, 20000));
}

static void promote(struct server *s) {
    free(server_sql(s->port, "SELECT pg_promote(false)"));
    assert_true(server_until(leads, s, 20000));
}

static void refused_as_standby(const struct server *s) {
    PGconn *c = sql_dial(s->port, "");
    sql_does(c, "BEGIN");
    sql_refuses(c, "SELECT pawl.lock('n')", "25006", "");
    PQfinish(c);
}

/* Two standbys, promoted one after the other; neither knows of what the primary wrote last, nor the second of the
 * first. Both come up on the same timeline. Whoever was promoted last has the highest numbers, and the others stay
 * below. */
static void test_two_siblings_promoted_in_turn(void **state) {
    (void)state;
    start_sibling(&siblings[0]);
    start_sibling(&siblings[1]);
    refused_as_standby(&siblings[0]);
    cut_off(&siblings[0]);
    cut_off(&siblings[1]);
    int64_t old = 0, first, second;
    for (int i = 0; i < 100; i++) old = token(&primary, "");
    assert_true(number(&siblings[0], "SELECT last_value FROM pawl.token") < old); /* missed */
    await_clock(&primary);
    promote(&siblings[0]);
    first = token(&siblings[0], "");
    assert_true(first > old);
    assert_true(token(&primary, "") < first); /* the old primary lives on: a guard that saw the new one refuses it */
    promote(&siblings[1]);
    second = token(&siblings[1], "");
    assert_true(second > first);
    assert_true(token(&primary, "") < first);
    assert_true(token(&siblings[0], "") < second);
    char *one = server_sql(siblings[0].port, "SELECT substr(pawl.identity(), 1, 8)"),
         *two = server_sql(siblings[1].port, "SELECT substr(pawl.identity(), 1, 8)");
    assert_string_equal(one, "00000002");
    assert_string_equal(two, one); /* so the timeline alone would not have told them apart */
    print_message("# primary %lld, first %lld, second %lld; old primary now %lld, first now %lld\n", (long long)old,
                  (long long)first, (long long)second, (long long)token(&primary, ""),
                  (long long)token(&siblings[0], ""));
    free(one);
    free(two);
}

int main(void) {
    if (access("/usr/lib/postgresql", X_OK)) {
        printf("1..0 # SKIP no PostgreSQL server here\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_backend),
        cmocka_unit_test(test_immediate_stop),
        cmocka_unit_test(test_restored_snapshot),
        cmocka_unit_test(test_restored_dump),
        cmocka_unit_test(test_two_siblings_promoted_in_turn),
    };
    sql_settings = SETTINGS;
    return cmocka_run_group_tests_name("crash", tests, sql_group_setup, group_teardown);
}
