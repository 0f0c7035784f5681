/* ends.c: a release that nobody heard the end of, a wait that is cancelled while it is served, a holder that is killed
 * while it takes: what is there afterwards is what was said, and nothing is left for ever. */
#include "common.h"
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

static double deletes(void) { return metric("grpc_server_started_total", "grpc_method=\"DeleteRange\""); }

/* The only key of the lock n. */
static void the_key(char ret[512]) {
    snprintf(ret, 512, "%s", etcdctl("get --prefix --keys-only /locks/n/"));
    ret[strcspn(ret, "\n")] = 0;
    assert_true(*ret);
}

/* A release whose answer is lost is sent again, on another way; the lock is taken once more; then the first one comes.
 */
static void test_a_late_release_does_not_end_the_next_holding(void **state) {
    (void)state;
    char at[96], key[512], next[512];
    pawl_error error = PAWL_ERROR_INIT;
    struct proxy *p = proxy_start(members[0].port);
    snprintf(at, sizeof at, "etcd://127.0.0.1:%d,127.0.0.1:%d/locks/", proxy_port(p), members[0].port);
    pawl_client *c = client(at, 30000);
    pawl_lock *lock = take(c, "n", 0);
    the_key(key);
    proxy_freeze(p, true);
    double before = deletes();
    pawl_release(lock, 500, NULL);
    lock = take(c, "n", 20000);
    assert_true(deletes() > before); /* the second one went the other way */
    the_key(next);
    assert_string_not_equal(next, key);
    proxy_freeze(p, false);
    etcdctl("del '%s'", key); /* as the service sees the first one */
    assert_true(stays_held(lock, 300));
    if (pawl_verify(lock, 20000, &error)) fail_msg("%s", error.text);
    assert_int_equal(pawl_release(lock, 20000, &error), PAWL_OK);
    pawl_close(c);
    proxy_stop(p);
}

struct waiter {
    pawl_client *client;
    int cancel_fd, code;
    pawl_lock *lock;
};

static void *wait_in_line(void *data) {
    struct waiter *w = data;
    pawl_acquire_options o = PAWL_ACQUIRE_INIT;
    o.cancel_fd = w->cancel_fd;
    w->code = pawl_acquire(w->client, "n", &o, &w->lock, NULL);
    return NULL;
}

/* Chooses a moment; nothing is waited for. */
static void moment_us(long us) { ppoll(NULL, 0, &(struct timespec){.tv_nsec = us * 1000}, NULL); }

static void test_a_wait_cancelled_as_it_is_served_says_what_is(void **state) {
    (void)state;
    const int n = getenv("PAWL_TEST_FULL") ? 1000 : 60;
    pawl_client *c = client(url, 30000), *d = client(url, 30000);
    pawl_error error = PAWL_ERROR_INIT;
    int held = 0;
    for (int i = 0; i < n; i++) {
        struct waiter w = {.client = d, .cancel_fd = eventfd(0, EFD_CLOEXEC)};
        pthread_t thread;
        pawl_lock *lock = take(c, "n", 20000); /* a cancelled one left nothing that stands before */
        assert_int_equal(pthread_create(&thread, NULL, wait_in_line, &w), 0);
        moment_us(i % 5 == 0 ? 0 : 3000); /* it stands in line, or is about to */
        pawl_release(lock, 0, NULL);
        moment_us(i % 40 * 50);
        assert_int_equal(eventfd_write(w.cancel_fd, 1), 0);
        pthread_join(thread, NULL);
        if (w.code == PAWL_OK) {
            held++;
            if (pawl_verify(w.lock, 20000, &error)) fail_msg("%s", error.text);
            assert_int_equal(pawl_release(w.lock, 20000, NULL), PAWL_OK);
        } else {
            assert_int_equal(w.code, PAWL_ECANCELLED);
            assert_null(w.lock);
        }
        close(w.cancel_fd);
    }
    print_message("# of %d cancelled waits %d held\n", n, held);
    pawl_close(c);
    pawl_close(d);
    assert_int_equal(locks_keys("/locks/"), 0);
}

static int leases(void) { return atoi(etcdctl("lease list") + strlen("found ")); }

/* Whoever asked for a lease, and left before he heard of it, gives it back all the same. One may slip through: what was
 * asked for first may be done last. */
static void test_a_wait_cancelled_as_it_begins_leaves_no_lease(void **state) {
    (void)state;
    const int n = 60;
    pawl_client *c = client(url, 120000);
    pawl_lock *lock = take(c, "n", 20000);
    for (int i = 0; i < n; i++) {
        struct waiter w = {.client = client(url, 120000), .cancel_fd = eventfd(0, EFD_CLOEXEC)};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, wait_in_line, &w), 0);
        moment_us(i % 30 * 100);
        assert_int_equal(eventfd_write(w.cancel_fd, 1), 0);
        pthread_join(thread, NULL);
        assert_int_equal(w.code, PAWL_ECANCELLED);
        close(w.cancel_fd);
        pawl_close(w.client);
    }
    int left = leases() - 1;
    print_message("# of %d cancelled waits %d left a lease\n", n, left);
    assert_in_range(left, 0, 3);
    pawl_release(lock, 20000, NULL);
    pawl_close(c);
}

static bool no_lease(void *data) {
    (void)data;
    return strcmp(etcdctl("lease list"), "found 0 leases\n") == 0;
}

/* Keys under the prefix that no lease would take away; pawl's own base is one of them, and not counted. */
static int keys_without_a_lease(void) {
    char text[65536];
    int n = 0;
    snprintf(text, sizeof text, "%s", etcdctl("get --prefix /locks/n -w json"));
    char *at = strstr(text, "\"kvs\":");
    for (at = at ? strchr(at, '{') : NULL; at; at = strchr(at + 1, '{')) {
        const char *end = strchr(at, '}'), *lease = strstr(at, "\"lease\":");
        n += !lease || !end || lease > end;
    }
    return n;
}

static bool is_there(void *data) { return locks_keys(data) == 1; }

static void hold_until_killed(const char *name) {
    pawl_options o = PAWL_OPTIONS_INIT;
    pawl_client *c;
    pawl_lock *lock;
    alarm(60);
    o.ttl_ms = 3000;
    if (pawl_open(url, &o, &c, NULL) || pawl_acquire(c, name, NULL, &lock, NULL)) _exit(1);
    for (;;) pause();
}

static void test_a_holder_killed_while_it_takes_leaves_nothing_for_ever(void **state) {
    (void)state;
    const int n = getenv("PAWL_TEST_FULL") ? 200 : 30;
    pawl_client *first = client(url, 3000); /* the base is there */
    pawl_release(take(first, "m", 5000), 5000, NULL);
    pawl_close(first);
    for (int i = 0; i < n; i++) {
        char name[16], key[32];
        snprintf(name, sizeof name, "n%d", i);
        pid_t pid = fork();
        if (pid == 0) hold_until_killed(name);
        if (i % 10 == 9) { /* this one holds */
            snprintf(key, sizeof key, "/locks/%s/", name);
            assert_true(server_until(is_there, key, 30000));
        }
        moment_us(i % 20 * 800);
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        if (i % 10 == 9) assert_int_equal(keys_without_a_lease(), 0);
    }
    assert_true(server_until(no_lease, NULL, 60000));
    assert_int_equal(locks_keys("/locks/"), 0);
}

/* How many connected since it was asked last. They stay open, and nobody ever answers them. */
static int connected(int listener) {
    int n = 0;
    while (accept4(listener, NULL, NULL, SOCK_CLOEXEC) >= 0) n++;
    return n;
}

/* Nothing was taken where no lease was heard of: so a lock is not undone, and only the lease is given back, once. */
static void test_a_lease_that_was_never_heard_of_leaves_nothing_to_undo(void **state) {
    (void)state;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    pawl_error error = PAWL_ERROR_INIT;
    char at[64];
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(listener, 50), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &size), 0);
    snprintf(at, sizeof at, "etcd://127.0.0.1:%d", ntohs(address.sin_port));
    pawl_client *c = client(at, TTL_MS);
    assert_int_equal(try_it(c, "n", &error), PAWL_EUNREACHABLE);
    assert_true(connected(listener) > 0);
    pawl_close(c);
    assert_true(connected(listener) <= 1);
    close(listener);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_late_release_does_not_end_the_next_holding, one, teardown),
        cmocka_unit_test_setup_teardown(test_a_wait_cancelled_as_it_is_served_says_what_is, one, teardown),
        cmocka_unit_test_setup_teardown(test_a_wait_cancelled_as_it_begins_leaves_no_lease, one, teardown),
        cmocka_unit_test(test_a_lease_that_was_never_heard_of_leaves_nothing_to_undo),
        cmocka_unit_test_setup_teardown(test_a_holder_killed_while_it_takes_leaves_nothing_for_ever, one, teardown),
    };
    return RUN("etcd: ends", tests);
}
