/* tokens.c: whatever happens to the data of a Redis, the tokens rise; and where nothing happened, they do not leap. */
#include "clock.h"
#include "probe.h"
#include "proxy.h"
#include "skew.h"
#include "token.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct server a, b, c;
static struct probe at_a;
static uint64_t last;

static void command(const struct server *s, const char *text) {
    char *reply = server_redis(s->port, "%s", text);
    if (!reply || *reply == '-') fail_msg("%s: %s", text, reply ? reply : "no answer");
    free(reply);
}

static void follow(const struct server *replica, const struct server *primary) {
    char text[64];
    snprintf(text, sizeof text, "REPLICAOF 127.0.0.1 %d", primary->port);
    command(replica, text);
}

static bool in_step(void *data) {
    struct server **pair = data;
    char *mine = server_redis(pair[0]->port, "GET mark"), *other = server_redis(pair[1]->port, "GET mark");
    bool same = mine && other && *mine && strcmp(mine, other) == 0;
    free(mine);
    free(other);
    return same;
}

/* Follows, and has all that the primary has. */
static void catch_up(struct server *replica, struct server *primary) {
    static int number;
    char text[64];
    struct server *pair[] = {replica, primary};
    snprintf(text, sizeof text, "SET mark %d", ++number);
    command(primary, text);
    assert_true(server_until(in_step, pair, 10000));
}

static int setup(void **state) {
    (void)state;
    server_start_redis(&a, NULL);
    probe_ready(&at_a, "%s", a.url);
    last = 0;
    return 0;
}

static int teardown(void **state) {
    (void)state;
    probe_close(&at_a);
    server_stop(&a);
    server_stop(&b);
    server_stop(&c);
    return 0;
}

/* A grant there; its token must be above all that came before. */
static uint64_t grant(struct probe *p) {
    probe_name(p, "n");
    if (probe_take(p, false) != BK_YES) fail_msg("%s", p->error.text);
    if (p->grant.token <= last)
        fail_msg("token %llu after %llu", (unsigned long long)p->grant.token, (unsigned long long)last);
    last = p->grant.token;
    probe_release(p);
    return last;
}

static void grants(struct probe *p, int n) {
    for (int i = 0; i < n; i++) grant(p);
}

static struct bk_tokens show(struct probe *p) {
    struct bk_tokens t = {0};
    if (probe_backend->tokens(p->session, false, 0, probe_soon(10000), &t, &p->error) != BK_YES)
        fail_msg("%s", p->error.text);
    return t;
}

/* No discontinuity was seen: counted on by one. */
static void counts_on(struct probe *p) {
    uint64_t before = last;
    assert_int_equal(grant(p), before + 1);
}

static void leaps(struct probe *p) {
    uint64_t before = last;
    assert_true(grant(p) > before + TOKEN_LEAP / 2);
}

static void again(struct probe *p) {
    probe_drop(p);
    if (probe_connect(p) != BK_YES) fail_msg("%s", p->error.text);
}

static void test_starts_at_the_clock(void **state) {
    (void)state;
    int64_t now = clock_wall_us();
    grants(&at_a, 5);
    assert_true((int64_t)last - now < 2 * 1000000 && now - (int64_t)last < 2 * 1000000);
    struct bk_tokens t = show(&at_a);
    assert_int_equal(t.last, last);
    assert_int_equal(t.since, last - 5);
    assert_string_equal(t.stored, t.answering);
}

static void test_flushall_and_empty_restart(void **state) {
    (void)state;
    grants(&at_a, 3);
    command(&a, "FLUSHALL");
    grants(&at_a, 3);
    server_restart(&a);
    again(&at_a);
    grants(&at_a, 3);
}

static void test_restart_with_its_data(void **state) {
    (void)state;
    static const char *const durable[] = {"--appendonly", "yes", "--appendfsync", "always", NULL};
    server_start_redis(&b, durable);
    struct probe p;
    probe_ready(&p, "%s", b.url);
    grants(&p, 3);
    server_restart(&b);
    again(&p);
    leaps(&p);
    counts_on(&p);
    probe_close(&p);
}

static void test_old_snapshot(void **state) {
    (void)state;
    grants(&at_a, 3);
    command(&a, "SAVE");
    grants(&at_a, 200);
    server_restart(&a); /* what came after SAVE is gone */
    again(&at_a);
    leaps(&at_a);
}

static bool is_free(void *data) {
    (void)data;
    return probe_take(&at_a, false) == BK_YES;
}

/* A snapshot that was made while a lock was held does not hold it again for longer than its ttl. */
static void test_snapshot_of_a_held_lock(void **state) {
    (void)state;
    at_a.claim.ttl_ms = 6000; /* longer than a restart takes */
    probe_name(&at_a, "n");
    assert_int_equal(probe_take(&at_a, false), BK_YES);
    last = at_a.grant.token;
    command(&a, "SAVE");
    server_restart(&a);
    again(&at_a);
    probe_name(&at_a, "n");
    assert_int_equal(probe_take(&at_a, false), BK_NO);
    assert_true(server_until(is_free, NULL, 7500));
    assert_true(at_a.grant.token > last);
}

/* The same process, and a connection that lives through it: only replid2 and its offset tell. */
static void test_demoted_and_promoted(void **state) {
    (void)state;
    server_start_redis(&b, NULL);
    grants(&at_a, 3);
    follow(&b, &a);
    catch_up(&b, &a);
    command(&b, "REPLICAOF NO ONE");
    grants(&at_a, 100); /* b does not have them */
    follow(&a, &b);
    catch_up(&a, &b);
    command(&a, "REPLICAOF NO ONE");
    leaps(&at_a);
    counts_on(&at_a);
}

/* A replica of nobody, and a primary again: nothing but its second id and offset tells. */
static void flip(void) {
    command(&a, "REPLICAOF 127.0.0.1 1");
    command(&a, "REPLICAOF NO ONE");
}

static void test_counted_without_a_look(void **state) {
    (void)state;
    struct proxy *proxy = proxy_start(a.port);
    struct probe p;
    int64_t takes = 0;
    probe_ready(&p, "redis://127.0.0.1:%d", proxy_port(proxy));
    for (int i = 0; i < 50 && takes != 2; i++) { /* one look may be saved only within 10 ms, and not always is */
        proxy_delay(proxy, PROXY_TO_SERVER, 0);
        grants(&p, 2);
        flip();
        proxy_delay(proxy, PROXY_TO_SERVER, 50); /* it comes too late to be believed */
        command(&a, "CONFIG RESETSTAT");
        uint64_t before = last;
        probe_name(&p, "n");
        assert_int_equal(probe_take(&p, false), BK_YES);
        assert_true(p.grant.token > before + TOKEN_LEAP / 2);
        last = p.grant.token;
        char *info = server_redis(a.port, "INFO commandstats"), *calls = strstr(info, "cmdstat_evalsha:calls=");
        takes = calls ? atoll(calls + strlen("cmdstat_evalsha:calls=")) : 0;
        free(info);
        proxy_delay(proxy, PROXY_TO_SERVER, 0);
        probe_release(&p);
    }
    assert_int_equal(takes, 2); /* asked again */
    probe_close(&p);
    proxy_stop(proxy);
}

static void test_handed_over_without_a_look(void **state) {
    (void)state;
    struct probe waiter;
    probe_ready(&waiter, "%s", a.url);
    assert_int_equal(probe_backend->hub_open(waiter.bk, probe_soon(10000), &waiter.error), BK_YES);
    probe_name(&at_a, "n");
    assert_int_equal(probe_take(&at_a, false), BK_YES);
    probe_name(&waiter, "n");
    assert_int_equal(probe_take(&waiter, true), BK_NO);
    flip();
    assert_int_equal(probe_release(&at_a), BK_YES);
    assert_int_equal(probe_take(&waiter, true), BK_YES);
    assert_true(waiter.grant.token > at_a.grant.token + TOKEN_LEAP / 2);
    last = waiter.grant.token;
    assert_int_equal(probe_take(&waiter, true), BK_YES); /* a repeat is told the same */
    assert_int_equal(waiter.grant.token, last);
    assert_int_equal(probe_release(&waiter), BK_YES);
    counts_on(&at_a);
    probe_close(&waiter);
}

static void test_first_replica(void **state) {
    (void)state;
    server_start_redis(&b, NULL);
    grants(&at_a, 3);
    follow(&b, &a);
    catch_up(&b, &a);
    counts_on(&at_a);
}

static bool second_id_gone(void *data) {
    (void)data;
    char *info = server_redis(b.port, "INFO replication");
    bool gone = info && strstr(info, "master_replid2:0000000000000000000000000000000000000000") != NULL;
    free(info);
    return gone;
}

/* A promoted primary drops its second id when it had no replica for repl-backlog-ttl: nothing was lost by that. */
static void test_backlog_forgotten(void **state) {
    (void)state;
    static const char *const quick[] = {"--repl-backlog-ttl", "3", NULL};
    struct probe p;
    server_start_redis(&b, quick);
    server_start_redis(&c, NULL);
    grants(&at_a, 3);
    follow(&b, &a);
    catch_up(&b, &a);
    command(&b, "REPLICAOF NO ONE");
    probe_ready(&p, "%s", b.url);
    leaps(&p);
    follow(&c, &b);
    catch_up(&c, &b);
    counts_on(&p);
    server_stop(&c);
    assert_false(second_id_gone(NULL));
    assert_true(server_until(second_id_gone, NULL, 20000));
    counts_on(&p);
    again(&p);
    counts_on(&p);
    probe_close(&p);
}

/* The rule needs the clock to have passed the last number: a second for two events, since each adds 2^20 microseconds.
 */
static bool clock_passed_last(void *data) {
    (void)data;
    return clock_wall_us() > (int64_t)last;
}

static void test_chained_failover(void **state) {
    (void)state;
    struct probe at_b, at_c;
    server_start_redis(&b, NULL);
    server_start_redis(&c, NULL);
    follow(&b, &a);
    follow(&c, &a);
    grants(&at_a, 3);
    catch_up(&b, &a);
    catch_up(&c, &a);
    command(&c, "REPLICAOF NO ONE"); /* misses the tail */
    grants(&at_a, 50);
    catch_up(&b, &a);
    server_kill(&a, SIGKILL);
    command(&b, "REPLICAOF NO ONE");
    probe_ready(&at_b, "%s", b.url);
    leaps(&at_b);
    grants(&at_b, 50);
    server_kill(&b, SIGKILL);
    assert_true(server_until(clock_passed_last, NULL, 10000));
    probe_ready(&at_c, "%s", c.url);
    grant(&at_c);
    counts_on(&at_c);
    probe_close(&at_b);
    probe_close(&at_c);
}

/* The old primary lives on: what it gives out stays below the first token of the one that was promoted. */
static void test_zombie(void **state) {
    (void)state;
    struct probe at_b;
    server_start_redis(&b, NULL);
    grants(&at_a, 3);
    follow(&b, &a);
    catch_up(&b, &a);
    command(&b, "REPLICAOF NO ONE");
    probe_ready(&at_b, "%s", b.url);
    uint64_t promoted = grant(&at_b);
    for (int i = 0; i < 1000; i++) {
        last = 0;
        assert_true(grant(&at_a) < promoted);
    }
    again(&at_a);
    last = 0;
    assert_true(grant(&at_a) < promoted); /* a fresh connection does not lift it either */
    probe_close(&at_b);
}

static int64_t clock_of(const struct server *s) {
    return server_redis_int(s->port, "EVAL return(redis.call('TIME')[1]+0) 0");
}

static void test_clock_steps(void **state) {
    (void)state;
    struct probe p;
    b.shim = skew_library();
    server_start_redis(&b, NULL);
    probe_ready(&p, "%s", b.url);
    grants(&p, 3);
    int64_t now = clock_of(&b);
    skew_set(&b, -3600 * 1000);
    int64_t shifted = clock_of(&b);
    if (shifted > now - 3590 || shifted < now - 3610) fail_msg("the server does not see the shift");
    counts_on(&p);
    skew_set(&b, 3600 * 1000);
    counts_on(&p);
    command(&b, "FLUSHALL");
    grants(&p, 3);
    skew_set(&b, 0);
    counts_on(&p);
    command(&b, "FLUSHALL"); /* the clock goes back by more than the time since the last such event: the one limit */
    last = 0;
    grants(&p, 1);
    skew_set(&b, INT64_C(25) * 3600 * 1000);
    counts_on(&p);
    command(&b, "FLUSHALL");
    probe_name(&p, "n");
    assert_int_equal(probe_take(&p, false), BK_FAULT);
    assert_int_equal(p.error.code, PAWL_EUNSAFE);
    assert_non_null(strstr(p.error.text, "a day apart"));
    assert_int_equal(server_redis_int(b.port, "DBSIZE"), 0);
    probe_close(&p);
}

static void test_advance(void **state) {
    (void)state;
    struct bk_tokens t;
    grants(&at_a, 3);
    uint64_t to = last + UINT64_C(3600) * 1000000;
    assert_int_equal(probe_backend->tokens(at_a.session, true, to, probe_soon(10000), &t, &at_a.error), BK_YES);
    assert_int_equal(t.last, to);
    assert_int_equal(t.since, to);
    last = to;
    counts_on(&at_a);
    assert_int_equal(probe_backend->tokens(at_a.session, true, 0, probe_soon(10000), &t, &at_a.error), BK_YES);
    assert_int_equal(t.last, last + TOKEN_LEAP); /* the clock is behind */
    assert_int_equal(probe_backend->tokens(at_a.session, true, TOKEN_MAX, probe_soon(10000), &t, &at_a.error),
                     BK_FAULT);
    assert_non_null(strstr(at_a.error.text, "used up"));
}

#define CASE(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(starts_at_the_clock),
        CASE(flushall_and_empty_restart),
        CASE(restart_with_its_data),
        CASE(old_snapshot),
        CASE(snapshot_of_a_held_lock),
        CASE(demoted_and_promoted),
        CASE(counted_without_a_look),
        CASE(handed_over_without_a_look),
        CASE(first_replica),
        CASE(backlog_forgotten),
        CASE(chained_failover),
        CASE(zombie),
        CASE(clock_steps),
        CASE(advance),
    };
    return cmocka_run_group_tests_name("redis tokens", tests, NULL, NULL);
}
