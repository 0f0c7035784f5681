/* redis.h: what the files of the Redis backend share. Reading order: take.lua, release.lua, redis.c, hub.c, dial.c,
 * wire.c.
 *
 * A lock is one key, set only where absent, that expires. The scripts beside this file decide everything inside the
 * server; the C code sends one of them and reads the answer. */
#ifndef REDIS_REDIS_H
#define REDIS_REDIS_H
#include "place.h"
#include "script.h"
#include "wire.h"
#include <stdatomic.h>

#define LOOK_MS 5000   /* no waiter looks away for longer, whatever the server said */
#define RANK_MS 100    /* and each place in the queue looks that much later than the one before */
#define POLL_MS 75     /* how often a foreign holder is asked about, or everybody where nothing can be pushed */
#define GRANT_CHARS 65 /* token(16) ':' owner(48): what a grant is known by */

struct hub;
struct watch;
struct bk {
    struct place place;
    char client_id[17];       /* 16 hex characters: the first of every owner value, and the hub's channel */
    struct hub *hub;          /* NULL: not open */
    _Atomic uint64_t dialled; /* which server the last session was made to (a hash of its run id); the hub must agree */
    atomic_int kick_fd;       /* wakes the hub when it does not; -1: there was no hub yet */
    atomic_bool kicked;       /* kick_fd is readable */
    atomic_bool remarked;     /* that waiting is slow for want of a right */
};

struct bk_session {
    struct bk *bk;
    struct wire wire;
    char count[PREFIX_MAX + 48]; /* the key that counts tokens: prefix "%n:" run id of the server */
    size_t count_length;
    int64_t known_until_ns; /* so long takes need not look whether the server is still what it was */
    bool renewed; /* the first renewal carries the script's text: NOSCRIPT would cost a second round trip of little time
                   */
    struct watch *watch; /* NULL without sentinels */
};

/* redis.c: one script call with the EVAL fall-back. `a` holds keys and arguments behind its first three places, which
 * are filled here. YES: *ret is a reply, and no error. */
enum bk_says call_script(struct bk_session *s, const struct script *script, struct args *a, int keys,
                         struct bk_until until, redisReply **ret, pawl_error *error);

/* look.c */
enum bk_says redis_records(struct bk_session *s, const char *name, bk_each *each, void *data, struct bk_until until,
                           pawl_error *error);
enum bk_says redis_tokens(struct bk_session *s, bool advance, uint64_t to, struct bk_until until, struct bk_tokens *ret,
                          pawl_error *error);

/* doctor.c */
enum bk_says redis_doctor(struct bk_session *s, bk_find *find, void *data, struct bk_until until, pawl_error *error);

/* hub.c */

/* A session was made to the server with that run id: a hub that listens to another one closes itself. */
void hub_agree(struct bk *bk, const char *run_id);
enum bk_says hub_open(struct bk *bk, struct bk_until until, pawl_error *error);
int hub_fd(struct bk *bk);
enum bk_says hub_io(struct bk *bk, bk_wake *wake, void *data, pawl_error *error);
void hub_close(struct bk *bk, bool forked);
#endif
