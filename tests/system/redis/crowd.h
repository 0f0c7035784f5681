/* crowd.h: processes that wait for one lock, and the order in which they got it. */
#ifndef TESTS_CROWD_H
#define TESTS_CROWD_H
#include "pawl.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define CROWD_MAX 1500

struct member {
    atomic_llong got_ns; /* when it got the lock; 0: not yet */
    atomic_llong token;
    atomic_int place; /* the how manieth grant it was, from 1 */
    atomic_int code;  /* of the acquire */
    atomic_int done;  /* released */
    pid_t pid;        /* 0: ended and waited for */
};
struct crowd { /* shared memory */
    atomic_int grants, holders, overlaps;
    int n, fd;
    struct member member[CROWD_MAX];
};
struct crowd_options {
    const char *url, *name;
    int64_t ttl_ms, hold_ms, wait_ms; /* wait_ms 0: for ever */
    int turns;                        /* 0: one */
    int threads;                      /* of one client in each process; 0: one */
};

/* First in main: the processes of a crowd are the test program again, and never return from here. */
void crowd_main(int argc, char **argv);
struct crowd *crowd_new(void);
/* Starts one more process; it asks at once. Its first index. */
int crowd_add(struct crowd *c, const struct crowd_options *o);
/* True when n grants came within ms. */
bool crowd_granted(struct crowd *c, int n, int ms);
void crowd_kill(struct crowd *c, int i, int signal);
/* Kills who is left. */
void crowd_end(struct crowd *c);
#endif
