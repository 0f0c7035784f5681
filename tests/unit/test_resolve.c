/* Names and connections that hang: getaddrinfo(3) is replaced (--wrap) by one that a test can hold up. */
#include "clock.h"
#include "resolve.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <cmocka.h>

int __real_getaddrinfo(const char *, const char *, const struct addrinfo *, struct addrinfo **);
int __wrap_getaddrinfo(const char *, const char *, const struct addrinfo *, struct addrinfo **);
void __real_freeaddrinfo(struct addrinfo *);
void __wrap_freeaddrinfo(struct addrinfo *);

static atomic_int gate = -1;              /* a looked-up name waits until this is readable */
static _Atomic(const char *) script = ""; /* comma separated literals that a name stands for; "" unknown */
static atomic_int lookups, made, freed, open_signals;

static struct addrinfo *one(const char *literal, const char *port) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV}, *found = NULL;
    assert_int_equal(__real_getaddrinfo(literal, port, &hints, &found), 0);
    return found;
}

int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **ret) {
    if (hints->ai_flags & AI_NUMERICHOST) {
        int code = __real_getaddrinfo(host, port, hints, ret);
        if (code == 0) made++;
        return code;
    }
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    if (!sigismember(&mask, SIGTERM) || !sigismember(&mask, SIGALRM)) open_signals++;
    lookups++;
    if (gate >= 0) clock_wait_fd(gate, POLLIN, INT64_MAX, -1);
    char copy[256], *state = NULL;
    snprintf(copy, sizeof copy, "%s", script);
    if (!*copy) return EAI_NONAME;
    struct addrinfo **end = ret;
    for (char *literal = strtok_r(copy, ",", &state); literal; literal = strtok_r(NULL, ",", &state)) {
        *end = one(literal, port);
        end = &(*end)->ai_next;
    }
    made++;
    return 0;
}

void __wrap_freeaddrinfo(struct addrinfo *list) {
    freed++;
    while (list) {
        struct addrinfo *next = list->ai_next;
        list->ai_next = NULL;
        __real_freeaddrinfo(list);
        list = next;
    }
}

static struct bk_until within(int64_t ms, int cancel_fd) {
    return (struct bk_until){.at_ns = clock_after_ms(clock_now_ns(), ms), .cancel_fd = cancel_fd};
}

static void open_gate(void) {
    uint64_t one_more = 1;
    assert_int_equal(write(gate, &one_more, sizeof one_more), sizeof one_more);
}

/* The threads that were left behind end and free what they found. */
static void all_is_freed(int threads) {
    int never = eventfd(0, EFD_CLOEXEC);
    int64_t until = clock_after_ms(clock_now_ns(), 5000);
    while ((lookups < threads || freed != made || made < threads) && clock_now_ns() < until)
        clock_wait_fd(never, POLLIN, clock_after_ms(clock_now_ns(), 1), -1);
    close(never);
    assert_int_equal(freed, made);
    assert_true(made >= threads);
}

static int setup(void **data) {
    (void)data;
    gate = -1;
    script = "";
    lookups = made = freed = open_signals = 0;
    return 0;
}

static int family(const struct resolved *r, int i) { return r->address[i].ss_family; }

static void test_literals_need_no_thread(void **data) {
    (void)data;
    struct resolved found;
    pawl_error error = PAWL_ERROR_INIT;
    assert_int_equal(resolve("127.0.0.1", 80, within(0, -1), &found, &error), BK_YES);
    assert_int_equal(found.n, 1);
    assert_int_equal(family(&found, 0), AF_INET);
    assert_int_equal(ntohs(((struct sockaddr_in *)&found.address[0])->sin_port), 80);
    assert_int_equal(resolve("::1", 65535, within(0, -1), &found, &error), BK_YES);
    assert_int_equal(family(&found, 0), AF_INET6);
    assert_int_equal(lookups, 0);
    all_is_freed(0);
}

static void test_a_silent_name_server_costs_the_deadline(void **data) {
    (void)data;
    struct resolved found = {.n = 99};
    pawl_error error = PAWL_ERROR_INIT;
    gate = eventfd(0, EFD_CLOEXEC);
    script = "127.0.0.1";
    int64_t from = clock_now_ns();
    assert_int_equal(resolve("db.example", 1, within(60, -1), &found, &error), BK_FAULT);
    int64_t took = clock_now_ns() - from;
    assert_true(took >= 60 * NS_PER_MS && took < 10 * NS_PER_S); /* the lookup itself never ends */
    assert_int_equal(error.code, PAWL_EUNREACHABLE);
    assert_non_null(strstr(error.text, "db.example"));
    assert_non_null(strstr(error.text, "in time"));
    assert_string_equal(error.node, "db.example");
    assert_int_equal(found.n, 99);
    open_gate(); /* the answer comes late and nobody wants it */
    all_is_freed(1);
    assert_int_equal(open_signals, 0);
    close(gate);
}

static void test_cancel(void **data) {
    (void)data;
    struct resolved found;
    pawl_error error = PAWL_ERROR_INIT;
    int cancel = eventfd(1, EFD_CLOEXEC);
    gate = eventfd(0, EFD_CLOEXEC);
    script = "127.0.0.1";
    assert_int_equal(resolve("db.example", 1, within(60000, cancel), &found, &error), BK_FAULT);
    assert_int_equal(error.code, PAWL_ECANCELLED);
    open_gate();
    all_is_freed(1);
    close(cancel);
    close(gate);
}

static void test_many_at_once(void **data) {
    (void)data;
    gate = eventfd(0, EFD_CLOEXEC);
    script = "127.0.0.1";
    for (int i = 0; i < 50; i++) {
        struct resolved found;
        assert_int_equal(resolve("db.example", 1, within(0, -1), &found, NULL), BK_FAULT);
    }
    open_gate();
    all_is_freed(50);
    close(gate);
}

static void test_unknown_name(void **data) {
    (void)data;
    struct resolved found;
    pawl_error error = PAWL_ERROR_INIT;
    assert_int_equal(resolve("nosuch.example", 1, within(10000, -1), &found, &error), BK_FAULT);
    assert_int_equal(error.code, PAWL_EUNREACHABLE);
    assert_non_null(strstr(error.text, "nosuch.example"));
    assert_non_null(strstr(error.text, gai_strerror(EAI_NONAME)));
}

static void test_more_addresses_than_room(void **data) {
    (void)data;
    struct resolved found;
    script = "10.0.0.1,10.0.0.2,10.0.0.3,10.0.0.4,10.0.0.5,10.0.0.6,10.0.0.7,::1,10.0.0.9,10.0.0.10";
    assert_int_equal(resolve("db.example", 1, within(10000, -1), &found, NULL), BK_YES);
    assert_int_equal(found.n, RESOLVE_MAX);
    assert_int_equal(family(&found, 6), AF_INET);
    assert_int_equal(family(&found, 7), AF_INET6);
    all_is_freed(1);
}

static int listener(const char *address, int backlog, int *port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)*port)};
    assert_int_equal(inet_pton(AF_INET, address, &at.sin_addr), 1);
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, size), 0);
    if (backlog >= 0) assert_int_equal(listen(fd, backlog), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &size), 0);
    *port = ntohs(at.sin_port);
    return fd;
}

static void test_connect(void **data) {
    (void)data;
    int port = 0, fd = -1, on = 0;
    socklen_t size = sizeof on;
    int server = listener("127.0.0.1", 5, &port);
    assert_int_equal(resolve_connect("127.0.0.1", port, within(5000, -1), &fd, NULL), BK_YES);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    assert_true(fcntl(fd, F_GETFL) & O_NONBLOCK);
    assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, &size), 0);
    assert_int_not_equal(on, 0);
    close(fd);
    close(server);
}

static void test_connect_goes_on_to_the_next_address(void **data) {
    (void)data;
    int port = 0, fd = -1;
    int server = listener("127.0.0.2", 5, &port); /* nobody listens at 127.0.0.3 */
    script = "127.0.0.3,127.0.0.2";
    assert_int_equal(resolve_connect("db.example", port, within(5000, -1), &fd, NULL), BK_YES);
    close(fd);
    close(server);
    all_is_freed(1);
}

static void test_connect_refused(void **data) {
    (void)data;
    int port = 0, fd = -77;
    char node[32];
    pawl_error error = PAWL_ERROR_INIT;
    int bound = listener("127.0.0.1", -1, &port);
    assert_int_equal(resolve_connect("127.0.0.1", port, within(5000, -1), &fd, &error), BK_FAULT);
    assert_int_equal(error.code, PAWL_EUNREACHABLE);
    snprintf(node, sizeof node, "127.0.0.1:%d", port);
    assert_string_equal(error.node, node);
    assert_non_null(strstr(error.text, "Connection refused"));
    assert_int_equal(fd, -77);
    close(bound);
}

/* A listener whose queue is full does not answer: the kernel drops what comes. */
static int silent(const char *address, int *port, int filler[8]) {
    int server = listener(address, 0, port);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)*port)};
    assert_int_equal(inet_pton(AF_INET, address, &at.sin_addr), 1);
    for (int i = 0; i < 8; i++) {
        filler[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        connect(filler[i], (struct sockaddr *)&at, sizeof at);
    }
    return server;
}

static void hush(int server, int filler[8]) {
    for (int i = 0; i < 8; i++) close(filler[i]);
    close(server);
}

static void test_connect_to_silence(void **data) {
    (void)data;
    int port = 0, fd = -77, filler[8], cancel = eventfd(1, EFD_CLOEXEC);
    pawl_error error = PAWL_ERROR_INIT;
    int server = silent("127.0.0.1", &port, filler);
    int64_t from = clock_now_ns();
    assert_int_equal(resolve_connect("127.0.0.1", port, within(50, -1), &fd, &error), BK_FAULT);
    int64_t took = clock_now_ns() - from;
    assert_true(took >= 50 * NS_PER_MS && took < 150 * NS_PER_MS);
    assert_int_equal(error.code, PAWL_EUNREACHABLE);
    assert_non_null(strstr(error.text, "does not answer"));
    assert_int_equal(resolve_connect("127.0.0.1", port, within(60000, cancel), &fd, &error), BK_FAULT);
    assert_int_equal(error.code, PAWL_ECANCELLED);
    assert_int_equal(fd, -77);
    close(cancel);
    hush(server, filler);
}

static void test_silence_leaves_time_for_the_next_address(void **data) {
    (void)data;
    int port = 0, fd = -1, filler[8];
    int quiet = silent("127.0.0.3", &port, filler);
    int server = listener("127.0.0.2", 5, &port);
    script = "127.0.0.3,127.0.0.2";
    assert_int_equal(resolve_connect("db.example", port, within(200, -1), &fd, NULL), BK_YES);
    close(fd);
    close(server);
    hush(quiet, filler);
    all_is_freed(1);
}

static void test_connect_without_an_address(void **data) {
    (void)data;
    int fd = -77;
    pawl_error error = PAWL_ERROR_INIT;
    assert_int_equal(resolve_connect("nosuch.example", 1, within(5000, -1), &fd, &error), BK_FAULT);
    assert_non_null(strstr(error.text, "nosuch.example"));
    assert_int_equal(fd, -77);
}

/* A listener at address, and what the host behind a connection to "to" is called. */
static void peer_is(int family, const char *address, const char *to, const char *wanted) {
    struct sockaddr_in four = {.sin_family = AF_INET};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    struct sockaddr *at = family == AF_INET ? (struct sockaddr *)&four : (struct sockaddr *)&six;
    socklen_t size = family == AF_INET ? sizeof four : sizeof six;
    char name[64];
    int listener = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), fd;
    inet_pton(family, address, family == AF_INET ? (void *)&four.sin_addr : (void *)&six.sin6_addr);
    if (listener < 0 || bind(listener, at, size) != 0) {
        if (listener >= 0) close(listener);
        return; /* this machine has no such address */
    }
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, at, &size), 0);
    int port = ntohs(family == AF_INET ? four.sin_port : six.sin6_port);
    assert_int_equal(resolve_connect(to, port, within(10000, -1), &fd, NULL), BK_YES);
    resolve_peer(fd, name);
    assert_string_equal(name, wanted);
    close(fd);
    close(listener);
}

static void test_who_is_at_the_other_end(void **data) {
    (void)data;
    char name[64] = "x";
    peer_is(AF_INET, "127.0.0.1", "127.0.0.1", THIS_MACHINE);
    peer_is(AF_INET6, "::1", "::1", THIS_MACHINE);
    peer_is(AF_INET, "127.0.0.2", "127.0.0.2", "127.0.0.2"); /* as if it were another host */
    resolve_peer(-1, name);
    assert_string_equal(name, "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_literals_need_no_thread, setup),
        cmocka_unit_test_setup(test_a_silent_name_server_costs_the_deadline, setup),
        cmocka_unit_test_setup(test_cancel, setup),
        cmocka_unit_test_setup(test_many_at_once, setup),
        cmocka_unit_test_setup(test_unknown_name, setup),
        cmocka_unit_test_setup(test_more_addresses_than_room, setup),
        cmocka_unit_test_setup(test_connect, setup),
        cmocka_unit_test_setup(test_connect_goes_on_to_the_next_address, setup),
        cmocka_unit_test_setup(test_connect_refused, setup),
        cmocka_unit_test_setup(test_connect_to_silence, setup),
        cmocka_unit_test_setup(test_silence_leaves_time_for_the_next_address, setup),
        cmocka_unit_test_setup(test_connect_without_an_address, setup),
        cmocka_unit_test_setup(test_who_is_at_the_other_end, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
