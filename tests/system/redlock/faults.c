/* faults.c: instances that are down, hung, empty, too few or of the wrong kind, and what is said about it. */
#include "clock.h"
#include "ran.h"
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
#include <unistd.h>

#include <cmocka.h>

static void must_refuse(int code, const char *part, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void must_refuse(int code, const char *part, const char *format, ...) {
    char text[400];
    pawl_client *client = NULL;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    error = (pawl_error)PAWL_ERROR_INIT;
    int got = pawl_open(text, NULL, &client, &error);
    if (!got) got = pawl_connect(client, 5000, &error);
    pawl_close(client);
    if (got != code) fail_msg("%s: %d %s", text, got, error.text);
    says(part);
}

static void test_refused_setups(void **state) {
    (void)state;
    int a = three[0].port, b = three[1].port, c = three[2].port;
    must_refuse(PAWL_EUNSAFE, "three independent", "redlock://127.0.0.1:%d,127.0.0.1:%d", a, b);
    must_refuse(PAWL_EUNSAFE, "even number", "redlock://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:1", a, b, c);
    must_refuse(PAWL_EUNSAFE, "more than half", "redlock://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d?quorum=1", a, b, c);
    must_refuse(PAWL_EUNSAFE, "named twice", "redlock://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d", a, b, a);
    must_refuse(PAWL_EUNSAFE, "same Redis instance", "redlock://127.0.0.1:%d,127.0.0.1:%d,localhost:%d", a, b, a);
    must_refuse(PAWL_EINVALID, "timeout", "redlock://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d?timeout=0", a, b, c);
    must_refuse(PAWL_EINVALID, "write it as redlock://HOST,HOST,HOST", "redlock:redlock://127.0.0.1:%d", a);
    must_refuse(PAWL_EINVALID, "nonsense", "redlock://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d?nonsense=1", a, b, c);
    must_refuse(PAWL_OK, "", "redlock://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:1?quorum=3", a, b, c);
    free(server_redis(c, "REPLICAOF 127.0.0.1 %d", a));
    must_refuse(PAWL_EUNSAFE, "is a replica", "redlock://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d", a, b, c);
}

/* B59, and B11: no quorum is not "busy", and busy is not "no quorum". */
static void test_quorum_down(void **state) {
    (void)state;
    pawl_client *a = client_new(), *b = client_new();
    pawl_lock *lock = must_take(a, "busy"), *other = NULL;
    assert_int_equal(take(b, "busy", 1500, &other), PAWL_ETIMEOUT);
    says("busy, held by");
    server_kill(&three[2], SIGKILL);
    assert_int_equal(take(b, "busy", 1500, &other), PAWL_ETIMEOUT); /* a minority down: still busy */
    says("busy, held by");
    must_release(lock);
    must_release(must_take(b, "busy"));
    server_kill(&three[1], SIGKILL);
    for (int64_t wait_ms = 0; wait_ms <= 1500; wait_ms += 1500) {
        pawl_client *fresh = client_new();
        int64_t start = ran_ns();
        assert_int_equal(take(wait_ms ? b : fresh, "busy", wait_ms, &other), PAWL_EUNREACHABLE);
        assert_true(ran_since(start) < 5000 + wait_ms);
        says("no quorum: 1 of 3");
        char node[32];
        for (int i = 1; i < N; i++) {
            snprintf(node, sizeof node, "127.0.0.1:%d", proxy_port(ways[i]));
            says(node);
        }
        pawl_close(fresh);
    }
    server_restart(&three[1]);
    server_restart(&three[2]); /* both empty: two of three have forgotten */
    assert_int_equal(take(b, "busy", 0, &other), PAWL_EUNSAFE);
    says("lost its memory");
    says("pawl init --floor");
    pawl_close(a);
    pawl_close(b);
}

/* B58: what a lost vote got is given back everywhere, also where the answer came too late. */
static void test_nothing_is_left_behind(void **state) {
    (void)state;
    pawl_client *a = client_new();
    pawl_lock *lock = NULL;
    must_release(must_take(a, "left"));
    for (int i = 1; i < N; i++) free(server_redis(three[i].port, "SET pawl:left foreign"));
    proxy_delay(ways[0], PROXY_TO_CLIENT, 300);
    assert_int_equal(take(a, "left", 0, &lock), PAWL_EBUSY);
    int64_t end = clock_after_ms(clock_now_ns(), 5000), start = ran_ns();
    int64_t there = 1;
    while (there && clock_now_ns() < end) there = server_redis_int(three[0].port, "EXISTS pawl:left");
    assert_int_equal(there, 0);
    assert_true(ran_since(start) <= 1000);
    for (int i = 1; i < N; i++) assert_int_equal(server_redis_int(three[i].port, "EXISTS pawl:left"), 1);
    pawl_close(a);
}

/* One of the instances is slower than the time limit of one, which all of them must keep up with at a first start. */
static void test_a_slow_first_start(void **state) {
    (void)state;
    pawl_client *a = client_new();
    proxy_delay(ways[1], PROXY_TO_CLIENT, 200);
    must_release(must_take(a, "first"));
    proxy_delay(ways[1], PROXY_TO_CLIENT, 0);
    for (int i = 0; i < N; i++) free(server_redis(three[i].port, "FLUSHALL"));
    pawl_client *b = client_new();
    if (pawl_connect(b, 10000, &error)) fail_msg("%s", error.text);
    server_kill(&three[2], SIGSTOP); /* it was there, and does not answer: no quorum yet, and nothing is unsafe */
    pawl_lock *lock;
    assert_int_equal(take(b, "first", 0, &lock), PAWL_EUNREACHABLE);
    server_kill(&three[2], SIGCONT);
    must_release(must_take(b, "first"));
    pawl_close(a);
    pawl_close(b);
}

/* B10: all granted it, but the answers took the ttl. */
static void test_too_late(void **state) {
    (void)state;
    pawl_client *a = client_of(url, 1000, NULL, NULL);
    pawl_lock *lock = NULL;
    must_release(must_take(a, "late"));
    for (int i = 0; i < N; i++) proxy_delay(ways[i], PROXY_TO_CLIENT, 1020);
    assert_int_equal(take(a, "late", 0, &lock), PAWL_EUNREACHABLE);
    says("ttl of 1000 ms");
    says("margin");
    says("use a larger ttl");
    const char *took = strstr(error.text, "the answer took ");
    assert_non_null(took);
    assert_in_range(atoi(took + strlen("the answer took ")), 1020, 60000);
    for (int i = 0; i < N; i++) proxy_delay(ways[i], PROXY_TO_CLIENT, 0);
    pawl_close(a);
    for (int i = 0; i < N; i++) assert_int_equal(server_redis_int(three[i].port, "EXISTS pawl:late"), 0);
}

/* What is given back is not heard of either, within so short a ttl: the reason is told all the same, and that it is the
 * ttl, not the service. */
static void test_too_late_and_no_word_of_the_undo(void **state) {
    (void)state;
    pawl_client *a = client_of(url, 300, NULL, NULL);
    pawl_lock *lock = NULL;
    must_release(must_take(a, "late"));
    for (int i = 0; i < N; i++) proxy_delay(ways[i], PROXY_TO_CLIENT, 500);
    assert_int_equal(take(a, "late", 4000, &lock), PAWL_EUNREACHABLE);
    says("granted too late");
    says("ttl of 300 ms");
    pawl_close(a);
}

/* What is left is less than a command may need to end: it is not started only to be ended at once. */
static void test_too_late_for_a_command(void **state) {
    (void)state;
    char command[600], file[128];
    pawl_client *a = client_new();
    must_release(must_take(a, "late"));
    pawl_close(a);
    for (int i = 0; i < N; i++) proxy_delay(ways[i], PROXY_TO_CLIENT, 200);
    snprintf(file, sizeof file, "%s/started", three[0].dir);
    snprintf(command, sizeof command, "'%s' run -n -t 320ms -u '%s' late -- touch %s 2>&1", getenv("PAWL_BIN"), url,
             file);
    FILE *output = popen(command, "r");
    error.text[fread(error.text, 1, sizeof error.text - 1, output)] = 0;
    assert_int_equal(pclose(output), 120 << 8);
    says("granted too late");
    assert_int_equal(access(file, F_OK), -1);
}

static int64_t hundred_rounds(pawl_client *a) {
    int64_t start = ran_ns();
    for (int i = 0; i < 100; i++) must_release(must_take(a, "hung"));
    return ran_since(start);
}

/* A minority that is stopped costs one time limit (50 ms here) once, and a down one nothing. */
static void test_hung_minority(void **state) {
    (void)state;
    pawl_client *a = client_new(), *b = client_new();
    pawl_lock *lock = NULL;
    must_release(must_take(a, "hung"));
    must_release(must_take(b, "hung"));
    int64_t usual = hundred_rounds(a);
    server_kill(&three[1], SIGSTOP);
    lock = must_take(a, "hung");
    for (int i = 0; i < 2; i++) {
        pawl_lock *other = NULL;
        int64_t start = ran_ns();
        assert_int_equal(take(b, "hung", 0, &other), PAWL_EBUSY);
        assert_true(ran_since(start) < 2000);
    }
    must_release(lock);
    int64_t took = hundred_rounds(a);
    if (took > 2 * usual + 100 * 25)
        fail_msg("100 rounds took %lld ms, beside a hung instance %lld", (long long)usual, (long long)took);
    server_kill(&three[1], SIGCONT);
    pawl_close(a);
    pawl_close(b);
}

static bool all_at(const char *name, int64_t token) {
    bool all = true;
    for (int i = 0; i < N; i++) all = all && server_redis_int(three[i].port, "GET pawl:%%c:%s", name) == token;
    return all;
}

/* Decided by the first two of three: the third may lag behind, but it is heard, and asked, for ever. */
static void test_all_take_part(void **state) {
    (void)state;
    pawl_client *a = client_new();
    int64_t end = clock_after_ms(clock_now_ns(), 20000), token = 0;
    for (int i = 0; i < 1000 || (!all_at("part", token) && clock_now_ns() < end); i++) {
        pawl_lock *lock = must_take(a, "part");
        token = pawl_token(lock);
        must_release(lock);
        if (i >= 1000) poll(NULL, 0, 10);
    }
    assert_true(all_at("part", token));
    pawl_close(a);
}

static int64_t scripts_run(void) {
    int64_t n = 0;
    for (int i = 0; i < N; i++) {
        char *stats = server_redis(three[i].port, "INFO commandstats"), *at;
        for (const char *const *word = (const char *const[]){"cmdstat_eval:calls=", "cmdstat_evalsha:calls=", NULL};
             *word; word++)
            if (stats && (at = strstr(stats, *word))) n += atoll(at + strlen(*word));
        free(stats);
    }
    return n;
}

/* LOCK and RELEASE, and hardly ever a SEAL: also where clients take turns, whose hints differ. */
static void test_one_round_trip(void **state) {
    (void)state;
    enum { TURNS = 500 };
    pawl_client *a[2] = {client_new(), client_new()};
    for (int i = 0; i < 2; i++) must_release(must_take(a[i], "trip"));
    for (int clients = 1; clients <= 2; clients++) {
        int64_t before = scripts_run();
        for (int i = 0; i < TURNS; i++) must_release(must_take(a[i % clients], "trip"));
        int64_t each = 2 * N, most = TURNS * each + TURNS * N / (clients == 1 ? 100 : 5);
        if (scripts_run() - before > most)
            fail_msg("%d turns of %d clients took %lld scripts", TURNS, clients, (long long)(scripts_run() - before));
    }
    for (int i = 0; i < 2; i++) pawl_close(a[i]);
}

static int64_t stat_of(int i, const char *section, const char *word) {
    char *stats = server_redis(three[i].port, "INFO %s", section), *at = stats ? strstr(stats, word) : NULL;
    int64_t n = at ? atoll(at + strlen(word)) : 0;
    free(stats);
    return n;
}

/* An instance forgot its scripts (SCRIPT FLUSH; by itself from 7.4 on), and nobody waits for what it says: it gives the
 * lock back all the same, and is told the scripts again. */
static void test_scripts_forgotten(void **state) {
    (void)state;
    pawl_client *a = client_of(url, 600000, NULL, NULL);
    int64_t there = 1;
    for (int i = 0; i < 2; i++) { /* it has all of them */
        pawl_lock *lock = must_take(a, "forgotten");
        if (pawl_verify(lock, 10000, &error)) fail_msg("%s", error.text);
        must_release(lock);
    }
    pawl_lock *lock = must_take(a, "forgotten");
    int64_t end = clock_after_ms(clock_now_ns(), 30000);
    while (!server_redis_int(three[2].port, "EXISTS pawl:forgotten") && clock_now_ns() < end) poll(NULL, 0, 10);
    proxy_delay(ways[2], PROXY_TO_CLIENT, 1000);
    free(server_redis(three[2].port, "SCRIPT FLUSH"));
    int64_t before = stat_of(2, "commandstats", "cmdstat_eval:calls="), after = before;
    for (end = clock_after_ms(clock_now_ns(), 30000); after == before && clock_now_ns() < end; poll(NULL, 0, 100)) {
        if (pawl_verify(lock, 10000, &error)) fail_msg("%s", error.text);
        after = stat_of(2, "commandstats", "cmdstat_eval:calls=");
    }
    assert_true(after > before);
    free(server_redis(three[2].port, "SCRIPT FLUSH"));
    must_release(lock);
    for (end = clock_after_ms(clock_now_ns(), 30000); there && clock_now_ns() < end; poll(NULL, 0, 10))
        there = server_redis_int(three[2].port, "EXISTS pawl:forgotten");
    assert_int_equal(there, 0);
    proxy_delay(ways[2], PROXY_TO_CLIENT, 0);
    pawl_close(a);
}

static int count(const pawl_entry *entry, void *data) {
    (void)entry;
    ++*(int *)data;
    return 0;
}

/* Nothing is asked for by the name of a script that the instance has not got, whatever is asked in whatever order. */
static void test_each_script_is_sent_first(void **state) {
    (void)state;
    int entries = 0;
    pawl_tokens tokens = PAWL_TOKENS_INIT;
    pawl_client *a = client_new();
    if (pawl_inspect(a, "first", 10000, count, &entries, &error)) fail_msg("%s", error.text);
    if (pawl_inspect(a, NULL, 10000, count, &entries, &error)) fail_msg("%s", error.text);
    pawl_lock *lock = must_take(a, "first");
    if (pawl_inspect(a, "first", 10000, count, &entries, &error)) fail_msg("%s", error.text);
    if (pawl_verify(lock, 10000, &error)) fail_msg("%s", error.text);
    if (pawl_tokens_show(a, 10000, &tokens, &error)) fail_msg("%s", error.text);
    must_release(lock);
    for (int i = 0; i < N; i++) assert_int_equal(stat_of(i, "errorstats", "errorstat_NOSCRIPT:count="), 0);
    pawl_close(a);
}

/* examples/redlock.c, as a user runs it. */
static void test_example(void **state) {
    (void)state;
    char command[512], line[2][128] = {"", ""};
    long long token[2] = {0, 0};
    snprintf(command, sizeof command, REDLOCK_EXAMPLE " %s 100", url);
    FILE *output = popen(command, "r");
    for (int i = 0; i < 2; i++)
        if (fgets(line[i], sizeof line[i], output)) sscanf(line[i], "turn %*d: token %lld", &token[i]);
    assert_int_equal(pclose(output), 0);
    assert_true(token[0] > 0 && token[1] > token[0]);
}

/* The holder hears of a lost quorum before its lock can end. */
static void test_quorum_loss_is_told_in_time(void **state) {
    (void)state;
    struct seen seen = {0};
    pawl_client *a = client_of(url, 1500, observe, &seen);
    pawl_lock *lock = must_take(a, "told");
    int64_t start = ran_ns();
    server_kill(&three[0], SIGSTOP);
    server_kill(&three[1], SIGKILL);
    struct pollfd p = {.fd = pawl_lost_fd(lock), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 10000), 1);
    assert_true(ran_since(start) <= 1500 + 200);
    assert_int_equal(pawl_check(lock), PAWL_ELOST);
    server_kill(&three[0], SIGCONT);
    pawl_release(lock, 0, NULL);
    pawl_close(a);
}

static void *release_it(void *data) {
    int *code = malloc(sizeof *code);
    *code = pawl_release(data, 60000, &error);
    return code;
}

/* Every instance did it, and no answer comes: asked again on other connections they have nothing any more, which is no
 * lock that was lost. */
static void test_released_and_no_word_of_it(void **state) {
    (void)state;
    pthread_t thread;
    void *code;
    pawl_client *a = client_of(url, 600000, NULL, NULL);
    pawl_lock *lock = must_take(a, "unheard");
    for (int i = 0; i < N; i++) proxy_drop(ways[i], PROXY_TO_CLIENT, true);
    assert_int_equal(pthread_create(&thread, NULL, release_it, lock), 0);
    int64_t start = clock_now_ns();
    for (int i = 0; i < N; i++)
        while (server_redis_int(three[i].port, "EXISTS pawl:unheard") != 0) {
            assert_true(ms_since(start) < 30000);
            poll(NULL, 0, 5);
        }
    for (int i = 0; i < N; i++) proxy_drop(ways[i], PROXY_TO_CLIENT, false);
    for (int i = 0; i < N; i++) proxy_cut(ways[i], false);
    assert_int_equal(pthread_join(thread, &code), 0);
    if (*(int *)code) fail_msg("%s", error.text);
    free(code);
    must_release(must_take(a, "unheard"));
    pawl_close(a);
}

/* The rights that docs/redlock.md names are enough: first start, waiting, handing over, looking, seeding. */
static void test_rights(void **state) {
    (void)state;
    static const char rights[] = "ACL SETUSER app on >secret ~pawl:* &pawl:* +info +evalsha +eval +time +get +mget "
                                 "+getrange +set +setrange +del "
                                 "+pexpire +pttl +zadd +zrem +zrange +zrank +publish +subscribe +scan";
    char as_app[300];
    int entries = 0;
    for (int i = 0; i < N; i++) free(server_redis(three[i].port, "%s", rights));
    snprintf(as_app, sizeof as_app, "redlock://app:secret@%s", url + strlen("redlock://"));
    pawl_client *a = client_of(as_app, 5000, NULL, NULL), *b = client_of(as_app, 5000, NULL, NULL);
    pawl_lock *lock = must_take(a, "rights"), *next;
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    if (pawl_acquire_start(b, "rights", &options, NULL, &next, &error)) fail_msg("%s", error.text);
    int64_t start = clock_now_ns();
    while (entries < 2 && ms_since(start) < 20000) {
        entries = 0;
        if (pawl_inspect(a, NULL, 5000, count, &entries, &error)) fail_msg("%s", error.text);
    }
    assert_int_equal(entries, 2); /* one holds, one waits */
    if (pawl_verify(lock, 5000, &error)) fail_msg("%s", error.text);
    start = ran_ns();
    must_release(lock);
    struct pollfd p = {.fd = pawl_event_fd(b), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 10000), 1);
    pawl_event event = PAWL_EVENT_INIT;
    while (pawl_next_event(b, &event) == 1 && event.type != PAWL_GRANTED) {
    }
    assert_int_equal(event.type, PAWL_GRANTED);
    assert_true(ran_since(start) < 2000); /* told, not found out */
    must_release(next);
    server_restart(&three[2]);
    free(server_redis(three[2].port, "%s", rights));
    start = clock_now_ns();
    while (!is_seeded(2) && ms_since(start) < 20000) must_release(must_take(a, "rights"));
    assert_true(is_seeded(2));
    pawl_close(a);
    pawl_close(b);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, three_start, three_stop)
    const struct CMUnitTest tests[] = {
        TEST(test_refused_setups),
        TEST(test_quorum_down),
        TEST(test_nothing_is_left_behind),
        TEST(test_a_slow_first_start),
        TEST(test_too_late),
        TEST(test_too_late_and_no_word_of_the_undo),
        TEST(test_released_and_no_word_of_it),
        TEST(test_too_late_for_a_command),
        TEST(test_hung_minority),
        TEST(test_all_take_part),
        TEST(test_one_round_trip),
        TEST(test_scripts_forgotten),
        TEST(test_each_script_is_sent_first),
        TEST(test_example),
        TEST(test_quorum_loss_is_told_in_time),
        TEST(test_rights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
