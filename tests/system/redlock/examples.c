/* examples.c: each counter-example that the model checker found for a broken variant (models/results.txt, and by name
 * in models/README.md), step by step on real instances with the shipped scripts: the step that made two holders equal
 * is refused, or gives a higher number. Tokens are relative to the floor: the first is 1. */
#include "clock.h"
#include "steps.h"
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define EPOCH2 "0000000000000002.bbbbbbbbbbbbbbbb"
#define EPOCH3 "0000000000000003.dddddddddddddddd"
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
    assert_false(renew_at(I1, 'A', 1));       /* A's renewal */
    assert_true(renew_at(I2, 'A', 1));        /* one of three is none */
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

/* Re-seeds I1 above what the others gave; whether it was done. */
static bool reseed_first(void) {
    int64_t floor, longest;
    if (!seed_at(I1, "P", EPOCH2, NULL, 0) || !seed_at(I2, "B", EPOCH2, NULL, 0)) return false;
    floor = steps_floor;
    longest = steps_longest;
    if (!seed_at(I3, "B", EPOCH2, NULL, 0)) return false;
    if (steps_floor > floor) floor = steps_floor;
    if (steps_longest < longest) steps_longest = longest;
    return seed_at(I1, "S", EPOCH2, steps_mark, floor);
}

static int64_t lock_when_it_votes(int i, char owner) {
    int64_t n, end_ns = clock_after_ms(clock_now_ns(), 20000);
    while ((n = lock_at(i, owner, 0)) == ABSTAINS && steps_said == 'W' && clock_now_ns() < end_ns) poll(NULL, 0, 5);
    return n;
}

static int64_t longest_of(int i, int further) {
    char *meta = server_redis(steps[i].port, "GETRANGE s:%%r %d %d", 167 + further, 174 + further);
    int64_t ms = strtoll(meta, NULL, 10);
    free(meta);
    return ms;
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
    steps_ttl = 50;
    assert_int_equal(lock_at(I1, 'A', 0), 1);
    assert_int_equal(lock_at(I2, 'A', 0), 1); /* A: token 1 */
    wipe_at(I1);
    assert_true(reseed_first());
    strcpy(steps_epoch, EPOCH2);
    assert_true(lock_when_it_votes(I1, 'B') > 1);
}

/* The holder counts on I1 and I2, and I1 forgets it: seeded and voting at once, it gave B a second quorum with I3. */
static void h1_who_forgot_a_holder_does_not_vote_yet(void **state) {
    (void)state;
    steps_ttl = 400;
    assert_int_equal(lock_at(I1, 'A', 0), 1);
    assert_int_equal(lock_at(I2, 'A', 0), 1); /* A: token 1 */
    int64_t held_ns = clock_now_ns();
    wipe_at(I1);
    assert_true(reseed_first());
    strcpy(steps_epoch, EPOCH2);
    int64_t n = lock_at(I1, 'B', 0);
    int64_t at_ns = clock_now_ns();
    if (at_ns < held_ns + 400 * NS_PER_MS) {
        assert_int_equal(n, ABSTAINS);
        assert_int_equal(steps_said, 'W');
    }
    assert_true(lock_at(I3, 'B', 0) > 0); /* one is none */
    assert_true(renew_at(I2, 'A', 1) || clock_now_ns() >= held_ns + 400 * NS_PER_MS);
    assert_true(lock_when_it_votes(I1, 'B') > 1);
    assert_true(clock_now_ns() >= held_ns + 400 * NS_PER_MS);
}

/* Two who forget one after the other: what the first waits for is told to the second by whoever knows it. */
static void h2_the_longest_ttl_is_handed_on(void **state) {
    (void)state;
    assert_int_equal(lock_at(I1, 'A', 0), 1);
    assert_int_equal(lock_at(I2, 'A', 0), 1);
    steps_ttl = 100;
    assert_int_equal(lock_at(I3, 'B', 0), 1); /* I3 knows of 100 ms only */
    wipe_at(I1);
    assert_true(reseed_first());
    assert_int_equal(steps_longest, 60000);
    wipe_at(I2);
    assert_true(seed_at(I2, "P", EPOCH3, NULL, 0));
    assert_true(seed_at(I1, "B", EPOCH3, NULL, 0)); /* it does not vote, but it knows */
    assert_int_equal(steps_longest, 60000);
    assert_true(seed_at(I3, "B", EPOCH3, NULL, 0));
    assert_int_equal(steps_longest, 100);
}

/* A hold goes on over an epoch, also at the one instance that was away meanwhile; an attempt does not (s1b). */
static void h3_a_hold_is_renewed_in_any_epoch(void **state) {
    (void)state;
    for (int i = I1; i <= I3; i++) assert_int_equal(lock_at(i, 'A', 0), 1);
    wipe_at(I1);
    assert_true(reseed_first());
    assert_false(seal_at(I2, 'A', 1));
    assert_int_equal(steps_said, 'E');
    assert_true(renew_at(I2, 'A', 1));
    assert_true(renew_at(I3, 'A', 1));
    assert_false(renew_at(I1, 'A', 1));
    assert_int_equal(steps_said, 'W');
}

/* An old lock comes back with an old snapshot: it is nobody's. */
static void h4_a_lock_that_came_back_is_not_renewed(void **state) {
    (void)state;
    for (int i = I1; i <= I3; i++) assert_int_equal(lock_at(i, 'A', 0), 1);
    free(server_redis(steps[I1].port, "SAVE"));
    expire_at(I1);
    expire_at(I2);
    assert_int_equal(lock_at(I1, 'B', 0), 2);
    assert_int_equal(lock_at(I2, 'B', 0), 2); /* B: token 2 */
    restart_at(I1);                           /* A's lock with 1 is back, beside I3's */
    assert_int_equal(owner_at(I1), 'A');
    assert_false(renew_at(I1, 'A', 1));
    assert_int_equal(steps_said, 'R');
    steps_ttl = 60000;
    assert_true(reseed_first());
    free(server_redis(steps[I1].port, "SETRANGE s:%%r 199 0000000000000")); /* as if it had waited */
    assert_int_equal(owner_at(I1), 'A');
    assert_false(renew_at(I1, 'A', 1)); /* with I3 it was a quorum, after B had one */
    assert_int_equal(steps_said, 'S');
    assert_true(renew_at(I3, 'A', 1));
}

/* What is the longest ttl: of the last day, and of the time before. */
static void longest_ttl_is_forgotten_after_a_day(void **state) {
    (void)state;
    assert_int_equal(lock_at(I1, 'A', 0), 1);
    expire_at(I1);
    assert_int_equal(longest_of(I1, 0), 60000);
    for (int day = 0; day < 2; day++) {
        steps_ttl = day ? 500 : 1000;
        free(server_redis(steps[I1].port, "SETRANGE s:%%r 185 0000000000000")); /* long ago */
        assert_true(lock_at(I1, 'B', 0) > 0); /* by time: these numbers are all below the floor */
        expire_at(I1);
        assert_int_equal(longest_of(I1, 0), steps_ttl);
        assert_int_equal(longest_of(I1, 9), day ? 1000 : 60000);
    }
    steps_ttl = 700;
    assert_true(lock_at(I1, 'B', 0) > 0);
    assert_int_equal(longest_of(I1, 0), 700);
    steps_ttl = 800;
    assert_true(renew_at(I1, 'B', 1000000));
    assert_int_equal(longest_of(I1, 0), 800);
    assert_int_equal(longest_of(I1, 9), 1000);
    free(server_redis(steps[I1].port, "SETRANGE s:%%r 185 0000000000000"));
    steps_ttl = 300;
    assert_true(renew_at(I1, 'B', 1000000)); /* where nobody but a holder asks */
    assert_int_equal(longest_of(I1, 0), 300);
    assert_int_equal(longest_of(I1, 9), 800);
    free(server_redis(steps[I1].port, "SETRANGE s:%%r 185 9000000000000")); /* a clock that was ahead is no day */
    assert_true(renew_at(I1, 'B', 1000000));
    assert_int_equal(longest_of(I1, 9), 800);
    free(server_redis(steps[I1].port, "SETRANGE s:%%r 185 0000000000000"));
    assert_true(renew_at(I1, 'B', 1000000));
    assert_int_equal(longest_of(I1, 9), 300);
}

/* It was seeded while its clock was ahead: the wait is no longer than the ttl all the same. */
static void the_wait_is_bounded_over_a_clock_put_right(void **state) {
    (void)state;
    steps_ttl = 1000;
    assert_int_equal(lock_at(I2, 'A', 0), 1);
    wipe_at(I1);
    assert_true(reseed_first());
    strcpy(steps_epoch, EPOCH2);
    free(server_redis(steps[I1].port, "SETRANGE s:%%r 199 9000000000000"));
    int64_t start_ns = clock_now_ns();
    assert_int_equal(lock_at(I1, 'B', 0), ABSTAINS);
    assert_int_equal(steps_said, 'W');
    assert_true(lock_when_it_votes(I1, 'B') > 1);
    assert_true(clock_now_ns() >= start_ns + 1000 * NS_PER_MS);
}

static void s2c_a_late_seed_after_a_second_loss(void **state) {
    (void)state;
    wipe_at(I1);
    assert_true(reseed_first());
    wipe_at(I1);
    assert_false(seed_at(I1, "S", EPOCH2, steps_mark, 0));
    assert_true(seed_at(I1, "P", EPOCH3, NULL, 0));
    assert_false(seed_at(I1, "S", EPOCH2, "an old mark", 0));
}

/* An operator ends the wait: in the epoch taken for it only, so not after a further loss. */
static void a_late_floor_ends_no_later_wait(void **state) {
    (void)state;
    wipe_at(I1);
    steps_ttl = 60000;
    assert_int_equal(lock_at(I2, 'A', 0), 1);
    assert_true(reseed_first());
    strcpy(steps_epoch, EPOCH2);
    assert_int_equal(lock_at(I1, 'B', 0), ABSTAINS);
    assert_int_equal(steps_said, 'W');
    assert_false(seed_at(I1, "F", EPOCH3, NULL, 5000000));
    assert_int_equal(lock_at(I1, 'B', 0), ABSTAINS);
    assert_true(seed_at(I1, "F", EPOCH2, NULL, 5000000));
    assert_true(lock_at(I1, 'B', 0) > 5000000);
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

static void await_sync(int i) {
    char *stand = NULL;
    int64_t end_ns = clock_after_ms(clock_now_ns(), 30000);
    do {
        free(stand);
        stand = server_redis(steps[i].port, "INFO replication");
    } while (stand && !strstr(stand, "master_link_status:up") && clock_now_ns() < end_ns);
    if (!stand || !strstr(stand, "master_link_status:up")) fail_msg("no replica: %s", stand);
    free(stand);
}

/* durable=yes: who was restarted with its data has lost nothing; who was promoted may lack the last of its primary. */
static void trusted_after_a_restart_not_a_promotion(void **state) {
    (void)state;
    assert_int_equal(lock_at(I1, 'A', 0), 1);
    free(server_redis(steps[I1].port, "SAVE"));
    restart_at(I1);
    assert_int_equal(lock_at(I1, 'B', 0), ABSTAINS);
    assert_true(seed_at(I1, "T", "", NULL, 0));
    assert_int_equal(lock_at(I1, 'B', 0), BUSY); /* it votes, and knows A's lock */
    free(server_redis(steps[I2].port, "REPLICAOF 127.0.0.1 %d", steps[I1].port));
    await_sync(I2);
    free(server_redis(steps[I2].port, "REPLICAOF NO ONE"));
    assert_int_equal(lock_at(I1, 'A', 0), 1);
    assert_int_equal(lock_at(I2, 'B', 0), ABSTAINS);
    assert_int_equal(steps_said, 'R');
    assert_false(seed_at(I2, "T", "", NULL, 0));
    assert_int_equal(lock_at(I2, 'B', 0), ABSTAINS);
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
        TEST(a_late_floor_ends_no_later_wait),
        TEST(s2d_two_runs_share_no_epoch),
        TEST(h1_who_forgot_a_holder_does_not_vote_yet),
        TEST(h2_the_longest_ttl_is_handed_on),
        TEST(h3_a_hold_is_renewed_in_any_epoch),
        TEST(h4_a_lock_that_came_back_is_not_renewed),
        TEST(longest_ttl_is_forgotten_after_a_day),
        TEST(the_wait_is_bounded_over_a_clock_put_right),
        TEST(s3_waiting_alone_does_not_help),
        TEST(trusted_after_a_restart_not_a_promotion),
        TEST(seed_leaves_a_voter_alone),
        TEST(forgotten_counter),
        TEST(repeats_and_hints),
    };
    steps_start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    steps_stop();
    return failed;
}
