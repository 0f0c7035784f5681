/* pawl.h: locks with fencing tokens.
 *
 * A lock is *held* until it is *released* or *lost*; every grant carries a fencing token, a number that only goes up for a
 * name. Give the token to the resource that the lock protects and let it refuse a lower one (pawl_guard.h): a lock alone
 * never protects a resource that does not check the token.
 *
 * Linux; C11 and C++. Times are int64_t milliseconds. Results are PAWL_OK (0) or a positive PAWL_E... code. ret_ arguments
 * are untouched on failure. Options and error structs begin with their size (use the INIT macros); NULL means defaults, or
 * that no text is wanted. Any thread may call anything, except that nobody may use a lock during or after its pawl_release,
 * nor a client and its locks during or after pawl_close or pawl_forget: a call that is under way must have returned before.
 * Where a question has a wait_ms, 0 or less means 5 s; pawl_acquire and pawl_release say what it means there.
 * The library prints nothing, reads no environment of its own (what it uses may: OpenSSL SSL_CERT_FILE and SSL_CERT_DIR, the
 * resolver RES_OPTIONS), installs no handler, and keeps all signals blocked in its own threads.
 * NULL is also taken by pawl_close, pawl_forget and pawl_release (nothing to do), and as the name by pawl_inspect (all); a url
 * or another name that is NULL is PAWL_EINVALID; nothing else but a label may be NULL. */
#ifndef PAWL_H
#define PAWL_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

#define PAWL_VERSION 0x000100 /* 0.1.0 when compiled; pawl_version() tells what runs */
#define PAWL_FOREVER INT64_MAX

typedef struct pawl_client pawl_client; /* one service, one thread, some connections; one per process and URL is enough */
typedef struct pawl_lock pawl_lock;     /* one pending or held lock */

enum { /* never renumbered; named by what the caller can do about it */
    PAWL_OK,
    PAWL_EBUSY,        /* somebody else holds it, and waiting was not wanted */
    PAWL_ETIMEOUT,     /* somebody else held it for as long as the caller was willing to wait */
    PAWL_ECANCELLED,   /* the cancel descriptor became readable, or the lock was released while pending */
    PAWL_ELOST,        /* not ours any more, or no longer provable */
    PAWL_EUNREACHABLE, /* the service does not answer, answers that it cannot serve now, or is too slow for the ttl */
    PAWL_EDENIED,      /* the service, or the file system, refuses us */
    PAWL_EUNSAFE,      /* this set-up cannot give what was asked for */
    PAWL_EINVALID,     /* an argument, the URL, or the state of the handle (as after fork) */
    PAWL_EUNSUPPORTED, /* this service, or this build, does not offer it */
    PAWL_EINTERNAL     /* out of memory or descriptors, or a bug in pawl */
};

typedef struct {
    size_t size;
    int code, sys_errno;
    char node[128];  /* which file, host or instance; "" if none in particular */
    char text[512];  /* what was attempted, what came back, what to do; never a secret */
} pawl_error;
#define PAWL_ERROR_INIT { sizeof(pawl_error), 0, 0, "", "" }

/* Only GRANTED, FAILED and LOST are events of pawl_next_event; an observer sees all. */
enum { PAWL_GRANTED = 1, PAWL_FAILED, PAWL_LOST, PAWL_DOUBT, PAWL_DOUBT_OVER, PAWL_RELEASED, PAWL_WAITING, PAWL_RENEWED, PAWL_LATE,
       PAWL_REMARK /* what is worse than it need be: a ttl below what the service advises, or raised to its least; a right
                      that is missing, so that waiting is a question again and again */ };
enum { /* why a lock was lost, for counting; the text says it in words */
    PAWL_LOST_UNPROVEN, /* no renewal was confirmed in time */
    PAWL_LOST_GONE,     /* the service says that it is not ours any more */
    PAWL_LOST_SESSION,  /* the connection that held it ended */
    PAWL_LOST_MAX_HOLD  /* it was held for the longest time allowed */
};
typedef struct {
    size_t size;
    int type, code; /* PAWL_GRANTED..., and the PAWL_E... that goes with it */
    pawl_lock *lock;
    void *user;     /* as given to pawl_acquire_start */
    int64_t token;
    char text[512];
    int reason;     /* of LOST: PAWL_LOST_... */
} pawl_event;
#define PAWL_EVENT_INIT { sizeof(pawl_event), 0, 0, NULL, NULL, 0, "", 0 }

/* Sees every event as it happens: for logs and metrics. Called in any thread; must not block and must not call pawl. The event
 * and the name live only during the call. */
typedef void pawl_observer(const pawl_event *event, const char *name, void *data);

typedef struct {
    size_t size;
    int for_correctness; /* refuse (PAWL_EUNSAFE) a service that may grant a lock twice, unless a guard is named elsewhere */
    int64_t ttl_ms;      /* 100 ms to 24 h: how long a lock outlives a holder that died; not for file: */
    int64_t margin_ms;   /* kept free before a lease ends; at most ttl/2; 0: max(ttl/100 + 2, 20) */
    const char *label;   /* shown to others by who; NULL: none */
    unsigned flags;      /* 0 */
    pawl_observer *observe;
    void *observe_data;
    int64_t pid;         /* shown to others by who, as the one to send signals to; 0: this process */
} pawl_options;
#define PAWL_OPTIONS_INIT { sizeof(pawl_options), 0, 15000, 0, NULL, 0, NULL, NULL, 0 }

typedef struct {
    size_t size;
    int64_t wait_ms;     /* 0: try once; PAWL_FOREVER */
    int64_t ttl_ms;      /* 0: the client's */
    int64_t max_hold_ms; /* 0: none; else the lock counts as lost after so long */
    int shared;          /* not zero: with other shared holders; PAWL_EUNSUPPORTED where the service has no such mode */
    int cancel_fd;       /* the wait ends when it is readable; a free lock may be granted all the same; never read; -1: none */
    const char *label;   /* NULL: the client's */
} pawl_acquire_options;
#define PAWL_ACQUIRE_INIT { sizeof(pawl_acquire_options), PAWL_FOREVER, 0, 0, 0, -1, NULL }

/* --- client --- */

/* Opens no thread and no socket before the first use. url: see pawl-url(7); "file:", "redis://host", ... */
int pawl_open(const char *url, const pawl_options *options, pawl_client **ret_client, pawl_error *error);
/* Optional: connect and check now (address, rights, role), within wait_ms. */
int pawl_connect(pawl_client *client, int64_t wait_ms, pawl_error *error);
/* Releases all its locks (1 s at most, behind a question that is under way: 5 s at most), ends the thread; handles of its locks die with it. NULL is allowed. */
void pawl_close(pawl_client *client);
/* In a forked child the only call allowed: frees memory and descriptors, sends nothing. */
void pawl_forget(pawl_client *client);

/* --- blocking --- */

/* Takes the lock `name` (1 to 512 bytes of UTF-8). Not re-entrant: this process's own locks count like anybody's.
 * An attempt that ends unknown (the reply was lost) is undone in the background, or expires. */
int pawl_acquire(pawl_client *client, const char *name, const pawl_acquire_options *options, pawl_lock **ret_lock,
                 pawl_error *error);
/* Always consumes the lock. wait_ms 0 never blocks: the client's thread finishes it, and 0 is returned. PAWL_ELOST: it was
 * not ours any more; PAWL_EUNREACHABLE: no answer in time, it is free within the ttl. A pending lock is cancelled. */
int pawl_release(pawl_lock *lock, int64_t wait_ms, pawl_error *error);

/* --- event loop: one descriptor per client, whatever the number of locks --- */

/* Never blocks. Ends in one PAWL_GRANTED or PAWL_FAILED event, unless released before. A failed lock is to be released too.
 * options->cancel_fd is not looked at: pawl_release cancels. */
int pawl_acquire_start(pawl_client *client, const char *name, const pawl_acquire_options *options, void *user,
                       pawl_lock **ret_lock, pawl_error *error);
/* Readable (level) while an event waits; poll it, never read or close it. Negative: out of descriptors, or after
 * fork. */
int pawl_event_fd(pawl_client *client);
/* 1: got one, 0: none. No event of a lock comes after its release. Only locks of pawl_acquire_start have events. */
int pawl_next_event(pawl_client *client, pawl_event *ret_event);

/* --- a held lock --- */

int64_t pawl_token(const pawl_lock *lock);        /* 1 .. 2^53-1; rises with every grant of the name; 0 while pending */
int pawl_check(const pawl_lock *lock);            /* PAWL_OK or PAWL_ELOST by the local deadline; no I/O, async-signal-safe */
int64_t pawl_remaining_ms(const pawl_lock *lock); /* to the safe deadline; PAWL_FOREVER where a session or the kernel holds
                                                     the lock; <= 0: lost */
int pawl_lost_fd(pawl_lock *lock); /* made when first asked for; readable for good once lost, even if all our threads hang;
                                      belongs to the lock; negative: out of descriptors, or after fork */
/* Asks the service: still this very grant? Advice, not a guard: the answer is old when it arrives. */
int pawl_verify(pawl_lock *lock, int64_t wait_ms, pawl_error *error);
const char *pawl_name(const pawl_lock *lock); /* belongs to the lock */
/* For a guardian process: descriptors (at most max are written, the number is returned) whose duplicates keep the lock
 * held after this process died, where the kernel or a session holds it. 0 where only a ttl does. */
int pawl_holding_fds(pawl_lock *lock, int *ret_fds, int max);

/* --- look --- */

typedef struct {
    size_t size;
    const char *name, *label, *host, *user, *command; /* NULL: unknown; they live only during the call */
    int64_t pid, token, since_ms, left_ms;            /* 0: unknown; since_ms: wall clock, milliseconds since 1970 */
    int held, shared, place;                          /* place: 1 .. in the queue, 0 for a holder */
} pawl_entry;
typedef int pawl_entry_fn(const pawl_entry *entry, void *data); /* not zero stops */

/* Holders and waiters of one name, or of all (NULL). Never blocks a lock. */
int pawl_inspect(pawl_client *client, const char *name, int64_t wait_ms, pawl_entry_fn *fn, void *data, pawl_error *error);
/* Takes a stuck lock away from whoever holds it, in our name (the client's label is shown by who): nothing that he still asks
 * of it succeeds, and the next token is higher. Where a ttl holds the lock, it stays taken for what is left of the old
 * holder's, so that he has stopped by himself before another begins; PAWL_BREAK_AT_ONCE: it is free now, and only a guard
 * keeps him from doing harm. PostgreSQL: his session is ended; PAWL_ETIMEOUT: it was told
 * to end, and still holds it; PAWL_EBUSY: a prepared transaction holds it, which has no session. PAWL_EUNSUPPORTED: file:, where
 * only his end frees it. */
#define PAWL_BREAK_AT_ONCE 1u
typedef struct {
    size_t size;
    int was_held;       /* 0: it was free, and nothing was done */
    char holder[256];   /* "backup.sh (pid 4711, root@db1)" */
    int64_t token;      /* that was his; 0 unknown */
    int64_t free_in_ms; /* when another can have it */
} pawl_broken;
#define PAWL_BROKEN_INIT { sizeof(pawl_broken), 0, "", 0, 0 }
int pawl_break(pawl_client *client, const char *name, unsigned flags, int64_t wait_ms, pawl_broken *ret, pawl_error *error);

/* Where the token numbers of a service stand, and lifting them: needed when locks move to a service that was used before,
 * or that was restored while clocks were wrong. Numbers are microseconds since 1970 used as a counter. */
typedef struct {
    size_t size;
    int64_t last, since;             /* the last number given, and where the count began; 0: none yet */
    int64_t clock_us;                /* the service's clock, microseconds since 1970 */
    char stored[96], answering[96];  /* identity kept beside the numbers, and the one that answers; "" if there is none */
} pawl_tokens;
#define PAWL_TOKENS_INIT { sizeof(pawl_tokens), 0, 0, 0, "", "" }
int pawl_tokens_show(pawl_client *client, int64_t wait_ms, pawl_tokens *ret, pawl_error *error);
/* Every later token is above `to` (0: no such wish), above the service's clock, and above all before by a leap. PAWL_EINVALID:
 * `to` is more than ten years ahead of this clock. PAWL_EBUSY: PostgreSQL, where another transaction keeps the numbers locked. */
int pawl_tokens_advance(pawl_client *client, int64_t to, int64_t wait_ms, pawl_tokens *ret, pawl_error *error);

/* Is this set-up good for locks? Takes and releases a lock of its own, and looks at what the service says of itself; each
 * finding is told once, the good ones too. Needs no more rights than a lock; what it may not see is PAWL_LEVEL_UNSEEN. It asks
 * several questions, each of which may take wait_ms. */
enum { PAWL_LEVEL_FINE, PAWL_LEVEL_WARNING, PAWL_LEVEL_UNSAFE, PAWL_LEVEL_UNSEEN };
typedef struct {
    size_t size;
    int level;
    const char *id, *about;       /* "R04", "eviction": an id never changes its meaning */
    const char *seen, *why, *fix; /* why and fix: "" where all is well; they live only during the call */
} pawl_finding;
typedef int pawl_finding_fn(const pawl_finding *finding, void *data); /* not zero: no more is told, but all is looked at */
int pawl_doctor(pawl_client *client, int64_t wait_ms, pawl_finding_fn *fn, void *data, pawl_error *error);

/* Prepares the service for pawl (PostgreSQL: installs its schema); may be repeated. PAWL_EUNSUPPORTED: nothing to prepare.
 * With PAWL_OK error->text may have a remark (redlock: who does not vote yet); else *error is as it was. */
int pawl_init(pawl_client *client, int64_t wait_ms, pawl_error *error);
/* The same where so many instances lost their memory (redlock:) that nobody knows where the tokens stood: they go on above
 * `floor`, the highest that any resource saw. Who calls it knows that no lock of before is held: all instances that answer
 * vote at once. PAWL_EUNSUPPORTED: there is none to be said. PAWL_EINVALID: it is more than ten years ahead of this clock. */
int pawl_init_above(pawl_client *client, int64_t floor, int64_t wait_ms, pawl_error *error);
/* The same as pawl_init as a text for the service's own tools; static; NULL: nothing to prepare. */
const char *pawl_init_text(pawl_client *client);

/* Counters and gauges of this process, all clients together, as Prometheus reads them (its text format, UTF-8), ended by
 * NUL and cut at size. Returns how long the whole is, without the NUL, as snprintf; 0: out of memory. By class of lock, never
 * by name: order:1 and order:2 are of class order; beyond 100 classes the rest is "other". */
size_t pawl_metrics(char *text, size_t size);

/* What the promises are here, as JSON; returns PAWL_EINVALID if size is too small. */
int pawl_guarantees(pawl_client *client, char *json, size_t size, pawl_error *error);

const char *pawl_strerror(int code);
const char *pawl_version(void); /* "0.1.0 file mem redis; layout 1"; static, written anew by each call */

/* The INIT macros, for languages without a preprocessor. */
void pawl_options_init(pawl_options *options, size_t size);
void pawl_acquire_init(pawl_acquire_options *options, size_t size);

#ifdef __cplusplus
}
#endif
#endif
