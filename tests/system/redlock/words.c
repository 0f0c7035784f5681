/* words.c: what is said where there is no quorum: which instances, and why, in as many bytes as there are. */
#include "clock.h"
#include "three.h"
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int times(const char *text, const char *part) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part)) n++;
    return n;
}

/* Nobody answers at these: each is named by its number and its port, or counted, also where names are long. */
static void test_each_is_named_or_counted(void **state) {
    (void)state;
    static const char long_name[] = "an-instance-with-a-name-that-goes-on-and-on.in.a.domain.that.does.so.localhost";
    for (int is_long = 0; is_long <= 1; is_long++)
        for (int n = 5; n <= 15; n += 10) {
            char many[3000] = "redlock://", port[120];
            int named = 0, more = 0;
            for (int i = 0; i < n; i++)
                snprintf(many + strlen(many), sizeof many - strlen(many), "%s127.0.0.%d%s:%d", i ? "," : "", i + 1,
                         is_long ? long_name : "", 100 + i);
            pawl_client *client = client_of(many, 10000, NULL, NULL);
            pawl_lock *lock;
            assert_int_equal(take(client, "words", 0, &lock), PAWL_EUNREACHABLE);
            pawl_close(client);
            for (int i = 0; i < n; i++) {
                snprintf(port, sizeof port, "%s:%d", is_long ? "ost" : "", 100 + i);
                named += times(error.text, port);
            }
            const char *at = strstr(error.text, " more");
            while (at && at > error.text && at[-1] >= '0' && at[-1] <= '9') at--;
            if (at) more = atoi(at);
            if (named == 0 || named + more < n || strlen(error.text) >= sizeof error.text - 1)
                fail_msg("%d named and %d more of %d in %zu bytes: %s", named, more, n, strlen(error.text), error.text);
        }
}

/* Those with one fault are named together, the fault once. */
static void test_one_fault_is_told_once(void **state) {
    (void)state;
    char with[200], wanted[120];
    snprintf(with, sizeof with, "redlock://127.0.0.1:%d,127.0.0.1:1,127.0.0.1:2", three[0].port);
    pawl_client *client = client_of(with, 10000, NULL, NULL);
    pawl_lock *lock;
    assert_int_equal(take(client, "words", 0, &lock), PAWL_EUNREACHABLE);
    snprintf(wanted, sizeof wanted, "1 of 3 instances answer, 2 are needed: 127.0.0.1:1, 127.0.0.1:2: cannot connect");
    says(wanted);
    assert_int_equal(times(error.text, "cannot connect"), 1);
    pawl_close(client);
}

/* All answer, and two of them do not vote: that is no silence. What they wait for is told with its unit, also by a lock
 * with a name of the greatest length. */
static void test_votes_are_no_answers(void **state) {
    (void)state;
    char name[513];
    pawl_client *a = client_of(url, 600000, NULL, NULL);
    must_release(must_take(a, "seed"));
    for (int i = 1; i < N; i++) {
        int64_t start = clock_now_ns();
        free(server_redis(three[i].port, "FLUSHALL"));
        while (!is_seeded(i) && ms_since(start) < 30000) {
            pawl_lock *lock;
            if (take(a, "seed", 0, &lock) == PAWL_OK) must_release(lock);
            else poll(NULL, 0, 20);
        }
        if (i == 1) assert_true(is_seeded(i));
    }
    pawl_lock *lock;
    memset(name, 'n', 512);
    name[512] = 0;
    assert_int_not_equal(take(a, name, 0, &lock), PAWL_OK);
    says("instances vote, 2 are needed");
    says(" s");
    says("pawl init --floor");
    pawl_close(a);
}

struct doubts {
    char text[512];
};
static void hear_doubts(const pawl_event *event, const char *name, void *data) {
    struct doubts *doubts = data;
    (void)name;
    if (event->type == PAWL_DOUBT) snprintf(doubts->text, sizeof doubts->text, "%s", event->text);
}

/* Who answers, but not within so short a ttl, is told from who is silent. */
static void test_slow_for_this_ttl(void **state) {
    (void)state;
    struct doubts doubts = {""};
    pawl_client *a = client_of(url, 1200, hear_doubts, &doubts);
    pawl_lock *lock = must_take(a, "slow");
    for (int i = 0; i < N; i++) proxy_delay(ways[i], PROXY_TO_CLIENT, 3000);
    struct pollfd p = {.fd = pawl_lost_fd(lock), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 60000), 1);
    pawl_release(lock, 0, NULL);
    pawl_close(a);
    snprintf(error.text, sizeof error.text, "%s", doubts.text);
    says("0 of 3 instances answer, 2 are needed: 127.0.0.1:");
    says(": does not answer within ");
    says("a ttl of 1200 ms is too short for them");
}

/* A key that is not pawl's is named, and is no silence; who and ls say what they saw. */
static int count(const pawl_entry *entry, void *data) {
    (void)entry;
    ++*(int *)data;
    return 0;
}

static void test_a_key_of_another_type(void **state) {
    (void)state;
    char with[300];
    int entries = 0;
    snprintf(with, sizeof with, "%s?prefix=mine:", url);
    pawl_client *a = client_of(with, 10000, NULL, NULL);
    must_release(must_take(a, "other"));
    pawl_lock *lock;
    for (int i = 0; i < N; i++) free(server_redis(three[i].port, "LPUSH mine:other x"));
    assert_int_equal(take(a, "other", 0, &lock), PAWL_EUNSAFE);
    says("0 of 3 instances vote");
    says("the key 'mine:other', or one that pawl keeps beside it ('mine:%...')");
    assert_int_equal(pawl_inspect(a, "other", 5000, count, &entries, &error), PAWL_EUNSAFE);
    says("the key 'mine:other'");
    lock = must_take(a, "mine");
    assert_int_equal(pawl_inspect(a, NULL, 5000, count, &entries, &error), PAWL_OK);
    assert_int_equal(entries, 1);
    must_release(lock);
    for (int i = 1; i < N; i++) free(server_redis(three[i].port, "DEL mine:other")); /* at a minority: no matter */
    must_release(must_take(a, "other"));
    assert_int_equal(pawl_inspect(a, "other", 5000, count, &entries, &error), PAWL_OK);
    pawl_close(a);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, three_start, three_stop)
    const struct CMUnitTest tests[] = {
        TEST(test_each_is_named_or_counted), TEST(test_one_fault_is_told_once), TEST(test_votes_are_no_answers),
        TEST(test_slow_for_this_ttl),        TEST(test_a_key_of_another_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
