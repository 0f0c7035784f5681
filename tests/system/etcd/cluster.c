/* cluster.c: three members, some of them killed, stopped, cut off, or too few. */
#include "common.h"
#include <poll.h>
#include <sys/wait.h>

static void test_tokens_rise_over_an_emptied_cluster(void **state) {
    (void)state;
    char command[128];
    pawl_client *c = client(url, TTL_MS);
    pawl_lock *lock = take(c, "n", 0);
    int64_t before = pawl_token(lock);
    pawl_release(lock, 1000, NULL);
    lock = take(c, "n", 0);
    assert_in_range(pawl_token(lock) - before, 1, 100); /* nothing happened: it counts */
    before = pawl_token(lock);
    pawl_release(lock, 1000, NULL);
    pawl_close(c);
    server_kill(&members[0], SIGKILL);
    snprintf(command, sizeof command, "rm -rf '%s/data'", members[0].dir);
    assert_int_equal(system(command), 0);
    server_run(&members[0]); /* empty: revisions begin again, under the same cluster id */
    c = client(url, TTL_MS);
    lock = take(c, "n", 0);
    assert_true(pawl_token(lock) > before);
    pawl_release(lock, 1000, NULL);
    pawl_close(c);
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
    pawl_client *c = client(url, TTL_MS);
    pawl_error error = PAWL_ERROR_INIT;
    snprintf(path, sizeof path, "%s/got", members[0].dir);
    snprintf(script, sizeof script, "%s/script", members[0].dir);
    FILE *file = fopen(script, "w");
    assert_non_null(file);
    fprintf(file, "echo got >'%s/got'; read x <'%s/fifo'\n", members[0].dir, members[0].dir);
    fclose(file);
    snprintf(command, sizeof command, "mkfifo '%s/fifo'", members[0].dir);
    assert_int_equal(system(command), 0);
    pawl_lock *lock = take(c, "n", 0);
    pid_t pid = etcdctl_lock(script);
    poll(NULL, 0, 1000); /* it has every chance to take it */
    assert_int_not_equal(access(path, F_OK), 0);
    pawl_release(lock, 1000, NULL);
    for (int64_t end = clock_after_ms(clock_now_ns(), 8000); access(path, F_OK) && clock_now_ns() < end;)
        poll(NULL, 0, 10);
    assert_int_equal(access(path, F_OK), 0); /* served as the next in line */
    assert_int_equal(try_it(c, "n", &error), PAWL_EBUSY);
    assert_non_null(strstr(error.text, "another program"));
    snprintf(command, sizeof command, "echo >'%s/fifo'", members[0].dir);
    assert_int_equal(system(command), 0); /* its command ends */
    assert_int_equal(waitpid(pid, &status, 0), pid);
    lock = take(c, "n", 10000);
    pawl_release(lock, 1000, NULL);
    pawl_close(c);
}

static void test_a_member_killed_or_stopped_loses_nothing(void **state) {
    (void)state;
    pawl_client *c = client(url, TTL_MS);
    pawl_lock *lock = take(c, "n", 5000);
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
    pawl_client *c = client(url, TTL_MS);
    pawl_lock *lock = take(c, "n", 5000);
    int64_t began = clock_now_ns();
    server_kill(&members[0], SIGKILL);
    server_kill(&members[1], SIGKILL);
    struct pollfd p = {.fd = pawl_lost_fd(lock), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 2 * TTL_MS), 1);
    assert_true(clock_now_ns() - began < TTL_MS * NS_PER_MS); /* before the lease can have ended there */
    assert_int_equal(pawl_check(lock), PAWL_ELOST);
    pawl_release(lock, 0, NULL);
    pawl_error error = PAWL_ERROR_INIT;
    assert_int_equal(try_it(c, "n", &error), PAWL_EUNREACHABLE);
    server_run(&members[0]);
    server_run(&members[1]);
    lock = take(c, "n", 30000);
    pawl_release(lock, 5000, NULL);
    pawl_close(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_tokens_rise_over_an_emptied_cluster, one, teardown),
        cmocka_unit_test_setup_teardown(test_etcdctl_and_we_exclude_each_other, one, teardown),
        cmocka_unit_test_setup_teardown(test_a_member_killed_or_stopped_loses_nothing, three, teardown),
        cmocka_unit_test_setup_teardown(test_without_a_quorum_the_loss_is_told_in_time, three, teardown),
    };
    return RUN("etcd: cluster", tests);
}
