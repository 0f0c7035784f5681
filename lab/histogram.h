/* histogram.h: how many samples lasted how long, on a logarithmic axis. */
#ifndef LAB_HISTOGRAM_H
#define LAB_HISTOGRAM_H
#include "measure.h"

/* Bar i counts those of 64 ns x 2^(i/4) and more, below that of the next one. */
enum { HISTOGRAM_BARS = 120 };
void samples_histogram(const struct samples *s, uint32_t ret[HISTOGRAM_BARS]);
double histogram_bar(double us); /* where on that axis */
#endif
