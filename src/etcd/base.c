/* base.c: token = base + create revision. Revisions rise in one cluster, but a restored or rebuilt one begins lower,
 * under the same cluster id; so the base is looked at on each connection: what the clock says has passed since the last
 * discontinuity, at an eighth of its speed, is the least that base + revision may be (token.h; the rule's simulation is
 * in tests/sim). */
#include "clock.h"
#include "etcd.h"
#include "token.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAG_MAX (1 << 17) /* a base that lags its clock by less, a second's worth, is left as it is */
#define TRIES 20          /* others may change it at the same time; each change lifts it, so this ends soon */

void base_key(const struct place *place, char ret[PREFIX_MAX + 16]) { sprintf(ret, "%s%%token", place->prefix); }

bool base_parse(const Pb__RangeResponse *range, struct base *ret) {
    char text[128];
    struct base base = {0};
    int end = 0;
    size_t length = range && range->n_kvs == 1 ? range->kvs[0]->value.len : 0;
    if (length == 0 || length >= sizeof text) return false;
    memcpy(text, range->kvs[0]->value.data, length);
    text[length] = 0;
    if (sscanf(text, "%" SCNd64 " %" SCNd64 " %" SCNu64 " %" SCNu64 "%n", &base.since, &base.base, &base.term,
               &base.cluster, &end) != 4 ||
        text[end] || base.since < 0 || base.base < 0 || base.base > (int64_t)TOKEN_MAX)
        return false;
    base.mod_revision = range->kvs[0]->mod_revision;
    *ret = base;
    return true;
}

static enum bk_says read_base(struct bk_session *s, struct bk_until until, struct base *ret, Pb__Header *ret_header,
                              bool *ret_damaged, pawl_error *error) {
    char key[PREFIX_MAX + 16];
    Pb__RangeRequest request = PB__RANGE_REQUEST__INIT;
    struct grpc_reply reply;
    base_key(&s->bk->place, key);
    request.key = (ProtobufCBinaryData){.data = (uint8_t *)key, .len = strlen(key)};
    enum bk_says says = call(s, "/etcdserverpb.KV/Range", &request.base, until, &reply, NULL, error);
    if (says != BK_YES) return says == BK_UNKNOWN ? BK_FAULT : says; /* a question that changes nothing */
    Pb__RangeResponse *range = pb__range_response__unpack(NULL, reply.size, reply.body);
    free(reply.body);
    if (!range || !range->header) {
        pb__range_response__free_unpacked(range, NULL);
        error_set(error, PAWL_EUNREACHABLE, http2_node(s->h), "%s: the answer is not etcd's", http2_at(s->h));
        return BK_FAULT;
    }
    *ret = (struct base){0};
    *ret_damaged = range->n_kvs > 0 && !base_parse(range, ret);
    *ret_header = *range->header;
    pb__range_response__free_unpacked(range, NULL);
    return BK_YES;
}

/* YES: written. NO: somebody was faster. */
static enum bk_says write_base(struct bk_session *s, const struct base *base, int64_t seen_mod_revision,
                               struct bk_until until, pawl_error *error) {
    char key[PREFIX_MAX + 16], value[128];
    Pb__Compare compare = PB__COMPARE__INIT, *compares[] = {&compare};
    Pb__PutRequest put = PB__PUT_REQUEST__INIT;
    Pb__RequestOp op = PB__REQUEST_OP__INIT, *ops[] = {&op};
    Pb__TxnRequest request = PB__TXN_REQUEST__INIT;
    AUTO_TXN answer = NULL;
    base_key(&s->bk->place, key);
    int n = snprintf(value, sizeof value, "%" PRId64 " %" PRId64 " %" PRIu64 " %" PRIu64, base->since, base->base,
                     base->term, base->cluster);
    compare.target = PB__COMPARE__TARGET__MOD;
    compare.key = put.key = (ProtobufCBinaryData){.data = (uint8_t *)key, .len = strlen(key)};
    compare.target_union_case = PB__COMPARE__TARGET_UNION_MOD_REVISION;
    compare.mod_revision = seen_mod_revision;
    put.value = (ProtobufCBinaryData){.data = (uint8_t *)value, .len = (size_t)n};
    op.request_case = PB__REQUEST_OP__REQUEST_REQUEST_PUT;
    op.request_put = &put;
    request.n_compare = request.n_success = 1;
    request.compare = compares;
    request.success = ops;
    enum bk_says says = txn(s, &request, until, &answer, error);
    if (says != BK_YES) return BK_FAULT; /* written or not: it is read again */
    return answer->succeeded ? BK_YES : BK_NO;
}

static int64_t higher(int64_t a, int64_t b) { return a > b ? a : b; }

/* What the base must become; false: it is right as it is. */
static bool lift(struct base *base, const Pb__Header *header, int64_t now) {
    int64_t last = base->base + header->revision;
    bool discontinuity =
        base->mod_revision == 0 || base->cluster != header->cluster_id || header->raft_term < base->term;
    int64_t want = base->since + higher(0, now - base->since) / 8;
    if (discontinuity) base->since = want = higher(base->mod_revision ? last + (int64_t)TOKEN_LEAP : 0, now);
    else if (last + LAG_MAX >= want) return false;
    base->base = want - header->revision;
    base->term = header->raft_term;
    base->cluster = header->cluster_id;
    return true;
}

static enum bk_says damaged(const struct bk_session *s, pawl_error *error) {
    char key[PREFIX_MAX + 16];
    base_key(&s->bk->place, key);
    error_set(error, PAWL_EUNSAFE, http2_node(s->h),
              "%s: the key %s is not what pawl wrote: tokens might fall; nothing was changed", http2_at(s->h), key);
    return BK_FAULT;
}

/* The cluster that answers at the i-th endpoint now. */
static enum bk_says ask_cluster(struct bk *bk, size_t i, struct bk_until until, uint64_t *ret, pawl_error *error) {
    struct bk_session s = {0};
    struct base base;
    Pb__Header header;
    bool bad;
    enum bk_says says = dial_one(bk, i, until, &s, error);
    if (says != BK_YES) return says;
    http2_doing(s.h, "asking for its cluster", NULL);
    says = read_base(&s, until, &base, &header, &bad, error);
    if (says == BK_YES) *ret = header.cluster_id;
    http2_close(s.h, true);
    return says;
}

/* Locks of two clusters exclude nobody from each other. A cluster that was restored or rebuilt may have another id, but
 * then it has it at every endpoint: so one where another cluster was seen is asked anew, and if it is still of that
 * one, or does not answer, nothing is granted here. */
static enum bk_says one_cluster(struct bk_session *s, uint64_t cluster, struct bk_until until, pawl_error *error) {
    struct bk *bk = s->bk;
    atomic_store(&bk->clusters[s->at], cluster);
    for (size_t i = 0; i < bk->place.n_hosts; i++) {
        const struct url_host *host = &bk->place.hosts[i];
        uint64_t there = atomic_load(&bk->clusters[i]);
        pawl_error own = PAWL_ERROR_INIT;
        if (there == 0 || there == cluster) continue;
        if (ask_cluster(bk, i, until, &there, &own) != BK_YES) {
            error_set(error, PAWL_EUNREACHABLE, http2_node(s->h),
                      "%s is of another cluster (%" PRIx64 ") than %s:%d was (%" PRIx64
                      "), which is asked before a lock is taken here: %.150s",
                      http2_node(s->h), cluster, host->host, host->port, there, own.text);
            return BK_FAULT;
        }
        atomic_store(&bk->clusters[i], there);
        if (there == cluster) continue;
        error_set(error, PAWL_EUNSAFE, http2_node(s->h),
                  "the URL names two clusters, whose locks do not exclude each other: %" PRIx64 " at %s, %" PRIx64
                  " at %s:%d; name the members of one",
                  cluster, http2_node(s->h), there, host->host, host->port);
        return BK_FAULT;
    }
    return BK_YES;
}

enum bk_says base_one_cluster(struct bk_session *s, struct bk_until until, pawl_error *error) {
    struct base base;
    Pb__Header header;
    bool bad;
    if (s->bk->place.n_hosts < 2) return BK_YES;
    enum bk_says says = read_base(s, until, &base, &header, &bad, error);
    return says == BK_YES ? one_cluster(s, header.cluster_id, until, error) : says;
}

enum bk_says base_admit(struct bk_session *s, struct bk_until until, pawl_error *error) {
    if (s->bk->place.bare) return base_one_cluster(s, until, error);
    for (int i = 0; i < TRIES; i++) {
        struct base base;
        Pb__Header header;
        bool bad;
        enum bk_says says = read_base(s, until, &base, &header, &bad, error);
        if (says == BK_YES && i == 0) says = one_cluster(s, header.cluster_id, until, error);
        if (says != BK_YES) return says;
        if (bad) return damaged(s, error);
        int64_t seen = base.mod_revision;
        if (!lift(&base, &header, clock_wall_us())) return BK_YES;
        says = write_base(s, &base, seen, until, error);
        if (says != BK_NO) return says;
    }
    error_set(error, PAWL_EUNREACHABLE, http2_node(s->h), "%s: the token base changes all the time", http2_at(s->h));
    return BK_FAULT;
}

static enum bk_says advance_base(struct bk_session *s, uint64_t to, struct bk_until until, pawl_error *error) {
    for (int i = 0; i < TRIES; i++) {
        struct base base;
        Pb__Header header;
        bool bad;
        enum bk_says says = read_base(s, until, &base, &header, &bad, error);
        if (says != BK_YES) return says;
        if (bad) return damaged(s, error);
        int64_t seen = base.mod_revision, last = base.base + header.revision;
        base.since = (int64_t)token_lifted((uint64_t)last, clock_wall_us(), to);
        base.base = base.since - header.revision;
        base.term = header.raft_term;
        base.cluster = header.cluster_id;
        says = write_base(s, &base, seen, until, error);
        if (says != BK_NO) return says;
    }
    error_set(error, PAWL_EUNREACHABLE, http2_node(s->h), "%s: the token base changes all the time", http2_at(s->h));
    return BK_FAULT;
}

enum bk_says base_tokens(struct bk_session *s, bool advance, uint64_t to, struct bk_until until, struct bk_tokens *ret,
                         pawl_error *error) {
    struct base base;
    Pb__Header header;
    bool bad;
    if (s->bk->place.bare) {
        error_set(error, PAWL_EUNSUPPORTED, http2_node(s->h), "with token=revision the numbers are etcd's own");
        return BK_FAULT;
    }
    http2_doing(s->h, advance ? "advancing the tokens" : "reading the tokens", NULL);
    enum bk_says says = advance ? advance_base(s, to, until, error) : BK_YES;
    if (says == BK_YES) says = read_base(s, until, &base, &header, &bad, error);
    if (says != BK_YES) return says;
    if (bad) return damaged(s, error);
    *ret = (struct bk_tokens){
        .since = (uint64_t)base.since, .last = (uint64_t)(base.base + header.revision), .clock_us = clock_wall_us()};
    snprintf(ret->stored, sizeof ret->stored, "cluster %" PRIx64 " term %" PRIu64, base.cluster, base.term);
    snprintf(ret->answering, sizeof ret->answering, "cluster %" PRIx64 " term %" PRIu64, header.cluster_id,
             header.raft_term);
    return BK_YES;
}
