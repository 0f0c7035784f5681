/* scale.c: many locks, many waiters, and servers that have no room left: what is refused says what to do, and costs
 * nobody else anything. */
#include "holding.h"
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MANY = 10000, A_CONNECTION = 256, ENDS = 500, CLIENTS = 4, NAMES = 50, WAITERS = 8 };

static struct server server;

#define ADVISORY "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"

static int start(void **state, const char *settings) {
    (void)state;
    server_start_postgres(&server, settings);
    sql_install(server.url);
    return 0;
}

static int roomy(void **state) { return start(state, "max_locks_per_transaction = 256\n"); }
static int narrow(void **state) { return start(state, "max_locks_per_transaction = 10\nmax_connections = 20\n"); }

static int teardown(void **state) {
    (void)state;
    server_stop(&server);
    return 0;
}

static int64_t number(const char *sql) {
    char *text = server_sql(server.port, "%s", sql);
    if (!text || *text == '-') fail_msg("%s: %s", sql, text ? text : "no answer");
    int64_t n = strtoll(text, NULL, 10);
    free(text);
    return n;
}

/* Connections of pawl. */
static int64_t connections(void) {
    return number("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pawl%'");
}

static int compare(const void *x, const void *y) {
    const int64_t *a = x, *b = y;
    return (*a > *b) - (*a < *b);
}

/* What the machine adds is not ours: the tenth part that took least counts. */
static int64_t usual(int64_t values[], size_t n) {
    qsort(values, n, sizeof *values, compare);
    return values[n / 10];
}

static void test_thousands_of_locks(void **state) {
    (void)state;
    int n = getenv("PAWL_TEST_FULL") ? MANY : 2560;
    pawl_client *client = client_of(server.url, 0);
    pawl_lock **locks = calloc(MANY, sizeof *locks);
    int64_t *took = calloc(MANY, sizeof *took);
    char name[32];
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "many:%d", i);
        int64_t begin = clock_now_ns();
        locks[i] = hold(client, name);
        took[i] = clock_now_ns() - begin;
    }
    int64_t first = usual(took, ENDS), last = usual(took + n - ENDS, ENDS), used = connections();
    print_message("# the first %d: %lld us, the last: %lld us, over %lld connections\n", ENDS, (long long)first / 1000,
                  (long long)last / 1000, (long long)used);
    assert_int_equal(advisory(server.port, true), n);
    assert_true(used <= (n + A_CONNECTION - 1) / A_CONNECTION);
    assert_true(last <= 3 * first);
    for (int i = 0; i < n; i += 999) must(pawl_verify(locks[i], 5000, &holding_error));
    for (int i = 0; i < n; i++) must(pawl_release(locks[i], 5000, &holding_error));
    assert_int_equal(advisory(server.port, true), 0);
    pawl_close(client);
    free(locks);
    free(took);
}

static void test_a_full_lock_table(void **state) {
    (void)state;
    pawl_client *client = client_of(server.url, 0), *other = client_of(server.url, 0);
    pawl_lock *theirs = hold(other, "theirs"), **locks = calloc(MANY, sizeof *locks), *lock;
    char name[32];
    int n = 0, code = PAWL_OK;
    PGconn *others = sql_dial(server.port, ""), *look = sql_dial(server.port, "");
    for (; n < 100; n++) {
        snprintf(name, sizeof name, "full:%d", n);
        locks[n] = hold(client, name);
    }
    sql_number(look, ADVISORY);
    sql_refuses(others, "SELECT count(pg_advisory_lock(i)) FROM generate_series(1, 100000) i", "53200", "");
    int64_t all = sql_number(look, ADVISORY);
    for (; n < MANY && code == PAWL_OK; n += code == PAWL_OK) {
        snprintf(name, sizeof name, "full:%d", n);
        code = take(client, name, 0, &locks[n]);
    }
    print_message("# %s\n", holding_error.text);
    assert_int_equal(code, PAWL_EUNREACHABLE);
    assert_non_null(strstr(holding_error.text, "53200"));
    assert_non_null(strstr(holding_error.text, "max_locks_per_transaction"));
    assert_int_equal(take(client, "waiting", 1500, &lock), PAWL_EUNREACHABLE);
    assert_int_equal(sql_number(look, ADVISORY), all + n - 100); /* nothing else is held, and nothing is lost */
    for (int i = 0; i < n; i++) assert_int_equal(pawl_check(locks[i]), PAWL_OK);
    PQfinish(others);
    must(take(client, "room", 5000, &lock));
    let_go(lock);
    must(pawl_verify(locks[0], 5000, &holding_error));
    must(pawl_verify(theirs, 5000, &holding_error));
    let_go(theirs);
    while (n > 0) let_go(locks[--n]);
    assert_int_equal(advisory(server.port, true), 0);
    PQfinish(look);
    pawl_close(client);
    pawl_close(other);
    free(locks);
}

static void test_no_connection_is_left(void **state) {
    (void)state;
    PGconn *all[20];
    int n = 0;
    char url[128];
    free(server_sql(server.port, "CREATE ROLE plain LOGIN"));
    snprintf(url, sizeof url, "postgresql://plain@127.0.0.1:%d/postgres", server.port);
    pawl_client *client = client_of(url, 0), *late = client_of(url, 0), *holder = client_of(server.url, 0);
    pawl_lock *held = hold(client, "held"), *theirs = hold(holder, "theirs"), *lock;
    for (; n < 20; n++) {
        char where[128];
        snprintf(where, sizeof where, "host=127.0.0.1 port=%d user=plain dbname=postgres", server.port);
        all[n] = PQconnectdb(where);
        if (PQstatus(all[n]) != CONNECTION_OK) break;
    }
    assert_true(n > 5 && n < 20);
    PQfinish(all[n]);
    assert_int_equal(pawl_connect(late, 2000, &holding_error), PAWL_EUNREACHABLE);
    print_message("# %s\n", holding_error.text);
    assert_non_null(strstr(holding_error.text, "53300"));
    assert_non_null(strstr(holding_error.text, "max_connections"));
    assert_int_equal(take(late, "free", 500, &lock), PAWL_EUNREACHABLE);
    let_go(hold(client, "free"));                                         /* who has a connection goes on */
    assert_int_equal(take(client, "theirs", 1500, &lock), PAWL_ETIMEOUT); /* also where it has to wait */
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    pawl_event event = PAWL_EVENT_INIT;
    must(pawl_acquire_start(client, "theirs", &options, NULL, &lock, &holding_error));
    struct pollfd p = {.fd = pawl_event_fd(client), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 1200), 0);
    let_go(theirs);
    assert_int_equal(poll(&p, 1, 10000), 1);
    assert_int_equal(pawl_next_event(client, &event), 1);
    assert_int_equal(event.type, PAWL_GRANTED);
    let_go(lock);
    theirs = hold(holder, "theirs");
    must(pawl_verify(held, 5000, &holding_error));
    must(pawl_verify(theirs, 5000, &holding_error));
    assert_int_equal(advisory(server.port, true), 2);
    while (n > 0) PQfinish(all[--n]);
    must(take(late, "free", 5000, &lock));
    let_go(lock);
    let_go(held);
    let_go(theirs);
    pawl_close(client);
    pawl_close(late);
    pawl_close(holder);
}

struct thread {
    pthread_t id;
    pawl_client *client;
    int name, code;
    pawl_error error;
};

static void *one_turn(void *data) {
    struct thread *t = data;
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    pawl_lock *lock;
    char name[32];
    snprintf(name, sizeof name, "crowd:%d", t->name);
    options.wait_ms = 120000;
    t->code = pawl_acquire(t->client, name, &options, &lock, &t->error);
    if (t->code == PAWL_OK) t->code = pawl_release(lock, 30000, &t->error);
    return NULL;
}

static bool all_wait(void *data) {
    (void)data;
    return advisory(server.port, false) == CLIENTS * WAITERS;
}

static void test_a_crowd_of_waiting_threads(void **state) {
    (void)state;
    pawl_client *blocker = client_of(server.url, 0), *clients[CLIENTS];
    pawl_lock *held[NAMES];
    int n = getenv("PAWL_TEST_FULL") ? 1000 : 400;
    struct thread *threads = calloc((size_t)n, sizeof *threads);
    pthread_attr_t attributes;
    char name[32];
    for (int i = 0; i < NAMES; i++) {
        snprintf(name, sizeof name, "crowd:%d", i);
        held[i] = hold(blocker, name);
    }
    for (int i = 0; i < CLIENTS; i++) clients[i] = client_of(server.url, 0);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 << 10);
    for (int i = 0; i < n; i++) {
        threads[i].client = clients[i % CLIENTS];
        threads[i].name = i / CLIENTS % NAMES;
        threads[i].error = (pawl_error)PAWL_ERROR_INIT;
        assert_int_equal(pthread_create(&threads[i].id, &attributes, one_turn, &threads[i]), 0);
    }
    assert_true(server_until(all_wait, NULL, 30000));
    int64_t used = connections();
    print_message("# %d threads wait in %lld connections\n", n, (long long)used);
    assert_true(used <= CLIENTS * (WAITERS + 10));
    for (int i = 0; i < NAMES; i++) let_go(held[i]);
    for (int i = 0; i < n; i++) {
        pthread_join(threads[i].id, NULL);
        if (threads[i].code) fail_msg("%d: %s", threads[i].code, threads[i].error.text);
    }
    assert_int_equal(advisory(server.port, true) + advisory(server.port, false), 0);
    for (int i = 0; i < CLIENTS; i++) pawl_close(clients[i]);
    pawl_close(blocker);
    free(threads);
}

int main(void) {
    if (access("/usr/lib/postgresql", X_OK)) {
        printf("1..0 # SKIP no PostgreSQL server here\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_thousands_of_locks, roomy, teardown),
        cmocka_unit_test_setup_teardown(test_a_full_lock_table, narrow, teardown),
        cmocka_unit_test_setup_teardown(test_no_connection_is_left, narrow, teardown),
        cmocka_unit_test_setup_teardown(test_a_crowd_of_waiting_threads, roomy, teardown),
    };
    return cmocka_run_group_tests_name("postgresql scale", tests, NULL, NULL);
}
