#include "histogram.h"
#include <math.h>
#include <string.h>

double histogram_bar(double us) { return log2(us / .064) * 4; }

void samples_histogram(const struct samples *s, uint32_t ret[HISTOGRAM_BARS]) {
    memset(ret, 0, HISTOGRAM_BARS * sizeof *ret);
    for (size_t i = 0; i < s->n; i++) {
        int bar = s->ns[i] > 64 ? (int)histogram_bar((double)s->ns[i] / 1e3) : 0;
        ret[bar < HISTOGRAM_BARS ? bar : HISTOGRAM_BARS - 1]++;
    }
}
