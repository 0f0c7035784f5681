/* The state machine of a held lock: its deadline follows confirmed answers only, and nobody sleeps through it. */
#include "clock.h"
#include "life.h"
#include "random.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define MS NS_PER_MS
#define T (INT64_C(1000) * NS_PER_S)

static struct life started(int64_t ttl_ms, int64_t margin_ms, int64_t left_ms) {
    struct life life;
    life_init(&life, ttl_ms, margin_ms);
    assert_int_equal(life_due(&life, T), LIFE_LOSE); /* not before the first answer */
    assert_false(life_confirm(&life, T, left_ms));
    return life;
}

static void test_margin(void **data) {
    (void)data;
    struct life life;
    life_init(&life, 15000, 0);
    assert_int_equal(life.margin_ns, 152 * MS);
    life_init(&life, 100, 0);
    assert_int_equal(life.margin_ns, 20 * MS);
    life_init(&life, 15000, 700);
    assert_int_equal(life.margin_ns, 700 * MS);
}

static void test_only_one_value_is_without_end(void **data) {
    (void)data;
    struct life life = started(3000, 100, -1);
    assert_int_equal(life.safe_until_ns, LIFE_ENDLESS);
    life = started(3000, 100, -2); /* a rounding, or nonsense: never a false held */
    assert_int_equal(life_due(&life, T), LIFE_LOSE);
}

static void test_deadline_counts_from_the_send_time(void **data) {
    (void)data;
    struct life life = started(3000, 100, 3000);
    assert_int_equal(life.safe_until_ns, T + 2900 * MS);
    assert_int_equal(life.next_ns, T + 1000 * MS);
    assert_int_equal(life_due(&life, T + 999 * MS), LIFE_WAIT);
    assert_int_equal(life_due(&life, T + 1000 * MS), LIFE_RENEW);
    assert_int_equal(life_due(&life, T + 2900 * MS - 1), LIFE_RENEW);
    assert_int_equal(life_due(&life, T + 2900 * MS), LIFE_LOSE);
}

static void test_a_repeat_counts_what_is_left(void **data) {
    (void)data;
    struct life life = started(3000, 100, 1200); /* the service says: 1.2 s of 3 s are left */
    assert_int_equal(life.safe_until_ns, T + 1100 * MS);
    assert_int_equal(life.next_ns, T); /* more than a third is gone: at once */
    life = started(3000, 100, 50);
    assert_int_equal(life_due(&life, T), LIFE_LOSE); /* nothing usable */
}

static void test_endless(void **data) {
    (void)data;
    struct life life = started(3000, 0, -1);
    assert_int_equal(life_due(&life, INT64_MAX - 1), LIFE_WAIT);
    life_end(&life);
    assert_int_equal(life_due(&life, T), LIFE_LOSE);
}

static void test_doubt_moves_no_deadline(void **data) {
    (void)data;
    struct life life = started(3000, 100, 3000);
    int64_t now = T + 1000 * MS, end = life.safe_until_ns;
    assert_true(life_doubt(&life, now)); /* begins once */
    int tries = 1;
    while (life_due(&life, now) != LIFE_LOSE) {
        now = life.next_ns;
        if (life_due(&life, now) != LIFE_RENEW) break;
        assert_false(life_doubt(&life, now));
        assert_int_equal(life.safe_until_ns, end);
        assert_true(life.next_ns <= end);
        tries++;
    }
    assert_int_equal(now, end);
    assert_in_range(tries, 6, 40); /* tried often, not always */
    struct life again = started(3000, 100, 3000);
    life_doubt(&again, T + 1000 * MS);
    assert_true(life_confirm(&again, T + 1100 * MS, 3000)); /* over */
    assert_int_equal(again.next_ns, T + 2100 * MS);
}

static void test_lost_is_final(void **data) {
    (void)data;
    struct life life = started(3000, 100, 3000);
    life_end(&life);
    assert_false(life_doubt(&life, T));
    assert_int_equal(life.safe_until_ns, INT64_MIN);
    assert_int_equal(life_due(&life, T), LIFE_LOSE);
}

/* Any order of answers: the deadline is that of the last confirmed one, and there is always a next time before it. */
static void test_random_walk(void **data) {
    (void)data;
    for (int round = 0; round < 2000; round++) {
        int64_t ttl = random_between(100, 20000), now = T;
        struct life life = started(ttl, 0, ttl);
        int64_t sent = T, left = ttl;
        for (int step = 0; step < 50 && life_due(&life, now) != LIFE_LOSE; step++) {
            now = life.next_ns > now ? life.next_ns : now;
            if (random_between(0, 2)) {
                life_doubt(&life, now);
            } else {
                sent = now;
                left = random_between(0, ttl);
                now += random_between(0, 50 * MS);
                life_confirm(&life, sent, left);
            }
            assert_int_equal(life.safe_until_ns, sent + left * MS - life.margin_ns);
            assert_true(life.next_ns <= life.safe_until_ns);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_margin),
        cmocka_unit_test(test_only_one_value_is_without_end),
        cmocka_unit_test(test_deadline_counts_from_the_send_time),
        cmocka_unit_test(test_a_repeat_counts_what_is_left),
        cmocka_unit_test(test_endless),
        cmocka_unit_test(test_doubt_moves_no_deadline),
        cmocka_unit_test(test_lost_is_final),
        cmocka_unit_test(test_random_walk),
    };
    return cmocka_run_group_tests_name("life", tests, NULL, NULL);
}
