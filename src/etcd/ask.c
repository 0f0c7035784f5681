#include "ask.h"
#include "random.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void keys_of(const struct bk *bk, const struct bk_claim *claim, struct keys *ret) {
    char suffix[33];
    place_lock(&bk->place, claim->name, claim->name_len, ret->lock);
    strcpy(ret->end, ret->lock);
    ret->end[strlen(ret->end) - 1]++; /* '/' + 1: the end of the range */
    if (claim->place > 0) snprintf(suffix, sizeof suffix, "%d", claim->place);
    else random_hex(claim->owner, 16, suffix);
    snprintf(ret->own, sizeof ret->own, "%s%" PRIx64 "-%s", ret->lock, *(uint64_t *)claim->life->of, suffix);
    base_key(&bk->place, ret->base);
}

void ask_begin(struct asking *a) {
    memset(a, 0, sizeof *a);
    a->txn = (Pb__TxnRequest)PB__TXN_REQUEST__INIT;
    a->compare = (Pb__Compare)PB__COMPARE__INIT;
    a->compares[0] = &a->compare;
    a->txn.compare = a->compares;
    a->txn.n_compare = 1;
    a->txn.success = a->success;
    a->txn.failure = a->failure;
    a->compare.target = PB__COMPARE__TARGET__CREATE;
    a->compare.target_union_case = PB__COMPARE__TARGET_UNION_CREATE_REVISION;
}

void ask_if(struct asking *a, const char *key, const char *end, int64_t create_revision) {
    a->compare.key = bytes(key);
    if (end) a->compare.range_end = bytes(end);
    a->compare.create_revision = create_revision;
}

static Pb__RequestOp *op(struct asking *a, bool then) {
    Pb__RequestOp *made = &a->ops[a->n_ops++];
    *made = (Pb__RequestOp)PB__REQUEST_OP__INIT;
    if (then) a->success[a->txn.n_success++] = made;
    else a->failure[a->txn.n_failure++] = made;
    return made;
}

void ask_range(struct asking *a, bool then, const char *key, const char *end, int64_t before) {
    Pb__RangeRequest *range = &a->ranges[a->n_ranges++];
    Pb__RequestOp *made = op(a, then);
    *range = (Pb__RangeRequest)PB__RANGE_REQUEST__INIT;
    range->key = bytes(key);
    if (end) {
        range->range_end = bytes(end);
        range->limit = 1;
        range->sort_target = PB__RANGE_REQUEST__TARGET__CREATE;
        range->sort_order = before > 0 ? PB__RANGE_REQUEST__ORDER__DESCEND : PB__RANGE_REQUEST__ORDER__ASCEND;
        range->max_create_revision = before > 0 ? before - 1 : 0;
    }
    made->request_case = PB__REQUEST_OP__REQUEST_REQUEST_RANGE;
    made->request_range = range;
}

void ask_put(struct asking *a, const struct keys *k, const struct bk_claim *claim) {
    Pb__RequestOp *made = op(a, true);
    a->put = (Pb__PutRequest)PB__PUT_REQUEST__INIT;
    a->put.key = bytes(k->own);
    a->put.value = bytes(claim->about ? claim->about : "");
    a->put.lease = *(int64_t *)claim->life->of;
    made->request_case = PB__REQUEST_OP__REQUEST_REQUEST_PUT;
    made->request_put = &a->put;
}

void ask_delete(struct asking *a, const char *key) {
    Pb__RequestOp *made = op(a, true);
    a->delete = (Pb__DeleteRangeRequest)PB__DELETE_RANGE_REQUEST__INIT;
    a->delete.key = bytes(key);
    made->request_case = PB__REQUEST_OP__REQUEST_REQUEST_DELETE_RANGE;
    made->request_delete_range = &a->delete;
}
