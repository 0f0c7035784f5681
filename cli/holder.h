/* holder.h: the insides of the holder (holder.c), shared with what it hears from the library (hear.c). */
#ifndef PAWL_CLI_HOLDER_H
#define PAWL_CLI_HOLDER_H
#include "metrics.h"
#include "run.h"

struct holder {
    struct run *run;
    struct run_shared *shared;
    struct child child;
    pawl_client *client;
    pawl_lock *lock;
    int sock, front_fd, signal_fd, timer_fd, lost_fd;
    int64_t granted_ns, armed_ns;
    int64_t max_hold_ns; /* INT64_MAX: none */
    int64_t kill_ns;     /* while stopping */
    bool stopping, command_ended, tree_dead, front_dead, sock_closed, told_doubt;
};

/* hear.c */
pawl_observer holder_observe;
/* Why the lock is in doubt or lost, or who waits has no answer, as the library last said; "" nothing. */
void holder_doubt(char *ret, size_t size);
/* Of the loss that the library told: PAWL_LOST_... */
int holder_lost_reason(int otherwise);
/* What the library remarked about the ttl; with -v: that renewals fail, or work again. */
void holder_tell_doubt(struct holder *h);
void holder_tell_remark(const struct holder *h);
/* The timer has fired: how late, and was it the machine? */
void holder_note_lateness(const struct holder *h);
#endif
