/* look.c: who holds and who waits: all keys, the oldest of each lock first. */
#include "ask.h"
#include "etcd.h"
#include <stdlib.h>
#include <string.h>

#define LEASES_MAX 64 /* each is a question of its own */

/* What is left of the leases of holders, of the first ones that are met. */
struct lefts {
    int64_t lease[LEASES_MAX], ms[LEASES_MAX];
    int n;
};

static int64_t left_of(const struct lefts *lefts, int64_t lease) {
    for (int i = 0; i < lefts->n; i++)
        if (lefts->lease[i] == lease) return lefts->ms[i];
    return -1;
}

static bool is_known(const struct lefts *lefts, int64_t lease) {
    for (int i = 0; i < lefts->n; i++)
        if (lefts->lease[i] == lease) return true;
    return false;
}

static bool show(const Pb__KeyValue *kv, const struct base *base, const char *name, int place, int64_t left_ms,
                 bk_each *each, void *data) {
    char about[257] = "";
    if (kv->value.len > 0 && kv->value.len < sizeof about) memcpy(about, kv->value.data, kv->value.len);
    struct bk_record record = {.name = name,
                               .about = about,
                               .token = (uint64_t)(base->base + kv->create_revision),
                               .left_ms = left_ms,
                               .place = place};
    return each(&record, data);
}

/* The key's bytes up to the first '/' behind the prefix, with it: those of its lock, whoever wrote what follows. */
static size_t of_lock(const Pb__KeyValue *kv, size_t prefix) {
    const uint8_t *slash = kv->key.len > prefix ? memchr(kv->key.data + prefix, '/', kv->key.len - prefix) : NULL;
    return slash ? (size_t)(slash - kv->key.data) + 1 : 0;
}

static int by_lock(const Pb__KeyValue *x, const Pb__KeyValue *y, size_t prefix) {
    size_t n = of_lock(x, prefix), m = of_lock(y, prefix), both = n < m ? n : m;
    int order = both ? memcmp(x->key.data, y->key.data, both) : 0;
    return order ? order : (n > m) - (n < m);
}

static int by_lock_and_age(const void *a, const void *b, void *prefix) {
    const Pb__KeyValue *x = *(Pb__KeyValue *const *)a, *y = *(Pb__KeyValue *const *)b;
    int order = by_lock(x, y, *(size_t *)prefix);
    return order ? order : (x->create_revision > y->create_revision) - (x->create_revision < y->create_revision);
}

static enum bk_says ask_lefts(struct bk_session *s, const Pb__RangeResponse *all, size_t prefix, struct bk_until until,
                              struct lefts *lefts, pawl_error *error) {
    pawl_error denied = PAWL_ERROR_INIT;
    for (size_t i = 0; i < all->n_kvs && lefts->n < LEASES_MAX; i++) {
        const Pb__KeyValue *kv = all->kvs[i];
        if (!kv->lease || (i && by_lock(kv, all->kvs[i - 1], prefix) == 0) || is_known(lefts, kv->lease)) continue;
        lefts->lease[lefts->n] = kv->lease;
        lefts->ms[lefts->n] = -1;
        enum bk_says says = lease_left(s, kv->lease, until, &lefts->ms[lefts->n], &denied);
        if (says == BK_UNKNOWN) error_copy(error, &denied);
        if (says == BK_UNKNOWN) return says;
        if (says == BK_FAULT) break;
        lefts->n++;
    }
    return BK_YES;
}

enum bk_says look_records(struct bk_session *s, const char *name, bk_each *each, void *data, struct bk_until until,
                          pawl_error *error) {
    char from[LOCK_SIZE], to[LOCK_SIZE], base_text[PREFIX_MAX + 16], shown[NAME_BYTES + 1], last[NAME_BYTES + 1] = "";
    struct asking a;
    struct base base = {0};
    struct lefts lefts = {.n = 0};
    size_t prefix = strlen(s->bk->place.prefix);
    AUTO_TXN answer = NULL;
    if (name) place_lock(&s->bk->place, name, strlen(name), from);
    else strcpy(from, s->bk->place.prefix);
    strcpy(to, from);
    to[strlen(to) - 1]++;
    base_key(&s->bk->place, base_text);
    http2_doing(s->h, name ? "looking at" : "listing the locks", name);
    ask_begin(&a);
    a.txn.n_compare = 0;
    ask_range(&a, true, from, to, 0);
    a.ranges[0].limit = 0;
    ask_range(&a, true, base_text, NULL, 0);
    enum bk_says says = txn(s, &a.txn, until, &answer, error);
    if (says != BK_YES) return says;
    const Pb__RangeResponse *all = range_at(answer, 0);
    if (!all || !answer->succeeded) return nonsense(s, error);
    if (!s->bk->place.bare) base_parse(range_at(answer, 1), &base);
    if (all->n_kvs) qsort_r(all->kvs, all->n_kvs, sizeof(Pb__KeyValue *), by_lock_and_age, &prefix);
    says = ask_lefts(s, all, prefix, until, &lefts, error);
    if (says != BK_YES) return says;
    for (size_t i = 0, place = 0; i < all->n_kvs; i++) {
        if (!place_name(&s->bk->place, all->kvs[i]->key.data, all->kvs[i]->key.len, shown)) continue;
        place = strcmp(shown, last) == 0 ? place + 1 : 0;
        strcpy(last, shown);
        int64_t left_ms = place ? -1 : left_of(&lefts, all->kvs[i]->lease);
        if (!show(all->kvs[i], &base, shown, (int)place, left_ms, each, data)) break;
    }
    return BK_YES;
}

/* The holder's key goes; its watch tells him, and the next in line holds. */
enum bk_says look_evict(struct bk_session *s, const struct bk_claim *claim, bool at_once, struct bk_until until,
                        struct bk_evicted *ret, pawl_error *error) {
    char lock[LOCK_SIZE], end[LOCK_SIZE], base_text[PREFIX_MAX + 16];
    struct asking a;
    struct base base = {0};
    (void)at_once;
    http2_doing(s->h, "breaking", claim->name);
    place_lock(&s->bk->place, claim->name, claim->name_len, lock);
    strcpy(end, lock);
    end[strlen(end) - 1]++;
    base_key(&s->bk->place, base_text);
    for (;;) {
        AUTO_TXN found = NULL;
        AUTO_TXN gone = NULL;
        ask_begin(&a);
        a.txn.n_compare = 0;
        ask_range(&a, true, lock, end, 0);
        ask_range(&a, true, base_text, NULL, 0);
        enum bk_says says = txn(s, &a.txn, until, &found, error);
        if (says != BK_YES) return says == BK_UNKNOWN ? BK_FAULT : says; /* nothing was changed */
        const Pb__KeyValue *holder = only(range_at(found, 0));
        if (!holder) return BK_NO;
        if (!s->bk->place.bare) base_parse(range_at(found, 1), &base);
        ask_begin(&a);
        ask_if(&a, "", NULL, holder->create_revision);
        ask_delete(&a, "");
        a.compare.key = a.delete.key = holder->key; /* another program's may be of any length, and hold any byte */
        says = txn(s, &a.txn, until, &gone, error);
        if (says != BK_YES) return says;
        if (!gone->succeeded) continue; /* it let go by itself, and another holds */
        ret->token = (uint64_t)(base.base + holder->create_revision);
        if (holder->value.len < sizeof ret->holder) memcpy(ret->holder, holder->value.data, holder->value.len);
        return BK_YES;
    }
}
