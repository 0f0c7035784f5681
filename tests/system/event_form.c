/* event_form.c: 10,000 locks from one epoll loop under RLIMIT_NOFILE 256: all granted, no call keeps the loop over 5
 * ms, and when all are lost at once, each loss is told exactly once.
 *
 * The bar of 5 ms is about pawl, not about what else runs on the machine: a call during which a thread of ours was
 * taken off its core does not count, and the best of three tries does. */
#include "clock.h"
#include "measure.h"
#include "pawl.h"
#include "server.h"
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

enum { LOCKS = 10000, BATCH = 64, TRIES = 3 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define BAR_NS (50 * NS_PER_MS) /* a sanitizer is no measure of speed */
#else
#define BAR_NS (5 * NS_PER_MS)
#endif

struct one {
    pawl_lock *lock;
    int granted, lost, others;
    int64_t token;
};
struct loop {
    pawl_client *client;
    int poll;
    struct one *all;
    int started, granted, lost;
    int64_t longest; /* call, in ns */
    const char *longest_call;
};

static int64_t switched(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_nivcsw;
}

#define TIMED(loop, call)                                                                                              \
    do {                                                                                                               \
        int64_t switched_ = switched(), begin_ = clock_now_ns();                                                       \
        call;                                                                                                          \
        int64_t took_ = clock_now_ns() - begin_;                                                                       \
        if (took_ > (loop)->longest && switched() == switched_) {                                                      \
            (loop)->longest = took_;                                                                                   \
            (loop)->longest_call = #call;                                                                              \
        }                                                                                                              \
    } while (0)

static void start_some(struct loop *l, const pawl_acquire_options *options) {
    pawl_error error = PAWL_ERROR_INIT;
    for (int i = 0; i < BATCH && l->started < LOCKS; i++, l->started++) {
        char name[32];
        struct one *one = &l->all[l->started];
        int r;
        snprintf(name, sizeof name, "lock:%d", l->started);
        TIMED(l, r = pawl_acquire_start(l->client, name, options, one, &one->lock, &error));
        if (r) fail_msg("%s: %s", name, error.text);
    }
}

static void read_events(struct loop *l) {
    pawl_event event = PAWL_EVENT_INIT;
    for (;;) {
        int got;
        TIMED(l, got = pawl_next_event(l->client, &event));
        if (!got) return;
        struct one *one = event.user;
        assert_ptr_equal(event.lock, one->lock);
        if (event.type == PAWL_GRANTED) {
            l->granted++;
            one->granted++;
            one->token = event.token;
            assert_int_equal(pawl_token(one->lock), event.token);
        } else if (event.type == PAWL_LOST) {
            l->lost++;
            one->lost++;
            assert_int_equal(event.token, one->token);
            assert_int_equal(pawl_check(one->lock), PAWL_ELOST);
        } else if (event.type == PAWL_DOUBT || event.type == PAWL_DOUBT_OVER) {
            one->others++;
        } else {
            fail_msg("event %d, code %d: %s", event.type, event.code, event.text);
        }
    }
}

/* Until *what is at least `want`; with start, new requests go out between the events. */
static void run_until(struct loop *l, const int *what, int want, int64_t ms, const pawl_acquire_options *start) {
    int64_t until = clock_after_ms(clock_now_ns(), ms);
    struct epoll_event event;
    while (*what < want && clock_now_ns() < until) {
        if (start) start_some(l, start);
        int busy = start && l->started < LOCKS;
        if (epoll_wait(l->poll, &event, 1, busy ? 0 : clock_poll_ms(clock_now_ns(), until)) > 0) read_events(l);
    }
}

static void open_loop(struct loop *l, const char *url, int64_t ttl_ms) {
    pawl_options options = PAWL_OPTIONS_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    options.ttl_ms = ttl_ms;
    *l = (struct loop){.all = calloc(LOCKS, sizeof *l->all), .poll = epoll_create1(EPOLL_CLOEXEC)};
    assert_non_null(l->all);
    if (pawl_open(url, &options, &l->client, &error)) fail_msg("%s: %s", url, error.text);
    struct epoll_event event = {.events = EPOLLIN};
    assert_int_equal(epoll_ctl(l->poll, EPOLL_CTL_ADD, pawl_event_fd(l->client), &event), 0);
}

static void close_loop(struct loop *l) {
    for (int i = 0; i < l->started; i++) {
        int r;
        TIMED(l, r = pawl_release(l->all[i].lock, 0, NULL));
        assert_true(r == PAWL_OK || r == PAWL_ELOST);
    }
    pawl_event event = PAWL_EVENT_INIT;
    assert_int_equal(pawl_next_event(l->client, &event), 0); /* no event of a lock after its release */
    pawl_close(l->client);
    close(l->poll);
    free(l->all);
}

static void expect_each_once(const struct loop *l, const char *url) {
    for (int i = 0; i < LOCKS; i++) {
        const struct one *one = &l->all[i];
        if (one->granted != 1 || one->lost != 1)
            fail_msg("%s: lock %d: granted %d times, lost %d times, %d other events", url, i, one->granted, one->lost,
                     one->others);
        if (i) assert_true(one->token > 0);
    }
}

typedef void lose_fn(void *data);

/* Takes all, loses all; returns the longest call. */
static int64_t grant_and_lose(const char *url, int64_t ttl_ms, int64_t max_hold_ms, lose_fn *lose, void *data) {
    struct loop l;
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    options.max_hold_ms = max_hold_ms;
    open_loop(&l, url, ttl_ms);
    run_until(&l, &l.granted, LOCKS, 60000, &options);
    assert_int_equal(l.granted, LOCKS);
    lose(data);
    run_until(&l, &l.lost, LOCKS, 60000, NULL);
    int more = LOCKS + 1; /* none of them twice */
    run_until(&l, &l.lost, more, 300, NULL);
    expect_each_once(&l, url);
    close_loop(&l);
    print_message("# %s longest call %.2f ms: %s\n", url, (double)l.longest / 1e6, l.longest_call);
    return l.longest;
}

static void by_itself(void *data) { (void)data; }

/* Where other programs take the cores, whoever holds a mutex of ours may be off its core for longer than the bar. */
static void expect_bar(int64_t best_ns) {
    struct noise noise = noise_probe();
    if (best_ns > BAR_NS && noise.ours_percent < 80)
        print_message("# %.0f %% of the cores are ours: no verdict on the time\n", noise.ours_percent);
    else assert_true(best_ns <= BAR_NS);
}

static void on_mem(void **state) {
    (void)state;
    int64_t best = INT64_MAX;
    for (int i = 0; i < TRIES && best > BAR_NS; i++) {
        int64_t longest = grant_and_lose("mem:", 15000, 3000, by_itself, NULL);
        if (longest < best) best = longest;
    }
    expect_bar(best);
}

static void kill_server(void *server) { server_kill(server, SIGKILL); }

static void on_redis(void **state) {
    (void)state;
    int64_t best = INT64_MAX;
    for (int i = 0; i < TRIES && best > BAR_NS; i++) {
        struct server s = {0};
        server_start_redis(&s, NULL);
        int64_t longest = grant_and_lose(s.url, 6000, 0, kill_server, &s);
        server_stop(&s);
        if (longest < best) best = longest;
    }
    expect_bar(best);
}

static int64_t info(int port, const char *section, const char *key) {
    char *text = server_redis(port, "INFO %s", section), *at = text ? strstr(text, key) : NULL;
    int64_t value = at ? atoll(at + strlen(key)) : 0;
    free(text);
    return value;
}

/* Renewals keep 10,000 locks longer than their ttl, with few requests over few connections, and a released one is free
 * at once for another client. */
static void renewed_on_redis(void **state) {
    (void)state;
    struct server s = {0};
    struct loop l;
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    server_start_redis(&s, NULL);
    open_loop(&l, s.url, 6000);
    run_until(&l, &l.granted, LOCKS, 60000, &options);
    assert_int_equal(l.granted, LOCKS);
    free(server_redis(s.port, "CONFIG RESETSTAT"));
    int64_t begin = clock_now_ns();
    run_until(&l, &l.lost, 1, 7000, NULL); /* longer than the ttl */
    assert_int_equal(l.lost, 0);
    int64_t requests =
        info(s.port, "commandstats", "cmdstat_evalsha:calls=") + info(s.port, "commandstats", "cmdstat_eval:calls=");
    int64_t ms = (clock_now_ns() - begin) / NS_PER_MS, clients = info(s.port, "clients", "connected_clients:");
    print_message("# %lld requests in %lld ms to keep %d locks\n", (long long)requests, (long long)ms, LOCKS);
    assert_true(requests * 1000 <= 60 * ms);
    assert_true(clients <= 3); /* with the one that asks for this */
    for (int i = 0; i < LOCKS; i++) assert_int_equal(pawl_check(l.all[i].lock), PAWL_OK);
    pawl_client *other;
    pawl_lock *lock;
    pawl_acquire_options once = PAWL_ACQUIRE_INIT;
    once.wait_ms = 0;
    assert_int_equal(pawl_open(s.url, NULL, &other, &error), PAWL_OK);
    assert_int_equal(pawl_acquire(other, "lock:77", &once, &lock, &error), PAWL_EBUSY);
    pawl_close(other);
    close_loop(&l);
    server_stop(&s);
}

int main(void) {
    struct rlimit few = {256, 256};
    if (setrlimit(RLIMIT_NOFILE, &few)) return 99;
    const struct CMUnitTest tests[] = {cmocka_unit_test(on_mem), cmocka_unit_test(on_redis),
                                       cmocka_unit_test(renewed_on_redis)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
