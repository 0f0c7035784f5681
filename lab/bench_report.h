/* bench_report.h: the rows of a bench as one page of HTML with histograms, that needs nothing else. */
#ifndef LAB_BENCH_REPORT_H
#define LAB_BENCH_REPORT_H
#include "bench_print.h"

struct bench_entry {
    enum scenario scenario;
    char service[32];
    struct plan plan;
    struct row row;
};
struct bench_page {
    const struct bench_entry *entries;
    int n;
    struct noise before, after;
    double spread;
    const char *version, *command;
};
/* LAB_OK, or LAB_FAILED and says why. */
int bench_report(const char *path, const struct bench_page *page);
#endif
