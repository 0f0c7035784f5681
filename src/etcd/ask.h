/* ask.h: a transaction, made piece by piece: one condition, and what is asked if it is true, or if it is not. */
#ifndef ETCD_ASK_H
#define ETCD_ASK_H
#include "etcd.h"
#include <string.h>

/* The keys of one claim: those of its lock are from lock up to end, without end. Its own is used again by a later
 * attempt if the earlier one is surely over: etcd keeps every key that was ever there in its index until it compacts,
 * and each look at the lock's keys passes them all. */
struct keys {
    char lock[LOCK_SIZE], end[LOCK_SIZE], own[KEY_SIZE], base[PREFIX_MAX + 16];
};
void keys_of(const struct bk *bk, const struct bk_claim *claim, struct keys *ret);

/* The pieces live in it; it points at the keys that it was given. */
struct asking {
    Pb__TxnRequest txn;
    Pb__Compare compare, *compares[1];
    Pb__RangeRequest ranges[6];
    Pb__PutRequest put;
    Pb__DeleteRangeRequest delete;
    Pb__RequestOp ops[8], *success[4], *failure[4];
    int n_ranges, n_ops;
};

void ask_begin(struct asking *a);
/* The condition: the key (with end: every key of the range) has that create revision; 0: it is not there. */
void ask_if(struct asking *a, const char *key, const char *end, int64_t create_revision);
/* end NULL: one key. Else of the range the first by create revision, or, with before > 0, the last that is older than
 * that. */
void ask_range(struct asking *a, bool then, const char *key, const char *end, int64_t before);
void ask_put(struct asking *a, const struct keys *k, const struct bk_claim *claim);
void ask_delete(struct asking *a, const char *key);

static inline ProtobufCBinaryData bytes(const char *text) {
    return (ProtobufCBinaryData){.data = (uint8_t *)(uintptr_t)text, .len = strlen(text)};
}

/* The only key of an answer, NULL: none. */
static inline const Pb__KeyValue *only(const Pb__RangeResponse *range) {
    return range && range->n_kvs > 0 ? range->kvs[0] : NULL;
}
#endif
