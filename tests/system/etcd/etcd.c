/* etcd.c: leases on real servers, one member and three: members that are killed, stopped, or too few; the same locks as
 * etcdctl's; and tokens that rise over a cluster that was emptied. */
#include "clock.h"
#include "pawl.h"
#include "server.h"
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

#define TTL_MS 6000
static struct server members[3];
static char url[256];
static const char *const quick[] = {"--heartbeat-interval=50", "--election-timeout=500", NULL};

static int one(void **state) {
    (void)state;
    server_start_etcd(&members[0], quick);
    snprintf(url, sizeof url, "etcd://127.0.0.1:%d/locks/", members[0].port);
    return 0;
}

static int three(void **state) {
    (void)state;
    server_start_etcd_cluster(members, 3, quick);
    snprintf(url, sizeof url, "etcd://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d/locks/", members[0].port, members[1].port,
             members[2].port);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) server_stop(&members[i]);
    return 0;
}

static pawl_client *client(void) {
    pawl_options o = PAWL_OPTIONS_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    pawl_client *c;
    o.ttl_ms = TTL_MS;
    if (pawl_open(url, &o, &c, &error)) fail_msg("%s", error.text);
    return c;
}

static pawl_lock *take(pawl_client *c, int64_t wait_ms) {
    pawl_acquire_options o = PAWL_ACQUIRE_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    pawl_lock *lock;
    o.wait_ms = wait_ms;
    if (pawl_acquire(c, "n", &o, &lock, &error)) fail_msg("%s", error.text);
    return lock;
}

static int try_it(pawl_client *c, pawl_error *error) {
    pawl_acquire_options o = PAWL_ACQUIRE_INIT;
    pawl_lock *lock;
    o.wait_ms = 0;
    int code = pawl_acquire(c, "n", &o, &lock, error);
    if (code == PAWL_OK) pawl_release(lock, 1000, NULL);
    return code;
}

/* Waits for so long, or until the lock is lost. */
static bool stays_held(pawl_lock *lock, int ms) {
    struct pollfd p = {.fd = pawl_lost_fd(lock), .events = POLLIN};
    return poll(&p, 1, ms) == 0 && pawl_check(lock) == PAWL_OK;
}

static void test_tokens_rise_over_an_emptied_cluster(void **state) {
    (void)state;
    char command[128];
    pawl_client *c = client();
    pawl_lock *lock = take(c, 0);
    int64_t before = pawl_token(lock);
    pawl_release(lock, 1000, NULL);
    lock = take(c, 0);
    assert_in_range(pawl_token(lock) - before, 1, 100); /* nothing happened: it counts */
    before = pawl_token(lock);
    pawl_release(lock, 1000, NULL);
    pawl_close(c);
    server_kill(&members[0], SIGKILL);
    snprintf(command, sizeof command, "rm -rf '%s/data'", members[0].dir);
    assert_int_equal(system(command), 0);
    server_run(&members[0]); /* empty: revisions begin again, under the same cluster id */
    c = client();
    lock = take(c, 0);
    assert_true(pawl_token(lock) > before);
    pawl_release(lock, 1000, NULL);
    pawl_close(c);
}

static void test_the_lease_is_kept_and_given_back(void **state) {
    (void)state;
    char command[256], line[256] = "";
    pawl_client *c = client(), *d = client();
    pawl_lock *lock = take(c, 0);
    pawl_error error = PAWL_ERROR_INIT;
    assert_true(stays_held(lock, TTL_MS + 1500));
    assert_int_equal(try_it(d, &error), PAWL_EBUSY);
    assert_int_equal(pawl_verify(lock, 1000, &error), PAWL_OK);
    assert_int_equal(pawl_release(lock, 1000, &error), PAWL_OK);
    pawl_close(c);
    pawl_close(d);
    snprintf(command, sizeof command, "ETCDCTL_API=3 etcdctl --endpoints 127.0.0.1:%d lease list", members[0].port);
    FILE *list = popen(command, "r");
    assert_non_null(fgets(line, sizeof line, list));
    pclose(list);
    assert_string_equal(line, "found 0 leases\n");
}

static pid_t etcdctl_lock(const char *script) {
    pid_t pid = fork();
    if (pid == 0) {
        char endpoint[64];
        snprintf(endpoint, sizeof endpoint, "127.0.0.1:%d", members[0].port);
        setenv("ETCDCTL_API", "3", 1);
        execlp("etcdctl", "etcdctl", "--endpoints", endpoint, "lock", "--ttl", "5", "/locks/n", "sh", script, NULL);
        _exit(127);
    }
    return pid;
}

static void test_etcdctl_and_we_exclude_each_other(void **state) {
    (void)state;
    char path[128], script[128], command[256];
    int status;
    pawl_client *c = client();
    pawl_error error = PAWL_ERROR_INIT;
    snprintf(path, sizeof path, "%s/got", members[0].dir);
    snprintf(script, sizeof script, "%s/script", members[0].dir);
    FILE *file = fopen(script, "w");
    assert_non_null(file);
    fprintf(file, "echo got >'%s/got'; read x <'%s/fifo'\n", members[0].dir, members[0].dir);
    fclose(file);
    snprintf(command, sizeof command, "mkfifo '%s/fifo'", members[0].dir);
    assert_int_equal(system(command), 0);
    pawl_lock *lock = take(c, 0);
    pid_t pid = etcdctl_lock(script);
    poll(NULL, 0, 1000); /* it has every chance to take it */
    assert_int_not_equal(access(path, F_OK), 0);
    pawl_release(lock, 1000, NULL);
    for (int64_t end = clock_after_ms(clock_now_ns(), 8000); access(path, F_OK) && clock_now_ns() < end;)
        poll(NULL, 0, 10);
    assert_int_equal(access(path, F_OK), 0); /* served as the next in line */
    assert_int_equal(try_it(c, &error), PAWL_EBUSY);
    assert_non_null(strstr(error.text, "another program"));
    snprintf(command, sizeof command, "echo >'%s/fifo'", members[0].dir);
    assert_int_equal(system(command), 0); /* its command ends */
    assert_int_equal(waitpid(pid, &status, 0), pid);
    lock = take(c, 10000);
    pawl_release(lock, 1000, NULL);
    pawl_close(c);
}

static void test_a_member_killed_or_stopped_loses_nothing(void **state) {
    (void)state;
    pawl_client *c = client();
    pawl_lock *lock = take(c, 5000);
    for (int i = 0; i < 3; i++) { /* one of them leads, one of them is ours */
        server_kill(&members[i], i == 1 ? SIGSTOP : SIGKILL);
        assert_true(stays_held(lock, 4000));
        if (i == 1) server_kill(&members[i], SIGCONT);
        else server_run(&members[i]);
    }
    assert_int_equal(pawl_release(lock, 5000, NULL), PAWL_OK);
    pawl_close(c);
}

static void test_without_a_quorum_the_loss_is_told_in_time(void **state) {
    (void)state;
    pawl_client *c = client();
    pawl_lock *lock = take(c, 5000);
    int64_t began = clock_now_ns();
    server_kill(&members[0], SIGKILL);
    server_kill(&members[1], SIGKILL);
    struct pollfd p = {.fd = pawl_lost_fd(lock), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 2 * TTL_MS), 1);
    assert_true(clock_now_ns() - began < TTL_MS * NS_PER_MS); /* before the lease can have ended there */
    assert_int_equal(pawl_check(lock), PAWL_ELOST);
    pawl_release(lock, 0, NULL);
    pawl_error error = PAWL_ERROR_INIT;
    assert_int_equal(try_it(c, &error), PAWL_EUNREACHABLE);
    server_run(&members[0]);
    server_run(&members[1]);
    lock = take(c, 30000);
    pawl_release(lock, 5000, NULL);
    pawl_close(c);
}

int main(void) {
    if (access("/usr/bin/etcd", X_OK)) {
        printf("1..0 # SKIP no etcd here\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_tokens_rise_over_an_emptied_cluster, one, teardown),
        cmocka_unit_test_setup_teardown(test_the_lease_is_kept_and_given_back, one, teardown),
        cmocka_unit_test_setup_teardown(test_etcdctl_and_we_exclude_each_other, one, teardown),
        cmocka_unit_test_setup_teardown(test_a_member_killed_or_stopped_loses_nothing, three, teardown),
        cmocka_unit_test_setup_teardown(test_without_a_quorum_the_loss_is_told_in_time, three, teardown),
    };
    return cmocka_run_group_tests_name("etcd", tests, NULL, NULL);
}
