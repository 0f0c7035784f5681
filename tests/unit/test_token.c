/* The token rule at its bounds: 2^53 is never passed, a clock that stands or runs back never lowers a token. */
#include "token.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define NOW INT64_C(1796043852343410)

static void test_admit_starts_at_now(void **data) {
    (void)data;
    struct token_state s = {0};
    token_admit(&s, NOW);
    assert_int_equal(s.last, NOW);
    assert_int_equal(s.since, NOW);
    assert_int_equal(token_grant(&s, NOW), NOW + 1);
}

static void test_admit_leaps_when_the_clock_is_behind(void **data) {
    (void)data;
    struct token_state s = {.since = NOW, .last = NOW + 5};
    token_admit(&s, NOW - 1000000);
    assert_int_equal(s.last, NOW + 5 + TOKEN_LEAP);
    assert_int_equal(s.since, s.last);
    s = (struct token_state){.since = 7, .last = 7};
    token_admit(&s, -NOW); /* a clock before 1970 */
    assert_int_equal(s.last, 7 + TOKEN_LEAP);
}

static void test_grant_rises_and_lags(void **data) {
    (void)data;
    struct token_state s = {.since = NOW, .last = NOW};
    uint64_t before = NOW;
    for (int64_t at = 0; at < 8000; at += 7) {
        uint64_t token = token_grant(&s, NOW + at);
        assert_true(token > before);
        assert_int_equal(token, s.last);
        before = token;
    }
    s = (struct token_state){.since = NOW, .last = NOW};
    assert_int_equal(token_grant(&s, NOW + 8000), NOW + 1000); /* an eighth of the time */
    assert_int_equal(token_grant(&s, NOW + 8000), NOW + 1001);
    assert_int_equal(token_grant(&s, NOW - 3600000000), NOW + 1002); /* the clock was set back */
    assert_int_equal(s.since, NOW);
}

static void test_grant_never_passes_the_clock(void **data) {
    (void)data;
    struct token_state s = {.since = NOW, .last = NOW};
    for (int64_t hours = 1; hours < 100000; hours *= 3) {
        int64_t now = NOW + hours * 3600000000;
        assert_true(token_grant(&s, now) < (uint64_t)now);
    }
}

static void test_grant_ends_at_2_to_53(void **data) {
    (void)data;
    struct token_state s = {.since = TOKEN_MAX - 2, .last = TOKEN_MAX - 2};
    assert_int_equal(token_grant(&s, NOW), TOKEN_MAX - 1);
    assert_int_equal(token_grant(&s, NOW), TOKEN_MAX);
    assert_int_equal(token_grant(&s, NOW), 0);
    assert_int_equal(token_grant(&s, INT64_MAX), 0);
    assert_int_equal(s.last, TOKEN_MAX); /* unchanged */
}

static void test_advance(void **data) {
    (void)data;
    struct token_state s = {.since = NOW, .last = NOW};
    token_advance(&s, NOW, NOW + TOKEN_LEAP + 77);
    assert_int_equal(s.last, NOW + TOKEN_LEAP + 77);
    token_advance(&s, NOW, 3);
    assert_int_equal(s.last, NOW + 2 * TOKEN_LEAP + 77);
    assert_int_equal(s.since, s.last);
}

/* The same limit whoever lifts them: pawl token advance, pawl init --floor. */
static void test_who_may_lift(void **data) {
    (void)data;
    static const struct {
        int64_t to;
        const char *why; /* NULL: it may be */
    } rows[] = {{1, NULL},
                {NOW, NULL},
                {NOW + 3653 * TOKEN_DAY_US, NULL},
                {NOW + 3653 * TOKEN_DAY_US + 1, "is more than ten years ahead of this clock"},
                {TOKEN_MAX, "9007199254740991 is more than ten years ahead of this clock"},
                {TOKEN_MAX + 1, "a token is a number from 1 to 9007199254740991"},
                {INT64_MAX, "a token is a number from 1 to 9007199254740991"},
                {0, "a token is a number from 1 to 9007199254740991"},
                {-1, "a token is a number from 1 to 9007199254740991"},
                {INT64_MIN, "a token is a number from 1 to 9007199254740991"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        pawl_error error = PAWL_ERROR_INIT;
        assert_int_equal(token_may_lift(rows[i].to, NOW, &error), rows[i].why ? PAWL_EINVALID : PAWL_OK);
        if (rows[i].why) assert_non_null(strstr(error.text, rows[i].why));
    }
    assert_int_equal(token_lifted(NOW, NOW, 0), NOW + TOKEN_LEAP);
    assert_int_equal(token_lifted(5, NOW, 0), NOW);
    assert_int_equal(token_lifted(5, NOW, NOW + 1), NOW + 1);
    assert_int_equal(token_lifted(5, -NOW, 0), 5 + TOKEN_LEAP); /* a clock before 1970 */
}

static void test_parse(void **data) {
    (void)data;
    static const char *const bad[] = {"",
                                      "0",
                                      "00",
                                      "-1",
                                      "+1",
                                      " 1",
                                      "1 ",
                                      "1.0",
                                      "0x10",
                                      "1e3",
                                      "9007199254740992",
                                      "99999999999999999999999999",
                                      "18446744073709551617",
                                      "\xd9\xa1"};
    uint64_t n = 42;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_false(token_parse(bad[i], &n));
        assert_int_equal(n, 42);
    }
    assert_true(token_parse("1", &n));
    assert_int_equal(n, 1);
    assert_true(token_parse("9007199254740991", &n));
    assert_int_equal(n, TOKEN_MAX);
    assert_true(token_parse("007", &n));
    assert_int_equal(n, 7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_admit_starts_at_now),
        cmocka_unit_test(test_admit_leaps_when_the_clock_is_behind),
        cmocka_unit_test(test_grant_rises_and_lags),
        cmocka_unit_test(test_grant_never_passes_the_clock),
        cmocka_unit_test(test_grant_ends_at_2_to_53),
        cmocka_unit_test(test_advance),
        cmocka_unit_test(test_who_may_lift),
        cmocka_unit_test(test_parse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
