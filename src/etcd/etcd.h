/* etcd.h: what the files of the etcd backend share. Reading order: place.h, etcd.c, base.c, hub.c; below them dial.c,
 * grpc.h, http2.h.
 *
 * A lock is an order of keys under one prefix: each who wants it puts a key of its own there, bound to the client's
 * lease, and the key with the lowest create revision holds. Its create revision, raised by a base, is the token. */
#ifndef ETCD_ETCD_H
#define ETCD_ETCD_H
#include "etcd.pb-c.h"
#include "grpc.h"
#include "place.h"
#include <stdatomic.h>

struct hub;
struct bk {
    struct place place;
    int64_t ttl_ms;            /* of the client; 0: not said */
    atomic_uint next;          /* the endpoint to try first: moves on when one fails */
    atomic_ullong *clusters;   /* of each endpoint: the cluster that answered there last; 0: not known */
    int wish_read, wish_write; /* a pipe: waiters tell the hub what to watch */
    struct hub *hub;           /* NULL: not open */
    atomic_uint hub_number;    /* which hub it is: a watch of an earlier one is gone */
    atomic_llong watch_id;     /* the last one given to a watch */
    atomic_llong revision;     /* of the store, the highest that was heard */
};

struct place_in_line { /* claim->of, grant->of */
    int64_t revision;  /* create revision of our key */
    int64_t seen;      /* at this revision of the store it stood so: `before` was before us, or the lock was ours */
    uint64_t token;    /* as granted */
    int64_t before;    /* waiting: create revision of the key that is watched; 0: none */
    int64_t watch_id;  /* of that watch, or, held, of the watch on our own key; 0: none */
    unsigned hub;      /* of which hub */
};

#define LOGIN_MAX 2048 /* of a login's token; one signed with a 4096 bit key has some 900 bytes */
struct bk_session {
    struct bk *bk;
    struct http2 *h;
    size_t at;             /* the endpoint */
    bool admitted;         /* base_admit was asked on this connection: no grant before that */
    char token[LOGIN_MAX]; /* of authentication; "" none */
};

/* dial.c: a connection to the first endpoint that answers, authenticated. */
enum bk_says dial(struct bk *bk, struct bk_until until, struct bk_session *ret, pawl_error *error);
/* The same to the i-th endpoint and to no other. */
enum bk_says dial_one(struct bk *bk, size_t i, struct bk_until until, struct bk_session *ret, pawl_error *error);
/* One call with a packed message. YES: OK, and *ret is filled; FAULT, UNKNOWN: with the error in words. A login that
 * ran out is renewed. status: the gRPC status, for those who know what to do with it; NULL: nobody. */
enum bk_says call(struct bk_session *s, const char *path, const ProtobufCMessage *message, struct bk_until until,
                  struct grpc_reply *ret, int *ret_status, pawl_error *error);
void heard_revision(struct bk *bk, int64_t revision); /* any thread */
/* A transaction. Free with txn_free. */
enum bk_says txn(struct bk_session *s, const Pb__TxnRequest *request, struct bk_until until, Pb__TxnResponse **ret,
                 pawl_error *error);
static inline void txn_free(Pb__TxnResponse **t) { pb__txn_response__free_unpacked(*t, NULL); }
#define AUTO_TXN __attribute__((cleanup(txn_free))) Pb__TxnResponse *
/* The i-th answer of a transaction as a range, NULL: it is none. */
const Pb__RangeResponse *range_at(const Pb__TxnResponse *t, size_t i);

/* The answer does not fit the question: UNKNOWN, and the connection goes. */
enum bk_says nonsense(const struct bk_session *s, pawl_error *error);

/* lease.c */
enum bk_says lease_begin(struct bk_session *s, struct bk_life *life, struct bk_until until, int64_t *ret_left_ms,
                         pawl_error *error);
enum bk_says lease_end(struct bk_session *s, struct bk_life *life, struct bk_until until, pawl_error *error);
void lease_free(struct bk_life *life);
/* What is left of anybody's lease, in whole seconds as the service tells it; -1: it is over. FAULT: that is not told.
 */
enum bk_says lease_left(struct bk_session *s, int64_t id, struct bk_until until, int64_t *ret_left_ms,
                        pawl_error *error);
enum bk_says lease_renew(struct bk_session *s, struct bk_life *const lives[], int n, struct bk_until until,
                         enum bk_says ret[], int64_t ret_left_ms[], pawl_error *error);

/* look.c */
enum bk_says look_records(struct bk_session *s, const char *name, bk_each *each, void *data, struct bk_until until,
                          pawl_error *error);

enum bk_says look_evict(struct bk_session *s, const struct bk_claim *claim, bool at_once, struct bk_until until,
                        struct bk_evicted *ret, pawl_error *error);

/* base.c: what is added to a create revision, so that tokens rise over a restore, which lets revisions fall.
 * value of the key prefix "%token": "since base term cluster", decimal. */
struct base {
    int64_t since, base, mod_revision; /* mod_revision 0: there is none */
    uint64_t term, cluster;
};
void base_key(const struct place *place, char ret[PREFIX_MAX + 16]);
bool base_parse(const Pb__RangeResponse *range, struct base *ret); /* false: absent or not of the form */
/* On each connection, before it grants: is it of the cluster that the other endpoints are of? ADMIT if the service lost
 * revisions, or was never used; lifts a base that lags the clock. */
enum bk_says base_admit(struct bk_session *s, struct bk_until until, pawl_error *error);
/* Only the first of it. */
enum bk_says base_one_cluster(struct bk_session *s, struct bk_until until, pawl_error *error);
enum bk_says base_tokens(struct bk_session *s, bool advance, uint64_t to, struct bk_until until, struct bk_tokens *ret,
                         pawl_error *error);

/* doctor.c */
enum bk_says look_doctor(struct bk_session *s, bk_find *find, void *data, struct bk_until until, pawl_error *error);

/* hub.c: one watch stream a client. */
enum bk_says hub_open(struct bk *bk, struct bk_until until, pawl_error *error);
int hub_fd(struct bk *bk);
enum bk_says hub_io(struct bk *bk, bk_wake *wake, void *data, pawl_error *error);
void hub_close(struct bk *bk, bool forked);
/* Any thread: tell `owner` when `key`, which was there at the revision `seen`, is deleted. The id of the watch; 0:
 * nobody will tell, so it is to be looked at often. */
int64_t hub_wish(struct bk *bk, const unsigned char owner[16], const unsigned char *key, size_t length, int64_t seen);
void hub_never_mind(struct bk *bk, int64_t watch_id); /* any thread */
void hub_watch(struct bk *bk, const struct bk_grant *grant);
#endif
