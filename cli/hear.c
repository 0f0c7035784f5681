/* hear.c: what the holder hears from the library and from its own timers. The observer is called in the library's
 * thread, which must never wait: it keeps the text, and the holder prints it. */
#include "clock.h"
#include "holder.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char doubt[512];

void holder_observe(const pawl_event *event, const char *name, void *data) {
    (void)name;
    (void)data;
    if (event->type != PAWL_DOUBT && event->type != PAWL_DOUBT_OVER && event->type != PAWL_LOST) return;
    pthread_mutex_lock(&mutex);
    if (event->type == PAWL_DOUBT_OVER) *doubt = 0;
    else if (*event->text) snprintf(doubt, sizeof doubt, "%s", event->text);
    pthread_mutex_unlock(&mutex);
}

void holder_doubt(const struct holder *h, char *ret, size_t size) {
    (void)h;
    pthread_mutex_lock(&mutex);
    snprintf(ret, size, "%s", doubt);
    pthread_mutex_unlock(&mutex);
}

/* Only where a lease ends: there the kill must come in time. */
void holder_lateness(struct holder *h, int64_t late_ns) {
    int64_t ttl = h->run->options.common.ttl_ms, margin = ttl / 100 + 2 > 20 ? ttl / 100 + 2 : 20;
    if (h->warned_late || h->lost_fd < 0 || late_ns < margin * NS_PER_MS) return;
    h->warned_late = true;
    report_progress(h->run,
                    "timers of this machine are %lld ms late, more than the margin of %lld ms: use a longer ttl",
                    (long long)(late_ns / NS_PER_MS), (long long)margin);
}
