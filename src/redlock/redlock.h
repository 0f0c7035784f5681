/* redlock.h: what the files of this backend share. Reading order: lock.lua, seal.lua, take.c, round.c, peer.c; then
 * admit.lua, seed.lua, seed.c.
 *
 * A session is one connection to each of N independent Redis instances. A lock is held by whoever has its value at a
 * quorum of them; its token is a number that a quorum has sealed: no instance of that quorum ever gives the same or a
 * lower one. Any two quorums meet, so tokens are unique, and rise, whatever clocks do (models/README.md; the argument
 * is in docs/redlock.md). */
#ifndef REDLOCK_REDLOCK_H
#define REDLOCK_REDLOCK_H
#include "about.h"
#include "peer.h"
#include <stdatomic.h>

#define PEERS_MAX 15
#define BASE_CHARS 44 /* of an owner: what all its attempts have in common */
#define LOOK_MS 5000  /* no waiter looks away for longer, whatever the instances said */
#define POLL_MS 75    /* how often is asked where nobody tells */
#define RANK_MS 100   /* and each place in the queue looks that much later than the one before */
#define BEGIN_MS 3000 /* a first start wants the answers of all, and waits so long for them */

struct hub;
struct bk {
    struct place place;
    int n, quorum;
    int64_t timeout_ms;          /* for one instance; 0: a twentieth of the ttl */
    bool durable;                /* an instance that was restarted with its data has lost nothing */
    char client_id[17];          /* the first of every owner value, and the hub's channel */
    _Atomic uint64_t seen;       /* the highest number that any instance told */
    atomic_bool slow[PEERS_MAX]; /* did not answer in time lately: nobody waits for it while others will do */
    struct hub *hub;
};

/* One question to many instances; its args live until the round is over. */
struct question {
    const struct script *script;
    struct args args;
    int keys;
    int epoch_arg; /* the argument that is the session's epoch; 0: none */
};
typedef uint32_t peers; /* a set of instances */

struct bk_session {
    struct bk *bk;
    char epoch[EPOCH_CHARS + 1]; /* of its questions: the highest that an instance told */
    const char *verb, *name;     /* for errors */
    struct question *question;
    peers asked, sent, heard, failed, redialled;
    peers voteless;   /* heard, but they do not vote */
    peers ready;      /* something may have come from there */
    peers reached;    /* it was sent there, if only on a connection that broke */
    peers again;      /* it was sent there on one that broke: what is answered now may be what that did */
    int enough;       /* so many answers will do, if the others are slow: a quorum, unless set after round_start */
    char remark[320]; /* for the user, with the next grant */
    int64_t seed_ns;  /* seed does not try again before */
    int64_t began_ns, ttl_ms; /* of the round */
    int64_t patience_ns;      /* until then for the slower ones, if a quorum has answered */
    struct bk_until until;
    struct peer peers[];
};

/* --- round.c --- */

/* Puts the question to those instances. What is still owed for earlier ones is stale from now on. */
void round_start(struct bk_session *s, struct question *q, peers whom, int64_t ttl_ms, struct bk_until until);
/* YES: instance *ret_i replied. NO: nobody is left for whom it is worth waiting; s->until.at_ns passed or the cancel
 * descriptor is readable if round_cut says so. */
enum bk_says round_next(struct bk_session *s, int *ret_i, redisReply **ret);
bool round_cut(const struct bk_session *s, pawl_error *error);
static inline peers everybody(const struct bk_session *s) { return (1u << s->bk->n) - 1; }
int64_t round_took_ms(const struct bk_session *s); /* so far */
/* A reply that is none of those that were asked for: noted at the peer, as what it means. */
void round_verdict(struct bk_session *s, int i, const redisReply *reply);
/* A reply of admit.lua, noted at the peer: it does not vote, or not in our epoch. *ret_newer: it is in a later one. */
bool round_abstains(struct bk_session *s, int i, const redisReply *reply, bool *ret_newer);
void adopt_epoch(struct bk_session *s, const char *epoch);
/* "votes again in 9 s". */
const char *peer_ready_text(const struct peer *p, char ret[48]);
static inline const char *peer_lost_text(const struct peer *p) {
    return p->empty ? "has lost its memory and does not vote" : "was restarted or promoted and does not vote";
}
/* Why it does not vote, as its trouble. */
void peer_is_lost(struct peer *p);
void peer_waits(struct peer *p);
/* An instance that is behind takes our epoch; nobody waits for it. */
void round_level(struct bk_session *s, peers behind);

/* --- quorum.c --- */

/* Fills the error: so few answer, or vote; each other instance and its fault is named. */
void round_no_quorum(const struct bk_session *s, int answered, pawl_error *error);

/* --- texts of a question --- */

struct names {
    struct keys keys;
    char counter[KEY_SIZE], turn[KEY_SIZE];
};
void names_of(const struct bk *bk, const struct bk_claim *claim, struct names *ret);
/* The value of attempt k of an owner, 48 characters: random, another one for each attempt. */
void attempt_text(const struct bk *bk, const unsigned char owner[16], unsigned k, char ret[OWNER_CHARS + 1]);
/* A claim's tag while it waits, and for good: which attempt it is at (16 bits), and when it came (ms since 1970; 0: it
 * never queued). It is no pointer, since a claim that was granted has nothing to free. */
_Static_assert(sizeof(uintptr_t) >= 8, "a claim's tag has 16 bits of an attempt and 41 of a time: it needs 64");
static inline unsigned claim_attempt(const struct bk_claim *c) { return (unsigned)((uintptr_t)c->of & 0xffff); }
static inline uint64_t claim_came_ms(const struct bk_claim *c) { return (uintptr_t)c->of >> 16; }
static inline void claim_tag(struct bk_claim *c, unsigned attempt, uint64_t came_ms) {
    c->of = (void *)((uintptr_t)came_ms << 16 | (attempt & 0xffff));
}

struct grant { /* of a bk_grant */
    char value[OWNER_CHARS + 1];
};

/* --- take.c --- */

enum bk_says redlock_take(struct bk_session *s, struct bk_claim *c, bool queue, struct bk_until until,
                          struct bk_grant *ret, struct bk_busy *ret_busy, pawl_error *error);

/* --- seed.c --- */

/* Begins where nothing ever was, or gives those that lost their memory a vote again; does nothing if all is well, or
 * if it cannot. */
void seed(struct bk_session *s, struct bk_until until);
/* Of that, the one thing that looking does, too: durable=yes: one that was restarted with its data is believed. */
void seed_trust(struct bk_session *s, struct bk_until until);
/* All are there, and none ever had anything: whoever looks finds nothing, and leaves it so. */
bool seed_virgin(struct bk_session *s, struct bk_until until, int64_t *ret_clock_us);
enum bk_says redlock_init(struct bk *bk, struct bk_until until, pawl_error *error);
enum bk_says redlock_init_above(struct bk *bk, uint64_t floor, struct bk_until until, pawl_error *error);
enum bk_says redlock_tokens(struct bk_session *s, bool advance, uint64_t to, struct bk_until until,
                            struct bk_tokens *ret, pawl_error *error);

/* What an instance keeps, and its clock; asked_us, heard_us: ours before and after. Its peer is noted, too. */
struct looked {
    bool came;
    uint64_t ttl_ms; /* the longest that it knows */
    int64_t clock_us, asked_us, heard_us;
};
void seed_look(struct bk_session *s, struct bk_until until, struct looked ret[PEERS_MAX]);

/* Those that vote, as they say themselves; at each of the others it is noted why not. patient: all are waited for. */
peers seed_voters(struct bk_session *s, bool patient, struct bk_until until);

/* --- doctor.c --- */

enum bk_says redlock_doctor(struct bk_session *s, bk_find *find, void *data, struct bk_until until, pawl_error *error);

/* --- look.c --- */

enum bk_says redlock_records(struct bk_session *s, const char *name, bk_each *each, void *data, struct bk_until until,
                             pawl_error *error);

/* --- redlock.c --- */

enum bk_says redlock_connect(struct bk *bk, struct bk_until until, struct bk_session **ret, pawl_error *error);
void redlock_drop(struct bk_session *s, bool forked);

/* --- hub.c --- */

enum bk_says hub_open(struct bk *bk, struct bk_until until, pawl_error *error);
int hub_fd(struct bk *bk);
enum bk_says hub_io(struct bk *bk, bk_wake *wake, void *data, pawl_error *error);
void hub_close(struct bk *bk, bool forked);
#endif
