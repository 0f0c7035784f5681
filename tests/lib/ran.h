/* ran.h: a clock for upper bounds. It counts only while the machine runs our threads: a thread of its own wakes every
 * few milliseconds, and what it was late (the machine stood still, or was busy with others) is left out. So "within 400
 * ms" can be said of a product on a machine that stalls for a second at any moment. Lower bounds and deadlines are real
 * time: clock_now_ns. */
#ifndef PAWL_TEST_RAN_H
#define PAWL_TEST_RAN_H
#include <stdint.h>

int64_t ran_ns(void);
int64_t ran_since(int64_t start_ns); /* of ran_ns; in milliseconds */
#endif
