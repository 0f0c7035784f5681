/* peer.h: one connection to one instance, that never blocks: dialled, greeted and asked while others are. A reply that
 * nobody waits for any more is still owed to us; it is counted, and dropped when it comes, unless it says that the
 * scripts are gone there. */
#ifndef REDLOCK_PEER_H
#define REDLOCK_PEER_H
#include "redis/greet.h"
#include "redis/script.h"
#include "resolve.h"

#define EPOCH_CHARS 33 /* number(16) '.' run(16) */
#define META_CHARS 212 /* of what an instance keeps (admit.lua) */
#define PEER_DRAIN 16  /* so many stale replies are read before the next question */
#define PEER_OWED 512  /* so many replies may be owed; a peer that owes more is asked nothing */

enum peer_state { PEER_CLOSED, PEER_DIALLING, PEER_SHAKING, PEER_GREETING, PEER_READY };

struct peer {
    const struct place *place;
    const struct url_host *host;
    char node[128];
    enum peer_state state;
    struct wire wire; /* fd -1 unless GREETING or READY */
    int fd;           /* while DIALLING or SHAKING; else -1 */
    struct tls *tls;  /* while SHAKING; else NULL */
    int events;       /* SHAKING: what it waits for, and how long */
    int64_t shaken_ns;
    struct resolved resolved;
    int address; /* of which it is dialled */
    struct greeting greeting;
    char epoch[EPOCH_CHARS + 1]; /* of the instance, as it said last; "": none */
    bool lost;                   /* it does not vote: it has no memory, or not its own */
    bool empty;                  /* and nothing is left of it */
    int64_t ready_ns;            /* its memory is new: it does not vote before; 0: it does, as far as is known */
    bool refused;                /* not to be asked: a replica, a wrong password, ... */
    unsigned known;              /* the bits of the scripts that it has got */
    int owed, stale;             /* replies that will come; those of them that nobody waits for */
    int64_t retry_ns;            /* CLOSED: not dialled again before */
    int64_t backoff_ms;
    pawl_error why; /* the last trouble */
};

void peer_init(struct peer *p, const struct place *place, const struct url_host *host);
/* CLOSED and due: begins to dial. Looking a name up may take until `until`; the rest is peer_step's. */
void peer_dial(struct peer *p, struct bk_until until);
static inline bool peer_comes(const struct peer *p) { return p->state > PEER_CLOSED && p->state < PEER_READY; }
/* What poll is to wait for; -1: nothing. */
int peer_fd(const struct peer *p, short *ret_events);
/* Goes on dialling, shaking hands or greeting as far as it can. */
void peer_step(struct peer *p, struct bk_until until);
/* Puts a question into the socket; script NULL: args are a command as it is. false: not sent, for the peer owes too
 * much, or it is closed now. */
bool peer_ask(struct peer *p, const struct script *script, struct args *a, int keys);
/* YES: *ret is the next reply that is not stale; NO: none yet; FAULT: the peer is closed now. */
enum bk_says peer_hear(struct peer *p, redisReply **ret);
void peer_close(struct peer *p, bool quiet);

/* The scripts of this folder. */
extern const struct script script_lock, script_seal, script_prove, script_seed, script_look; /* and script_release */
#endif
