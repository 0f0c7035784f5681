/* etcd.c: the recipe: one transaction a question.
 *
 *   try      If nobody has a key under the lock's prefix Then put ours, Else show the first
 *   queue    If our key is not there Then put it, show the first, and the last two: ours, and who stands just before
 *   ask      If our key is still there, as it was, Then show who stands just before us
 *            If nobody does, we hold; else, which is rare, who is the first is asked for once more
 *   release  delete our key: no transaction, which would cost the service a seventh more. Of no other acquisition is it
 *            the key: none of this client on that name has its place, or its owner value, before it is surely over,
 *            and whose release ended unknown keeps it for good
 * Each that may grant reads the token's base in the same transaction. Whoever waits watches only the key just before
 * its own (hub.c), beginning now: a watch that begins in the past is served by etcd 3.4 only every 100 ms. */
#include "etcd.h"
#include "ask.h"
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

/* No waiter looks away for longer; the hub finds out by itself if nobody talks to it any more. */
#define LOOK_MS 30000
#define POLL_MS 200 /* and one that cannot be told looks so often */

/* --- taking --- */

/* The lock is ours: our key is the first. The token's base was read in the transaction that proves it. */
static enum bk_says grant(struct bk_session *s, struct bk_claim *claim, int64_t revision, const Pb__TxnResponse *answer,
                          size_t base_at, struct bk_grant *ret, pawl_error *error) {
    struct base base = {0};
    struct place_in_line *line = claim->of ? claim->of : calloc(1, sizeof *line);
    if (!s->bk->place.bare && !base_parse(range_at(answer, base_at), &base)) {
        if (!claim->of) free(line);
        error_set(error, PAWL_EUNREACHABLE, http2_node(s->h), "%s: the token base vanished", http2_at(s->h));
        return BK_UNKNOWN; /* a new connection looks at it again */
    }
    if (!line) return nonsense(s, error);
    uint64_t token = (uint64_t)(base.base + revision);
    if (token == 0 || token > TOKEN_MAX) {
        if (!claim->of) free(line);
        error_set(error, PAWL_EUNSAFE, http2_node(s->h), "%s: the numbers are used up (2^53)", http2_at(s->h));
        return BK_UNKNOWN;
    }
    if (line->watch_id) hub_never_mind(s->bk, line->watch_id);
    claim->of = NULL;
    line->revision = revision;
    line->seen = answer->header->revision;
    line->token = token;
    line->watch_id = 0;
    *ret = (struct bk_grant){.claim = ret->claim, .token = token, .left_ms = -1, .of = line};
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
    if (answer->succeeded) return grant(s, claim, answer->header->revision, answer, 1, ret, error);
    const Pb__KeyValue *first = only(range_at(answer, 0));
    if (!first) return nonsense(s, error);
    if (first->key.len == strlen(k.own) &&
        memcmp(first->key.data, k.own, first->key.len) == 0) /* a repeat: it worked before */
        return grant(s, claim, first->create_revision, answer, 1, ret, error);
    fill_busy(first, POLL_MS, false, ret_busy);
    return BK_NO;
}

/* Watches the one just before us, unless that is done already. How soon to look, whatever is heard. */
static int64_t watch(struct bk_session *s, const struct bk_claim *claim, struct place_in_line *line,
                     const Pb__KeyValue *before) {
    unsigned hub = atomic_load(&s->bk->hub_number);
    if (line->hub == hub && line->before == before->create_revision && line->watch_id) return LOOK_MS;
    if (line->hub == hub && line->watch_id) hub_never_mind(s->bk, line->watch_id);
    line->hub = hub;
    line->before = before->create_revision;
    line->watch_id = hub_wish(s->bk, claim->owner, before->key.data, before->key.len, line->seen);
    return line->watch_id ? LOOK_MS : POLL_MS;
}

/* In line behind `before`, at the answer's revision. holder NULL: not known. If it cannot be had, that is no failure:
 * our key is there, and waits. */
static enum bk_says stand_behind(struct bk_session *s, struct bk_claim *claim, const struct keys *k,
                                 const Pb__KeyValue *before, const Pb__KeyValue *holder, const Pb__TxnResponse *answer,
                                 struct bk_until until, struct bk_busy *ret_busy) {
    struct place_in_line *line = claim->of;
    struct asking a;
    AUTO_TXN named = NULL;
    line->seen = answer->header->revision;
    int64_t look_ms = watch(s, claim, line, before);
    fill_busy(holder, look_ms, true, ret_busy);
    if (holder) return BK_NO;
    ask_begin(&a);
    a.txn.n_compare = 0;
    ask_range(&a, true, k->lock, k->end, 0);
    if (txn(s, &a.txn, until, &named, NULL) == BK_YES) fill_busy(only(range_at(named, 0)), look_ms, true, ret_busy);
    else *ret_busy = (struct bk_busy){.ask_again_ms = look_ms, .wake_fd = -1, .queued = true};
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
    ask_range(&a, true, k.lock, k.end, line->revision);
    ask_range(&a, true, k.base, NULL, 0);
    enum bk_says says = txn(s, &a.txn, until, &answer, error);
    if (says != BK_YES) return says;
    *ret_gone = !answer->succeeded;
    fill_busy(NULL, 1, false, ret_busy); /* if it is gone, for whoever does not put it there again at once */
    if (*ret_gone) return BK_NO;
    if (!range_at(answer, 0)) return nonsense(s, error);
    const Pb__KeyValue *before = only(range_at(answer, 0));
    if (!before) return grant(s, claim, line->revision, answer, 1, ret, error);
    return stand_behind(s, claim, &k, before, NULL, answer, until, ret_busy);
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
    ask_range(&a, true, k.lock, k.end, INT64_MAX); /* which sees ours */
    a.ranges[0].limit = 2;
    ask_range(&a, true, k.lock, k.end, 0);
    ask_range(&a, true, k.base, NULL, 0);
    ask_range(&a, false, k.own, NULL, 0);
    struct place_in_line *line = calloc(1, sizeof *line);
    if (!line) {
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        return BK_FAULT;
    }
    enum bk_says says = txn(s, &a.txn, until, &answer, error);
    const Pb__RangeResponse *last = says == BK_YES ? range_at(answer, answer->succeeded ? 1 : 0) : NULL;
    const Pb__KeyValue *mine = only(last);
    bool put = mine && answer->succeeded;
    if (says == BK_YES && (!mine || (put && mine->create_revision != answer->header->revision)))
        says = nonsense(s, error);
    if (says != BK_YES) {
        free(line);
        return says;
    }
    line->revision = mine->create_revision;
    claim->of = line;
    if (!put) return ask_again(s, claim, until, ret, ret_busy, &gone, error); /* a repeat */
    if (last->n_kvs == 1) return grant(s, claim, line->revision, answer, 3, ret, error);
    return stand_behind(s, claim, &k, last->kvs[1], only(range_at(answer, 2)), answer, until, ret_busy);
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
    http2_doing(s->h, "taking", claim->name);
    enum bk_says says = s->admitted ? BK_YES : base_admit(s, until, error);
    if (says != BK_YES) return says;
    s->admitted = true;
    if (claim->of) {
        says = ask_again(s, claim, until, ret, ret_busy, &gone, error);
        if (!gone) return says;
        free(claim->of); /* deleted by somebody: to the end of the line */
        claim->of = NULL;
    }
    return queue ? queue_up(s, claim, until, ret, ret_busy, error) : try_it(s, claim, until, ret, ret_busy, error);
}

/* --- giving back --- */

/* NO: it was not there. */
static enum bk_says delete_own(struct bk_session *s, const struct bk_claim *claim, struct bk_until until,
                               pawl_error *error) {
    struct keys k;
    Pb__DeleteRangeRequest request = PB__DELETE_RANGE_REQUEST__INIT;
    struct grpc_reply reply;
    keys_of(s->bk, claim, &k);
    request.key = bytes(k.own);
    enum bk_says says = call(s, "/etcdserverpb.KV/DeleteRange", &request.base, until, &reply, NULL, error);
    if (says != BK_YES) return says;
    Pb__DeleteRangeResponse *answer = pb__delete_range_response__unpack(NULL, reply.size, reply.body);
    free(reply.body);
    if (!answer) return nonsense(s, error);
    bool there = answer->deleted > 0;
    pb__delete_range_response__free_unpacked(answer, NULL);
    return there ? BK_YES : BK_NO;
}

static enum bk_says forget(struct bk_session *s, struct bk_claim *claim, struct bk_until until, pawl_error *error) {
    struct place_in_line *line = claim->of;
    if (line && line->watch_id) hub_never_mind(s->bk, line->watch_id);
    free(line);
    claim->of = NULL;
    if (!claim->life || !claim->life->of) return BK_NO; /* no lease: no key was ever sent */
    http2_doing(s->h, "giving up", claim->name);
    return delete_own(s, claim, until, error);
}

/* Is the grant one that was given, or made up from one? */
static bool given(const struct bk_grant *grant) {
    const struct place_in_line *line = grant->of;
    return line && line->token == grant->token;
}

static enum bk_says release(struct bk_session *s, struct bk_grant *const grants[], int n, struct bk_until until,
                            enum bk_says ret[], pawl_error *error) {
    for (int i = 0; i < n; i++) ret[i] = BK_UNKNOWN; /* those that an early end leaves out */
    for (int i = 0; i < n; i++) {
        http2_doing(s->h, "releasing", grants[i]->claim->name);
        ret[i] = given(grants[i]) ? delete_own(s, grants[i]->claim, until, error) : BK_NO;
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
    http2_doing(s->h, "proving", grant->claim->name);
    keys_of(s->bk, grant->claim, &k);
    ask_begin(&a);
    ask_if(&a, k.own, NULL, line->revision);
    ask_range(&a, true, k.lock, k.end, 0);
    enum bk_says says = txn(s, &a.txn, until, &answer, error);
    if (says != BK_YES) return says;
    const Pb__KeyValue *first = only(range_at(answer, 0));
    return answer->succeeded && first && first->create_revision == line->revision ? BK_YES : BK_NO;
}

/* --- opening --- */

static void close_bk(struct bk *bk, bool forked) {
    (void)forked;
    if (bk->wish_read >= 0) close(bk->wish_read);
    if (bk->wish_write >= 0) close(bk->wish_write);
    place_free(&bk->place);
    free(bk->clusters);
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
    if (says == BK_YES && pipe2(wishes, O_CLOEXEC | O_NONBLOCK | O_DIRECT)) {
        error_errno(error, PAWL_EINTERNAL, NULL, "no descriptor left");
        says = BK_FAULT;
    }
    bk->wish_read = wishes[0];
    bk->wish_write = wishes[1];
    if (says == BK_YES && !(bk->clusters = calloc(bk->place.n_hosts, sizeof *bk->clusters))) {
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        says = BK_FAULT;
    }
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
    enum bk_says says = dial(bk, until, s, error);
    if (says == BK_YES) *ret = s;
    else free(s);
    return says;
}

static int fds(struct bk_session *s, const struct bk_grant *grant, int *ret, int max) {
    if (!s || grant || max < 1) return 0;
    *ret = http2_fd(s->h);
    return 1;
}

static void introduce(struct bk *bk, int64_t ttl_ms, const char *about) {
    (void)about;
    bk->ttl_ms = ttl_ms;
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
    .introduce = introduce,
    .connect = connect_session,
    .drop = drop,
    .fds = fds,
    .take = take,
    .forget = forget,
    .release = release,
    .renew = lease_renew,
    .prove = prove,
    .end = end,
    .begin_life = lease_begin,
    .end_life = lease_end,
    .free_life = lease_free,
    .records = look_records,
    .evict = look_evict,
    .doctor = look_doctor,
    .tokens = base_tokens,
    .hub_open = hub_open,
    .hub_fd = hub_fd,
    .hub_io = hub_io,
    .hub_close = hub_close,
    .hub_watch = hub_watch,
};
MODULE_EXPORT_BACKEND(etcd_backend);
