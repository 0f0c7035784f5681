#include "metrics.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const int64_t limits_us[METRICS_BUCKETS] = {1000,     10000,    100000,    500000,     1000000,    5000000,
                                                   10000000, 60000000, 300000000, 1800000000, 7200000000, 86400000000};
static const char *const results[METRICS_RESULTS] = {"granted", "busy",        "timeout", "cancelled",
                                                     "lost",    "unreachable", "denied",  "unsafe",
                                                     "invalid", "unsupported", "internal"};
static const char *const reasons[METRICS_REASONS] = {"unproven", "gone", "session", "max_hold", "watcher"};

/* --- classes --- */

void metrics_class_name(const char *lock, char ret[METRICS_CLASS_NAME]) {
    size_t n = strcspn(lock, ":/");
    if (n == 0) lock = METRICS_OTHER, n = strlen(lock);
    if (n >= METRICS_CLASS_NAME) n = METRICS_CLASS_NAME - 1;
    while (n > 0 && ((unsigned char)lock[n] & 0xC0) == 0x80) n--;
    memcpy(ret, lock, n);
    ret[n] = 0;
}

static uint32_t hash_of(const char *text) {
    uint32_t hash = 2166136261u;
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 16777619u;
    return hash;
}

static struct metrics_class *find(struct metrics *m, const char *name, uint32_t hash) {
    int n = atomic_load_explicit(&m->n_classes, memory_order_acquire);
    for (int i = 0; i < n; i++)
        if (m->classes[i].hash == hash && strcmp(m->classes[i].name, name) == 0) return &m->classes[i];
    return NULL;
}

/* The last place is for "other", which may come under its own name before. */
static struct metrics_class *add(struct metrics *m, const char *name) {
    int n = atomic_load(&m->n_classes);
    if (n >= METRICS_CLASSES) name = METRICS_OTHER;
    struct metrics_class *class = find(m, name, hash_of(name));
    if (class) return class;
    class = &m->classes[n];
    snprintf(class->name, sizeof class->name, "%s", name);
    class->hash = hash_of(name);
    atomic_store_explicit(&m->n_classes, n + 1, memory_order_release);
    return class;
}

static struct metrics_class *class_by_name(struct metrics *m, const char *name) {
    struct metrics_class *class = find(m, name, hash_of(name));
    if (!class && atomic_load(&m->n_classes) > METRICS_CLASSES) /* no room since long ago: no mutex */
        class = find(m, METRICS_OTHER, hash_of(METRICS_OTHER));
    if (class) return class;
    pthread_mutex_lock(&m->mutex);
    class = find(m, name, hash_of(name));
    if (!class) class = add(m, name);
    pthread_mutex_unlock(&m->mutex);
    return class;
}

struct metrics_class *metrics_class(struct metrics *m, const char *lock) {
    char name[METRICS_CLASS_NAME];
    metrics_class_name(lock, name);
    return class_by_name(m, name);
}

/* --- counting --- */

static void more(_Atomic uint64_t *counter, uint64_t n) { atomic_fetch_add_explicit(counter, n, memory_order_relaxed); }

void metrics_time(struct metrics_histogram *h, int64_t us) {
    int i = 0;
    if (us < 0) us = 0;
    while (i < METRICS_BUCKETS && us > limits_us[i]) i++;
    if (i < METRICS_BUCKETS) more(&h->bucket[i], 1);
    more(&h->sum_us, (uint64_t)us);
    more(&h->count, 1);
}

void metrics_acquired(struct metrics_class *class, int result) {
    more(&class->acquire[result >= 0 && result < METRICS_RESULTS ? result : PAWL_EINTERNAL], 1);
}

void metrics_lost(struct metrics_class *class, int reason) {
    more(&class->lost[reason >= 0 && reason < METRICS_REASONS ? reason : PAWL_LOST_UNPROVEN], 1);
}

void metrics_skew(struct metrics *m, const char *node, int64_t skew_us) {
    pthread_mutex_lock(&m->mutex);
    int i = 0;
    while (i < m->n_nodes && strcmp(m->nodes[i].name, node) != 0) i++;
    if (i < METRICS_NODES) {
        snprintf(m->nodes[i].name, sizeof m->nodes[i].name, "%s", node);
        m->nodes[i].skew_us = skew_us;
        if (i == m->n_nodes) m->n_nodes++;
    }
    pthread_mutex_unlock(&m->mutex);
}

/* --- the text --- */

void metrics_label(FILE *file, const char *metric, const char *suffix, const char *key, const char *value) {
    fprintf(file, "%s%s{%s=\"", metric, suffix, key);
    for (; *value; value++) {
        if (*value == '\\' || *value == '"') fputc('\\', file);
        if (*value == '\n') fputs("\\n", file);
        else fputc(*value, file);
    }
    fputc('"', file);
}

static void head(FILE *file, const char *metric, const char *type, const char *help) {
    fprintf(file, "# HELP %s %s\n# TYPE %s %s\n", metric, help, metric, type);
}

/* By hand: printf would write the comma of the application's locale. places: of the fraction, 6 at the most. */
static void write_seconds(FILE *file, int64_t us, int places) {
    uint64_t size = us < 0 ? -(uint64_t)us : (uint64_t)us, part = size % 1000000;
    for (int i = places; i < 6; i++) part /= 10;
    fprintf(file, "%s%" PRIu64, us < 0 ? "-" : "", size / 1000000);
    if (places) fprintf(file, ".%0*" PRIu64, places, part);
}

static void write_value(FILE *file, int64_t us) {
    fputs("} ", file);
    write_seconds(file, us, 6);
    fputc('\n', file);
}

/* As few places as tell it all: "0.5", "60". */
static int places_of(int64_t us) {
    int places = 6;
    while (places > 0 && us % 10 == 0) us /= 10, places--;
    return places;
}

static void write_histogram(FILE *file, const char *metric, const char *class, const struct metrics_histogram *h) {
    uint64_t below = 0, count = h->count;
    if (!count) return;
    for (int i = 0; i < METRICS_BUCKETS; i++) {
        below += h->bucket[i];
        metrics_label(file, metric, "_bucket", "class", class);
        fputs(",le=\"", file);
        write_seconds(file, limits_us[i], places_of(limits_us[i]));
        fprintf(file, "\"} %" PRIu64 "\n", below < count ? below : count);
    }
    metrics_label(file, metric, "_bucket", "class", class);
    fprintf(file, ",le=\"+Inf\"} %" PRIu64 "\n", count);
    metrics_label(file, metric, "_sum", "class", class);
    write_value(file, (int64_t)h->sum_us);
    metrics_label(file, metric, "_count", "class", class);
    fprintf(file, "} %" PRIu64 "\n", count);
}

#define EACH_CLASS(m, c)                                                                                               \
    for (struct metrics_class *c = (m)->classes, *c##_end = c + atomic_load(&(m)->n_classes); c < c##_end; c++)

static void write_counters(struct metrics *m, FILE *file) {
    head(file, "pawl_lock_acquisition_duration_seconds", "histogram", "From asking for a lock to its grant.");
    EACH_CLASS(m, c) write_histogram(file, "pawl_lock_acquisition_duration_seconds", c->name, &c->acquisition);
    head(file, "pawl_lock_held_duration_seconds", "histogram", "From the grant of a lock to its release or loss.");
    EACH_CLASS(m, c) write_histogram(file, "pawl_lock_held_duration_seconds", c->name, &c->held);
    head(file, "pawl_acquire_total", "counter", "Attempts to take a lock, by how they ended.");
    EACH_CLASS(m, c) {
        for (int i = 0; i < METRICS_RESULTS; i++) { /* all from the start: increase() wants a zero first */
            metrics_label(file, "pawl_acquire_total", "", "class", c->name);
            fprintf(file, ",result=\"%s\"} %" PRIu64 "\n", results[i], (uint64_t)c->acquire[i]);
        }
    }
    head(file, "pawl_lost_total", "counter", "Locks that were lost while held.");
    EACH_CLASS(m, c) {
        for (int i = 0; i < METRICS_REASONS; i++) {
            metrics_label(file, "pawl_lost_total", "", "class", c->name);
            fprintf(file, ",reason=\"%s\"} %" PRIu64 "\n", reasons[i], (uint64_t)c->lost[i]);
        }
    }
    head(file, "pawl_stale_rejections_total", "counter",
         "Writes that a guard refused because a later holder was here.");
    EACH_CLASS(m, c) {
        metrics_label(file, "pawl_stale_rejections_total", "", "class", c->name);
        fprintf(file, "} %" PRIu64 "\n", (uint64_t)c->stale);
    }
}

static void write_gauges(struct metrics *m, FILE *file) {
    head(file, "pawl_lock_waiters", "gauge", "Attempts of this process that wait now.");
    EACH_CLASS(m, c) {
        metrics_label(file, "pawl_lock_waiters", "", "class", c->name);
        fprintf(file, "} %" PRId64 "\n", (int64_t)c->waiters);
    }
    head(file, "pawl_locks_held", "gauge", "Locks that this process holds now.");
    EACH_CLASS(m, c) {
        metrics_label(file, "pawl_locks_held", "", "class", c->name);
        fprintf(file, "} %" PRId64 "\n", (int64_t)c->locks_held);
    }
    head(file, "pawl_renewal_lag_seconds", "gauge", "How late the last renewal was, or is while there is doubt.");
    EACH_CLASS(m, c) {
        metrics_label(file, "pawl_renewal_lag_seconds", "", "class", c->name);
        write_value(file, c->renewal_lag_us);
    }
    pthread_mutex_lock(&m->mutex);
    if (m->n_nodes)
        head(file, "pawl_clock_skew_seconds", "gauge",
             "A node's clock minus ours, when its tokens were last looked at.");
    for (int i = 0; i < m->n_nodes; i++) {
        metrics_label(file, "pawl_clock_skew_seconds", "", "node", m->nodes[i].name);
        write_value(file, m->nodes[i].skew_us);
    }
    pthread_mutex_unlock(&m->mutex);
}

void metrics_write(struct metrics *m, bool gauges, FILE *file) {
    write_counters(m, file);
    if (gauges) write_gauges(m, file);
}

/* --- and back --- */

/* The value of a label, unescaped; *at moves behind it. */
static bool read_label(const char **at, const char *key, char *ret, size_t size) {
    size_t n = strlen(key), used = 0;
    const char *p = *at + (**at == '{' || **at == ',');
    if (strncmp(p, key, n) != 0 || p[n] != '=' || p[n + 1] != '"') return false;
    for (p += n + 2; *p != '"'; p++) {
        bool escaped = *p == '\\';
        p += escaped;
        if (!*p || used + 1 >= size) return false;
        ret[used++] = escaped && *p == 'n' ? '\n' : *p;
    }
    ret[used] = 0;
    *at = p + 1;
    return true;
}

static bool read_number(const char *at, double *ret) {
    char *end;
    if (strncmp(at, "} ", 2) != 0) return false;
    *ret = strtod(at + 2, &end);
    return (*end == 0 || *end == '\n') && *ret >= 0 && *ret < 1e15;
}

static bool read_histogram(struct metrics_histogram *h, const char *part, const char *at) {
    char le[32];
    double n, limit;
    if (strcmp(part, "bucket") == 0) {
        if (!read_label(&at, "le", le, sizeof le) || !read_number(at, &n)) return false;
        limit = strtod(le, NULL) * 1e6;
        for (int i = 0; i < METRICS_BUCKETS; i++) {
            if (limit != (double)limits_us[i]) continue;
            h->bucket[i] += (uint64_t)n;
            if (i + 1 < METRICS_BUCKETS) h->bucket[i + 1] -= (uint64_t)n; /* the file's are cumulative */
        }
        return true;
    }
    if (!read_number(at, &n)) return false;
    if (strcmp(part, "sum") == 0) more(&h->sum_us, (uint64_t)(n * 1e6 + 0.5));
    else more(&h->count, (uint64_t)n);
    return true;
}

static bool read_named(_Atomic uint64_t *counters, int n, const char *(*name)(int), const char *key, const char *at) {
    char value[32];
    double number;
    if (!read_label(&at, key, value, sizeof value) || !read_number(at, &number)) return false;
    for (int i = 0; i < n; i++)
        if (strcmp(name(i), value) == 0) more(&counters[i], (uint64_t)number);
    return true;
}

static const char *result_name(int i) { return results[i]; }
static const char *reason_name(int i) { return reasons[i]; }

bool metrics_read(struct metrics *m, const char *line) {
    static const struct {
        const char *name, *part;
    } kinds[] = {{"pawl_lock_acquisition_duration_seconds", ""}, {"pawl_lock_held_duration_seconds", ""}};
    char name[METRICS_CLASS_NAME];
    double n;
    const char *at = strchr(line, '{');
    if (!at) return false;
    size_t length = (size_t)(at - line);
    const char *labels = at;
    if (!read_label(&at, "class", name, sizeof name)) return false;
    struct metrics_class *c = class_by_name(m, name);
    for (int i = 0; i < 2; i++) {
        size_t stem = strlen(kinds[i].name);
        char part[8] = "";
        if (length <= stem + 1 || strncmp(line, kinds[i].name, stem) != 0 || length - stem - 1 >= sizeof part) continue;
        memcpy(part, line + stem + 1, (size_t)(labels - line) - stem - 1);
        return read_histogram(i ? &c->held : &c->acquisition, part, at);
    }
    if (length == 18 && strncmp(line, "pawl_acquire_total", length) == 0)
        return read_named(c->acquire, METRICS_RESULTS, result_name, "result", at);
    if (length == 15 && strncmp(line, "pawl_lost_total", length) == 0)
        return read_named(c->lost, METRICS_REASONS, reason_name, "reason", at);
    if (length != 27 || strncmp(line, "pawl_stale_rejections_total", length) != 0 || !read_number(at, &n)) return false;
    more(&c->stale, (uint64_t)n);
    return true;
}
