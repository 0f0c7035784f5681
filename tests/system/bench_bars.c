/* bench_bars.c: the speed that is promised (docs/BENCHMARKS.md), as a test: only with PAWL_TEST_FULL=1, since it needs
 * a machine that is ours. Each bar is the median of three tries within one run, after a short run that nobody looks at,
 * so that files are made, pages are there and the clock rate of the cores is up. A bar that is missed is measured
 * again, with more tries, since others may have been busy. Where other programs take the cores, a time says nothing
 * about pawl: a bar in microseconds is then reported and skipped, a ratio still holds. */
#include "bars.h"
#include "clock.h"
#include <fcntl.h>
#include <setjmp.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define RUNS 100

extern char **environ;

static void cycle_is_a_quarter_of_flock(void **state) {
    (void)state;
    double ratio = 0;
    json_decref(bench("--raw --tries 1 --scenario cycle -u file: --seconds 0.2"));
    for (int tries = 3; ratio < 0.25 && tries <= 9; tries += 3) {
        json_t *row = bench("--raw --tries %d --scenario cycle -u file: --seconds 1", tries);
        ratio = number(row, "ratio");
        json_decref(row);
    }
    if (ratio < 0.25) fail_msg("file: ratio %.3f, promised 0.25 of open + flock + close", ratio);
}

static void handoff_takes_less_than_100_us(void **state) {
    (void)state;
    double gap = 100, ours = 0;
    json_decref(bench("--raw --tries 1 --scenario handoff -u file: --seconds 0.2"));
    for (int tries = 3; gap >= 100 && tries <= 9; tries += 3) {
        json_t *row = bench("--raw --tries %d --scenario handoff -u file: --seconds 1", tries);
        gap = number(row, "p50_us");
        ours = number(row, "ours_percent");
        assert_true(number(row, "faults") == 0);
        json_decref(row);
    }
    if (gap < 100) return;
    if (ours < BARS_QUIET) {
        print_message("# %.0f us with %.0f %% of the cores ours: no verdict\n", gap, ours);
        skip();
    }
    fail_msg("file: hand-off p50 %.0f us, promised 100", gap);
}

static void lock_costs_less_than_a_kilobyte(void **state) {
    (void)state;
    json_t *row = bench("--raw --tries 3 --scenario many -u file:");
    double bytes = number(row, "bytes_per_lock");
    json_decref(row);
    if (!(bytes > 0 && bytes < 1024)) fail_msg("file: %.0f bytes for each held lock, promised 1024", bytes);
}

static int64_t run_once(char *const argv[]) {
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    pid_t pid;
    int status;
    int64_t begin = clock_now_ns();
    int r = posix_spawnp(&pid, argv[0], &files, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    if (r) fail_msg("%s: %s", argv[0], strerror(r));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    int64_t took = clock_now_ns() - begin;
    if (status) fail_msg("%s ended with status %#x", argv[0], (unsigned)status);
    return took;
}

static int compare(const void *x, const void *y) {
    const int64_t *a = x, *b = y;
    return (*a > *b) - (*a < *b);
}

static void run_costs_flock_and_little_more(void **state) {
    (void)state;
    char directory[] = "/tmp/pawl-bars-XXXXXX", url[64], file[64];
    assert_non_null(mkdtemp(directory));
    snprintf(url, sizeof url, "file:%s", directory);
    snprintf(file, sizeof file, "%s/flock", directory);
    char *with_pawl[] = {getenv("PAWL_BIN"), "run", "-u", url, "n", "--", "true", NULL};
    char *with_flock[] = {"flock", file, "true", NULL};
    int64_t more[3], least[3];
    for (int try = 0; try < 3; try++) {
        int64_t pawl[RUNS], flock[RUNS];
        for (int i = 0; i < RUNS; i++) {
            pawl[i] = run_once(with_pawl);
            flock[i] = run_once(with_flock);
        }
        qsort(pawl, RUNS, sizeof *pawl, compare);
        qsort(flock, RUNS, sizeof *flock, compare);
        more[try] = pawl[RUNS / 2] - flock[RUNS / 2];
        least[try] = pawl[0] - flock[0];
        print_message("# pawl run %.2f ms (least %.2f), flock %.2f ms (least %.2f)\n", (double)pawl[RUNS / 2] / 1e6,
                      (double)pawl[0] / 1e6, (double)flock[RUNS / 2] / 1e6, (double)flock[0] / 1e6);
    }
    char remove[128];
    snprintf(remove, sizeof remove, "rm -rf %s", directory);
    assert_int_equal(system(remove), 0);
    qsort(more, 3, sizeof *more, compare);
    qsort(least, 3, sizeof *least, compare);
    if (more[1] <= 3 * NS_PER_MS / 2) return;
    json_t *row = bench("--raw --tries 3 --scenario cycle -u file: --seconds 0.1");
    double ours = number(row, "ours_percent");
    json_decref(row);
    if (ours >= BARS_QUIET) fail_msg("pawl run costs %.2f ms more than flock, promised 1.5", (double)more[1] / 1e6);
    print_message("# %.0f %% of the cores ours: judged by the least times\n", ours);
    if (least[1] > 3 * NS_PER_MS / 2)
        fail_msg("pawl run costs %.2f ms more than flock at the least, promised 1.5", (double)least[1] / 1e6);
}

int main(void) {
    if (!getenv("PAWL_TEST_FULL")) {
        puts("1..0 # SKIP PAWL_TEST_FULL=1");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cycle_is_a_quarter_of_flock), cmocka_unit_test(handoff_takes_less_than_100_us),
        cmocka_unit_test(lock_costs_less_than_a_kilobyte), cmocka_unit_test(run_costs_flock_and_little_more)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
