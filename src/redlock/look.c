/* look.c: what who and ls read: a lock is held by whoever has its value at a quorum. Nothing here changes a lock, and
 * no script is needed. */
#include "clock.h"
#include "redis/verdict.h"
#include "redlock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A plain command at all instances: the question is made of words, one of them binary. */
static void ask_all(struct bk_session *s, struct question *q, struct args *words, struct bk_until until) {
    *q = (struct question){.args = *words};
    round_start(s, q, everybody(s), 0, until);
}

/* The replies of one command, by instance; NULL: none. Returns how many came. */
static int gather(struct bk_session *s, struct args *words, redisReply *ret[PEERS_MAX], struct bk_until until) {
    struct question q;
    redisReply *reply;
    int n = 0, i;
    memset(ret, 0, PEERS_MAX * sizeof *ret);
    ask_all(s, &q, words, until);
    while (round_next(s, &i, &reply) == BK_YES) {
        if (reply->type == REDIS_REPLY_ERROR && !verdict_is(reply->str, "WRONGTYPE")) {
            verdict(&s->peers[i].wire, reply->str, &s->peers[i].why);
            freeReplyObject(reply);
            continue;
        }
        ret[i] = reply;
        n++;
    }
    return n;
}

static void let_go(redisReply *replies[PEERS_MAX]) {
    for (int i = 0; i < PEERS_MAX; i++)
        if (replies[i]) freeReplyObject(replies[i]);
}

static bool same(const redisReply *a, const redisReply *b) {
    if (!a || !b || a->type != REDIS_REPLY_STRING || b->type != REDIS_REPLY_STRING) return false;
    if (!value_is_ours(a->str, a->len) || !value_is_ours(b->str, b->len)) return strcmp(a->str, b->str) == 0;
    return memcmp(a->str + 17, b->str + 17, OWNER_CHARS) == 0;
}

/* The value that a quorum has, and its number: the highest with it is the token. */
static const redisReply *holder(const struct bk *bk, redisReply *values[], uint64_t *ret_token, int *ret_i) {
    for (int i = 0; i < bk->n; i++) {
        int times = 0;
        uint64_t token = 0;
        for (int j = 0; j < bk->n; j++) {
            if (!same(values[i], values[j])) continue;
            times++;
            uint64_t number = value_is_ours(values[j]->str, values[j]->len) ? value_number(values[j]->str, 16) : 0;
            if (number > token) token = number;
        }
        if (times < bk->quorum) continue;
        *ret_token = token;
        *ret_i = i;
        return values[i];
    }
    return NULL;
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

static enum bk_says one_name(struct bk_session *s, const char *name, bk_each *each, void *data, struct bk_until until,
                             bool *ret_more, pawl_error *error) {
    redisReply *values[PEERS_MAX], *lefts[PEERS_MAX], *queues[PEERS_MAX];
    struct bk_claim claim = {.name = name, .name_len = strlen(name)};
    struct names names;
    struct args get = {.n = 0}, left = {.n = 0}, queue = {.n = 0};
    uint64_t token;
    int at;
    names_of(s->bk, &claim, &names);
    arg_text(&get, "GET");
    arg(&get, names.keys.lock, names.keys.lock_length);
    arg_text(&left, "PTTL");
    arg(&left, names.keys.lock, names.keys.lock_length);
    arg_text(&queue, "ZRANGE");
    arg(&queue, names.keys.queue, names.keys.queue_length);
    arg_text(&queue, "0");
    arg_text(&queue, "-1");
    int n = gather(s, &get, values, until), enough = s->bk->quorum;
    if (n >= enough) n = gather(s, &left, lefts, until);
    else memset(lefts, 0, sizeof lefts);
    if (n >= enough) n = gather(s, &queue, queues, until);
    else memset(queues, 0, sizeof queues);
    bool fine = n >= enough, more = true;
    if (fine) {
        const redisReply *value = holder(s->bk, values, &token, &at);
        struct bk_record r = {.name = name, .about = "", .token = 0, .left_ms = -1};
        if (value && lefts[at] && lefts[at]->type == REDIS_REPLY_INTEGER && lefts[at]->integer >= 0)
            r.left_ms = lefts[at]->integer;
        if (value && value_is_ours(value->str, value->len)) {
            r.token = token;
            r.since_ms = (int64_t)value_number(value->str + VALUE_MS, 13);
            r.about = value->str + VALUE_ABOUT;
        }
        more = (!value || each(&r, data)) && tell_waiters(name, queues, each, data);
    } else if (!round_cut(s, error)) {
        round_no_quorum(s, n, error);
    }
    let_go(values);
    let_go(lefts);
    let_go(queues);
    *ret_more = more;
    return fine ? BK_YES : BK_UNKNOWN;
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
            verdict(&s->peers[i].wire, reply->str ? reply->str : "SCAN does not answer with a list", &s->peers[i].why);
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

enum bk_says redlock_records(struct bk_session *s, const char *name, bk_each *each, void *data, struct bk_until until,
                             pawl_error *error) {
    struct list l = {0};
    enum bk_says says = BK_YES;
    bool more = true;
    int scanned = 0;
    s->verb = name ? "looking at" : "listing the locks";
    s->name = name ? name : "";
    if (name) return one_name(s, name, each, data, until, &more, error);
    for (int i = 0; i < s->bk->n && scanned < s->bk->quorum; i++)
        if (s->peers[i].state == PEER_READY) scanned += scan(s, i, &l, until);
    if (scanned < s->bk->quorum) {
        round_no_quorum(s, scanned, error);
        says = BK_UNKNOWN;
    }
    if (l.n) qsort(l.names, l.n, sizeof *l.names, by_text);
    for (size_t i = 0; i < l.n && more && says == BK_YES; i++)
        if (i == 0 || strcmp(l.names[i], l.names[i - 1]) != 0)
            says = one_name(s, l.names[i], each, data, until, &more, error);
    for (size_t i = 0; i < l.n; i++) free(l.names[i]);
    free(l.names);
    return says;
}
