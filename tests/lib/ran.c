#include "ran.h"
#include "clock.h"
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>

#define BEAT_MS 5

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int64_t beat_ns, lost_ns; /* the last beat; how much all beats were late */

static int64_t late_ns(int64_t now_ns) {
    int64_t late = now_ns - beat_ns - (BEAT_MS + 1) * NS_PER_MS;
    return late > 0 ? late : 0;
}

static void *beat(void *data) {
    (void)data;
    for (;;) {
        poll(NULL, 0, BEAT_MS);
        pthread_mutex_lock(&mutex);
        int64_t now = clock_now_ns();
        lost_ns += late_ns(now);
        beat_ns = now;
        pthread_mutex_unlock(&mutex);
    }
    return NULL;
}

static void start(void) {
    pthread_t thread;
    beat_ns = clock_now_ns();
    if (pthread_create(&thread, NULL, beat, NULL)) abort();
    pthread_detach(thread);
}

int64_t ran_ns(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start);
    pthread_mutex_lock(&mutex);
    int64_t now = clock_now_ns(), ran = now - lost_ns - late_ns(now);
    pthread_mutex_unlock(&mutex);
    return ran;
}

int64_t ran_since(int64_t start_ns) { return (ran_ns() - start_ns) / NS_PER_MS; }
