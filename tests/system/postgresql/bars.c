/* bars.c: the speed that is promised beside libpq (docs/BENCHMARKS.md), as a test: only with PAWL_TEST_FULL=1. Each bar
 * is the median of the tries of one run, floor and pawl in turns. What a process must wait for a core says nothing
 * about pawl: where less than 80 % of the cores are ours there is no verdict. `chrt -f 1` before the test makes them
 * ours. */
#include "bars.h"
#include "sql.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* false: the machine was not ours, and there is no verdict. */
static bool at_least(const char *what, const json_t *row, double bar) {
    double ratio = number(row, "ratio"), ours = number(row, "ours_percent");
    print_message("# %s: %.2f of libpq, promised %.2f (%.0f %% of the cores ours)\n", what, ratio, bar, ours);
    if (ratio >= bar) return true;
    if (ours >= BARS_QUIET) fail_msg("%s: %.2f of libpq, promised %.2f", what, ratio, bar);
    return false;
}

static void test_cycle(void **state) {
    (void)state;
    static const struct {
        const char *what, *parameters;
        double bar;
    } rows[] = {{"acquire + release", "", .75}, {"the same, flush=off", "?flush=off", .85}};
    bool said = true;
    for (int i = 0; i < 2; i++) {
        json_t *row = bench("--scenario cycle -u '%s%s' --raw --tries 5 --seconds 1", primary.url, rows[i].parameters);
        said = at_least(rows[i].what, row, rows[i].bar) && said;
        json_decref(row);
    }
    if (!said) skip();
}

static void test_relay(void **state) {
    (void)state;
    json_t *row = bench("--scenario relay -u %s --raw --clients 32 --tries 3 --seconds 3", primary.url);
    double most = number(row, "grants_max"), least = number(row, "grants_min"), ours = number(row, "ours_percent");
    assert_true(number(row, "faults") == 0);
    bool said = at_least("relay of 32, turns", row, .85);
    json_decref(row);
    print_message("# grants max/min %.0f/%.0f, promised below 1.5\n", most, least);
    if (said && most < 1.5 * least) return;
    if (ours >= BARS_QUIET) fail_msg("grants max/min %.0f/%.0f, promised below 1.5", most, least);
    skip();
}

/* Each hold is longer than a slice: whoever waits is put at the end of the server's queue again and again, and is not
 * starved by it. */
static void test_holds_longer_than_a_slice(void **state) {
    (void)state;
    json_t *row = bench("--scenario relay -u %s --clients 4 --hold 3s --tries 1 --seconds 26", primary.url);
    print_message("# 4 clients, holds of 3 s: turns max/min %.0f/%.0f, %.1f requests a turn, gap p50 %.0f us\n",
                  number(row, "grants_max"), number(row, "grants_min"), number(row, "requests_per_turn"),
                  number(row, "p50_us"));
    assert_true(number(row, "faults") == 0);
    assert_true(number(row, "grants_min") >= 1 && number(row, "grants_max") <= 4);
    json_decref(row);
}

int main(void) {
    if (!getenv("PAWL_TEST_FULL")) {
        puts("1..0 # SKIP PAWL_TEST_FULL=1");
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cycle), cmocka_unit_test(test_relay),
                                       cmocka_unit_test(test_holds_longer_than_a_slice)};
    return cmocka_run_group_tests_name("postgresql bars", tests, sql_group_setup, sql_group_teardown);
}
