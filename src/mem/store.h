/* store.h: the service behind "mem:": names, their holders, and a queue of waiters in order.
 *
 * The one thing to know: nothing runs here by itself. Each question first settles its name: holders whose time is over
 * go, and the waiters who could be granted now (one exclusive, or all shared ones at the head) get a turn: they are
 * woken and have STORE_CLAIM_MS to ask again. Who does not come loses the turn and his place. Nobody passes a waiter
 * who has a turn.
 *
 * Not locked: the caller holds one mutex round every call. Times are nanoseconds of the service's clock. */
#ifndef PAWL_MEM_STORE_H
#define PAWL_MEM_STORE_H
#include "backend.h"
#include "token.h"

#define STORE_CLAIM_MS 500

struct entry; /* a holder or a waiter */
struct named; /* a name that somebody holds or waits for */

#define STORE_BUCKETS 1024
struct store {
    struct store *next;
    char *name;
    struct token_state tokens;
    struct named *buckets[STORE_BUCKETS];
};

/* Tells the listener of a waiter that `owner` should ask again. */
typedef void store_wake(void *listener, const unsigned char owner[16]);

/* NULL: out of memory. */
struct store *store_new(const char *name, int64_t wall_us);

/* As backend.h says of take. listener NULL: the waiter cannot be woken and is asked to look often. */
enum bk_says store_take(struct store *, const struct bk_claim *, bool queue, void *listener, store_wake *,
                        int64_t now_ns, struct bk_grant *ret, struct bk_busy *ret_busy, pawl_error *);
/* Whether there was anything. */
bool store_forget(struct store *, const struct bk_claim *, store_wake *, int64_t now_ns);
bool store_release(struct store *, const struct bk_grant *, store_wake *, int64_t now_ns);
/* The holder's time left after it, in ms; negative: not held by this grant. ttl_ms 0 changes nothing. */
int64_t store_renew(struct store *, const struct bk_grant *, int64_t ttl_ms, store_wake *, int64_t now_ns);
/* As backend.h says of evict. */
enum bk_says store_evict(struct store *, const struct bk_claim *, bool at_once, store_wake *, int64_t now_ns,
                         struct bk_evicted *ret, pawl_error *);
/* Waiters of this listener are no longer woken. */
void store_deafen(struct store *, const void *listener);
/* Copies of the records of a name, or of all; free each with store_free_records. NULL with *ret_n 0: none, -1: no
 * memory. */
struct bk_record *store_records(struct store *, const char *name, store_wake *, int64_t now_ns, int *ret_n);
void store_free_records(struct bk_record *, int n);
#endif
