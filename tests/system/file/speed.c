/* speed.c: an uncontended acquire and release reaches a quarter of open + flock + close, or more: the median ratio
 * of three tries, in one thread, both in the same directory. */
#include "clock.h"
#include "parties.h"
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include <cmocka.h>

enum { ROUNDS = 30000, TRIES = 3 };

static double bare(const char *dir) {
    char path[100];
    snprintf(path, sizeof path, "%s/bare", dir);
    int64_t start = clock_now_ns();
    for (int i = 0; i < ROUNDS; i++) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0 || flock(fd, LOCK_EX) != 0) fail();
        close(fd);
    }
    return (double)(clock_now_ns() - start) / ROUNDS;
}

static double ours(const char *dir) {
    struct party party;
    party_open(&party, dir, "ours");
    int64_t start = clock_now_ns();
    for (int i = 0; i < ROUNDS; i++) {
        assert_int_equal(party_take(&party, false), BK_YES);
        party_release(&party);
    }
    double result = (double)(clock_now_ns() - start) / ROUNDS;
    party_close(&party);
    return result;
}

static int by_size(const void *a, const void *b) { return *(const double *)a < *(const double *)b ? -1 : 1; }

static void a_quarter_of_flock(void **state) {
    (void)state;
    char dir[64];
    double ratio[TRIES];
    new_dir(dir);
    for (int i = 0; i < TRIES; i++) {
        double floor = bare(dir), time = ours(dir);
        ratio[i] = floor / time;
        printf("# open+flock+close %.2f us, acquire+release %.2f us, ratio %.3f\n", floor / 1000, time / 1000,
               ratio[i]);
    }
    remove_dir(dir);
    qsort(ratio, TRIES, sizeof *ratio, by_size);
    assert_true(ratio[TRIES / 2] >= 0.25);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_quarter_of_flock)};
    return cmocka_run_group_tests_name("file_speed", tests, NULL, NULL);
}
