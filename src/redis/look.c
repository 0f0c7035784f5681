/* look.c: what who, ls and token show read. Nothing here changes a lock. */
#include "clock.h"
#include "redis.h"
#include "verdict.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add(struct bk_session *s, int n, const char *const words[], const char *key, size_t length) {
    struct args a = {.n = 0};
    arg_text(&a, words[0]);
    arg(&a, key, length);
    for (int i = 1; i < n; i++) arg_text(&a, words[i]);
    wire_add(&s->wire, &a);
}

/* One reply; an error reply is a fault, whatever it is: looking changes nothing. */
static enum bk_says answer(struct bk_session *s, struct bk_until until, redisReply **ret, pawl_error *error) {
    enum bk_says says = wire_reply(&s->wire, until, ret, error);
    if (says != BK_YES || (*ret)->type != REDIS_REPLY_ERROR) return says;
    verdict(&s->wire, (*ret)->str, error);
    return BK_FAULT;
}

static bool tell_holder(const char *name, const redisReply *value, int64_t left_ms, bk_each *each, void *data) {
    struct bk_record r = {.name = name, .about = "", .left_ms = left_ms < 0 ? -1 : left_ms};
    if (value_is_ours(value->str, (size_t)value->len)) {
        r.token = value_number(value->str, 16);
        r.since_ms = (int64_t)value_number(value->str + VALUE_MS, 13);
        r.about = value->str + VALUE_ABOUT;
    }
    return each(&r, data);
}

static bool tell_waiters(const char *name, const redisReply *queue, bk_each *each, void *data) {
    for (size_t i = 0; i < queue->elements; i++) {
        const redisReply *member = queue->element[i];
        struct bk_record r = {.name = name, .about = "", .left_ms = -1, .place = (int)i + 1};
        if (member->str && member->len >= OWNER_CHARS) r.about = member->str + OWNER_CHARS;
        if (!each(&r, data)) return false;
    }
    return true;
}

static void ask_name(struct bk_session *s, const char *name) {
    struct keys keys;
    place_keys(&s->bk->place, name, strlen(name), &keys);
    add(s, 1, (const char *const[]){"GET"}, keys.lock, keys.lock_length);
    add(s, 1, (const char *const[]){"PTTL"}, keys.lock, keys.lock_length);
    add(s, 3, (const char *const[]){"ZRANGE", "0", "-1"}, keys.queue, keys.queue_length);
}

/* The three answers of a name that was asked. *ret_more: each() wants more. */
static enum bk_says hear_name(struct bk_session *s, const char *name, bk_each *each, void *data, struct bk_until until,
                              bool *ret_more, pawl_error *error) {
    AUTO_REPLY value = NULL;
    AUTO_REPLY left = NULL;
    AUTO_REPLY queue = NULL;
    s->wire.name = name;
    enum bk_says says = wire_reply(&s->wire, until, &value, error);
    if (says == BK_YES) says = wire_reply(&s->wire, until, &left, error);
    if (says == BK_YES) says = wire_reply(&s->wire, until, &queue, error);
    if (says != BK_YES) return says;
    if (value->type == REDIS_REPLY_ERROR || left->type != REDIS_REPLY_INTEGER || queue->type != REDIS_REPLY_ARRAY) {
        const redisReply *bad = value->type == REDIS_REPLY_ERROR  ? value
                                : left->type == REDIS_REPLY_ERROR ? left
                                                                  : queue;
        verdict(&s->wire, bad->str ? bad->str : "an unexpected answer", error);
        return BK_FAULT;
    }
    if (!*ret_more) return BK_YES; /* heard out, for the sake of the connection */
    bool more = value->type != REDIS_REPLY_STRING || tell_holder(name, value, left->integer, each, data);
    *ret_more = more && tell_waiters(name, queue, each, data);
    return BK_YES;
}

static enum bk_says one_name(struct bk_session *s, const char *name, bk_each *each, void *data, struct bk_until until,
                             pawl_error *error) {
    bool more = true;
    s->wire.name = name;
    ask_name(s, name);
    enum bk_says says = wire_flush(&s->wire, until, error);
    return says == BK_YES ? hear_name(s, name, each, data, until, &more, error) : says;
}

/* The prefix with glob characters quoted, and '*' behind it. */
static void pattern(const char *prefix, char ret[2 * PREFIX_MAX + 2]) {
    size_t n = 0;
    for (; *prefix; prefix++) {
        if (strchr("*?[]\\^", *prefix)) ret[n++] = '\\';
        ret[n++] = *prefix;
    }
    ret[n++] = '*';
    ret[n] = 0;
}

/* The names of one answer of SCAN, asked in one go: thousands of locks would be as many round trips. */
static enum bk_says each_key(struct bk_session *s, const redisReply *keys, bk_each *each, void *data,
                             struct bk_until until, bool *ret_more, pawl_error *error) {
    char name[NAME_MAX_BYTES + 1];
    for (size_t i = 0; i < keys->elements; i++)
        if (keys->element[i]->str &&
            place_name(&s->bk->place, keys->element[i]->str, (size_t)keys->element[i]->len, name))
            ask_name(s, name);
    enum bk_says says = wire_flush(&s->wire, until, error);
    for (size_t i = 0; i < keys->elements && says == BK_YES; i++) {
        const redisReply *key = keys->element[i];
        if (!key->str || !place_name(&s->bk->place, key->str, (size_t)key->len, name)) continue;
        pawl_error own = PAWL_ERROR_INIT;
        says = hear_name(s, name, each, data, until, ret_more, &own);
        if (says == BK_FAULT && own.code == PAWL_EUNSAFE) says = BK_YES;       /* somebody's key of another type */
        else if (says == BK_FAULT) says = BK_UNKNOWN, error_copy(error, &own); /* answers are left on the wire */
        else if (says != BK_YES) error_copy(error, &own);
    }
    return says;
}

static enum bk_says all_names(struct bk_session *s, bk_each *each, void *data, struct bk_until until,
                              pawl_error *error) {
    char cursor[24] = "0", match[2 * PREFIX_MAX + 2];
    bool more = true;
    pattern(s->bk->place.prefix, match);
    do {
        AUTO_REPLY reply = NULL;
        s->wire.name = "";
        add(s, 5, (const char *const[]){"SCAN", "MATCH", match, "COUNT", "500"}, cursor, strlen(cursor));
        enum bk_says says = wire_flush(&s->wire, until, error);
        if (says == BK_YES) says = answer(s, until, &reply, error);
        if (says != BK_YES) return says;
        if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 || !reply->element[0]->str) {
            verdict(&s->wire, "SCAN does not answer with a list", error);
            return BK_FAULT;
        }
        snprintf(cursor, sizeof cursor, "%s", reply->element[0]->str);
        says = each_key(s, reply->element[1], each, data, until, &more, error);
        if (says != BK_YES) return says;
    } while (more && strcmp(cursor, "0") != 0);
    return BK_YES;
}

enum bk_says redis_records(struct bk_session *s, const char *name, bk_each *each, void *data, struct bk_until until,
                           pawl_error *error) {
    s->wire.verb = name ? "looking at" : "listing the locks";
    return name ? one_name(s, name, each, data, until, error) : all_names(s, each, data, until, error);
}

enum bk_says redis_tokens(struct bk_session *s, bool advance, uint64_t to, struct bk_until until, struct bk_tokens *ret,
                          pawl_error *error) {
    AUTO_REPLY reply = NULL;
    char wall[24], number_to[24];
    struct args a;
    s->wire.verb = advance ? "advancing the tokens" : "reading the tokens";
    s->wire.name = "";
    snprintf(wall, sizeof wall, "%lld", (long long)(clock_wall_us() / 1000));
    snprintf(number_to, sizeof number_to, "%llu", (unsigned long long)to);
    a.n = 3;
    arg(&a, s->count, s->count_length);
    arg_text(&a, wall);
    if (advance) arg_text(&a, number_to);
    enum bk_says says = call_script(s, &script_tokens, &a, 1, until, &reply, error);
    if (says != BK_YES) return says;
    bool fine = reply->type == REDIS_REPLY_ARRAY && reply->elements == 5;
    for (size_t i = 0; fine && i < 5; i++) fine = reply->element[i]->str;
    if (!fine) return verdict(&s->wire, "an answer of another form than the script gives", error);
    ret->last = strtoull(reply->element[0]->str, NULL, 10);
    ret->since = strtoull(reply->element[1]->str, NULL, 10);
    snprintf(ret->stored, sizeof ret->stored, "%s", reply->element[2]->str);
    snprintf(ret->answering, sizeof ret->answering, "%s", reply->element[3]->str);
    ret->clock_us = strtoll(reply->element[4]->str, NULL, 10);
    return BK_YES;
}
