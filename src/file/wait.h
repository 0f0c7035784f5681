/* wait.h: a waiter: a thread that blocks in the kernel for one claim, which is in the queue already (lockfile.h). */
#ifndef PAWL_FILE_WAIT_H
#define PAWL_FILE_WAIT_H
#include "lockfile.h"

struct wait;
struct waits { /* those of one client */
    struct wait *first, *resting; /* resting: threads without a wait */
    int n_resting;
};

/* False: this process cannot have waiters (no libgcc_s), it must ask again and again. */
bool wait_possible(void);
/* Begins to wait; the wait owns *file from now on, also on failure. */
int wait_start(struct waits *all, const struct lockfile *file, bool shared, struct wait **ret, pawl_error *error);
int wait_fd(const struct wait *wait); /* readable when it is over */
struct lockfile *wait_file(struct wait *wait);
/* False: not over. Otherwise the wait is gone: *ret_errno 0 and *ret locked, or why not. */
bool wait_collect(struct wait *wait, struct lockfile *ret, int *ret_errno);
/* Ends it whatever it has reached, and gives up what it may have got in this very moment. */
void wait_cancel(struct wait *wait);
/* When no wait is left. */
void wait_end_resting(struct waits *all);
/* In a forked child: closes the copies of what the parent waits with, or the child would keep the lock after the
 * parent. */
void wait_forget_all(struct waits *all);
/* Forks wait until no list of waits is being changed. Call them round fork. */
void wait_fork_begins(void);
void wait_fork_ends(void);
#endif
