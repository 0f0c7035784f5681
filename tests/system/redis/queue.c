/* queue.c: who waits is served in order, is told instead of asking, and nothing that dies or vanishes stops the others.
 */
#include "clock.h"
#include "crowd.h"
#include "ran.h"
#include "random.h"
#include "server.h"
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

static struct server server;
static pawl_client *client;
static pawl_error error = PAWL_ERROR_INIT;
static struct crowd *crowd;
static struct crowd_options common;
static bool full;

#define must(call)                                                                                                     \
    do {                                                                                                               \
        int code_ = (call);                                                                                            \
        if (code_) fail_msg("%s: %d %s", #call, code_, error.text);                                                    \
    } while (0)

static int setup(void **state) {
    (void)state;
    error = (pawl_error)PAWL_ERROR_INIT;
    server_start_redis(&server, NULL);
    must(pawl_open(server.url, NULL, &client, &error));
    crowd = crowd_new();
    common = (struct crowd_options){.url = server.url, .name = "n", .ttl_ms = 10000, .hold_ms = 1};
    return 0;
}

static int teardown(void **state) {
    (void)state;
    crowd_end(crowd);
    pawl_close(client);
    server_stop(&server);
    return 0;
}

static pawl_lock *hold(void) {
    pawl_lock *lock;
    must(pawl_acquire(client, "n", NULL, &lock, &error));
    return lock;
}

static int64_t ms_since(int64_t start_ns) { return (clock_now_ns() - start_ns) / NS_PER_MS; }

static bool queue_is(void *n) { return server_redis_int(server.port, "ZCARD pawl:%%q:n") == *(int *)n; }

/* n more processes, each in the queue before the next one asks. */
static void wait_in_order(int n) {
    int length = (int)server_redis_int(server.port, "ZCARD pawl:%%q:n");
    for (int i = 0; i < n; i++) {
        crowd_add(crowd, &common);
        length++;
        assert_true(server_until(queue_is, &length, 10000));
    }
}

/* The members from..to were served in this order, with rising tokens, and nobody overlapped. */
static void in_order(int from, int to) {
    for (int i = from + 1; i < to; i++) {
        assert_true(crowd->member[i].token > crowd->member[i - 1].token);
        assert_int_equal(crowd->member[i].place, crowd->member[i - 1].place + 1);
    }
    assert_int_equal(crowd->overlaps, 0);
}

static bool no_keys(void *data) {
    (void)data;
    return server_redis_int(server.port, "EXISTS pawl:n pawl:%%q:n") == 0;
}

static int64_t calls(const char *commands) {
    char *info = server_redis(server.port, "INFO commandstats"), copy[128];
    int64_t sum = 0;
    snprintf(copy, sizeof copy, "%s", commands);
    for (char *at = copy, *word; (word = strsep(&at, " "));) {
        char key[64];
        snprintf(key, sizeof key, "cmdstat_%s:calls=", word);
        const char *found = info ? strstr(info, key) : NULL;
        if (found) sum += atoll(found + strlen(key));
    }
    free(info);
    return sum;
}

static void test_first_come_first_served(void **state) {
    (void)state;
    int n = full ? 40 : 12;
    pawl_lock *lock = hold();
    wait_in_order(n);
    must(pawl_release(lock, 10000, &error));
    assert_true(crowd_granted(crowd, n, 10000));
    in_order(0, n);
    assert_true(server_until(no_keys, NULL, 10000));
}

static void test_long_holds(void **state) {
    (void)state;
    if (!full) { /* skip() reads as a failure in TAP */
        print_message("# three seconds each: with PAWL_TEST_FULL=1\n");
        return;
    }
    pawl_lock *lock = hold();
    common.hold_ms = 3000;
    wait_in_order(5);
    must(pawl_release(lock, 10000, &error));
    assert_true(crowd_granted(crowd, 5, 20000));
    in_order(0, 5);
}

static void test_nothing_is_asked_while_waiting(void **state) {
    (void)state;
    pawl_lock *lock = hold();
    wait_in_order(8);
    int64_t before = calls("eval evalsha"), start = clock_now_ns();
    poll(NULL, 0, 2500); /* the time is what is tested: nobody may ask in it */
    int64_t asked = calls("eval evalsha") - before;
    if (asked > 1 + ms_since(start) / 3000) fail_msg("%lld questions while nothing happened", (long long)asked);
    must(pawl_release(lock, 10000, &error));
    assert_true(crowd_granted(crowd, 8, 10000));
}

static void test_questions_of_a_handover(void **state) {
    (void)state;
    int turns = full ? 100 : 25, n = 8;
    common.turns = turns;
    pawl_lock *lock = hold();
    wait_in_order(n);
    int64_t questions = calls("eval evalsha"), messages = calls("publish");
    must(pawl_release(lock, 10000, &error));
    assert_true(crowd_granted(crowd, n * turns, 20000));
    questions = calls("eval evalsha") - questions;
    messages = calls("publish") - messages;
    print_message("# %.2f questions, %.2f messages a hand-over\n", (double)questions / (n * turns),
                  (double)messages / (n * turns));
    assert_true(questions <= 4 * n * turns);
    assert_true(messages <= 2 * n * turns + n); /* the next one, and the one behind it; whatever the queue's length */
    assert_int_equal(crowd->overlaps, 0);
}

static void test_dead_waiters_are_passed_over(void **state) {
    (void)state;
    pawl_lock *lock = hold();
    wait_in_order(8);
    for (int i = 0; i < 3; i++) crowd_kill(crowd, i, SIGKILL);
    crowd_kill(crowd, 5, SIGKILL);
    int64_t start = ran_ns();
    must(pawl_release(lock, 10000, &error));
    assert_true(crowd_granted(crowd, 4, 10000));
    if (ran_since(start) > 1200) fail_msg("took %lld ms", (long long)ran_since(start));
    assert_int_equal(crowd->member[3].place, 1);
    assert_int_equal(crowd->member[4].place, 2);
    assert_int_equal(crowd->member[6].place, 3);
    assert_int_equal(crowd->member[7].place, 4);
}

/* The claim time of 500 ms, not the ttl; the one who was stopped asks again and is served last. */
static void test_a_stopped_waiter_costs_the_claim(void **state) {
    (void)state;
    pawl_lock *lock = hold();
    wait_in_order(3);
    crowd_kill(crowd, 0, SIGSTOP);
    int64_t start = clock_now_ns(), ran = ran_ns();
    must(pawl_release(lock, 10000, &error));
    assert_true(crowd_granted(crowd, 1, 10000));
    int64_t took = ms_since(start);
    ran = ran_since(ran);
    assert_int_equal(crowd->member[1].place, 1);
    if (took < 400 || ran > 1200) fail_msg("took %lld ms", (long long)took);
    assert_true(crowd_granted(crowd, 2, 10000));
    crowd_kill(crowd, 0, SIGCONT);
    assert_true(crowd_granted(crowd, 3, 10000));
    assert_int_equal(crowd->member[0].place, 3);
}

static void test_two_stopped_waiters(void **state) {
    (void)state;
    pawl_lock *lock = hold();
    wait_in_order(3);
    crowd_kill(crowd, 0, SIGSTOP);
    crowd_kill(crowd, 1, SIGSTOP);
    must(pawl_release(lock, 10000, &error));
    assert_true(crowd_granted(crowd, 1, 8000)); /* by its own look, within 5 s and its place */
    assert_int_equal(crowd->member[2].place, 1);
}

static void test_the_holder_dies(void **state) {
    (void)state;
    int n = full ? 100 : 25;
    common.ttl_ms = 2000;
    common.hold_ms = 30000;
    crowd_add(crowd, &common);
    assert_true(crowd_granted(crowd, 1, 10000));
    common.hold_ms = 1;
    wait_in_order(n);
    int64_t start = clock_now_ns(), ran = ran_ns();
    crowd_kill(crowd, 0, SIGKILL);
    atomic_store(&crowd->holders, 0);
    assert_true(crowd_granted(crowd, 1 + n, 10000));
    int64_t first = (crowd->member[1].got_ns - start) / NS_PER_MS;
    int64_t stood = ms_since(start) - ran_since(ran);
    if (first > 2600 + stood) fail_msg("the first got it after %lld ms", (long long)first);
    in_order(1, n + 1);
}

static bool timed_out(void *data) {
    (void)data;
    return crowd->member[0].code == PAWL_ETIMEOUT;
}

static void test_a_cancelled_wait_leaves_no_trace(void **state) {
    (void)state;
    int length = 1;
    pawl_lock *lock = hold();
    common.wait_ms = 300;
    crowd_add(crowd, &common);
    assert_true(server_until(queue_is, &length, 10000));
    length = 0;
    assert_true(server_until(queue_is, &length, 10000));
    assert_true(server_until(timed_out, NULL, 10000));
    must(pawl_release(lock, 10000, &error));
    assert_true(no_keys(NULL));
}

static void test_flushall_while_waiting(void **state) {
    (void)state;
    pawl_options options = PAWL_OPTIONS_INIT;
    pawl_client *holder;
    pawl_lock *lock;
    options.ttl_ms = 6000;
    must(pawl_open(server.url, &options, &holder, &error));
    must(pawl_acquire(holder, "n", NULL, &lock, &error));
    int64_t token = pawl_token(lock), start = clock_now_ns();
    wait_in_order(4);
    free(server_redis(server.port, "FLUSHALL"));
    struct pollfd lost = {.fd = pawl_lost_fd(lock), .events = POLLIN};
    assert_int_equal(poll(&lost, 1, 4000), 1); /* one renewal: a third of the ttl */
    assert_int_equal(pawl_check(lock), PAWL_ELOST);
    assert_true(crowd_granted(crowd, 4, 9000));
    print_message("# all served %lld ms after FLUSHALL\n", (long long)ms_since(start));
    for (int i = 0; i < 4; i++) assert_true(crowd->member[i].token > token);
    assert_int_equal(crowd->overlaps, 0);
    pawl_release(lock, 0, NULL);
    pawl_close(holder);
}

static void test_subscriptions_are_killed(void **state) {
    (void)state;
    pawl_lock *lock = hold();
    wait_in_order(4);
    free(server_redis(server.port, "CLIENT KILL TYPE pubsub"));
    must(pawl_release(lock, 10000, &error));
    assert_true(crowd_granted(crowd, 4, 4000));
    assert_int_equal(crowd->overlaps, 0);
}

static bool is_lost(void *lock) { return pawl_check(lock) == PAWL_ELOST; }

static void test_restart_without_data(void **state) {
    (void)state;
    pawl_lock *lock = hold();
    int64_t token = pawl_token(lock);
    wait_in_order(4);
    server_restart(&server);
    assert_true(crowd_granted(crowd, 4, 9000));
    for (int i = 0; i < 4; i++) assert_true(crowd->member[i].token > token);
    assert_int_equal(crowd->overlaps, 0);
    assert_true(server_until(is_lost, lock, 6000)); /* by its renewal */
    assert_int_equal(pawl_release(lock, 1000, &error), PAWL_ELOST);
}

static void test_restart_with_data(void **state) {
    (void)state;
    static const char *const durable[] = {"--appendonly", "yes", "--appendfsync", "always", NULL};
    pawl_close(client);
    server_stop(&server);
    server_start_redis(&server, durable);
    must(pawl_open(server.url, NULL, &client, &error));
    pawl_lock *lock = hold();
    wait_in_order(4);
    server_restart(&server);
    must(pawl_verify(lock, 3000, &error)); /* the old connection is dead: over another one */
    must(pawl_release(lock, 3000, &error));
    assert_true(crowd_granted(crowd, 4, 9000));
    assert_int_equal(crowd->overlaps, 0);
}

/* Whoever listens to everything makes the dead look alive: each costs a claim time then, and no more. */
static void test_a_monitor_of_all_channels(void **state) {
    (void)state;
    int fd = server_dial(server.port);
    dprintf(fd, "PSUBSCRIBE *\r\n");
    pawl_lock *lock = hold();
    wait_in_order(4);
    crowd_kill(crowd, 0, SIGKILL);
    must(pawl_release(lock, 10000, &error));
    assert_true(crowd_granted(crowd, 3, 10000));
    in_order(1, 4);
    close(fd);
}

static void test_a_foreign_holder_is_waited_out(void **state) {
    (void)state;
    free(server_redis(server.port, "SET pawl:n somebody NX PX 60000"));
    wait_in_order(3);
    int64_t before = calls("eval evalsha"), start = clock_now_ns();
    poll(NULL, 0, 1000); /* only the first one asks, some ten times a second */
    int64_t asked = calls("eval evalsha") - before;
    if (asked * 1000 > 25 * ms_since(start)) fail_msg("%lld questions", (long long)asked);
    free(server_redis(server.port, "DEL pawl:n"));
    assert_true(crowd_granted(crowd, 3, 4000)); /* it looks by itself each 5 s at the latest */
    in_order(0, 3);
}

#define RIGHTS                                                                                                         \
    "+info +evalsha +eval +time +exists +get +getrange +set +incr +del +pexpire +pttl +zadd +zrem +zrange +zrank"

static void waiter_as_user(const char *more_rights) {
    char line[512];
    static char url[64];
    snprintf(line, sizeof line, "ACL SETUSER app reset on >pw ~pawl:* " RIGHTS " %s", more_rights);
    free(server_redis(server.port, "%s", line));
    snprintf(url, sizeof url, "redis://app:pw@127.0.0.1:%d", server.port);
    common.url = url;
}

/* Nobody may be told anything: the wait becomes a question some ten times a second. */
static void test_without_the_right_to_subscribe(void **state) {
    (void)state;
    waiter_as_user("");
    pawl_lock *lock = hold();
    for (int i = 0; i < 2; i++) crowd_add(crowd, &common);
    int64_t before = calls("eval evalsha");
    poll(NULL, 0, 2000); /* so that they wait for a while */
    int64_t asked = calls("eval evalsha") - before;
    if (asked < 4 || asked > 120) fail_msg("%lld questions", (long long)asked);
    must(pawl_release(lock, 10000, &error));
    assert_true(crowd_granted(crowd, 2, 10000));
    assert_int_equal(crowd->overlaps, 0);
}

/* A release never fails for want of it: the lock is free, and the waiter finds out at its next look. */
static void test_without_the_right_to_publish(void **state) {
    (void)state;
    waiter_as_user("+subscribe resetchannels &pawl:*");
    crowd_add(crowd, &common);
    assert_true(crowd_granted(crowd, 1, 10000));
    common.hold_ms = 1000;
    crowd_add(crowd, &common);
    assert_true(crowd_granted(crowd, 2, 10000));
    common.url = server.url;
    common.hold_ms = 1;
    wait_in_order(1);
    assert_true(crowd_granted(crowd, 3, 8000));
    assert_int_equal(crowd->overlaps, 0);
    assert_int_equal(crowd->member[1].code, PAWL_OK);
}

/* All start at once, nobody holds: nobody goes on losing to the others. */
static void test_started_together(void **state) {
    (void)state;
    common.hold_ms = 10;
    int64_t start = clock_now_ns(), ran = ran_ns();
    for (int i = 0; i < 16; i++) crowd_add(crowd, &common);
    assert_true(crowd_granted(crowd, 16, 20000));
    int64_t first = INT64_MAX, end = 0, stood_ms = ms_since(start) - ran_since(ran);
    for (int i = 0; i < 16; i++) {
        first = crowd->member[i].got_ns < first ? crowd->member[i].got_ns : first;
        end = crowd->member[i].got_ns > end ? crowd->member[i].got_ns : end;
    }
    if (end - first > 2 * NS_PER_S + stood_ms * NS_PER_MS)
        fail_msg("the last one came %lld ms behind", (long long)((end - first) / NS_PER_MS));
    assert_int_equal(crowd->overlaps, 0);
}

/* Threads of a few clients, and in the long form as many processes again. */
static void test_a_crowd(void **state) {
    (void)state;
    int threads = full ? 250 : 25, processes = full ? 300 : 20, n = 4 * threads + processes;
    pawl_lock *lock = hold();
    common.threads = threads;
    for (int i = 0; i < 4; i++) crowd_add(crowd, &common);
    common.threads = 0;
    for (int i = 0; i < processes; i++) crowd_add(crowd, &common);
    int queued = 4 + processes; /* the threads of a client queue among themselves, and one of them here */
    assert_true(server_until(queue_is, &queued, 60000));
    int64_t start = clock_now_ns(), questions = calls("eval evalsha");
    must(pawl_release(lock, 10000, &error));
    assert_true(crowd_granted(crowd, n, 60000));
    questions = calls("eval evalsha") - questions;
    print_message("# %d waiters: %lld ms, %.2f questions each\n", n, (long long)ms_since(start), (double)questions / n);
    assert_true(questions < 4 * n);
    assert_int_equal(crowd->overlaps, 0);
    assert_true(server_until(no_keys, NULL, 10000));
}

/* --- cancel at the very moment of the hand-over --- */

static int cancel_fd, waiter_code;
static pawl_client *waiter;
static pawl_lock *waiter_lock;

static void *wait_for_it(void *data) {
    (void)data;
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    options.cancel_fd = cancel_fd;
    waiter_code = pawl_acquire(waiter, "n", &options, &waiter_lock, NULL);
    return NULL;
}

static void spin(int64_t ns) {
    for (int64_t end = clock_now_ns() + ns; clock_now_ns() < end;) {
    }
}

static void test_cancel_at_the_handover(void **state) {
    (void)state;
    int rounds = full ? 1000 : 200, held = 0, one = 1;
    must(pawl_open(server.url, NULL, &waiter, &error));
    cancel_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    for (int i = 0; i < rounds; i++) {
        pawl_lock *lock = hold();
        pthread_t thread;
        eventfd_t drained;
        assert_int_equal(pthread_create(&thread, NULL, wait_for_it, NULL), 0);
        assert_true(server_until(queue_is, &one, 10000));
        int64_t lead = random_between(-300000, 1200000);
        if (lead < 0) {
            eventfd_write(cancel_fd, 1);
            spin(-lead);
            pawl_release(lock, 0, NULL);
        } else {
            pawl_release(lock, 0, NULL);
            spin(lead);
            eventfd_write(cancel_fd, 1);
        }
        pthread_join(thread, NULL);
        eventfd_read(cancel_fd, &drained);
        if (waiter_code == PAWL_OK) {
            held++;
            must(pawl_verify(waiter_lock, 10000, &error));
            must(pawl_release(waiter_lock, 10000, &error));
        } else {
            assert_int_equal(waiter_code, PAWL_ECANCELLED);
        }
        if (!server_until(no_keys, NULL, 10000)) fail_msg("round %d: something was left, code %d", i, waiter_code);
    }
    print_message("# %d of %d got it\n", held, rounds);
    assert_true(held > 0 && held < rounds);
    close(cancel_fd);
    pawl_close(waiter);
}

#define CASE(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)

int main(int argc, char **argv) {
    crowd_main(argc, argv);
    full = getenv("PAWL_TEST_FULL") != NULL;
    const struct CMUnitTest tests[] = {
        CASE(first_come_first_served),
        CASE(long_holds),
        CASE(nothing_is_asked_while_waiting),
        CASE(questions_of_a_handover),
        CASE(dead_waiters_are_passed_over),
        CASE(a_stopped_waiter_costs_the_claim),
        CASE(two_stopped_waiters),
        CASE(the_holder_dies),
        CASE(a_cancelled_wait_leaves_no_trace),
        CASE(flushall_while_waiting),
        CASE(subscriptions_are_killed),
        CASE(restart_without_data),
        CASE(restart_with_data),
        CASE(a_monitor_of_all_channels),
        CASE(a_foreign_holder_is_waited_out),
        CASE(without_the_right_to_subscribe),
        CASE(without_the_right_to_publish),
        CASE(started_together),
        CASE(a_crowd),
        CASE(cancel_at_the_handover),
    };
    return cmocka_run_group_tests_name("redis queue", tests, NULL, NULL);
}
