/* A thousand wait for one lock: what does each hand-over cost? Four processes with 250 waiters each. */
#include "../measure.h"
#include "../stage.h"
#include "clock.h"
#include <hiredis/hiredis.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROCESSES = 4, EACH = 250, HOLD_MS = 5, RUN_MS = 4000, HOLDS = 4096 };

struct board { /* shared with the processes */
    _Atomic int waiting, n;
    _Atomic bool stop;
    struct {
        int64_t from, to, token;
    } hold[HOLDS];
};

static void note(struct board *b, int64_t from, int64_t token) {
    int i = atomic_fetch_add(&b->n, 1);
    if (i >= HOLDS) return;
    b->hold[i].from = from;
    b->hold[i].token = token;
    b->hold[i].to = clock_now_ns();
}

static void rest(int64_t until_ns) { clock_wait_fd(-1, 0, until_ns, -1); }

/* Each waiter asks again 50 ms after it was told no; one connection serves all 250, which is kind to the recipe. */
static void poll_waiters(struct board *b, int port) {
    int64_t due[EACH];
    redisContext *redis = redisConnect("127.0.0.1", port);
    for (int i = 0; i < EACH; i++) due[i] = clock_now_ns() + random() % 50 * NS_PER_MS;
    atomic_fetch_add(&b->waiting, EACH);
    while (redis && !redis->err && !atomic_load(&b->stop)) {
        int64_t now = clock_now_ns(), next = now + 50 * NS_PER_MS;
        int asked[EACH], n = 0, winner = -1;
        for (int i = 0; i < EACH; i++)
            if (due[i] <= now) {
                redisAppendCommand(redis, "SET lock %d-%d NX PX 10000", (int)getpid(), i);
                asked[n++] = i;
            } else if (due[i] < next) next = due[i];
        for (int k = 0; k < n; k++) {
            redisReply *reply = NULL;
            redisGetReply(redis, (void **)&reply);
            if (reply && reply->type == REDIS_REPLY_STATUS) winner = asked[k];
            freeReplyObject(reply);
            due[asked[k]] = clock_now_ns() + 50 * NS_PER_MS;
        }
        if (winner >= 0) {
            int64_t from = clock_now_ns();
            rest(from + HOLD_MS * NS_PER_MS);
            note(b, from, 0);
            freeReplyObject(redisCommand(redis, "DEL lock"));
        } else if (n == 0) rest(next);
    }
}

static void event_waiters(struct board *b, const char *url) {
    pawl_client *client;
    pawl_lock *locks[EACH], *held = NULL;
    if (pawl_open(url, NULL, &client, NULL)) return;
    for (int i = 0; i < EACH; i++) pawl_acquire_start(client, "lock", NULL, NULL, &locks[i], NULL);
    atomic_fetch_add(&b->waiting, EACH);
    struct pollfd fd = {.fd = pawl_event_fd(client), .events = POLLIN};
    while (!atomic_load(&b->stop)) {
        pawl_event event = PAWL_EVENT_INIT;
        if (poll(&fd, 1, 50) <= 0 || pawl_next_event(client, &event) != 1) continue;
        held = event.lock;
        if (event.type != PAWL_GRANTED) continue;
        int64_t from = clock_now_ns();
        rest(from + HOLD_MS * NS_PER_MS);
        note(b, from, event.token);
        pawl_release(held, 0, NULL);
        pawl_acquire_start(client, "lock", NULL, NULL, &held, NULL);
    }
}

static int64_t requests(int port) {
    char *text = server_redis(port, "INFO commandstats");
    int64_t sum = 0;
    static const char *const sent[] = {
        "cmdstat_set:", "cmdstat_del:", "cmdstat_evalsha:", "cmdstat_eval:", "cmdstat_subscribe:"};
    bool pawl = text && strstr(text, "cmdstat_evalsha:");
    for (size_t i = 0; text && i < sizeof sent / sizeof *sent; i++) {
        const char *at = pawl && i < 2 ? NULL : strstr(text, sent[i]); /* inside scripts they are not requests */
        if (at) sum += atoll(strchr(at, '=') + 1);
    }
    free(text);
    return sum;
}

static bool all_wait(void *data) { return atomic_load(&((struct board *)data)->waiting) == PROCESSES * EACH; }

static void play(struct stage *s) {
    struct server *redis = stage_server(s);
    server_start_redis(redis, NULL);
    struct board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b == MAP_FAILED) stage_fail(s, "no memory");
    pid_t pids[PROCESSES], parent = getpid();
    for (int i = 0; i < PROCESSES; i++)
        if ((pids[i] = fork()) == 0) {
            signal(SIGTERM, SIG_DFL);
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent) _exit(1);
            if (stage_has_pawl(s)) event_waiters(b, redis->url);
            else poll_waiters(b, redis->port);
            _exit(0);
        }
    stage_until(s, all_wait, b, 20000, "a thousand to wait");
    stage_say(s, "a thousand wait, in four processes");
    stage_wait(s, 500); /* their first questions are over */
    int64_t before = requests(redis->port);
    int first = atomic_load(&b->n);
    stage_wait(s, RUN_MS);
    int turns = atomic_load(&b->n) - first;
    double each = (double)(requests(redis->port) - before) / (turns ? turns : 1);
    atomic_store(&b->stop, true);
    for (int i = 0; i < PROCESSES; i++) waitpid(pids[i], NULL, 0);
    for (int i = first; i < first + turns && i < HOLDS; i++) {
        struct span *span = story_span(stage_story(s), SPAN_HOLD, "one of 1000", b->hold[i].from);
        span->to = b->hold[i].to;
        span->token = b->hold[i].token;
        span->asked = i ? b->hold[i - 1].to : span->from;
    }
    stage_say(s, "%d turns of 5 ms in 4 s, %.1f requests for each", turns, each);
    if (each > 20) stage_broke(s, "each hand-over costs %.0f requests; %d turns of 5 ms in 4 s", each, turns);
    if (turns < 10) stage_broke(s, "only %d turns in 4 s", turns);
}

const struct scenario scenario_herd = {.name = "herd",
                                       .title = "a thousand wait for one lock",
                                       .happens = "A thousand clients want one lock that is held for 5 ms at a time. "
                                                  "Those who poll ask twenty times a second each; "
                                                  "whoever asks at the right moment wins.",
                                       .believed = "Asking again every 50 ms is cheap.",
                                       .truth = "It costs the service for every waiter, all the time, and nobody is "
                                                "served in order. pawl's waiters stand in a queue; the "
                                                "release names the next one, and only that one asks.",
                                       .service = "redis",
                                       .needs = "redis-server",
                                       .plain = &plain_redis,
                                       .plain_breaks = true,
                                       .play = play};
