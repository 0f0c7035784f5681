/* scenario_cycle.c: one client takes and frees one free lock, again and again. pawl and the floor change places every
 * 25 ms, or 50 rounds, so whatever else the machine does hits both alike. */
#include "bench.h"
#include "clock.h"
#include "error.h"

#define SLICE_NS (25 * NS_PER_MS)
#define SLICE_ROUNDS 50

struct lane {
    const struct driver *driver;
    void *client;
    int64_t spent, cpu;
    struct samples samples;
};

/* Ends after so long, or, rounds not 0, after so many. */
static int run_slice(struct lane *lane, int64_t length, uint64_t rounds, pawl_error *error) {
    int64_t cpu = cpu_ns(), begin = clock_now_ns(), t = begin, next;
    for (uint64_t i = 0; rounds ? i < rounds : t < begin + length; t = next, i++) {
        int r = lane->driver->acquire(lane->client, error);
        if (r == PAWL_OK) r = lane->driver->release(lane->client, error);
        if (r) return r;
        next = clock_now_ns();
        samples_add(&lane->samples, next - t);
    }
    lane->spent += t - begin;
    lane->cpu += cpu_ns() - cpu;
    return PAWL_OK;
}

static void sum_up(struct lane *lane, struct side *ret) {
    *ret = (struct side){.n = lane->samples.n,
                         .ops_s = (double)lane->samples.n * 1e9 / (double)lane->spent,
                         .p50_us = samples_us(&lane->samples, .5),
                         .p99_us = samples_us(&lane->samples, .99),
                         .cpu_us = (double)lane->cpu / 1e3 / (double)lane->samples.n};
    samples_histogram(&lane->samples, ret->histogram);
    lane->samples.n = 0;
    lane->spent = lane->cpu = 0;
}

static bool is_full(const struct plan *plan, const struct lane *lane) {
    return plan->rounds ? lane->samples.n >= plan->rounds : lane->spent >= (int64_t)(plan->seconds * 1e9);
}

static int run_try(struct plan *plan, struct lane lanes[2], struct row *row, pawl_error *error) {
    int64_t length = (int64_t)(plan->seconds * 1e9);
    while (!is_full(plan, &lanes[0]) || (lanes[1].client && !is_full(plan, &lanes[1]))) {
        int first = plan_random(plan) % 2;
        for (int i = 0; i < 2; i++) {
            struct lane *lane = &lanes[i ^ first];
            if (!lane->client || is_full(plan, lane)) continue;
            int r = run_slice(lane, SLICE_NS < length ? SLICE_NS : length, plan->rounds ? SLICE_ROUNDS : 0, error);
            if (r) return r;
        }
    }
    sum_up(&lanes[0], &row->pawl[row->tries]);
    if (plan->raw) {
        sum_up(&lanes[1], &row->floor[row->tries]);
        const struct side *pawl = &row->pawl[row->tries], *floor = &row->floor[row->tries];
        /* a thousand rounds last some milliseconds: one stall would decide about their sum */
        row->ratio[row->tries] = plan->rounds ? floor->p50_us / pawl->p50_us : pawl->ops_s / floor->ops_s;
    }
    row->tries++;
    return PAWL_OK;
}

void scenario_cycle(struct plan *plan, const char *url, struct row *ret) {
    struct lane lanes[2] = {{.driver = &driver_pawl}, {.driver = driver_raw(url)}};
    pawl_error error = PAWL_ERROR_INIT;
    int r = PAWL_OK;
    ret->raw = plan->raw;
    for (int i = 0; r == PAWL_OK && i < (plan->raw ? 2 : 1); i++) {
        r = lanes[i].driver->open(url, plan->key, false, &lanes[i].client, &error);
        if (r == PAWL_OK) r = run_slice(&lanes[i], SLICE_NS, 0, &error); /* warm: scripts, pages, branch history */
        lanes[i].samples.n = 0;
        lanes[i].spent = lanes[i].cpu = 0;
    }
    while (r == PAWL_OK && ret->tries < plan->tries) r = run_try(plan, lanes, ret, &error);
    if (r) row_fail(ret, &error);
    for (int i = 0; i < 2; i++) {
        if (lanes[i].client) lanes[i].driver->close(lanes[i].client, true);
        samples_free(&lanes[i].samples);
    }
}
