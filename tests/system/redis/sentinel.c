/* sentinel.c: one primary, two replicas, three sentinels: locks through failovers, planned and not, with the old
 * primary alive, and the texts when something is wrong with the sentinels. */
#include "clock.h"
#include "crowd.h"
#include "proxy.h"
#include "ran.h"
#include "server.h"
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct server redis[3], sentinel[3];
static pawl_client *client;
static pawl_error error = PAWL_ERROR_INIT;
static char url[256];

#define must(call)                                                                                                     \
    do {                                                                                                               \
        int code_ = (call);                                                                                            \
        if (code_) fail_msg("%s: %d %s", #call, code_, error.text);                                                    \
    } while (0)

static int primary_port(void) {
    char *text = server_redis(sentinel[0].port, "SENTINEL GET-MASTER-ADDR-BY-NAME mymaster");
    char *line = text ? strchr(text, '\n') : NULL;
    int port = line ? atoi(line + 1) : -1;
    free(text);
    return port;
}

static bool has_number(int port, const char *command, const char *key, int least) {
    char *text = server_redis(port, "%s", command), *at = text ? strstr(text, key) : NULL;
    bool ok = at && atoi(at + strlen(key)) >= least;
    free(text);
    return ok;
}

/* Two replicas in step, and every sentinel knows them and the other two. */
static bool settled(void *data) {
    (void)data;
    for (int i = 0; i < 3; i++)
        if (!has_number(sentinel[i].port, "SENTINEL MASTER mymaster", "num-slaves\n", 2) ||
            !has_number(sentinel[i].port, "SENTINEL MASTER mymaster", "num-other-sentinels\n", 2))
            return false;
    return has_number(redis[0].port, "INFO replication", "connected_slaves:", 2);
}

static int setup(void **state) {
    (void)state;
    char follow[32];
    server_start_redis(&redis[0], NULL);
    snprintf(follow, sizeof follow, "127.0.0.1 %d", redis[0].port);
    const char *options[] = {"--replicaof", follow, NULL};
    for (int i = 1; i < 3; i++) server_start_redis(&redis[i], options);
    for (int i = 0; i < 3; i++) server_start_sentinel(&sentinel[i], redis[0].port, "");
    assert_true(server_until(settled, NULL, 20000));
    snprintf(url, sizeof url, "redis+sentinel://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d/mymaster", sentinel[0].port,
             sentinel[1].port, sentinel[2].port);
    error = (pawl_error)PAWL_ERROR_INIT;
    pawl_options options_of_client = PAWL_OPTIONS_INIT;
    options_of_client.ttl_ms = 3000;
    must(pawl_open(url, &options_of_client, &client, &error));
    return 0;
}

static int teardown(void **state) {
    (void)state;
    pawl_close(client);
    for (int i = 0; i < 3; i++) server_stop(&sentinel[i]);
    for (int i = 0; i < 3; i++) server_stop(&redis[i]);
    return 0;
}

static bool moved(void *data) {
    (void)data;
    int port = primary_port();
    return port > 0 && port != redis[0].port;
}

static int64_t turn(void) {
    pawl_lock *lock;
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    options.wait_ms = 20000;
    must(pawl_acquire(client, "n", &options, &lock, &error));
    int64_t token = pawl_token(lock);
    pawl_release(lock, 10000, &error);
    return token;
}

static pawl_lock *hold(void) {
    pawl_lock *lock;
    must(pawl_acquire(client, "n", NULL, &lock, &error));
    return lock;
}

static void test_the_primary_dies(void **state) {
    (void)state;
    int64_t before = turn();
    server_kill(&redis[0], SIGKILL);
    int64_t start = clock_now_ns(), after = 0;
    /* a client whose service is away says so in time; once the sentinels agreed it works again */
    while (after == 0 && clock_now_ns() - start < 30 * NS_PER_S) {
        pawl_lock *lock;
        pawl_acquire_options options = PAWL_ACQUIRE_INIT;
        options.wait_ms = 1000;
        int64_t asked = ran_ns();
        int code = pawl_acquire(client, "n", &options, &lock, &error);
        assert_true(ran_ns() - asked < 2500 * NS_PER_MS);
        if (code == PAWL_OK) {
            after = pawl_token(lock);
            must(pawl_release(lock, 10000, &error));
        } else if (code != PAWL_EUNREACHABLE) {
            fail_msg("%d %s", code, error.text);
        } else {
            poll(NULL, 0, 50);
        }
    }
    print_message("# works again after %lld ms, token %lld -> %lld\n",
                  (long long)((clock_now_ns() - start) / NS_PER_MS), (long long)before, (long long)after);
    assert_true(after > before);
    assert_true(turn() > after);
}

static bool all_queued(void *data) {
    (void)data;
    return server_redis_int(redis[0].port, "ZCARD pawl:%%q:n") == 4;
}

static void test_waiters_move_over(void **state) {
    (void)state;
    struct crowd *crowd = crowd_new();
    struct crowd_options o = {.url = url, .name = "n", .ttl_ms = 3000, .hold_ms = 20};
    pawl_lock *lock = hold();
    int64_t token = pawl_token(lock);
    for (int i = 0; i < 4; i++) crowd_add(crowd, &o);
    assert_true(server_until(all_queued, NULL, 20000));
    server_kill(&redis[0], SIGKILL);
    assert_true(server_until(moved, NULL, 30000));
    pawl_release(lock, 5000, NULL); /* kept if it was replicated, else lost */
    assert_true(crowd_granted(crowd, 4, 20000));
    assert_int_equal(crowd->overlaps, 0);
    for (int i = 0; i < 4; i++) assert_true(crowd->member[i].token > token);
    crowd_end(crowd);
}

/* The old primary is only stopped, and comes back as a primary for some ten seconds: whoever still talks to it is told
 * by a sentinel at the next renewal, and its tokens stay below those of the new one. */
static void test_the_old_primary_lives_on(void **state) {
    (void)state;
    pawl_client *zombies;
    pawl_lock *lock;
    char direct[64];
    snprintf(direct, sizeof direct, "redis://127.0.0.1:%d", redis[0].port);
    must(pawl_open(direct, NULL, &zombies, &error));
    must(pawl_acquire(zombies, "z", NULL, &lock, &error));
    must(pawl_release(lock, 10000, &error));
    int64_t before = turn();
    server_kill(&redis[0], SIGSTOP);
    assert_true(server_until(moved, NULL, 30000));
    int64_t promoted = turn();
    assert_true(promoted > before);
    server_kill(&redis[0], SIGCONT);
    int asked = 0;
    for (int i = 0; i < 100; i++) {
        if (pawl_acquire(zombies, "z", NULL, &lock, &error) != PAWL_OK) break;
        assert_true(pawl_token(lock) < promoted);
        asked++;
        pawl_release(lock, 10000, &error);
        assert_true(turn() > promoted);
    }
    print_message("# the old primary granted %d times, always below\n", asked);
    pawl_close(zombies);
}

struct holding {
    pawl_lock *lock;
};
static bool lost(void *data) { return pawl_check(((struct holding *)data)->lock) == PAWL_ELOST; }

/* A planned failover of a healthy primary: it stays writable, but the holder must not go on there. */
static void test_a_planned_failover(void **state) {
    (void)state;
    struct holding h = {hold()};
    int64_t token = pawl_token(h.lock);
    char *reply = server_redis(sentinel[0].port, "SENTINEL FAILOVER mymaster");
    assert_string_equal(reply, "OK");
    free(reply);
    assert_true(server_until(moved, NULL, 30000));
    /* what was replicated is renewed at the new primary; what was not is lost: nothing in between */
    int64_t end = clock_now_ns() + 5 * NS_PER_S;
    while (clock_now_ns() < end && !lost(&h)) poll(NULL, 0, 100);
    bool was_lost = lost(&h);
    print_message("# the holder %s\n", was_lost ? "lost the lock" : "kept the lock");
    if (!was_lost) {
        char *value = server_redis(primary_port(), "GET pawl:n");
        assert_true(value && atoll(value) == token);
        free(value);
    }
    pawl_release(h.lock, 10000, &error);
    assert_true(turn() > token);
}

static void expect(const char *text, int code, const char *words) {
    pawl_client *other;
    must(pawl_open(text, NULL, &other, &error));
    int got = pawl_connect(other, 10000, &error);
    if (got != code || !strstr(error.text, words)) fail_msg("%s: %d %s", text, got, error.text);
    pawl_close(other);
}

static void test_what_goes_wrong(void **state) {
    (void)state;
    char text[256];
    int nobody = server_free_port();
    snprintf(text, sizeof text, "redis+sentinel://127.0.0.1:%d/other", sentinel[0].port);
    expect(text, PAWL_EINVALID, "knows no master 'other'");
    snprintf(text, sizeof text, "redis+sentinel://127.0.0.1:%d/mymaster", redis[0].port);
    expect(text, PAWL_EINVALID, "is it a sentinel?");
    snprintf(text, sizeof text, "redis+sentinel://127.0.0.1:%d/mymaster", nobody);
    expect(text, PAWL_EUNREACHABLE, "refused");
    snprintf(text, sizeof text, "redis+sentinel://127.0.0.1:%d,127.0.0.1:%d/mymaster", nobody, sentinel[1].port);
    expect(text, PAWL_OK, "");
    snprintf(text, sizeof text, "redis+sentinel://127.0.0.1:%d/mymaster?sentinel-password=x", sentinel[0].port);
    expect(text, PAWL_EDENIED, "sentinel");
    server_kill(&sentinel[0], SIGSTOP); /* the first is silent: the others are asked in time */
    expect(url, PAWL_OK, "");
    server_kill(&sentinel[0], SIGCONT);
    server_kill(&redis[0], SIGSTOP);
    snprintf(text, sizeof text, "redis+sentinel://127.0.0.1:%d/mymaster", sentinel[1].port);
    char words[64];
    snprintf(words, sizeof words, "says that 'mymaster' is at 127.0.0.1:%d", redis[0].port);
    expect(text, PAWL_EUNREACHABLE, words); /* the culprit is named within the time */
    server_kill(&redis[0], SIGCONT);
}

/* Credentials of a sentinel are its own; those of the URL are the servers'. */
static void test_a_sentinel_with_a_password(void **state) {
    (void)state;
    struct server guarded = {0};
    char text[256];
    server_start_sentinel(&guarded, redis[0].port, "requirepass sesame");
    snprintf(text, sizeof text, "redis+sentinel://127.0.0.1:%d/mymaster", guarded.port);
    expect(text, PAWL_EDENIED, "wants a password");
    snprintf(text, sizeof text, "redis+sentinel://127.0.0.1:%d/mymaster?sentinel-password=sesame", guarded.port);
    expect(text, PAWL_OK, "");
    snprintf(text, sizeof text, "redis+sentinel://127.0.0.1:%d/mymaster/2?sentinel-password=wrong", guarded.port);
    expect(text, PAWL_EDENIED, "password is wrong");
    assert_null(strstr(error.text, "sesame"));
    server_stop(&guarded);
}

/* Where a sentinel names an address that only its own network knows. */
static void test_an_address_map(void **state) {
    (void)state;
    struct proxy *proxy = proxy_start(redis[0].port);
    char text[512];
    snprintf(text, sizeof text, "redis+sentinel://127.0.0.1:%d/mymaster?map=10.9.9.9:1>h:2,127.0.0.1:%d>localhost:%d",
             sentinel[0].port, redis[0].port, proxy_port(proxy));
    expect(text, PAWL_OK, "");
    assert_int_equal(proxy_connections(proxy), 1);
    proxy_stop(proxy);
}

#define CASE(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)

int main(int argc, char **argv) {
    crowd_main(argc, argv);
    const struct CMUnitTest tests[] = {
        CASE(the_primary_dies),   CASE(waiters_move_over), CASE(the_old_primary_lives_on),
        CASE(a_planned_failover), CASE(what_goes_wrong),   CASE(a_sentinel_with_a_password),
        CASE(an_address_map),
    };
    return cmocka_run_group_tests_name("redis sentinel", tests, NULL, NULL);
}
