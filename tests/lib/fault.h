/* fault.h: a backend in front of another one that goes wrong on purpose: requests and replies get lost, come late or
 * twice.
 *
 * One struct fault stands for the network between one client and the service: fault_backend gives the table through
 * which that client, and it alone, opens. What happens is told beforehand (fault_script), or drawn (fault_odds). Time
 * passes only in `pass`. Not for backends that pin grants or claims to a session. */
#ifndef PAWL_TEST_FAULT_H
#define PAWL_TEST_FAULT_H
#include "backend.h"

enum fault_op {
    FAULT_CONNECT,
    FAULT_TAKE,
    FAULT_FORGET,
    FAULT_RELEASE,
    FAULT_RENEW,
    FAULT_PROVE,
    FAULT_LIFE,
    FAULT_HUB,
    FAULT_OPS
};
enum fault_kind {
    FAULT_NONE,
    FAULT_REFUSED,      /* FAULT, PAWL_EUNREACHABLE: surely without effect */
    FAULT_DENIED,       /* FAULT, PAWL_EDENIED */
    FAULT_REQUEST_LOST, /* UNKNOWN at the deadline, without effect. Hub: what came is thrown away */
    FAULT_REPLY_LOST,   /* UNKNOWN at the deadline, with effect */
    FAULT_TWICE,        /* done twice; the second answer is given */
    FAULT_LATE,         /* UNKNOWN at the deadline; done when fault_arrive is called */
    FAULT_KINDS
};
enum fault_leg { FAULT_WAY_THERE, FAULT_WAY_BACK, FAULT_TIMED_OUT };

struct fault;

struct fault *fault_new(uint64_t seed);
/* To be freed behind the client that uses it; requests that are late when that closes are thrown away. */
void fault_free(struct fault *);
/* The next open of the table belongs to this fault. */
const struct backend *fault_backend(struct fault *, const struct backend *inner);

/* Once, the next time that `op` is asked. At most 16 wait. */
void fault_script(struct fault *, enum fault_op op, enum fault_kind kind);
/* Otherwise with this chance, in thousandths. */
void fault_odds(struct fault *, enum fault_op op, enum fault_kind kind, unsigned per_mille);
void fault_calm(struct fault *); /* no more odds */
/* Lets time pass on the way there and back, and up to the deadline of what is lost. False: the deadline came first, so
 * the request, or the reply, is lost. */
typedef bool fault_pass_fn(enum fault_leg, int64_t until_ns, void *data);
void fault_pass(struct fault *, fault_pass_fn *, void *data);

/* The late requests arrive now; how many. */
int fault_arrive(struct fault *);
int fault_count(const struct fault *, enum fault_op op, enum fault_kind kind);
/* How often a take was repeated after one of the same owner had ended UNKNOWN. */
int fault_repeats(const struct fault *);
/* How often a session was used after it had answered UNKNOWN, or FAULT with PAWL_EUNREACHABLE. */
int fault_misuses(const struct fault *);
#endif
