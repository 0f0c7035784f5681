#include "rights.h"
#include "pawl.h"
#include "verdict.h"
#include <stdio.h>
#include <string.h>

#define RIGHT_WORDS 5

enum need { LOCKS, WAITS, LISTS };

/* '=' stands for a key that no lock has. */
static const struct right {
    const char *name, *words[RIGHT_WORDS + 1];
    int services;
    enum need need;
} rights[] = {
    {"+eval", {"EVAL", "return 1", "1", "="}, RIGHTS_REDIS | RIGHTS_REDLOCK, LOCKS},
    {"+evalsha",
     {"EVALSHA", "0000000000000000000000000000000000000000", "1", "="},
     RIGHTS_REDIS | RIGHTS_REDLOCK,
     LOCKS},
    {"+time", {"TIME"}, RIGHTS_REDIS | RIGHTS_REDLOCK, LOCKS},
    {"+exists", {"EXISTS", "="}, RIGHTS_REDIS, LOCKS},
    {"+get", {"GET", "="}, RIGHTS_REDIS | RIGHTS_REDLOCK, LOCKS},
    {"+mget", {"MGET", "="}, RIGHTS_REDLOCK, LOCKS},
    {"+getrange", {"GETRANGE", "=", "0", "0"}, RIGHTS_REDIS | RIGHTS_REDLOCK, LOCKS},
    {"+set", {"SET", "=", "", "XX"}, RIGHTS_REDIS | RIGHTS_REDLOCK, LOCKS},
    {"+setrange", {"SETRANGE", "=", "0", ""}, RIGHTS_REDLOCK, LOCKS},
    {"+pttl", {"PTTL", "="}, RIGHTS_REDIS | RIGHTS_REDLOCK, LOCKS},
    {"+incr", {"INCR", "="}, RIGHTS_REDIS, LOCKS},
    {"+pexpire", {"PEXPIRE", "=", "1"}, RIGHTS_REDIS | RIGHTS_REDLOCK, LOCKS},
    {"+del", {"DEL", "="}, RIGHTS_REDIS | RIGHTS_REDLOCK, LOCKS},
    {"+zadd", {"ZADD", "=", "XX", "1", "x"}, RIGHTS_REDIS | RIGHTS_REDLOCK, WAITS},
    {"+zrem", {"ZREM", "=", "x"}, RIGHTS_REDIS | RIGHTS_REDLOCK, WAITS},
    {"+zrange", {"ZRANGE", "=", "0", "0"}, RIGHTS_REDIS | RIGHTS_REDLOCK, WAITS},
    {"+zrank", {"ZRANK", "=", "x"}, RIGHTS_REDIS | RIGHTS_REDLOCK, WAITS},
    {"+scan", {"SCAN", "0", "COUNT", "1"}, RIGHTS_REDIS | RIGHTS_REDLOCK, LISTS},
};
enum { N = sizeof rights / sizeof *rights };

/* A right whose name begins as another's is another one. */
static bool is_in(const char *text, const char *right) {
    size_t n = strlen(right);
    for (const char *at = text; (at = strstr(at, right)); at++)
        if (at[n] == ' ' || !at[n]) return true;
    return false;
}

static void add_missing(struct missing *m, const char *right, enum need need) {
    size_t used = strlen(m->text);
    m->locks |= need == LOCKS;
    m->waits |= need == WAITS;
    if (is_in(m->text, right)) return;
    snprintf(m->text + used, sizeof m->text - used, "%s%s", used ? " " : "", right);
}

static bool is_denied(const redisReply *reply) {
    return reply->type == REDIS_REPLY_ERROR && verdict_is(reply->str, "NOPERM");
}

/* A command that is allowed may not be so on our keys. */
static void hear_right(const struct place *place, const redisReply *reply, const struct right *r, struct missing *m) {
    char keys[PREFIX_MAX + 8];
    if (!is_denied(reply)) return;
    snprintf(keys, sizeof keys, "~%s*", place->prefix);
    if (strstr(reply->str, "of the keys")) add_missing(m, keys, LOCKS);
    else add_missing(m, r->name, r->need);
}

enum bk_says rights_look(const struct place *place, int service, struct wire *wire, struct bk_until until,
                         struct missing *m, pawl_error *error) {
    char key[PREFIX_MAX + 16];
    snprintf(key, sizeof key, "%s%%doctor", place->prefix);
    wire->verb = "looking at";
    wire->name = "rights";
    for (int i = 0; i < N; i++) {
        struct args a = {.n = 0};
        if (!(rights[i].services & service)) continue;
        for (const char *const *word = rights[i].words; *word; word++) arg_text(&a, **word == '=' ? key : *word);
        wire_add(wire, &a);
    }
    enum bk_says says = wire_flush(wire, until, error);
    for (int i = 0; i < N && says == BK_YES; i++) {
        AUTO_REPLY reply = NULL;
        if (!(rights[i].services & service)) continue;
        says = wire_reply(wire, until, &reply, error);
        if (says == BK_YES) hear_right(place, reply, &rights[i], m);
    }
    return says;
}

void rights_look_at_channel(const struct place *place, struct wire *wire, struct bk_until until, struct missing *m) {
    static const char *const names[] = {"+publish", "+subscribe"};
    char channel[PREFIX_MAX + 32], pattern[PREFIX_MAX + 8];
    snprintf(channel, sizeof channel, "%s%%w:0000000000000000", place->prefix);
    snprintf(pattern, sizeof pattern, "&%s*", place->prefix);
    wire_words(wire, (const char *const[]){"PUBLISH", channel, "", NULL});
    wire_words(wire, (const char *const[]){"SUBSCRIBE", channel, NULL});
    enum bk_says says = wire_flush(wire, until, NULL);
    for (int i = 0; i < 2 && says == BK_YES; i++) {
        AUTO_REPLY reply = NULL;
        says = wire_reply(wire, until, &reply, NULL);
        if (says == BK_YES && is_denied(reply))
            add_missing(m, strstr(reply->str, "of the channels") ? pattern : names[i], WAITS);
    }
}

int rights_level(const struct missing *m) {
    return !*m->text ? PAWL_LEVEL_FINE : m->locks ? PAWL_LEVEL_UNSAFE : PAWL_LEVEL_WARNING;
}

const char *rights_why(const struct missing *m) {
    return m->locks   ? "missing: locks cannot be taken, kept or given back"
           : m->waits ? "missing: who waits is not told, and asks again and again"
                      : "missing: only pawl ls needs it";
}
