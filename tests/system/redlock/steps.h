/* steps.h: the shipped scripts on real instances, one message at a time, so that a test is the network: it chooses what
 * arrives where, when, and how often. Numbers are shown relative to where the instances began. */
#ifndef TESTS_STEPS_H
#define TESTS_STEPS_H
#include "server.h"
#include <stdbool.h>
#include <stdint.h>

enum { I1, I2, I3, STEPS_N };
enum { ABSTAINS = -1, BUSY = 0 };

extern struct server steps[STEPS_N];
extern char steps_epoch[34]; /* in which LOCK and SEAL are sent */

void steps_start(void);
void steps_stop(void);
void steps_begin(void); /* all empty, then all vote in epoch 1 from the same floor */

/* LOCK by that owner (one letter): the number, BUSY, or ABSTAINS. */
int64_t lock_at(int i, char owner, int64_t hint);
bool seal_at(int i, char owner, int64_t m);
bool renew_at(int i, char owner, int64_t m); /* SEAL in whatever epoch */
void release_at(int i, char owner);
void expire_at(int i); /* the lock vanishes, as at the end of its ttl */
char owner_at(int i);  /* 0: nobody */
/* What the last script said: 'G', 'S', 'B'usy, 'U', 'R', 'E', 'W', '?' an error. */
extern char steps_said;

void wipe_at(int i);      /* loses all */
void restart_at(int i);   /* with nothing, or with its data if it was saved */
extern int64_t steps_ttl; /* of LOCK and SEAL, in milliseconds */
/* seed.lua; mark and floor as it wants them, and what the last one told as longest ttl. Whether it did it. steps_floor,
 * steps_longest: what the instance keeps. */
bool seed_at(int i, const char *what, const char *epoch, const char *mark, int64_t floor);
extern char steps_mark[192];
extern int64_t steps_floor, steps_longest;
#endif
