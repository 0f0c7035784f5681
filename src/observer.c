/* observer.c: every event passes here: it is counted for pawl_metrics, and told to the client's observer, who may log.
 */
#include "client.h"
#include "clock.h"
#include "export.h"
#include "metrics.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct metrics process_metrics = METRICS_INIT;

/* A child must find the mutex free, and what it protects whole. */
static void fork_begins(void) { pthread_mutex_lock(&process_metrics.mutex); }
static void fork_ends(void) { pthread_mutex_unlock(&process_metrics.mutex); }
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(fork_begins, fork_ends, fork_ends); }

/* --- counting --- */

static struct metrics_class *class_of(pawl_lock *l) {
    if (!l->seen.class) l->seen.class = metrics_class(&process_metrics, l->name);
    return l->seen.class;
}

static void stop_waiting(pawl_lock *l) {
    if (l->seen.waits) class_of(l)->waiters--;
    l->seen.waits = false;
}

/* true: it was held until now. */
static bool stop_holding(pawl_lock *l, int64_t now_ns) {
    if (!l->seen.held) return false;
    l->seen.held = false;
    class_of(l)->locks_held--;
    metrics_time(&class_of(l)->held, (now_ns - l->seen.granted_ns) / 1000);
    return true;
}

static void count_grant(pawl_lock *l, int64_t now_ns) {
    struct metrics_class *class = class_of(l);
    stop_waiting(l);
    l->seen.over = l->seen.held = true;
    l->seen.granted_ns = l->seen.renewed_ns = now_ns;
    class->locks_held++;
    metrics_acquired(class, PAWL_OK);
    metrics_time(&class->acquisition, (now_ns - l->began_ns) / 1000);
}

static void count_end(pawl_lock *l, int code) {
    stop_waiting(l);
    if (!l->seen.over) metrics_acquired(class_of(l), code);
    l->seen.over = true;
}

/* A renewal is due a third of the ttl after the last one. */
static void count_renewal(pawl_lock *l, int64_t now_ns, bool confirmed) {
    int64_t lag_us = (now_ns - l->seen.renewed_ns) / 1000 - l->claim.ttl_ms * 1000 / 3;
    if (!l->seen.held) return;
    class_of(l)->renewal_lag_us = lag_us > 0 ? lag_us : 0;
    if (confirmed) l->seen.renewed_ns = now_ns;
}

static void count(pawl_lock *l, int type, int code) {
    int64_t now_ns = client_now(l->client);
    switch (type) {
    case PAWL_WAITING:
        if (!l->seen.waits) class_of(l)->waiters++;
        l->seen.waits = true;
        break;
    case PAWL_GRANTED: count_grant(l, now_ns); break;
    case PAWL_FAILED: count_end(l, code); break;
    case PAWL_LOST:
        if (stop_holding(l, now_ns)) metrics_lost(class_of(l), l->lost_reason);
        break;
    case PAWL_RELEASED:
        count_end(l, PAWL_ECANCELLED); /* while it was pending */
        if (stop_holding(l, now_ns) && code == PAWL_ELOST) metrics_lost(class_of(l), PAWL_LOST_GONE);
        break;
    case PAWL_RENEWED: count_renewal(l, now_ns, true); break;
    case PAWL_DOUBT: count_renewal(l, now_ns, false); break;
    default: break;
    }
}

void observe_end(pawl_lock *l) {
    if (l->state == LOCK_ENDING) count_end(l, PAWL_ECANCELLED); /* while the keeper asked for it */
    stop_waiting(l);
    if (l->seen.held) stop_holding(l, client_now(l->client));
}

static void tell(pawl_lock *l, int type, int code, uint64_t token, const char *text) {
    const pawl_options *o = &l->client->options;
    if (!o->observe) return;
    pawl_event event = PAWL_EVENT_INIT;
    event.type = type;
    event.code = code;
    if (type == PAWL_LOST) event.reason = l->lost_reason;
    event.lock = l;
    event.user = l->user;
    event.token = (int64_t)token;
    snprintf(event.text, sizeof event.text, "%s", text ? text : "");
    o->observe(&event, l->name, o->observe_data);
}

void observe(pawl_lock *l, int type, int code, const char *text) {
    count(l, type, code);
    tell(l, type, code, l->granted ? l->grant.token : 0, text);
}

void observe_let_go(pawl_lock *l) { tell(l, PAWL_RELEASED, PAWL_OK, 0, NULL); }

PAWL_EXPORT size_t pawl_metrics(char *text, size_t size) {
    char *all = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&all, &length);
    if (!file) return 0;
    metrics_write(&process_metrics, true, file);
    if (fclose(file)) length = 0;
    if (size) {
        size_t n = length < size ? length : size - 1;
        if (n) memcpy(text, all, n);
        text[n] = 0;
    }
    free(all);
    return length;
}
