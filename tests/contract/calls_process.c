/* calls_process.c: fork, and what keeps a lock when its process is gone. */
#include "calls.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
/* A child with a client of its own starts a thread. */
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "die_after_fork=0"; }
#endif

/* The exit status of a child that runs `body`; 99 if it does not end. */
static int in_child(int (*body)(void *), void *data) {
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(body(data));
    }
    int status = 0;
    for (int64_t end = call_now_ms() + AWAIT_MS; waitpid(pid, &status, WNOHANG) == 0;) {
        if (call_now_ms() > end) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return 99;
        }
        poll(NULL, 0, 2);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 98;
}

struct both {
    pawl_client *client;
    pawl_lock *lock;
};

static int use_in_child(void *data) {
    struct both *both = data;
    pawl_lock *lock = NULL;
    pawl_event event = PAWL_EVENT_INIT;
    if (pawl_check(both->lock) != PAWL_ELOST || pawl_remaining_ms(both->lock) > 0) return 1;
    if (pawl_acquire(both->client, "forked2", NULL, &lock, NULL) != PAWL_EINVALID) return 2;
    if (pawl_acquire_start(both->client, "forked2", NULL, NULL, &lock, NULL) != PAWL_EINVALID) return 3;
    if (pawl_release(both->lock, 100, NULL) != PAWL_EINVALID) return 4;
    if (pawl_verify(both->lock, 100, NULL) != PAWL_EINVALID) return 5;
    if (pawl_event_fd(both->client) >= 0 || pawl_lost_fd(both->lock) >= 0) return 6;
    if (pawl_next_event(both->client, &event) != 0) return 7;
    pawl_forget(both->client);
    return 0;
}

static int close_in_child(void *data) {
    pawl_close(((struct both *)data)->client);
    return 0;
}

static void child_says_nothing(void **state) {
    struct suite *suite = *state;
    struct both both = {.client = call_open(suite)};
    pawl_client *other = call_open(suite);
    both.lock = call_acquire(both.client, "forked", 0);
    assert_int_equal(in_child(use_in_child, &both), 0);
    assert_int_equal(in_child(close_in_child, &both), 0);
    assert_int_equal(pawl_check(both.lock), PAWL_OK);
    assert_int_equal(pawl_verify(both.lock, AWAIT_MS, NULL), PAWL_OK);
    assert_int_equal(call_try(other, "forked"), PAWL_EBUSY);
    call_release(both.lock);
    assert_int_equal(call_try(other, "forked"), PAWL_OK);
    pawl_close(both.client);
    pawl_close(other);
}

#if !defined(__SANITIZE_THREAD__)
static int open_in_child(void *data) {
    pawl_client *client = call_open(data);
    int code = call_try(client, "before-fork");
    pawl_close(client);
    return code;
}

static int use_early_in_child(void *data) {
    pawl_lock *lock = NULL;
    pawl_client *client = data;
    int code = pawl_acquire(client, "early", NULL, &lock, NULL);
    if (code == PAWL_OK) code = pawl_release(lock, AWAIT_MS, NULL);
    pawl_forget(client); /* its own by now: closed, and its thread ended first */
    return code;
}

static void child_has_a_client_of_its_own(void **state) {
    struct suite *suite = *state;
    pawl_client *client = call_open(suite), *unused = call_open(suite);
    call_release(call_acquire(client, "before-fork", 0));
    assert_int_equal(in_child(open_in_child, suite), PAWL_OK);
    assert_int_equal(in_child(use_early_in_child, unused), PAWL_OK); /* opened, then forked: nothing was shared yet */
    call_release(call_acquire(client, "before-fork", 0));
    pawl_close(unused);
    pawl_close(client);
}

#endif

/* The thread that would do it may not have been started yet. */
static void release_needs_no_descriptor(void **state) {
    struct suite *suite = *state;
    pawl_client *client = call_open(suite), *other = call_open(suite);
    pawl_lock *lock = call_acquire(client, "no-descriptor", 0);
    struct rlimit was, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    none = (struct rlimit){3, was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    int code = pawl_release(lock, 0, NULL);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    assert_int_equal(code, PAWL_OK);
    int64_t end = call_now_ms() + AWAIT_MS;
    while ((code = call_try(other, "no-descriptor")) == PAWL_EBUSY && call_now_ms() < end) poll(NULL, 0, 5);
    assert_int_equal(code, PAWL_OK);
    pawl_close(client);
    pawl_close(other);
}

static void ttl_needs_no_descriptor(void **state) {
    struct suite *suite = *state;
    pawl_client *client = call_open(suite);
    pawl_lock *lock = call_acquire(client, "fds", 0);
    int fds[8];
    assert_int_equal(pawl_holding_fds(lock, fds, 8), 0);
    call_release(lock);
    pawl_close(client);
}

struct guardian {
    struct suite *suite;
    int told[2], end[2]; /* pipes: the lock is held and the guardian stands; the guardian is to end */
};

/* The holder: takes the lock, leaves a guardian behind with the descriptors, and dies of a signal. */
static int hold_and_die(void *data) {
    struct guardian *g = data;
    pawl_client *client = call_open(g->suite);
    pawl_lock *lock = call_acquire(client, "guardian", 0);
    int fds[8], n = pawl_holding_fds(lock, fds, 8);
    if (n < 1 || n > 8) return 1;
    for (int i = 0; i < n; i++) fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);
    if (fork() == 0) {
        char byte = 'h';
        prctl(PR_SET_PDEATHSIG, 0);
        pawl_forget(client);
        close(g->end[1]);
        (void)!write(g->told[1], &byte, 1);
        (void)!read(g->end[0], &byte, 1);
        _exit(0);
    }
    call_readable(g->end[0], AWAIT_MS);
    return 2;
}

static void descriptors_outlive_the_holder(void **state) {
    struct suite *suite = *state;
    struct guardian g = {.suite = suite};
    pawl_client *other = call_open(suite);
    char byte;
    assert_int_equal(pipe(g.told) | pipe(g.end), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(g.end[1]);
        _exit(hold_and_die(&g));
    }
    assert_true(call_readable(g.told[0], AWAIT_MS));
    assert_int_equal(read(g.told[0], &byte, 1), 1);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    assert_int_equal(call_try(other, "guardian"), PAWL_EBUSY);
    close(g.end[1]);
    call_release(call_acquire(other, "guardian", AWAIT_MS));
    close(g.told[0]);
    close(g.told[1]);
    close(g.end[0]);
    pawl_close(other);
}

const struct contract_case process_cases[] = {
    CASE(child_says_nothing, ALWAYS),
#if !defined(__SANITIZE_THREAD__) /* which mistakes the child's threads for the parent's */
    CASE(child_has_a_client_of_its_own, ALWAYS),
#endif
    CASE(release_needs_no_descriptor, ALWAYS),
    CASE(ttl_needs_no_descriptor, LOCK_LIFE),
    CASE(descriptors_outlive_the_holder, DESCRIPTORS),
    {0},
};
