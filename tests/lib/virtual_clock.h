/* virtual_clock.h: time that a test turns by hand. One true time for the whole test; each clock reads it with a rate
 * and an offset of its own, as the clocks of several machines would. */
#ifndef PAWL_TEST_VIRTUAL_CLOCK_H
#define PAWL_TEST_VIRTUAL_CLOCK_H
#include <stdint.h>

struct virtual_clock {
    int64_t offset_ns;
    int64_t fast_ppm; /* how much faster than the true time, in millionths */
};

int64_t virtual_true_ns(void);
void virtual_set_ns(int64_t true_ns);
void virtual_advance_ns(int64_t ns);
int64_t virtual_read_ns(const struct virtual_clock *);
/* The true time at which that clock will read at_ns, or just after; INT64_MAX for INT64_MAX. */
int64_t virtual_when_ns(const struct virtual_clock *, int64_t at_ns);
#endif
