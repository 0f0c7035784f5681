/* seeded.c: instances that lost their memory, and how they come to vote again. */
#include "clock.h"
#include "three.h"
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void await_seeded(int i, pawl_client *client) {
    int64_t start = clock_now_ns();
    while (!is_seeded(i) && ms_since(start) < 30000)
        must_release(must_take(client, "any")); /* whoever comes first does it */
    assert_true(is_seeded(i));
}

/* An empty instance gets its numbers back from the others, above all that they gave, and its vote when whatever it may
 * have forgotten has ended. */
static void test_wiped_instance_is_seeded(void **state) {
    (void)state;
    struct seen seen = {0};
    pawl_client *a = client_of(url, 5000, observe, &seen), *b = client_of(url, 5000, NULL, NULL);
    pawl_lock *lock = must_take(a, "wiped"), *other = NULL;
    assert_non_null(strstr(seen.remark, "tokens begin at the clock"));
    int64_t token = pawl_token(lock);
    must_release(lock);
    int64_t start = clock_now_ns();
    server_restart(&three[1]);
    await_seeded(1, a);
    assert_non_null(strstr(seen.remark, "had lost its memory, and votes again in 5 s"));
    server_kill(&three[0], SIGSTOP); /* one votes, one waits, one is away */
    int said = take(b, "wiped", 0, &other);
    if (ms_since(start) < 5000) {
        assert_int_equal(said, PAWL_EUNREACHABLE);
        says("no quorum: 1 of 3");
        says("came back without its memory and votes again in ");
    }
    if (!said) must_release(other);
    lock = must_take(b, "wiped"); /* the seeded one is as good as any, in the end */
    assert_true(ms_since(start) >= 5000);
    assert_true(pawl_token(lock) > token);
    must_release(lock);
    server_kill(&three[0], SIGCONT);
    pawl_close(a);
    pawl_close(b);
}

/* Who holds a lock goes on when an instance comes back empty: two others have it. Nobody else gets it, then or later.
 */
static void test_hold_outlives_a_seeding(void **state) {
    (void)state;
    struct seen seen = {0};
    pawl_client *a = client_of(url, 8000, observe, &seen), *b = client_of(url, 8000, NULL, NULL);
    pawl_lock *held = must_take(a, "held"), *other = NULL;
    server_restart(&three[1]);
    await_seeded(1, b);
    int64_t start = clock_now_ns();
    while (server_redis_int(three[1].port, "EXISTS pawl:%%c:another") == 0 && ms_since(start) < 60000) {
        assert_int_not_equal(take(b, "held", 0, &other), PAWL_OK);
        must_release(must_take(b, "another"));
    }
    assert_int_equal(server_redis_int(three[1].port, "EXISTS pawl:%%c:another"), 1); /* it votes */
    for (int i = 0; i < 20; i++) assert_int_not_equal(take(b, "held", 0, &other), PAWL_OK);
    assert_int_equal(seen.lost, 0);
    if (pawl_verify(held, 5000, &error)) fail_msg("%s", error.text);
    must_release(held);
    must_release(must_take(b, "held"));
    pawl_close(a);
    pawl_close(b);
}

static void must_go_on_above(pawl_client *client, int64_t floor) {
    if (pawl_init_above(client, floor, 10000, &error)) fail_msg("%s", error.text);
}

/* More than a minority lost: an operator says where the numbers go on; with durable=yes data that came back counts. */
static void test_majority_lost(void **state) {
    (void)state;
    pawl_tokens tokens = PAWL_TOKENS_INIT;
    pawl_client *a = client_of(url, 2000, NULL, NULL);
    pawl_lock *lock = must_take(a, "many");
    int64_t token = pawl_token(lock);
    must_release(lock);
    pawl_close(a);
    for (int i = 0; i < 2; i++) server_restart(&three[i]);
    a = client_new();
    assert_int_equal(take(a, "many", 0, &lock), PAWL_EUNSAFE);
    assert_int_equal(pawl_init(a, 5000, &error), PAWL_EUNSAFE);
    assert_int_equal(pawl_tokens_advance(a, token + 1000, 5000, &tokens, &error), PAWL_EUNSAFE);
    says("pawl init --floor");
    assert_int_equal(pawl_init_above(a, (INT64_C(1) << 53) - 1, 5000, &error), PAWL_EINVALID);
    says("is more than ten years ahead of this clock");
    must_go_on_above(a, token + 1000);
    lock = must_take(a, "many");
    assert_true(pawl_token(lock) > token + 1000);
    token = pawl_token(lock);
    must_release(lock);
    pawl_close(a);
    char durable[300];
    for (int i = 0; i < N; i++) {
        free(server_redis(three[i].port, "SAVE"));
        server_restart(&three[i]);
    }
    a = client_new();
    assert_int_equal(take(a, "many", 0, &lock), PAWL_EUNSAFE);
    says("was restarted");
    pawl_close(a);
    snprintf(durable, sizeof durable, "%s?durable=yes", url);
    a = client_of(durable, 10000, NULL, NULL);
    lock = must_take(a, "many");
    assert_true(pawl_token(lock) > token);
    must_release(lock);
    pawl_close(a);
}

/* A replica that lags is promoted in the place of its primary: durable=yes says nothing of it. */
static void test_promoted_is_not_durable(void **state) {
    (void)state;
    struct server fourth = {0};
    pawl_lock *held, *other = NULL;
    char with[300], *stand = NULL;
    server_start_redis(&fourth, NULL);
    pawl_client *a = client_of(url, 20000, NULL, NULL);
    must_release(must_take(a, "acct"));
    free(server_redis(fourth.port, "REPLICAOF 127.0.0.1 %d", three[2].port));
    int64_t end_ns = clock_after_ms(clock_now_ns(), 30000);
    do {
        free(stand);
        stand = server_redis(fourth.port, "INFO replication");
    } while (stand && !strstr(stand, "master_link_status:up") && clock_now_ns() < end_ns);
    free(stand);
    free(server_redis(fourth.port, "REPLICAOF NO ONE")); /* what comes now it lacks */
    proxy_cut(ways[1], true);
    held = must_take(a, "acct");
    int64_t token = pawl_token(held), start = clock_now_ns();
    server_kill(&three[2], SIGKILL);
    snprintf(with, sizeof with, "redlock://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d?durable=yes", three[0].port,
             three[1].port, fourth.port);
    pawl_client *b = client_of(with, 20000, NULL, NULL);
    int said = take(b, "acct", 5000, &other);
    if (ms_since(start) < 20000 && said == PAWL_OK)
        fail_msg("two holders, with %lld and %lld", (long long)token, (long long)pawl_token(other));
    if (!said) must_release(other);
    pawl_close(b);
    pawl_close(a);
    server_stop(&fourth);
}

/* All empty: as a first start, and that is said. */
static void test_all_empty(void **state) {
    (void)state;
    struct seen seen = {0};
    pawl_client *a = client_of(url, 2000, NULL, NULL), *b;
    pawl_lock *lock = must_take(a, "all");
    int64_t token = pawl_token(lock);
    must_release(lock);
    pawl_close(a);
    for (int i = 0; i < N; i++) free(server_redis(three[i].port, "FLUSHALL"));
    b = client_of(url, 2000, observe, &seen);
    lock = must_take(b, "all");
    assert_true(pawl_token(lock) > token); /* the clock has gone on */
    must_release(lock);
    assert_non_null(strstr(seen.remark, "tokens begin at the clock"));
    pawl_close(b);
}

/* Who prepares an instance by hand is told for how long it does not vote, and why; as often as he asks. */
static void test_init_says_who_waits(void **state) {
    (void)state;
    char node[40];
    pawl_client *a = client_of(url, 60000, NULL, NULL);
    error = (pawl_error)PAWL_ERROR_INIT;
    assert_int_equal(pawl_init(a, 10000, &error), PAWL_OK);
    says("tokens begin at the clock");
    must_release(must_take(a, "minute"));
    snprintf(node, sizeof node, "127.0.0.1:%d votes again in ", proxy_port(ways[1]));
    server_restart(&three[1]);
    for (int i = 0; i < 2; i++) {
        int64_t start = clock_now_ns();
        do { /* a busy machine may call the others slow, and ask again */
            error = (pawl_error)PAWL_ERROR_INIT;
            assert_int_equal(pawl_init(a, 10000, &error), PAWL_OK);
        } while (!strstr(error.text, node) && ms_since(start) < 30000);
        says(node);
        says("somebody may hold a lock that was granted there and forgotten");
    }
    must_go_on_above(a, 1);
    error = (pawl_error)PAWL_ERROR_INIT;
    assert_int_equal(pawl_init(a, 10000, &error), PAWL_OK);
    assert_string_equal(error.text, "");
    pawl_close(a);
}

/* Whoever is away may know the numbers, and who holds what: nobody goes on without it, unless no quorum can know. */
static void test_floor_and_who_is_away(void **state) {
    (void)state;
    pawl_tokens tokens = PAWL_TOKENS_INIT;
    pawl_client *a = client_of(url, 60000, NULL, NULL), *b;
    pawl_lock *held = must_take(a, "away"), *lock = NULL;
    int64_t token = pawl_token(held);
    proxy_cut(ways[1], true);
    server_restart(&three[2]);
    b = client_of(url, 60000, NULL, NULL);
    assert_int_equal(pawl_tokens_advance(b, 1, 5000, &tokens, &error), PAWL_EUNREACHABLE);
    assert_int_equal(pawl_init_above(b, token, 5000, &error), PAWL_EUNREACHABLE);
    assert_int_equal(take(b, "away", 0, &lock), PAWL_EUNREACHABLE);
    assert_int_equal(pawl_verify(held, 5000, &error), PAWL_EUNREACHABLE);
    server_restart(&three[0]);
    assert_int_equal(pawl_init(b, 5000, &error), PAWL_EUNREACHABLE);
    says("pawl init --floor");
    assert_int_equal(pawl_tokens_advance(b, 1, 5000, &tokens, &error), PAWL_EUNREACHABLE);
    must_go_on_above(b, token);
    lock = must_take(b, "away");
    assert_true(pawl_token(lock) > token);
    must_release(lock);
    pawl_close(b);
    pawl_close(a);
}

/* Two of three came back empty one after the other, with a ttl of a day: who knows that nothing is held ends the wait.
 */
static void test_floor_ends_the_wait(void **state) {
    (void)state;
    pawl_client *a = client_of(url, 86400000, NULL, NULL);
    pawl_lock *lock = must_take(a, "day");
    int64_t token = pawl_token(lock);
    must_release(lock);
    for (int i = 0; i < 2; i++) {
        server_restart(&three[i]);
        int64_t end_ns = clock_after_ms(clock_now_ns(), 30000);
        while (!is_seeded(i) && clock_now_ns() < end_ns)
            if (!take(a, "day", 0, &lock)) must_release(lock);
        assert_true(is_seeded(i));
    }
    assert_int_equal(take(a, "day", 0, &lock), PAWL_EUNREACHABLE);
    says("pawl init --floor");
    must_go_on_above(a, token);
    lock = must_take(a, "day");
    assert_true(pawl_token(lock) > token);
    must_release(lock);
    pawl_close(a);
}

static void *go_on_above(void *data) {
    pawl_client *client = data;
    pawl_error own = PAWL_ERROR_INIT;
    return pawl_init_above(client, 1, 60000, &own) ? strdup(own.text) : NULL;
}

/* What an operator says is so of what was lost when he said it: an instance that is lost again while another one keeps
 * him waiting has to wait as any other. */
static void test_floor_ends_no_later_wait(void **state) {
    (void)state;
    pthread_t thread;
    void *fault;
    pawl_client *a = client_of(url, 60000, NULL, NULL), *operator= client_new();
    must_release(must_take(a, "first-start"));
    free(server_redis(three[0].port, "FLUSHALL"));
    server_kill(&three[2], SIGSTOP);
    assert_int_equal(pthread_create(&thread, NULL, go_on_above, operator), 0);
    int64_t start = clock_now_ns(), marked = 0;
    while (!marked && ms_since(start) < 15000) marked = server_redis_int(three[0].port, "EXISTS pawl:%%r:mark");
    free(server_redis(three[0].port, "FLUSHALL"));
    server_kill(&three[2], SIGCONT);
    assert_int_equal(pthread_join(thread, &fault), 0);
    if (fault) fail_msg("%s", (char *)fault);
    assert_int_equal(marked, 1); /* by his first question */
    assert_false(is_seeded(0));
    await_seeded(0, a);
    char *ready = server_redis(three[0].port, "GETRANGE pawl:%%r 199 211");
    assert_string_not_equal(ready, "0000000000000");
    free(ready);
    pawl_close(operator);
    pawl_close(a);
}

static int count_entry(const pawl_entry *entry, void *data) {
    (void)entry;
    ++*(int *)data;
    return 0;
}

static void must_not_know(pawl_client *client, const char *name) {
    int n = 0, said = pawl_inspect(client, name, 5000, count_entry, &n, &error);
    if (said != PAWL_EUNREACHABLE) fail_msg("%s: said %d, and %d records", name ? name : "all", said, n);
    assert_int_equal(n, 0);
}

/* Held at two; one of them is emptied: it may be called held or not known, but never free. */
static void test_a_held_lock_is_never_called_free(void **state) {
    (void)state;
    int n = 0;
    pawl_client *a = client_of(url, 60000, NULL, NULL), *b = client_of(url, 60000, NULL, NULL);
    must_release(must_take(a, "first-start"));
    proxy_cut(ways[2], true);
    pawl_lock *held = must_take(a, "held");
    proxy_cut(ways[2], false);
    if (pawl_inspect(b, "held", 5000, count_entry, &n, &error)) fail_msg("%s", error.text);
    assert_int_equal(n, 1);
    n = 0;
    if (pawl_inspect(b, "nobody", 5000, count_entry, &n, &error)) fail_msg("%s", error.text);
    assert_int_equal(n, 0);
    free(server_redis(three[1].port, "FLUSHALL"));
    must_not_know(b, "held"); /* of the two that vote one has it and one has not */
    must_not_know(b, NULL);
    proxy_cut(ways[0], true);
    must_not_know(b, "held"); /* one votes */
    must_not_know(b, NULL);
    proxy_cut(ways[0], false);
    pawl_release(held, 5000, &error);
    pawl_close(a);
    pawl_close(b);
}

static int no_finding(const pawl_finding *f, void *data) {
    (void)f, (void)data;
    return 0;
}

/* Where nothing ever was, looking finds nothing and leaves it so; whoever begins them says so. */
static void test_looking_begins_nothing(void **state) {
    (void)state;
    struct seen seen = {0};
    pawl_client *a = client_of(url, 10000, observe, &seen);
    pawl_tokens tokens = PAWL_TOKENS_INIT;
    int entries = 0;
    for (int i = 0; i < 2; i++)
        if (pawl_inspect(a, i ? "look" : NULL, 10000, count_entry, &entries, &error)) fail_msg("%s", error.text);
    if (pawl_tokens_show(a, 10000, &tokens, &error)) fail_msg("%s", error.text);
    assert_int_equal(entries, 0);
    assert_true(tokens.last == 0 && tokens.clock_us > 0);
    for (int i = 0; i < N; i++) assert_int_equal(server_redis_int(three[i].port, "DBSIZE"), 0);
    error = (pawl_error)PAWL_ERROR_INIT;
    if (pawl_init(a, 10000, &error)) fail_msg("%s", error.text);
    says("tokens begin at the clock");
    for (int i = 0; i < N; i++) free(server_redis(three[i].port, "FLUSHALL"));
    if (pawl_doctor(a, 10000, no_finding, NULL, &error)) fail_msg("%s", error.text);
    assert_non_null(strstr(seen.remark, "tokens begin at the clock"));
    pawl_close(a);
    /* One that lost its memory is counted out, and not seeded either. */
    a = client_new();
    free(server_redis(three[1].port, "FLUSHALL"));
    pawl_client *b = client_new();
    if (pawl_inspect(b, "look", 10000, count_entry, &entries, &error)) fail_msg("%s", error.text);
    if (pawl_tokens_show(b, 10000, &tokens, &error)) fail_msg("%s", error.text);
    assert_true(tokens.last > 0);
    assert_int_equal(server_redis_int(three[1].port, "DBSIZE"), 0);
    pawl_close(a);
    pawl_close(b);
}

/* One waits, another one is down: all was done that init can do, but no quorum votes. */
static void test_init_without_a_quorum_of_voters(void **state) {
    (void)state;
    pawl_client *a = client_of(url, 600000, NULL, NULL);
    int64_t start = clock_now_ns();
    must_release(must_take(a, "seed"));
    free(server_redis(three[1].port, "FLUSHALL"));
    while (!is_seeded(1) && ms_since(start) < 30000) must_release(must_take(a, "seed"));
    pawl_close(a);
    server_kill(&three[2], SIGKILL);
    a = client_new();
    assert_int_equal(pawl_init(a, 10000, &error), PAWL_EUNREACHABLE);
    says("1 of 3 instances vote, 2 are needed");
    says("votes again in ");
    pawl_close(a);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, three_start, three_stop)
    const struct CMUnitTest tests[] = {
        TEST(test_looking_begins_nothing),
        TEST(test_init_without_a_quorum_of_voters),
        TEST(test_wiped_instance_is_seeded),
        TEST(test_hold_outlives_a_seeding),
        TEST(test_majority_lost),
        TEST(test_promoted_is_not_durable),
        TEST(test_a_held_lock_is_never_called_free),
        TEST(test_all_empty),
        TEST(test_init_says_who_waits),
        TEST(test_floor_and_who_is_away),
        TEST(test_floor_ends_the_wait),
        TEST(test_floor_ends_no_later_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
