/* etcd.c: the recipe: one transaction a question.
 *
 *   try      If nobody has a key under the lock's prefix Then put ours, Else show the first
 *   queue    If our key is not there Then put it; show the first, and who stands just before us
 *   ask      If our key is still there, as it was, Then show the first, and who stands just before us
 *   release  If our key is still there, as it was, Then delete it
 * Each that may grant reads the token's base in the same transaction. Whoever waits watches only the key just before
 * its own (hub.c), beginning now: a watch that begins in the past is served by etcd 3.4 only every 100 ms. */
#include "etcd.h"
#include "clock.h"
#include "module.h"
#include "random.h"
#include "token.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_MS 5000 /* no waiter looks away for longer */
#define POLL_MS 200  /* and one that cannot be told looks so often */

struct place_in_line { /* claim->of, grant->of */
    struct bk *bk;
    unsigned char owner[16];
    int64_t revision;      /* create revision of our key */
    uint64_t token;        /* as granted */
    unsigned hub;          /* by which hub `watched` is watched */
    size_t watched_length; /* 0: nothing */
    unsigned char watched[KEY_SIZE];
};

static ProtobufCBinaryData bytes(const char *text) {
    return (ProtobufCBinaryData){.data = (uint8_t *)(uintptr_t)text, .len = strlen(text)};
}

/* --- keys --- */

struct keys {
    char lock[LOCK_SIZE], end[LOCK_SIZE], own[KEY_SIZE], base[PREFIX_MAX + 16];
};

static void keys_of(const struct bk *bk, const struct bk_claim *claim, struct keys *ret) {
    char owner[33];
    place_lock(&bk->place, claim->name, claim->name_len, ret->lock);
    strcpy(ret->end, ret->lock);
    ret->end[strlen(ret->end) - 1]++; /* '/' + 1: the end of the range */
    random_hex(claim->owner, 16, owner);
    snprintf(ret->own, sizeof ret->own, "%s%" PRIx64 "-%s", ret->lock, *(uint64_t *)claim->life->of, owner);
    base_key(&bk->place, ret->base);
}

/* --- a transaction, made piece by piece; the pieces live in it --- */

struct asking {
    Pb__TxnRequest txn;
    Pb__Compare compare, *compares[1];
    Pb__RangeRequest ranges[6];
    Pb__PutRequest put;
    Pb__DeleteRangeRequest delete;
    Pb__RequestOp ops[8], *success[4], *failure[4];
    int n_ranges, n_ops;
};

static void ask_begin(struct asking *a) {
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

static void ask_if(struct asking *a, const char *key, const char *end, int64_t create_revision) {
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

/* end NULL: one key. limit 1, by create revision: the first, or, with before > 0, the last that is older than that. */
static void ask_range(struct asking *a, bool then, const char *key, const char *end, int64_t before) {
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

static void ask_put(struct asking *a, const struct keys *k, const struct bk_claim *claim) {
    Pb__RequestOp *made = op(a, true);
    a->put = (Pb__PutRequest)PB__PUT_REQUEST__INIT;
    a->put.key = bytes(k->own);
    a->put.value = bytes(claim->about ? claim->about : "");
    a->put.lease = *(int64_t *)claim->life->of;
    made->request_case = PB__REQUEST_OP__REQUEST_REQUEST_PUT;
    made->request_put = &a->put;
}

static void ask_delete(struct asking *a, const char *key) {
    Pb__RequestOp *made = op(a, true);
    a->delete = (Pb__DeleteRangeRequest)PB__DELETE_RANGE_REQUEST__INIT;
    a->delete.key = bytes(key);
    made->request_case = PB__REQUEST_OP__REQUEST_REQUEST_DELETE_RANGE;
    made->request_delete_range = &a->delete;
}

static const Pb__KeyValue *only(const Pb__RangeResponse *range) {
    return range && range->n_kvs > 0 ? range->kvs[0] : NULL;
}

/* --- taking --- */

static enum bk_says nonsense(const struct bk_session *s, pawl_error *error) {
    error_set(error, PAWL_EUNREACHABLE, http2_node(s->h), "%s: the answer does not fit the question", http2_node(s->h));
    return BK_UNKNOWN;
}

/* The lock is ours: our key is the first. base: as read in the transaction that proves it. */
static enum bk_says grant(struct bk_session *s, struct bk_claim *claim, int64_t revision,
                          const Pb__RangeResponse *base_range, struct bk_grant *ret, pawl_error *error) {
    struct base base = {0};
    struct place_in_line *line = claim->of ? claim->of : calloc(1, sizeof *line);
    if (!s->bk->place.bare && !base_parse(base_range, &base)) {
        if (!claim->of) free(line);
        error_set(error, PAWL_EUNREACHABLE, http2_node(s->h), "%s: the token base vanished", http2_node(s->h));
        return BK_UNKNOWN; /* a new connection looks at it again */
    }
    if (!line) return nonsense(s, error);
    uint64_t token = (uint64_t)(base.base + revision);
    if (token == 0 || token > TOKEN_MAX) {
        if (!claim->of) free(line);
        error_set(error, PAWL_EUNSAFE, http2_node(s->h), "%s: the numbers are used up (2^53)", http2_node(s->h));
        return BK_UNKNOWN;
    }
    if (line->watched_length) hub_wish(s->bk, claim->owner, NULL, 0);
    claim->of = NULL;
    line->revision = revision;
    line->token = token;
    *ret = (struct bk_grant){.claim = ret->claim, .token = token, .left_ms = claim->ttl_ms, .of = line};
    return BK_YES;
}

static void fill_busy(const Pb__KeyValue *holder, int64_t ask_ms, bool queued, struct bk_busy *ret) {
    *ret = (struct bk_busy){.ask_again_ms = ask_ms, .wake_fd = -1, .queued = queued};
    size_t length = holder ? holder->value.len : 0;
    ret->foreign = length == 0;
    if (length < sizeof ret->holder && length > 0) memcpy(ret->holder, holder->value.data, length);
}

static enum bk_says try_it(struct bk_session *s, struct bk_claim *claim, struct bk_until until, struct bk_grant *ret,
                           struct bk_busy *ret_busy, pawl_error *error) {
    struct keys k;
    struct asking a;
    AUTO_TXN answer = NULL;
    keys_of(s->bk, claim, &k);
    ask_begin(&a);
    ask_if(&a, k.lock, k.end, 0); /* true only if there is no key in the range */
    ask_put(&a, &k, claim);
    ask_range(&a, true, k.base, NULL, 0);
    ask_range(&a, false, k.lock, k.end, 0);
    ask_range(&a, false, k.base, NULL, 0);
    enum bk_says says = txn(s, &a.txn, until, &answer, error);
    if (says != BK_YES) return says;
    if (answer->succeeded) return grant(s, claim, answer->header->revision, range_at(answer, 1), ret, error);
    const Pb__KeyValue *first = only(range_at(answer, 0));
    if (!first) return nonsense(s, error);
    if (first->key.len == strlen(k.own) &&
        memcmp(first->key.data, k.own, first->key.len) == 0) /* a repeat: it worked before */
        return grant(s, claim, first->create_revision, range_at(answer, 1), ret, error);
    fill_busy(first, POLL_MS, false, ret_busy);
    return BK_NO;
}

/* Watches the one just before us, unless that is done already. */
static void watch(struct bk_session *s, const struct bk_claim *claim, struct place_in_line *line,
                  const Pb__KeyValue *before) {
    unsigned hub = atomic_load(&s->bk->hub_number);
    if (before->key.len > sizeof line->watched) return; /* somebody else's long key: looked at from time to time */
    if (line->hub == hub && line->watched_length == before->key.len &&
        memcmp(line->watched, before->key.data, before->key.len) == 0)
        return;
    line->hub = hub;
    line->watched_length = before->key.len;
    memcpy(line->watched, before->key.data, before->key.len);
    hub_wish(s->bk, claim->owner, before->key.data, before->key.len);
}

/* In line: the first, and the one before us. */
static enum bk_says judge(struct bk_session *s, struct bk_claim *claim, const Pb__KeyValue *first,
                          const Pb__KeyValue *before, const Pb__RangeResponse *base, struct bk_grant *ret,
                          struct bk_busy *ret_busy, pawl_error *error) {
    struct place_in_line *line = claim->of;
    if (!first) return nonsense(s, error);
    if (first->create_revision == line->revision) return grant(s, claim, line->revision, base, ret, error);
    if (before) watch(s, claim, line, before);
    fill_busy(first, before ? LOOK_MS : 1, true, ret_busy);
    return BK_NO;
}

/* YES, NO: as take; *ret_gone: our key is not there any more. */
static enum bk_says ask_again(struct bk_session *s, struct bk_claim *claim, struct bk_until until, struct bk_grant *ret,
                              struct bk_busy *ret_busy, bool *ret_gone, pawl_error *error) {
    struct place_in_line *line = claim->of;
    struct keys k;
    struct asking a;
    AUTO_TXN answer = NULL;
    keys_of(s->bk, claim, &k);
    ask_begin(&a);
    ask_if(&a, k.own, NULL, line->revision);
    ask_range(&a, true, k.lock, k.end, 0);
    ask_range(&a, true, k.lock, k.end, line->revision);
    ask_range(&a, true, k.base, NULL, 0);
    enum bk_says says = txn(s, &a.txn, until, &answer, error);
    if (says != BK_YES) return says;
    *ret_gone = !answer->succeeded;
    if (*ret_gone) return BK_NO;
    return judge(s, claim, only(range_at(answer, 0)), only(range_at(answer, 1)), range_at(answer, 2), ret, ret_busy,
                 error);
}

static enum bk_says queue_up(struct bk_session *s, struct bk_claim *claim, struct bk_until until, struct bk_grant *ret,
                             struct bk_busy *ret_busy, pawl_error *error) {
    struct keys k;
    struct asking a;
    AUTO_TXN answer = NULL;
    bool gone;
    keys_of(s->bk, claim, &k);
    ask_begin(&a);
    ask_if(&a, k.own, NULL, 0);
    ask_put(&a, &k, claim);
    ask_range(&a, true, k.lock, k.end, 0);
    ask_range(&a, true, k.base, NULL, 0);
    ask_range(&a, false, k.own, NULL, 0);
    struct place_in_line *line = calloc(1, sizeof *line);
    if (!line) {
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        return BK_FAULT;
    }
    enum bk_says says = txn(s, &a.txn, until, &answer, error);
    const Pb__KeyValue *mine = says == BK_YES && !answer->succeeded ? only(range_at(answer, 0)) : NULL;
    if (says == BK_YES && !answer->succeeded && !mine) says = nonsense(s, error);
    if (says != BK_YES) {
        free(line);
        return says;
    }
    line->bk = s->bk;
    memcpy(line->owner, claim->owner, 16);
    line->revision = mine ? mine->create_revision : answer->header->revision;
    claim->of = line;
    if (answer->succeeded && only(range_at(answer, 1)) && only(range_at(answer, 1))->create_revision == line->revision)
        return grant(s, claim, line->revision, range_at(answer, 2), ret, error);
    return ask_again(s, claim, until, ret, ret_busy, &gone,
                     error); /* who is before us: it could not be asked at once */
}

static enum bk_says take(struct bk_session *s, struct bk_claim *claim, bool queue, struct bk_until until,
                         struct bk_grant *ret, struct bk_busy *ret_busy, pawl_error *error) {
    bool gone = false;
    if (claim->shared) {
        error_set(error, PAWL_EUNSUPPORTED, NULL, "etcd: has no shared mode");
        return BK_FAULT;
    }
    if (!claim->life || !claim->life->of) {
        error_set(error, PAWL_EINTERNAL, NULL, "etcd: no lease was begun for this claim");
        return BK_FAULT;
    }
    if (claim->of) {
        enum bk_says says = ask_again(s, claim, until, ret, ret_busy, &gone, error);
        if (!gone) return says;
        free(claim->of); /* deleted by somebody: to the end of the line */
        claim->of = NULL;
    }
    return queue ? queue_up(s, claim, until, ret, ret_busy, error) : try_it(s, claim, until, ret, ret_busy, error);
}

/* --- giving back --- */

static enum bk_says forget(struct bk_session *s, struct bk_claim *claim, struct bk_until until, pawl_error *error) {
    struct place_in_line *line = claim->of;
    struct keys k;
    Pb__DeleteRangeRequest request = PB__DELETE_RANGE_REQUEST__INIT;
    struct grpc_reply reply;
    if (line && line->watched_length) hub_wish(s->bk, claim->owner, NULL, 0);
    free(line);
    claim->of = NULL;
    if (!claim->life || !claim->life->of) return BK_NO; /* no lease: no key was ever sent */
    keys_of(s->bk, claim, &k);
    request.key = bytes(k.own);
    enum bk_says says = call(s, "/etcdserverpb.KV/DeleteRange", &request.base, until, &reply, NULL, error);
    if (says != BK_YES) return says;
    Pb__DeleteRangeResponse *answer = pb__delete_range_response__unpack(NULL, reply.size, reply.body);
    bool there = answer && answer->deleted > 0;
    pb__delete_range_response__free_unpacked(answer, NULL);
    free(reply.body);
    return there ? BK_YES : BK_NO;
}

/* Is the grant one that was given, or made up from one? */
static bool given(const struct bk_grant *grant) {
    const struct place_in_line *line = grant->of;
    return line && line->token == grant->token;
}

static enum bk_says release_one(struct bk_session *s, const struct bk_grant *grant, struct bk_until until,
                                pawl_error *error) {
    const struct place_in_line *line = grant->of;
    struct keys k;
    struct asking a;
    AUTO_TXN answer = NULL;
    if (!given(grant)) return BK_NO;
    keys_of(s->bk, grant->claim, &k);
    ask_begin(&a);
    ask_if(&a, k.own, NULL, line->revision);
    ask_delete(&a, k.own);
    enum bk_says says = txn(s, &a.txn, until, &answer, error);
    return says != BK_YES ? says : answer->succeeded ? BK_YES : BK_NO;
}

static enum bk_says release(struct bk_session *s, struct bk_grant *const grants[], int n, struct bk_until until,
                            enum bk_says ret[], pawl_error *error) {
    for (int i = 0; i < n; i++) {
        ret[i] = release_one(s, grants[i], until, error);
        if (ret[i] > BK_NO) return ret[i];
    }
    return BK_YES;
}

static void end(struct bk_grant *grant, bool forked) {
    (void)forked;
    free(grant->of);
    grant->of = NULL;
}

static enum bk_says prove(struct bk_session *s, const struct bk_grant *grant, struct bk_until until,
                          pawl_error *error) {
    const struct place_in_line *line = grant->of;
    struct keys k;
    struct asking a;
    AUTO_TXN answer = NULL;
    if (!given(grant)) return BK_NO;
    keys_of(s->bk, grant->claim, &k);
    ask_begin(&a);
    ask_if(&a, k.own, NULL, line->revision);
    ask_range(&a, true, k.lock, k.end, 0);
    enum bk_says says = txn(s, &a.txn, until, &answer, error);
    if (says != BK_YES) return says;
    const Pb__KeyValue *first = only(range_at(answer, 0));
    return answer->succeeded && first && first->create_revision == line->revision ? BK_YES : BK_NO;
}

/* --- the lease --- */

static enum bk_says keep_alive(struct bk_session *s, int64_t id, struct bk_until until, int64_t *ret_left_ms,
                               pawl_error *error) {
    Pb__LeaseKeepAliveRequest request = PB__LEASE_KEEP_ALIVE_REQUEST__INIT;
    struct grpc_reply reply;
    request.id = id;
    enum bk_says says = call(s, "/etcdserverpb.Lease/LeaseKeepAlive", &request.base, until, &reply, NULL, error);
    if (says != BK_YES) return BK_UNKNOWN;
    Pb__LeaseKeepAliveResponse *answer = pb__lease_keep_alive_response__unpack(NULL, reply.size, reply.body);
    free(reply.body);
    if (!answer) return nonsense(s, error);
    int64_t ttl = answer->ttl;
    pb__lease_keep_alive_response__free_unpacked(answer, NULL);
    if (ttl <= 0) return BK_NO; /* an unknown lease is not an error there */
    *ret_left_ms = ttl * 1000;
    return BK_YES;
}

static enum bk_says begin_life(struct bk_session *s, struct bk_life *life, struct bk_until until, int64_t *ret_left_ms,
                               pawl_error *error) {
    Pb__LeaseGrantRequest request = PB__LEASE_GRANT_REQUEST__INIT;
    struct grpc_reply reply;
    int status = GRPC_OK;
    int64_t *id = life->of;
    if (!id) {
        if (!(id = malloc(sizeof *id))) {
            error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
            return BK_FAULT;
        }
        do random_bytes(id, sizeof *id), *id &= INT64_MAX; /* chosen here, so that a repeat meets what it made before */
        while (*id == 0);
        life->of = id;
    }
    request.id = *id;
    request.ttl = (life->ttl_ms + 999) / 1000;
    enum bk_says says = call(s, "/etcdserverpb.Lease/LeaseGrant", &request.base, until, &reply, &status, error);
    if (says != BK_YES && status == GRPC_PRECONDITION)
        return keep_alive(s, *id, until, ret_left_ms, error); /* it exists */
    if (says != BK_YES) return says;
    Pb__LeaseGrantResponse *answer = pb__lease_grant_response__unpack(NULL, reply.size, reply.body);
    free(reply.body);
    if (!answer || answer->id != *id || answer->ttl <= 0) {
        pb__lease_grant_response__free_unpacked(answer, NULL);
        return nonsense(s, error);
    }
    *ret_left_ms =
        answer->ttl * 1000; /* the server may give more than was asked for: its least is 1.5 election timeouts */
    pb__lease_grant_response__free_unpacked(answer, NULL);
    return BK_YES;
}

static enum bk_says end_life(struct bk_session *s, struct bk_life *life, struct bk_until until, pawl_error *error) {
    Pb__LeaseRevokeRequest request = PB__LEASE_REVOKE_REQUEST__INIT;
    struct grpc_reply reply;
    int status = GRPC_OK;
    if (!life->of) return BK_YES;
    request.id = *(int64_t *)life->of;
    enum bk_says says = call(s, "/etcdserverpb.Lease/LeaseRevoke", &request.base, until, &reply, &status, error);
    if (says == BK_YES) free(reply.body);
    return status == GRPC_NOT_FOUND ? BK_YES : says;
}

static void free_life(struct bk_life *life) {
    free(life->of);
    life->of = NULL;
}

static enum bk_says renew(struct bk_session *s, struct bk_life *const lives[], int n, struct bk_until until,
                          enum bk_says ret[], int64_t ret_left_ms[], pawl_error *error) {
    for (int i = 0; i < n; i++) {
        ret[i] = keep_alive(s, *(int64_t *)lives[i]->of, until, &ret_left_ms[i], error);
        if (ret[i] == BK_UNKNOWN) return BK_UNKNOWN;
    }
    return BK_YES;
}

/* --- looking --- */

static bool show(struct bk_session *s, const Pb__KeyValue *kv, const struct base *base, const char *name, int place,
                 bk_each *each, void *data) {
    char about[257] = "";
    (void)s;
    if (kv->value.len < sizeof about) memcpy(about, kv->value.data, kv->value.len);
    struct bk_record record = {.name = name,
                               .about = about,
                               .token = (uint64_t)(base->base + kv->create_revision),
                               .left_ms = -1,
                               .place = place};
    return each(&record, data);
}

static int by_name_and_age(const void *a, const void *b) {
    const Pb__KeyValue *x = *(Pb__KeyValue *const *)a, *y = *(Pb__KeyValue *const *)b;
    const uint8_t *end_x = memrchr(x->key.data, '/', x->key.len), *end_y = memrchr(y->key.data, '/', y->key.len);
    size_t n = end_x ? (size_t)(end_x - x->key.data) : 0, m = end_y ? (size_t)(end_y - y->key.data) : 0;
    int order = memcmp(x->key.data, y->key.data, n < m ? n : m);
    if (order == 0) order = (n > m) - (n < m);
    return order ? order : (x->create_revision > y->create_revision) - (x->create_revision < y->create_revision);
}

static enum bk_says records(struct bk_session *s, const char *name, bk_each *each, void *data, struct bk_until until,
                            pawl_error *error) {
    char from[LOCK_SIZE], to[LOCK_SIZE], base_text[PREFIX_MAX + 16], shown[NAME_BYTES + 1], last[NAME_BYTES + 1] = "";
    struct asking a;
    struct base base = {0};
    AUTO_TXN answer = NULL;
    if (name) place_lock(&s->bk->place, name, strlen(name), from);
    else strcpy(from, s->bk->place.prefix);
    strcpy(to, from);
    to[strlen(to) - 1]++;
    base_key(&s->bk->place, base_text);
    ask_begin(&a);
    ask_if(&a, from, NULL, 0);
    ask_range(&a, true, from, to, 0);
    a.ranges[0].limit = 0;
    ask_range(&a, true, base_text, NULL, 0);
    enum bk_says says = txn(s, &a.txn, until, &answer, error);
    if (says != BK_YES) return says;
    Pb__RangeResponse *all = answer->n_responses ? answer->responses[0]->response_range : NULL;
    if (!all || !answer->succeeded) return nonsense(s, error);
    if (!s->bk->place.bare) base_parse(range_at(answer, 1), &base);
    qsort(all->kvs, all->n_kvs, sizeof(Pb__KeyValue *), by_name_and_age);
    for (size_t i = 0, place = 0; i < all->n_kvs; i++) {
        if (!place_name(&s->bk->place, all->kvs[i]->key.data, all->kvs[i]->key.len, shown)) continue;
        place = strcmp(shown, last) == 0 ? place + 1 : 0;
        strcpy(last, shown);
        if (!show(s, all->kvs[i], &base, shown, (int)place, each, data)) break;
    }
    return BK_YES;
}

/* --- opening --- */

static void close_bk(struct bk *bk, bool forked) {
    (void)forked;
    if (bk->wish_read >= 0) close(bk->wish_read);
    if (bk->wish_write >= 0) close(bk->wish_write);
    place_free(&bk->place);
    free(bk);
}

static enum bk_says open_url(const struct url *url, struct bk **ret, pawl_error *error) {
    struct bk *bk = calloc(1, sizeof *bk);
    int wishes[2] = {-1, -1};
    if (!bk) {
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        return BK_FAULT;
    }
    enum bk_says says = place_parse(url, &bk->place, error);
    if (says == BK_YES && pipe2(wishes, O_CLOEXEC | O_NONBLOCK)) {
        error_errno(error, PAWL_EINTERNAL, NULL, "no descriptor left");
        says = BK_FAULT;
    }
    bk->wish_read = wishes[0];
    bk->wish_write = wishes[1];
    if (says == BK_YES) *ret = bk;
    else close_bk(bk, false);
    return says;
}

static void drop(struct bk_session *s, bool forked) {
    http2_close(s->h, forked);
    free(s);
}

static enum bk_says connect_session(struct bk *bk, struct bk_until until, struct bk_session **ret, pawl_error *error) {
    struct bk_session *s = calloc(1, sizeof *s);
    if (!s) {
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        return BK_FAULT;
    }
    s->bk = bk;
    enum bk_says says = dial(bk, until, &s->h, s->token, error);
    if (says != BK_YES) {
        free(s);
        return says;
    }
    says = base_admit(s, until, error);
    if (says == BK_YES) *ret = s;
    else drop(s, false);
    return says;
}

static int fds(struct bk_session *s, const struct bk_grant *grant, int *ret, int max) {
    if (!s || grant || max < 1) return 0;
    *ret = http2_fd(s->h);
    return 1;
}

static const struct backend etcd_backend = {
    .caps = {.scheme = "etcd",
             .life = BK_LIFE_TTL,
             .fifo = true,
             .hub = true,
             .renew_batch = 16,
             .ttl_min_ms = 1000,
             .ttl_max_ms = INT64_C(86400000)},
    .open = open_url,
    .close = close_bk,
    .connect = connect_session,
    .drop = drop,
    .fds = fds,
    .take = take,
    .forget = forget,
    .release = release,
    .renew = renew,
    .prove = prove,
    .end = end,
    .begin_life = begin_life,
    .end_life = end_life,
    .free_life = free_life,
    .records = records,
    .tokens = base_tokens,
    .hub_open = hub_open,
    .hub_fd = hub_fd,
    .hub_io = hub_io,
    .hub_close = hub_close,
};
MODULE_EXPORT_BACKEND(etcd_backend);
