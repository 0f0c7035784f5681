/* Owner values differ, also across fork; jitter keeps its bounds and reaches both of them. */
#include "random.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static void test_bytes(void **data) {
    (void)data;
    unsigned char a[300], b[300], none[1] = {7};
    memset(a, 0, sizeof a);
    random_bytes(a, sizeof a);
    random_bytes(b, sizeof b);
    assert_memory_not_equal(a, b, sizeof a);
    bool tail = false; /* getrandom may give less than asked for */
    for (size_t i = 256; i < sizeof a; i++) tail |= a[i] != 0;
    assert_true(tail);
    random_bytes(none, 0);
    assert_int_equal(none[0], 7);
}

static void test_between(void **data) {
    (void)data;
    int seen[5] = {0};
    for (int i = 0; i < 5000; i++) {
        int64_t n = random_between(-2, 2);
        assert_true(n >= -2 && n <= 2);
        seen[n + 2]++;
    }
    for (int i = 0; i < 5; i++) assert_true(seen[i] > 700 && seen[i] < 1300); /* 1000 expected, 28 deviation */
    assert_int_equal(random_between(9, 9), 9);
    assert_int_equal(random_between(9, 3), 9);
    for (int i = 0; i < 100; i++) assert_true(random_between(0, INT64_MAX) >= 0);
}

static void test_a_fork_does_not_repeat_its_parent(void **data) {
    (void)data;
    int64_t mine[8], its[8];
    int ends[2];
    random_between(0, 1); /* seeded before the fork */
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 8; i++) its[i] = random_between(0, INT64_MAX);
        _exit(write(ends[1], its, sizeof its) == sizeof its ? 0 : 1);
    }
    for (int i = 0; i < 8; i++) mine[i] = random_between(0, INT64_MAX);
    assert_int_equal(read(ends[0], its, sizeof its), sizeof its);
    assert_memory_not_equal(mine, its, sizeof its);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(ends[0]);
    close(ends[1]);
}

static void test_hex(void **data) {
    (void)data;
    char text[7];
    random_hex((const unsigned char[]){0x00, 0xff, 0xa5}, 3, text);
    assert_string_equal(text, "00ffa5");
    random_hex(NULL, 0, text);
    assert_string_equal(text, "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_between),
        cmocka_unit_test(test_a_fork_does_not_repeat_its_parent),
        cmocka_unit_test(test_hex),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
