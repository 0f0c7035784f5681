#include "measure.h"
#include "clock.h"
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

void samples_add(struct samples *s, int64_t ns) {
    if (s->n == s->size) {
        s->size = s->size ? s->size * 2 : 1 << 16;
        s->ns = reallocarray(s->ns, s->size, sizeof *s->ns);
        if (!s->ns) abort();
    }
    s->ns[s->n++] = ns;
}

void samples_free(struct samples *s) {
    free(s->ns);
    *s = (struct samples){0};
}

static int compare_ns(const void *x, const void *y) {
    const int64_t *a = x, *b = y;
    return (*a > *b) - (*a < *b);
}

double samples_us(struct samples *s, double part) {
    if (!s->n) return 0;
    qsort(s->ns, s->n, sizeof *s->ns, compare_ns);
    size_t i = (size_t)(part * (double)s->n);
    return (double)s->ns[i < s->n ? i : s->n - 1] / 1e3;
}

static int compare_double(const void *x, const void *y) {
    const double *a = x, *b = y;
    return (*a > *b) - (*a < *b);
}

static int sorted(const double *values, int n, double ret[64]) {
    if (n > 64) n = 64;
    if (n > 0) memcpy(ret, values, (size_t)n * sizeof *ret);
    qsort(ret, (size_t)n, sizeof *ret, compare_double);
    return n;
}

double median(const double *values, int n) {
    double v[64];
    n = sorted(values, n, v);
    if (n < 1) return 0;
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

double spread_percent(const double *values, int n) {
    double v[64];
    n = sorted(values, n, v);
    double middle = median(values, n);
    return n && middle > 0 ? (v[n - 1] - v[0]) / middle * 100 : 0;
}

static int64_t cpu_of(int who) {
    struct rusage used;
    getrusage(who, &used);
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * NS_PER_S +
           (used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1000;
}

int64_t cpu_ns(void) { return cpu_of(RUSAGE_SELF); }

struct spin {
    pthread_t thread;
    int64_t until, worst, cpu;
};

static void *spin(void *of) {
    struct spin *s = of;
    for (int64_t t = clock_now_ns(), next; t < s->until; t = next) {
        next = clock_now_ns();
        if (next - t > s->worst) s->worst = next - t;
    }
    s->cpu = cpu_of(RUSAGE_THREAD);
    return NULL;
}

struct noise noise_probe(void) {
    enum { MOST = 64 };
    struct spin spins[MOST] = {0};
    struct noise noise = {0};
    int n = (int)sysconf(_SC_NPROCESSORS_ONLN), started = 0;
    if (n > MOST) n = MOST;
    int64_t begin = clock_now_ns(), worst = 0, cpu = 0;
    for (; started < n; started++) {
        spins[started].until = begin + 200 * NS_PER_MS;
        if (pthread_create(&spins[started].thread, NULL, spin, &spins[started])) break;
    }
    for (int i = 0; i < started; i++) {
        pthread_join(spins[i].thread, NULL);
        cpu += spins[i].cpu;
        if (spins[i].worst > worst) worst = spins[i].worst;
    }
    noise.ours_percent = started ? 100.0 * (double)cpu / (double)(clock_now_ns() - begin) / started : 0;
    noise.stall_ms = (double)worst / 1e6;
    getloadavg(&noise.load, 1);
    return noise;
}

long resident_bytes(void) {
    long size, pages;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f) return 0;
    if (fscanf(f, "%ld %ld", &size, &pages) != 2) pages = 0;
    fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

int count_sockets(void) {
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        char target[64];
        ssize_t length = readlinkat(dirfd(d), e->d_name, target, sizeof target - 1);
        n += length > 7 && strncmp(target, "socket:", 7) == 0;
    }
    if (d) closedir(d);
    return n;
}
