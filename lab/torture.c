/* torture.c: pawl-lab torture: workers that take locks and write, while processes, networks and servers go wrong by a
 * schedule; then the history is judged against what docs/GUARANTEES.md promises. One thread drives all. */
#include "clock.h"
#include "folder.h"
#include "lab.h"
#include "pawl_guard.h"
#include "stage.h"
#include "torture_rack.h"
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char help[] =
    "usage: pawl-lab torture --backend NAME [options]\n"
    "  --backend NAME   file, redis, redlock, postgresql, etcd\n"
    "  --minutes N      how long, 0.3 to 10000; 1 if not said\n"
    "  --seed S         decides what goes wrong when; 0 to 9223372036854775807, drawn if not said\n"
    "  --schedule       print that, and do nothing\n"
    "  --guard WHERE    dir: in a directory, if not said; service: where the locks are, too\n"
    "  --save FILE      the history, for pawl-lab check\n"
    "  --json           the verdict as one JSON object\n"
    "exit: 0 every promise was kept, 1 one was not, 125 nothing can be said, 130 interrupted, 143 "
    "terminated\n";

/* --- the record --- */

static void add(struct rack *r, const struct history_event *event) {
    char line[512];
    history_add(r->history, event);
    size_t n = r->save ? history_line(event, line, sizeof line) : 0;
    if (n) fwrite(line, 1, n, r->save);
    if (event->what != HISTORY_HOLD) return;
    r->holds = realloc(r->holds, ((size_t)r->n_holds + 1) * sizeof *r->holds);
    if (!r->holds) abort();
    r->holds[r->n_holds] = *event;
    r->holds[r->n_holds].lock = strdup(event->lock);
    r->holds[r->n_holds++].who = NULL;
}

static void end_hold(struct rack *r, struct soul *s, int64_t at, enum history_outcome outcome) {
    if (s->hold.what != HISTORY_HOLD) return;
    int64_t knew = worker_hold_end(&s->worker, at);
    s->hold.end = knew < at ? knew : at;
    if (s->hold.end < s->hold.start) s->hold.end = s->hold.start;
    s->hold.outcome = knew < at ? HISTORY_LOST : outcome;
    r->lost += knew < at;
    add(r, &s->hold);
    s->hold.what = HISTORY_WHATS;
}

/* --- the workers --- */

static int64_t draw(struct soul *s, int64_t low, int64_t high) {
    return low + (int64_t)(torture_random(&s->random) % (uint64_t)(high - low + 1));
}

static void born(struct rack *r, struct soul *s) {
    int index = (int)(s - r->souls);
    snprintf(s->name, sizeof s->name, "w%d.%d", index, s->incarnation);
    s->random = (uint64_t)r->o->seed * 1000003 + (uint64_t)(index * 1009 + s->incarnation++);
    s->part.name = s->name;
    s->state = IDLE;
    s->hold.what = HISTORY_WHATS;
    s->due_ns = clock_now_ns();
    s->stopped_until_ns = 0;
    worker_start(&s->worker, &s->part);
}

static void order(struct soul *s, enum worker_does does, int64_t wait_ms, enum soul_state state) {
    struct order o = {.does = does, .wait_ms = wait_ms};
    snprintf(o.lock, sizeof o.lock, "%s", s->lock);
    snprintf(o.data, sizeof o.data, "%s", s->name);
    s->state = state;
    worker_send(&s->worker, &o);
}

/* Its time has come. */
static void next(struct rack *r, struct soul *s, int64_t now) {
    if (s->state == IDLE) {
        int64_t dice = draw(s, 0, 9);
        snprintf(s->lock, sizeof s->lock, "lock%d", (int)draw(s, 1, TORTURE_LOCKS));
        s->asked_ns = now;
        order(s, WORKER_TAKE, dice == 0 ? 0 : draw(s, 50, 6000), TAKING);
    } else if (s->state == HOLDING) {
        if (draw(s, 0, 3) > 0) order(s, WORKER_WRITE, 0, WRITING);
        else {
            end_hold(r, s, now, HISTORY_RELEASED);
            order(s, WORKER_RELEASE, 0, RELEASING);
        }
    }
}

static bool is_calm(const struct rack *r, int64_t now) {
    return now > r->began_ns + (torture_length_ms(r->o) - torture_calm_ms(r->o)) * NS_PER_MS;
}

static void took(struct rack *r, struct soul *s, const struct answer *a) {
    if (a->code) {
        r->busy += a->code == PAWL_EBUSY || a->code == PAWL_ETIMEOUT;
        r->failed += a->code != PAWL_EBUSY && a->code != PAWL_ETIMEOUT;
        if (a->code != PAWL_EBUSY && a->code != PAWL_ETIMEOUT)
            snprintf(r->last_failure, sizeof r->last_failure, "%.299s", a->text);
        add(r, &(struct history_event){.what = HISTORY_WAIT,
                                       .outcome = HISTORY_FAILED,
                                       .who = s->name,
                                       .lock = s->lock,
                                       .start = s->asked_ns,
                                       .end = a->done_ns,
                                       .asked = HISTORY_NEVER});
        s->state = IDLE;
        s->due_ns = a->done_ns + draw(s, 1, 50) * NS_PER_MS;
        return;
    }
    r->grants++;
    s->last_grant_ns = a->done_ns;
    s->hold = (struct history_event){.what = HISTORY_HOLD,
                                     .who = s->name,
                                     .lock = s->lock,
                                     .token = (uint64_t)a->token,
                                     .start = a->done_ns,
                                     .asked = s->asked_ns};
    if (stage_planted("old-token")) s->hold.token = (UINT64_C(1) << 53) - s->hold.token;
    s->state = HOLDING;
    /* mostly short; some outlive several renewals */
    s->due_ns =
        a->done_ns +
        (draw(s, 0, 9) || is_calm(r, a->done_ns) ? draw(s, 0, 40) : draw(s, 0, 2 * r->o->victim->ttl_ms)) * NS_PER_MS;
}

static void wrote(struct rack *r, struct soul *s, const struct answer *a) {
    bool accepted = a->code == PAWL_OK;
    r->accepted += accepted;
    r->refused += a->code == PAWL_GSTALE;
    r->unclear += !accepted && a->code != PAWL_GSTALE;
    if (!accepted && a->code != PAWL_GSTALE)
        snprintf(r->last_failure, sizeof r->last_failure, "write: %.280s", a->text);
    if (accepted || a->code == PAWL_GSTALE)
        add(r, &(struct history_event){.what = HISTORY_WRITE,
                                       .outcome = accepted ? HISTORY_ACCEPTED : HISTORY_REFUSED,
                                       .who = s->name,
                                       .lock = s->lock,
                                       .token = (uint64_t)a->token,
                                       .start = a->began_ns,
                                       .end = a->done_ns,
                                       .asked = HISTORY_NEVER});
    s->state = HOLDING;
    s->due_ns = a->done_ns + draw(s, 0, 20) * NS_PER_MS;
}

static void hear(struct rack *r, struct soul *s) {
    struct answer a;
    if (!worker_answer(&s->worker, 0, &a)) return;
    switch (s->state) {
    case TAKING: took(r, s, &a); break;
    case WRITING: wrote(r, s, &a); break;
    case RELEASING:
        s->state = IDLE;
        s->due_ns = a.done_ns + draw(s, 0, 30) * NS_PER_MS;
        break;
    default: break;
    }
}

/* --- what goes wrong --- */

static void network(struct rack *r, enum wrong_kind kind, int i, bool on, int64_t ms) {
    if (kind == WRONG_SILENCE) proxy_freeze(r->proxies[i], on);
    if (kind == WRONG_CUT) proxy_cut(r->proxies[i], on);
    if (kind == WRONG_DELAY) proxy_delay(r->proxies[i], PROXY_TO_CLIENT, on ? ms : 0);
}

static void do_network(struct rack *r, struct wrong *w, int64_t until_ns) {
    int servers = r->o->victim->servers;
    for (int i = 0; i < servers; i++) {
        if (w->target != i && w->target != servers) continue;
        network(r, w->kind, i, true, w->for_ms);
        if (r->heal_ns[i][w->kind] < until_ns) r->heal_ns[i][w->kind] = until_ns;
    }
    w->ended_ns = 0;
}

static void do_wrong(struct rack *r, struct wrong *w, int64_t now) {
    struct soul *s = &r->souls[w->target % TORTURE_WORKERS];
    struct server *server = &r->servers[w->target % TORTURE_SERVERS];
    int64_t until = now + w->for_ms * NS_PER_MS, *heal = &r->heal_ns[w->target % TORTURE_SERVERS][w->kind];
    r->done[w->kind]++;
    w->began_ns = w->ended_ns = now;
    switch (w->kind) {
    case WRONG_PAUSE:
        if (s->stopped_until_ns) return;
        worker_signal(&s->worker, SIGSTOP);
        s->stopped_until_ns = until;
        return;
    case WRONG_KILL:
        end_hold(r, s, clock_now_ns(), HISTORY_KILLED); /* before: the kernel may free its lock at once */
        worker_signal(&s->worker, SIGKILL);
        worker_end(&s->worker);
        born(r, s);
        return;
    case WRONG_STOP:
        if (server->pid) server_kill(server, SIGSTOP);
        break;
    case WRONG_RESTART:
        if (r->heal_ns[w->target][WRONG_STOP]) return;
        server_kill(server, server->quit);
        break;
    case WRONG_FORGET:
        if (server->pid && !r->heal_ns[w->target][WRONG_STOP]) r->o->victim->forget(server);
        w->ended_ns = clock_now_ns(); /* a busy machine is late */
        return;
    default: do_network(r, w, until); return;
    }
    if (*heal < until) *heal = until;
    w->ended_ns = 0;
}

static void heal(struct rack *r, int i, enum wrong_kind kind) {
    r->heal_ns[i][kind] = 0;
    for (int n = 0; n < r->next_wrong; n++) {
        struct wrong *w = &r->wrongs[n];
        bool open = w->began_ns && !w->ended_ns;
        if (open && w->kind == kind && (w->target == i || w->target == r->o->victim->servers))
            w->ended_ns = clock_now_ns();
    }
    if (kind == WRONG_STOP) server_kill(&r->servers[i], SIGCONT);
    else if (kind == WRONG_RESTART && !r->servers[i].pid) server_begin(&r->servers[i]);
    else if (kind != WRONG_RESTART) network(r, kind, i, false, 0);
}

/* PostgreSQL gives up where a process of its predecessor is not gone yet: again, as whoever supervises it would. */
static void revive(struct rack *r) {
    for (int i = 0; i < r->o->victim->servers; i++) {
        struct server *s = &r->servers[i];
        if (s->pid && waitpid(s->pid, NULL, WNOHANG) == s->pid) server_begin(s);
    }
}

/* Does what is due; returns when the next thing is. */
static int64_t turn_wheel(struct rack *r, int64_t now) {
    int64_t due = INT64_MAX;
    for (; r->next_wrong < r->n_wrongs; r->next_wrong++) {
        int64_t at = r->began_ns + r->wrongs[r->next_wrong].at_ms * NS_PER_MS;
        if (at > now) {
            due = at;
            break;
        }
        do_wrong(r, &r->wrongs[r->next_wrong], now);
    }
    for (int i = 0; i < TORTURE_SERVERS; i++)
        for (int k = 0; k < WRONGS; k++) {
            int64_t at = r->heal_ns[i][k];
            if (at && at <= now) heal(r, i, (enum wrong_kind)k);
            else if (at && at < due) due = at;
        }
    for (int i = 0; i < TORTURE_WORKERS; i++) {
        struct soul *s = &r->souls[i];
        if (s->stopped_until_ns && s->stopped_until_ns <= now) {
            s->stopped_until_ns = 0;
            worker_signal(&s->worker, SIGCONT);
        } else if (s->stopped_until_ns && s->stopped_until_ns < due) due = s->stopped_until_ns;
        if (s->state != IDLE && s->state != HOLDING) continue;
        if (s->due_ns <= now) next(r, s, now);
        else if (s->due_ns < due) due = s->due_ns;
    }
    return due;
}

static void progress(const struct rack *r, int64_t now, int64_t end_ns) {
    fprintf(stderr,
            "torture %s: %" PRId64 " s of %" PRId64 ": %" PRIu64 " grants, %" PRIu64 " lost, %" PRIu64
            " writes, %" PRIu64 " refused, %d things went wrong (seed %" PRId64 ")\n",
            r->o->victim->name, (now - r->began_ns) / NS_PER_S, (end_ns - r->began_ns) / NS_PER_S, r->grants, r->lost,
            r->accepted, r->refused, r->next_wrong, r->o->seed);
}

/* All were, or they are not going to be: a slow machine is given a minute more. */
static bool is_over(const struct rack *r, int64_t now, int64_t end) {
    return now >= end && (rack_stuck(r) == 0 || now >= end + 60 * NS_PER_S);
}

static void rack_run(struct rack *r) {
    int64_t end = r->began_ns + torture_length_ms(r->o) * NS_PER_MS, report = r->began_ns + 10 * NS_PER_S, check = 0;
    for (int64_t now; !is_over(r, now = clock_now_ns(), end) && !lab_interrupted;) {
        struct pollfd fds[TORTURE_WORKERS];
        int64_t due = turn_wheel(r, now);
        if (check < now) {
            revive(r);
            check = now + 200 * NS_PER_MS;
        }
        if (check < due) due = check;
        if (report < now) {
            progress(r, now, end);
            report += 10 * NS_PER_S;
        }
        if (report < due) due = report;
        if (now < end && end < due) due = end;
        for (int i = 0; i < TORTURE_WORKERS; i++)
            fds[i] = (struct pollfd){.fd = r->souls[i].worker.sock, .events = POLLIN};
        if (poll(fds, TORTURE_WORKERS, clock_poll_ms(clock_now_ns(), due)) <= 0) continue;
        for (int i = 0; i < TORTURE_WORKERS; i++)
            if (fds[i].revents) hear(r, &r->souls[i]);
    }
}

/* --- set up and tear down --- */

/* What the workers are given: the second half of them goes through the proxies. */
static void cast(struct rack *r) {
    const struct victim *v = r->o->victim;
    bool plain = stage_planted("plain"), open = plain || stage_planted("open-guard");
    snprintf(r->file, sizeof r->file, "%s/resource", r->dir);
    for (int i = 0; i < TORTURE_WORKERS; i++) {
        struct soul *s = &r->souls[i];
        struct proxy *const *proxies = i >= TORTURE_WORKERS / 2 ? r->proxies : NULL;
        victim_url(v, r->servers, proxies, r->dir, s->url, sizeof s->url);
        if (r->o->own_guard) victim_guard(v, r->servers, proxies, r->dir, s->guard, sizeof s->guard);
        else snprintf(s->guard, sizeof s->guard, "dir:%s/guard", r->dir);
        s->part = (struct part){.url = s->url,
                                .plain = plain ? v->plain : NULL,
                                .ttl_ms = v->ttl_ms,
                                .lock = "lock",
                                .guard = open ? NULL : s->guard,
                                .guard_wait_ms = 2 * v->ttl_ms, /* else it may outlast the calm at the end */
                                .file = r->file};
    }
}

static int prepare(const char *url) {
    pawl_error error = PAWL_ERROR_INIT;
    pawl_client *client;
    int code = pawl_open(url, NULL, &client, &error);
    if (code) return lab_complain("%s", error.text);
    int64_t end = clock_after_ms(clock_now_ns(), 60000);
    do code = pawl_init(client, 20000, &error);
    while ((code == PAWL_EUNREACHABLE || code == PAWL_EUNSAFE) && clock_now_ns() < end && !lab_interrupted);
    pawl_close(client);
    return code && code != PAWL_EUNSUPPORTED ? lab_complain("%s", error.text) : LAB_OK;
}

static int rack_start(struct rack *r) {
    const struct victim *v = r->o->victim;
    char guard[96], locks[96];
    snprintf(r->dir, sizeof r->dir, "%.40s/rack", getenv("TMPDIR"));
    snprintf(guard, sizeof guard, "%s/guard", r->dir);
    snprintf(locks, sizeof locks, "%s/locks", r->dir);
    if (mkdir(r->dir, 0700) || mkdir(guard, 0700) || mkdir(locks, 0700))
        return lab_complain("cannot make %s: %s", r->dir, strerror(errno));
    v->start(r->servers);
    for (int i = 0; i < v->servers; i++) r->proxies[i] = proxy_start(r->servers[i].port);
    cast(r);
    int code = prepare(r->souls[0].url);
    if (code) return code;
    r->began_ns = clock_now_ns();
    for (int i = 0; i < TORTURE_WORKERS; i++) born(r, &r->souls[i]);
    return LAB_OK;
}

static void rack_stop(struct rack *r) {
    int64_t now = clock_now_ns();
    for (int i = 0; i < TORTURE_WORKERS; i++) {
        if (!r->souls[i].worker.pid) continue;
        end_hold(r, &r->souls[i], now, HISTORY_RELEASED);
        worker_end(&r->souls[i].worker);
    }
    for (int i = 0; i < TORTURE_SERVERS; i++) {
        proxy_stop(r->proxies[i]);
        if (r->servers[i].dir[0]) server_stop(&r->servers[i]);
    }
}

/* --- the verb --- */

static int print_schedule(const struct torture *o) {
    struct wrong *wrongs;
    int n = torture_schedule(o->victim, (uint64_t)o->seed, torture_length_ms(o), torture_calm_ms(o), &wrongs);
    printf("torture %s, %g minutes, seed %" PRId64 "\n", o->victim->name, o->minutes, o->seed);
    for (int i = 0; i < n; i++)
        printf("%9.3f s  %-8s %d  %" PRId64 " ms\n", (double)wrongs[i].at_ms / 1e3, wrong_name(wrongs[i].kind),
               wrongs[i].target, wrongs[i].for_ms);
    free(wrongs);
    return LAB_OK;
}

static int torture(const void *options) {
    static struct rack r;
    const struct torture *o = options;
    r.o = o;
    r.history = history_new();
    r.n_wrongs = torture_schedule(o->victim, (uint64_t)o->seed, torture_length_ms(o), torture_calm_ms(o), &r.wrongs);
    if (o->save && !(r.save = fopen(o->save, "we")))
        return lab_complain("cannot write %s: %s", o->save, strerror(errno));
    int code = rack_start(&r);
    if (code == LAB_OK) rack_run(&r);
    rack_stop(&r);
    if (r.save && fclose(r.save)) code = lab_complain("cannot write %s: %s", o->save, strerror(errno));
    if (lab_interrupted) return LAB_INTERRUPTED;
    if (code) return code;
    code = rack_judge(&r);
    history_free(r.history);
    return code;
}

static int parse(int argc, char **argv, struct torture *o) {
    enum { BACKEND = 256, MINUTES, SEED, SCHEDULE, GUARD, SAVE, JSON };
    static const struct option longs[] = {
        {"backend", 1, NULL, BACKEND},   {"minutes", 1, NULL, MINUTES}, {"seed", 1, NULL, SEED},
        {"schedule", 0, NULL, SCHEDULE}, {"guard", 1, NULL, GUARD},     {"save", 1, NULL, SAVE},
        {"json", 0, NULL, JSON},         {"help", 0, NULL, 'h'},        {0}};
    int c;
    char *end;
    opterr = 0;
    while ((c = getopt_long(argc, argv, ":h", longs, NULL)) != -1) switch (c) {
        case BACKEND:
            for (int i = 0; victims[i]; i++)
                if (strcmp(victims[i]->name, optarg) == 0) o->victim = victims[i];
            if (!o->victim)
                return lab_complain("--backend wants file, redis, redlock, postgresql or etcd, not %s", optarg);
            break;
        case MINUTES:
            o->minutes = strtod(optarg, &end);
            if (*end || !(o->minutes >= .3 && o->minutes <= 10000))
                return lab_complain("--minutes wants a number from 0.3 to 10000, not %s", optarg);
            break;
        case SEED:
            if (!lab_number(optarg, 0, INT64_MAX, &o->seed))
                return lab_complain("--seed wants a whole number from 0 to %" PRId64 ", not %s", (int64_t)INT64_MAX,
                                    optarg);
            break;
        case SCHEDULE: o->schedule = true; break;
        case GUARD:
            o->own_guard = strcmp(optarg, "service") == 0;
            if (!o->own_guard && strcmp(optarg, "dir") != 0)
                return lab_complain("--guard wants dir or service, not %s", optarg);
            break;
        case SAVE: o->save = optarg; break;
        case JSON: o->json = true; break;
        case 'h': fputs(help, stdout); exit(LAB_OK);
        case ':': return lab_complain("%s wants a value", argv[optind - 1]);
        default: return lab_complain("unknown option: %s", argv[optind - 1]);
        }
    if (optind != argc || !o->victim) return lab_complain("torture wants --backend\n%s", help);
    return LAB_OK;
}

int lab_torture(int argc, char **argv) {
    struct torture o = {.minutes = 1, .seed = clock_wall_us() % 1000000};
    int code = parse(argc, argv, &o);
    if (code || o.schedule) return code ? code : print_schedule(&o);
    return lab_in_folder(torture, &o, true);
}
