/* network.c: replies that never come, hosts that fall silent, connections that break, clocks that step: no false
 * "held", no false "lost", and no call that takes longer than it was given. */
#include "clock.h"
#include "proxy.h"
#include "ran.h"
#include "server.h"
#include "skew.h"
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "pawl.h"

static struct server server;
static struct proxy *proxy;
static pawl_client *near, *far; /* far: through the proxy */
static pawl_error error = PAWL_ERROR_INIT;

#define must(call)                                                                                                     \
    do {                                                                                                               \
        int code_ = (call);                                                                                            \
        if (code_) fail_msg("%s: %d %s", #call, code_, error.text);                                                    \
    } while (0)

static void open_both(int64_t ttl_ms) {
    pawl_options options = PAWL_OPTIONS_INIT;
    char url[64];
    options.ttl_ms = ttl_ms;
    proxy = proxy_start(server.port);
    snprintf(url, sizeof url, "redis://127.0.0.1:%d", proxy_port(proxy));
    error = (pawl_error)PAWL_ERROR_INIT;
    must(pawl_open(server.url, &options, &near, &error));
    must(pawl_open(url, &options, &far, &error));
}

static int setup(void **state) {
    (void)state;
    server.shim = skew_library();
    server_start_redis(&server, NULL);
    open_both(30000);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    pawl_close(far);
    pawl_close(near);
    proxy_stop(proxy);
    server_stop(&server);
    return 0;
}

static void reopen(int64_t ttl_ms) {
    pawl_close(far);
    pawl_close(near);
    proxy_stop(proxy);
    open_both(ttl_ms);
}

static int take(pawl_client *client, const char *name, int64_t wait_ms, pawl_lock **ret) {
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    options.wait_ms = wait_ms;
    return pawl_acquire(client, name, &options, ret, &error);
}

static void until(int64_t at_ns) {
    for (int64_t now; (now = clock_now_ns()) < at_ns;) poll(NULL, 0, clock_poll_ms(now, at_ns));
}

static void test_the_reply_is_lost(void **state) {
    (void)state;
    pawl_lock *lock;
    must(take(far, "warm", 10000, &lock));
    must(pawl_release(lock, 10000, &error));
    proxy_drop(proxy, PROXY_TO_CLIENT, true);
    int64_t start = ran_ns();
    assert_int_equal(take(far, "n", 1500, &lock), PAWL_EUNREACHABLE);
    assert_true(ran_since(start) < 4000);
    assert_int_equal(server_redis_int(server.port, "EXISTS pawl:n"), 1); /* it was taken */
    proxy_drop(proxy, PROXY_TO_CLIENT, false);
    must(take(near, "n", 10000, &lock)); /* well before the ttl of 30 s: undone in the background */
    print_message("# undone after %lld ms\n", (long long)ran_since(start));
    must(pawl_release(lock, 10000, &error));
    must(take(far, "n", 10000, &lock));
    must(pawl_release(lock, 10000, &error));
}

static void test_a_silent_server(void **state) {
    (void)state;
    pawl_lock *lock;
    reopen(2000);
    must(take(far, "held", 10000, &lock));
    int64_t safe_ns = clock_now_ns() + pawl_remaining_ms(lock) * NS_PER_MS;
    server_kill(&server, SIGSTOP);
    pawl_lock *other;
    int64_t start = ran_ns();
    assert_int_equal(take(near, "n", 500, &other), PAWL_EUNREACHABLE);
    if (ran_since(start) > 2000) fail_msg("took %lld ms", (long long)ran_since(start));
    assert_non_null(strstr(error.text, "127.0.0.1"));
    until(safe_ns + 700 * NS_PER_MS); /* renewed at a third of the ttl at the latest before the stop */
    assert_int_equal(pawl_check(lock), PAWL_ELOST);
    server_kill(&server, SIGCONT);
    assert_int_equal(pawl_check(lock), PAWL_ELOST);
    pawl_release(lock, 2000, &error);
    must(take(near, "held", 5000, &lock));
    must(pawl_release(lock, 10000, &error));
    must(take(near, "n", 5000, &lock)); /* the stopped server got the question: undone, or over within the ttl */
    must(pawl_release(lock, 10000, &error));
}

static void test_a_host_that_vanished(void **state) {
    (void)state;
    pawl_lock *lock;
    reopen(6000);
    must(take(far, "n", 10000, &lock));
    proxy_half_open(proxy); /* the old connection is a grave; new ones work */
    until(clock_now_ns() + 8000 * NS_PER_MS);
    must(pawl_check(lock)); /* renewed over another one */
    must(pawl_verify(lock, 10000, &error));
    must(pawl_release(lock, 10000, &error));
}

static void test_a_hiccup(void **state) {
    (void)state;
    pawl_lock *lock;
    reopen(9000);
    must(take(far, "n", 10000, &lock));
    for (int i = 0; i < 2; i++) {
        proxy_freeze(proxy, true);
        int64_t end = clock_now_ns() + 5000 * NS_PER_MS; /* with the third that has gone: 0.89 of the ttl */
        until(end);
        proxy_freeze(proxy, false);
        until(end + 3500 * NS_PER_MS);
        must(pawl_check(lock));
    }
    must(pawl_verify(lock, 10000, &error));
    must(pawl_release(lock, 10000, &error));
}

static void test_all_connections_break(void **state) {
    (void)state;
    pawl_lock *lock;
    reopen(4000);
    must(take(far, "n", 10000, &lock));
    for (int i = 0; i < 3; i++) {
        proxy_cut(proxy, true);
        until(clock_now_ns() + 1400 * NS_PER_MS);
        proxy_cut(proxy, false);
        until(clock_now_ns() + 1400 * NS_PER_MS);
        must(pawl_check(lock));
    }
    free(server_redis(server.port,
                      "CLIENT KILL TYPE normal")); /* no SIGPIPE either: its disposition is the default here */
    must(pawl_release(lock, 2000, &error));
}

static void cut_once_it_waits(const pawl_event *event, const char *name, void *data) {
    (void)name, (void)data;
    if (event->type == PAWL_WAITING) proxy_cut(proxy, true);
}

/* Whoever held it when it was last heard of: at the end nobody knows, so that is no longer "busy". */
static void test_gone_while_it_waits(void **state) {
    (void)state;
    pawl_options options = PAWL_OPTIONS_INIT;
    char url[64];
    pawl_client *waits;
    pawl_lock *lock, *other;
    reopen(30000);
    snprintf(url, sizeof url, "redis://127.0.0.1:%d", proxy_port(proxy));
    options.observe = cut_once_it_waits;
    must(pawl_open(url, &options, &waits, &error));
    must(take(near, "n", 10000, &lock));
    int64_t start = clock_now_ns(), ran = ran_ns();
    assert_int_equal(take(waits, "n", 1500, &other), PAWL_EUNREACHABLE);
    assert_true(clock_now_ns() - start >= 1400 * NS_PER_MS && ran_since(ran) <= 4000);
    assert_non_null(strstr(error.text, "127.0.0.1"));
    proxy_cut(proxy, false);
    pawl_close(waits);
    must(pawl_release(lock, 10000, &error));
}

/* B10: nobody is in the way, so it is not "busy": the reason names times, and nothing is left behind. */
static void test_a_ttl_shorter_than_the_round_trip(void **state) {
    (void)state;
    pawl_lock *lock;
    reopen(300);
    proxy_delay(proxy, PROXY_TO_SERVER, 200);
    proxy_delay(proxy, PROXY_TO_CLIENT, 200);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(take(far, "n", i * 5000, &lock), PAWL_EUNREACHABLE);
        if (!strstr(error.text, "granted too late: the answer took ") || !strstr(error.text, "use a larger ttl"))
            fail_msg("%s", error.text);
    }
    must(take(near, "n", 5000, &lock));
    must(pawl_release(lock, 10000, &error));
}

/* Lost while the network was away; the next hold of the same name is renewed like any other. */
static void test_lost_and_taken_again(void **state) {
    (void)state;
    pawl_lock *lock;
    reopen(3000);
    must(take(far, "n", 10000, &lock));
    int64_t token = pawl_token(lock);
    struct pollfd lost = {.fd = pawl_lost_fd(lock), .events = POLLIN};
    proxy_cut(proxy, true);
    assert_int_equal(poll(&lost, 1, 10000), 1);
    proxy_cut(proxy, false);
    int code = pawl_release(lock, 10000, &error); /* the server may have kept it for the margin that we do not use */
    assert_true(code == PAWL_OK || code == PAWL_ELOST);
    must(take(far, "n", 10000, &lock));
    assert_true(pawl_token(lock) > token);
    until(clock_now_ns() + 6000 * NS_PER_MS);
    must(pawl_check(lock));
    must(pawl_release(lock, 10000, &error));
}

static void test_a_slow_network(void **state) {
    (void)state;
    pawl_lock *lock;
    reopen(3000);
    proxy_delay(proxy, PROXY_TO_SERVER, 100);
    proxy_delay(proxy, PROXY_TO_CLIENT, 100);
    must(take(far, "n", 10000, &lock));
    int64_t left = pawl_remaining_ms(lock);
    if (left > 3000 - 200 || left < 500) fail_msg("%lld ms left", (long long)left); /* counted from the sending */
    until(clock_now_ns() + 4000 * NS_PER_MS);
    must(pawl_check(lock));
    must(pawl_release(lock, 2000, &error));
    proxy_delay(proxy, PROXY_TO_SERVER, 700);
    proxy_delay(proxy, PROXY_TO_CLIENT, 700);
    reopen(1000);
    proxy_delay(proxy, PROXY_TO_CLIENT, 1100); /* longer than the ttl: never held */
    int code = take(far, "n", 6000, &lock);
    assert_true(code == PAWL_ETIMEOUT || code == PAWL_EUNREACHABLE);
}

static void test_a_late_duplicate(void **state) {
    (void)state;
    pawl_lock *lock, *next;
    must(take(far, "n", 10000, &lock));
    must(pawl_release(lock, 10000, &error));
    must(take(near, "n", 10000, &next));
    assert_true(proxy_replay(proxy)); /* the release, once more */
    must(pawl_verify(next, 10000, &error));
    must(pawl_release(next, 10000, &error));
}

static bool one_in_line(void *data) {
    (void)data;
    return server_redis_int(server.port, "ZCARD pawl:%%q:n") == 1;
}

static bool asked_anew(void *connections) { return proxy_connections(proxy) > *(int *)connections; }

/* Queueing up whose reply comes late, or is heard by the server twice, makes no second entry, and no dead one. */
static void test_queued_twice(void **state) {
    (void)state;
    pawl_lock *lock, *waiting;
    pawl_event event = PAWL_EVENT_INIT;
    must(take(far, "warm", 10000, &lock));
    must(pawl_release(lock, 10000, &error));
    must(take(near, "n", 10000, &lock));
    int connections = proxy_connections(proxy);
    proxy_delay(proxy, PROXY_TO_CLIENT, 1000);
    must(pawl_acquire_start(far, "n", NULL, NULL, &waiting, &error));
    assert_true(server_until(one_in_line, NULL, 30000)); /* and does not know it */
    proxy_cut(proxy, false);
    proxy_delay(proxy, PROXY_TO_CLIENT, 0);
    assert_true(server_until(asked_anew, &connections, 30000)); /* over another connection */
    proxy_replay(proxy);                                        /* its last question, once more */
    assert_true(server_until(one_in_line, NULL, 30000));
    must(pawl_release(lock, 10000, &error));
    struct pollfd p = {.fd = pawl_event_fd(far), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 30000), 1); /* the ttl is as long, and the entry of a dead one half a second */
    assert_int_equal(pawl_next_event(far, &event), 1);
    if (event.type != PAWL_GRANTED) fail_msg("event %d: %s", event.type, event.text);
    must(pawl_verify(waiting, 10000, &error));
    must(pawl_release(waiting, 10000, &error));
    must(take(near, "n", 10000, &lock)); /* nobody else is left in line */
    must(pawl_release(lock, 10000, &error));
    assert_int_equal(server_redis_int(server.port, "EXISTS pawl:n pawl:%%q:n"), 0);
}

static int64_t clock_of_server(void) { return server_redis_int(server.port, "EVAL return(redis.call('TIME')[1]+0) 0"); }

/* What the metrics say of the server's clock, in s, after its numbers were looked at. */
static double skew_told(void) {
    pawl_tokens tokens = PAWL_TOKENS_INIT;
    static char text[1 << 16];
    must(pawl_tokens_show(near, 10000, &tokens, &error));
    assert_true(pawl_metrics(text, sizeof text) < sizeof text);
    const char series[] = "pawl_clock_skew_seconds{node=\"127.0.0.1\"} ", *at = strstr(text, series);
    assert_non_null(at);
    return atof(at + sizeof series - 1);
}

static void test_the_servers_clock_steps(void **state) {
    (void)state;
    pawl_lock *lock, *next;
    reopen(4000);
    must(take(near, "n", 10000, &lock));
    int64_t before = clock_of_server();
    skew_set(&server, -3600 * 1000);
    int64_t after = clock_of_server();
    if (before - after < 3590 || before - after > 3610) fail_msg("the server does not see the shift");
    double skew = skew_told();
    if (skew < -3610 || skew > -3590) fail_msg("a skew of %f s is told", skew);
    until(clock_now_ns() + 5000 * NS_PER_MS);
    must(pawl_check(lock));
    int64_t left = server_redis_int(server.port, "PTTL pawl:n");
    assert_true(left > 0 && left <= 4000); /* a renewal puts it right */
    skew_set(&server, 3600 * 1000);        /* everything expires at once */
    must(take(far, "n", 10000, &next));
    assert_true(pawl_token(next) > pawl_token(lock));
    struct pollfd lost = {.fd = pawl_lost_fd(lock), .events = POLLIN};
    assert_int_equal(poll(&lost, 1, 3500), 1); /* told at its next renewal */
    assert_int_equal(pawl_check(lock), PAWL_ELOST);
    must(pawl_verify(next, 10000, &error));
    pawl_release(lock, 1000, &error);
    must(pawl_release(next, 10000, &error));
}

/* Nobody renews what was released without an answer: it is undone, or ends by itself. */
static void test_a_release_that_failed_is_the_end(void **state) {
    (void)state;
    pawl_lock *lock, *next;
    reopen(3000);
    must(take(far, "n", 10000, &lock));
    proxy_cut(proxy, true);
    assert_int_equal(pawl_release(lock, 300, &error), PAWL_EUNREACHABLE);
    int64_t left = server_redis_int(server.port, "PTTL pawl:n");
    assert_true(left <= 3000); /* and perhaps it is over already, on a slow machine */
    proxy_cut(proxy, false);
    int64_t start = ran_ns();
    must(take(near, "n", 30000, &next));
    if (ran_since(start) > 2 * 3000) fail_msg("free after %lld ms", (long long)ran_since(start));
    until(clock_now_ns() + 3500 * NS_PER_MS);
    must(pawl_verify(next, 10000, &error)); /* what comes late ends no other lock */
    must(pawl_release(next, 10000, &error));
}

/* A connection that stood is replaced by one that nobody answers: the time is kept there, too. */
static void test_connected_again_to_silence(void **state) {
    (void)state;
    pawl_lock *lock;
    must(take(far, "n", 10000, &lock));
    proxy_cut(proxy, false);
    proxy_freeze(proxy, true);
    for (int i = 0; i < 3; i++) {
        int64_t start = ran_ns();
        assert_int_equal(pawl_verify(lock, 500, &error), PAWL_EUNREACHABLE);
        if (ran_since(start) > 2000) fail_msg("took %lld ms", (long long)ran_since(start));
    }
    proxy_freeze(proxy, false);
    must(pawl_verify(lock, 10000, &error));
    must(pawl_release(lock, 10000, &error));
}

static void take_until_killed(void) {
    pawl_client *client;
    pawl_options options = PAWL_OPTIONS_INIT;
    options.ttl_ms = 3000;
    alarm(60);
    if (pawl_open(server.url, &options, &client, NULL)) _exit(1);
    for (int i = 0;; i++) {
        char name[16];
        pawl_lock *lock;
        snprintf(name, sizeof name, "n%d", i % 7);
        if (pawl_acquire(client, name, NULL, &lock, NULL) == PAWL_OK) pawl_release(lock, 1000, NULL);
    }
}

static bool none_is_held(void *data) {
    (void)data;
    return server_redis_int(server.port, "EXISTS pawl:n0 pawl:n1 pawl:n2 pawl:n3 pawl:n4 pawl:n5 pawl:n6") == 0;
}

/* Keys that no time will remove; the numbers stay, and are not counted. */
static int without_an_end(void) {
    char *keys = server_redis(server.port, "KEYS pawl:*"), *at = keys;
    int n = 0;
    for (char *key; (key = strsep(&at, "\n"));) {
        char *left = *key && strncmp(key, "pawl:%n", 7) != 0 ? server_redis(server.port, "PTTL %s", key) : NULL;
        n += left && strcmp(left, "-1") == 0;
        free(left);
    }
    free(keys);
    return n;
}

/* Killed at whatever moment: no key of a lock or of a queue is ever without an end. */
static void test_no_lock_is_without_an_end(void **state) {
    (void)state;
    free(server_redis(server.port, "SET pawl:mark x"));
    assert_int_equal(without_an_end(), 1); /* it is seen */
    free(server_redis(server.port, "DEL pawl:mark"));
    for (int i = 0; i < 40; i++) {
        pid_t pids[2];
        for (int j = 0; j < 2; j++) {
            pids[j] = fork();
            assert_true(pids[j] >= 0);
            if (pids[j] == 0) take_until_killed();
        }
        until(clock_now_ns() + (20 + i % 10) * NS_PER_MS + i * 70000);
        for (int j = 0; j < 2; j++) kill(pids[j], SIGKILL);
        for (int j = 0; j < 2; j++) assert_int_equal(waitpid(pids[j], NULL, 0), pids[j]);
        assert_int_equal(without_an_end(), 0);
    }
    assert_int_equal(server_redis_int(server.port, "EXISTS pawl:%%n"), 1); /* they took some */
    assert_true(server_until(none_is_held, NULL, 20000));                  /* a ttl of 3 s */
}

static void test_the_server_has_no_ear(void **state) {
    (void)state;
    pawl_client *client;
    pawl_lock *lock;
    char url[64];
    proxy_freeze(proxy, true);
    snprintf(url, sizeof url, "redis://127.0.0.1:%d", proxy_port(proxy));
    must(pawl_open(url, NULL, &client, &error));
    int64_t start = ran_ns();
    assert_int_equal(take(client, "n", 500, &lock), PAWL_EUNREACHABLE);
    if (ran_since(start) > 2000) fail_msg("took %lld ms", (long long)ran_since(start));
    assert_non_null(strstr(error.text, "did not answer in time ("));
    pawl_close(client);
    proxy_freeze(proxy, false);
}

#define CASE(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)

int main(void) {
    signal(SIGPIPE, SIG_DFL);
    if (getenv("ONLY")) cmocka_set_test_filter(getenv("ONLY"));
    const struct CMUnitTest tests[] = {
        CASE(the_reply_is_lost),
        CASE(a_silent_server),
        CASE(a_host_that_vanished),
        CASE(a_hiccup),
        CASE(all_connections_break),
        CASE(lost_and_taken_again),
        CASE(a_slow_network),
        CASE(a_late_duplicate),
        CASE(the_servers_clock_steps),
        CASE(the_server_has_no_ear),
        CASE(gone_while_it_waits),
        CASE(a_ttl_shorter_than_the_round_trip),
        CASE(queued_twice),
        CASE(a_release_that_failed_is_the_end),
        CASE(connected_again_to_silence),
        CASE(no_lock_is_without_an_end),
    };
    return cmocka_run_group_tests_name("redis network", tests, NULL, NULL);
}
