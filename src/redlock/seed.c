/* seed.c: how instances come to vote, and come to it again after they lost their memory. seed.lua has the steps and why
 * they are in that order; here is who takes them.
 *
 * First start: all instances can be reached and none ever had anything: they begin at the wall clock. Re-seeding: a
 * quorum votes, others have lost their memory: those begin above all that the quorum ever gave. Attempts of the epoch
 * before are over then; who holds a lock goes on as long as a quorum has it. The new ones vote only when the longest
 * ttl that the quorum knows has passed: whatever they counted for has ended then, or was renewed without them. Less
 * than a quorum: nobody but an operator can say where the numbers go on. Who does so (redlock_init_above) says too that
 * no lock of before is held, so nobody waits. */
#include "clock.h"
#include "random.h"
#include "redlock.h"
#include "token.h"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MARK_SIZE 192
#define LOOKS 40
#define LOOK_EACH_MS 25
#define TTL_MS 1000 /* of these questions, for the time limit of an instance: a twentieth of it */

struct step { /* one question of seed.lua, and its answers */
    struct bk_session *s;
    const char *what, *mark;
    bool patient; /* all are waited for, as long as there is time */
    uint64_t floor, ttl_ms;
    struct answer {
        bool came, done, knows;       /* knows: it has its numbers, whether it votes already or not */
        uint64_t floor, base, ttl_ms; /* the longest that it knows */
        int64_t clock_us, heard_us;
        char mark[MARK_SIZE], epoch[EPOCH_CHARS + 1];
    } answers[PEERS_MAX];
};

static void hear(struct step *step, int i, const redisReply *r) {
    struct peer *p = &step->s->peers[i];
    struct answer *a = &step->answers[i];
    bool fine = r->type == REDIS_REPLY_ARRAY && r->elements == 5;
    for (size_t k = 1; fine && k < 5; k++) fine = r->element[k]->str;
    if (!fine) {
        round_verdict(step->s, i, r);
        return;
    }
    const redisReply *meta = r->element[1];
    bool whole = meta->len == META_CHARS;
    char state = r->element[2]->str[0];
    *a = (struct answer){.came = true, .done = r->element[0]->integer == 1, .knows = state == 'V' || state == 'W'};
    a->floor = whole ? value_number(meta->str, 16) : 0;
    a->base = whole ? value_number(meta->str + 17, 16) : 0;
    uint64_t ttl_ms = whole ? value_number(meta->str + 167, 8) : 0,
             before_ms = whole ? value_number(meta->str + 176, 8) : 0;
    a->ttl_ms = ttl_ms > before_ms ? ttl_ms : before_ms;
    a->heard_us = clock_wall_us();
    a->clock_us = strtoll(r->element[3]->str, NULL, 10);
    snprintf(a->mark, sizeof a->mark, "%s", r->element[4]->str);
    snprintf(a->epoch, sizeof a->epoch, "%.*s", EPOCH_CHARS, whole ? meta->str + 34 : "");
    memcpy(p->epoch, a->epoch, sizeof p->epoch);
    p->lost = !a->knows;
    p->ready_ns = state == 'W' ? clock_after_ms(clock_now_ns(), strtoll(r->element[2]->str + 1, NULL, 10)) : 0;
    p->empty = !whole;
}

/* Asks those; returns how many did it. */
static int ask(struct step *step, peers whom, struct bk_until until) {
    struct bk_session *s = step->s;
    struct question q = {.script = &script_seed, .keys = 2, .epoch_arg = 6, .args.n = 3};
    char meta[PREFIX_MAX + 8], mark[PREFIX_MAX + 16], wall[24], floor[24], ttl[24];
    int done = 0, i;
    for (i = 0; i < s->bk->n; i++) step->answers[i].came = step->answers[i].done = false;
    snprintf(meta, sizeof meta, "%s%%r", s->bk->place.prefix);
    snprintf(mark, sizeof mark, "%s%%r:mark", s->bk->place.prefix);
    snprintf(wall, sizeof wall, "%lld", (long long)(clock_wall_us() / 1000));
    snprintf(floor, sizeof floor, "%llu", (unsigned long long)step->floor);
    snprintf(ttl, sizeof ttl, "%llu", (unsigned long long)step->ttl_ms);
    arg_text(&q.args, meta);
    arg_text(&q.args, mark);
    arg_text(&q.args, step->what);
    arg(&q.args, "", 0);
    arg_text(&q.args, wall);
    arg_text(&q.args, step->mark ? step->mark : "");
    arg_text(&q.args, floor);
    arg_text(&q.args, ttl);
    round_start(s, &q, whom, TTL_MS, until);
    if (step->patient) s->enough = s->bk->n;
    for (redisReply *reply; round_next(s, &i, &reply) == BK_YES; freeReplyObject(reply)) {
        hear(step, i, reply);
        done += step->answers[i].done;
    }
    return done;
}

static void name_epoch(struct bk_session *s, uint64_t count) {
    unsigned char run[8];
    random_bytes(run, sizeof run);
    snprintf(s->epoch, sizeof s->epoch, "%016llu.", (unsigned long long)count);
    random_hex(run, sizeof run, s->epoch + 17);
}

/* Each with its own mark; it votes after ttl_ms. Returns how many were seeded. */
static int seed_marked(struct bk_session *s, const struct step *prepared, uint64_t floor, uint64_t ttl_ms,
                       struct bk_until until) {
    struct step step = {.s = s, .what = "S", .floor = floor, .ttl_ms = ttl_ms};
    int done = 0;
    for (int i = 0; i < s->bk->n; i++) {
        if (!prepared->answers[i].done) continue;
        step.mark = prepared->answers[i].mark;
        done += ask(&step, 1u << i, until);
    }
    return done;
}

/* All are there and none has anything. Everybody who begins takes the same epoch: it does not matter who seeds whom. */
static void begin(struct bk_session *s, struct bk_until until) {
    struct step prepare = {.s = s, .what = "P", .patient = true};
    int64_t most_ns = clock_after_ms(clock_now_ns(), BEGIN_MS);
    if (until.at_ns > most_ns) until.at_ns = most_ns;
    memset(s->epoch, '0', EPOCH_CHARS);
    s->epoch[15] = '1';
    s->epoch[16] = '.';
    if (ask(&prepare, everybody(s), until) == s->bk->n &&
        seed_marked(s, &prepare, token_lifted(0, clock_wall_us(), 0), 0, until))
        snprintf(s->remark, sizeof s->remark, "nothing was ever kept on these instances: tokens begin at the clock");
}

/* One after the other, so that of two who try the second stops at the first instance. Returns how many took it. */
static int bump(struct bk_session *s, peers voters, struct bk_until until, uint64_t *ret_floor, uint64_t *ret_ttl_ms) {
    struct step step = {.s = s, .what = "B"};
    int done = 0;
    *ret_floor = *ret_ttl_ms = 0;
    for (int i = 0; i < s->bk->n; i++) {
        if (!(voters >> i & 1)) continue;
        if (ask(&step, 1u << i, until) == 1) {
            done++;
            if (step.answers[i].floor > *ret_floor) *ret_floor = step.answers[i].floor;
            if (step.answers[i].ttl_ms > *ret_ttl_ms) *ret_ttl_ms = step.answers[i].ttl_ms;
        } else if (step.answers[i].came) {
            return 0;
        }
    }
    return done;
}

/* How the instances stand, as far as they told. */
struct standing {
    int ready, empty;
    peers knowing, lost, kept; /* kept: lost, but with data */
    bool split;                /* two epochs of one number: whoever made them stopped half-way */
    uint64_t count;            /* of the highest epoch */
};

static void seed_again(struct bk_session *s, const struct standing *st, struct bk_until until) {
    struct step prepare = {.s = s, .what = "P"};
    uint64_t floor, ttl_ms;
    peers lost = st->lost;
    name_epoch(s, st->count + 1);
    if (lost && ask(&prepare, lost, until) == 0) lost = 0;
    if (bump(s, st->knowing, until, &floor, &ttl_ms) < s->bk->quorum || !lost) return;
    if (!seed_marked(s, &prepare, token_lifted(floor, clock_wall_us(), 0), ttl_ms, until)) return;
    char which[160] = "";
    for (int i = 0; i < s->bk->n; i++)
        if (prepare.answers[i].done && !s->peers[i].lost)
            snprintf(which + strlen(which), sizeof which - strlen(which), "%s%s", *which ? ", " : "", s->peers[i].node);
    snprintf(s->remark, sizeof s->remark,
             "%s had lost its memory, and votes again in %llu s, when every lock that it may have forgotten has ended",
             which, (unsigned long long)(ttl_ms + 999) / 1000);
}

static struct standing stand(const struct bk_session *s) {
    struct standing st = {0};
    for (int i = 0; i < s->bk->n; i++) {
        const struct peer *p = &s->peers[i];
        if (p->state != PEER_READY) continue;
        st.ready++;
        st.empty += p->empty;
        if (p->lost) st.lost |= 1u << i;
        else st.knowing |= 1u << i;
        if (p->lost && !p->empty) st.kept |= 1u << i;
        if (!p->lost && strncmp(p->epoch, s->epoch, 16) == 0 && strcmp(p->epoch, s->epoch) != 0) st.split = true;
        uint64_t count = value_number(p->epoch, 16);
        if (count > st.count) st.count = count;
    }
    return st;
}

static void adopt_all(struct bk_session *s) {
    memset(s->epoch, '0', EPOCH_CHARS);
    s->epoch[16] = '.';
    for (int i = 0; i < s->bk->n; i++)
        if (s->peers[i].state == PEER_READY && !s->peers[i].lost) adopt_epoch(s, s->peers[i].epoch);
}

/* Somebody is in the middle of a first start, as it seems: looks on for a moment, since "a quorum has lost its memory"
 * looks just so. */
static void look_on(struct bk_session *s, struct bk_until until) {
    struct pollfd cancel = {.fd = until.cancel_fd, .events = POLLIN};
    for (int i = 0; i < LOOKS; i++) {
        struct standing st = stand(s);
        int knowing = __builtin_popcount(st.knowing);
        if (!st.lost || st.count != 1 || knowing == 0 || knowing >= s->bk->quorum) return;
        if (clock_now_ns() >= until.at_ns || poll(&cancel, 1, LOOK_EACH_MS) > 0) return;
        struct step step = {.s = s, .what = "L"};
        ask(&step, everybody(s), until);
        adopt_all(s);
    }
}

void seed_trust(struct bk_session *s, struct bk_until until) {
    struct step trust = {.s = s, .what = "T"};
    struct standing st = stand(s);
    if (!s->bk->durable || !st.kept) return;
    ask(&trust, st.kept, until);
    adopt_all(s);
}

bool seed_virgin(struct bk_session *s, struct bk_until until, int64_t *ret_clock_us) {
    struct step look = {.s = s, .what = "L", .patient = true};
    int none = 0;
    if (stand(s).empty < s->bk->n) return false;
    ask(&look, everybody(s), until);
    for (int i = 0; i < s->bk->n; i++) none += look.answers[i].came && s->peers[i].empty;
    *ret_clock_us = look.answers[0].clock_us;
    return none == s->bk->n;
}

void seed(struct bk_session *s, struct bk_until until) {
    struct standing st = stand(s);
    if ((!st.lost && !st.split) || clock_now_ns() < s->seed_ns) return;
    seed_trust(s, until);
    st = stand(s);
    if (!st.lost && !st.split) return;
    if (st.empty == s->bk->n) begin(s, until);
    else if (__builtin_popcount(st.knowing) >= s->bk->quorum) seed_again(s, &st, until);
    adopt_all(s);
    look_on(s, until);
    s->seed_ns = clock_after_ms(clock_now_ns(), random_between(20, 500)); /* of two who try, one is first then */
}

void seed_look(struct bk_session *s, struct bk_until until, struct looked ret[PEERS_MAX]) {
    struct step step = {.s = s, .what = "L", .patient = true};
    int64_t most_ns = clock_after_ms(clock_now_ns(), BEGIN_MS);
    if (until.at_ns > most_ns) until.at_ns = most_ns;
    int64_t asked_us = clock_wall_us();
    ask(&step, everybody(s), until);
    for (int i = 0; i < s->bk->n; i++) {
        const struct answer *a = &step.answers[i];
        ret[i] = (struct looked){a->came, a->ttl_ms, a->clock_us, asked_us, a->heard_us};
    }
}

peers seed_voters(struct bk_session *s, bool patient, struct bk_until until) {
    struct step step = {.s = s, .what = "L", .patient = patient};
    peers voters = 0;
    ask(&step, everybody(s), until);
    for (int i = 0; i < s->bk->n; i++) {
        struct peer *p = &s->peers[i];
        if (!step.answers[i].came) continue;
        if (p->lost) peer_is_lost(p);
        else if (p->ready_ns) peer_waits(p);
        else voters |= 1u << i;
    }
    return voters;
}

void round_level(struct bk_session *s, peers behind) {
    struct step step = {.s = s, .what = "B"};
    ask(&step, behind, s->until);
}

static enum bk_says too_few(const struct bk_session *s, int known, pawl_error *error) {
    if (!round_cut(s, error)) round_no_quorum(s, known, error);
    return BK_UNKNOWN;
}

/* Whom it prepared, but who does not vote yet. */
static void tell_waits(const struct bk_session *s, pawl_error *error) {
    char who[320] = "", when[48];
    for (int i = 0; i < s->bk->n; i++) {
        const struct peer *p = &s->peers[i];
        size_t used = strlen(who);
        if (p->state == PEER_READY && !p->lost && p->ready_ns)
            snprintf(who + used, sizeof who - used, "%s%s %s", used ? ", " : "", p->node, peer_ready_text(p, when));
    }
    if (*who)
        error_set(
            error, PAWL_OK, NULL,
            "%s: somebody may hold a lock that was granted there and forgotten. Who knows that nobody does ends the "
            "wait: pawl init --floor",
            who);
    else if (*s->remark) error_set(error, PAWL_OK, NULL, "%s", s->remark);
}

enum bk_says redlock_init(struct bk *bk, struct bk_until until, pawl_error *error) {
    struct bk_session *s;
    struct bk_tokens ignored;
    enum bk_says says = redlock_connect(bk, until, &s, error);
    if (says != BK_YES) return says;
    seed(s, until);
    says = redlock_tokens(s, false, 0, until, &ignored, error);
    int voters = says == BK_YES ? __builtin_popcount(seed_voters(s, false, until)) : 0;
    if (says == BK_YES && voters < bk->quorum)
        says = too_few(s, voters, error); /* prepared, but no lock can be taken */
    else if (says == BK_YES) tell_waits(s, error);
    redlock_drop(s, false);
    return says;
}

/* Who has its numbers, or did what was asked: how many, and the highest of them. */
static int count(const struct step *step, bool done, struct bk_tokens *t) {
    int known = 0;
    for (int i = 0; i < step->s->bk->n; i++) {
        const struct answer *a = &step->answers[i];
        struct peer *p = &step->s->peers[i];
        if (a->came && !a->knows) peer_is_lost(p);
        if (!a->came || !a->knows || (done && !a->done)) continue;
        known++;
        if (a->floor > t->last) t->last = a->floor;
        if (a->base > t->since) t->since = a->base;
        if (!t->clock_us) t->clock_us = a->clock_us;
    }
    return known;
}

/* An operator answers for those that do not know their numbers, if they are so many that no quorum can: as long as some
 * that are away may know them, nobody goes on without them. What he says is so of what is lost now, so the lost ones
 * are marked by the very question that finds them: one that is lost again later has to wait (models/, f4). */
static enum bk_says go_on_above(struct bk_session *s, uint64_t floor, struct bk_until until, pawl_error *error) {
    struct step prepare = {.s = s, .what = "P", .patient = true}, end = {.s = s, .what = "F"};
    struct bk_tokens t = {0};
    uint64_t known_floor, ttl_ms;
    s->verb = "going on above a floor";
    s->name = "";
    seed(s, until);
    name_epoch(s, 0);
    int marked = ask(&prepare, everybody(s), until), known = count(&prepare, false, &t);
    struct standing st = stand(s);
    int needed = s->bk->quorum;
    if (s->bk->n - __builtin_popcount(st.lost) < needed) needed = known;
    if (known < needed) return too_few(s, known, error);
    name_epoch(s, st.count + 1);
    if (bump(s, st.knowing, until, &known_floor, &ttl_ms) < needed) return too_few(s, known, error);
    end.floor = token_lifted(known_floor, clock_wall_us(), floor);
    if (marked) seed_marked(s, &prepare, end.floor, 0, until);
    ask(&end, everybody(s), until);
    known = count(&end, true, &t);
    return known >= s->bk->quorum ? BK_YES : too_few(s, known, error);
}

enum bk_says redlock_init_above(struct bk *bk, uint64_t floor, struct bk_until until, pawl_error *error) {
    struct bk_session *s;
    enum bk_says says = redlock_connect(bk, until, &s, error);
    if (says != BK_YES) return says;
    says = go_on_above(s, floor, until, error);
    if (says == BK_YES) tell_waits(s, error);
    redlock_drop(s, false);
    return says;
}

enum bk_says redlock_tokens(struct bk_session *s, bool advance, uint64_t to, struct bk_until until,
                            struct bk_tokens *ret, pawl_error *error) {
    struct step step = {.s = s, .what = "L"};
    struct bk_tokens t = {0};
    s->verb = advance ? "advancing the tokens" : "reading the tokens";
    s->name = "";
    if (advance) seed(s, until);
    else seed_trust(s, until);
    if (!advance && seed_virgin(s, until, &t.clock_us)) {
        *ret = t;
        return BK_YES;
    }
    for (int i = 0; i < 1 + advance; i++) {
        ask(&step, everybody(s), until);
        int known = count(&step, i == 1, &t);
        if (known < s->bk->quorum) return too_few(s, known, error);
        step.what = "A";
        step.floor = token_lifted(t.last, clock_wall_us(), to);
    }
    snprintf(t.stored, sizeof t.stored, "epoch %.*s", EPOCH_CHARS, s->epoch);
    memcpy(t.answering, t.stored, sizeof t.answering);
    *ret = t;
    return BK_YES;
}
