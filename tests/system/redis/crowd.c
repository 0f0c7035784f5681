#include "crowd.h"
#include "clock.h"
#include "server.h"
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static struct crowd *mapped(int fd) {
    void *page = mmap(NULL, sizeof(struct crowd), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) abort();
    return page;
}

struct crowd *crowd_new(void) {
    int fd = memfd_create("crowd", 0);
    if (fd < 0 || ftruncate(fd, sizeof(struct crowd))) abort();
    struct crowd *c = mapped(fd);
    c->fd = fd;
    return c;
}

struct work {
    struct crowd *crowd;
    struct member *member;
    const struct crowd_options *options;
    pawl_client *client;
};

static void turn(struct work *w) {
    const struct crowd_options *o = w->options;
    struct crowd *c = w->crowd;
    pawl_acquire_options acquire = PAWL_ACQUIRE_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    pawl_lock *lock;
    if (o->wait_ms) acquire.wait_ms = o->wait_ms;
    w->member->code = pawl_acquire(w->client, o->name, &acquire, &lock, &error);
    if (w->member->code) {
        if (w->member->code != PAWL_ETIMEOUT) fprintf(stderr, "# waiter: %d %s\n", w->member->code, error.text);
        return;
    }
    if (atomic_fetch_add(&c->holders, 1) > 0) atomic_fetch_add(&c->overlaps, 1);
    w->member->token = pawl_token(lock);
    w->member->place = atomic_fetch_add(&c->grants, 1) + 1;
    w->member->got_ns = clock_now_ns();
    if (o->hold_ms) poll(NULL, 0, (int)o->hold_ms);
    atomic_fetch_sub(&c->holders, 1);
    w->member->code = pawl_release(lock, 10000, &error);
    if (w->member->code) fprintf(stderr, "# release: %d %s\n", w->member->code, error.text);
    atomic_fetch_add(&w->member->done, 1);
}

static void *work(void *data) {
    struct work *w = data;
    for (int i = 0; i < (w->options->turns ? w->options->turns : 1); i++) turn(w);
    return NULL;
}

static int serve(struct crowd *c, int first, int n, const struct crowd_options *o) {
    static struct work works[CROWD_MAX];
    static pthread_t threads[CROWD_MAX];
    pawl_options options = PAWL_OPTIONS_INIT;
    pawl_client *client;
    pawl_error error = PAWL_ERROR_INIT;
    if (o->ttl_ms) options.ttl_ms = o->ttl_ms;
    if (pawl_open(o->url, &options, &client, &error)) {
        fprintf(stderr, "# %s\n", error.text);
        return 1;
    }
    for (int i = 0; i < n; i++) works[i] = (struct work){c, &c->member[first + i], o, client};
    if (n == 1) work(&works[0]);
    for (int i = 0; i < n && n > 1; i++)
        if (pthread_create(&threads[i], NULL, work, &works[i])) return 1;
    for (int i = 0; i < n && n > 1; i++) pthread_join(threads[i], NULL);
    pawl_close(client);
    return 0;
}

enum { ARGUMENT_FD = 2, FIRST, THREADS, URL, NAME, TTL, HOLD, WAIT, TURNS, ARGUMENTS };

void crowd_main(int argc, char **argv) {
    if (argc != ARGUMENTS || strcmp(argv[1], "--crowd") != 0) return;
    struct crowd_options o = {.url = argv[URL],
                              .name = argv[NAME],
                              .ttl_ms = atoll(argv[TTL]),
                              .hold_ms = atoll(argv[HOLD]),
                              .wait_ms = atoll(argv[WAIT]),
                              .turns = atoi(argv[TURNS])};
    exit(serve(mapped(atoi(argv[ARGUMENT_FD])), atoi(argv[FIRST]), atoi(argv[THREADS]), &o));
}

/* A program of its own, not a bare fork: the test has threads. */
static void become(const struct crowd *c, int first, int n, const struct crowd_options *o) {
    char text[ARGUMENTS][24], *argv[ARGUMENTS + 1] = {NULL};
    long long numbers[ARGUMENTS] = {[ARGUMENT_FD] = c->fd, [FIRST] = first,     [THREADS] = n,     [TTL] = o->ttl_ms,
                                    [HOLD] = o->hold_ms,   [WAIT] = o->wait_ms, [TURNS] = o->turns};
    for (int i = 0; i < ARGUMENTS; i++) {
        snprintf(text[i], sizeof text[i], "%lld", numbers[i]);
        argv[i] = text[i];
    }
    argv[0] = (char *)"crowd";
    argv[1] = (char *)"--crowd";
    argv[URL] = (char *)o->url;
    argv[NAME] = (char *)o->name;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execv("/proc/self/exe", argv);
    _exit(1);
}

int crowd_add(struct crowd *c, const struct crowd_options *o) {
    int first = c->n, n = o->threads ? o->threads : 1;
    if (first + n > CROWD_MAX) abort();
    c->n += n;
    pid_t pid = fork();
    if (pid < 0) abort();
    if (pid == 0) become(c, first, n, o);
    c->member[first].pid = pid;
    return first;
}

struct wanted {
    struct crowd *crowd;
    int n;
};
static bool enough(void *data) {
    struct wanted *w = data;
    return w->crowd->grants >= w->n;
}

bool crowd_granted(struct crowd *c, int n, int ms) {
    struct wanted w = {c, n};
    return server_until(enough, &w, ms);
}

void crowd_kill(struct crowd *c, int i, int signal) {
    if (!c->member[i].pid) return;
    kill(c->member[i].pid, signal);
    if (signal != SIGKILL) return;
    waitpid(c->member[i].pid, NULL, 0);
    c->member[i].pid = 0;
}

void crowd_end(struct crowd *c) {
    for (int i = 0; i < c->n; i++) crowd_kill(c, i, SIGKILL);
    close(c->fd);
    munmap(c, sizeof *c);
}
