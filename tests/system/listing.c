/* listing.c: 10,000 locks are listed in under 2 s, whatever keeps them, and looking at them fails no lock. The best of
 * three tries counts; where other programs have the cores, there is no verdict on the time. */
#include "clock.h"
#include "measure.h"
#include "pawl.h"
#include "server.h"
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

enum { LOCKS = 10000, BAR_MS = 2000, TRIES = 3, AT_ONCE = 200 };

static pawl_client *open_client(const char *url) {
    pawl_client *client;
    pawl_options options = PAWL_OPTIONS_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    options.ttl_ms = 120000; /* no renewals meanwhile */
    options.label = "one of many";
    if (pawl_open(url, &options, &client, &error)) fail_msg("%s: %s", url, error.text);
    return client;
}

static void take_all(pawl_client *client) {
    int fd = pawl_event_fd(client), started = 0, granted = 0, again = 0;
    while (granted < LOCKS) {
        pawl_event event = PAWL_EVENT_INIT;
        pawl_lock *lock;
        char name[32];
        for (; started < LOCKS && started - granted < AT_ONCE; started++) {
            snprintf(name, sizeof name, "listing:%d", started);
            assert_int_equal(pawl_acquire_start(client, name, NULL, NULL, &lock, NULL), PAWL_OK);
        }
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 60000) != 1) fail_msg("%d of %d are granted", granted, LOCKS);
        while (pawl_next_event(client, &event)) {
            if (event.type == PAWL_FAILED && event.code == PAWL_EUNREACHABLE && ++again < 100) { /* too much at once */
                snprintf(name, sizeof name, "%s", pawl_name(event.lock));
                pawl_release(event.lock, 10000, NULL);
                assert_int_equal(pawl_acquire_start(client, name, NULL, NULL, &lock, NULL), PAWL_OK);
                continue;
            }
            if (event.type != PAWL_GRANTED) fail_msg("event %d: %s", event.type, event.text);
            granted++;
        }
    }
}

struct seen {
    int holders, known;
};

static int see(const pawl_entry *entry, void *data) {
    struct seen *seen = data;
    seen->holders += entry->held && strncmp(entry->name, "listing:", 8) == 0;
    seen->known += entry->pid == getpid() && entry->label && strcmp(entry->label, "one of many") == 0;
    return 0;
}

/* known: the service knows names, pids and labels. */
static void list(const char *url, bool names) {
    pawl_client *client = open_client(url);
    pawl_error error = PAWL_ERROR_INIT;
    int64_t best = INT64_MAX, cpu = cpu_ns();
    for (int i = 0; i < TRIES && best > BAR_MS * NS_PER_MS; i++) {
        struct seen seen = {0};
        int64_t from = clock_now_ns();
        if (pawl_inspect(client, NULL, 60000, see, &seen, &error)) fail_msg("%s: %s", url, error.text);
        int64_t took = clock_now_ns() - from;
        if (took < best) best = took;
        if (names) assert_int_equal(seen.holders, LOCKS);
        assert_int_equal(seen.known, LOCKS);
    }
    cpu = cpu_ns() - cpu;
    pawl_close(client);
    print_message("# %s: %d locks listed in %.0f ms, %.0f ms of processor time in all tries\n", url, LOCKS,
                  (double)best / 1e6, (double)cpu / 1e6);
    struct noise noise = noise_probe();
    if (best > BAR_MS * NS_PER_MS && noise.ours_percent < 80)
        print_message("# %.0f %% of the cores are ours: no verdict on the time\n", noise.ours_percent);
    else assert_true(best <= BAR_MS * NS_PER_MS);
}

static void held_and_listed(const char *url, bool names) {
    pawl_client *client = open_client(url);
    take_all(client);
    list(url, names);
    pawl_close(client);
}

static void needs_module(const char *url) {
    pawl_client *client = NULL;
    if (pawl_open(url, NULL, &client, NULL) == PAWL_EUNSUPPORTED) skip();
    pawl_close(client);
}

static void of_files(void **state) {
    (void)state;
    struct rlimit many;
    char dir[] = "/tmp/pawl-listing-XXXXXX", url[64], command[128];
    if (getrlimit(RLIMIT_NOFILE, &many) || many.rlim_max < LOCKS + 100) skip();
    many.rlim_cur = many.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &many), 0);
    assert_non_null(mkdtemp(dir));
    snprintf(url, sizeof url, "file:%s", dir);
    held_and_listed(url, true);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
}

static void of_redis(void **state) {
    (void)state;
    struct server s = {0};
    server_start_redis(&s, NULL);
    held_and_listed(s.url, true);
    server_stop(&s);
}

static void of_redlock(void **state) {
    (void)state;
    struct server s[3] = {0};
    char url[128];
    needs_module("redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3");
    for (int i = 0; i < 3; i++) server_start_redis(&s[i], NULL);
    snprintf(url, sizeof url, "redlock://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d", s[0].port, s[1].port, s[2].port);
    held_and_listed(url, true);
    for (int i = 0; i < 3; i++) server_stop(&s[i]);
}

/* Sessions know numbers in place of names, and hold up to some hundreds each. */
static void of_postgresql(void **state) {
    (void)state;
    struct server s = {0};
    needs_module("postgresql://127.0.0.1:1/none");
    server_start_postgres(&s, "max_locks_per_transaction = 256\n");
    pawl_client *client = open_client(s.url);
    pawl_error error = PAWL_ERROR_INIT;
    if (pawl_init(client, 20000, &error)) fail_msg("%s", error.text);
    take_all(client);
    list(s.url, false);
    pawl_close(client);
    server_stop(&s);
}

static void of_etcd(void **state) {
    (void)state;
    struct server s = {0};
    needs_module("etcd://127.0.0.1:1");
    server_start_etcd(&s, NULL);
    held_and_listed(s.url, true);
    server_stop(&s);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(of_files), cmocka_unit_test(of_redis),
                                       cmocka_unit_test(of_redlock), cmocka_unit_test(of_postgresql),
                                       cmocka_unit_test(of_etcd)};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
