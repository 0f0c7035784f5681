/* scenario_turns.c: several processes hold one lock in turn. handoff: each asks again at once. relay: each rests about
 * as long as all the others need, so that the lock is asked for as often as it can be served.
 *
 * A gap lies between the end of one hold (just before the release is called), or the moment at which somebody first
 * asked, if nobody waited, and the begin of the next one (just after the acquire returned), of another process. Every
 * turn is an event of a history, which is checked: a bench that finds an overlap says so. */
#include "bench.h"
#include "clock.h"
#include "error.h"
#include "history.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TURNS_MOST = 1 << 17 };

struct turn {
    int64_t asked, begin, end, token;
};
struct worker { /* in memory shared with the parent */
    pawl_error error;
    size_t n;
    struct turn turns[TURNS_MOST];
};
struct race {
    struct plan *plan;
    const char *url;
    const struct driver *driver;
    struct worker *workers;
    pid_t *pids;
    int ready[2], go[2]; /* pipes: a byte from each worker; start and stop to each */
    int64_t start, stop;
};

static void sleep_until(int64_t at_ns) {
    struct timespec t = {.tv_sec = at_ns / NS_PER_S, .tv_nsec = at_ns % NS_PER_S};
    while (clock_nanosleep(CLOCK_BOOTTIME, TIMER_ABSTIME, &t, NULL) == EINTR) continue;
}

static int take_turns(struct race *race, struct worker *w, void *client, uint64_t random) {
    const struct driver *d = race->driver;
    int64_t hold = race->plan->hold_ns, rest = race->plan->rest ? hold * race->plan->clients : 0;
    while (w->n < TURNS_MOST) {
        struct turn *t = &w->turns[w->n];
        t->asked = clock_now_ns();
        if (t->asked >= race->stop) return PAWL_OK;
        int r = d->acquire(client, &w->error);
        if (r) return r;
        t->begin = clock_now_ns();
        t->token = d->token(client);
        if (hold && t->begin < race->stop) sleep_until(t->begin + hold);
        t->end = clock_now_ns();
        r = d->release(client, &w->error);
        if (r) return r;
        w->n++;
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        if (rest) sleep_until(clock_now_ns() + rest / 2 + (int64_t)((random >> 33) % (uint64_t)rest));
    }
    return PAWL_OK;
}

static void work(struct race *race, int number, uint64_t random) {
    struct worker *w = &race->workers[number];
    void *client;
    int64_t times[2];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_TIMERSLACK, 1000UL); /* ns: a hold of 1 ms should last 1 ms */
    close(race->ready[0]);
    close(race->go[1]);
    if (race->driver->open(race->url, race->plan->key, true, &client, &w->error)) return;
    if (write(race->ready[1], "", 1) != 1 || read(race->go[0], times, sizeof times) != sizeof times) return;
    race->start = times[0];
    race->stop = times[1];
    sleep_until(race->start);
    take_turns(race, w, client, random);
    race->driver->close(client, false);
}

/* 0: all are ready. */
static int start(struct race *race) {
    struct pollfd p = {.fd = race->ready[0], .events = POLLIN};
    int64_t until = clock_now_ns() + 30 * NS_PER_S;
    char byte;
    for (int ready = 0; ready < race->plan->clients; ready++) /* the pipe's end: some worker ended before */
        if (poll(&p, 1, clock_poll_ms(clock_now_ns(), until)) <= 0 || read(race->ready[0], &byte, 1) != 1) return -1;
    int64_t times[2] = {clock_now_ns() + 20 * NS_PER_MS, 0};
    race->start = times[0];
    race->stop = times[1] = times[0] + (int64_t)(race->plan->seconds * 1e9);
    for (int i = 0; i < race->plan->clients; i++)
        if (write(race->go[1], times, sizeof times) != sizeof times) return -1;
    return 0;
}

/* Ends those that do not end by themselves. Returns how many did not. */
static int gather(struct race *race, int64_t until) {
    int stuck = 0;
    for (int i = 0; i < race->plan->clients; i++) {
        int status;
        pid_t ended = race->pids[i] < 0 ? -1 : 0;
        while (ended == 0 && (ended = waitpid(race->pids[i], &status, WNOHANG)) == 0) {
            if (clock_now_ns() >= until) {
                kill(race->pids[i], SIGKILL);
                ended = waitpid(race->pids[i], &status, 0);
            } else {
                poll(NULL, 0, 2);
            }
        }
        stuck += ended < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    return stuck;
}

static int run_race(struct race *race, pawl_error *error) {
    int n = race->plan->clients;
    if (pipe(race->ready) || pipe(race->go)) return error_errno(error, PAWL_EINTERNAL, NULL, "pipe");
    for (int i = 0; i < n; i++) {
        uint64_t random = plan_random(race->plan);
        race->pids[i] = fork();
        if (race->pids[i] == 0) {
            work(race, i, random);
            _exit(race->workers[i].error.code != 0);
        }
    }
    close(race->ready[1]);
    close(race->go[0]);
    int r = start(race);
    if (r) close(race->go[1]), race->go[1] = -1;
    int stuck = gather(race, r ? clock_now_ns() : race->stop + 20 * NS_PER_S);
    close(race->ready[0]);
    if (race->go[1] >= 0) close(race->go[1]);
    for (int i = 0; i < n; i++)
        if (race->workers[i].error.code) {
            error_copy(error, &race->workers[i].error);
            return error->code;
        }
    if (r || stuck) return error_set(error, PAWL_EINTERNAL, NULL, "%d of %d workers did not end", stuck, n);
    return PAWL_OK;
}

struct flat { /* a turn with its worker */
    struct turn t;
    int who;
};

static int by_begin(const void *x, const void *y) {
    const struct flat *a = x, *b = y;
    return (a->t.begin > b->t.begin) - (a->t.begin < b->t.begin);
}

static struct flat *flatten(const struct race *race, size_t *ret_n) {
    size_t n = 0;
    for (int i = 0; i < race->plan->clients; i++) n += race->workers[i].n;
    struct flat *all = calloc(n ? n : 1, sizeof *all);
    if (!all) abort();
    *ret_n = 0;
    for (int i = 0; i < race->plan->clients; i++)
        for (size_t k = 0; k < race->workers[i].n; k++)
            all[(*ret_n)++] = (struct flat){.t = race->workers[i].turns[k], .who = i};
    qsort(all, n, sizeof *all, by_begin);
    return all;
}

static void measure_gaps(const struct race *race, const struct flat *all, size_t n, struct side *ret) {
    struct samples gaps = {0}, waits = {0};
    int64_t *first = calloc(n + 1, sizeof *first); /* earliest request among this turn and all later ones */
    if (!first) abort();
    first[n] = INT64_MAX;
    for (size_t i = n; i-- > 0;) first[i] = all[i].t.asked < first[i + 1] ? all[i].t.asked : first[i + 1];
    for (size_t i = 0; i < n && all[i].t.begin < race->stop; i++) {
        ret->n++;
        samples_add(&waits, all[i].t.begin - all[i].t.asked);
        if (i == 0 || all[i].who == all[i - 1].who) continue;
        int64_t free_from = all[i - 1].t.end > first[i] ? all[i - 1].t.end : first[i];
        samples_add(&gaps, all[i].t.begin - free_from);
    }
    ret->ops_s = (double)ret->n / race->plan->seconds;
    ret->handoffs_s = (double)gaps.n / race->plan->seconds;
    ret->p50_us = samples_us(&gaps, .5);
    samples_histogram(&gaps, ret->histogram);
    ret->p99_us = samples_us(&gaps, .99);
    ret->wait_p99_us = samples_us(&waits, .99);
    samples_free(&gaps);
    samples_free(&waits);
    free(first);
}

/* Grants of each worker, and what the history checker says of all of them. */
static uint64_t judge(const struct race *race, const struct flat *all, size_t n, struct side *ret, char *example,
                      size_t size) {
    struct history *h = history_new();
    struct history_verdict v;
    char who[16];
    for (size_t i = 0; i < n; i++) {
        snprintf(who, sizeof who, "%d", all[i].who);
        history_add(h, &(struct history_event){.what = HISTORY_HOLD,
                                               .outcome = HISTORY_RELEASED,
                                               .who = who,
                                               .lock = race->plan->key,
                                               .token = (uint64_t)all[i].t.token,
                                               .start = all[i].t.begin,
                                               .end = all[i].t.end,
                                               .asked = all[i].t.asked});
    }
    history_check(h, NULL, &v);
    history_free(h);
    ret->grants_max = v.grants_max;
    ret->grants_min = v.workers == (uint64_t)race->plan->clients ? v.grants_min : 0;
    for (int f = 0; f < HISTORY_FAULTS; f++)
        if (v.faults[f])
            snprintf(example, size, "%s: %.500s", history_fault_name((enum history_fault)f), v.examples[f][0]);
    return v.all_faults;
}

static int run_side(struct plan *plan, const char *url, const struct driver *driver, struct side *ret, struct row *row,
                    pawl_error *error) {
    struct race race = {.plan = plan, .url = url, .driver = driver};
    size_t size = sizeof(struct worker) * (size_t)plan->clients, n;
    char version[32];
    uint64_t before, after;
    race.workers = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    race.pids = calloc((size_t)plan->clients, sizeof *race.pids);
    if (race.workers == MAP_FAILED || !race.pids) abort();
    for (int i = 0; i < plan->clients; i++) race.workers[i].error.size = sizeof(pawl_error);
    driver_about(url, version, sizeof version, &before);
    int r = run_race(&race, error);
    driver_about(url, version, sizeof version, &after);
    if (r == PAWL_OK) {
        struct flat *all = flatten(&race, &n);
        *ret = (struct side){0};
        measure_gaps(&race, all, n, ret);
        ret->requests = n ? (double)(after - before) / (double)n : 0;
        row->faults += judge(&race, all, n, ret, row->text, sizeof row->text);
        free(all);
    }
    void *client;
    if (driver != &driver_pawl && driver->open(url, plan->key, true, &client, NULL) == PAWL_OK)
        driver->close(client, true);
    munmap(race.workers, size);
    free(race.pids);
    return r;
}

void scenario_turns(struct plan *plan, const char *url, struct row *ret) {
    pawl_error error = PAWL_ERROR_INIT;
    ret->raw = plan->raw;
    for (; ret->tries < plan->tries; ret->tries++) {
        struct side *pawl = &ret->pawl[ret->tries], *floor = &ret->floor[ret->tries];
        int first = plan_random(plan) % 2;
        for (int i = 0; i < 2; i++) {
            bool raw = i ^ first;
            if (raw && !plan->raw) continue;
            if (run_side(plan, url, raw ? driver_raw(url) : &driver_pawl, raw ? floor : pawl, ret, &error)) {
                row_fail(ret, &error);
                return;
            }
        }
        if (!plan->raw) continue;
        ret->ratio[ret->tries] = plan->rest ? pawl->ops_s / floor->ops_s : floor->p50_us / pawl->p50_us;
    }
}
