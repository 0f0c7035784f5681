/* lease.c: the client's lease, on which all its keys of one ttl hang. Its id is chosen here, so that a repeated request
 * meets what an earlier one made. */
#include "etcd.h"
#include "random.h"
#include <inttypes.h>
#include <stdlib.h>

#define TTL_ADVISED_MS 5000
#define TTL_MOST_S INT64_C(1000000000) /* more would overflow somewhere */

static int64_t in_ms(int64_t ttl_s) { return 1000 * (ttl_s < TTL_MOST_S ? ttl_s : TTL_MOST_S); }

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
    *ret_left_ms = in_ms(ttl);
    return BK_YES;
}

enum bk_says lease_left(struct bk_session *s, int64_t id, struct bk_until until, int64_t *ret_left_ms,
                        pawl_error *error) {
    Pb__LeaseTimeToLiveRequest request = PB__LEASE_TIME_TO_LIVE_REQUEST__INIT;
    struct grpc_reply reply;
    request.id = id;
    enum bk_says says = call(s, "/etcdserverpb.Lease/LeaseTimeToLive", &request.base, until, &reply, NULL, error);
    if (says != BK_YES) return says;
    Pb__LeaseTimeToLiveResponse *answer = pb__lease_time_to_live_response__unpack(NULL, reply.size, reply.body);
    free(reply.body);
    if (!answer) return nonsense(s, error);
    *ret_left_ms = answer->ttl < 0 ? -1 : in_ms(answer->ttl);
    pb__lease_time_to_live_response__free_unpacked(answer, NULL);
    return BK_YES;
}

/* What its user should know: error's text without a code. */
static void remark(const struct bk_session *s, int64_t asked_ms, int64_t granted_ms, pawl_error *error) {
    const char *node = http2_node(s->h);
    if (granted_ms >= asked_ms + 1000) /* less is rounding: etcd counts seconds */
        error_set(error, PAWL_OK, node, "%s: keeps leases for %" PRId64 " s at the least, so the ttl is that", node,
                  granted_ms / 1000);
    else if (asked_ms < TTL_ADVISED_MS)
        error_set(error, PAWL_OK, node,
                  "%s: a ttl of %" PRId64 " ms may not outlast a change of the cluster's leader, which takes 2 to 3 s; "
                  "%d s or more is advised",
                  node, asked_ms, TTL_ADVISED_MS / 1000);
}

enum bk_says lease_begin(struct bk_session *s, struct bk_life *life, struct bk_until until, int64_t *ret_left_ms,
                         pawl_error *error) {
    Pb__LeaseGrantRequest request = PB__LEASE_GRANT_REQUEST__INIT;
    struct grpc_reply reply;
    int status = GRPC_OK;
    int64_t *id = life->of;
    http2_doing(s->h, "asking for a lease", NULL);
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
    *ret_left_ms = in_ms(answer->ttl); /* may be more than was asked for: the least is 1.5 election timeouts */
    remark(s, life->ttl_ms, *ret_left_ms, error);
    pb__lease_grant_response__free_unpacked(answer, NULL);
    return BK_YES;
}

enum bk_says lease_end(struct bk_session *s, struct bk_life *life, struct bk_until until, pawl_error *error) {
    Pb__LeaseRevokeRequest request = PB__LEASE_REVOKE_REQUEST__INIT;
    struct grpc_reply reply;
    int status = GRPC_OK;
    if (!life->of) return BK_YES;
    http2_doing(s->h, "ending the lease", NULL);
    request.id = *(int64_t *)life->of;
    enum bk_says says = call(s, "/etcdserverpb.Lease/LeaseRevoke", &request.base, until, &reply, &status, error);
    if (says == BK_YES) free(reply.body);
    return status == GRPC_NOT_FOUND ? BK_YES : says;
}

void lease_free(struct bk_life *life) {
    free(life->of);
    life->of = NULL;
}

enum bk_says lease_renew(struct bk_session *s, struct bk_life *const lives[], int n, struct bk_until until,
                         enum bk_says ret[], int64_t ret_left_ms[], pawl_error *error) {
    http2_doing(s->h, "renewing the lease", NULL);
    for (int i = 0; i < n; i++) {
        ret[i] = keep_alive(s, *(int64_t *)lives[i]->of, until, &ret_left_ms[i], error);
        if (ret[i] == BK_UNKNOWN) return BK_UNKNOWN;
    }
    return BK_YES;
}
