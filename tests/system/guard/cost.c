/* What a guard costs: a put, against the same durable write without a guard, interleaved in one run. The bar is the
 * median ratio of three tries: 1.3. Regime: one writer, 100 bytes, one resource, the handle stays open. */
#include "clock.h"
#include "pawl_guard.h"
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef WITH_SQLITE
#include <sqlite3.h>
#endif
#include <cmocka.h>

enum { TRIES = 3, PAIRS = 100 };
static const char *kind = "dir";
static char base[] = "/tmp/pawl-cost-XXXXXX", data[100];

/* --- the write without a guard --- */

static int dir_fd;
#ifdef WITH_SQLITE
static sqlite3 *db;
static sqlite3_stmt *upsert;
#endif

static void raw_open(void) {
    char path[64];
    if (strcmp(kind, "dir") == 0) {
        snprintf(path, sizeof path, "%s/raw", base);
        mkdir(path, 0777);
        dir_fd = open(path, O_RDONLY | O_DIRECTORY);
        assert_true(dir_fd >= 0);
        return;
    }
#ifdef WITH_SQLITE
    snprintf(path, sizeof path, "%s/raw.db", base);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA synchronous = EXTRA; CREATE TABLE t (name TEXT PRIMARY KEY, data BLOB)",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db,
                                        "INSERT INTO t VALUES ('balance', ?1) ON CONFLICT (name) DO UPDATE SET data = "
                                        "excluded.data",
                                        -1, &upsert, NULL),
                     SQLITE_OK);
#endif
}

static void raw_write(void) {
    if (strcmp(kind, "dir") == 0) {
        int fd = openat(dir_fd, "balance.new", O_WRONLY | O_CREAT | O_TRUNC, 0666);
        assert_int_equal(write(fd, data, sizeof data), sizeof data);
        assert_int_equal(fsync(fd), 0);
        close(fd);
        assert_int_equal(renameat(dir_fd, "balance.new", dir_fd, "balance"), 0);
        assert_int_equal(fsync(dir_fd), 0);
        return;
    }
#ifdef WITH_SQLITE
    assert_int_equal(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_reset(upsert);
    sqlite3_bind_blob(upsert, 1, data, sizeof data, SQLITE_STATIC);
    assert_int_equal(sqlite3_step(upsert), SQLITE_DONE);
    sqlite3_reset(upsert);
    assert_int_equal(sqlite3_exec(db, "COMMIT", NULL, NULL, NULL), SQLITE_OK);
#endif
}

/* --- */

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, size_t n) {
    qsort(values, n, sizeof *values, ascending);
    return values[n / 2];
}

static double ratio_of(pawl_guard *guard) {
    static double raw[PAIRS], guarded[PAIRS], ratios[PAIRS];
    static int64_t token = 1796043852633178;
    pawl_guard_write w = PAWL_GUARD_WRITE_INIT;
    w.resource = "balance";
    w.lock = "acct";
    w.by = "worker 1";
    for (int i = 0; i < PAIRS; i++) {
        w.token = ++token;
        snprintf(data, sizeof data, "%099ld", (long)token); /* SQLite skips a write that changes nothing */
        for (int turn = 0; turn < 2; turn++) { /* each comes first in every other pair: the disk is shared */
            int64_t began = clock_now_ns();
            bool guard_turn = turn == i % 2;
            if (guard_turn) assert_int_equal(pawl_guard_put(guard, &w, data, sizeof data, NULL), PAWL_OK);
            else raw_write();
            (guard_turn ? guarded : raw)[i] = (double)(clock_now_ns() - began) / 1000;
        }
        ratios[i] = guarded[i] / raw[i];
    }
    double a = median(raw, PAIRS), b = median(guarded, PAIRS), ratio = median(ratios, PAIRS);
    print_message("%s: put %.0f us, the same write without a guard %.0f us (p50 of %d), ratio of pairs %.2f\n", kind, b,
                  a, PAIRS, ratio);
    return ratio;
}

static void test_cost(void **unused) {
    (void)unused;
    char url[64], command[80];
    double ratios[TRIES];
    pawl_guard *guard;
    assert_non_null(mkdtemp(base));
    snprintf(url, sizeof url, strcmp(kind, "dir") == 0 ? "dir:%s/set" : "sqlite:%s/set.db", base);
    assert_int_equal(pawl_guard_open(url, NULL, &guard, NULL), PAWL_OK);
    raw_open();
    for (int i = 0; i < TRIES; i++) ratios[i] = ratio_of(guard);
    pawl_guard_close(guard);
    snprintf(command, sizeof command, "rm -rf '%s'", base);
    assert_int_equal(system(command), 0);
    double middle = median(ratios, TRIES);
    if (middle > 1.3) fail_msg("a put costs %.2f times the write without a guard", middle);
}

int main(int argc, char **argv) {
    if (argc > 1) kind = argv[1];
    if (!getenv("PAWL_TEST_FULL")) { /* other tests run beside the short form */
        puts("1..0 # SKIP PAWL_TEST_FULL=1");
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cost)};
    return cmocka_run_group_tests_name(kind, tests, NULL, NULL);
}
