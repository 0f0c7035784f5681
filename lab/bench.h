/* bench.h: what a measurement is asked for and what it yields. Each scenario measures pawl and the floor in turns
 * within one run, several times; what counts is the ratio within a try, and of those the median. */
#ifndef LAB_BENCH_H
#define LAB_BENCH_H
#include "driver.h"
#include "histogram.h"
#include "measure.h"
#include <stdint.h>

enum { TRIES_MOST = 15 };

struct plan {
    const char *key;
    bool raw;        /* measure the floor too */
    uint64_t random; /* advances; decides who goes first */
    int clients, tries;
    double seconds; /* of each side in each try */
    int64_t hold_ns;
    bool rest; /* relay: each client rests clients x hold after its turn */
    long locks;
    uint64_t rounds; /* of cycle: so many of each side in each try; 0: for so long as seconds say */
};

struct side { /* pawl or the floor, in one try */
    uint64_t n;
    double ops_s, p50_us, p99_us; /* of turns: from one hold to the next one, of another client */
    double cpu_us;                /* cycle: processor time of this process for one round */
    double handoffs_s, wait_p99_us, requests;
    uint64_t grants_max, grants_min;
    uint32_t histogram[HISTOGRAM_BARS]; /* of what p50_us is of */
};

struct row {
    int tries;
    bool raw;
    struct side pawl[TRIES_MOST], floor[TRIES_MOST];
    double ratio[TRIES_MOST]; /* 1: as fast as the floor; more is better */
    uint64_t faults;          /* found by the history checker */
    long locks, bytes_per_lock;
    int sockets;
    double step_ms; /* longest time that the event loop was kept busy by one call */
    int code;       /* not 0: it failed, and why */
    char text[600];
};

/* Each in a process of its own, which is fresh and has no threads. ret->code tells whether it worked. */
typedef void scenario_fn(struct plan *plan, const char *url, struct row *ret);
scenario_fn scenario_cycle, scenario_turns, scenario_many;

int row_fail(struct row *row, const pawl_error *error); /* returns error->code */
uint64_t plan_random(struct plan *plan);
double row_ratio(const struct row *row); /* median; 0: none */
#endif
