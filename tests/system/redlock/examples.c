/* examples.c: each counter-example that the model checker found for a broken variant (models/results.txt, and by name
 * in models/README.md), step by step on real instances with the shipped scripts: the step that made two holders equal
 * is refused, or gives a higher number. Tokens are relative to the floor: the first is 1. */
#include "steps.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define EPOCH2 "0000000000000002.bbbbbbbbbbbbbbbb"
#define EPOCH2_OF_ANOTHER "0000000000000002.cccccccccccccccc"

static int begin(void **state) {
    (void)state;
    steps_begin();
    return 0;
}

static void b1_maximum_without_seal(void **state) {
    (void)state;
    assert_int_equal(lock_at(I1, 'A', 0), 1);
    assert_int_equal(lock_at(I2, 'B', 0), 1);
    expire_at(I1);
    assert_int_equal(lock_at(I1, 'B', 0), 2); /* B: max(2, 1) */
    assert_true(seal_at(I2, 'B', 2));         /* token 2 */
    expire_at(I2);
    assert_int_equal(lock_at(I2, 'A', 0), 3); /* unsealed it was 2: token 2 again, and a resource sees A, B, A (b11) */
    assert_false(seal_at(I1, 'A', 3));
}

static void b2_seal_without_owner(void **state) {
    (void)state;
    assert_int_equal(lock_at(I1, 'A', 0), 1);
    assert_int_equal(lock_at(I2, 'B', 0), 1);
    expire_at(I1);
    assert_int_equal(lock_at(I1, 'B', 0), 2);
    assert_false(seal_at(I3, 'B', 2)); /* never granted there */
    assert_int_equal(lock_at(I3, 'A', 0), 1);
    assert_false(seal_at(I1, 'A', 2)); /* B's */
}

static void b3_sealed_where_the_reply_was_lost(void **state) {
    (void)state;
    assert_int_equal(lock_at(I1, 'A', 0), 1);
    assert_int_equal(lock_at(I2, 'A', 0), 1);
    assert_int_equal(lock_at(I3, 'B', 0), 1);
    expire_at(I1);
    assert_int_equal(lock_at(I1, 'B', 0), 2); /* B: m = 2 */
    assert_true(seal_at(I1, 'B', 2));
    expire_at(I3);
    assert_int_equal(lock_at(I3, 'A', 0), 2); /* A: m = max(1, 2) */
    assert_true(seal_at(I2, 'A', 2));
    assert_true(seal_at(I3, 'A', 2)); /* A: token 2 */
    expire_at(I2);
    assert_int_equal(lock_at(I2, 'B', 0), 3); /* B's late LOCK, whose reply nobody waits for */
    assert_false(seal_at(I2, 'B', 2));        /* owner alone said yes: token 2 again */
}

static void b4_a_doubled_lock(void **state) {
    (void)state;
    assert_int_equal(lock_at(I1, 'A', 0), 1);
    expire_at(I1);
    assert_int_equal(lock_at(I1, 'A', 0), 2); /* the double */
    assert_int_equal(lock_at(I2, 'A', 0), 1);
    assert_true(seal_at(I1, 'A', 2)); /* A: m = 2 */
    expire_at(I2);
    assert_int_equal(lock_at(I2, 'B', 0), 2);
    assert_int_equal(lock_at(I3, 'B', 0), 1);
    assert_true(seal_at(I2, 'B', 2));
    assert_true(seal_at(I3, 'B', 2)); /* B: token 2 */
    expire_at(I2);
    assert_int_equal(lock_at(I2, 'A', 0), 3); /* a double of A's first LOCK */
    assert_false(seal_at(I2, 'A', 2));
}

static void b5_hint_without_one_more(void **state) {
    (void)state;
    assert_int_equal(lock_at(I1, 'A', 1), 1);
    assert_int_equal(lock_at(I2, 'A', 1), 1); /* A: token 1 at once */
    expire_at(I1);
    assert_int_equal(lock_at(I1, 'B', 1), 2);
    assert_int_equal(lock_at(I3, 'B', 1), 1);
    assert_true(seal_at(I3, 'B', 2));
}

static void b6_who_learns_last_may_have_the_lower_one(void **state) {
    (void)state;
    assert_int_equal(lock_at(I1, 'A', 0), 1);
    assert_int_equal(lock_at(I2, 'A', 0), 1); /* sealed, but A has not read this reply yet */
    expire_at(I1);
    assert_int_equal(lock_at(I1, 'B', 0), 2);
    assert_int_equal(lock_at(I3, 'B', 0), 1);
    assert_true(seal_at(I3, 'B', 2)); /* B knows; A reads its reply only now: 1, which a resource refuses after 2 */
    assert_false(seal_at(I1, 'A', 1));
}

static void b7_renewal_by_owner_alone(void **state) {
    (void)state;
    assert_int_equal(lock_at(I1, 'A', 0), 1);
    assert_int_equal(lock_at(I2, 'A', 0), 1);
    expire_at(I1);
    assert_int_equal(lock_at(I1, 'B', 0), 2);
    assert_int_equal(lock_at(I3, 'B', 2), 2); /* B: token 2 */
    expire_at(I1);
    assert_int_equal(lock_at(I1, 'A', 0), 3); /* a double */
    assert_false(seal_at(I1, 'A', 1));        /* A's renewal */
    assert_true(seal_at(I2, 'A', 1));         /* one of three is none */
}

static void b8_renewal_creates_nothing(void **state) {
    (void)state;
    assert_int_equal(lock_at(I1, 'A', 0), 1);
    expire_at(I1);
    assert_false(seal_at(I1, 'A', 1));
    assert_int_equal(owner_at(I1), 0);
}

static void b9_who_lost_its_memory_does_not_vote(void **state) {
    (void)state;
    assert_int_equal(lock_at(I1, 'A', 0), 1);
    assert_int_equal(lock_at(I2, 'A', 0), 1);
    wipe_at(I1);
    assert_int_equal(lock_at(I1, 'B', 0), ABSTAINS);
    assert_int_equal(steps_said, 'U');
    assert_false(seal_at(I1, 'A', 1));
    assert_int_equal(steps_said, 'U');
}

/* b10: an incarnation compared between LOCK and SEAL only; here each message is judged by itself. With its data back
 * from an old snapshot an instance is as lost as an empty one. */
static void b10_nor_who_was_rolled_back(void **state) {
    (void)state;
    assert_int_equal(lock_at(I1, 'A', 0), 1);
    free(server_redis(steps[I1].port, "SAVE"));
    assert_int_equal(lock_at(I2, 'A', 0), 1);
    release_at(I1, 'A');
    assert_int_equal(lock_at(I1, 'B', 0), 2);
    restart_at(I1); /* A's lock is back, and the counter is 1 */
    assert_int_equal(owner_at(I1), 'A');
    assert_int_equal(lock_at(I1, 'C', 0), ABSTAINS);
    assert_int_equal(steps_said, 'R');
    assert_false(seal_at(I1, 'A', 1));
    assert_int_equal(steps_said, 'R');
}

/* Re-seeds I1 above what the others gave; whether it votes. */
static bool reseed_first(void) {
    int64_t floor;
    if (!seed_at(I1, "P", EPOCH2, NULL, 0) || !seed_at(I2, "B", EPOCH2, NULL, 0)) return false;
    floor = steps_floor;
    if (!seed_at(I3, "B", EPOCH2, NULL, 0)) return false;
    if (steps_floor > floor) floor = steps_floor;
    return seed_at(I1, "S", EPOCH2, steps_mark, floor);
}

static void s1_seeded_after_an_epoch(void **state) {
    (void)state;
    assert_int_equal(lock_at(I1, 'A', 0), 1);
    wipe_at(I1);
    assert_true(seed_at(I1, "P", EPOCH2, NULL, 0));
    assert_true(seed_at(I2, "B", EPOCH2, NULL, 0)); /* it has given nothing yet */
    int64_t floor = steps_floor;
    assert_int_equal(lock_at(I2, 'A', 0), ABSTAINS); /* a plain read let this one through: A has I1 and I2 */
    assert_int_equal(steps_said, 'E');
    assert_true(seed_at(I3, "B", EPOCH2, NULL, 0));
    assert_true(seed_at(I1, "S", EPOCH2, steps_mark, floor > steps_floor ? floor : steps_floor));
}

static void s1b_a_seal_of_the_epoch_before(void **state) {
    (void)state;
    assert_int_equal(lock_at(I1, 'A', 0), 1);
    assert_int_equal(lock_at(I2, 'A', 0), 1);
    assert_true(seal_at(I1, 'A', 1));
    wipe_at(I1);
    assert_true(reseed_first());
    assert_false(seal_at(I2, 'A', 1));
    assert_int_equal(steps_said, 'E');
}

static void s2_what_was_given_before_is_below(void **state) {
    (void)state;
    assert_int_equal(lock_at(I1, 'A', 0), 1);
    assert_int_equal(lock_at(I2, 'A', 0), 1); /* A: token 1 */
    wipe_at(I1);
    assert_true(reseed_first());
    strcpy(steps_epoch, EPOCH2);
    assert_true(lock_at(I1, 'B', 0) > 1);
}

static void s2c_a_late_seed_after_a_second_loss(void **state) {
    (void)state;
    wipe_at(I1);
    assert_true(reseed_first());
    wipe_at(I1);
    assert_false(seed_at(I1, "S", EPOCH2, steps_mark, 0));
    assert_true(seed_at(I1, "P", "0000000000000003.dddddddddddddddd", NULL, 0));
    assert_false(seed_at(I1, "S", EPOCH2, "an old mark", 0));
}

static void s2d_two_runs_share_no_epoch(void **state) {
    (void)state;
    assert_true(seed_at(I2, "B", EPOCH2, NULL, 0));
    assert_false(seed_at(I2, "B", EPOCH2_OF_ANOTHER, NULL, 0));
    assert_false(seed_at(I2, "B", EPOCH2, NULL, 0));
}

static void s3_waiting_alone_does_not_help(void **state) {
    (void)state;
    assert_int_equal(lock_at(I1, 'A', 0), 1);
    restart_at(I1);
    assert_int_equal(lock_at(I1, 'B', 0), ABSTAINS); /* however long it has been up */
    assert_true(steps_said == 'U' || steps_said == 'R');
}

static void seed_leaves_a_voter_alone(void **state) {
    (void)state;
    assert_int_equal(lock_at(I1, 'A', 0), 1);
    assert_false(seed_at(I1, "P", EPOCH2, NULL, 0));
    assert_false(seed_at(I1, "S", EPOCH2, "", 0));
    assert_true(seal_at(I1, 'A', 1));
}

/* A counter may expire: the floor is above it. */
static void forgotten_counter(void **state) {
    (void)state;
    assert_int_equal(lock_at(I1, 'A', 0), 1);
    expire_at(I1);
    free(server_redis(steps[I1].port, "DEL s:%%c:a"));
    assert_true(lock_at(I1, 'B', 0) > 1);
    expire_at(I1);
    assert_true(seed_at(I1, "A", steps_epoch, NULL, 5000000)); /* advance: above it in spite of the counter */
    assert_true(lock_at(I1, 'C', 0) > 5000000);
}

/* A repeat says the same number and what is left; a hint is followed, but not a day beyond the clock. */
static void repeats_and_hints(void **state) {
    (void)state;
    assert_int_equal(lock_at(I1, 'A', 7), 7);
    assert_int_equal(lock_at(I1, 'A', 9), 7);
    assert_int_equal(lock_at(I1, 'B', 9), BUSY);
    expire_at(I1);
    assert_int_equal(lock_at(I1, 'B', INT64_C(3000000000000000)), 8);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup(name, begin)
    const struct CMUnitTest tests[] = {
        TEST(b1_maximum_without_seal),
        TEST(b2_seal_without_owner),
        TEST(b3_sealed_where_the_reply_was_lost),
        TEST(b4_a_doubled_lock),
        TEST(b5_hint_without_one_more),
        TEST(b6_who_learns_last_may_have_the_lower_one),
        TEST(b7_renewal_by_owner_alone),
        TEST(b8_renewal_creates_nothing),
        TEST(b9_who_lost_its_memory_does_not_vote),
        TEST(b10_nor_who_was_rolled_back),
        TEST(s1_seeded_after_an_epoch),
        TEST(s1b_a_seal_of_the_epoch_before),
        TEST(s2_what_was_given_before_is_below),
        TEST(s2c_a_late_seed_after_a_second_loss),
        TEST(s2d_two_runs_share_no_epoch),
        TEST(s3_waiting_alone_does_not_help),
        TEST(seed_leaves_a_voter_alone),
        TEST(forgotten_counter),
        TEST(repeats_and_hints),
    };
    steps_start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    steps_stop();
    return failed;
}
