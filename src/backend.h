/* backend.h: the one contract between the core and a service that keeps locks.
 *
 * A backend turns questions into one round trip each and answers yes, no, unknown (it may have happened) or fault (it
 * surely did not). It decides nothing, never sleeps, never retries, reads no clock for a decision of its own, and
 * contains no mutex round its sessions: a session is used by one thread at a time, and so is the hub; the core sees to
 * both.
 *
 * Every question ends at `until`, or when its cancel descriptor is readable. A session that answered UNKNOWN, or FAULT
 * with PAWL_EUNREACHABLE, is dropped by the core and never used again (but see beat). docs/BACKEND.md tells what a new backend owes.
 */
#ifndef PAWL_BACKEND_H
#define PAWL_BACKEND_H
#include "error.h"
#include "url.h"
#include <stdbool.h>
#include <stdint.h>

enum bk_says { BK_YES, BK_NO, BK_UNKNOWN, BK_FAULT };

/* When a question must end. CLOCK_BOOTTIME nanoseconds; cancel_fd -1: none. */
struct bk_until {
    int64_t at_ns;
    int cancel_fd;
};

struct bk;         /* one URL, opened: parameters, hub */
struct bk_session; /* one connection */

/* One attempt: constant from its first send to grant, refusal or finished undo; the queue wait is included. */
struct bk_claim {
    const char *name;
    size_t name_len;
    unsigned char owner[16]; /* random, fresh for each attempt, the same in each repeat within it */
    bool shared;
    bool patient; /* it will wait if it is busy: who holds it may be told later */
    int place; /* 1 ..: small, and no attempt of this client on this name has it that is not surely over; 0: none */
    int64_t ttl_ms;
    const char *about;      /* for who: "host=web1&pid=4711&user=ana&command=backup&label=nightly%20run" (about.h) */
    struct bk_life *life;   /* the life that the grant will hang on; NULL where caps.life is BK_LIFE_NONE */
    struct bk_session *pin; /* set by the backend while the claim waits in that very session; NULL: any session */
    void *of;               /* the backend's while the claim waits; nothing to free after YES, or after forget said YES */
};

/* What is renewed. One a lock, or one a ttl that many grants hang on. */
struct bk_life {
    int64_t ttl_ms;
    const struct bk_grant *grant; /* BK_LIFE_LOCK: the grant to renew */
    void *of;                     /* BK_LIFE_TTL: the backend's lease; freed by free_life */
};

struct bk_grant {
    const struct bk_claim *claim; /* as it was taken; set by the core */
    uint64_t token;               /* 1 .. 2^53-1 */
    int64_t left_ms;              /* left when the reply was made; -1: as long as the session, or claim->life, lives */
    struct bk_session *pin;       /* session-bound: release only there; NULL: any session */
    void *of;                     /* the backend's; freed by end */
};

struct bk_busy {
    int64_t ask_again_ms; /* when the state may change by itself, or when to look at the latest; the core adds jitter */
    int wake_fd;      /* readable: ask again at once; belongs to the claim; -1: told through the hub, or not at all */
    bool queued;      /* the service keeps our place: a wake-up will come */
    bool foreign;     /* held by a program that is not pawl */
    bool later;       /* a patient claim: who holds it is told by a later answer */
    char holder[256]; /* about of the holder, "" unknown */
};

struct bk_record {
    const char *name, *about;  /* about "" unknown */
    uint64_t token;            /* 0 unknown */
    int64_t since_ms, left_ms; /* wall clock since 1970, 0 unknown; left -1 unknown or without end */
    bool shared;
    int place; /* 0 holds, 1 .. waits */
};
typedef bool bk_each(const struct bk_record *, void *data); /* false stops */

/* What evict took away. */
struct bk_evicted {
    char holder[256];   /* about of the holder, "" unknown */
    uint64_t token;     /* 0 unknown */
    int64_t free_in_ms; /* for so long the lock stays taken, so that the old holder has stopped by itself before another begins */
};

/* Where the numbers of a service stand (docs/ARCHITECTURE.md, tokens). */
struct bk_tokens {
    uint64_t since, last;
    int64_t clock_us;               /* the service's */
    char stored[96], answering[96]; /* identity kept beside the number, identity that answers now */
};

/* One thing that doctor looked at. */
struct bk_finding {
    const char *id;                /* "R04": a letter of the service and a number that never changes its meaning */
    int level;                     /* PAWL_LEVEL_... */
    const char *about;             /* "eviction" */
    const char *seen, *why, *fix;  /* why and fix: "" where all is well */
};
typedef void bk_find(const struct bk_finding *, void *data);

enum bk_life_scope { BK_LIFE_NONE, BK_LIFE_LOCK, BK_LIFE_TTL };

struct bk_caps {
    const char *scheme;
    enum bk_life_scope life;
    bool session_bound; /* a grant lives no longer than its session, which pins it */
    bool shared;        /* has shared mode */
    bool fifo;          /* serves waiters in order */
    bool hub;           /* wakes waiters through hub_fd */
    bool fences_alone;  /* one holder even if it is paused or cut off: good for correctness without a guard */
    int renew_batch;    /* lives in one renew */
    int per_session;    /* session_bound: grants on one session at the most */
    int64_t ttl_min_ms, ttl_max_ms;
};

/* Ask again: the waiter with that owner value whether it has it, the holder whether it still has; NULL: every waiter
 * (messages may have been missed). false: nobody of that owner value waits or holds any more. */
typedef bool bk_wake(const unsigned char owner[16], void *data);

struct backend {
    struct bk_caps caps;
    /* Parses parameters; no I/O. YES or FAULT. The url lives until close. */
    enum bk_says (*open)(const struct url *, struct bk **ret, pawl_error *);
    void (*close)(struct bk *, bool forked);
    /* NULL, or called once after open: the client's ttl, by which a session-bound service bounds how long a lock outlives a
     * host that vanished, and its about. */
    void (*introduce)(struct bk *, int64_t ttl_ms, const char *about);
    enum bk_says (*connect)(struct bk *, struct bk_until, struct bk_session **ret, pawl_error *);
    void (*drop)(struct bk_session *, bool forked); /* forked: close descriptors only, say nothing */
    /* NULL, or where grants are session-bound: shows that the session still answers. Never blocks: asks what changes nothing,
     * or looks whether an answer is there. YES: it is; NO: not yet; UNKNOWN: the session ended. A session that holds grants
     * is kept after UNKNOWN, or FAULT, if its beat then says YES: what the unanswered question may have taken is given back
     * by then, and a repeated release says what the first one did. */
    enum bk_says (*beat)(struct bk_session *, pawl_error *);
    /* Descriptors that show a hang-up (grant NULL), or that keep the grant while duplicates of them are open. */
    int (*fds)(struct bk_session *, const struct bk_grant *, int *ret, int max);

    /* YES: held. NO: busy; with queue also waiting, if the service keeps a queue. Repeating with the same owner is
     * safe: a repeat of what was granted says YES with what is left now. ret_busy is filled on NO. FAULT with PAWL_ELOST:
     * the service does not know claim->life any more. With YES or NO it may leave a remark in *error (code 0), as may
     * release. */
    enum bk_says (*take)(struct bk_session *, struct bk_claim *, bool queue, struct bk_until, struct bk_grant *ret,
                         struct bk_busy *ret_busy, pawl_error *);
    /* Undo and leave; what was handed to the claim is handed on. YES: it was there and is gone; NO: nothing was there.
     */
    enum bk_says (*forget)(struct bk_session *, struct bk_claim *, struct bk_until, pawl_error *);
    /* For each grant YES: it was ours and is free; NO: it was not ours any more. A grant is still to be ended. */
    enum bk_says (*release)(struct bk_session *, struct bk_grant *const[], int n, struct bk_until, enum bk_says ret[],
                            pawl_error *);
    /* Never creates. For each life YES with what is left, NO: gone. A result other than YES holds for all. */
    enum bk_says (*renew)(struct bk_session *, struct bk_life *const[], int n, struct bk_until, enum bk_says ret[],
                          int64_t ret_left_ms[], pawl_error *);
    /* The same grant, now? Changes nothing. */
    enum bk_says (*prove)(struct bk_session *, const struct bk_grant *, struct bk_until, pawl_error *);
    void (*end)(struct bk_grant *, bool forked); /* frees grant->of; once for every YES of take; no I/O but close */
    /* NULL unless BK_LIFE_TTL. begin_life: grants the lease before the first claim hangs on it; repeating is safe. With YES
     * it may leave a remark in *error (code 0): what the user should know about this ttl.
     * end_life: gives it back, with all that hangs on it. free_life: frees life->of, no I/O. */
    enum bk_says (*begin_life)(struct bk_session *, struct bk_life *, struct bk_until, int64_t *ret_left_ms,
                               pawl_error *);
    enum bk_says (*end_life)(struct bk_session *, struct bk_life *, struct bk_until, pawl_error *);
    void (*free_life)(struct bk_life *);
    /* name NULL: all. */
    enum bk_says (*records)(struct bk_session *, const char *name, bk_each *, void *data, struct bk_until,
                            pawl_error *);
    /* Takes the lock away from whoever holds it: no renewal of that grant succeeds from here on, and the next token is
     * higher. claim->about is shown as the holder for as long as the lock stays taken; at_once: not at all. YES: done. NO: it
     * was free. NULL where nobody can be made to let go. */
    enum bk_says (*evict)(struct bk_session *, const struct bk_claim *, bool at_once, struct bk_until,
                          struct bk_evicted *ret, pawl_error *);
    /* NULL, or looks at the set-up with no more rights than a lock needs; what it may not see is PAWL_LEVEL_UNSEEN. */
    enum bk_says (*doctor)(struct bk_session *, bk_find *, void *data, struct bk_until, pawl_error *);
    /* advance: ADVANCE to at least `to` first (0: as if just restored); where the service lost its numbers, they begin above
     * `to`. */
    enum bk_says (*tokens)(struct bk_session *, bool advance, uint64_t to, struct bk_until, struct bk_tokens *ret,
                           pawl_error *);
    /* NULL where a service needs no preparing. init: prepares it, idempotent, on a connection of its own; with YES it may leave
     * a remark in *error (code 0), as may init_above. init_text: the same as a text for the service's own tools. */
    enum bk_says (*init)(struct bk *, struct bk_until, pawl_error *);
    const char *(*init_text)(void);
    /* NULL, or the same where the service may have lost its numbers: they go on above the floor, and no lock of before is
     * held. */
    enum bk_says (*init_above)(struct bk *, uint64_t floor, struct bk_until, pawl_error *);

    /* The hub (NULL without caps.hub): one channel a client through which the service says "ask again". */
    enum bk_says (*hub_open)(struct bk *, struct bk_until, pawl_error *); /* YES: whoever queues from now on is told */
    int (*hub_fd)(struct bk *);                                           /* -1: not open */
    enum bk_says (*hub_io)(struct bk *, bk_wake *, void *data,
                           pawl_error *); /* never blocks; FAULT: it is closed now */
    void (*hub_close)(struct bk *, bool forked);
    /* NULL where a holder is told nothing. The holder of that grant is to be woken if the grant is gone, also if it went
     * before this call. The keeper calls it at each renewal, and when the hub was opened anew: a repeat is cheap. No I/O. */
    void (*hub_watch)(struct bk *, const struct bk_grant *);
};
#endif
