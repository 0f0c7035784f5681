/* Deadlines: no overflow, rounding up (a wait never ends early), and the three ways in which a wait ends. */
#include "clock.h"
#include "pawl.h"
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

static void test_now_is_boottime(void **data) {
    (void)data;
    struct timespec t;
    int64_t before = clock_now_ns();
    clock_gettime(CLOCK_BOOTTIME, &t);
    int64_t at = t.tv_sec * NS_PER_S + t.tv_nsec;
    int64_t after = clock_now_ns();
    assert_true(before <= at && at <= after);
    struct timespec from, to; /* not time(), which is behind by up to a tick */
    clock_gettime(CLOCK_REALTIME, &from);
    int64_t wall = clock_wall_us();
    clock_gettime(CLOCK_REALTIME, &to);
    assert_true(wall >= from.tv_sec * 1000000 + from.tv_nsec / 1000 && wall <= to.tv_sec * 1000000 + to.tv_nsec / 1000);
}

static void test_after(void **data) {
    (void)data;
    assert_int_equal(clock_after_ms(5, 0), 5);
    assert_int_equal(clock_after_ms(5, 1), 5 + NS_PER_MS);
    assert_int_equal(clock_after_ms(NS_PER_S, -1), NS_PER_S - NS_PER_MS);
    assert_true(clock_after_ms(5, PAWL_FOREVER) == INT64_MAX);
    assert_true(clock_after_ms(INT64_MAX, 1) == INT64_MAX);
    assert_true(clock_after_ms(INT64_MAX - 1, 1) == INT64_MAX);
    int64_t ms = INT64_MAX / NS_PER_MS;
    assert_true(clock_after_ms(0, ms - 1) == (ms - 1) * NS_PER_MS);
    assert_true(clock_after_ms(NS_PER_S, ms) == INT64_MAX);
}

static void test_poll_ms(void **data) {
    (void)data;
    assert_int_equal(clock_poll_ms(0, INT64_MAX), -1);
    assert_int_equal(clock_poll_ms(7, 7), 0);
    assert_int_equal(clock_poll_ms(7, 6), 0);
    assert_int_equal(clock_poll_ms(7, 0), 0);
    assert_int_equal(clock_poll_ms(0, 1), 1); /* up: 0 would spin */
    assert_int_equal(clock_poll_ms(0, NS_PER_MS), 1);
    assert_int_equal(clock_poll_ms(0, NS_PER_MS + 1), 2);
    assert_int_equal(clock_poll_ms(0, INT64_MAX - NS_PER_MS), INT_MAX);
}

static void test_wait_ends_at_its_deadline(void **data) {
    (void)data;
    int fd = eventfd(0, EFD_CLOEXEC);
    int64_t at = clock_after_ms(clock_now_ns(), 30);
    assert_int_equal(clock_wait_fd(fd, POLLIN, at, -1), 0);
    assert_true(clock_now_ns() >= at);
    assert_int_equal(clock_wait_fd(fd, POLLIN, 0, -1), 0); /* long past: at once */
    assert_int_equal(clock_wait_fd(fd, POLLOUT, 0, -1), 1);
    close(fd);
}

static void test_wait_ready_and_cancel(void **data) {
    (void)data;
    uint64_t one = 1;
    int fd = eventfd(0, EFD_CLOEXEC), cancel = eventfd(0, EFD_CLOEXEC);
    assert_int_equal(write(fd, &one, sizeof one), sizeof one);
    assert_int_equal(clock_wait_fd(fd, POLLIN, INT64_MAX, cancel), 1);
    assert_int_equal(write(cancel, &one, sizeof one), sizeof one);
    assert_int_equal(clock_wait_fd(fd, POLLIN, INT64_MAX, cancel), -1); /* cancel goes first */
    assert_int_equal(read(fd, &one, sizeof one), sizeof one);
    assert_int_equal(clock_wait_fd(fd, POLLIN, INT64_MAX, cancel), -1);
    assert_int_equal(read(cancel, &one, sizeof one), sizeof one); /* was polled, not read */
    close(fd);
    close(cancel);
}

static volatile sig_atomic_t alarms;
static void on_alarm(int number) {
    (void)number;
    alarms++;
}

static void test_signals_do_not_shorten_or_stretch_a_wait(void **data) {
    (void)data;
    struct sigaction action = {.sa_handler = on_alarm}, old; /* no SA_RESTART: poll ends with EINTR */
    sigaction(SIGALRM, &action, &old);
    struct itimerval each = {{0, 3000}, {0, 3000}}, off = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &each, NULL);
    int fd = eventfd(0, EFD_CLOEXEC);
    int64_t from = clock_now_ns(), at = clock_after_ms(from, 40);
    int result = clock_wait_fd(fd, POLLIN, at, -1);
    int64_t took = clock_now_ns() - from;
    setitimer(ITIMER_REAL, &off, NULL);
    sigaction(SIGALRM, &old, NULL);
    close(fd);
    assert_int_equal(result, 0);
    assert_true(alarms > 0);
    assert_true(took >= 40 * NS_PER_MS && took < 2000 * NS_PER_MS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_now_is_boottime),
        cmocka_unit_test(test_after),
        cmocka_unit_test(test_poll_ms),
        cmocka_unit_test(test_wait_ends_at_its_deadline),
        cmocka_unit_test(test_wait_ready_and_cancel),
        cmocka_unit_test(test_signals_do_not_shorten_or_stretch_a_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
