#include "virtual_clock.h"

static int64_t now_ns = INT64_C(1000000000000);

int64_t virtual_true_ns(void) { return now_ns; }
void virtual_set_ns(int64_t true_ns) { now_ns = true_ns; }
void virtual_advance_ns(int64_t ns) { now_ns += ns; }

int64_t virtual_read_ns(const struct virtual_clock *clock) {
    return clock->offset_ns + now_ns + now_ns / 1000000 * clock->fast_ppm;
}

int64_t virtual_when_ns(const struct virtual_clock *clock, int64_t at_ns) {
    if (at_ns == INT64_MAX) return INT64_MAX;
    int64_t reading = virtual_read_ns(clock);
    if (at_ns <= reading) return now_ns;
    int64_t ahead = at_ns - reading;
    return now_ns + ahead - ahead / 1000000 * clock->fast_ppm + 1000000;
}
