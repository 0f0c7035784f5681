#include "stage.h"
#include "clock.h"
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SERVERS = 16, PROXIES = 8, WORKERS = 16, ANSWER_MS = 25000 };

struct actor { /* a worker and its record; the worker is first, so that one is found from the other */
    struct worker worker;
    int hold, wait, pause; /* indices of open spans; -1: none */
    int last_hold;         /* what its writes belong to */
    int writes;
    int64_t ask_until_ns;
};
struct stage {
    const struct scenario *scenario;
    struct story story;
    jmp_buf out;
    int64_t ttl_ms;
    char dir[64], file[96], guard[96];
    struct server servers[SERVERS];
    struct proxy *proxies[PROXIES];
    struct actor actors[WORKERS];
    int n_servers, n_proxies, n_actors;
};

static struct stage stage; /* one a process */

enum variant stage_variant(const struct stage *s) { return s->story.variant; }
bool stage_has_pawl(const struct stage *s) { return s->story.variant != VARIANT_PLAIN; }
void stage_ttl(struct stage *s, int64_t ms) { s->ttl_ms = ms; }
const char *stage_dir(const struct stage *s) { return s->dir; }
struct story *stage_story(struct stage *s) {
    return &s->story;
}

bool stage_planted(const char *what) {
    const char *planted = getenv("PAWL_LAB_PLANT");
    return planted && strcmp(planted, what) == 0;
}

/* --- the record --- */

static void say(struct stage *s, int64_t at, const char *format, va_list arguments) {
    char text[240];
    vsnprintf(text, sizeof text, format, arguments);
    story_step(&s->story, at, text);
}

#define SAY(s, format)                                                                                                 \
    do {                                                                                                               \
        va_list arguments_;                                                                                            \
        va_start(arguments_, format);                                                                                  \
        say(s, clock_now_ns(), format, arguments_);                                                                    \
        va_end(arguments_);                                                                                            \
    } while (0)

void stage_say(struct stage *s, const char *format, ...) { SAY(s, format); }

__attribute__((format(printf, 3, 4))) static void say_at(struct stage *s, int64_t at, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say(s, at, format, arguments);
    va_end(arguments);
}

void stage_fault(struct stage *s, const char *what, const char *format, ...) {
    SAY(s, format);
    struct span *span = story_span(&s->story, SPAN_FAULT, what, clock_now_ns());
    snprintf(span->text, sizeof span->text, "%.95s", s->story.steps[s->story.n_steps - 1].text);
}

void stage_fault_over(struct stage *s, const char *what, const char *format, ...) {
    SAY(s, format);
    for (int i = 0; i < s->story.n_spans; i++) {
        struct span *span = &s->story.spans[i];
        if (span->kind == SPAN_FAULT && span->to == INT64_MAX && strcmp(span->who, what) == 0)
            span->to = clock_now_ns();
    }
}

static void why(struct stage *s, const char *format, va_list arguments) {
    vsnprintf(s->story.why, sizeof s->story.why, format, arguments);
}

void stage_broke(struct stage *s, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    why(s, format, arguments);
    va_end(arguments);
    story_step(&s->story, clock_now_ns(), s->story.why);
}

void stage_fail(struct stage *s, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    why(s, format, arguments);
    va_end(arguments);
    s->story.verdict = VERDICT_FAILED;
    longjmp(s->out, 1);
}

void stage_skip(struct stage *s, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    why(s, format, arguments);
    va_end(arguments);
    s->story.verdict = VERDICT_SKIPPED;
    longjmp(s->out, 1);
}

/* --- parts of the stage --- */

struct server *stage_server(struct stage *s) {
    if (s->n_servers == SERVERS) stage_fail(s, "too many servers");
    return &s->servers[s->n_servers++];
}

struct proxy *stage_proxy(struct stage *s, int port) {
    if (s->n_proxies == PROXIES) stage_fail(s, "too many proxies");
    return s->proxies[s->n_proxies++] = proxy_start(port);
}

const char *stage_pawl(void) {
    static char path[512];
    const char *named = getenv("PAWL_BIN"), *const places[] = {"pawl", "../cli/pawl"};
    char self[400];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (named && *named) return named;
    self[n > 0 ? n : 0] = 0;
    char *slash = strrchr(self, '/');
    if (slash) *slash = 0;
    for (int i = 0; i < 2 && slash; i++) {
        snprintf(path, sizeof path, "%s/%s", self, places[i]);
        if (access(path, X_OK) == 0) return path;
    }
    return "pawl";
}

void stage_init(struct stage *s, const char *url) {
    pawl_client *client;
    pawl_error error = PAWL_ERROR_INIT;
    if (!stage_has_pawl(s)) return;
    int code = pawl_open(url, NULL, &client, &error);
    if (code == PAWL_EUNSUPPORTED || code == PAWL_EINVALID) stage_skip(s, "%.200s", error.text);
    int64_t end = clock_after_ms(clock_now_ns(), 60000);
    if (!code) do /* a first start on a slow machine may be half done, which is not what is shown */
            code = pawl_init(client, 10000, &error);
        while ((code == PAWL_EUNREACHABLE || code == PAWL_EUNSAFE) && clock_now_ns() < end);
    if (!code || code == PAWL_EUNSUPPORTED) pawl_close(client);
    else stage_fail(s, "pawl init: %.200s", error.text);
}

void stage_wait(struct stage *s, int64_t ms) {
    (void)s;
    clock_wait_fd(-1, 0, clock_after_ms(clock_now_ns(), ms), -1);
}

void stage_until(struct stage *s, bool (*condition)(void *), void *data, int ms, const char *what) {
    if (!server_until(condition, data, ms)) stage_fail(s, "waited %d ms for nothing: %s", ms, what);
}

static struct actor *actor_of(struct worker *w) { return (struct actor *)w; }

struct worker *stage_worker(struct stage *s, const char *name, const char *url) {
    if (s->n_actors == WORKERS) stage_fail(s, "too many workers");
    struct actor *a = &s->actors[s->n_actors++];
    bool plain = !stage_has_pawl(s),
         guard = plain ? s->scenario->plain_is_checked : s->story.variant == VARIANT_GUARDED;
    *a = (struct actor){.hold = -1, .wait = -1, .pause = -1, .last_hold = -1};
    struct part part = {.name = name,
                        .url = url,
                        .plain = plain ? s->scenario->plain : NULL,
                        .ttl_ms = s->ttl_ms,
                        .lock = "lock",
                        .guard = guard ? s->guard : NULL,
                        .file = s->file};
    if (stage_planted("open-guard")) part.guard = NULL;
    worker_start(&a->worker, &part);
    return &a->worker;
}

/* --- what workers do --- */

static struct answer answer_of(struct stage *s, struct worker *w, int64_t ms) {
    struct answer answer;
    if (!worker_answer(w, ms, &answer)) stage_fail(s, "%s does not answer", w->name);
    return answer;
}

static struct answer ask(struct stage *s, struct worker *w, const struct order *order) {
    worker_send(w, order);
    return answer_of(s, w, ANSWER_MS);
}

/* The hold ended at `at`, or before, if the worker knew of it. */
static void end_hold(struct stage *s, struct actor *a, int64_t at, enum history_outcome outcome) {
    if (a->hold < 0) return;
    struct span *hold = &s->story.spans[a->hold];
    int64_t lost = worker_hold_end(&a->worker, at);
    hold->to = lost < at ? lost : at;
    hold->outcome = lost < at ? HISTORY_LOST : outcome;
    if (hold->to < hold->from) hold->to = hold->from;
    if (lost < at) story_point(&s->story, POINT_LOST, a->worker.name, hold->to);
    a->hold = -1;
}

void worker_take_start(struct stage *s, struct worker *w, int64_t wait_ms) {
    struct actor *a = actor_of(w);
    end_hold(s, a, clock_now_ns(), HISTORY_LOST);
    stage_say(s, wait_ms ? "%s asks for the lock" : "%s asks for the lock, once", w->name);
    story_span(&s->story, SPAN_WAIT, w->name, clock_now_ns());
    a->wait = s->story.n_spans - 1;
    a->ask_until_ns = clock_after_ms(clock_now_ns(), wait_ms);
    worker_send(w, &(struct order){.does = WORKER_TAKE, .wait_ms = wait_ms});
}

/* A service that is away for a while is asked again, as everybody does. */
static struct answer take_answer(struct stage *s, struct actor *a) {
    for (;;) {
        struct answer answer = answer_of(s, &a->worker, 40000);
        int64_t left = (a->ask_until_ns - clock_now_ns()) / NS_PER_MS;
        if (answer.code != PAWL_EUNREACHABLE || left < 100) return answer;
        stage_wait(s, 100);
        worker_send(&a->worker, &(struct order){.does = WORKER_TAKE, .wait_ms = left - 100});
    }
}

bool worker_take_end(struct stage *s, struct worker *w) {
    struct actor *a = actor_of(w);
    struct answer answer = take_answer(s, a);
    struct span *wait = &s->story.spans[a->wait];
    a->wait = -1;
    wait->to = answer.done_ns;
    if (answer.code) {
        wait->outcome = answer.code == PAWL_EBUSY      ? HISTORY_BUSY
                        : answer.code == PAWL_ETIMEOUT ? HISTORY_TIMEOUT
                                                       : HISTORY_FAILED;
        say_at(s, answer.done_ns, "%s does not get it: %s", w->name,
               *answer.text ? answer.text : pawl_strerror(answer.code));
        if (answer.code == PAWL_EUNSUPPORTED || answer.code == PAWL_EINVALID) stage_skip(s, "%.200s", answer.text);
        return false;
    }
    wait->kind = SPAN_HOLD; /* asked stays; what came before is the wait */
    wait->from = answer.done_ns;
    wait->to = INT64_MAX;
    wait->token = stage_planted("old-token") ? (INT64_C(1) << 53) - answer.token : answer.token;
    wait->outcome = HISTORY_RELEASED;
    a->hold = a->last_hold = (int)(wait - s->story.spans);
    if (answer.token) say_at(s, answer.done_ns, "%s has it, token %lld", w->name, (long long)answer.token);
    else say_at(s, answer.done_ns, "%s has it", w->name);
    return true;
}

bool worker_take(struct stage *s, struct worker *w, int64_t wait_ms) {
    worker_take_start(s, w, wait_ms);
    return worker_take_end(s, w);
}
bool worker_try(struct stage *s, struct worker *w) { return worker_take(s, w, 0); }

void worker_must_take(struct stage *s, struct worker *w, int64_t wait_ms) {
    if (!worker_take(s, w, wait_ms)) stage_fail(s, "%s", s->story.steps[s->story.n_steps - 1].text);
}

bool worker_write_late(struct stage *s, struct worker *w) {
    struct actor *a = actor_of(w);
    struct order order = {.does = WORKER_WRITE};
    snprintf(order.data, sizeof order.data, "%s's value %d", w->name, ++a->writes);
    struct answer answer = ask(s, w, &order);
    if (answer.code && answer.code < 100) stage_fail(s, "%s cannot write: %.150s", w->name, answer.text);
    struct point *p = story_point(&s->story, answer.code ? POINT_REFUSED : POINT_ACCEPTED, w->name, answer.done_ns);
    p->hold = a->last_hold;
    snprintf(p->text, sizeof p->text, "%.159s", answer.code ? answer.text : order.data);
    stage_say(s, answer.code ? "%s writes: REFUSED: %.150s" : "%s writes%s", w->name, answer.code ? answer.text : "");
    return answer.code == PAWL_OK;
}

bool worker_write(struct stage *s, struct worker *w) {
    if (s->story.variant == VARIANT_PAWL) {
        struct answer answer = ask(s, w, &(struct order){.does = WORKER_CHECK});
        if (answer.code) {
            stage_say(s, "%s knows that it has lost the lock, and does not write", w->name);
            end_hold(s, actor_of(w), answer.done_ns, HISTORY_LOST);
            return false;
        }
    }
    return worker_write_late(s, w);
}

void worker_release(struct stage *s, struct worker *w) {
    end_hold(s, actor_of(w), clock_now_ns(), HISTORY_RELEASED);
    struct answer answer = ask(s, w, &(struct order){.does = WORKER_RELEASE});
    stage_say(s, answer.code ? "%s releases: %s" : "%s releases%s", w->name, answer.code ? answer.text : "");
}

void worker_pause(struct stage *s, struct worker *w) {
    worker_signal(w, SIGSTOP);
    waitid(P_PID, (id_t)w->pid, &(siginfo_t){0}, WSTOPPED);
    stage_say(s, "%s is stopped (SIGSTOP)", w->name);
    story_span(&s->story, SPAN_PAUSE, w->name, clock_now_ns());
    actor_of(w)->pause = s->story.n_spans - 1;
}

void worker_resume(struct stage *s, struct worker *w) {
    struct actor *a = actor_of(w);
    s->story.spans[a->pause].to = clock_now_ns();
    a->pause = -1;
    stage_say(s, "%s goes on", w->name);
    worker_signal(w, SIGCONT);
}

/* at: before it was killed, since the kernel may free its lock at once. */
static void dead(struct stage *s, struct worker *w, int64_t at, const char *how) {
    struct actor *a = actor_of(w);
    if (a->wait >= 0) s->story.spans[a->wait].to = at, s->story.spans[a->wait].outcome = HISTORY_CANCELLED;
    a->wait = -1;
    end_hold(s, a, at, HISTORY_KILLED);
    snprintf(story_point(&s->story, POINT_KILLED, w->name, at)->text, 160, "%s", how);
    stage_say(s, "%s %s", w->name, how);
}

void worker_kill(struct stage *s, struct worker *w) {
    int64_t at = clock_now_ns();
    worker_signal(w, SIGKILL);
    dead(s, w, at, "is killed (SIGKILL)");
}

void worker_vanish(struct stage *s, struct worker *w) {
    struct answer answer;
    /* Until the last acknowledgement has gone: else the server would send its answer again, and be told. */
    stage_wait(s, 600);
    int64_t at = clock_now_ns();
    worker_send(w, &(struct order){.does = WORKER_VANISH});
    if (worker_answer(w, 5000, &answer)) stage_skip(s, "%s cannot vanish: %s", w->name, answer.text);
    worker_signal(w, SIGKILL);
    dead(s, w, at, "vanishes with its host: nobody is told");
}

/* --- the play --- */

static void end_all(struct stage *s) {
    int64_t now = clock_now_ns();
    for (int i = 0; i < s->n_actors; i++) {
        if (s->actors[i].wait >= 0) s->story.spans[s->actors[i].wait].outcome = HISTORY_CANCELLED;
        end_hold(s, &s->actors[i], now, HISTORY_RELEASED);
        worker_end(&s->actors[i].worker);
    }
    s->story.ended = now;
    for (int i = 0; i < s->n_proxies; i++) proxy_stop(s->proxies[i]);
    for (int i = 0; i < s->n_servers; i++) server_stop(&s->servers[i]);
}

static void set_up(struct stage *s) {
    const char *base = getenv("TMPDIR");
    snprintf(s->dir, sizeof s->dir, "%.40s/stage-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(s->dir)) stage_fail(s, "cannot make %s: %s", s->dir, strerror(errno));
    snprintf(s->file, sizeof s->file, "%s/resource", s->dir);
    snprintf(s->guard, sizeof s->guard, "dir:%s/guard", s->dir);
    if (mkdir(s->guard + 4, 0700)) stage_fail(s, "cannot make %s: %s", s->guard + 4, strerror(errno));
}

void stage_play(const struct scenario *scenario, enum variant variant, struct story *ret) {
    struct stage *s = &stage;
    *s = (struct stage){.scenario = scenario, .ttl_ms = 2000};
    s->story.variant = variant;
    s->story.verdict = VERDICTS;
    snprintf(s->story.scenario, sizeof s->story.scenario, "%s", scenario->name);
    s->story.began = clock_now_ns();
    if (setjmp(s->out) == 0) {
        set_up(s);
        scenario->play(s);
        stage_wait(s,
                   (clock_now_ns() - s->story.began) / NS_PER_MS / 16); /* room behind the last event, in the picture */
    }
    end_all(s);
    enum verdict early = s->story.verdict;
    char reason[sizeof s->story.why];
    memcpy(reason, s->story.why, sizeof reason);
    if (s->story.n_steps) s->story.began = s->story.steps[0].at; /* the servers' start is not part of it */
    story_judge(&s->story);
    if (early != VERDICTS) {
        s->story.verdict = early;
        memcpy(s->story.why, reason, sizeof reason);
    }
    enum variant played = s->story.variant; /* the argument may not survive the jump */
    bool breaks = played == VARIANT_PLAIN ? scenario->plain_breaks : played == VARIANT_PAWL && scenario->pawl_breaks;
    s->story.expected =
        s->story.verdict == (breaks ? VERDICT_BROKE : VERDICT_HELD) || s->story.verdict == VERDICT_SKIPPED;
    *ret = s->story;
}
