#include "about.h"
#include "clock.h"
#include "dial.h"
#include "module.h"
#include "random.h"
#include "verdict.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BATCH 100 /* lives in one renewal script: more gains nothing and makes everybody else wait */
#define KNOWN_MS 10
_Static_assert(3 + 3 * BATCH <= WIRE_ARGS, "EVALSHA, script, number of keys; key, grant and ttl of each life");

struct question { /* the texts that a call refers to, for as long as it is made */
    struct keys keys;
    char owner[OWNER_CHARS + 13 + ABOUT_SIZE], grant[GRANT_CHARS + 1], ttl[20], wall[13];
};

static void owner_text(const struct bk *bk, const unsigned char owner[16], char ret[OWNER_CHARS + 1]) {
    static const char digits[] = "0123456789abcdef";
    memcpy(ret, bk->client_id, 16);
    for (int i = 0; i < 16; i++) {
        ret[16 + 2 * i] = digits[owner[i] >> 4];
        ret[17 + 2 * i] = digits[owner[i] & 15];
    }
    ret[OWNER_CHARS] = 0;
}

/* At least `width` decimal digits. snprintf would be a tenth of what a lock costs its caller. */
static size_t digits(uint64_t value, int width, char *ret) {
    char text[20];
    int from = 20;
    while (value || width > 0) {
        text[--from] = (char)('0' + value % 10);
        value /= 10;
        width--;
    }
    memcpy(ret, text + from, (size_t)(20 - from));
    return (size_t)(20 - from);
}

static void grant_text(const struct bk *bk, const struct bk_grant *g, char ret[GRANT_CHARS + 1]) {
    digits(g->token, 16, ret);
    ret[16] = ':';
    owner_text(bk, g->claim->owner, ret + 17);
}

/* The wall clock, 13 digits of milliseconds: shown by who, and compared with the server's when its numbers begin. */
static void wall_text(char ret[13]) {
    int64_t ms = clock_wall_us() / 1000;
    digits(ms > 0 && ms < INT64_C(10000000000000) ? (uint64_t)ms : 0, 13, ret);
}

static const char *about_of(const struct bk_claim *c) { return c->about ? c->about : ""; }

/* --- calls --- */

static void script_by(struct args *a, const struct script *script, bool text, int keys, char count[8]) {
    size_t n = digits((uint64_t)keys, 1, count);
    a->value[0] = text ? "EVAL" : "EVALSHA";
    a->length[0] = text ? 4 : 7;
    a->value[1] = text ? script->text : script->sha;
    a->length[1] = text ? strlen(script->text) : 40;
    a->value[2] = count;
    a->length[2] = n;
}

enum bk_says call_script(struct bk_session *s, const struct script *script, struct args *a, int keys,
                         struct bk_until until, redisReply **ret, pawl_error *error) {
    char count[8];
    for (bool text = script == &script_renew && !s->renewed;; text = true) {
        AUTO_REPLY reply = NULL;
        script_by(a, script, text, keys, count);
        enum bk_says says = wire_ask(&s->wire, a, until, &reply, error);
        if (says != BK_YES) return says;
        if (reply->type != REDIS_REPLY_ERROR) {
            s->renewed = s->renewed || script == &script_renew;
            *ret = reply;
            reply = NULL;
            return BK_YES;
        }
        if (text || !verdict_is(reply->str, "NOSCRIPT")) return verdict(&s->wire, reply->str, error);
    }
}

static enum bk_says nonsense(struct bk_session *s, pawl_error *error) {
    error_set(error, PAWL_EUNREACHABLE, s->wire.node,
              "%s: %s '%s': the answer is not of the form that the script gives", s->wire.node, s->wire.verb,
              s->wire.name);
    return BK_UNKNOWN;
}

/* "EVALSHA sha n" and the three keys of a lock. */
static void start(struct bk_session *s, struct args *a, struct question *q, const char *verb,
                  const struct bk_claim *c) {
    s->wire.verb = verb;
    s->wire.name = c->name;
    place_keys(&s->bk->place, c->name, c->name_len, &q->keys);
    a->n = 3;
    arg(a, q->keys.lock, q->keys.lock_length);
    arg(a, q->keys.queue, q->keys.queue_length);
    arg(a, s->count, s->count_length);
}

static void arg_wall(struct args *a, struct question *q) {
    wall_text(q->wall);
    arg(a, q->wall, 13);
}

/* --- questions --- */

/* With sentinels: whoever takes, waits or holds hears of a new primary, although the old one still answers. */
static enum bk_says still_primary(struct bk_session *s, struct bk_until until, pawl_error *error) {
    return s->watch ? watch_ask(&s->bk->place, s->watch, until, error) : BK_YES;
}

/* Once a client. */
static void remark(struct bk_session *s, const char *text, pawl_error *error) {
    if (atomic_exchange(&s->bk->remarked, true)) return;
    error_set(error, PAWL_OK, s->wire.node, "%s: %s; docs/redis.md lists the rights", s->wire.node, text);
}

static void fill_busy(const redisReply *reply, struct bk_busy *ret) {
    int64_t left = reply->element[0]->integer, place = reply->element[1]->integer;
    const redisReply *value = reply->element[2];
    size_t length = value->str ? (size_t)value->len : 0;
    ret->wake_fd = -1;
    ret->queued = place >= 0;
    ret->foreign = !value_is_ours(value->str, length);
    ret->holder[0] = 0;
    if (!ret->foreign) snprintf(ret->holder, sizeof ret->holder, "%s", value->str + VALUE_ABOUT);
    if (place > 0 || (place == 0 && !ret->foreign)) {
        ret->ask_again_ms = (left < 0 || left > LOOK_MS ? LOOK_MS : left) + 2 + (place < 1000 ? place : 1000) * RANK_MS;
    } else {
        ret->ask_again_ms = left >= 0 && left < POLL_MS ? left + 2 : POLL_MS;
    }
}

/* Which server gives out the numbers is looked at inside the script, in one step with the grant, but for a connection
 * over which that was done within the last KNOWN_MS, sending to answer: a server that is made a replica and a primary
 * again within so short a time is not told from one that was not. An answer that comes later than that is not believed:
 * a repeat looks, and has the number replaced if need be. */
static enum bk_says ask_to_take(struct bk_session *s, struct args *a, bool queue, struct bk_until until,
                                redisReply **ret, pawl_error *error) {
    int n = a->n;
    for (bool repeat = false;; repeat = true) {
        int64_t now = clock_now_ns();
        bool known = now < s->known_until_ns;
        a->n = n;
        if (queue || known) arg_text(a, queue && known ? "jk" : queue ? "j" : "k");
        enum bk_says says = call_script(s, &script_take, a, 3, until, ret, error);
        if (says == BK_FAULT && repeat) return BK_UNKNOWN; /* the first one took it */
        if (says != BK_YES || (*ret)->type != REDIS_REPLY_STRING) return says;
        if (!known) s->known_until_ns = clock_after_ms(now, KNOWN_MS);
        if (!known || clock_now_ns() < s->known_until_ns) return BK_YES;
        s->known_until_ns = 0;
        freeReplyObject(*ret);
        *ret = NULL;
    }
}

static enum bk_says redis_take(struct bk_session *s, struct bk_claim *c, bool queue, struct bk_until until,
                               struct bk_grant *ret, struct bk_busy *ret_busy, pawl_error *error) {
    AUTO_REPLY reply = NULL;
    struct question q;
    struct args a;
    start(s, &a, &q, "taking", c);
    owner_text(s->bk, c->owner, q.owner);
    wall_text(q.owner + OWNER_CHARS);
    size_t about = strnlen(about_of(c), ABOUT_SIZE - 1);
    memcpy(q.owner + OWNER_CHARS + 13, about_of(c), about);
    arg(&a, q.owner, OWNER_CHARS + 13 + about);
    arg(&a, q.ttl, digits((uint64_t)c->ttl_ms, 1, q.ttl));
    enum bk_says says = still_primary(s, until, error);
    if (says == BK_YES) says = ask_to_take(s, &a, queue, until, &reply, error);
    if (says != BK_YES) return says;
    if (reply->type == REDIS_REPLY_STRING) {
        uint64_t token = strtoull(reply->str, NULL, 10);
        if (!token) return nonsense(s, error);
        ret->token = token;
        ret->left_ms = c->ttl_ms;
        ret->pin = NULL;
        ret->of = NULL;
        return BK_YES;
    }
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3) return nonsense(s, error);
    fill_busy(reply, ret_busy);
    if (reply->element[1]->integer == -2)
        remark(s, "the user may not keep a queue (sorted sets): who waits asks some ten times a second, in no order",
               error);
    return BK_NO;
}

static enum bk_says redis_evict(struct bk_session *s, const struct bk_claim *c, bool at_once, struct bk_until until,
                                struct bk_evicted *ret, pawl_error *error) {
    AUTO_REPLY reply = NULL;
    struct question q;
    struct args a;
    start(s, &a, &q, "breaking", c);
    owner_text(s->bk, c->owner, q.owner);
    wall_text(q.owner + OWNER_CHARS);
    snprintf(q.owner + OWNER_CHARS + 13, ABOUT_SIZE, "%s", about_of(c));
    arg_text(&a, q.owner);
    if (at_once) arg(&a, "1", 1);
    enum bk_says says = call_script(s, &script_evict, &a, 3, until, &reply, error);
    if (says != BK_YES) return says;
    if (reply->type == REDIS_REPLY_INTEGER) return BK_NO;
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 || !reply->element[1]->str) return nonsense(s, error);
    const redisReply *value = reply->element[1];
    ret->free_in_ms = reply->element[0]->integer;
    if (!value_is_ours(value->str, (size_t)value->len)) return BK_YES;
    ret->token = strtoull(value->str, NULL, 10);
    snprintf(ret->holder, sizeof ret->holder, "%s", value->str + VALUE_ABOUT);
    return BK_YES;
}

static enum bk_says redis_forget(struct bk_session *s, struct bk_claim *c, struct bk_until until, pawl_error *error) {
    AUTO_REPLY reply = NULL;
    struct question q;
    struct args a;
    start(s, &a, &q, "giving up", c);
    owner_text(s->bk, c->owner, q.owner);
    arg(&a, q.owner, OWNER_CHARS);
    arg_wall(&a, &q);
    arg_text(&a, about_of(c));
    enum bk_says says = call_script(s, &script_release, &a, 3, until, &reply, error);
    if (says != BK_YES) return says;
    return reply->type == REDIS_REPLY_INTEGER && reply->integer ? BK_YES : BK_NO;
}

static void add_release(struct bk_session *s, const struct bk_grant *g, bool text) {
    struct question q;
    struct args a;
    char count[8];
    start(s, &a, &q, "releasing", g->claim);
    grant_text(s->bk, g, q.grant);
    script_by(&a, &script_release, text, 3, count);
    arg(&a, q.grant, GRANT_CHARS);
    arg_wall(&a, &q);
    wire_add(&s->wire, &a);
}

/* One pass over those that are still unanswered; text: by EVAL. *ret_missing counts the NOSCRIPT. */
static enum bk_says release_pass(struct bk_session *s, struct bk_grant *const g[], int n, bool text,
                                 struct bk_until until, enum bk_says ret[], bool todo[], int *ret_missing,
                                 pawl_error *error) {
    *ret_missing = 0;
    for (int i = 0; i < n; i++)
        if (todo[i]) add_release(s, g[i], text);
    enum bk_says says = wire_flush(&s->wire, until, error);
    for (int i = 0; i < n && says == BK_YES; i++) {
        AUTO_REPLY reply = NULL;
        if (!todo[i]) continue;
        s->wire.name = g[i]->claim->name;
        says = wire_reply(&s->wire, until, &reply, error);
        if (says != BK_YES) break;
        if (reply->type == REDIS_REPLY_ERROR && !text && verdict_is(reply->str, "NOSCRIPT")) {
            ++*ret_missing;
            continue;
        }
        todo[i] = false;
        if (reply->type == REDIS_REPLY_INTEGER && reply->integer == 2)
            remark(s,
                   "the user may not tell the next waiter (PUBLISH): it finds out by itself within some five seconds",
                   error);
        if (reply->type == REDIS_REPLY_INTEGER) ret[i] = reply->integer ? BK_YES : BK_NO;
        else if (reply->type != REDIS_REPLY_ERROR) ret[i] = nonsense(s, error);
        else ret[i] = verdict_is(reply->str, "WRONGTYPE") ? BK_NO : verdict(&s->wire, reply->str, error);
    }
    return says;
}

static enum bk_says redis_release(struct bk_session *s, struct bk_grant *const g[], int n, struct bk_until until,
                                  enum bk_says ret[], pawl_error *error) {
    enum bk_says says = BK_YES;
    for (int from = 0; from < n; from += BATCH) {
        int many = n - from < BATCH ? n - from : BATCH, missing;
        bool todo[BATCH];
        for (int i = 0; i < many; i++) {
            todo[i] = true;
            ret[from + i] = BK_UNKNOWN;
        }
        if (says != BK_YES) continue; /* the connection is gone: the rest is unknown */
        says = release_pass(s, g + from, many, false, until, ret + from, todo, &missing, error);
        if (says == BK_YES && missing)
            says = release_pass(s, g + from, many, true, until, ret + from, todo, &missing, error);
    }
    for (int i = 0; i < n && says == BK_YES; i++)
        if (ret[i] == BK_FAULT || ret[i] == BK_UNKNOWN) says = ret[i];
    return says;
}

struct renewal { /* texts of one lock in a batch */
    struct keys keys;
    char grant[GRANT_CHARS + 1], ttl[24];
};

static enum bk_says renew_batch(struct bk_session *s, struct bk_life *const lives[], int n, struct renewal texts[],
                                struct bk_until until, enum bk_says ret[], int64_t ret_left_ms[], pawl_error *error) {
    AUTO_REPLY reply = NULL;
    struct args a;
    a.n = 3;
    for (int i = 0; i < n; i++) {
        const struct bk_claim *c = lives[i]->grant->claim;
        place_keys(&s->bk->place, c->name, c->name_len, &texts[i].keys);
        arg(&a, texts[i].keys.lock, texts[i].keys.lock_length);
    }
    for (int i = 0; i < n; i++) {
        grant_text(s->bk, lives[i]->grant, texts[i].grant);
        arg(&a, texts[i].grant, GRANT_CHARS);
        int length = snprintf(texts[i].ttl, sizeof texts[i].ttl, "%lld", (long long)lives[i]->ttl_ms);
        arg(&a, texts[i].ttl, (size_t)length);
    }
    enum bk_says says = call_script(s, &script_renew, &a, n, until, &reply, error);
    if (says != BK_YES) return says;
    if (reply->type != REDIS_REPLY_STRING || reply->len != (size_t)n) return nonsense(s, error);
    for (int i = 0; i < n; i++) {
        ret[i] = reply->str[i] == '1' ? BK_YES : BK_NO;
        ret_left_ms[i] = reply->str[i] == '1' ? lives[i]->ttl_ms : 0;
    }
    return BK_YES;
}

static enum bk_says redis_renew(struct bk_session *s, struct bk_life *const lives[], int n, struct bk_until until,
                                enum bk_says ret[], int64_t ret_left_ms[], pawl_error *error) {
    struct renewal *texts = malloc((size_t)(n < BATCH ? n : BATCH) * sizeof *texts);
    enum bk_says says = BK_YES;
    if (!texts) {
        error_set(error, PAWL_EINTERNAL, s->wire.node, "out of memory");
        return BK_FAULT;
    }
    says = still_primary(s, until, error);
    s->wire.verb = n == 1 ? "renewing" : "renewing locks, among them";
    for (int from = 0; from < n && says == BK_YES; from += BATCH) {
        s->wire.name = lives[from]->grant->claim->name;
        says = renew_batch(s, lives + from, n - from < BATCH ? n - from : BATCH, texts, until, ret + from,
                           ret_left_ms + from, error);
    }
    free(texts);
    return says;
}

static enum bk_says redis_prove(struct bk_session *s, const struct bk_grant *g, struct bk_until until,
                                pawl_error *error) {
    AUTO_REPLY value = NULL;
    AUTO_REPLY role = NULL;
    struct question q;
    struct args a, ask_role = {.n = 0};
    start(s, &a, &q, "proving", g->claim);
    grant_text(s->bk, g, q.grant);
    a.n = 0;
    arg_text(&a, "GETRANGE");
    arg(&a, q.keys.lock, q.keys.lock_length);
    arg_text(&a, "0");
    arg_text(&a, "64");
    arg_text(&ask_role, "INFO");
    arg_text(&ask_role, "replication");
    wire_add(&s->wire, &a);
    wire_add(&s->wire, &ask_role); /* behind the value: a replica's would not count */
    enum bk_says says = wire_flush(&s->wire, until, error);
    if (says == BK_YES) says = wire_reply(&s->wire, until, &value, error);
    if (says == BK_YES) says = wire_reply(&s->wire, until, &role, error);
    if (says != BK_YES) return says;
    if (role->type == REDIS_REPLY_ERROR) return verdict(&s->wire, role->str, error);
    if (role->type != REDIS_REPLY_STRING) return nonsense(s, error);
    if (!strstr(role->str, "role:master")) return verdict(&s->wire, "PAWLREPLICA", error);
    if (value->type == REDIS_REPLY_ERROR && !verdict_is(value->str, "WRONGTYPE"))
        return verdict(&s->wire, value->str, error);
    return value->type == REDIS_REPLY_STRING && strcmp(value->str, q.grant) == 0 ? BK_YES : BK_NO;
}

/* --- sessions --- */

static enum bk_says redis_open(const struct url *url, struct bk **ret, pawl_error *error) {
    struct bk *bk = calloc(1, sizeof *bk);
    unsigned char id[8];
    if (!bk) {
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        return BK_FAULT;
    }
    atomic_init(&bk->kick_fd, -1);
    random_bytes(id, sizeof id);
    random_hex(id, sizeof id, bk->client_id);
    enum bk_says says = place_parse(url, &bk->place, error);
    if (says != BK_YES) {
        place_free(&bk->place);
        free(bk);
        return says;
    }
    *ret = bk;
    return BK_YES;
}

static void redis_close(struct bk *bk, bool forked) {
    hub_close(bk, forked);
    if (bk->kick_fd >= 0) close(bk->kick_fd);
    place_free(&bk->place);
    free(bk);
}

static enum bk_says redis_connect(struct bk *bk, struct bk_until until, struct bk_session **ret, pawl_error *error) {
    struct bk_session *s = calloc(1, sizeof *s);
    if (!s) {
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        return BK_FAULT;
    }
    s->bk = bk;
    struct watch watch = {.wire.fd = -1};
    char run_id[41];
    enum bk_says says = BK_FAULT;
    if (bk->place.master && !(s->watch = malloc(sizeof *s->watch)))
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
    else says = dial(bk, NULL, until, &s->wire, run_id, &watch, error);
    if (says != BK_YES) {
        free(s->watch);
        free(s);
        return says;
    }
    if (s->watch) *s->watch = watch;
    s->count_length = (size_t)snprintf(s->count, sizeof s->count, "%s%%n:%s", bk->place.prefix, run_id);
    hub_agree(bk, run_id);
    *ret = s;
    return BK_YES;
}

static void redis_drop(struct bk_session *s, bool forked) {
    wire_close(&s->wire, forked);
    if (s->watch) watch_end(s->watch, forked);
    free(s->watch);
    free(s);
}

static int redis_fds(struct bk_session *s, const struct bk_grant *g, int *ret, int max) {
    if (g || max < 1) return 0;
    ret[0] = s->wire.fd;
    return 1;
}

static void redis_end(struct bk_grant *g, bool forked) {
    (void)g;
    (void)forked; /* a grant is a key on the server only */
}

static const struct backend redis_backend = {
    .caps = {.scheme = "redis",
             .life = BK_LIFE_LOCK,
             .fifo = true,
             .hub = true,
             .renew_batch = BATCH,
             .ttl_min_ms = 100,
             .ttl_max_ms = 24 * 3600 * 1000},
    .open = redis_open,
    .close = redis_close,
    .connect = redis_connect,
    .drop = redis_drop,
    .fds = redis_fds,
    .take = redis_take,
    .forget = redis_forget,
    .release = redis_release,
    .renew = redis_renew,
    .prove = redis_prove,
    .end = redis_end,
    .records = redis_records,
    .evict = redis_evict,
    .doctor = redis_doctor,
    .tokens = redis_tokens,
    .hub_open = hub_open,
    .hub_fd = hub_fd,
    .hub_io = hub_io,
    .hub_close = hub_close,
};
MODULE_EXPORT_BACKEND(redis_backend);
