/* run_worker.h: the records of run_worker. */
#ifndef TESTS_RUN_WORKER_H
#define TESTS_RUN_WORKER_H
#include <stdint.h>

enum { ACT_LEADER, ACT_SESSION, ACT_ORPHAN, ACT_HOPPER, ACT_NEXT, ACTS };
struct act {
    int64_t token;
    int32_t pid, kind;
};
#endif
