#include "world.h"
#include "client.h"
#include "clock.h"
#include "fault.h"
#include "leased.h"
#include "mem/mem.h"
#include "pawl.h"
#include "scheduler.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLIENTS 4
#define USERS 2
#define NAMES 2
#define ATTEMPTS_MAX 128
#define FAULTY_NS (20 * NS_PER_S) /* so long things go wrong */
#define END_NS (200 * NS_PER_S)   /* and then everything is over by this time */
#define WOKEN_NS (200 * NS_PER_MS)

extern const struct backend mem_backend;
bool world_traced;

const char *const law_names[LAWS] = {
    "no law",      "one holder",  "held is held",    "lost for good", "true loss",    "loss is told",
    "token rises", "local order", "woken when free", "calls end",     "nothing left", "contract kept",
};

struct client {
    struct host host;
    struct fault *fault;
    pawl_client *pawl;
    int number;
    int users;  /* that have not ended */
    bool ended; /* keeper too */
};

/* One acquisition, as its user sees it. */
struct attempt {
    struct client *client;
    pawl_lock *lock;
    int name, order;
    bool shared, event_form, pending, told, released, lost, was_lost;
    int64_t began_ns, last_safe_ns, token;
    int granted_events, failed_events, lost_events;
};

static struct {
    uint64_t seed;
    struct outcome *out;
    struct client clients[CLIENTS];
    struct attempt attempts[ATTEMPTS_MAX];
    int n_attempts;
    struct attempt *told[CLIENTS * USERS];
    int n_told;
    int64_t highest[NAMES], highest_exclusive[NAMES], start_ns, not_held_since_ns[NAMES];
    bool quiet, late, leased; /* leased: all locks of a client hang on one life, as etcd has it */
    struct bk *bk;            /* past all faults */
    struct bk_session *session;
} world;

static const struct bk_until whenever = {INT64_MAX, -1};

static void __attribute__((format(printf, 2, 3))) broken(enum law law, const char *format, ...) {
    if (world.out->broken) return;
    world.out->broken = law;
    va_list arguments;
    va_start(arguments, format);
    int n = snprintf(world.out->text, sizeof world.out->text,
                     "at %lld ms: ", (long long)((virtual_true_ns() - world.start_ns) / NS_PER_MS));
    vsnprintf(world.out->text + n, sizeof world.out->text - (size_t)n, format, arguments);
    va_end(arguments);
}

/* What happens, as comments in the TAP. */
static void __attribute__((format(printf, 2, 3))) trace(const struct client *c, const char *format, ...) {
    if (!world_traced) return;
    va_list arguments;
    va_start(arguments, format);
    int64_t us = (virtual_true_ns() - world.start_ns) / 1000;
    printf("# %6lld.%03lld client %d: ", (long long)(us / 1000), (long long)(us % 1000), c->number);
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
}

static void observed(const pawl_event *event, const char *name, void *data) {
    static const char *const types[] = {"",           "granted",  "failed",  "lost",   "doubt",
                                        "doubt over", "released", "waiting", "renewed"};
    trace(data, "%s %s, token %lld, code %d %s", name, event->type <= PAWL_RENEWED ? types[event->type] : "?",
          (long long)event->token, event->code, event->text);
}

static void name_text(int name, char ret[32]) { snprintf(ret, 32, "%llu/%d", (unsigned long long)world.seed, name); }

static bool calm(void) { return world.quiet || virtual_true_ns() - world.start_ns >= FAULTY_NS; }

/* --- what must hold --- */

static bool excludes(const struct attempt *a, const struct attempt *b) {
    return a->name == b->name && !(a->shared && b->shared);
}

static bool at_service(const struct attempt *a) {
    return mem_backend.prove(world.session, &a->lock->grant, whenever, NULL) == BK_YES;
}

static void check_told(struct attempt *a) {
    bool held = pawl_check(a->lock) == PAWL_OK;
    int64_t safe = lock_safe_until(a->lock), now = virtual_read_ns(&a->client->host.clock);
    if (held && a->lost) broken(LAW_LOST_FOR_GOOD, "client %d, token %lld", a->client->number, (long long)a->token);
    if (held && !at_service(a))
        broken(LAW_HELD_IS_HELD, "client %d, token %lld, %lld ms left", a->client->number, (long long)a->token,
               (long long)pawl_remaining_ms(a->lock));
    if (safe == INT64_MIN && a->last_safe_ns > now && at_service(a))
        broken(LAW_TRUE_LOSS, "client %d, token %lld, %lld ms before the deadline", a->client->number,
               (long long)a->token, (long long)((a->last_safe_ns - now) / NS_PER_MS));
    a->last_safe_ns = safe;
    if (!held) a->lost = world.out->loss = true;
    for (int i = 0; held && i < world.n_told; i++) {
        const struct attempt *b = world.told[i];
        if (b != a && excludes(a, b) && pawl_check(b->lock) == PAWL_OK)
            broken(LAW_ONE_HOLDER, "clients %d and %d, tokens %lld and %lld", a->client->number, b->client->number,
                   (long long)a->token, (long long)b->token);
    }
}

static bool count_holder(const struct bk_record *record, void *data) {
    int *exclusive = data;
    if (record->place == 0) *exclusive += record->shared ? 1 : 1000;
    return true;
}

static void check_service(int name) {
    char text[32];
    int holders = 0;
    name_text(name, text);
    mem_backend.records(world.session, text, count_holder, &holders, whenever, NULL);
    if (holders > 1000) broken(LAW_ONE_HOLDER, "the service has more than one for %s", text);
}

static bool after_step(void *data) {
    (void)data;
    world.out->steps++;
    bool held[NAMES] = {false};
    for (int i = 0; i < world.n_told; i++) {
        check_told(world.told[i]);
        held[world.told[i]->name] = true;
    }
    for (int i = 0; i < NAMES; i++)
        if (held[i]) world.not_held_since_ns[i] = INT64_MAX;
        else if (world.not_held_since_ns[i] == INT64_MAX) world.not_held_since_ns[i] = virtual_true_ns();
    struct client *c = &world.clients[sched_between(0, CLIENTS - 1)];
    if (!calm() && sched_chance(4))
        c->host.paused_until_ns = virtual_true_ns() + sched_between(1, sched_chance(200) ? 8000 : 800) * NS_PER_MS;
    if (sched_chance(50)) check_service((int)sched_between(0, NAMES - 1));
    if (world.late && sched_chance(20)) fault_arrive(c->fault);
    return !world.out->broken;
}

/* Where nothing goes wrong, nobody waits long for what is free. */
static bool before_step(void *data) {
    (void)data;
    int64_t now = virtual_true_ns();
    for (int i = 0; world.quiet && i < world.n_attempts; i++) {
        const struct attempt *a = &world.attempts[i];
        int64_t since = world.not_held_since_ns[a->name];
        if (!a->pending || since == INT64_MAX || now - since < WOKEN_NS || now - a->began_ns < WOKEN_NS) continue;
        broken(LAW_WOKEN, "client %d has waited for %lld ms, the lock is free since %lld ms", a->client->number,
               (long long)((now - a->began_ns) / NS_PER_MS), (long long)((now - since) / NS_PER_MS));
    }
    return !world.out->broken;
}

/* --- telling --- */

static void tell_held(struct attempt *a) {
    int64_t token = pawl_token(a->lock);
    world.out->grants++;
    if (a->lock->contact) world.out->hand_over = true;
    if (pawl_check(a->lock) == PAWL_OK && token <= (a->shared ? world.highest_exclusive : world.highest)[a->name])
        broken(LAW_TOKEN_RISES, "token %lld after %lld", (long long)token, (long long)world.highest[a->name]);
    if (token > world.highest[a->name]) world.highest[a->name] = token;
    if (!a->shared && token > world.highest_exclusive[a->name]) world.highest_exclusive[a->name] = token;
    for (int i = 0; i < world.n_attempts; i++) {
        const struct attempt *b = &world.attempts[i];
        if (b->pending && b->client == a->client && b->order < a->order && excludes(a, b))
            broken(LAW_LOCAL_ORDER, "client %d: attempt %d before %d", a->client->number, a->order, b->order);
    }
    a->token = token;
    a->last_safe_ns = lock_safe_until(a->lock);
    a->told = true;
    world.told[world.n_told++] = a;
}

static void untell(struct attempt *a) {
    for (int i = 0; i < world.n_told; i++)
        if (world.told[i] == a) world.told[i] = world.told[--world.n_told];
    a->told = false;
}

/* Takes what events there are, for whichever user of the client. */
static void take_events(struct client *c) {
    pawl_event event = PAWL_EVENT_INIT;
    while (pawl_next_event(c->pawl, &event)) {
        struct attempt *a = event.user;
        if (a->released) broken(LAW_LOSS_TOLD, "an event after the release");
        if (event.type == PAWL_GRANTED) {
            a->granted_events++;
            a->pending = false;
            tell_held(a);
        } else if (event.type == PAWL_FAILED) {
            a->failed_events++;
            a->pending = false;
        } else if (event.type == PAWL_LOST) {
            a->lost_events++;
        }
        if (a->granted_events + a->failed_events > 1 || a->lost_events > a->granted_events)
            broken(LAW_LOSS_TOLD, "%d granted, %d failed, %d lost of one lock", a->granted_events, a->failed_events,
                   a->lost_events);
    }
}

static bool event_waits(void *data) {
    struct attempt *a = data;
    const pawl_client *c = a->client->pawl;
    return c->event_first || !a->pending || client_now(c) >= c->earliest_ns;
}

/* --- users --- */

static void nap(struct client *c, int64_t ms) {
    (void)c;
    sched_wait(virtual_true_ns() + ms * NS_PER_MS, NULL, NULL);
}

static void hold(struct attempt *a) {
    struct client *c = a->client;
    int64_t ttl = c->pawl->options.ttl_ms;
    int64_t end = virtual_true_ns() + sched_between(0, sched_chance(300) ? 3 * ttl : 60) * NS_PER_MS;
    while (virtual_true_ns() < end && pawl_check(a->lock) == PAWL_OK) {
        nap(c, sched_between(1, ttl / 4));
        if (a->event_form) take_events(c);
        if (a->event_form && pawl_check(a->lock) != PAWL_OK) {
            take_events(c);
            if (a->lost_events != 1) broken(LAW_LOSS_TOLD, "%d events of one loss", a->lost_events);
        }
    }
}

static void let_go(struct attempt *a) {
    pawl_error error = PAWL_ERROR_INIT;
    if (a->told) untell(a);
    a->released = true;
    a->pending = false;
    bool lost = a->lock->state == LOCK_LOST;
    int64_t wait_ms = sched_chance(500) ? 0 : 1000;
    trace(a->client, "lets go of attempt %d, waits %lld ms", a->order, (long long)wait_ms);
    int code = pawl_release(a->lock, wait_ms, &error);
    if (lost && code != PAWL_ELOST) broken(LAW_LOSS_TOLD, "the release of a lost lock says that all is well");
}

static struct attempt *begin_attempt(struct client *c, pawl_acquire_options *o, char name[32]) {
    static const int64_t waits[] = {0, 20, 300, 3000, 10000, PAWL_FOREVER};
    if (world.n_attempts == ATTEMPTS_MAX) return NULL;
    struct attempt *a = &world.attempts[world.n_attempts];
    *a = (struct attempt){.client = c,
                          .name = (int)sched_between(0, NAMES - 1),
                          .order = world.n_attempts,
                          .shared = sched_chance(200),
                          .pending = true,
                          .began_ns = virtual_true_ns()};
    trace(c, "attempt %d of name %d%s begins", a->order, a->name, a->shared ? ", shared" : "");
    world.n_attempts++;
    o->shared = a->shared;
    o->wait_ms = waits[sched_between(0, 5)];
    name_text(a->name, name);
    return a;
}

static void blocking(struct client *c) {
    pawl_acquire_options o = PAWL_ACQUIRE_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    char name[32];
    struct attempt *a = begin_attempt(c, &o, name);
    if (!a) return;
    int code = pawl_acquire(c->pawl, name, &o, &a->lock, &error);
    a->pending = false;
    if (code == PAWL_EINTERNAL || code == PAWL_EINVALID || code == PAWL_ECANCELLED || code == PAWL_ELOST)
        broken(LAW_CONTRACT, "acquire: %d %s", code, error.text);
    if (code) return;
    tell_held(a);
    hold(a);
    let_go(a);
}

static void event_form(struct client *c) {
    pawl_acquire_options o = PAWL_ACQUIRE_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    char name[32];
    struct attempt *a = begin_attempt(c, &o, name);
    if (!a) return;
    a->event_form = true;
    int code = pawl_acquire_start(c->pawl, name, &o, a, &a->lock, &error);
    if (code) { /* a try that this very process refuses */
        a->pending = false;
        if (code != PAWL_EBUSY) broken(LAW_CONTRACT, "acquire_start: %d %s", code, error.text);
        return;
    }
    int64_t patience = virtual_true_ns() + (sched_chance(100) ? sched_between(0, 2000) : 300000) * NS_PER_MS;
    while (a->pending && virtual_true_ns() < patience) {
        int64_t at = virtual_when_ns(&c->host.clock, c->pawl->earliest_ns);
        sched_wait(at < patience ? at : patience, event_waits, a);
        take_events(c);
    }
    if (a->told) hold(a);
    let_go(a);
}

static void user(void *data) {
    struct client *c = data;
    for (int i = 0; i < 6 && !(calm() && !world.quiet); i++) {
        nap(c, sched_between(0, 150));
        if (sched_chance(500)) blocking(c);
        else event_form(c);
    }
    c->users--;
}

/* --- the keeper's thread --- */

static bool poked(void *data) {
    const struct client *c = data;
    const pawl_client *pawl = c->pawl;
    return pawl->keeper_sleeps_until_ns == INT64_MIN ||
           (hub_keeper_listens_locked(pawl) && sched_fd_readable(pawl->be->hub_fd(pawl->bk))) || (c->users == 0 && pawl->n_locks == 0);
}

static void keeper(void *data) {
    struct client *c = data;
    pawl_client *pawl = c->pawl;
    while (c->users > 0 || pawl->n_locks > 0) {
        int64_t next = keeper_run(pawl);
        sched_wait(virtual_when_ns(&c->host.clock, next), poked, c);
        pawl->keeper_sleeps_until_ns = INT64_MIN;
    }
    c->ended = true;
}

/* --- the network --- */

static bool pass(enum fault_leg leg, int64_t until_ns, void *data) {
    struct client *c = data;
    int64_t now = virtual_true_ns(), until = virtual_when_ns(&c->host.clock, until_ns);
    int64_t at = now + sched_between(0, calm() || sched_chance(900) ? 2000 : 400000) * 1000;
    if (calm() && !world.quiet) fault_calm(c->fault);
    bool arrives = leg != FAULT_TIMED_OUT && at < until;
    if (leg == FAULT_TIMED_OUT || !arrives) trace(c, "a question is lost");
    if (!arrives) at = until == INT64_MAX ? now + 10 * NS_PER_S : until;
    sched_wait(at, NULL, NULL);
    return arrives;
}

static void make_faults(struct client *c) {
    static const enum fault_op ops[] = {FAULT_TAKE,  FAULT_FORGET, FAULT_RELEASE,
                                        FAULT_RENEW, FAULT_LIFE,   FAULT_CONNECT};
    c->fault = fault_new(sched_random());
    if (!c->fault) abort();
    fault_pass(c->fault, pass, c);
    unsigned bad = world.quiet ? 0 : (unsigned)sched_between(5, 60);
    for (int i = 0; i < 6; i++) {
        fault_odds(c->fault, ops[i], FAULT_REQUEST_LOST, bad);
        fault_odds(c->fault, ops[i], FAULT_REPLY_LOST, bad);
        fault_odds(c->fault, ops[i], FAULT_REFUSED, bad / 2);
        if (ops[i] == FAULT_CONNECT) continue;
        fault_odds(c->fault, ops[i], FAULT_TWICE, ops[i] == FAULT_RELEASE ? 0 : bad);
        fault_odds(c->fault, ops[i], FAULT_LATE, world.late ? bad / 2 : 0);
    }
    fault_odds(c->fault, FAULT_HUB, FAULT_REQUEST_LOST, bad);
    fault_odds(c->fault, FAULT_HUB, FAULT_REFUSED, bad / 4);
}

/* --- one seed --- */

static int64_t host_now(void *data) {
    const struct client *c = data;
    return virtual_read_ns(&c->host.clock);
}

static void make_client(struct client *c, int number) {
    pawl_options options = PAWL_OPTIONS_INIT;
    pawl_error error = PAWL_ERROR_INIT;
    struct url *url;
    struct bk *bk;
    char label[2] = {(char)('0' + number), 0};
    options.label = label;
    options.observe = world_traced ? observed : NULL;
    options.observe_data = c;
    *c = (struct client){.number = number, .users = USERS};
    c->host.clock = (struct virtual_clock){sched_between(0, 1000) * NS_PER_S, sched_between(-4000, 4000)};
    make_faults(c);
    const struct backend *backend = fault_backend(c->fault, world.leased ? leased_backend() : &mem_backend);
    options.ttl_ms = sched_chance(500) ? sched_between(300, 1000) : sched_between(1000, 5000);
    if (url_parse("mem:sim", &url, &error) || backend->open(url, &bk, &error) != BK_YES ||
        client_new(backend, bk, url, &options, &c->pawl, &error))
        abort();
    c->pawl->manual = true;
    c->pawl->now = host_now;
    c->pawl->now_data = c;
    sched_spawn(&c->host, keeper, c);
    for (int i = 0; i < USERS; i++) sched_spawn(&c->host, user, c);
}

/* An undo may be given up after some tries and a ttl, so three failures of a client excuse what it leaves. */
static bool excused(const char *about) {
    static const enum fault_kind kinds[] = {FAULT_REQUEST_LOST, FAULT_REPLY_LOST, FAULT_REFUSED};
    const char *label = strstr(about, "label=");
    int failures = 0;
    for (int i = 0; label && i < 3; i++) {
        const struct fault *fault = world.clients[label[6] - '0'].fault;
        failures += fault_count(fault, FAULT_CONNECT, kinds[i]);
        if (kinds[i] != FAULT_REPLY_LOST) failures += fault_count(fault, FAULT_FORGET, kinds[i]);
    }
    return failures >= 3;
}

static bool see_record(const struct bk_record *record, void *data) {
    (void)data;
    if (excused(record->about)) return true;
    if (world.leased && record->place) return true; /* leased.c leaves a place in the queue when its lease ends */
    if (record->place) broken(LAW_NOTHING_LEFT, "a waiter is left in the queue of %s", record->name);
    else if (record->left_ms > 450) /* an undo may end by time, which goes from when the question left */
        broken(LAW_NOTHING_LEFT, "%s is held by nobody for %lld ms more", record->name, (long long)record->left_ms);
    return true;
}

static void open_service(void) {
    struct url *url;
    if (url_parse("mem:sim", &url, NULL) || mem_backend.open(url, &world.bk, NULL) != BK_YES ||
        mem_backend.connect(world.bk, whenever, &world.session, NULL) != BK_YES)
        abort();
    url_free(url);
}

static void end_seed(bool all_ended) {
    char name[32];
    if (!all_ended && !world.out->broken) {
        int open = 0;
        for (int i = 0; i < world.n_attempts; i++) open += world.attempts[i].pending;
        broken(LAW_ENDS, "%d attempts and %d holders have not come to an end", open, world.n_told);
    }
    for (int i = 0; i < NAMES && !world.late; i++) {
        name_text(i, name);
        mem_backend.records(world.session, name, see_record, NULL, whenever, NULL);
    }
    for (int i = 0; i < CLIENTS; i++) {
        struct client *c = &world.clients[i];
        if (fault_misuses(c->fault)) broken(LAW_CONTRACT, "a session was used after it had failed");
        world.out->repeat = world.out->repeat || fault_repeats(c->fault);
        for (enum fault_kind kind = FAULT_NONE; kind < FAULT_KINDS; kind++)
            world.out->undo = world.out->undo || fault_count(c->fault, FAULT_FORGET, kind);
        if (world.out->broken) continue; /* its threads are in the middle of something */
        pawl_close(c->pawl);
        fault_free(c->fault);
    }
    mem_backend.drop(world.session, false);
    mem_backend.close(world.bk, false);
}

void world_run(uint64_t seed, struct outcome *ret) {
    *ret = (struct outcome){0};
    memset(&world, 0, sizeof world);
    world.seed = seed;
    world.out = ret;
    virtual_set_ns(INT64_C(1000000000000));
    mem_clock = virtual_true_ns;
    sched_start(seed);
    world.start_ns = virtual_true_ns();
    world.quiet = ret->quiet = sched_chance(250);
    world.leased = sched_chance(300);
    world.late = !world.quiet && !world.leased && sched_chance(500);
    for (int i = 0; i < NAMES; i++) world.not_held_since_ns[i] = world.start_ns;
    open_service();
    for (int i = 0; i < CLIENTS; i++) make_client(&world.clients[i], i);
    bool all_ended = sched_run(world.start_ns + END_NS, before_step, after_step, NULL);
    end_seed(all_ended);
}
