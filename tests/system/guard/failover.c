/* A guard with default settings after everything that may happen to the numbers: promotions of PostgreSQL, failovers of
 * Redis, a year in which nobody wrote. The honest writer is accepted; an old primary that lives on is refused. */
#include "pawl_guard.h"
#include "server.h"
#include "skew.h"
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <cmocka.h>

static char folder[32];
static pawl_guard *guard;
static pawl_error error;

static int rounds(void) { return getenv("PAWL_TEST_FULL") ? 10 : 1; }

static int set_up(void **state) {
    (void)state;
    char url[64];
    error = (pawl_error)PAWL_ERROR_INIT;
    snprintf(folder, sizeof folder, "/tmp/pawl-failover-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(url, sizeof url, "dir:%s/set", folder);
    return pawl_guard_open(url, NULL, &guard, &error);
}

static int tear_down(void **state) {
    (void)state;
    char command[64];
    pawl_guard_close(guard);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

/* The token of a lock that is taken and given back there; 0: not granted. */
static int64_t grant(const char *url) {
    pawl_client *client;
    pawl_lock *lock;
    pawl_acquire_options options = PAWL_ACQUIRE_INIT;
    int64_t token = 0;
    options.wait_ms = 2000;
    if (pawl_open(url, NULL, &client, &error)) fail_msg("%s: %s", url, error.text);
    if (pawl_acquire(client, "acct", &options, &lock, &error) == PAWL_OK) {
        token = pawl_token(lock);
        pawl_release(lock, 1000, &error);
    }
    pawl_close(client);
    return token;
}

static int put(int64_t token) {
    pawl_guard_write write = PAWL_GUARD_WRITE_INIT;
    write.resource = "r", write.lock = "acct", write.token = token;
    return pawl_guard_put(guard, &write, "x", 1, &error);
}

struct asked {
    const char *url;
    int64_t token;
};
static bool granted(void *data) {
    struct asked *asked = data;
    asked->token = grant(asked->url);
    return asked->token > 0;
}

/* Whoever holds the lock where it lives now. */
static void honest(const char *url) {
    struct asked asked = {.url = url};
    if (!server_until(granted, &asked, 30000)) fail_msg("no grant at %s: %s", url, error.text);
    if (put(asked.token)) fail_msg("an honest writer: %s", error.text);
}

/* --- PostgreSQL --- */

static bool replicated(void *data) {
    char *text = server_sql(((struct server *)data)->port, "SELECT count(*) FROM pg_proc WHERE proname = 'next_token'");
    bool yes = text && strcmp(text, "1") == 0;
    free(text);
    return yes;
}

static bool promoted(void *data) {
    char *text = server_sql(((struct server *)data)->port, "SELECT pg_is_in_recovery()");
    bool yes = text && strcmp(text, "f") == 0;
    free(text);
    return yes;
}

static void test_promotions(void **state) {
    (void)state;
    struct server servers[2] = {{0}, {0}};
    pawl_client *client;
    int refused = 0;
    server_start_postgres(&servers[0], "");
    assert_int_equal(pawl_open(servers[0].url, NULL, &client, &error), PAWL_OK);
    assert_int_equal(pawl_init(client, 20000, &error), PAWL_OK);
    pawl_close(client);
    for (int i = 0; i < rounds(); i++) {
        struct server *old = &servers[i % 2], *new = &servers[(i + 1) % 2];
        server_start_standby(new, old, "");
        if (!server_until(replicated, new, 20000)) fail_msg("the standby does not follow");
        honest(old->url);
        free(server_sql(new->port, "SELECT pg_promote(false)"));
        if (!server_until(promoted, new, 30000)) fail_msg("the standby was not promoted");
        int64_t zombie = grant(old->url);
        honest(new->url);
        assert_true(zombie > 0);
        for (int k = 0; k < 20; k++) { /* it goes on and on */
            assert_int_equal(put(zombie), PAWL_GSTALE);
            zombie = grant(old->url);
            refused++;
        }
        honest(new->url);
        server_stop(old);
        *old = (struct server){0};
    }
    print_message("# %d promotions: %d grants of old primaries were refused\n", rounds(), refused);
    server_stop(&servers[rounds() % 2]);
}

/* --- Redis --- */

static struct server redis[2], sentinel;

static int primary_port(void) {
    char *text = server_redis(sentinel.port, "SENTINEL GET-MASTER-ADDR-BY-NAME mymaster"),
         *line = text ? strchr(text, '\n') : NULL;
    int port = line ? atoi(line + 1) : -1;
    free(text);
    return port;
}

/* The other one follows: an old primary that a second failover names again before it was made a replica counts on. */
static bool follows(void) {
    int other = redis[primary_port() == redis[0].port].port;
    char *text = server_redis(other, "INFO replication");
    bool yes = text && strstr(text, "role:slave") && strstr(text, "master_link_status:up");
    free(text);
    return yes;
}

static bool failing_over(void *unused) {
    (void)unused;
    if (!follows()) return false;
    char *reply = server_redis(sentinel.port, "SENTINEL FAILOVER mymaster"); /* not yet: NOGOODSLAVE, INPROG */
    bool ok = reply && strcmp(reply, "OK") == 0;
    free(reply);
    return ok;
}

static bool moved(void *data) {
    int port = primary_port();
    return port > 0 && port != *(int *)data;
}

static void test_sentinel_failovers(void **state) {
    (void)state;
    char follow[32], url[96], direct[64];
    int refused = 0;
    server_start_redis(&redis[0], NULL);
    snprintf(follow, sizeof follow, "127.0.0.1 %d", redis[0].port);
    server_start_redis(&redis[1], (const char *const[]){"--replicaof", follow, NULL});
    server_start_sentinel(&sentinel, redis[0].port, "");
    snprintf(url, sizeof url, "redis+sentinel://127.0.0.1:%d/mymaster", sentinel.port);
    for (int i = 0; i < rounds(); i++) {
        honest(url);
        int before = primary_port();
        snprintf(direct, sizeof direct, "redis://127.0.0.1:%d", before);
        if (!server_until(failing_over, NULL, 60000)) fail_msg("no failover begins");
        if (!server_until(moved, &before, 60000)) fail_msg("no failover happens");
        int64_t zombie = grant(direct); /* until the sentinel has made a replica of it */
        honest(url);
        for (int k = 0; k < 20 && zombie; k++) {
            assert_int_equal(put(zombie), PAWL_GSTALE);
            zombie = grant(direct);
            refused++;
        }
        honest(url);
    }
    print_message("# %d failovers: %d grants of old primaries were refused\n", rounds(), refused);
    server_stop(&sentinel);
    for (int i = 0; i < 2; i++) server_stop(&redis[i]);
}

/* --- a year --- */

/* pawl with the clock of the server: takes the lock and seals. The exit code. */
static int pawl_run(const struct server *s, const char *guard_url, bool shifted) {
    char command[600];
    const char *bin = getenv("PAWL_BIN");
    assert_non_null(bin);
    snprintf(command, sizeof command,
             "env %s%s PAWL_TEST_SKEW=%s/skew %s run -q -u %s --seal '%s#r' acct -- true 2>%s/log",
             shifted ? "LD_PRELOAD=" : "", shifted ? skew_library() : "", s->dir, bin, s->url, guard_url, folder);
    int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_idle_for_a_year(void **state) {
    (void)state;
    struct server s = {.shim = skew_library()};
    char dir[64];
    snprintf(dir, sizeof dir, "dir:%s/set", folder);
    server_start_redis(&s, NULL);
    int64_t year = INT64_C(365) * 86400 * 1000;
    assert_int_equal(pawl_run(&s, dir, true), 0);
    assert_int_equal(pawl_run(&s, s.url, true), 0);
    skew_set(&s, year); /* the service ran all the time */
    assert_int_equal(pawl_run(&s, dir, true), 0);
    assert_int_equal(pawl_run(&s, s.url, true), 0);
    free(server_redis(
        s.port, "EVAL return(redis.call('DEL',unpack(redis.call('KEYS','pawl:%%n*')))) 0")); /* and now the numbers
                                                                                                begin at the clock */
    assert_int_equal(pawl_run(&s, s.url, true), 0);
    assert_int_equal(pawl_run(&s, dir, true), 0);
    pawl_guard_record *record;
    assert_int_equal(pawl_guard_get(guard, "r", &record, &error), PAWL_OK);
    int64_t ahead_ms = record->token / 1000 - record->at_ms; /* both of that year */
    assert_true(llabs(ahead_ms) < 60000);
    assert_int_equal(put(record->token + INT64_C(2) * 86400 * 1000000),
                     PAWL_GDAMAGED); /* by our own clock it is damaged */
    pawl_guard_free(record);
    server_stop(&s);
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {T(test_promotions), T(test_sentinel_failovers), T(test_idle_for_a_year)};
    return cmocka_run_group_tests_name("failover", tests, NULL, NULL);
}
