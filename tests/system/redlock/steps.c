#include "steps.h"
#include "clock.h"
#include "redis/script.h"
#include <hiredis/hiredis.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

extern const struct script script_lock, script_seal, script_seed;

#define FLOOR INT64_C(1000000000000000)
#define KEYS "s:a", "s:%c:a", "s:%r", "s:%l:a", "s:%t:a"

struct server steps[STEPS_N];
char steps_epoch[34], steps_said, steps_mark[192];
int64_t steps_floor, steps_longest, steps_ttl;

static redisReply *ask(int i, int n, const char *words[]) {
    struct timeval limit = {.tv_sec = 5};
    redisContext *c = redisConnectWithTimeout("127.0.0.1", steps[i].port, limit);
    assert_true(c && !c->err);
    redisReply *reply = redisCommandArgv(c, n, words, NULL);
    assert_non_null(reply);
    redisFree(c);
    return reply;
}

/* EVAL; what it said is kept in steps_said. */
static redisReply *eval(int i, const struct script *script, int n, const char *arguments[]) {
    const char *words[20] = {"EVAL", script->text};
    for (int k = 0; k < n; k++) words[2 + k] = arguments[k];
    redisReply *r = ask(i, n + 2, words);
    steps_said = r->type == REDIS_REPLY_STRING ? r->str[0] : r->type == REDIS_REPLY_ARRAY ? 'B' : '?';
    return r;
}

static const char *value_of(char owner, char ret[80]) { /* owner(48) ms(13) */
    memset(ret, owner, 48);
    strcpy(ret + 48, "1700000000000");
    return ret;
}

static const char *number(int64_t n, char ret[24]) {
    snprintf(ret, 24, "%lld", (long long)n);
    return ret;
}

int64_t lock_at(int i, char owner, int64_t hint) {
    char value[80], ttl[24], at[24];
    const char *words[] = {
        "5", KEYS, value_of(owner, value), number(steps_ttl, ttl), number(hint ? FLOOR + hint : 0, at), steps_epoch};
    redisReply *r = eval(i, &script_lock, sizeof words / sizeof *words, words);
    int64_t n = steps_said == 'G' ? strtoll(r->str + 1, NULL, 10) - FLOOR : steps_said == 'B' ? BUSY : ABSTAINS;
    freeReplyObject(r);
    return n;
}

static bool seal_in(int i, char owner, int64_t m, const char *epoch) {
    char value[80], ttl[24], most[24];
    const char *words[] = {
        "3", "s:%r", "s:a", "s:%c:a", epoch, value_of(owner, value), number(steps_ttl, ttl), number(FLOOR + m, most)};
    value[48] = 0;
    redisReply *r = eval(i, &script_seal, sizeof words / sizeof *words, words);
    bool sealed = steps_said == 'S' && strcmp(r->str, "S1") == 0;
    freeReplyObject(r);
    return sealed;
}

bool seal_at(int i, char owner, int64_t m) { return seal_in(i, owner, m, steps_epoch); }

bool renew_at(int i, char owner, int64_t m) { return seal_in(i, owner, m, ""); }

void release_at(int i, char owner) {
    char value[80];
    const char *words[] = {"3", "s:a", "s:%l:a", "s:%t:a", value_of(owner, value), "", "s:%w:"};
    value[48] = 0;
    freeReplyObject(eval(i, &script_release, sizeof words / sizeof *words, words));
}

void expire_at(int i) { free(server_redis(steps[i].port, "DEL s:a")); }

char owner_at(int i) {
    char *value = server_redis(steps[i].port, "GET s:a"), owner = value && strlen(value) > 17 ? value[17] : 0;
    free(value);
    return owner;
}

void wipe_at(int i) { free(server_redis(steps[i].port, "FLUSHALL")); }

void restart_at(int i) { server_restart(&steps[i]); }

bool seed_at(int i, const char *what, const char *epoch, const char *mark, int64_t floor) {
    char wall[24], least[24], longest[24];
    const char *words[] = {"2",
                           "s:%r",
                           "s:%r:mark",
                           what,
                           epoch,
                           number(clock_wall_us() / 1000, wall),
                           mark ? mark : "",
                           number(FLOOR + floor, least),
                           number(steps_longest, longest)};
    redisReply *r = eval(i, &script_seed, sizeof words / sizeof *words, words);
    if (r->type != REDIS_REPLY_ARRAY) fail_msg("seed.lua: %s", r->str);
    bool done = r->element[0]->integer == 1;
    steps_floor = strtoll(r->element[1]->str, NULL, 10) - FLOOR;
    if (r->element[1]->len > 175) steps_longest = strtoll(r->element[1]->str + 167, NULL, 10);
    if (*r->element[4]->str) snprintf(steps_mark, sizeof steps_mark, "%s", r->element[4]->str);
    freeReplyObject(r);
    return done;
}

void steps_start(void) {
    for (int i = 0; i < STEPS_N; i++) server_start_redis(&steps[i], NULL);
}

void steps_stop(void) {
    for (int i = 0; i < STEPS_N; i++) server_stop(&steps[i]);
}

void steps_begin(void) {
    strcpy(steps_epoch, "0000000000000001.aaaaaaaaaaaaaaaa");
    steps_ttl = 60000;
    for (int i = 0; i < STEPS_N; i++) {
        wipe_at(i);
        assert_int_equal(lock_at(i, 'A', 0), ABSTAINS);
        assert_int_equal(steps_said, 'U');
        assert_true(seed_at(i, "P", steps_epoch, NULL, 0));
        steps_longest = 0;
        assert_true(seed_at(i, "S", steps_epoch, steps_mark, 0));
    }
}
