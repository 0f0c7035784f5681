/* scale.c: thousands of locks in one process: one lease, two connections, a keepalive every third of the ttl, less than
 * a kilobyte each, none lost, and each of them watched in its turn. */
#include "clock.h"
#include "common.h"
#include <poll.h>
#include <sys/stat.h>

#define NAMED "grpc_server_msg_received_total"

static long resident(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*d %ld", &pages), 1);
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

static int sockets(void) {
    struct stat st;
    int n = 0;
    for (int fd = 0; fd < 256; fd++) n += fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode);
    return n;
}

static void count(const pawl_event *event, int *granted) {
    if (event->type == PAWL_GRANTED) ++*granted;
    else if (event->type == PAWL_FAILED || event->type == PAWL_LOST) fail_msg("%s", event->text);
}

static void take_all(pawl_client *c, pawl_lock **locks, int n) {
    struct pollfd p = {.fd = pawl_event_fd(c), .events = POLLIN};
    pawl_event event = PAWL_EVENT_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    int64_t began = clock_now_ns();
    for (int started = 0, granted = 0; granted < n;) {
        for (int i = 0; i < 64 && started < n; i++, started++) {
            char name[32];
            snprintf(name, sizeof name, "many:%d", started);
            if (pawl_acquire_start(c, name, NULL, NULL, &locks[started], &error)) fail_msg("%s", error.text);
        }
        poll(&p, 1, started < n ? 0 : 1000);
        while (pawl_next_event(c, &event)) count(&event, &granted);
        assert_true(clock_now_ns() - began < 300 * NS_PER_S);
    }
}

/* Nothing is said of them for so long. */
static void stay(pawl_client *c, int64_t ms) {
    struct pollfd p = {.fd = pawl_event_fd(c), .events = POLLIN};
    pawl_event event = PAWL_EVENT_INIT;
    int none = 0;
    for (int64_t end = clock_after_ms(clock_now_ns(), ms); clock_now_ns() < end;) {
        poll(&p, 1, 200);
        while (pawl_next_event(c, &event)) count(&event, &none);
    }
    assert_int_equal(none, 0);
}

/* Each costs the server as much as a lock does, so not too many at a time. */
static void wait_until_watched(pawl_client *c, int n, double before, int64_t began) {
    for (double watched = 0; watched < n;) {
        stay(c, 500);
        watched = metric(NAMED, "Watch") - before;
        int64_t s = (clock_now_ns() - began) / NS_PER_S;
        assert_true(watched <= 300.0 * (double)(2 + s));
        assert_true(s < 400);
    }
}

static void removed_is_lost(pawl_client *c, pawl_lock *lock, int i) {
    pawl_event event = PAWL_EVENT_INIT;
    struct pollfd p = {.fd = pawl_event_fd(c), .events = POLLIN};
    bool lost = false;
    shell("ETCDCTL_API=3 etcdctl --endpoints=127.0.0.1:%d del --prefix /locks/many:%d/ >/dev/null", members[0].port, i);
    for (int64_t end = clock_after_ms(clock_now_ns(), 60000); !lost && clock_now_ns() < end;) {
        poll(&p, 1, 200);
        while (pawl_next_event(c, &event)) lost |= event.type == PAWL_LOST && event.lock == lock;
    }
    assert_true(lost);
}

static void hold_many(int n, int64_t ttl_ms, int64_t held_ms) {
    pawl_lock **locks = calloc((size_t)n, sizeof *locks);
    pawl_error error = PAWL_ERROR_INIT;
    pawl_client *c = client(url, ttl_ms);
    int before = sockets();
    if (pawl_connect(c, 20000, &error)) fail_msg("%s", error.text);
    memset(locks, 0, (size_t)n * sizeof *locks); /* not a part of them */
    long memory = resident();
    double watches = metric(NAMED, "Watch");
    int64_t took = clock_now_ns();
    take_all(c, locks, n);
    wait_until_watched(c, n, watches, took);
    long each = (resident() - memory) / n;
    int connections = sockets() - before;
    double kept = metric(NAMED, "LeaseKeepAlive");
    int64_t began = clock_now_ns();
    stay(c, held_ms);
    kept = metric(NAMED, "LeaseKeepAlive") - kept;
    double ttls = (double)(clock_now_ns() - began) / 1e6 / (double)ttl_ms;
    print_message("# %d locks: %ld bytes each, %.1f keepalives in a ttl, %d sockets more\n", n, each, kept / ttls,
                  connections);
    assert_non_null(strstr(etcdctl("lease list"), "found 1 leases"));
    assert_true(kept >= ttls); /* or it would have run out */
    assert_true(kept <= 3 * ttls + 2);
    assert_in_range(connections, 1, 2); /* questions, and the watches */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(each < (n < 10000 ? 1400 : 1024)); /* with what a client costs at all */
#endif
    for (int i = 0; i < n; i++) assert_int_equal(pawl_check(locks[i]), PAWL_OK);
    for (int i = 0; i < n; i += 499)
        if (pawl_verify(locks[i], 20000, &error)) fail_msg("%s", error.text);
    removed_is_lost(c, locks[0], 0);
    removed_is_lost(c, locks[n - 1], n - 1);
    for (int i = 0; i < n; i++) pawl_release(locks[i], 0, NULL);
    pawl_close(c);
    free(locks);
    assert_string_equal(etcdctl("lease list"), "found 0 leases\n");
}

static void test_thousands_hang_on_one_lease(void **state) {
    (void)state;
    hold_many(getenv("PAWL_TEST_FULL") ? 10000 : 2000, TTL_MS, 2 * TTL_MS);
}

static void test_none_of_very_many_is_lost(void **state) {
    (void)state;
    FULL_ONLY();
    hold_many(25000, 20000, 300000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_thousands_hang_on_one_lease, one, teardown),
        cmocka_unit_test_setup_teardown(test_none_of_very_many_is_lost, one, teardown),
    };
    return RUN("etcd: scale", tests);
}
