/* doctor.c: each fault that is planted at an instance is found under its id, at that instance, and nothing else is. */
#include "clock.h"
#include "skew.h"
#include "three.h"
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct found {
    char all[400];     /* "L01 1 " for each that is not well: id, level */
    char texts[6000];  /* all that was seen, one a line */
    int fines, advice; /* how many are well; how many of the others say why and what to do */
};

static int note(const pawl_finding *f, void *data) {
    struct found *found = data;
    if (f->id[0] != 'L') return 0; /* the common ones are tested elsewhere */
    snprintf(found->texts + strlen(found->texts), sizeof found->texts - strlen(found->texts), "%s: %s; %s\n", f->about,
             f->seen, f->fix);
    if (f->level == PAWL_LEVEL_FINE) {
        found->fines++;
        return 0;
    }
    snprintf(found->all + strlen(found->all), sizeof found->all - strlen(found->all), "%s %s ", f->id,
             f->level == PAWL_LEVEL_UNSAFE    ? "unsafe"
             : f->level == PAWL_LEVEL_WARNING ? "warning"
                                              : "unseen");
    found->advice += *f->why && *f->fix;
    return 0;
}

static struct server replica;
static void replica_of_first(void) {
    memset(&replica, 0, sizeof replica);
    server_start_redis(&replica, NULL);
    free(server_redis(replica.port, "REPLICAOF 127.0.0.1 %d", three[0].port));
    int64_t end_ns = clock_after_ms(clock_now_ns(), 30000);
    char *stand = NULL;
    do {
        free(stand);
        stand = server_redis(three[0].port, "INFO replication");
    } while (stand && !strstr(stand, "connected_slaves:1") && clock_now_ns() < end_ns);
    free(stand);
}

static void stop_third(void) { server_kill(&three[2], SIGSTOP); }
static void kill_second(void) { server_kill(&three[1], SIGKILL); }
static void empty_second(void) {
    pawl_client *c = client_of(url, 60000, NULL, NULL);
    int64_t start = clock_now_ns();
    free(server_redis(three[1].port, "FLUSHALL"));
    while (!is_seeded(1) && ms_since(start) < 30000) must_release(must_take(c, "seed"));
    pawl_close(c);
}
static void empty_two(void) {
    for (int i = 1; i < 3; i++) free(server_redis(three[i].port, "FLUSHALL"));
}
static void lose_directory(void) { /* so that it cannot save */
    char command[96], *stand = NULL;
    int64_t end_ns = clock_after_ms(clock_now_ns(), 30000);
    snprintf(command, sizeof command, "rm -r '%s'", three[1].dir);
    assert_int_equal(system(command), 0);
    free(server_redis(three[1].port, "BGSAVE"));
    do {
        free(stand);
        stand = server_redis(three[1].port, "INFO persistence");
    } while (stand && !strstr(stand, "rdb_last_bgsave_status:err") && clock_now_ns() < end_ns);
    free(stand);
}
static void step_clock(void) {
    three[2].shim = skew_library();
    server_restart(&three[2]);
    skew_set(&three[2], 5000);
}
static void long_ttl(void) {
    pawl_client *c = client_of(url, 1200000, NULL, NULL);
    must_release(must_take(c, "long"));
    pawl_close(c);
}

static const struct row {
    const char *what;
    int at; /* for the command */
    const char *command;
    void (*plant)(void);
    const char *parameter;
    const char *all, *text; /* that all three are on one host is found always */
    int64_t wait_ms;        /* 0: as long as it may need */
} rows[] = {
    {"well", 0, NULL, NULL, "", "L08 warning ", "quorum: 3 of 3 instances vote, 2 are needed"},
    {"may evict", 1, "CONFIG SET maxmemory-policy allkeys-lru", NULL, "", "L03 warning L08 warning ",
     "policy allkeys-lru"},
    {"will evict", 1, "CONFIG SET maxmemory 100mb maxmemory-policy allkeys-lru", NULL, "", "L03 unsafe L08 warning ",
     "maxmemory 104857600"},
    {"nearly full", 2, "CONFIG SET maxmemory 900000", NULL, "", "L04 warning L08 warning ", "maxmemory is 900000"},
    {"emptied", 0, NULL, empty_second, "", "L01 warning L07 warning L08 warning ", "votes again in "},
    {"a quorum emptied", 0, NULL, empty_two, "", "L01 warning L01 warning L07 unsafe L08 warning ",
     "does not vote; no quorum knows the numbers any more: pawl init URL --floor N"},
    {"hung", 0, NULL, stop_third, "", "L01 warning L07 warning L08 warning ", "does not answer"},
    {"hung, and little time", 0, NULL, stop_third, "", "L01 warning L07 warning L08 warning ",
     "quorum: 2 of 3 instances vote", 4000},
    {"down", 0, NULL, kill_second, "", "L01 warning L07 warning L08 warning ", "quorum: 2 of 3 instances vote"},
    {"durable in name only", 0, "CONFIG SET appendonly yes", NULL, "?durable=yes",
     "L05 unsafe L05 unsafe L05 unsafe L08 warning ", "appendonly yes, appendfsync everysec, durable=yes"},
    {"cannot save", 1, NULL, lose_directory, "", "L06 unsafe L08 warning ", "it failed"},
    {"a replica", 0, NULL, replica_of_first, "", "L02 warning L08 warning ", ": 1 replicas"},
    {"a clock ahead", 0, NULL, step_clock, "", "L01 warning L07 warning L08 warning L09 warning ", " is ahead of "},
    {"damaged", 1, "SET pawl:%r junk", NULL, "", "L01 warning L07 warning L08 warning ",
     "the key 'pawl:%r' is damaged"},
    {"a ttl of 20 minutes", 0, NULL, long_ttl, "", "L08 warning L10 warning ", "today and yesterday is 1200 s"},
};

static void test_row(void **state) {
    const struct row *row = *state;
    struct found found = {.fines = 0};
    char with[300];
    pawl_client *first = client_of(url, 60000, NULL, NULL);
    must_release(must_take(first, "first-start"));
    pawl_close(first);
    if (row->command) free(server_redis(three[row->at].port, "%s", row->command));
    if (row->plant) row->plant();
    snprintf(with, sizeof with, "%s%s", url, row->parameter);
    pawl_client *client = client_of(with, 60000, NULL, NULL);
    if (pawl_doctor(client, row->wait_ms ? row->wait_ms : 20000, note, &found, &error))
        fail_msg("%s: %s", row->what, error.text);
    pawl_close(client);
    int others = 0;
    for (const char *at = found.all; (at = strchr(at, 'L')); at++) others++;
    if (strcmp(found.all, row->all) != 0 || !strstr(found.texts, row->text) || found.advice != others)
        fail_msg("%s: wanted %s with '%s', found %s:\n%s", row->what, row->all, row->text, found.all, found.texts);
    assert_true(found.fines > 0);
}

/* Taken away one by one, each is missed at each instance, and only that one. */
static void test_rights(void **state) {
    static const char *const rights[] = {"eval",     "evalsha", "time",    "mget",      "getrange", "set",
                                         "setrange", "del",     "pexpire", "pttl",      "zadd",     "zrem",
                                         "zrange",   "zrank",   "publish", "subscribe", "scan"};
    char as_app[300], given[400] = "";
    (void)state;
    pawl_client *first = client_new();
    must_release(must_take(first, "first-start"));
    pawl_close(first);
    for (size_t i = 0; i < sizeof rights / sizeof *rights; i++)
        snprintf(given + strlen(given), sizeof given - strlen(given), " +%s", rights[i]);
    snprintf(as_app, sizeof as_app, "redlock://app:secret@%s", url + strlen("redlock://"));
    for (size_t i = 0; i <= sizeof rights / sizeof *rights; i++) {
        const char *taken = i < sizeof rights / sizeof *rights ? rights[i] : "acl"; /* the last: none is missed */
        struct found found = {.fines = 0};
        for (int k = 0; k < N; k++)
            free(server_redis(three[k].port, "ACL SETUSER app reset on >secret ~pawl:* &pawl:* +info +get%s -%s", given,
                              taken));
        pawl_client *client = client_of(as_app, 60000, NULL, NULL);
        if (pawl_doctor(client, 20000, note, &found, &error)) fail_msg("%s: %s", taken, error.text);
        pawl_close(client);
        for (int k = 0; k < N; k++) {
            char wanted[160];
            snprintf(wanted, sizeof wanted,
                     strcmp(taken, "acl") ? "rights at 127.0.0.1:%d: +%s; ACL SETUSER ... +%s\n"
                                          : "rights at 127.0.0.1:%d: all that locks need",
                     proxy_port(ways[k]), taken, taken);
            if (!strstr(found.texts, wanted)) fail_msg("'%s' is not in:\n%s", wanted, found.texts);
        }
        if (strcmp(taken, "pexpire") == 0) assert_non_null(strstr(found.all, "L11 unsafe L11 unsafe L11 unsafe "));
        if (strcmp(taken, "scan") == 0) assert_non_null(strstr(found.all, "L11 warning L11 warning L11 warning "));
    }
}

static int end(void **state) {
    if (replica.port) server_stop(&replica);
    replica.port = 0;
    return three_stop(state);
}

static int begin(void **state) {
    void *row = *state, *ignored;
    int result = three_start(&ignored);
    *state = row;
    return result;
}

int main(void) {
    struct CMUnitTest tests[sizeof rows / sizeof *rows + 1];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        tests[i] = (struct CMUnitTest){rows[i].what, test_row, begin, end, (void *)&rows[i]};
    tests[sizeof rows / sizeof *rows] = (struct CMUnitTest){"rights", test_rights, three_start, three_stop, NULL};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
