/* guard.c: guard in etcd: one key a resource, changed by a transaction that wants it as it was read.
 *
 *   prefix "%guard/" enc(resource)   the record, in the form of record_file.h
 *   prefix "%guard"                  the set's rule
 *   ?while=KEY@REVISION              and only while KEY has that create revision: a lock key of the same etcd, of
 * whatever client, so that a holder whose lock was lost is refused though nobody has it yet */
#include "guard/guard.h"
#include "clock.h"
#include "etcd.h"
#include "guard/record_file.h"
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAUSE_MS 50
#define RECORD_MAX (1400 << 10) /* etcd takes requests of 1.5 MiB unless told otherwise */

extern const struct backend *const pawl_backend;

struct guard_store {
    struct bk *bk;
    struct bk_session *session; /* NULL: not connected */
    const char *verb, *about;   /* what is being attempted, for errors: "writing", "report" */
    char *held;                 /* key of ?while; NULL: none */
    int64_t held_revision;
};

static int take_held(struct guard_store *store, const struct url *url, pawl_error *error) {
    const char *value = url_param(url, "while"), *at = value ? strrchr(value, '@') : NULL;
    char *end;
    if (!value) return PAWL_OK;
    store->held_revision = at ? strtoll(at + 1, &end, 10) : 0;
    if (!at || at == value || store->held_revision < 1 || *end)
        return error_set(error, PAWL_EINVALID, NULL, "url %s: while is KEY@REVISION, a key and its create revision",
                         url->shown);
    store->held = strndup(value, (size_t)(at - value));
    return store->held ? PAWL_OK : error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
}

static void etcd_guard_close(struct guard_store *store) {
    if (store->session) pawl_backend->drop(store->session, false);
    if (store->bk) pawl_backend->close(store->bk, false);
    free(store->held);
    free(store);
}

static int etcd_guard_open(const struct url *url, struct guard_store **ret, pawl_error *error) {
    struct guard_store *store = calloc(1, sizeof *store);
    pawl_error own = PAWL_ERROR_INIT;
    if (!store) return error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
    int code = take_held(store, url, error);
    if (code == PAWL_OK && pawl_backend->open(url, &store->bk, &own) != BK_YES) {
        store->bk = NULL;
        error_copy(error, &own);
        code = own.code;
    }
    if (code) etcd_guard_close(store);
    else *ret = store;
    return code;
}

/* --- one transaction --- */

static int failed(struct guard_store *store, enum bk_says says, const pawl_error *own, pawl_error *error) {
    if (says == BK_UNKNOWN || own->code == PAWL_EUNREACHABLE) {
        pawl_backend->drop(store->session, false);
        store->session = NULL;
    }
    error_copy(error, own);
    return own->code;
}

static int ask_txn(struct guard_store *store, const Pb__TxnRequest *request, struct bk_until until, bool reads,
                   Pb__TxnResponse **ret, pawl_error *error) {
    for (;;) {
        pawl_error own = PAWL_ERROR_INIT;
        bool fresh = !store->session;
        if (fresh && pawl_backend->connect(store->bk, until, &store->session, &own) != BK_YES) {
            store->session = NULL;
            error_copy(error, &own);
            return own.code;
        }
        http2_doing(store->session->h, store->verb, store->about);
        enum bk_says says = fresh ? base_one_cluster(store->session, until, &own) : BK_YES;
        if (says == BK_YES) says = txn(store->session, request, until, ret, &own);
        if (says == BK_YES) return PAWL_OK;
        int code = failed(store, says, &own, error);
        /* A connection that died, or a member that is silent: what surely did nothing is asked again on a new one. */
        bool again = !store->session && (says == BK_FAULT || reads);
        if (!again || clock_now_ns() >= until.at_ns) return code;
        if (fresh) poll(NULL, 0, PAUSE_MS);
    }
}

static ProtobufCBinaryData text_bytes(const char *text) {
    return (ProtobufCBinaryData){.data = (uint8_t *)(uintptr_t)text, .len = strlen(text)};
}

struct guard_keys {
    char record[LOCK_SIZE + 16], set[PREFIX_MAX + 16];
};

static void keys_for(const struct guard_store *store, const char *resource, struct guard_keys *ret) {
    const struct place *place = &store->bk->place;
    char lock[LOCK_SIZE];
    place_lock(place, resource, strlen(resource), lock);
    snprintf(ret->set, sizeof ret->set, "%s%%guard", place->prefix);
    snprintf(ret->record, sizeof ret->record, "%s/%s", ret->set, lock + strlen(place->prefix));
}

/* What was read: the record's text, cut up by its head. */
struct seen {
    char *text; /* to be freed */
    struct record_head head;
    const char *data;
    size_t length;
    int64_t mod_revision; /* 0: there is none */
    int set_rule;
    bool held; /* or nobody asked */
};

static void seen_free(struct seen *seen) {
    record_head_free(&seen->head);
    free(seen->text);
}
#define AUTO_SEEN __attribute__((cleanup(seen_free))) struct seen

static int parse(struct guard_store *store, const struct guard_keys *keys, const char *resource, const Pb__KeyValue *kv,
                 struct seen *ret, pawl_error *error) {
    size_t at = 0;
    ret->mod_revision = kv->mod_revision;
    ret->text = malloc(kv->value.len + 1);
    if (!ret->text) return error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
    if (kv->value.len) memcpy(ret->text, kv->value.data, kv->value.len);
    ret->text[kv->value.len] = 0;
    const char *why = record_head_parse(ret->text, kv->value.len, &ret->head, &at);
    if (!why && (strcmp(ret->head.resource, resource) != 0 || ret->head.length != kv->value.len - at))
        why = "it is not whole";
    if (why)
        return error_set(error, PAWL_EUNSAFE, http2_node(store->session->h),
                         "%s: the key %s is not a record of this guard (%s); it is left alone: look at it",
                         http2_at(store->session->h), keys->record, why);
    ret->data = ret->text + at;
    ret->length = ret->head.length;
    return PAWL_OK;
}

static int look(struct guard_store *store, const struct guard_keys *keys, const char *resource, struct bk_until until,
                struct seen *ret, pawl_error *error) {
    AUTO_TXN answer = NULL;
    const char *const names[] = {keys->record, keys->set, store->held};
    Pb__RangeRequest ranges[3];
    Pb__RequestOp ops[3], *list[3];
    Pb__TxnRequest request = PB__TXN_REQUEST__INIT;
    size_t n = store->held ? 3 : 2;
    for (size_t i = 0; i < n; i++) {
        ranges[i] = (Pb__RangeRequest)PB__RANGE_REQUEST__INIT;
        ranges[i].key = text_bytes(names[i]);
        ops[i] = (Pb__RequestOp)PB__REQUEST_OP__INIT;
        ops[i].request_case = PB__REQUEST_OP__REQUEST_REQUEST_RANGE;
        ops[i].request_range = &ranges[i];
        list[i] = &ops[i];
    }
    request.success = list;
    request.n_success = n;
    int code = ask_txn(store, &request, until, true, &answer, error);
    if (code) return code;
    const Pb__RangeResponse *found[3] = {range_at(answer, 0), range_at(answer, 1), n > 2 ? range_at(answer, 2) : NULL};
    if (!found[0] || !found[1] || (n > 2 && !found[2]))
        return error_set(error, PAWL_EUNREACHABLE, http2_node(store->session->h), "%s: the answer is not etcd's",
                         http2_at(store->session->h));
    ret->held = n < 3 || (found[2]->n_kvs == 1 && found[2]->kvs[0]->create_revision == store->held_revision);
    if (found[1]->n_kvs == 1) {
        char rule[8] = "";
        size_t length = found[1]->kvs[0]->value.len;
        memcpy(rule, found[1]->kvs[0]->value.data, length < 7 ? length : 7);
        ret->set_rule = guard_rule_by_name(rule);
    }
    return found[0]->n_kvs == 1 ? parse(store, keys, resource, found[0]->kvs[0], ret, error) : PAWL_OK;
}

/* Puts value if key is as it was seen, and the lock is held if that was asked for. */
static int swap(struct guard_store *store, const char *key, int64_t mod_revision, bool held, const char *value,
                size_t length, struct bk_until until, bool *ret_done, pawl_error *error) {
    AUTO_TXN answer = NULL;
    Pb__Compare compares[2] = {PB__COMPARE__INIT, PB__COMPARE__INIT}, *list[2] = {&compares[0], &compares[1]};
    Pb__PutRequest put = PB__PUT_REQUEST__INIT;
    Pb__RequestOp op = PB__REQUEST_OP__INIT, *ops[1] = {&op};
    Pb__TxnRequest request = PB__TXN_REQUEST__INIT;
    compares[0].target = PB__COMPARE__TARGET__MOD;
    compares[0].key = put.key = text_bytes(key);
    compares[0].target_union_case = PB__COMPARE__TARGET_UNION_MOD_REVISION;
    compares[0].mod_revision = mod_revision;
    if (held) {
        compares[1].target = PB__COMPARE__TARGET__CREATE;
        compares[1].key = text_bytes(store->held);
        compares[1].target_union_case = PB__COMPARE__TARGET_UNION_CREATE_REVISION;
        compares[1].create_revision = store->held_revision;
    }
    put.value = (ProtobufCBinaryData){.data = (uint8_t *)(uintptr_t)value, .len = length};
    op.request_case = PB__REQUEST_OP__REQUEST_REQUEST_PUT;
    op.request_put = &put;
    request.compare = list;
    request.n_compare = held ? 2 : 1;
    request.success = ops;
    request.n_success = 1;
    int code = ask_txn(store, &request, until, false, &answer, error);
    if (code == PAWL_OK) *ret_done = answer->succeeded;
    return code;
}

/* --- the contract --- */

/* What becomes of what was seen; as guard_judge, with the entry of a reset. */
static int decide(const struct seen *seen, const struct guard_ask *q, struct guard_found *ret, struct guard_mark *mark,
                  pawl_guard_reset_entry *entry) {
    *ret = (struct guard_found){.mark = seen->head.mark, .set_rule = seen->set_rule, .now_us = clock_wall_us()};
    if (q->intent == GUARD_RESET) {
        if (!seen->mod_revision) return PAWL_GNORECORD;
        guard_reset_mark(ret, q->claim.token, q->by, q->why, mark, entry);
        return PAWL_OK;
    }
    int code = guard_judge(ret, &q->claim, q->intent, mark);
    ret->judged = code != PAWL_OK;
    if (code == PAWL_OK && !seen->held) {
        ret->judged = ret->lapsed = true;
        return PAWL_GSTALE;
    }
    if (q->intent == GUARD_WRITE) mark->written = true;
    snprintf(mark->by, sizeof mark->by, "%s", q->by);
    return code;
}

/* PAWL_OK with *ret_done false: somebody changed it in between. */
static int try_once(struct guard_store *store, const struct guard_step *step, const struct guard_keys *keys,
                    const struct guard_ask *q, struct guard_found *ret, bool *ret_done, pawl_error *error) {
    AUTO_SEEN seen = {0};
    struct bk_until until = {step->until_ns, -1};
    struct guard_mark mark;
    pawl_guard_reset_entry entry;
    int code = look(store, keys, step->resource, until, &seen, error);
    if (code == PAWL_OK) code = decide(&seen, q, ret, &mark, &entry);
    if (code) return code;
    const char *data = q->intent == GUARD_WRITE ? q->data : seen.data;
    size_t length = q->intent == GUARD_WRITE ? q->length : seen.length, size = 0;
    if (length > RECORD_MAX)
        return error_set(error, PAWL_EINVALID, NULL, "'%s': more than 1400 KiB are too much for an etcd record",
                         step->resource);
    char *text =
        record_head_lines(step->resource, &mark, &seen.head, q->intent == GUARD_RESET ? &entry : NULL, length, &size);
    char *whole = text ? realloc(text, size + length + 1) : NULL;
    if (!whole) {
        free(text);
        return error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
    }
    if (length) memcpy(whole + size, data, length);
    code = swap(store, keys->record, seen.mod_revision, store->held && q->intent != GUARD_RESET, whole, size + length,
                until, ret_done, error);
    free(whole);
    return code;
}

static int etcd_guard_ask(struct guard_store *store, const struct guard_step *step, const struct guard_ask *q,
                          struct guard_found *ret, pawl_error *error) {
    static const char *const doing[] = {"sealing", "writing", "resetting"};
    struct guard_keys keys;
    bool done = false;
    keys_for(store, step->resource, &keys);
    store->verb = doing[q->intent];
    store->about = step->resource;
    for (int code = PAWL_OK; !done;) {
        if ((code = try_once(store, step, &keys, q, ret, &done, error))) return code;
        if (!done && clock_now_ns() >= step->until_ns)
            return error_set(error, PAWL_ETIMEOUT, http2_node(store->session->h), "%s: others changed it all the time",
                             http2_at(store->session->h));
    }
    return PAWL_OK;
}

static int etcd_guard_read(struct guard_store *store, const struct guard_step *step, pawl_guard_record **ret,
                           pawl_error *error) {
    AUTO_SEEN seen = {0};
    struct bk_until until = {step->until_ns, -1};
    struct guard_keys keys;
    keys_for(store, step->resource, &keys);
    store->verb = "reading";
    store->about = step->resource;
    int code = look(store, &keys, step->resource, until, &seen, error);
    if (code) return code;
    if (!seen.mod_revision) return PAWL_GNORECORD;
    *ret = guard_record_make(step->resource, &seen.head.mark, seen.data, seen.length, seen.head.resets,
                             seen.head.n_resets);
    return *ret ? PAWL_OK : error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
}

static int etcd_guard_install(struct guard_store *store, int rule, int64_t until_ns, pawl_error *error) {
    struct bk_until until = {until_ns, -1};
    struct guard_keys keys;
    const char *name = guard_rule_name(rule);
    keys_for(store, "-", &keys);
    store->verb = "preparing";
    store->about = "guards";
    bool done = false;
    int code = swap(store, keys.set, 0, false, name, strlen(name), until, &done, error);
    if (code || done) return code;
    AUTO_SEEN seen = {0};
    if ((code = look(store, &keys, "-", until, &seen, error)) || seen.set_rule == rule) return code;
    return error_set(error, PAWL_EINVALID, http2_node(store->session->h), "%s was installed with rule %s, not %s",
                     http2_node(store->session->h), seen.set_rule ? guard_rule_name(seen.set_rule) : "?", name);
}

static const struct guard_kind guard_etcd = {.scheme = "etcd",
                                             .open = etcd_guard_open,
                                             .close = etcd_guard_close,
                                             .ask = etcd_guard_ask,
                                             .read = etcd_guard_read,
                                             .install = etcd_guard_install};

__attribute__((visibility("default"))) extern const struct guard_kind *const pawl_guard_kind;
const struct guard_kind *const pawl_guard_kind = &guard_etcd;
