/* peer_worker.c: pawl as a worker of the peer bench, which runs other lock tools, bare services and pawl in the same
 * rounds (docs/BENCHMARKS.md says how to enter it).
 *
 * The contract: settings come in the environment (FLP_MODE cycle, handoff or many; FLP_VARIANT file, redis, redlock,
 * pg, etcd or url; FLP_KEY, FLP_TTL_MS, FLP_HOLD_US, FLP_REST_US, FLP_ID0, FLP_EVENTS, FLP_N; where: FLP_DIR,
 * FLP_REDIS, FLP_PG, FLP_ETCD, FLP_URL). The worker connects, warms up, prints "ready", reads "go START STOP"
 * (CLOCK_MONOTONIC ns), works until STOP and prints one JSON object. */
#include "measure.h"
#include "pawl.h"
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *env(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}
static int64_t env_number(const char *name, const char *otherwise) { return strtoll(env(name, otherwise), NULL, 10); }

static void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("peer_worker: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(3);
}

static int64_t now_ns(void) { /* the clock of the contract */
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void until_ns(int64_t at) {
    struct timespec t = {.tv_sec = at / 1000000000, .tv_nsec = at % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) continue;
}

static double cpu_s(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void redis_url(const char *ports, char *url, size_t size) { /* the first one */
    snprintf(url, size, "redis://127.0.0.1:%s", ports);
    url[strcspn(url, ",")] = 0;
}

static void redlock_url(const char *ports, char *url, size_t size) {
    char *copy = strdup(ports), *rest = copy, *port;
    size_t n = (size_t)snprintf(url, size, "redlock://");
    for (const char *comma = ""; n < size && (port = strsep(&rest, ",")); comma = ",")
        n += (size_t)snprintf(url + n, size - n, "%s127.0.0.1:%s", comma, port);
    free(copy);
}

/* FLP_DIR may be writable to all, where pawl refuses to lock. */
static void file_url(const char *directory, char *url, size_t size) {
    snprintf(url, size, "file:%s/pawl", directory);
    if (mkdir(url + strlen("file:"), 0700) && errno != EEXIST) die("%s: %s", url, strerror(errno));
}

static void make_url(const char *variant, char *url, size_t size) {
    const char *ports = env("FLP_REDIS", "6379");
    if (strcmp(variant, "file") == 0) file_url(env("FLP_DIR", "/tmp"), url, size);
    else if (strcmp(variant, "redis") == 0) redis_url(ports, url, size);
    else if (strcmp(variant, "redlock") == 0) redlock_url(ports, url, size);
    else if (strcmp(variant, "pg") == 0) snprintf(url, size, "%s", env("FLP_PG", "postgresql://"));
    else if (strcmp(variant, "pg-flush-off") == 0) snprintf(url, size, "%s?flush=off", env("FLP_PG", "postgresql://"));
    else if (strcmp(variant, "etcd") == 0) snprintf(url, size, "etcd://%s", env("FLP_ETCD", "127.0.0.1:2379"));
    else if (strcmp(variant, "url") == 0) snprintf(url, size, "%s", env("FLP_URL", "file:"));
    else die("FLP_VARIANT is %s, none of file redis redlock pg pg-flush-off etcd url", variant);
}

static pawl_client *client;
static const char *key;
static pawl_error error = PAWL_ERROR_INIT;

static void cycle_once(const char *name) {
    pawl_lock *lock;
    if (pawl_acquire(client, name, NULL, &lock, &error) || pawl_release(lock, 5000, &error)) die("%s", error.text);
}

/* The client's thread runs, and the service knows its scripts: a lock that nobody else wants. */
static void warm_up(void) {
    char name[300];
    snprintf(name, sizeof name, "%.200s:warm:%d", key, (int)getpid());
    cycle_once(name);
}

static void cycle(int64_t stop) {
    struct samples samples = {0};
    double cpu = cpu_s();
    int64_t begin = now_ns(), t = begin, next;
    for (; t < stop; t = next) {
        cycle_once(key);
        next = now_ns();
        samples_add(&samples, next - t);
    }
    printf("{\"n\":%zu,\"elapsed_s\":%.4f,\"p50_us\":%.2f,\"p99_us\":%.2f,\"cpu_us_per_op\":%.3f}\n", samples.n,
           (double)(t - begin) / 1e9, samples_us(&samples, .5), samples_us(&samples, .99),
           (cpu_s() - cpu) * 1e6 / (double)samples.n);
    samples_free(&samples);
}

static void handoff(int64_t stop) {
    int64_t hold = env_number("FLP_HOLD_US", "1000") * 1000, rest = env_number("FLP_REST_US", "0") * 1000, asked, n = 0;
    const char *id = env("FLP_ID0", "0");
    uint64_t random = (uint64_t)getpid() * UINT64_C(0x9E3779B97F4A7C15) + 1;
    double cpu = cpu_s();
    FILE *events = fopen(env("FLP_EVENTS", "/dev/null"), "ae");
    if (!events) die("FLP_EVENTS: %s", strerror(errno));
    setvbuf(events, NULL, _IOLBF, 0);
    for (; (asked = now_ns()) < stop; n++) {
        pawl_lock *lock;
        if (pawl_acquire(client, key, NULL, &lock, &error)) die("%s", error.text);
        int64_t granted = now_ns();
        if (granted < stop) until_ns(granted + hold);
        int64_t released = now_ns();
        if (pawl_release(lock, 5000, &error)) die("%s", error.text);
        fprintf(events, "%s %" PRId64 " %" PRId64 " %" PRId64 "\n", id, asked, granted, released);
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        if (rest) until_ns(now_ns() + rest / 2 + (int64_t)((random >> 33) % (uint64_t)rest));
    }
    fclose(events);
    printf("{\"n\":%" PRId64 ",\"cpu_s\":%.4f}\n", n, cpu_s() - cpu);
}

/* Counts GRANTED into *granted and LOST into *lost; a failure ends the worker. */
static void read_events(long *granted, long *lost) {
    pawl_event event = PAWL_EVENT_INIT;
    while (pawl_next_event(client, &event)) {
        if (event.type == PAWL_FAILED) die("%s", event.text);
        *granted += event.type == PAWL_GRANTED;
        *lost += event.type == PAWL_LOST;
    }
}

static void many(void) {
    long n = (long)env_number("FLP_N", "10000"), granted = 0, lost = 0;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    struct pollfd p[2] = {{.fd = pawl_event_fd(client), .events = POLLIN}, {.fd = 0, .events = POLLIN}};
    double cpu = cpu_s();
    long before = resident_bytes();
    int64_t begin = now_ns();
    for (long i = 0; i < n; i++) {
        char name[300];
        pawl_lock *lock;
        snprintf(name, sizeof name, "%s:%ld", key, i);
        if (pawl_acquire_start(client, name, NULL, NULL, &lock, &error)) die("%s", error.text);
    }
    while (granted < n) {
        if (poll(p, 1, 60000) <= 0) die("%ld of %ld granted, then nothing for a minute", granted, n);
        read_events(&granted, &lost);
    }
    printf("{\"taken\":%ld,\"take_s\":%.4f,\"rss_kb\":%ld,\"rss0_kb\":%ld}\n", n, (double)(now_ns() - begin) / 1e9,
           resident_bytes() / 1024, before / 1024);
    fflush(stdout);
    while (!p[1].revents && poll(p, 2, -1) >= 0) read_events(&granted, &lost);
    printf("{\"n\":%ld,\"lost\":%ld,\"renewals\":null,\"cpu_s\":%.4f}\n", n, lost, cpu_s() - cpu);
}

int main(void) {
    char url[1024], line[256];
    const char *mode = env("FLP_MODE", "cycle");
    long long start, stop;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    prctl(PR_SET_TIMERSLACK, 1000UL); /* ns */
    if (env_number("FLP_CLIENTS", "1") != 1) die("one client a process: \"spawn\": \"each\"");
    key = env("FLP_KEY", "k");
    make_url(env("FLP_VARIANT", "file"), url, sizeof url);
    pawl_options options = PAWL_OPTIONS_INIT;
    options.ttl_ms = env_number("FLP_TTL_MS", "10000");
    if (pawl_open(url, &options, &client, &error)) die("%s", error.text);
    int prepared = pawl_init(client, 30000, &error);
    if (prepared && prepared != PAWL_EUNSUPPORTED) die("%s", error.text);
    if (pawl_connect(client, 5000, &error)) die("%s", error.text);
    for (int64_t end = now_ns() + 50000000; strcmp(mode, "cycle") == 0 && now_ns() < end;) cycle_once(key);
    if (strcmp(mode, "handoff") == 0) warm_up();
    puts("ready");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return 1;
    if (sscanf(line, "go %lld %lld", &start, &stop) != 2) die("expected go START STOP, not %s", line);
    until_ns(start);
    if (strcmp(mode, "cycle") == 0) cycle(stop);
    else if (strcmp(mode, "handoff") == 0) handoff(stop);
    else if (strcmp(mode, "many") == 0) many();
    else die("FLP_MODE is %s, none of cycle handoff many", mode);
    fflush(stdout);
    pawl_close(client);
    return 0;
}
