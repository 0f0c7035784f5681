/* metrics.h: counters and histograms of locks, by class, as Prometheus reads them. Leaf: told what happened and how
 * long it took; no clock, no lock. The library keeps one set a process (observer.c); `pawl run --metrics-dir` one a
 * file.
 *
 * A class is the name of a lock up to its first ':' or '/', so that order:1 and order:2 are counted together; the
 * hundred first classes have names of their own, the rest is "other". */
#ifndef PAWL_METRICS_H
#define PAWL_METRICS_H
#include "pawl.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define METRICS_CLASSES 100
#define METRICS_CLASS_NAME 64
#define METRICS_OTHER "other"

enum {
    METRICS_RESULTS = 11,
    METRICS_LOST_WATCHER = PAWL_LOST_MAX_HOLD + 1, /* one of the watchers of `pawl run` died or hung */
    METRICS_REASONS,
    METRICS_NODES = 16,
    METRICS_BUCKETS = 12
};

struct metrics_histogram {
    _Atomic uint64_t count, sum_us, bucket[METRICS_BUCKETS]; /* bucket: not cumulative; what is above all is in count */
};

struct metrics_class {
    char name[METRICS_CLASS_NAME];
    uint32_t hash;
    struct metrics_histogram acquisition, held;
    _Atomic uint64_t acquire[METRICS_RESULTS], lost[METRICS_REASONS], stale;
    _Atomic int64_t waiters, locks_held, renewal_lag_us;
};

struct metrics_node {
    char name[128];
    int64_t skew_us;
};

struct metrics {
    pthread_mutex_t mutex; /* for new classes and nodes; counting takes no lock */
    _Atomic int n_classes;
    struct metrics_class classes[METRICS_CLASSES + 1];
    int n_nodes;
    struct metrics_node nodes[METRICS_NODES];
};
extern struct metrics process_metrics; /* observer.c */
#define METRICS_INIT                                                                                                   \
    { .mutex = PTHREAD_MUTEX_INITIALIZER }

/* "order" of "order:42", cut at a character after 63 bytes. */
void metrics_class_name(const char *lock, char ret[METRICS_CLASS_NAME]);
/* Never fails: what has no room is "other". */
struct metrics_class *metrics_class(struct metrics *metrics, const char *lock);

void metrics_time(struct metrics_histogram *histogram, int64_t us);
/* result: PAWL_OK: granted, or the PAWL_E... with which it was not. */
void metrics_acquired(struct metrics_class *class, int result);
/* reason: PAWL_LOST_..., or METRICS_LOST_WATCHER. */
void metrics_lost(struct metrics_class *class, int reason);
/* A node's clock minus ours. */
void metrics_skew(struct metrics *metrics, const char *node, int64_t skew_us);

/* gauges: with what only a living process knows (waiters, locks held, lag, skew). */
void metrics_write(struct metrics *metrics, bool gauges, FILE *file);
/* METRIC{KEY="VALUE" with what must be escaped; the rest is the caller's. */
void metrics_label(FILE *file, const char *metric, const char *suffix, const char *key, const char *value);
/* One line that metrics_write made, added to what is there; false: it is not such a line. */
bool metrics_read(struct metrics *metrics, const char *line);
#endif
