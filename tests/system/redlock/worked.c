/* worked.c: the examples by which Redlock is criticised, with their numbers, each as plain Redlock and as pawl: a clock
 * that jumps, a partition that heals, a holder that is paused. Where two believe that they hold the lock, tokens say
 * who is the later one, and a guard refuses the other. */
#include "clock.h"
#include "pawl_guard.h"
#include "probe.h"
#include "proxy.h"
#include "server.h"
#include "skew.h"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { A, B, C, D, E, N };
static struct server servers[N];
static struct proxy *proxies[N]; /* one client's way there; the other one goes straight, or has a way of its own */
static char straight[300], far[300], guard_dir[] = "/tmp/pawl-worked-XXXXXX";
static pawl_guard *guard;
static pawl_error error = PAWL_ERROR_INIT;

static void url_of(char ret[300], const int ports[N]) {
    snprintf(ret, 300, "redlock://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d", ports[A], ports[B],
             ports[C], ports[D], ports[E]);
}

static int start(void **state) {
    (void)state;
    int near[N], through[N];
    char url[64];
    for (int i = 0; i < N; i++) {
        if (i == C) servers[i].shim = skew_library();
        server_start_redis(&servers[i], NULL);
        proxies[i] = proxy_start(servers[i].port);
        near[i] = servers[i].port;
        through[i] = proxy_port(proxies[i]);
    }
    url_of(straight, near);
    url_of(far, through);
    if (!mkdtemp(guard_dir)) fail();
    snprintf(url, sizeof url, "dir:%s", guard_dir);
    return pawl_guard_open(url, NULL, &guard, &error);
}

static int stop(void **state) {
    (void)state;
    char command[64];
    pawl_guard_close(guard);
    for (int i = 0; i < N; i++) proxy_stop(proxies[i]);
    for (int i = 0; i < N; i++) server_stop(&servers[i]);
    snprintf(command, sizeof command, "rm -rf %s", guard_dir);
    return system(command);
}

static int64_t ms_since(int64_t start_ns) { return (clock_now_ns() - start_ns) / NS_PER_MS; }

static int write_as(const char *resource, const char *who, uint64_t token) {
    pawl_guard_write write = PAWL_GUARD_WRITE_INIT;
    write.resource = resource;
    write.lock = resource;
    write.by = who;
    write.token = (int64_t)token;
    return pawl_guard_put(guard, &write, who, strlen(who), &error);
}

/* Redlock as people write it: SET NX PX at those that it reaches, and a majority of all is enough. */
static bool plain_redlock(const int *reached, int n, const char *who) {
    int granted = 0;
    for (int i = 0; i < n; i++) {
        char *reply = server_redis(servers[reached[i]].port, "SET plain %s NX PX 10000", who);
        granted += reply && strcmp(reply, "OK") == 0;
        free(reply);
    }
    return granted > N / 2;
}

static bool gone(int i, const char *key) { return server_redis_int(servers[i].port, "EXISTS %s", key) == 0; }

static void await_gone(int i, const char *key) {
    int64_t end = clock_after_ms(clock_now_ns(), 15000);
    while (!gone(i, key) && clock_now_ns() < end) poll(NULL, 0, 10);
    assert_true(gone(i, key));
}

static void refuse(int a, int b, bool on) {
    proxy_cut(proxies[a], on);
    proxy_cut(proxies[b], on);
}

static int try_it(pawl_client *client, const char *name, pawl_lock **ret) {
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    options.wait_ms = 0;
    return pawl_acquire(client, name, &options, ret, &error);
}

static pawl_client *client_new(const char *url, int64_t ttl_ms) {
    pawl_options options = PAWL_OPTIONS_INIT;
    pawl_client *client;
    options.ttl_ms = ttl_ms;
    if (pawl_open(url, &options, &client, &error)) fail_msg("%s", error.text);
    return client;
}

static void finish(struct probe *p) {
    probe_backend->end(&p->grant, false);
    probe_close(p);
}

/* The clock of C steps 5 s ahead, ttl 10 s. The first client reached A, B and C; the second reaches C, D and E. */
static void test_one_clock_ahead(void **state) {
    (void)state;
    const int first[] = {A, B, C}, second[] = {C, D, E};
    struct probe one, two;
    pawl_lock *kept, *other;
    probe_ready(&one, "%s", straight);
    probe_name(&one, "first-start");
    assert_int_equal(probe_take(&one, false), BK_YES); /* all five begin */
    finish(&one);
    refuse(D, E, true);
    pawl_client *renews = client_new(far, 10000);
    probe_ready(&one, "%s", far);
    probe_name(&one, "ahead");
    int64_t start_ns = clock_now_ns();
    assert_int_equal(probe_take(&one, false), BK_YES); /* and is never renewed */
    assert_int_equal(try_it(renews, "kept", &kept), PAWL_OK);
    assert_true(plain_redlock(first, 3, "one"));
    skew_set(&servers[C], 5000);
    refuse(D, E, false);
    refuse(A, B, true); /* for the second client; the first one's own ways stand */
    probe_ready(&two, "%s", far);
    probe_name(&two, "ahead");
    assert_int_equal(probe_take(&two, false), BK_NO);
    assert_false(plain_redlock(second, 3, "two"));
    for (int i = D; i <= E; i++) free(server_redis(servers[i].port, "DEL plain")); /* given back, as it has to */
    await_gone(C, "plain");
    await_gone(C, "pawl:ahead");
    assert_true(plain_redlock(second, 3, "two"));
    enum bk_says says = BK_NO;
    for (int i = 0; i < 50 && says == BK_NO; i++) { /* a voice that it lost is given back at once */
        probe_name(&two, "ahead");
        says = probe_take(&two, false);
    }
    assert_int_equal(says, BK_YES);
    if (ms_since(start_ns) >= 10000) skip(); /* a machine so slow shows nothing */
    print_message("# plain Redlock: two holders %lld ms after the first grant of 10 s; pawl: tokens %llu and %llu\n",
                  (long long)ms_since(start_ns), (unsigned long long)one.grant.token,
                  (unsigned long long)two.grant.token);
    assert_true(two.grant.token > one.grant.token);
    assert_int_equal(write_as("ahead", "two", two.grant.token), PAWL_OK);
    assert_int_equal(write_as("ahead", "one", one.grant.token), PAWL_GSTALE);
    print_message("# guard: %s\n", error.text);
    refuse(A, B, false);
    assert_int_not_equal(probe_renew(&one), BK_YES);
    pawl_client *late = client_new(straight, 10000);
    assert_int_equal(try_it(late, "kept", &other), PAWL_EBUSY); /* a lock that is renewed outlives the step */
    assert_int_equal(pawl_check(kept), PAWL_OK);
    pawl_close(late);
    pawl_close(renews);
    finish(&one);
    finish(&two);
    skew_set(&servers[C], 0);
}

/* The holder keeps A, B and C; D and E are cut off until its lock has ended there, and come back. */
static void test_partition_heals(void **state) {
    (void)state;
    pawl_client *holder = client_new(far, 1000), *other = client_new(straight, 1000);
    pawl_lock *lock, *next = NULL;
    assert_int_equal(try_it(holder, "parted", &lock), PAWL_OK);
    for (int i = A; i < N; i++) assert_false(gone(i, "pawl:parted"));
    refuse(D, E, true);
    await_gone(D, "pawl:parted");
    await_gone(E, "pawl:parted");
    refuse(D, E, false);
    assert_int_equal(pawl_check(lock), PAWL_OK);
    assert_int_equal(try_it(other, "parted", &next), PAWL_EBUSY); /* two are not enough, and are given back */
    int64_t token = pawl_token(lock);
    assert_int_equal(pawl_verify(lock, 5000, &error), PAWL_OK);
    assert_int_equal(write_as("parted", "holder", (uint64_t)token), PAWL_OK);
    assert_int_equal(pawl_release(lock, 5000, &error), PAWL_OK);
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    options.wait_ms = 10000;
    assert_int_equal(pawl_acquire(other, "parted", &options, &next, &error), PAWL_OK);
    assert_true(pawl_token(next) > token);
    pawl_release(next, 5000, NULL);
    pawl_close(holder);
    pawl_close(other);
}

/* A holder that is paused for longer than its ttl, and then goes on. */
static void test_paused_holder(void **state) {
    (void)state;
    struct probe one, two;
    probe_ready(&one, "%s", straight);
    probe_ready(&two, "%s", straight);
    probe_name(&one, "paused");
    probe_name(&two, "paused");
    one.claim.ttl_ms = 300;
    assert_int_equal(probe_take(&one, false), BK_YES);
    for (int i = A; i < N; i++) await_gone(i, "pawl:paused");
    assert_int_equal(probe_take(&two, false), BK_YES);
    assert_true(two.grant.token > one.grant.token);
    assert_int_equal(write_as("paused", "two", two.grant.token), PAWL_OK);
    assert_int_equal(write_as("paused", "one", one.grant.token), PAWL_GSTALE);
    assert_int_equal(probe_renew(&one), BK_NO);
    assert_int_equal(probe_release(&one), BK_NO);
    assert_int_equal(probe_release(&two), BK_YES);
    finish(&one);
    finish(&two);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_clock_ahead), cmocka_unit_test(test_partition_heals),
                                       cmocka_unit_test(test_paused_holder)};
    return cmocka_run_group_tests(tests, start, stop);
}
