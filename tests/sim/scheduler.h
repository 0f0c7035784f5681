/* scheduler.h: threads of several hosts as coroutines in virtual time, with every choice drawn from one seed.
 *
 * The core under test runs unchanged: the linker hands its poll, eventfds and random numbers to this scheduler (--wrap,
 * see meson.build). Coroutines change places only where a thread would block: in a poll, or while a question travels.
 * So no mutex is ever found taken, and none has to be simulated. */
#ifndef PAWL_SIM_SCHED_H
#define PAWL_SIM_SCHED_H
#include "virtual_clock.h"
#include <stdbool.h>
#include <stdint.h>

/* A machine with a clock of its own; while it is paused none of its threads runs. */
struct host {
    struct virtual_clock clock;
    int64_t paused_until_ns; /* true time */
};

typedef void actor_fn(void *data);
typedef bool ready_fn(void *data);

void sched_start(uint64_t seed); /* forgets all actors */
void sched_spawn(struct host *, actor_fn *, void *data);
/* Runs until every actor has ended (true), or until the true time end_ns, or until nobody can ever go on, or time
 * stands still (false). `before` is called whenever time has gone on, `after` whenever somebody has run; either stops
 * the run by returning false. */
bool sched_run(int64_t end_ns, ready_fn *before, ready_fn *after, void *data);

/* For actors: until the true time at_ns, or until ready says true (NULL: never). Outside of one: time just goes on. */
void sched_wait(int64_t at_ns, ready_fn *ready, void *data);
bool sched_fd_readable(int fd);

/* Numbers that the seed decides. */
uint64_t sched_random(void);
int64_t sched_between(int64_t low, int64_t high);
bool sched_chance(unsigned per_mille);
#endif
