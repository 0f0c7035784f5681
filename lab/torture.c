/* torture.c: pawl-lab torture: workers that take locks and write, while processes, networks and servers go wrong by a
 * schedule; then the history is judged against what docs/GUARANTEES.md promises. One thread drives all. */
#include "torture.h"
#include "clock.h"
#include "folder.h"
#include "lab.h"
#include "pawl_guard.h"
#include "stage.h"
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char help[] = "usage: pawl-lab torture --backend NAME [options]\n"
                           "  --backend NAME   file, redis, redlock, postgresql, etcd\n"
                           "  --minutes N      how long; 1 if not said\n"
                           "  --seed S         decides what goes wrong when\n"
                           "  --schedule       print that, and do nothing\n"
                           "  --save FILE      the history, for pawl-lab check\n"
                           "  --json           the verdict as one JSON object\n"
                           "exit: 0 every promise was kept, 1 one was not, 125 nothing can be said, 130 interrupted\n";

struct options {
    const struct victim *victim;
    double minutes;
    int64_t seed;
    bool schedule, json;
    const char *save;
};

/* At the end nothing goes wrong for a while, and everybody must be served. */
static int64_t calm_ms(const struct options *o) { return 8000 + 2 * o->victim->ttl_ms; }
static int64_t length_ms(const struct options *o) { return (int64_t)(o->minutes * 60e3); }

enum state { IDLE, TAKING, HOLDING, WRITING, RELEASING };
struct soul { /* a worker and what it is about */
    struct worker worker;
    struct part part;
    char name[24], url[256];
    uint64_t random;
    int incarnation;
    enum state state;
    int64_t due_ns, asked_ns, last_grant_ns;
    struct history_event hold; /* what: HISTORY_HOLD while one is open, else HISTORY_WHATS */
    char lock[24];
    int64_t stopped_until_ns; /* 0: it runs */
};

struct rack {
    const struct options *o;
    char dir[64], guard[96];
    struct server servers[TORTURE_SERVERS];
    struct proxy *proxies[TORTURE_SERVERS];
    int64_t heal_ns[TORTURE_SERVERS][WRONGS]; /* 0: whole */
    struct soul souls[TORTURE_WORKERS];
    struct wrong *wrongs;
    int n_wrongs, next_wrong, done[WRONGS];
    int64_t began_ns;
    struct history *history;
    FILE *save;
    struct history_event *holds; /* once more, to tell which overlaps are admitted */
    int n_holds;
    uint64_t grants, busy, failed, lost, accepted, refused, told_lost;
    char last_failure[300];
};

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

static void order(struct soul *s, enum worker_does does, int64_t wait_ms, enum state state) {
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
    return now > r->began_ns + (length_ms(r->o) - calm_ms(r->o)) * NS_PER_MS;
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

static void do_network(struct rack *r, const struct wrong *w, int64_t until_ns) {
    int servers = r->o->victim->servers;
    for (int i = 0; i < servers; i++) {
        if (w->target != i && w->target != servers) continue;
        network(r, w->kind, i, true, w->for_ms);
        r->heal_ns[i][w->kind] = until_ns;
    }
}

static void do_wrong(struct rack *r, const struct wrong *w, int64_t now) {
    struct soul *s = &r->souls[w->target % TORTURE_WORKERS];
    struct server *server = &r->servers[w->target % TORTURE_SERVERS];
    int64_t until = now + w->for_ms * NS_PER_MS, *heal = &r->heal_ns[w->target % TORTURE_SERVERS][w->kind];
    r->done[w->kind]++;
    switch (w->kind) {
    case WRONG_PAUSE:
        if (s->stopped_until_ns) return;
        worker_signal(&s->worker, SIGSTOP);
        s->stopped_until_ns = until;
        return;
    case WRONG_KILL:
        worker_signal(&s->worker, SIGKILL);
        end_hold(r, s, clock_now_ns(), HISTORY_KILLED);
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
        return;
    default: do_network(r, w, until); return;
    }
    *heal = until;
}

static void heal(struct rack *r, int i, enum wrong_kind kind) {
    r->heal_ns[i][kind] = 0;
    if (kind == WRONG_STOP) server_kill(&r->servers[i], SIGCONT);
    else if (kind == WRONG_RESTART && !r->servers[i].pid) server_begin(&r->servers[i]);
    else if (kind != WRONG_RESTART) network(r, kind, i, false, 0);
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

static void rack_run(struct rack *r) {
    int64_t end = r->began_ns + length_ms(r->o) * NS_PER_MS, report = r->began_ns + 10 * NS_PER_S;
    for (int64_t now; (now = clock_now_ns()) < end && !lab_interrupted;) {
        struct pollfd fds[TORTURE_WORKERS];
        int64_t due = turn_wheel(r, now);
        if (report < now) {
            progress(r, now, end);
            report += 10 * NS_PER_S;
        }
        if (report < due) due = report;
        if (end < due) due = end;
        for (int i = 0; i < TORTURE_WORKERS; i++)
            fds[i] = (struct pollfd){.fd = r->souls[i].worker.sock, .events = POLLIN};
        if (poll(fds, TORTURE_WORKERS, clock_poll_ms(clock_now_ns(), due)) <= 0) continue;
        for (int i = 0; i < TORTURE_WORKERS; i++)
            if (fds[i].revents) hear(r, &r->souls[i]);
    }
}

/* --- set up and tear down --- */

static int rack_start(struct rack *r) {
    const struct victim *v = r->o->victim;
    pawl_error error = PAWL_ERROR_INIT;
    pawl_client *client;
    snprintf(r->dir, sizeof r->dir, "%.40s/rack", getenv("TMPDIR"));
    snprintf(r->guard, sizeof r->guard, "dir:%s/guard", r->dir);
    char locks[96];
    snprintf(locks, sizeof locks, "%s/locks", r->dir);
    if (mkdir(r->dir, 0700) || mkdir(r->guard + 4, 0700) || mkdir(locks, 0700))
        return lab_complain("cannot make %s: %s", r->dir, strerror(errno));
    v->start(r->servers);
    for (int i = 0; i < v->servers; i++) r->proxies[i] = proxy_start(r->servers[i].port);
    for (int i = 0; i < TORTURE_WORKERS; i++) {
        struct soul *s = &r->souls[i];
        victim_url(v, r->servers, v->servers && i >= TORTURE_WORKERS / 2 ? r->proxies : NULL, r->dir, s->url,
                   sizeof s->url);
        s->part = (struct part){.url = s->url,
                                .ttl_ms = v->ttl_ms,
                                .lock = "lock",
                                .guard = stage_planted("open-guard") ? NULL : r->guard,
                                .file = locks};
    }
    int code = pawl_open(r->souls[0].url, NULL, &client, &error);
    if (code == PAWL_OK) {
        code = pawl_init(client, 20000, &error);
        pawl_close(client);
    }
    if (code && code != PAWL_EUNSUPPORTED) return lab_complain("%s", error.text);
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

/* --- the verdict --- */

struct sentence {
    struct history_verdict v;
    uint64_t overlaps, admitted, stuck;
};

static int by_lock(const void *a, const void *b) {
    const struct history_event *x = a, *y = b;
    int r = strcmp(x->lock, y->lock);
    return r ? r : (x->start > y->start) - (x->start < y->start);
}

/* Something went wrong between the two grants, or during the first, that the promise table admits. */
static bool is_admitted(const struct rack *r, const struct history_event *first, const struct history_event *second) {
    for (int i = 0; i < r->next_wrong; i++) {
        const struct wrong *w = &r->wrongs[i];
        int64_t at = r->began_ns + w->at_ms * NS_PER_MS;
        if (r->o->victim->admitted & 1u << w->kind && at + w->for_ms * NS_PER_MS + 500 * NS_PER_MS > first->start &&
            at < second->start)
            return true;
    }
    return false;
}

static void count_overlaps(struct rack *r, struct sentence *s) {
    if (r->n_holds) qsort(r->holds, (size_t)r->n_holds, sizeof *r->holds, by_lock);
    const struct history_event *last = NULL; /* the one that lasts longest */
    for (int i = 0; i < r->n_holds; i++) {
        const struct history_event *h = &r->holds[i];
        bool same = last && strcmp(last->lock, h->lock) == 0;
        if (same && h->start < last->end) {
            if (is_admitted(r, last, h)) s->admitted++;
            else {
                s->overlaps++;
                fprintf(stderr,
                        "  overlap: %s, token %" PRIu64 " from %.3f s to %.3f s, token %" PRIu64 " from %.3f s\n",
                        h->lock, last->token, (double)(last->start - r->began_ns) / 1e9,
                        (double)(last->end - r->began_ns) / 1e9, h->token, (double)(h->start - r->began_ns) / 1e9);
            }
        }
        if (!same || h->end > last->end) last = h;
    }
}

static struct sentence judge(struct rack *r) {
    struct sentence s = {0};
    history_check(r->history, NULL, &s.v);
    count_overlaps(r, &s);
    for (int i = 0; i < TORTURE_WORKERS; i++)
        s.stuck += r->souls[i].last_grant_ns < r->began_ns + (length_ms(r->o) - 8000) * NS_PER_MS;
    return s;
}

static int tell(struct rack *r, const struct sentence *s) {
    uint64_t fell = s->v.faults[HISTORY_TOKEN_FELL] + s->v.faults[HISTORY_TOKEN_REPEATED],
             stale = s->v.faults[HISTORY_STALE_WRITE];
    uint64_t all = s->overlaps + fell + stale + s->stuck;
    if (r->o->json) {
        json_t *o = json_pack("{s:s,s:f,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:i,s:s}", "backend",
                              r->o->victim->name, "minutes", r->o->minutes, "seed", (json_int_t)r->o->seed, "grants",
                              (json_int_t)r->grants, "lost", (json_int_t)r->lost, "overlaps", (json_int_t)s->overlaps,
                              "overlaps_admitted", (json_int_t)s->admitted, "stale_accepted", (json_int_t)stale,
                              "stale_refused", (json_int_t)r->refused, "token_regressions", (json_int_t)fell, "stuck",
                              (json_int_t)s->stuck, "unreachable", (json_int_t)r->failed, "wrongs", r->next_wrong,
                              "verdict", all ? "violated" : "ok");
        json_dumpf(o, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(o);
    } else {
        printf("torture %s, %.1f minutes, seed %" PRId64 ": %" PRIu64 " grants (%" PRIu64 " lost), %" PRIu64
               " busy, %" PRIu64 " unreachable, %" PRIu64 " writes accepted, %" PRIu64
               " stale ones refused\n  went wrong:",
               r->o->victim->name, r->o->minutes, r->o->seed, r->grants, r->lost, r->busy, r->failed, r->accepted,
               r->refused);
        for (int k = 0; k < WRONGS; k++)
            if (r->done[k]) printf(" %s %d", wrong_name((enum wrong_kind)k), r->done[k]);
        printf("\n  overlaps %" PRIu64 " (and %" PRIu64
               " that the promise table admits), tokens that fell or repeated %" PRIu64
               ", stale writes accepted %" PRIu64 ", stuck at the end %" PRIu64 "\n  %s\n",
               s->overlaps, s->admitted, fell, stale, s->stuck, all ? "VIOLATED" : "ok");
        if (*r->last_failure) printf("  last failure: %s\n", r->last_failure);
        for (int f = 0; f < HISTORY_FAULTS; f++)
            for (uint64_t i = 0; f != HISTORY_OVERLAP && i < s->v.faults[f] && i < HISTORY_EXAMPLES; i++)
                printf("  %s\n", s->v.examples[f][i]);
    }
    return all ? LAB_FOUND : LAB_OK;
}

/* --- the verb --- */

static int print_schedule(const struct options *o) {
    struct wrong *wrongs;
    int n = torture_schedule(o->victim, (uint64_t)o->seed, length_ms(o), calm_ms(o), &wrongs);
    for (int i = 0; i < n; i++)
        printf("%9.3f s  %-8s %d  %" PRId64 " ms\n", (double)wrongs[i].at_ms / 1e3, wrong_name(wrongs[i].kind),
               wrongs[i].target, wrongs[i].for_ms);
    free(wrongs);
    return LAB_OK;
}

static int torture(const void *options) {
    static struct rack r;
    const struct options *o = options;
    r.o = o;
    r.history = history_new();
    r.n_wrongs = torture_schedule(o->victim, (uint64_t)o->seed, length_ms(o), calm_ms(o), &r.wrongs);
    if (o->save && !(r.save = fopen(o->save, "we")))
        return lab_complain("cannot write %s: %s", o->save, strerror(errno));
    int code = rack_start(&r);
    if (code == LAB_OK) rack_run(&r);
    rack_stop(&r);
    if (r.save && fclose(r.save)) code = lab_complain("cannot write %s: %s", o->save, strerror(errno));
    if (lab_interrupted) return 128 + lab_interrupted;
    if (code) return code;
    struct sentence s = judge(&r);
    history_free(r.history);
    return tell(&r, &s);
}

static int parse(int argc, char **argv, struct options *o) {
    enum { BACKEND = 256, MINUTES, SEED, SCHEDULE, SAVE, JSON };
    static const struct option longs[] = {{"backend", 1, NULL, BACKEND}, {"minutes", 1, NULL, MINUTES},
                                          {"seed", 1, NULL, SEED},       {"schedule", 0, NULL, SCHEDULE},
                                          {"save", 1, NULL, SAVE},       {"json", 0, NULL, JSON},
                                          {"help", 0, NULL, 'h'},        {0}};
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
                return lab_complain("--minutes wants a number from 0.3 on, not %s", optarg);
            break;
        case SEED:
            if (!lab_number(optarg, 0, INT64_MAX, &o->seed))
                return lab_complain("--seed wants a number, not %s", optarg);
            break;
        case SCHEDULE: o->schedule = true; break;
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
    struct options o = {.minutes = 1, .seed = clock_wall_us() % 1000000};
    int code = parse(argc, argv, &o);
    if (code || o.schedule) return code ? code : print_schedule(&o);
    return lab_in_folder(torture, &o);
}
