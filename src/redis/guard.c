/* guard.c: guard in a Redis server: one script a step (guard.lua), one hash a resource.
 *
 *   prefix "%g:" enc(resource)   the record: lock token seq rule used written by at service data resets reset:N
 *   prefix "%g"                  the set's rule
 * As durable as the server is: with appendfsync=always an accepted write is on its disk; a failover may lose the last
 * ones. Names are encoded as those of locks; with the prefix in braces all keys are in one slot. */
#include "guard/guard.h"
#include "clock.h"
#include "dial.h"
#include "verdict.h"
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA_MAX (INT64_C(32) << 20) /* half of what a reply may have */

extern const struct backend *const pawl_backend;

struct guard_store {
    struct bk *bk;
    struct bk_session *session; /* NULL: not connected */
    int64_t used_ns;            /* when it was last asked something */
};

static int redis_guard_open(const struct url *url, struct guard_store **ret, pawl_error *error) {
    struct guard_store *store = calloc(1, sizeof *store);
    if (!store) return error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
    pawl_error own = PAWL_ERROR_INIT;
    if (pawl_backend->open(url, &store->bk, &own) != BK_YES) {
        error_copy(error, &own);
        free(store);
        return own.code;
    }
    *ret = store;
    return PAWL_OK;
}

static void disconnect(struct guard_store *store) {
    if (store->session) pawl_backend->drop(store->session, false);
    store->session = NULL;
}

static void redis_guard_close(struct guard_store *store) {
    disconnect(store);
    pawl_backend->close(store->bk, false);
    free(store);
}

/* --- asking --- */

#define IDLE_NS (10 * NS_PER_MS)

/* The server has hung up while nobody asked it, or says what nobody asked for. */
static bool is_spoilt(struct guard_store *store) {
    int64_t now = clock_now_ns(), idle = now - store->used_ns;
    store->used_ns = now;
    if (idle < IDLE_NS) return false;
    struct pollfd p = {.fd = store->session->wire.fd, .events = POLLIN};
    return poll(&p, 1, 0) != 0;
}

/* A question came to nothing; the connection is kept if the server refused. */
static int failed(struct guard_store *store, enum bk_says says, const pawl_error *own, pawl_error *error) {
    if (says == BK_UNKNOWN || own->code == PAWL_EUNREACHABLE) disconnect(store);
    error_copy(error, own);
    return own->code;
}

/* With sentinels: still the one they name? */
static bool is_primary(const struct guard_store *store, struct bk_until until) {
    struct watch *watch = store->session->watch;
    return !watch || watch_ask(&store->bk->place, watch, until, NULL) == BK_YES;
}

static int ready(struct guard_store *store, const char *verb, const char *resource, struct bk_until until,
                 pawl_error *error) {
    pawl_error own = PAWL_ERROR_INIT;
    if (store->session && (is_spoilt(store) || !is_primary(store, until))) disconnect(store);
    if (!store->session && pawl_backend->connect(store->bk, until, &store->session, &own) != BK_YES) {
        store->session = NULL;
        error_copy(error, &own);
        return own.code;
    }
    store->session->wire.verb = verb;
    store->session->wire.name = resource;
    return PAWL_OK;
}

struct record_keys {
    char record[KEY_SIZE + 8], set[PREFIX_MAX + 8];
    size_t record_length, set_length;
};

static void keys_for(const struct guard_store *store, const char *resource, struct record_keys *ret) {
    const struct place *place = &store->bk->place;
    struct keys keys;
    place_keys(place, resource, strlen(resource), &keys);
    ret->record_length =
        (size_t)snprintf(ret->record, sizeof ret->record, "%s%%g:%.*s", place->prefix,
                         (int)(keys.lock_length - place->prefix_length), keys.lock + place->prefix_length);
    ret->set_length = (size_t)snprintf(ret->set, sizeof ret->set, "%s%%g", place->prefix);
}

static int64_t number(const redisReply *reply) { return strtoll(reply->str, NULL, 10); }

static const struct word {
    const char *word;
    int code;
} words[] = {{"stale", PAWL_GSTALE},      {"wrong-lock", PAWL_GWRONGLOCK}, {"damaged", PAWL_GDAMAGED},
             {"no-token", PAWL_GNOTOKEN}, {"no-record", PAWL_GNORECORD},   {"rule", PAWL_EINVALID},
             {"seq", PAWL_EINVALID}};

static void fill_mark(const char *const fields[9], struct guard_mark *ret) {
    *ret = (struct guard_mark){.token = strtoull(fields[1], NULL, 10),
                               .seq = strtoull(fields[2], NULL, 10),
                               .rule = guard_rule_by_name(fields[3]),
                               .used = *fields[4] == '1',
                               .written = *fields[5] == '1',
                               .at_us = strtoll(fields[7], NULL, 10)};
    snprintf(ret->lock, sizeof ret->lock, "%s", fields[0]);
    snprintf(ret->by, sizeof ret->by, "%s", fields[6]);
    snprintf(ret->service, sizeof ret->service, "%s", fields[8]);
}

/* The answer of the script. */
static int understand(struct guard_store *store, const redisReply *reply, struct guard_found *ret, pawl_error *error) {
    const char *fields[9];
    bool good = reply->type == REDIS_REPLY_ARRAY && reply->elements == 11;
    if (reply->type == REDIS_REPLY_STATUS) return PAWL_OK;
    for (size_t i = 0; good && i < 11; i++) good = reply->element[i]->type == REDIS_REPLY_STRING;
    for (size_t i = 0; good && i < sizeof words / sizeof *words; i++) {
        if (strcmp(words[i].word, reply->element[0]->str) != 0) continue;
        for (int k = 0; k < 9; k++) fields[k] = reply->element[k + 2]->str;
        fill_mark(fields, &ret->mark);
        ret->now_us = number(reply->element[1]);
        ret->judged = words[i].code != PAWL_GNORECORD;
        return words[i].code;
    }
    return error_set(error, PAWL_EUNREACHABLE, store->session->wire.node,
                     "%s: the answer is not of the form that the guard's script gives", store->session->wire.node);
}

static int redis_guard_ask(struct guard_store *store, const struct guard_step *step, const struct guard_ask *q,
                           struct guard_found *ret, pawl_error *error) {
    static const char *const verbs[] = {"seal", "put", "reset"}, *const doing[] = {"sealing", "writing", "resetting"};
    AUTO_REPLY reply = NULL;
    struct bk_until until = {step->until_ns, -1};
    struct record_keys keys;
    struct args a = {.n = 3};
    char token[24], seq[24];
    pawl_error own = PAWL_ERROR_INIT;
    if (q->length > DATA_MAX)
        return error_set(error, PAWL_EINVALID, NULL, "'%s': more than 32 MiB are too much for a Redis record",
                         step->resource);
    int code = ready(store, doing[q->intent], step->resource, until, error);
    if (code) return code;
    keys_for(store, step->resource, &keys);
    arg(&a, keys.record, keys.record_length);
    arg(&a, keys.set, keys.set_length);
    arg_text(&a, verbs[q->intent]);
    arg_text(&a, q->claim.lock);
    arg(&a, token, (size_t)snprintf(token, sizeof token, "%" PRId64, q->claim.token));
    arg(&a, seq, (size_t)snprintf(seq, sizeof seq, "%" PRId64, q->claim.seq));
    arg_text(&a, q->claim.rule ? guard_rule_name(q->claim.rule) : "");
    arg_text(&a, q->by);
    arg_text(&a, q->claim.service ? q->claim.service : "");
    arg_text(&a, q->claim.accept_jump ? "1" : "0");
    if (q->intent == GUARD_WRITE) arg(&a, q->data ? q->data : "", q->length);
    if (q->intent == GUARD_RESET) arg_text(&a, q->why);
    enum bk_says says = call_script(store->session, &script_guard, &a, 2, until, &reply, &own);
    return says == BK_YES ? understand(store, reply, ret, error) : failed(store, says, &own, error);
}

/* --- reading --- */

static int question(struct guard_store *store, const char *const w[], const char *key, size_t length, const char *value,
                    struct bk_until until, redisReply **ret, pawl_error *error) {
    pawl_error own = PAWL_ERROR_INIT;
    struct args a = {.n = 0};
    arg_text(&a, w[0]);
    arg(&a, key, length);
    if (value) arg_text(&a, value);
    if (w[1]) arg_text(&a, w[1]);
    enum bk_says says = wire_ask(&store->session->wire, &a, until, ret, &own);
    if (says == BK_YES && (*ret)->type != REDIS_REPLY_ERROR) return PAWL_OK;
    if (says == BK_YES) says = verdict(&store->session->wire, (*ret)->str, &own);
    return failed(store, says, &own, error);
}

/* "at from to\nwhy\nby" */
static bool parse_reset(char *text, pawl_guard_reset_entry *ret) {
    int64_t at_us;
    int end = 0;
    char *why = strchr(text, '\n'), *by = why ? strchr(why + 1, '\n') : NULL;
    if (!by) return false;
    *why = *by = 0;
    if (sscanf(text, "%" SCNd64 " %" SCNd64 " %" SCNd64 "%n", &at_us, &ret->from, &ret->to, &end) != 3 || text[end])
        return false;
    ret->at_ms = at_us / 1000;
    ret->why = why + 1;
    ret->by = by + 1;
    return true;
}

/* The fields of the hash; NULL without error text: it is no record. Changes the texts of the reply. */
static pawl_guard_record *record_of(const char *resource, const redisReply *hash) {
    static const char *const names[] = {"lock", "token", "seq", "rule", "used", "written", "by", "at", "service"};
    const char *fields[9] = {"", "", "", "", "", "", "", "", ""}, *data = "";
    struct guard_mark mark;
    size_t length = 0, n = 0, most = 0;
    for (size_t i = 0; i + 1 < hash->elements; i += 2) most += strncmp(hash->element[i]->str, "reset:", 6) == 0;
    pawl_guard_reset_entry *resets = calloc(most + 1, sizeof *resets);
    bool good = resets;
    for (size_t i = 0; i + 1 < hash->elements && good; i += 2) {
        const redisReply *value = hash->element[i + 1];
        const char *name = hash->element[i]->str;
        if (strcmp(name, "data") == 0) data = value->str, length = (size_t)value->len;
        for (int k = 0; k < 9; k++)
            if (strcmp(names[k], name) == 0) fields[k] = value->str;
        size_t at = strncmp(name, "reset:", 6) == 0 ? strtoul(name + 6, NULL, 10) : 0;
        if (at > most) good = false;
        else if (at && (good = parse_reset(value->str, &resets[at - 1]))) n++;
    }
    fill_mark(fields, &mark);
    if (!good || n != most || !mark.rule || !*mark.lock || !mark.token) {
        free(resets);
        return NULL;
    }
    pawl_guard_record *record = guard_record_make(resource, &mark, data, length, resets, n);
    free(resets);
    return record;
}

static int redis_guard_read(struct guard_store *store, const struct guard_step *step, pawl_guard_record **ret,
                            pawl_error *error) {
    AUTO_REPLY hash = NULL;
    struct bk_until until = {step->until_ns, -1};
    struct record_keys keys;
    int code = ready(store, "reading", step->resource, until, error);
    if (code) return code;
    keys_for(store, step->resource, &keys);
    code = question(store, (const char *const[]){"HGETALL", NULL}, keys.record, keys.record_length, NULL, until, &hash,
                    error);
    if (code) return code;
    if (hash->elements == 0) return PAWL_GNORECORD;
    *ret = record_of(step->resource, hash);
    if (*ret) return PAWL_OK;
    return error_set(error, PAWL_EUNSAFE, store->session->wire.node,
                     "%s: the key %s is not a record of this guard; it is left alone: look at it",
                     store->session->wire.node, keys.record);
}

static int redis_guard_install(struct guard_store *store, int rule, int64_t until_ns, pawl_error *error) {
    AUTO_REPLY set = NULL;
    AUTO_REPLY there = NULL;
    struct bk_until until = {until_ns, -1};
    struct record_keys keys;
    int code = ready(store, "preparing", "guards", until, error);
    if (code) return code;
    keys_for(store, "", &keys);
    code = question(store, (const char *const[]){"SETNX", NULL}, keys.set, keys.set_length, guard_rule_name(rule),
                    until, &set, error);
    if (code == PAWL_OK)
        code =
            question(store, (const char *const[]){"GET", NULL}, keys.set, keys.set_length, NULL, until, &there, error);
    if (code) return code;
    if (there->type == REDIS_REPLY_STRING && strcmp(there->str, guard_rule_name(rule)) == 0) return PAWL_OK;
    return error_set(error, PAWL_EINVALID, store->session->wire.node, "%s was installed with rule %.20s, not %s",
                     store->session->wire.node, there->str ? there->str : "?", guard_rule_name(rule));
}

static const struct guard_kind guard_redis = {.scheme = "redis",
                                              .open = redis_guard_open,
                                              .close = redis_guard_close,
                                              .ask = redis_guard_ask,
                                              .read = redis_guard_read,
                                              .install = redis_guard_install};

__attribute__((visibility("default"))) extern const struct guard_kind *const pawl_guard_kind;
const struct guard_kind *const pawl_guard_kind = &guard_redis;
