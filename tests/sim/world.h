/* world.h: one seed: some clients of one service in virtual time, with clocks that run apart, a network that loses
 * things, and pauses; and what must hold all the while. */
#ifndef PAWL_SIM_WORLD_H
#define PAWL_SIM_WORLD_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum law {
    LAW_NONE,
    LAW_ONE_HOLDER,    /* two are told that they hold what excludes each other */
    LAW_HELD_IS_HELD,  /* told that it is held, and the service says no */
    LAW_LOST_FOR_GOOD, /* lost, and then held again */
    LAW_TRUE_LOSS,     /* lost in time, and the service says it is still ours */
    LAW_LOSS_TOLD,     /* lost, and no event, or two */
    LAW_TOKEN_RISES,
    LAW_LOCAL_ORDER,  /* served before one of the same client that came earlier */
    LAW_WOKEN,        /* free, and somebody waits */
    LAW_ENDS,         /* a call does not come back */
    LAW_NOTHING_LEFT, /* everything is over, and the service keeps something */
    LAW_CONTRACT,     /* the core asked what backend.h forbids */
    LAWS
};
extern const char *const law_names[LAWS];

struct outcome {
    enum law broken;
    char text[256];
    bool loss, repeat, undo, hand_over, quiet; /* quiet: nothing went wrong in this seed */
    int grants, steps;
};

/* Print what happens. */
extern bool world_traced;

void world_run(uint64_t seed, struct outcome *ret);
#endif
