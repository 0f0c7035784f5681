/* look.c: what who and ls read: a lock is held by whoever has its value at a quorum of those that vote, and free if
 * nobody can have it there, whatever those say that do not vote or do not answer. Nothing here changes a lock, nor
 * what the instances keep of themselves, unless durable=yes says that a restart loses nothing. */
#include "clock.h"
#include "redlock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT_ONCE ((WIRE_ARGS - 3) / 2) /* names in one question */
#define PATIENT_MS 1000               /* for all of them, where a quorum does not tell */

static void let_go(redisReply *replies[PEERS_MAX]) {
    for (int i = 0; i < PEERS_MAX; i++)
        if (replies[i]) freeReplyObject(replies[i]);
}

static bool same(const redisReply *a, const redisReply *b) {
    if (!a || !b || a->type != REDIS_REPLY_STRING || b->type != REDIS_REPLY_STRING) return false;
    if (!value_is_ours(a->str, a->len) || !value_is_ours(b->str, b->len)) return strcmp(a->str, b->str) == 0;
    return memcmp(a->str + 17, b->str + 17, OWNER_CHARS) == 0;
}

/* The value that most have, at how many, where, and the highest number with it, which is the token if they are a
 * quorum. */
struct most {
    int times, at;
    uint64_t token;
};

static struct most most_alike(const struct bk *bk, redisReply *values[]) {
    struct most most = {0};
    for (int i = 0; i < bk->n; i++) {
        struct most of = {.at = i};
        for (int j = 0; j < bk->n; j++) {
            if (!same(values[i], values[j])) continue;
            of.times++;
            uint64_t number = value_is_ours(values[j]->str, values[j]->len) ? value_number(values[j]->str, 16) : 0;
            if (number > of.token) of.token = number;
        }
        if (of.times > most.times) most = of;
    }
    return most;
}

static bool tell_waiters(const char *name, redisReply *queues[], bk_each *each, void *data) {
    const redisReply *longest = NULL;
    for (int i = 0; i < PEERS_MAX; i++)
        if (queues[i] && queues[i]->type == REDIS_REPLY_ARRAY && (!longest || queues[i]->elements > longest->elements))
            longest = queues[i];
    for (size_t i = 0; longest && i < longest->elements; i++) {
        const redisReply *member = longest->element[i];
        struct bk_record r = {.name = name, .about = "", .left_ms = -1, .place = (int)i + 1};
        if (member->str && member->len >= OWNER_CHARS) r.about = member->str + OWNER_CHARS;
        if (!each(&r, data)) return false;
    }
    return true;
}

/* What the instances have of one name. */
struct seen {
    redisReply *values[PEERS_MAX], *lefts[PEERS_MAX], *queues[PEERS_MAX];
    struct most most;
    int voters;  /* that told */
    int foreign; /* what they have there is no text, so nobody's lock */
};

static void forget(struct seen *seen) {
    let_go(seen->values);
    let_go(seen->lefts);
    let_go(seen->queues);
}

/* Takes element j out of a list. */
static redisReply *take_out(redisReply *list, size_t j) {
    if (list->type != REDIS_REPLY_ARRAY || j >= list->elements) return NULL;
    redisReply *one = list->element[j];
    list->element[j] = NULL;
    return one;
}

/* One instance's answer of n names. */
static void share_out(redisReply *reply, int i, int n, struct seen ret[]) {
    for (int k = 0; k < n; k++) {
        redisReply *of = take_out(reply, (size_t)k);
        if (!of) continue;
        ret[k].values[i] = take_out(of, 0);
        ret[k].lefts[i] = take_out(of, 1);
        ret[k].queues[i] = take_out(of, 2);
        freeReplyObject(of);
    }
}

static void ask(struct bk_session *s, struct question *q, int n, bool patient, struct seen ret[],
                struct bk_until until) {
    redisReply *reply;
    int i;
    round_start(s, q, everybody(s), 0, until);
    if (patient) s->enough = s->bk->n;
    while (round_next(s, &i, &reply) == BK_YES) {
        if (reply->type == REDIS_REPLY_ERROR) round_verdict(s, i, reply);
        else share_out(reply, i, n, ret);
        freeReplyObject(reply);
    }
}

/* Only those that vote count. */
static void count(struct bk_session *s, peers voters, struct seen *seen) {
    for (int i = 0; i < s->bk->n; i++) {
        if (!seen->values[i]) continue;
        bool foreign = seen->values[i]->type == REDIS_REPLY_ERROR, votes = voters >> i & 1;
        if (foreign && votes) round_verdict(s, i, seen->values[i]);
        seen->foreign += foreign && votes;
        seen->voters += !foreign && votes;
        if (!foreign && votes) continue;
        freeReplyObject(seen->values[i]);
        seen->values[i] = NULL;
    }
    seen->most = most_alike(s->bk, seen->values);
}

/* At most AT_ONCE names. Who votes is asked last: whoever does then has lost nothing before it told its values. */
static void look(struct bk_session *s, char *const names[], int n, bool patient, struct seen ret[],
                 struct bk_until until) {
    struct question q = {.script = &script_look, .keys = 2 * n, .args.n = 3};
    struct names *keys = calloc((size_t)n, sizeof *keys);
    memset(ret, 0, (size_t)n * sizeof *ret);
    for (int k = 0; keys && k < n; k++) {
        struct bk_claim claim = {.name = names[k], .name_len = strlen(names[k])};
        names_of(s->bk, &claim, &keys[k]);
        arg(&q.args, keys[k].keys.lock, keys[k].keys.lock_length);
        arg(&q.args, keys[k].keys.queue, keys[k].keys.queue_length);
    }
    if (keys) ask(s, &q, n, patient, ret, until);
    free(keys);
    peers voters = seed_voters(s, patient, until);
    for (int k = 0; k < n; k++) count(s, voters, &ret[k]);
}

/* Held, or free even if all the others have what most have. */
static bool is_known(const struct bk *bk, const struct seen *seen) {
    return seen->voters >= bk->quorum &&
           (seen->most.times >= bk->quorum || seen->most.times + bk->n - seen->voters < bk->quorum);
}

static bool tell_holder(const struct bk *bk, const char *name, const struct seen *seen, bk_each *each, void *data) {
    int at = seen->most.at;
    const redisReply *value = seen->values[at], *left = seen->lefts[at];
    struct bk_record r = {.name = name, .about = "", .token = 0, .left_ms = -1};
    if (seen->most.times < bk->quorum) return true;
    if (left && left->type == REDIS_REPLY_INTEGER && left->integer >= 0) r.left_ms = left->integer;
    if (value_is_ours(value->str, value->len)) {
        r.token = seen->most.token;
        r.since_ms = (int64_t)value_number(value->str + VALUE_MS, 13);
        r.about = value->str + VALUE_ABOUT;
    }
    return each(&r, data);
}

static enum bk_says tell_one(struct bk_session *s, char *name, struct seen *seen, bk_each *each, void *data,
                             struct bk_until until, bool *ret_more, pawl_error *error) {
    if (!is_known(s->bk, seen)) { /* an attempt on its way, it may be, or one that is slow */
        struct bk_until patient = until;
        int64_t most_ns = clock_after_ms(clock_now_ns(), PATIENT_MS);
        if (patient.at_ns > most_ns) patient.at_ns = most_ns;
        forget(seen);
        look(s, &name, 1, true, seen, patient);
        s->until = until;
    }
    bool known = is_known(s->bk, seen), foreign = seen->foreign > s->bk->n - s->bk->quorum;
    if (foreign && !*s->name) return BK_YES; /* somebody's keys of another type are in no list of locks */
    if (known) {
        *ret_more = tell_holder(s->bk, name, seen, each, data) && tell_waiters(name, seen->queues, each, data);
    } else if (seen->voters < s->bk->quorum) {
        if (!round_cut(s, error)) round_no_quorum(s, seen->voters, error);
    } else {
        error_set(error, PAWL_EUNREACHABLE, NULL,
                  "%s '%s': nobody can tell: %d of %d instances have one holder, %d are needed, and %d do not say",
                  s->verb, name, seen->most.times, s->bk->n, s->bk->quorum, s->bk->n - seen->voters);
    }
    return known ? BK_YES : foreign ? BK_FAULT : BK_UNKNOWN;
}

/* At most AT_ONCE of them. */
static enum bk_says tell_names(struct bk_session *s, char *const names[], int n, bk_each *each, void *data,
                               struct bk_until until, bool *ret_more, pawl_error *error) {
    struct seen *seen = calloc((size_t)n, sizeof *seen);
    enum bk_says says = BK_YES;
    if (!seen) {
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        return BK_FAULT;
    }
    look(s, names, n, false, seen, until);
    for (int k = 0; k < n && *ret_more && says == BK_YES; k++)
        says = tell_one(s, names[k], &seen[k], each, data, until, ret_more, error);
    for (int k = 0; k < n; k++) forget(&seen[k]);
    free(seen);
    return says;
}

/* --- all names --- */

struct list {
    char **names;
    size_t n, room;
};

static bool add_name(struct list *l, const char *name) {
    if (l->n == l->room) {
        size_t room = l->room ? 2 * l->room : 64;
        char **names = realloc(l->names, room * sizeof *names);
        if (!names) return false;
        l->names = names;
        l->room = room;
    }
    l->names[l->n] = strdup(name);
    return l->names[l->n] && ++l->n;
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

/* All locks of one instance. false: it does not answer, or memory is out. */
static bool scan(struct bk_session *s, int i, struct list *l, struct bk_until until) {
    char cursor[24] = "0", match[2 * PREFIX_MAX + 2], name[NAME_MAX_BYTES + 1];
    pattern(s->bk->place.prefix, match);
    do {
        AUTO_REPLY reply = NULL;
        struct question q = {0};
        int from;
        for (const char *const *word = (const char *const[]){"SCAN", cursor, "MATCH", match, "COUNT", "500", NULL};
             *word; word++)
            arg_text(&q.args, *word);
        round_start(s, &q, 1u << i, 0, until);
        s->enough = 1;
        if (round_next(s, &from, &reply) != BK_YES) return false;
        if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 || !reply->element[0]->str) {
            round_verdict(s, i, reply);
            return false;
        }
        snprintf(cursor, sizeof cursor, "%s", reply->element[0]->str);
        const redisReply *keys = reply->element[1];
        for (size_t k = 0; k < keys->elements; k++)
            if (place_name(&s->bk->place, keys->element[k]->str, (size_t)keys->element[k]->len, name) &&
                !add_name(l, name))
                return false;
    } while (strcmp(cursor, "0") != 0);
    return true;
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Each name once. */
static void sort(struct list *l) {
    size_t n = 0;
    if (l->n) qsort(l->names, l->n, sizeof *l->names, by_text);
    for (size_t i = 0; i < l->n; i++)
        if (n > 0 && strcmp(l->names[i], l->names[n - 1]) == 0) free(l->names[i]);
        else l->names[n++] = l->names[i];
    l->n = n;
}

enum bk_says redlock_records(struct bk_session *s, const char *name, bk_each *each, void *data, struct bk_until until,
                             pawl_error *error) {
    struct list l = {0};
    enum bk_says says = BK_YES;
    bool more = true;
    int scanned = 0;
    int64_t ignored;
    peers of = 0;
    s->verb = name ? "looking at" : "listing the locks";
    s->name = name ? name : "";
    seed_trust(s, until);
    if (seed_virgin(s, until, &ignored)) return BK_YES;
    if (name) return tell_names(s, (char *[]){(char *)(uintptr_t)name}, 1, each, data, until, &more, error);
    peers voters = seed_voters(s, false, until);
    for (int i = 0; i < s->bk->n && __builtin_popcount(of) < s->bk->quorum; i++)
        if (voters >> i & 1 && scan(s, i, &l, until)) of |= 1u << i;
    scanned = __builtin_popcount(of & seed_voters(s, false, until)); /* none of them was emptied meanwhile */
    if (scanned < s->bk->quorum) {
        if (!round_cut(s, error)) round_no_quorum(s, scanned, error);
        says = BK_UNKNOWN;
    }
    sort(&l);
    for (size_t i = 0; i < l.n && more && says == BK_YES; i += AT_ONCE) {
        size_t n = l.n - i < AT_ONCE ? l.n - i : AT_ONCE;
        says = tell_names(s, l.names + i, (int)n, each, data, until, &more, error);
    }
    for (size_t i = 0; i < l.n; i++) free(l.names[i]);
    free(l.names);
    return says;
}
