/* scenario_many.c: one process holds many locks at once, through the event form and one epoll loop. Time to get them
 * all, memory and sockets for them, and the longest time that one call kept the loop busy. The floor takes them one by
 * one. */
#include "bench.h"
#include "clock.h"
#include "error.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#define BATCH 64 /* started between two looks at the events */

struct crowd {
    pawl_client *client;
    pawl_lock **locks;
    const char *key;
    long n, started, granted;
    int64_t step_ns; /* longest call */
};

static void note_step(struct crowd *c, int64_t begin) {
    int64_t took = clock_now_ns() - begin;
    if (took > c->step_ns) c->step_ns = took;
}

static int start_some(struct crowd *c, pawl_error *error) {
    for (int i = 0; i < BATCH && c->started < c->n; i++, c->started++) {
        char name[220];
        snprintf(name, sizeof name, "%s:%ld", c->key, c->started);
        int64_t begin = clock_now_ns();
        int r = pawl_acquire_start(c->client, name, NULL, NULL, &c->locks[c->started], error);
        note_step(c, begin);
        if (r) return r;
    }
    return PAWL_OK;
}

static int read_events(struct crowd *c, pawl_error *error) {
    pawl_event event = PAWL_EVENT_INIT;
    for (;;) {
        int64_t begin = clock_now_ns();
        int got = pawl_next_event(c->client, &event);
        note_step(c, begin);
        if (!got) return PAWL_OK;
        if (event.type == PAWL_GRANTED) c->granted++;
        else if (event.type == PAWL_FAILED || event.type == PAWL_LOST)
            return error_set(error, event.code ? event.code : PAWL_ELOST, NULL, "%s", event.text);
    }
}

static int take_all(struct crowd *c, pawl_error *error) {
    int poll = epoll_create1(EPOLL_CLOEXEC), fd = pawl_event_fd(c->client);
    struct epoll_event event = {.events = EPOLLIN};
    int r = PAWL_OK;
    if (poll < 0 || fd < 0 || epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event))
        r = error_errno(error, PAWL_EINTERNAL, NULL, "epoll");
    int64_t until = clock_now_ns() + 120 * NS_PER_S;
    while (r == PAWL_OK && c->granted < c->n) {
        r = start_some(c, error);
        int n = r ? 0 : epoll_wait(poll, &event, 1, c->started < c->n ? 0 : 1000);
        if (n > 0) r = read_events(c, error);
        if (r == PAWL_OK && clock_now_ns() > until)
            r = error_set(error, PAWL_ETIMEOUT, NULL, "%ld of %ld locks granted after 120 s", c->granted, c->n);
    }
    if (poll >= 0) close(poll);
    return r;
}

static int try_pawl(struct plan *plan, const char *url, struct row *row, pawl_error *error) {
    struct crowd c = {.key = plan->key, .n = plan->locks, .locks = calloc((size_t)plan->locks, sizeof *c.locks)};
    pawl_options options = PAWL_OPTIONS_INIT;
    if (!c.locks) abort();
    int sockets = count_sockets();
    int r = pawl_open(url, &options, &c.client, error);
    if (r == PAWL_OK) r = pawl_connect(c.client, 5000, error);
    long before = resident_bytes();
    int64_t begin = clock_now_ns();
    if (r == PAWL_OK) r = take_all(&c, error);
    double took = (double)(clock_now_ns() - begin) / 1e9;
    if (r == PAWL_OK) {
        long bytes = (resident_bytes() - before) / plan->locks;
        row->pawl[row->tries] = (struct side){.n = (uint64_t)plan->locks, .ops_s = (double)plan->locks / took};
        if (row->tries == 0) row->bytes_per_lock = bytes; /* later tries use memory that the first one left */
        row->sockets = count_sockets() - sockets;
        if ((double)c.step_ns / 1e6 > row->step_ms) row->step_ms = (double)c.step_ns / 1e6;
    }
    for (long i = 0; i < c.started; i++) pawl_release(c.locks[i], 0, NULL);
    pawl_close(c.client);
    free(c.locks);
    return r;
}

static int try_floor(struct plan *plan, const char *url, struct row *row, pawl_error *error) {
    const struct driver *floor = driver_raw(url);
    void *client;
    int r = floor->open(url, plan->key, false, &client, error);
    if (r) return r;
    int64_t begin = clock_now_ns();
    r = floor->take_many(client, plan->locks, error);
    double took = (double)(clock_now_ns() - begin) / 1e9;
    floor->close(client, row->tries + 1 == plan->tries);
    row->floor[row->tries] = (struct side){.n = (uint64_t)plan->locks, .ops_s = (double)plan->locks / took};
    row->ratio[row->tries] = row->pawl[row->tries].ops_s / row->floor[row->tries].ops_s;
    return r;
}

void scenario_many(struct plan *plan, const char *url, struct row *ret) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) { /* one descriptor a lock where the kernel keeps it */
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    pawl_error error = PAWL_ERROR_INIT;
    int r = PAWL_OK;
    ret->raw = plan->raw;
    ret->locks = plan->locks;
    while (r == PAWL_OK && ret->tries < plan->tries) {
        r = try_pawl(plan, url, ret, &error);
        if (r == PAWL_OK && plan->raw) r = try_floor(plan, url, ret, &error);
        if (r == PAWL_OK) ret->tries++;
    }
    if (r) row_fail(ret, &error);
}
