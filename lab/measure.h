/* measure.h: samples and their percentiles, medians, and how much of the machine was ours. */
#ifndef LAB_MEASURE_H
#define LAB_MEASURE_H
#include <stddef.h>
#include <stdint.h>

struct samples {
    int64_t *ns;
    size_t n, size;
};
void samples_add(struct samples *s, int64_t ns);
void samples_free(struct samples *s);
/* In microseconds; part 0.5: the median. 0 if there are none. Sorts. */
double samples_us(struct samples *s, double part);

/* Of n <= 64 values; 0 for none. */
double median(const double *values, int n);
/* (greatest - least) / median, in per cent. */
double spread_percent(const double *values, int n);

struct noise {
    double ours_percent; /* of all cores, got by one spinning thread a core */
    double stall_ms;     /* longest time that one of them was kept from running */
    double load;         /* load average of the last minute */
};
/* Takes 0.2 s. */
struct noise noise_probe(void);

int64_t cpu_ns(void);      /* processor time of this process so far, all threads */
long resident_bytes(void); /* of this process */
int count_sockets(void);
#endif
