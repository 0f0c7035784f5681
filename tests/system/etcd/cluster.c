/* cluster.c: three members, some of them killed, stopped, cut off, or too few. */
#include "common.h"
#include <poll.h>

static int leader(void) {
    for (int i = 0; i < 3; i++)
        if (members[i].pid && metric_at(&members[i], "etcd_server_is_leader", "") > 0) return i;
    return -1;
}

/* The member that our clients ask first. */
static void ask_first(int i) {
    snprintf(url, sizeof url, "etcd://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d/locks/", members[i].port,
             members[(i + 1) % 3].port, members[(i + 2) % 3].port);
}

static int waits;
static bool in_line(void *data) {
    (void)data;
    return locks_keys("/locks/n/") == waits;
}

static void served(pawl_client *c) {
    pawl_event event = PAWL_EVENT_INIT;
    struct pollfd p = {.fd = pawl_event_fd(c), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 60000), 1);
    assert_int_equal(pawl_next_event(c, &event), 1);
    if (event.type != PAWL_GRANTED) fail_msg("%s", event.text);
}

/* The leader, which is also the member that holder and waiter talk to, is gone: nothing is lost, and the line moves on.
 */
static void without_the_leader(int signal) {
    int i = leader();
    assert_in_range(i, 0, 2);
    ask_first(i);
    pawl_client *a = client(url, TTL_MS), *b = client(url, TTL_MS);
    pawl_lock *lock = take(a, "n", 60000), *next;
    pawl_error error = PAWL_ERROR_INIT;
    assert_int_equal(pawl_acquire_start(b, "n", NULL, NULL, &next, &error), PAWL_OK);
    waits = 2;
    assert_true(server_until(in_line, NULL, 30000));
    int64_t token = pawl_token(lock);
    server_kill(&members[i], signal);
    assert_true(stays_held(lock, TTL_MS + 1000));
    if (pawl_release(lock, 60000, &error)) fail_msg("%s", error.text);
    served(b);
    assert_true(pawl_token(next) > token);
    if (signal == SIGKILL) server_run(&members[i]);
    assert_true(stays_held(next, 1000));
    if (pawl_release(next, 60000, &error)) fail_msg("%s", error.text);
    if (signal == SIGSTOP) server_kill(&members[i], SIGCONT);
    pawl_close(a);
    pawl_close(b);
}

static void test_the_leader_is_killed(void **state) {
    (void)state;
    FULL_ONLY();
    without_the_leader(SIGKILL);
}

static void test_the_leader_is_stopped(void **state) {
    (void)state;
    without_the_leader(SIGSTOP);
}

static pawl_lock *watched;
static bool both_know(void *data) {
    (void)data;
    return (locks_keys("/locks/n/") == 1) == (pawl_check(watched) == PAWL_OK);
}

/* etcd before 3.4.31 and 3.5.13 (etcd-io/etcd issue 15247): a leader that wakes up after others have a new one may end
 * leases that live on. It does so or not; the holder is told. */
static void test_a_leader_that_wakes_up_may_end_leases_and_it_is_told(void **state) {
    (void)state;
    int i = leader();
    assert_in_range(i, 0, 2);
    ask_first((i + 1) % 3);
    pawl_client *a = client(url, TTL_MS);
    watched = take(a, "n", 60000);
    server_kill(&members[i], SIGSTOP);
    bool held = stays_held(watched, TTL_MS + 1000); /* it has run out as the one that sleeps sees it */
    server_kill(&members[i], SIGCONT);
    assert_true(held);
    (void)stays_held(watched, 2000);
    assert_true(server_until(both_know, NULL, 2 * TTL_MS));
    int64_t token = pawl_token(watched);
    pawl_release(watched, 5000, NULL);
    pawl_lock *next = take(a, "n", 2 * TTL_MS);
    assert_true(pawl_token(next) > token);
    pawl_release(next, 5000, NULL);
    pawl_close(a);
}

static void test_a_member_killed_or_stopped_loses_nothing(void **state) {
    (void)state;
    FULL_ONLY();
    pawl_client *c = client(url, TTL_MS);
    pawl_lock *lock = take(c, "n", 60000);
    for (int i = 0; i < 3; i++) { /* one of them leads, one of them is ours */
        server_kill(&members[i], i == 1 ? SIGSTOP : SIGKILL);
        assert_true(stays_held(lock, 2500)); /* shorter than what is left of the lease: see the case above */
        if (i == 1) server_kill(&members[i], SIGCONT);
        else server_run(&members[i]);
    }
    assert_int_equal(pawl_release(lock, 5000, NULL), PAWL_OK);
    pawl_close(c);
}

static void test_without_a_quorum_the_loss_is_told_in_time(void **state) {
    (void)state;
    pawl_client *c = client(url, TTL_MS), *d = client(url, TTL_MS);
    pawl_lock *lock = take(c, "n", 60000), *next;
    pawl_error error = PAWL_ERROR_INIT;
    assert_int_equal(pawl_acquire_start(d, "n", NULL, NULL, &next, &error), PAWL_OK);
    waits = 2;
    assert_true(server_until(in_line, NULL, 30000));
    int64_t began = clock_now_ns();
    server_kill(&members[0], SIGKILL);
    server_kill(&members[1], SIGKILL);
    assert_true(lost_within(lock, 2 * TTL_MS));
    assert_true(clock_now_ns() - began < TTL_MS * NS_PER_MS); /* before the lease can have ended there */
    assert_int_equal(pawl_check(lock), PAWL_ELOST);
    pawl_release(lock, 0, NULL);
    assert_int_equal(try_it(c, "n", &error), PAWL_EUNREACHABLE);
    server_run(&members[0]);
    server_run(&members[1]);
    served(d); /* it waits on */
    pawl_release(next, 5000, NULL);
    lock = take(c, "n", 30000);
    pawl_release(lock, 5000, NULL);
    pawl_close(c);
    pawl_close(d);
}

/* Nobody's lease ends in etcd while it has no majority, and whoever waits has no deadline: the line stays as it was. */
static void test_the_line_outlasts_a_stop_longer_than_a_ttl(void **state) {
    (void)state;
    pawl_client *a = client(url, 60000), *b = client(url, TTL_MS), *c = client(url, 60000);
    pawl_lock *lock = take(a, "n", 60000), *second, *third;
    pawl_error error = PAWL_ERROR_INIT;
    assert_int_equal(pawl_acquire_start(b, "n", NULL, NULL, &second, &error), PAWL_OK);
    waits = 2;
    assert_true(server_until(in_line, NULL, 30000));
    assert_int_equal(pawl_acquire_start(c, "n", NULL, NULL, &third, &error), PAWL_OK);
    waits = 3;
    assert_true(server_until(in_line, NULL, 30000));
    for (int i = 0; i < 2; i++) server_kill(&members[i], SIGKILL);
    assert_true(stays_held(lock, TTL_MS + 2000));
    for (int i = 0; i < 2; i++) server_run(&members[i]);
    assert_true(stays_held(lock, TTL_MS + 2000)); /* a lease that nobody renews would end now */
    if (pawl_release(lock, 60000, &error)) fail_msg("%s", error.text);
    served(b);
    pawl_release(second, 20000, NULL);
    served(c);
    pawl_release(third, 20000, NULL);
    pawl_close(a);
    pawl_close(b);
    pawl_close(c);
}

/* --- a leader that clients reach and its peers do not: it runs in a network of its own, behind two cables --- */

static char net[16];

static bool far_ready(const struct server *s) {
    (void)s;
    return true; /* it is not on the loopback: the others tell whether they have a quorum */
}

static int apart(void **state) {
    (void)state;
    char cluster[256];
    int peer[3];
    snprintf(net, sizeof net, "pawl%d", (int)getpid() % 100000);
    char command[1024];
    snprintf(command, sizeof command,
             "exec 2>/dev/null; ip netns add %s && ip link add %sp type veth peer name p netns %s && "
             "ip link add %sc type veth peer name c netns %s && ip addr add 10.213.17.1/30 dev %sp && "
             "ip addr add 10.213.17.5/30 dev %sc && ip link set %sp up && ip link set %sc up && "
             "ip -n %s addr add 10.213.17.2/30 dev p && ip -n %s addr add 10.213.17.6/30 dev c && "
             "ip -n %s link set p up && ip -n %s link set c up && ip -n %s link set lo up",
             net, net, net, net, net, net, net, net, net, net, net, net, net, net);
    if (system(command)) {
        *net = 0;
        return 0;
    }
    for (int i = 0; i < 3; i++) {
        members[i].port = server_free_port();
        peer[i] = server_free_port();
    }
    snprintf(cluster, sizeof cluster, "m0=http://10.213.17.1:%d,m1=http://10.213.17.1:%d,m2=http://10.213.17.2:%d",
             peer[0], peer[1], peer[2]);
    for (int i = 0; i < 3; i++) {
        struct server *s = &members[i];
        const char *host = i == 2 ? "10.213.17.6" : "127.0.0.1", *peer_host = i == 2 ? "10.213.17.2" : "10.213.17.1";
        server_make_dir(s, "etcd");
        s->ready = far_ready;
        if (i == 2)
            for (const char *const *word = (const char *const[]){"ip", "netns", "exec", net, NULL}; *word; word++)
                server_arg(s, "%s", *word);
        server_arg(s, "etcd");
        server_arg(s, "--name=m%d", i);
        server_arg(s, "--data-dir=%s/data", s->dir);
        server_arg(s, "--listen-client-urls=http://%s:%d", host, s->port);
        server_arg(s, "--advertise-client-urls=http://%s:%d", host, s->port);
        server_arg(s, "--listen-peer-urls=http://%s:%d", peer_host, peer[i]);
        server_arg(s, "--initial-advertise-peer-urls=http://%s:%d", peer_host, peer[i]);
        server_arg(s, "--initial-cluster=%s", cluster);
        for (const char *const *o = quick; *o; o++) server_arg(s, "%s", *o);
        server_run(s);
    }
    snprintf(url, sizeof url, "etcd://10.213.17.6:%d,127.0.0.1:%d,127.0.0.1:%d/locks/", members[2].port,
             members[0].port, members[1].port);
    return 0;
}

static int together(void **state) {
    teardown(state);
    if (*net) shell("ip netns del %s; ip link del %sp 2>/dev/null; ip link del %sc 2>/dev/null; true", net, net, net);
    return 0;
}

static bool answers(void *data) {
    (void)data;
    char command[256];
    snprintf(command, sizeof command, "curl -s -m 2 http://127.0.0.1:%d/health | grep -q '\"true\"'", members[0].port);
    return system(command) == 0;
}

static bool it_leads(void *data) {
    (void)data;
    char command[512];
    snprintf(
        command, sizeof command,
        "id=$(ETCDCTL_API=3 etcdctl --endpoints=127.0.0.1:%d member list | sed -n 's/, .*m2.*//p'); "
        "ETCDCTL_API=3 etcdctl --endpoints=127.0.0.1:%d,127.0.0.1:%d,10.213.17.6:%d move-leader $id 2>/dev/null | "
        "grep -q 'transferred' || ETCDCTL_API=3 etcdctl --endpoints=10.213.17.6:%d endpoint status | grep -q ', true,'",
        members[0].port, members[0].port, members[1].port, members[2].port, members[2].port);
    return system(command) == 0;
}

static void test_a_leader_cut_off_from_its_peers(void **state) {
    (void)state;
    if (!*net) {
        print_message("# left out: no network of its own to be had (ip netns, as root)\n");
        return;
    }
    assert_true(server_until(answers, NULL, 20000));
    assert_true(server_until(it_leads, NULL, 20000));
    pawl_client *a = client(url, TTL_MS), *b = client(url, TTL_MS);
    pawl_lock *lock = take(a, "n", 60000), *next;
    pawl_error error = PAWL_ERROR_INIT;
    assert_int_equal(pawl_acquire_start(b, "n", NULL, NULL, &next, &error), PAWL_OK);
    waits = 2;
    assert_true(server_until(in_line, NULL, 30000));
    int64_t token = pawl_token(lock);
    shell("ip link set %sp down", net);
    assert_true(stays_held(lock, TTL_MS + 1000));
    if (pawl_release(lock, 60000, &error)) fail_msg("%s", error.text);
    served(b);
    assert_true(pawl_token(next) > token);
    shell("ip link set %sp up", net);
    assert_true(stays_held(next, 2000));
    if (pawl_release(next, 60000, &error)) fail_msg("%s", error.text);
    pawl_close(a);
    pawl_close(b);
}

/* Renewals fall into the change; the command that runs under the lock and who reads its messages see nothing of it. */
static void test_a_change_of_leader_says_nothing(void **state) {
    (void)state;
    FULL_ONLY();
    char line[512] = "", command[1024];
    server_stop(&members[0]), server_stop(&members[1]), server_stop(&members[2]);
    server_start_etcd_cluster(members, 3, NULL); /* heartbeats and elections as etcd has them by itself */
    int i = leader();
    assert_in_range(i, 0, 2);
    ask_first(i);
    snprintf(command, sizeof command, "%s run --ttl 15s -u '%s' n -- sleep 12 2>&1; echo $?", getenv("PAWL_BIN"), url);
    FILE *run = popen(command, "r");
    assert_non_null(run);
    poll(NULL, 0, 4800);
    server_kill(&members[i], SIGKILL); /* the first renewal is due at 5 s */
    assert_non_null(fgets(line, sizeof line, run));
    pclose(run);
    assert_string_equal(line, "0\n"); /* no message before it */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_leader_is_killed, three, teardown),
        cmocka_unit_test_setup_teardown(test_the_leader_is_stopped, three, teardown),
        cmocka_unit_test_setup_teardown(test_a_leader_that_wakes_up_may_end_leases_and_it_is_told, three, teardown),
        cmocka_unit_test_setup_teardown(test_a_leader_cut_off_from_its_peers, apart, together),
        cmocka_unit_test_setup_teardown(test_a_member_killed_or_stopped_loses_nothing, three, teardown),
        cmocka_unit_test_setup_teardown(test_without_a_quorum_the_loss_is_told_in_time, three, teardown),
        cmocka_unit_test_setup_teardown(test_the_line_outlasts_a_stop_longer_than_a_ttl, three, teardown),
        cmocka_unit_test_setup_teardown(test_a_change_of_leader_says_nothing, three, teardown),
    };
    return RUN("etcd: cluster", tests);
}
