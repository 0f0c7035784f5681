/* What a guard costs where the service keeps the data: against the same write without it, interleaved in one run.
 *
 *   cost_services redis          a guarded put against a plain SET: at most 1.5 (p50 of pairs)
 *   cost_services postgresql     a conditional UPDATE against the bare one: at most 1.1 (p50 of pairs, in memory); a
 * protected table, 8 writers on different rows: 0.6 of the throughput without in memory, 0.75 with fsync
 *
 * The bars are for a quiet machine, or one that is told so: chrt -f 10. Only with PAWL_TEST_FULL=1. */
#include "clock.h"
#include "pawl_postgres.h"
#include "server.h"
#include <hiredis/hiredis.h>
#include <libpq-fe.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { PAIRS = 300, WRITERS = 8, BLOCK = 40 };
static const char *kind = "redis";

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, size_t n) {
    qsort(values, n, sizeof *values, ascending);
    return values[n / 2];
}

/* p50 of one write and of the other, in turns; each comes first in every other pair. */
static double ratio_of(const char *what, void (*plain)(int), void (*guarded)(int)) {
    static double a[PAIRS], b[PAIRS], ratios[PAIRS];
    int n = PAIRS;
    for (int i = 0; i < n; i++) {
        for (int turn = 0; turn < 2; turn++) {
            int64_t began = clock_now_ns();
            bool guard_turn = turn == i % 2;
            (guard_turn ? guarded : plain)(i);
            (guard_turn ? b : a)[i] = (double)(clock_now_ns() - began) / 1000;
        }
        ratios[i] = b[i] / a[i];
    }
    double x = median(a, (size_t)n), y = median(b, (size_t)n), ratio = median(ratios, (size_t)n);
    print_message("# %s: %.0f us, without a guard %.0f us (p50 of %d), ratio of pairs %.2f\n", what, y, x, n, ratio);
    return ratio;
}

/* --- Redis --- */

static redisContext *redis;
static pawl_guard *guard;
static char data[101];

static void redis_set(int i) {
    snprintf(data, sizeof data, "%0100d", i);
    redisReply *reply = redisCommand(redis, "SET plain %b", data, sizeof data - 1);
    assert_non_null(reply);
    freeReplyObject(reply);
}

static void redis_put(int i) {
    static int64_t token = 1796043852633178;
    pawl_guard_write w = PAWL_GUARD_WRITE_INIT;
    w.resource = "balance", w.lock = "acct", w.by = "worker 1", w.token = ++token;
    snprintf(data, sizeof data, "%0100d", i);
    assert_int_equal(pawl_guard_put(guard, &w, data, sizeof data - 1, NULL), PAWL_OK);
}

static void test_redis(void **state) {
    (void)state;
    struct server server = {0};
    server_start_redis(&server, NULL);
    redis = redisConnect("127.0.0.1", server.port);
    assert_int_equal(pawl_guard_open(server.url, NULL, &guard, NULL), PAWL_OK);
    redis_put(0); /* connects, and the server learns the script */
    double ratios[3];
    for (int i = 0; i < 3; i++) ratios[i] = ratio_of("redis put", redis_set, redis_put);
    pawl_guard_close(guard);
    redisFree(redis);
    server_stop(&server);
    if (median(ratios, 3) > 1.5) fail_msg("a guarded put costs %.2f times a SET", median(ratios, 3));
}

/* --- PostgreSQL --- */

static PGconn *conn;

static PGconn *dial(int port) {
    char text[100];
    snprintf(text, sizeof text, "host=127.0.0.1 port=%d user=postgres dbname=postgres", port);
    PGconn *made = PQconnectdb(text);
    if (PQstatus(made) != CONNECTION_OK) fail_msg("%s", PQerrorMessage(made));
    return made;
}

static void does(PGconn *on, const char *sql) {
    PGresult *result = PQexec(on, sql);
    if (PQresultStatus(result) == PGRES_FATAL_ERROR) fail_msg("%s: %s", sql, PQresultErrorMessage(result));
    PQclear(result);
}

/* Each in two forms: parsed anew, and prepared. */
static bool prepared;
static pawl_postgres_fence fence = {sizeof fence, "fenced", "id", "fence", "fenced_by", NULL};

static void bare_update(int i) {
    char number[16];
    const char *values[] = {"1", number}, *sql = "UPDATE acct SET balance = $2 WHERE id = $1";
    snprintf(number, sizeof number, "%d", i);
    PGresult *result = prepared ? PQexecPrepared(conn, "bare", 2, values, NULL, NULL, 0)
                                : PQexecParams(conn, sql, 2, NULL, values, NULL, NULL, 0);
    assert_string_equal(PQcmdTuples(result), "1");
    PQclear(result);
}

static void conditional_update(int i) {
    static int64_t token = 1796043852633178;
    char number[16];
    const char *values[] = {number};
    pawl_guard_write w = PAWL_GUARD_WRITE_INIT;
    w.by = "worker 1", w.token = ++token;
    snprintf(number, sizeof number, "%d", i);
    assert_int_equal(pawl_postgres_guard_update(conn, &fence, "1", "balance = $2", 1, values, &w, NULL), PAWL_OK);
}

struct writers {
    int port, rounds;
    pthread_barrier_t barrier;
};
struct writer {
    struct writers *all;
    int row;
};

static void *write_blocks(void *given) {
    const struct writer *w = given;
    char update[2][80];
    PGconn *own = dial(w->all->port);
    for (int t = 0; t < 2; t++)
        snprintf(update[t], sizeof update[t], "UPDATE %s SET n = n + 1 WHERE id = %d", t ? "guarded" : "plain", w->row);
    for (int round = 0; round < 2 * w->all->rounds; round++) {
        pthread_barrier_wait(&w->all->barrier);
        for (int i = 0; i < BLOCK; i++) {
            does(own, round % 2 ? "BEGIN; SET LOCAL pawl.lock = 'l'; SET LOCAL pawl.token = '7'" : "BEGIN");
            does(own, update[round % 2]);
            does(own, "COMMIT");
        }
        pthread_barrier_wait(&w->all->barrier);
    }
    PQfinish(own);
    return NULL;
}

static double protected_ratio(const char *fsync) {
    struct server server = {0};
    struct writers all = {.rounds = 15};
    struct writer writers[WRITERS];
    pthread_t threads[WRITERS];
    double times[2][15], ratios[15];
    char settings[40];
    pawl_guard *prepare;
    snprintf(settings, sizeof settings, "fsync = %s\n", fsync);
    server_start_postgres(&server, settings);
    conn = dial(all.port = server.port);
    does(conn, "CREATE TABLE plain (id int PRIMARY KEY, n int); CREATE TABLE guarded (LIKE plain INCLUDING ALL);"
               "INSERT INTO plain SELECT g, 0 FROM generate_series(0, 7) g; INSERT INTO guarded SELECT * FROM plain");
    assert_int_equal(pawl_guard_open(server.url, NULL, &prepare, NULL), PAWL_OK);
    assert_int_equal(pawl_guard_install(prepare, PAWL_RULE_GE, NULL), PAWL_OK);
    assert_int_equal(pawl_guard_protect(prepare, "guarded", NULL, NULL), PAWL_OK);
    pawl_guard_close(prepare);
    pthread_barrier_init(&all.barrier, NULL, WRITERS + 1);
    for (int i = 0; i < WRITERS; i++) {
        writers[i] = (struct writer){&all, i};
        pthread_create(&threads[i], NULL, write_blocks, &writers[i]);
    }
    for (int round = 0; round < 2 * all.rounds; round++) {
        pthread_barrier_wait(&all.barrier);
        int64_t began = clock_now_ns();
        pthread_barrier_wait(&all.barrier);
        times[round % 2][round / 2] = (double)(clock_now_ns() - began) / 1e9;
    }
    for (int i = 0; i < WRITERS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < all.rounds; i++) ratios[i] = times[0][i] / times[1][i];
    double plain = median(times[0], (size_t)all.rounds), guarded = median(times[1], (size_t)all.rounds),
           ratio = median(ratios, (size_t)all.rounds);
    print_message("# protected table, 8 writers, fsync %s: %.0f transactions a second, without a guard %.0f, ratio of "
                  "rounds %.2f\n",
                  fsync, WRITERS * BLOCK / guarded, WRITERS * BLOCK / plain, ratio);
    pthread_barrier_destroy(&all.barrier);
    PQfinish(conn);
    server_stop(&server);
    return ratio;
}

static void test_conditional_update(void **state) {
    (void)state;
    struct server server = {0};
    double ratios[3];
    server_start_postgres(&server, "fsync = off\n");
    conn = dial(server.port);
    does(conn, "CREATE TABLE acct (id int PRIMARY KEY, balance int); INSERT INTO acct VALUES (1, 0);"
               "CREATE TABLE fenced (id int PRIMARY KEY, balance int, fence bigint NOT NULL DEFAULT 0, fenced_by text);"
               "INSERT INTO fenced VALUES (1, 0)");
    ratio_of("conditional UPDATE, parsed anew", bare_update, conditional_update); /* no bar: half of it is parsing */
    PQclear(PQprepare(conn, "bare", "UPDATE acct SET balance = $2 WHERE id = $1", 0, NULL));
    fence.statement = "fenced";
    assert_int_equal(pawl_postgres_guard_prepare(conn, &fence, "balance = $2", 1, NULL), PAWL_OK);
    prepared = true;
    for (int i = 0; i < 3; i++) ratios[i] = ratio_of("conditional UPDATE, prepared", bare_update, conditional_update);
    PQfinish(conn);
    server_stop(&server);
    if (median(ratios, 3) > 1.1) fail_msg("a conditional UPDATE costs %.2f times the bare one", median(ratios, 3));
}

static void test_protected_table(void **state) {
    (void)state;
    double memory = protected_ratio("off"), disk = protected_ratio("on");
    if (memory < 0.6 || disk < 0.75)
        fail_msg("throughput of a protected table is %.2f in memory, %.2f with fsync", memory, disk);
}

int main(int argc, char **argv) {
    if (argc > 1) kind = argv[1];
    if (!getenv("PAWL_TEST_FULL")) { /* other tests run beside the short form */
        puts("1..0 # SKIP PAWL_TEST_FULL=1");
        return 0;
    }
    const struct CMUnitTest of_redis[] = {cmocka_unit_test(test_redis)},
                            of_postgresql[] = {cmocka_unit_test(test_conditional_update),
                                               cmocka_unit_test(test_protected_table)};
    return strcmp(kind, "redis") == 0 ? cmocka_run_group_tests_name(kind, of_redis, NULL, NULL)
                                      : cmocka_run_group_tests_name(kind, of_postgresql, NULL, NULL);
}
