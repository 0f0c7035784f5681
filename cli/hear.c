/* hear.c: what the holder hears from the library and from its own timers. The observer is called in the library's
 * thread, which must never wait: it keeps the text, and the holder prints it. */
#include "clock.h"
#include "holder.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char doubt[512], remark[512];
static atomic_bool lost; /* doubt and reason say why */
static atomic_int reason;

void holder_observe(const pawl_event *event, const char *name, void *data) {
    (void)name;
    (void)data;
    if (event->type == PAWL_WAITING || event->type == PAWL_RENEWED) return;
    pthread_mutex_lock(&mutex);
    if (event->type == PAWL_DOUBT_OVER || event->type == PAWL_GRANTED) *doubt = 0;
    else if (event->type == PAWL_REMARK) snprintf(remark, sizeof remark, "%s", event->text);
    else if ((event->type == PAWL_DOUBT || event->type == PAWL_LOST) && *event->text)
        snprintf(doubt, sizeof doubt, "%s", event->text);
    if (event->type == PAWL_LOST) atomic_store(&reason, event->reason), lost = true;
    pthread_mutex_unlock(&mutex);
}

int holder_lost_reason(int otherwise) { return lost ? reason : otherwise; }

void holder_doubt(char *ret, size_t size) {
    pthread_mutex_lock(&mutex);
    snprintf(ret, size, "%s", doubt);
    pthread_mutex_unlock(&mutex);
}

void holder_tell_remark(const struct holder *h) {
    char text[sizeof remark];
    pthread_mutex_lock(&mutex);
    memcpy(text, remark, sizeof text);
    *remark = 0;
    pthread_mutex_unlock(&mutex);
    if (*text) report_remark(h->run, text);
}

void holder_tell_doubt(struct holder *h) {
    char text[sizeof doubt];
    holder_tell_remark(h);
    holder_doubt(text, sizeof text);
    if (*text && !h->told_doubt && !lost) report_progress(h->run, "in doubt: %s", text);
    if (!*text && h->told_doubt) report_progress(h->run, "no longer in doubt");
    h->told_doubt = *text;
}

/* A CONT is pending, as every signal is blocked, if we had been stopped: then the machine is not to blame. */
void holder_note_lateness(const struct holder *h) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCONT);
    bool was_stopped = sigtimedwait(&set, NULL, &(struct timespec){0}) == SIGCONT;
    int64_t *worst = was_stopped ? &h->shared->result.stopped_ms : &h->shared->result.late_ms;
    int64_t late_ms = (clock_now_ns() - h->armed_ns) / NS_PER_MS;
    if (late_ms > *worst) *worst = late_ms;
}
