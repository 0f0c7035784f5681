/* watch.c: while the holder's main thread waits for the lock, a thread of its own asks once a second who has it, for
 * the waiting line; once a minute where that goes into a log (-v). Nothing is asked in the first two seconds. A log is
 * told too when the service stops answering, and when it answers again. */
#include "clock.h"
#include "holder.h"
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { FIRST_MS = 1900, ASK_MS = 500, HEAR_MS = 500, TROUBLE_EACH_MS = 10000 };

struct watcher {
    pawl_client *client;
    struct run *run;
    int stop_fd;
    pthread_t thread;
    int64_t own_pid, place;
    char holder[200];
    int holders;
    int64_t began_ns, told_ns; /* told_ns: of the last trouble */
    bool trouble;
};

static const char *ordinal(int64_t n) {
    if (n % 100 / 10 == 1) return "th";
    return n % 10 == 1 ? "st" : n % 10 == 2 ? "nd" : n % 10 == 3 ? "rd" : "th";
}

static int see(const pawl_entry *entry, void *data) {
    struct watcher *watcher = data;
    char since[40] = "", at[104] = "";
    if (!entry->held && entry->pid == watcher->own_pid && entry->place) watcher->place = entry->place;
    if (!entry->held || watcher->holders++) return 0;
    if (entry->since_ms) {
        char duration[32];
        int64_t ms = clock_wall_us() / 1000 - entry->since_ms;
        format_duration(ms < 1000 ? ms * (ms > 0) : ms / 1000 * 1000, duration, sizeof duration);
        snprintf(since, sizeof since, " for %s", duration);
    }
    if (entry->user) snprintf(at, sizeof at, ", %.32s@%.64s", entry->user, entry->host ? entry->host : "?");
    if (entry->command || entry->pid)
        snprintf(watcher->holder, sizeof watcher->holder, "held by %.48s (pid %lld%s)%s",
                 entry->command ? entry->command : "a program", (long long)entry->pid, at, since);
    else if (entry->left_ms > 0)
        snprintf(watcher->holder, sizeof watcher->holder, "held by another program (%lld s left)",
                 (long long)entry->left_ms / 1000);
    else snprintf(watcher->holder, sizeof watcher->holder, "held by another program");
    return 0;
}

static void publish(struct run_shared *shared, const char *text) {
    atomic_fetch_add(&shared->waiting_version, 1);
    snprintf(shared->waiting, sizeof shared->waiting, "%s", text);
    atomic_fetch_add(&shared->waiting_version, 1);
}

static void look(struct watcher *watcher) {
    char text[256], place[32] = "", more[32] = "";
    pawl_error error = PAWL_ERROR_INIT;
    watcher->place = watcher->holders = 0;
    *watcher->holder = 0;
    if (pawl_inspect(watcher->client, watcher->run->options.name, ASK_MS, see, watcher, &error)) {
        snprintf(text, sizeof text, "%.220s; retrying", error.text);
    } else {
        if (watcher->place)
            snprintf(place, sizeof place, "%lld%s in line%s", (long long)watcher->place, ordinal(watcher->place),
                     *watcher->holder ? ", " : "");
        if (watcher->holders > 1) snprintf(more, sizeof more, " and %d more", watcher->holders - 1);
        snprintf(text, sizeof text, "%s%s%s", place, watcher->holder, more);
    }
    publish(watcher->run->shared, text);
}

bool watch_holder(pawl_client *client, struct run *run, char *ret, size_t size) {
    struct watcher watcher = {.client = client, .run = run, .own_pid = run->front};
    if (pawl_inspect(client, run->options.name, ASK_MS, see, &watcher, NULL) || !*watcher.holder) return false;
    snprintf(ret, size, "%s", watcher.holder);
    return true;
}

static int see_successor(const pawl_entry *e, void *data) {
    struct run_result *result = data;
    size_t used = strlen(result->text);
    if (!e->held) return 0;
    if (!e->command && !e->pid) {
        snprintf(result->text + used, sizeof result->text - used, ", but of another program");
        return 1;
    }
    snprintf(result->text + used, sizeof result->text - used, ", but of %s (pid %lld, %s@%s%s%s%s)",
             e->command ? e->command : "a program", (long long)e->pid, e->user ? e->user : "?", e->host ? e->host : "?",
             e->label ? ", \"" : "", e->label ? e->label : "", e->label ? "\"" : "");
    return 1;
}

void watch_name_successor(pawl_client *client, const struct run *run) {
    struct run_result *result = &run->shared->result;
    const char *last = strstr(result->text, "not ours any more");
    if (last && !last[strlen("not ours any more")])
        pawl_inspect(client, run->options.name, ASK_MS, see_successor, result, NULL);
}

/* On a terminal the waiting line says it. */
static void tell_trouble(struct watcher *watcher) {
    char doubt[512], text[540] = "it answers again";
    int64_t now = clock_now_ns();
    if (waiting_draws(watcher->run)) return;
    holder_doubt(doubt, sizeof doubt);
    if (watcher->trouble == (*doubt != 0)) return;
    if (*doubt && watcher->told_ns && now < clock_after_ms(watcher->told_ns, TROUBLE_EACH_MS)) return;
    if (*doubt) snprintf(text, sizeof text, "no answer: %s", doubt), watcher->told_ns = now;
    watcher->trouble = *doubt;
    report_waiting(watcher->run, (now - watcher->began_ns) / NS_PER_MS, text);
}

static void *watch_main(void *data) {
    struct watcher *watcher = data;
    struct pollfd stop = {.fd = watcher->stop_fd, .events = POLLIN};
    int64_t look_ns = clock_after_ms(watcher->began_ns, FIRST_MS);
    for (int wait = FIRST_MS; poll(&stop, 1, wait) == 0; wait = HEAR_MS) {
        if (clock_now_ns() >= look_ns) {
            look(watcher);
            look_ns = clock_after_ms(clock_now_ns(), waiting_each_ms(watcher->run));
        }
        tell_trouble(watcher);
    }
    return NULL;
}

struct watcher *watch_start(pawl_client *client, struct run *run) {
    struct watcher *watcher = calloc(1, sizeof *watcher);
    if (!watcher) return NULL;
    *watcher = (struct watcher){.client = client, .run = run, .own_pid = run->front, .began_ns = clock_now_ns()};
    watcher->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (watcher->stop_fd >= 0 && pthread_create(&watcher->thread, NULL, watch_main, watcher) == 0) return watcher;
    if (watcher->stop_fd >= 0) close(watcher->stop_fd);
    free(watcher);
    return NULL;
}

void watch_stop(struct watcher *watcher) {
    if (!watcher) return;
    eventfd_write(watcher->stop_fd, 1);
    pthread_join(watcher->thread, NULL);
    close(watcher->stop_fd);
    free(watcher);
}
