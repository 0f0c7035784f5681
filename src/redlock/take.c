/* take.c: one attempt to take a lock: LOCK, perhaps SEAL, or undone.
 *
 *   LOCK at all:  a number that a quorum returned is the token: each of those grants is a sealing too (one round trip).
 *   SEAL(m), m the highest number granted, at those that said less or nothing: a quorum that granted m or sealed it: m.
 *   Else RELEASE at all, and the next attempt has another value: a late RELEASE must not meet it.
 *
 * Which replies m was computed from does not matter, nor what the hint was. A reply counts only in the epoch in which
 * the attempt was asked; one that meets a later epoch begins anew. */
#include "clock.h"
#include "random.h"
#include "redlock.h"
#include "token.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNCLEAR_MS 500 /* no quorum has it now, but somebody may before long */
#define EPOCHS 3       /* so often an attempt is made anew in a later epoch */

enum said { SILENT, GRANTED, BUSY, SEALED, ABSTAINED, FAULTY };

struct attempt {
    struct bk_session *s;
    const struct bk_claim *claim;
    struct names names;
    bool queue;
    unsigned k;
    char value[OWNER_CHARS + 13 + ABOUT_SIZE];
    char base[OWNER_CHARS + 1]; /* the member of the queue begins with it */
    char ttl[24], hint[24], score[24], token_text[24], member[OWNER_CHARS + ABOUT_SIZE];
    enum said said[PEERS_MAX];
    uint64_t number[PEERS_MAX];
    int64_t left_ms[PEERS_MAX];
    redisReply *busy[PEERS_MAX];
    int granted, n_busy, places;
    peers reached; /* LOCK was sent there */
    bool newer;
    uint64_t token; /* 0: none yet */
};

static void see(struct bk *bk, uint64_t number) {
    if (number > (uint64_t)(clock_wall_us() + TOKEN_DAY_US)) return; /* as a hint it would waste the numbers */
    uint64_t seen = atomic_load_explicit(&bk->seen, memory_order_relaxed);
    while (number > seen && !atomic_compare_exchange_weak(&bk->seen, &seen, number)) {
    }
}

/* --- LOCK --- */

static void hear_lock(struct attempt *a, int i, redisReply *reply) {
    struct bk_session *s = a->s;
    char *left = NULL;
    if (round_abstains(s, i, reply, &a->newer)) {
        a->said[i] = ABSTAINED;
    } else if (reply->type == REDIS_REPLY_STRING && reply->str[0] == 'G') {
        a->number[i] = strtoull(reply->str + 1, &left, 10);
        a->left_ms[i] = *left == ' ' ? strtoll(left, NULL, 10) : a->claim->ttl_ms;
        a->said[i] = GRANTED;
        a->granted++;
        see(s->bk, a->number[i]);
    } else if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 4 && reply->element[0]->str &&
               reply->element[3]->str) {
        a->said[i] = BUSY;
        a->n_busy++;
        a->places += reply->element[2]->integer >= 0;
        see(s->bk, strtoull(reply->element[0]->str, NULL, 10));
        a->busy[i] = reply;
        return;
    } else {
        a->said[i] = FAULTY;
        round_verdict(s, i, reply);
    }
    freeReplyObject(reply);
}

/* The number that a quorum returned, if there is one. */
static uint64_t agreed(const struct attempt *a) {
    const struct bk *bk = a->s->bk;
    for (int i = 0; i < bk->n; i++) {
        int same = 0;
        for (int j = 0; j < bk->n && a->said[i] == GRANTED; j++)
            same += a->said[j] == GRANTED && a->number[j] == a->number[i];
        if (same >= bk->quorum) return a->number[i];
    }
    return 0;
}

static void lock_all(struct attempt *a, struct bk_until until) {
    struct bk_session *s = a->s;
    struct question q = {.script = &script_lock, .keys = 5, .epoch_arg = 11, .args.n = 3};
    redisReply *reply;
    int i;
    char meta[PREFIX_MAX + 8];
    uint64_t seen = atomic_load_explicit(&s->bk->seen, memory_order_relaxed);
    snprintf(a->hint, sizeof a->hint, "%llu", (unsigned long long)(seen ? seen + 1 : 0));
    snprintf(meta, sizeof meta, "%s%%r", s->bk->place.prefix);
    arg(&q.args, a->names.keys.lock, a->names.keys.lock_length);
    arg(&q.args, a->names.counter, a->names.keys.queue_length);
    arg_text(&q.args, meta);
    arg(&q.args, a->names.keys.queue, a->names.keys.queue_length);
    arg(&q.args, a->names.turn, a->names.keys.queue_length);
    arg_text(&q.args, a->value);
    arg_text(&q.args, a->ttl);
    arg_text(&q.args, a->hint);
    arg(&q.args, "", 0); /* the epoch */
    if (a->queue) {
        arg_text(&q.args, a->member);
        arg_text(&q.args, a->score);
    }
    round_start(s, &q, everybody(s), a->claim->ttl_ms, until);
    while (round_next(s, &i, &reply) == BK_YES) {
        hear_lock(a, i, reply);
        a->token = agreed(a);
        if (a->token || a->n_busy > s->bk->n - s->bk->quorum) return;
    }
}

/* --- SEAL --- */

static void seal_all(struct attempt *a, struct bk_until until) {
    struct bk_session *s = a->s;
    struct question q = {.script = &script_seal, .keys = 3, .epoch_arg = 6, .args.n = 3};
    uint64_t m = 0;
    int counted = 0, i;
    peers whom = 0;
    char meta[PREFIX_MAX + 8];
    for (i = 0; i < s->bk->n; i++)
        if (a->said[i] == GRANTED && a->number[i] > m) m = a->number[i];
    for (i = 0; i < s->bk->n; i++) {
        if (a->said[i] == GRANTED && a->number[i] == m) counted++;
        else if (a->said[i] == GRANTED || (a->said[i] == SILENT && a->reached >> i & 1)) whom |= 1u << i;
    }
    snprintf(meta, sizeof meta, "%s%%r", s->bk->place.prefix);
    snprintf(a->token_text, sizeof a->token_text, "%llu", (unsigned long long)m);
    arg_text(&q.args, meta);
    arg(&q.args, a->names.keys.lock, a->names.keys.lock_length);
    arg(&q.args, a->names.counter, a->names.keys.queue_length);
    arg(&q.args, "", 0);
    arg(&q.args, a->value, OWNER_CHARS);
    arg_text(&q.args, a->ttl);
    arg_text(&q.args, a->token_text);
    round_start(s, &q, whom, a->claim->ttl_ms, until);
    s->enough = s->bk->quorum - counted;
    for (redisReply *reply; counted < s->bk->quorum && round_next(s, &i, &reply) == BK_YES; freeReplyObject(reply)) {
        if (round_abstains(s, i, reply, &a->newer) || reply->type != REDIS_REPLY_STRING) continue;
        if (strcmp(reply->str, "S1") != 0) continue;
        a->said[i] = SEALED;
        a->number[i] = m;
        a->left_ms[i] = a->claim->ttl_ms; /* it began anew, later than what `sent` of the core is */
        counted++;
    }
    if (counted >= s->bk->quorum) a->token = m;
}

/* --- the end --- */

/* Nothing counts any more; whoever may have granted it is told, and the next attempt has another value: a late RELEASE
 * must not meet it, nor may what a late LOCK of this one takes be counted in another epoch. */
static void undo(struct attempt *a, struct bk_claim *c, struct bk_until until) {
    struct bk_session *s = a->s;
    struct question q = {.script = &script_release, .keys = 3, .args.n = 3};
    peers whom = 0;
    char channel[PREFIX_MAX + 8];
    for (int i = 0; i < s->bk->n; i++)
        if (a->said[i] == GRANTED || a->said[i] == SEALED || (a->said[i] == SILENT && a->reached >> i & 1))
            whom |= 1u << i;
    if (whom || a->newer) claim_tag(c, a->k + 1, claim_came_ms(c));
    if (!whom) return;
    snprintf(channel, sizeof channel, "%s%%w:", s->bk->place.prefix);
    arg(&q.args, a->names.keys.lock, a->names.keys.lock_length);
    arg(&q.args, a->names.keys.queue, a->names.keys.queue_length);
    arg(&q.args, a->names.turn, a->names.keys.queue_length);
    arg(&q.args, a->value, OWNER_CHARS);
    arg(&q.args, "", 0);
    arg_text(&q.args, channel);
    if (a->queue) {
        arg_text(&q.args, a->member);
        arg_text(&q.args, a->score);
    }
    round_start(s, &q, whom, c->ttl_ms, until);
    s->enough = 0;
    int i;
    for (redisReply *reply; round_next(s, &i, &reply) == BK_YES;) freeReplyObject(reply);
}

/* What a quorum of those that count has left. */
static int64_t left_of(const struct attempt *a) {
    const struct bk *bk = a->s->bk;
    int64_t best = 0;
    for (int i = 0; i < bk->n; i++) {
        int as_long = 0;
        for (int j = 0; j < bk->n; j++)
            as_long += a->number[j] == a->token && (a->said[j] == GRANTED || a->said[j] == SEALED) &&
                       a->left_ms[j] >= a->left_ms[i];
        if (a->number[i] == a->token && as_long >= bk->quorum && a->left_ms[i] > best) best = a->left_ms[i];
    }
    return best;
}

static bool fill_grant(const struct attempt *a, struct bk_grant *ret, pawl_error *error) {
    struct grant *g = malloc(sizeof *g);
    if (!g) {
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        return false;
    }
    snprintf(g->value, sizeof g->value, "%.*s", OWNER_CHARS, a->value);
    ret->token = a->token;
    ret->left_ms = left_of(a);
    ret->pin = NULL;
    ret->of = g;
    return true;
}

static bool same_holder(const redisReply *a, const redisReply *b) {
    const redisReply *va = a->element[3], *vb = b->element[3];
    return va->len >= VALUE_MS && vb->len >= VALUE_MS ? memcmp(va->str + 17, vb->str + 17, BASE_CHARS) == 0
                                                      : strcmp(va->str, vb->str) == 0;
}

/* Somebody holds it, or several of us tried at once and nobody got enough. */
static void fill_busy(const struct attempt *a, struct bk_busy *ret) {
    const struct bk *bk = a->s->bk;
    const redisReply *most = NULL;
    int most_times = 0;
    int64_t left = 0, place = -1;
    for (int i = 0; i < bk->n; i++) {
        int times = 0;
        for (int j = 0; j < bk->n && a->busy[i]; j++) times += a->busy[j] && same_holder(a->busy[i], a->busy[j]);
        if (times > most_times) most_times = times, most = a->busy[i];
        if (a->busy[i] && a->busy[i]->element[1]->integer > left) left = a->busy[i]->element[1]->integer;
        if (a->busy[i] && a->busy[i]->element[2]->integer > place) place = a->busy[i]->element[2]->integer;
    }
    *ret = (struct bk_busy){.wake_fd = -1, .queued = a->places >= bk->quorum};
    if (most) {
        const redisReply *value = most->element[3];
        ret->foreign = !value_is_ours(value->str, value->len);
        if (!ret->foreign) snprintf(ret->holder, sizeof ret->holder, "%s", value->str + VALUE_ABOUT);
    }
    int64_t rank_ms = (place < 1000 ? place : 1000) * RANK_MS;
    if (a->granted) /* we and others had some each, and it was given back */
        ret->ask_again_ms = random_between(3, INT64_C(12) << (a->k < 4 ? a->k : 4));
    else if (ret->queued && most_times <= bk->n - bk->quorum) ret->ask_again_ms = UNCLEAR_MS + rank_ms;
    else if (ret->queued && !ret->foreign) ret->ask_again_ms = (left > LOOK_MS ? LOOK_MS : left) + 2 + rank_ms;
    else ret->ask_again_ms = left < POLL_MS ? left + 2 : POLL_MS;
}

/* YES, NO, or why there is no quorum. a->newer: to be made anew. */
static enum bk_says attempt(struct attempt *a, struct bk_claim *c, struct bk_until until, struct bk_grant *ret,
                            struct bk_busy *ret_busy, pawl_error *error) {
    struct bk_session *s = a->s;
    lock_all(a, until);
    a->reached = s->reached;
    bool cut = round_cut(s, error);
    peers behind = 0;
    int answered = a->granted + a->n_busy;
    if (!a->token && !cut && a->granted >= s->bk->quorum) seal_all(a, until);
    if (a->token && fill_grant(a, ret, error)) {
        see(s->bk, a->token);
        return BK_YES;
    }
    bool unknown = false;
    for (int i = 0; i < s->bk->n; i++) {
        unknown = unknown || a->said[i] == GRANTED || (a->said[i] == SILENT && a->reached >> i & 1);
        if (a->said[i] == ABSTAINED && !s->peers[i].lost && strncmp(s->peers[i].epoch, s->epoch, 16) < 0)
            behind |= 1u << i;
    }
    if (a->token || cut) until.at_ns = 0; /* told, not waited for */
    undo(a, c, until);
    if (a->token) return BK_UNKNOWN;
    if (behind) round_level(s, behind);
    if (a->newer || cut) return BK_UNKNOWN;
    if (answered >= s->bk->quorum) {
        fill_busy(a, ret_busy);
        return BK_NO;
    }
    a->newer = behind; /* they are level now: worth another try at once */
    round_no_quorum(s, answered, error);
    return unknown ? BK_UNKNOWN : BK_FAULT;
}

enum bk_says redlock_take(struct bk_session *s, struct bk_claim *c, bool queue, struct bk_until until,
                          struct bk_grant *ret, struct bk_busy *ret_busy, pawl_error *error) {
    enum bk_says says = BK_UNKNOWN;
    s->verb = "taking";
    s->name = c->name;
    seed(s, until);
    for (int n = 0; n < EPOCHS; n++) {
        struct attempt a = {.s = s, .claim = c, .queue = queue, .k = claim_attempt(c)};
        if (queue && !claim_came_ms(c)) claim_tag(c, a.k, (uint64_t)clock_wall_us() / 1000);
        names_of(s->bk, c, &a.names);
        attempt_text(s->bk, c->owner, 0, a.base);
        attempt_text(s->bk, c->owner, a.k, a.value);
        snprintf(a.value + OWNER_CHARS, sizeof a.value - OWNER_CHARS, "%013lld%s", (long long)(clock_wall_us() / 1000),
                 c->about ? c->about : "");
        snprintf(a.member, sizeof a.member, "%s%s", a.base, c->about ? c->about : "");
        snprintf(a.ttl, sizeof a.ttl, "%lld", (long long)c->ttl_ms);
        snprintf(a.score, sizeof a.score, "%llu", (unsigned long long)claim_came_ms(c));
        says = attempt(&a, c, until, ret, ret_busy, error);
        for (int i = 0; i < s->bk->n; i++)
            if (a.busy[i]) freeReplyObject(a.busy[i]);
        if (says < BK_UNKNOWN || !a.newer) break;
        for (int i = 0; i < s->bk->n; i++) adopt_epoch(s, s->peers[i].epoch);
        if (n + 1 == EPOCHS) round_no_quorum(s, 0, error);
    }
    if (says == BK_YES && *s->remark) {
        error_set(error, PAWL_OK, NULL, "%s", s->remark);
        *s->remark = 0;
    }
    return says;
}
