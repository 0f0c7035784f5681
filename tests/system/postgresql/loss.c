/* loss.c: connections that break, hosts that vanish, networks that fall silent, clocks that step: a loss is told, at
 * once or within the ttl, before or as soon as anybody else can have the lock; and nothing else is taken for a loss. */
#include "holding.h"
#include "proxy.h"
#include "ran.h"
#include "skew.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <linux/filter.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static struct server server;
static struct proxy *proxy;
static char far[128]; /* the URL through the proxy */

static int group_setup(void **state) {
    (void)state;
    server.shim = skew_library();
    server_start_postgres(&server, "max_prepared_transactions = 4\n");
    sql_install(server.url);
    return 0;
}

static int group_teardown(void **state) {
    (void)state;
    server_stop(&server);
    return 0;
}

static int setup(void **state) {
    (void)state;
    proxy = proxy_start(server.port);
    snprintf(far, sizeof far, "postgresql://postgres@127.0.0.1:%d/postgres", proxy_port(proxy));
    return 0;
}

static int teardown(void **state) {
    (void)state;
    proxy_stop(proxy);
    return 0;
}

static int64_t number_of(const char *sql) {
    char *text = server_sql(server.port, "%s", sql);
    int64_t n = text ? strtoll(text, NULL, 10) : 0;
    free(text);
    return n;
}

/* The process at the other end of our connection. */
static pid_t backend_of(const char *name) {
    char *text =
        server_sql(server.port,
                   "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND (classid::int8 << 32 | "
                   "objid::int8) = hashtextextended('%s', 0)",
                   name);
    pid_t pid = text ? (pid_t)strtol(text, NULL, 10) : 0;
    free(text);
    assert_true(pid > 0);
    return pid;
}

/* Whatever arrives at this socket is thrown away before TCP sees it. */
static bool deafen(int fd) {
    struct sock_filter drop = {BPF_RET | BPF_K, 0, 0, 0};
    struct sock_fprog program = {1, &drop};
    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0;
}

/* The other end of our socket, in another process. */
static int their_end(pid_t pid, int ours) {
    struct sockaddr_in us, them;
    socklen_t size = sizeof us;
    char path[64];
    assert_int_equal(getsockname(ours, (struct sockaddr *)&us, &size), 0);
    int pid_fd = (int)syscall(SYS_pidfd_open, pid, 0), found = -1;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *all = pid_fd < 0 ? NULL : opendir(path);
    for (struct dirent *one; all && found < 0 && (one = readdir(all));) {
        int fd = *one->d_name == '.' ? -1 : (int)syscall(SYS_pidfd_getfd, pid_fd, atoi(one->d_name), 0);
        size = sizeof them;
        if (fd >= 0 && getpeername(fd, (struct sockaddr *)&them, &size) == 0 && them.sin_family == AF_INET &&
            them.sin_port == us.sin_port)
            found = fd;
        else if (fd >= 0) close(fd);
    }
    if (all) closedir(all);
    if (pid_fd >= 0) close(pid_fd);
    return found;
}

/* Neither end gets a byte any more, and neither is told. */
static void test_a_host_that_vanished(void **state) {
    (void)state;
    enum { TTL_MS = 3000 };
    pawl_client *a = client_of(server.url, TTL_MS), *b = client_of(server.url, 0);
    pawl_lock *held = hold(a, "vanished"), *next;
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    int ours[8];
    must(pawl_acquire_start(b, "vanished", &options, NULL, &next, &holding_error));
    assert_int_equal(pawl_holding_fds(held, ours, 8), 1);
    int theirs = their_end(backend_of("vanished"), ours[0]);
    if (theirs < 0) {
        print_message("# the server's end cannot be had here\n");
        pawl_release(held, 10000, NULL);
        pawl_close(a);
        pawl_close(b);
        skip();
    }
    struct pollfd p[] = {{.fd = pawl_event_fd(b), .events = POLLIN}, {.fd = pawl_lost_fd(held), .events = POLLIN}};
    int64_t start = clock_now_ns(), ran = ran_ns();
    assert_true(deafen(ours[0]) && deafen(theirs));
    close(theirs);
    assert_int_equal(poll(p, 2, 20000), 1);
    print_message("# told after %lld ms\n", (long long)ms_since(start));
    assert_int_equal(p[0].revents, 0); /* who holds it knows first */
    assert_int_equal(pawl_check(held), PAWL_ELOST);
    assert_int_equal(poll(p, 1, 20000), 1);
    print_message("# free after %lld ms\n", (long long)ms_since(start));
    assert_true(ran_since(ran) <= TTL_MS + 2000);
    pawl_event event = PAWL_EVENT_INIT;
    assert_int_equal(pawl_next_event(b, &event), 1);
    assert_int_equal(event.type, PAWL_GRANTED);
    pawl_release(held, 0, NULL);
    let_go(next);
    pawl_close(b);
    pawl_close(a);
}

static void test_a_paused_holder_keeps_it(void **state) {
    (void)state;
    int to[2], from[2], status;
    char byte;
    assert_int_equal(pipe(to) | pipe(from), 0);
    pid_t holder = fork();
    if (holder == 0) {
        pawl_lock *lock = hold(client_of(server.url, 1000), "paused");
        bool good = write(from[1], "x", 1) == 1 && read(to[0], &byte, 1) == 1 && pawl_check(lock) == PAWL_OK &&
                    pawl_verify(lock, 5000, NULL) == PAWL_OK;
        _exit(good ? 0 : 1);
    }
    assert_int_equal(read(from[0], &byte, 1), 1);
    kill(holder, SIGSTOP);
    pawl_client *b = client_of(server.url, 0);
    pawl_lock *lock;
    assert_int_equal(take(b, "paused", 2500, &lock), PAWL_ETIMEOUT); /* two ttls and a half */
    kill(holder, SIGCONT);
    assert_int_equal(write(to[1], "x", 1), 1);
    assert_int_equal(waitpid(holder, &status, 0), holder);
    assert_int_equal(status, 0);
    must(take(b, "paused", 5000, &lock));
    let_go(lock);
    pawl_close(b);
    for (int i = 0; i < 2; i++) close(to[i]), close(from[i]);
}

static pid_t waiter, waits; /* the process, and its connection's */

/* Between two slices it does not wait. */
static bool is_stopped_while_it_waits(void *unused) {
    (void)unused;
    kill(waiter, SIGSTOP);
    waits = (pid_t)number_of("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted");
    if (waits <= 0) kill(waiter, SIGCONT);
    return waits > 0;
}

static bool is_idle(void *data) {
    char *text = server_sql(server.port, "SELECT state FROM pg_stat_activity WHERE pid = %d", (int)*(pid_t *)data);
    bool idle = text && strcmp(text, "idle") == 0;
    free(text);
    return idle;
}

/* A waiter stands still; meanwhile it is granted, its connection ends, and somebody else has the lock. When it goes on,
 * the old answer is there to be read, and is not taken for a grant. */
static void test_a_grant_that_ended_unread(void **state) {
    (void)state;
    int from[2], status;
    int64_t token = 0;
    assert_int_equal(pipe(from), 0);
    pawl_client *a = client_of(server.url, 0);
    pawl_lock *held = hold(a, "unread"), *lock;
    waiter = fork();
    if (waiter == 0) {
        bool good = take(client_of(server.url, 0), "unread", 30000, &lock) == PAWL_OK;
        token = good ? pawl_token(lock) : -1;
        good = good && pawl_check(lock) == PAWL_OK && pawl_verify(lock, 5000, NULL) == PAWL_OK;
        _exit(write(from[1], &token, sizeof token) == sizeof token && good ? 0 : 1);
    }
    assert_true(server_until(is_stopped_while_it_waits, NULL, 60000));
    let_go(held);
    assert_true(server_until(is_idle, &waits, 60000)); /* it was granted, and the answer is under way */
    free(server_sql(server.port, "SELECT pg_terminate_backend(%d)", (int)waits));
    must(take(a, "unread", 10000, &lock));
    int64_t later = pawl_token(lock);
    let_go(lock);
    kill(waiter, SIGCONT);
    assert_int_equal(read(from[0], &token, sizeof token), sizeof token);
    assert_int_equal(waitpid(waiter, &status, 0), waiter);
    assert_int_equal(status, 0);
    assert_true(token > later);
    pawl_close(a);
    close(from[0]);
    close(from[1]);
}

/* Something between the two keeps our side open, while the server's side ended. */
static void test_half_open(void **state) {
    (void)state;
    pawl_client *a = client_of(far, 3000), *b = client_of(server.url, 0);
    pawl_lock *held = hold(a, "half"), *lock;
    int64_t start = clock_now_ns(), ran = ran_ns();
    proxy_half_open(proxy);
    must(take(b, "half", 10000, &lock));
    assert_true(lost_within(held, 10000));
    print_message("# told after %lld ms\n", (long long)ms_since(start));
    assert_true(ran_since(ran) <= 3000); /* within the ttl */
    assert_int_equal(pawl_release(held, 10000, NULL), PAWL_ELOST);
    let_go(lock);
    pawl_close(a);
    pawl_close(b);
}

/* Requests and replies vanish, and the connection stands: it is still held there, and told as lost within the ttl. */
static void test_a_silent_network(void **state) {
    (void)state;
    pawl_client *a = client_of(far, 3000), *b = client_of(server.url, 0);
    pawl_lock *held = hold(a, "silent"), *lock;
    int64_t start = ran_ns();
    proxy_drop(proxy, PROXY_TO_SERVER, true);
    proxy_drop(proxy, PROXY_TO_CLIENT, true);
    assert_true(lost_within(held, 10000));
    assert_true(ran_since(start) <= 3000);
    is_busy(b, "silent");
    pawl_release(held, 0, NULL);
    pawl_close(a);
    proxy_drop(proxy, PROXY_TO_SERVER, false);
    proxy_drop(proxy, PROXY_TO_CLIENT, false);
    must(take(b, "silent", 10000, &lock));
    let_go(lock);
    pawl_close(b);
}

/* It comes back under its old address, empty: the client says that its lock is gone, and never reconnects it. */
static void test_no_silent_reconnect(void **state) {
    (void)state;
    pawl_client *a = client_of(far, 0);
    pawl_lock *held = hold(a, "reconnect");
    proxy_cut(proxy, false);
    assert_true(lost_within(held, 10000));
    pawl_lock *other = NULL;
    must(take(a, "other", 10000, &other)); /* the client has a connection again */
    assert_int_equal(pawl_check(held), PAWL_ELOST);
    assert_int_equal(pawl_verify(held, 10000, NULL), PAWL_ELOST);
    assert_int_equal(pawl_release(held, 10000, NULL), PAWL_ELOST);
    let_go(other);
    pawl_close(a);
}

/* A question that had too little time costs its own claim only. */
static void test_no_answer_spares_the_others(void **state) {
    (void)state;
    pawl_client *a = client_of(far, 30000), *b = client_of(server.url, 0);
    pawl_lock *first = hold(a, "spared"), *second, *lock;
    proxy_freeze(proxy, true);
    assert_int_equal(take(a, "asked", 200, &second), PAWL_EUNREACHABLE);
    assert_int_equal(pawl_check(first), PAWL_OK);
    proxy_freeze(proxy, false);
    must(take(b, "asked", 10000, &lock)); /* it was granted there, and is given back */
    must(pawl_verify(first, 5000, &holding_error));
    let_go(lock);
    proxy_freeze(proxy, true);
    assert_int_equal(pawl_release(first, 200, &holding_error), PAWL_EUNREACHABLE);
    proxy_freeze(proxy, false);
    must(take(b, "spared", 10000, &lock));
    is_busy(a, "spared"); /* the release that was repeated took nothing from anybody */
    let_go(lock);
    let_go(hold(a, "spared"));
    pawl_close(a);
    pawl_close(b);
}

static int64_t wall_s(void) {
    char *text = server_sql(server.port, "SELECT extract(epoch FROM clock_timestamp())::int8");
    int64_t s = text ? strtoll(text, NULL, 10) : 0;
    free(text);
    return s;
}

static void test_clock_steps(void **state) {
    (void)state;
    pawl_client *a = client_of(server.url, 4000), *b = client_of(server.url, 0);
    static const int64_t steps_ms[] = {3600000, -3600000, 0};
    pawl_lock *held = hold(a, "clock"), *lock;
    int64_t token = pawl_token(held);
    for (size_t i = 0; i < sizeof steps_ms / sizeof *steps_ms; i++) {
        int64_t before = wall_s();
        skew_set(&server, steps_ms[i]);
        assert_true(llabs(wall_s() - before) > 1800); /* it sees the step */
        assert_int_equal(take(b, "clock", 1500, &lock), PAWL_ETIMEOUT);
        must(pawl_verify(held, 5000, &holding_error));
        let_go(held);
        must(take(b, "clock", 10000, &lock));
        assert_true(pawl_token(lock) > token);
        token = pawl_token(lock);
        let_go(lock);
        must(take(a, "clock", 10000, &held));
        assert_true(pawl_token(held) > token);
    }
    let_go(held);
    pawl_close(a);
    pawl_close(b);
}

/* The clock goes back while somebody waits: the server's timer for the slice is an hour late, ours is not. */
static void test_the_clock_goes_back_under_a_waiter(void **state) {
    (void)state;
    pawl_client *a = client_of(server.url, 0), *b = client_of(server.url, 3000);
    pawl_lock *held = hold(a, "back"), *lock;
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    pawl_event event = PAWL_EVENT_INIT;
    must(pawl_acquire_start(b, "back", &options, NULL, &lock, &holding_error));
    for (int64_t end = clock_now_ns() + 10 * NS_PER_S; advisory(server.port, false) == 0 && clock_now_ns() < end;)
        poll(NULL, 0, 10);
    skew_set(&server, -3600000);
    let_go(held);
    struct pollfd p = {.fd = pawl_event_fd(b), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 10000), 1);
    assert_int_equal(pawl_next_event(b, &event), 1);
    assert_int_equal(event.type, PAWL_GRANTED);
    let_go(lock);
    skew_set(&server, 0);
    pawl_close(a);
    pawl_close(b);
}

/* What the holder is told of the end of its session. */
static void told(pawl_lock *lock, const char *saying) {
    pawl_error error = PAWL_ERROR_INIT;
    assert_true(lost_within(lock, 20000));
    assert_int_equal(pawl_release(lock, 0, &error), PAWL_ELOST);
    if (!strstr(error.text, saying)) fail_msg("'%s' does not say '%s'", error.text, saying);
}

/* It is free, or `pawl break` fails and says by what it is still held. */
static void test_taking_it_away(void **state) {
    (void)state;
    pawl_client *a = client_of(server.url, 0), *b = client_of(server.url, 0);
    pawl_broken broken = PAWL_BROKEN_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    char pid[32];
    pawl_lock *held = hold(a, "stuck"), *lock;
    must(pawl_break(b, "stuck", 0, 20000, &broken, &holding_error));
    assert_true(broken.was_held);
    let_go(hold(b, "stuck"));
    told(held, "terminating connection due to administrator command (57P01)");
    held = hold(a, "stuck");
    pid_t stopped = backend_of("stuck");
    kill(stopped, SIGSTOP);
    int code = pawl_break(b, "stuck", 0, 1500, &broken, &error);
    int busy = take(b, "stuck", 0, &lock);
    kill(stopped, SIGCONT);
    assert_int_equal(code, PAWL_ETIMEOUT);
    assert_int_equal(busy, PAWL_EBUSY);
    snprintf(pid, sizeof pid, "process %d ", (int)stopped);
    assert_non_null(strstr(error.text, pid));
    told(held, "57P01");
    PGconn *c = sql_dial(server.port, "");
    sql_does(c, "BEGIN; SELECT pawl.lock('twophase'); PREPARE TRANSACTION 'it''s'");
    assert_int_equal(pawl_break(b, "twophase", 0, 5000, &broken, &error), PAWL_EBUSY);
    assert_non_null(strstr(error.text, "ROLLBACK PREPARED 'it''s'"));
    assert_int_equal(take(b, "twophase", 0, &lock), PAWL_EBUSY);
    assert_non_null(strstr(holding_error.text, "a prepared transaction"));
    sql_refuses(c, "BEGIN; SELECT pawl.lock('twophase', '1ms')", "55P03", "Held by the prepared transaction 'it''s'.");
    sql_does(c, "ROLLBACK");
    sql_does(c, "ROLLBACK PREPARED 'it''s'");
    let_go(hold(b, "twophase"));
    PQfinish(c);
    pawl_close(a);
    pawl_close(b);
}

int main(void) {
    if (access("/usr/lib/postgresql", X_OK)) {
        printf("1..0 # SKIP no PostgreSQL server here\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {
#define EACH(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
        EACH(test_a_host_that_vanished),
        EACH(test_a_paused_holder_keeps_it),
        EACH(test_a_grant_that_ended_unread),
        EACH(test_half_open),
        EACH(test_a_silent_network),
        EACH(test_no_silent_reconnect),
        EACH(test_no_answer_spares_the_others),
        EACH(test_taking_it_away),
        EACH(test_clock_steps),
        EACH(test_the_clock_goes_back_under_a_waiter),
    };
    return cmocka_run_group_tests_name("postgresql loss", tests, group_setup, group_teardown);
}
