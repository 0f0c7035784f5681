/* tokens.c: the rule of token.h against histories of one service: failovers that lose a tail, siblings, restores,
 * restarts, reverts that nobody sees, and old primaries that go on granting (zombies). The shipped functions stand
 * behind `admit` and `grant`. A history is drawn first and then played; times are microseconds; a burst of n grants
 * takes 10 us a grant.
 *
 * Laws: RISES rightful grants strictly rise; ZOMBIE no zombie has a token as high as one that the guard accepted from
 * the side that replaced it; UNIQUE no token twice; BOUND no honest holder looks like a runaway to a guard whose
 * resource was idle (a day above its clock); HONEST the guard never calls an honest new holder stale. */
#include "token.h"
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define US INT64_C(1000000)
#define HOUR (3600 * US)
#define DAY (24 * HOUR)
#define EPOCH (INT64_C(1790000000) * US)

enum law { RISES = 1, ZOMBIE = 2, UNIQUE = 4, BOUND = 8, HONEST = 16 };
enum kind {
    GRANT,
    ZGRANT,
    WAIT,
    FAILOVER,
    SIBLING,
    RESTART,
    RESTORE,
    WIPE,
    REVERT,
    STORM,
    STEP,
    LEAP,
    ZRESTART,
    KINDS
};

/* --- rules --- */

struct rule {
    const char *name;
    void (*admit)(struct token_state *, int64_t now_us);
    uint64_t (*grant)(struct token_state *, int64_t now_us);
    int64_t bound_us;
};

static uint64_t count_grant(struct token_state *s, int64_t now_us) {
    (void)now_us;
    return ++s->last;
}
static uint64_t clock_grant(struct token_state *s, int64_t now_us) {
    return s->last = s->last + 1 > (uint64_t)now_us ? s->last + 1 : (uint64_t)now_us;
}
static void clock_admit(struct token_state *s, int64_t now_us) {
    if (s->last < (uint64_t)now_us) s->last = (uint64_t)now_us;
}
static void ahead_admit(struct token_state *s, int64_t now_us) {
    clock_admit(s, now_us);
    s->last += UINT64_C(1) << 41;
}

enum { FILE_RULE, COUNT_RULE, CLOCK_RULE, AHEAD_RULE };
static const struct rule rules[] = {
    {"file, etcd: an eighth of the clock", token_admit, token_grant, DAY},
    {"redis, postgresql: count", token_admit, count_grant, DAY},
    {"wrong: the clock alone", clock_admit, clock_grant, DAY},
    {"wrong: 2^41 ahead of the clock", ahead_admit, clock_grant, INT64_C(1) << 43},
};

/* --- histories --- */

struct family {
    const char *name;
    int weight[KINDS];
    int64_t gap_low, gap_high, skew, step;
};
#define BASE [GRANT] = 6, [ZGRANT] = 3, [WAIT] = 3
static const struct family families[] = {
    {"lost tail", {BASE, [FAILOVER] = 2, [RESTART] = 1}, 5 * US, 30 * DAY, 50000, 0},
    {"siblings", {BASE, [FAILOVER] = 2, [SIBLING] = 2, [RESTART] = 1}, 5 * US, 30 * DAY, 50000, 0},
    {"restore", {BASE, [FAILOVER] = 1, [RESTORE] = 2, [WIPE] = 1}, 5 * US, 30 * DAY, 50000, 0},
    {"unseen revert", {[GRANT] = 6, [WAIT] = 4, [REVERT] = 2}, 5 * US, 30 * DAY, 50000, 0},
    {"unseen revert across a restart",
     {[GRANT] = 6, [WAIT] = 4, [REVERT] = 2, [RESTART] = 1},
     5 * US,
     30 * DAY,
     50000,
     0},
    {"clocks half an hour apart",
     {BASE, [FAILOVER] = 2, [SIBLING] = 1, [RESTORE] = 1},
     3 * HOUR,
     60 * DAY,
     HOUR / 2,
     0},
    {"restart storm", {BASE, [STORM] = 2, [FAILOVER] = 1, [WIPE] = 1}, 5 * US, 30 * DAY, 50000, 0},
    {"clock steps back", {BASE, [FAILOVER] = 1, [STEP] = 2}, 3 * HOUR, 30 * DAY, 50000, -HOUR},
    {"restarted zombie", {BASE, [FAILOVER] = 2, [ZRESTART] = 1}, 5 * US, 30 * DAY, 50000, 0},
};
enum { TAIL, SIBLINGS, RESTORES, REVERTS, REVERTS_ACROSS, SKEWED, STORMS, STEPS_BACK, ZOMBIE_RESTARTS, FAMILIES };

static uint64_t random_state;

static uint64_t draw_bits(void) {
    random_state ^= random_state >> 12; /* xorshift64* */
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * UINT64_C(2685821657736338717);
}
static int64_t between(int64_t low, int64_t high) {
    return low + (int64_t)((draw_bits() >> 11) % (uint64_t)(high - low + 1));
}
/* Evenly over the orders of magnitude. */
static int64_t magnitude(int64_t low, int64_t high) {
    double a = log((double)(low > 1 ? low : 1)), b = log((double)(high > 2 ? high : 2));
    return (int64_t)exp(a + (b - a) * ((double)(draw_bits() >> 11) / (double)(UINT64_C(1) << 53)));
}

struct event {
    enum kind kind;
    int64_t a, lost, life, skew;
};
#define EVENTS_MAX 1200
struct history {
    struct event event[EVENTS_MAX];
    int n;
};

static void add(struct history *h, struct event e) {
    if (h->n < EVENTS_MAX) h->event[h->n++] = e;
}

static enum kind draw_kind(const struct family *f) {
    int sum = 0;
    for (int k = 0; k < KINDS; k++) sum += f->weight[k];
    int64_t point = between(0, sum - 1);
    for (int k = 0;; k++)
        if ((point -= f->weight[k]) < 0) return (enum kind)k;
}

static void draw_event(struct history *h, const struct family *f, enum kind k) {
    static const int64_t few[] = {1, 1, 1, 2};
    struct event e = {.kind = k, .skew = between(-f->skew, f->skew)};
    if (k >= FAILOVER && k <= REVERT) add(h, (struct event){.kind = WAIT, .a = magnitude(f->gap_low, f->gap_high)});
    switch (k) {
    case GRANT: e.a = between(0, 4) < 4 ? few[between(0, 3)] : magnitude(1, 200000); break;
    case ZGRANT:
        e.a = between(0, 2) < 2 ? 1 : magnitude(1, 200000); /* fewer in all than microseconds between two events */
        e.lost = between(0, 3);
        break;
    case WAIT: e.a = magnitude(1000, 400 * DAY); break;
    case FAILOVER:
    case SIBLING:
        e.lost = magnitude(1, 10 * US);
        e.life = between(0, 9) < 7 ? magnitude(US, 400 * DAY) : 0;
        break;
    case RESTART: e.lost = magnitude(1, 2 * US); break;
    case RESTORE: e.lost = magnitude(HOUR, 120 * DAY); break;
    case REVERT: e.lost = magnitude(US, 30 * DAY); break;
    case STEP: e.a = between(f->step, 0); break;
    case ZRESTART: e.lost = between(0, 3); break;
    case STORM:
        for (int64_t i = between(2, 12); i > 0; i--) {
            add(h, (struct event){.kind = WAIT, .a = magnitude(2 * US, 15 * US)});
            add(h, (struct event){.kind = RESTART});
            add(h, (struct event){.kind = GRANT, .a = 1});
        }
        return;
    default: break;
    }
    add(h, e);
    if (k != WAIT && k != STEP) add(h, (struct event){.kind = GRANT, .a = 1});
}

static void draw(struct history *h, const struct family *f) {
    h->n = 0;
    add(h, (struct event){.kind = GRANT, .a = 1});
    for (int64_t i = between(4, 22); i > 0; i--) draw_event(h, f, draw_kind(f));
}

/* --- playing --- */

struct stored {
    int id; /* of the incarnation that admitted; 0: nothing is stored */
    struct token_state tokens;
};
struct node {
    struct stored now;
    int id;
    int64_t offset, ended_us; /* ended 0: it is the primary */
    struct node *successor;
    struct {
        int64_t at_us;
        struct stored state;
    } past[EVENTS_MAX];
    int n_past;
    int64_t zombie_until_us;
    uint64_t accepted; /* zombie: the highest that the guard took from the new side */
};
#define NODES_MAX 64
#define RANGES 4096
static struct world {
    const struct rule *rule;
    struct node *nodes[NODES_MAX], *primary, *zombies[NODES_MAX];
    int n_nodes, n_zombies, ids, n_ranges;
    struct {
        uint64_t low, high;
    } ranges[RANGES];
    int64_t t;
    uint64_t highest, guard;
    unsigned broken;
} w;

static void remember(struct node *n) {
    if (n->n_past == EVENTS_MAX) return;
    n->past[n->n_past].at_us = w.t;
    n->past[n->n_past++].state = n->now;
}

static struct stored state_at(const struct node *n, int64_t at_us) {
    struct stored found = {0};
    for (int i = 0; i < n->n_past; i++)
        if (n->past[i].at_us <= at_us) found = n->past[i].state;
    return found;
}

static struct node *new_node(int64_t offset) {
    if (w.n_nodes == NODES_MAX) return w.primary;
    if (!w.nodes[w.n_nodes] && !(w.nodes[w.n_nodes] = malloc(sizeof(struct node)))) abort();
    struct node *n = w.nodes[w.n_nodes++];
    memset(n, 0, offsetof(struct node, past));
    n->n_past = 0;
    n->zombie_until_us = 0;
    n->accepted = 0;
    n->id = ++w.ids;
    n->offset = offset;
    return n;
}

static void grant(struct node *n, int64_t count, uint64_t *first, uint64_t *last) {
    int64_t now = w.t + n->offset;
    if (n->now.id != n->id) {
        w.rule->admit(&n->now.tokens, now);
        n->now.id = n->id;
    }
    *first = w.rule->grant(&n->now.tokens, now);
    *last = n->now.tokens.last = *first + (uint64_t)count - 1;
    for (int i = 0; i < w.n_ranges; i++)
        if (*first <= w.ranges[i].high && w.ranges[i].low <= *last) w.broken |= UNIQUE;
    if (w.n_ranges < RANGES) {
        w.ranges[w.n_ranges].low = *first;
        w.ranges[w.n_ranges++].high = *last;
    }
    remember(n);
}

static void rightful_grant(int64_t count) {
    uint64_t first, last;
    grant(w.primary, count, &first, &last);
    if (first <= w.highest) w.broken |= RISES;
    if (last > w.highest) w.highest = last;
    if (first > (uint64_t)(w.t + w.rule->bound_us)) w.broken |= BOUND;
    if (first < w.guard) {
        w.broken |= HONEST;
    } else {
        w.guard = last;
        for (int i = 0; i < w.n_zombies; i++)
            if (last > w.zombies[i]->accepted) w.zombies[i]->accepted = last;
    }
    w.t += 10 * count;
}

static void zombie_grant(const struct event *e) {
    uint64_t first, last;
    if (w.n_zombies == 0) return;
    struct node *z = w.zombies[e->lost % w.n_zombies];
    if (w.t > z->zombie_until_us) return;
    grant(z, e->a, &first, &last);
    if (z->accepted && last >= z->accepted) w.broken |= ZOMBIE;
    w.t += 10 * e->a;
}

/* Another node takes over: a standby of the primary, or a sibling that saw nothing of the present one. */
static void take_over(const struct event *e) {
    struct node *from = w.primary;
    if (e->kind == SIBLING && w.n_zombies > 0 && w.zombies[w.n_zombies - 1]->successor == w.primary)
        from = w.zombies[w.n_zombies - 1];
    int64_t seen = (from->ended_us ? from->ended_us : w.t) - e->lost;
    struct node *n = new_node(e->skew);
    if (n == w.primary) return;
    n->now = state_at(from, seen);
    for (int i = 0; i < from->n_past && from->past[i].at_us <= seen; i++) n->past[n->n_past++] = from->past[i];
    remember(n);
    w.primary->ended_us = w.t;
    w.primary->successor = n;
    w.primary->zombie_until_us = w.t + e->life;
    w.zombies[w.n_zombies++] = w.primary;
    w.primary = n;
}

/* The same node with an older state, or with none. */
static void put_back(const struct event *e) {
    struct node *n = w.primary;
    struct stored old = e->kind == WIPE ? (struct stored){0} : state_at(n, w.t - e->lost);
    if (e->kind == REVERT) { /* it does not even know */
        if (!old.id) return;
        n->now = old;
        n->id = old.id;
    } else {
        n->now = old;
        n->id = ++w.ids;
        if (e->kind != RESTART) n->offset = e->skew;
    }
    remember(n);
}

static unsigned play(const struct history *h, const struct rule *rule) {
    w.rule = rule;
    w.n_nodes = w.n_zombies = w.ids = w.n_ranges = 0;
    w.t = EPOCH;
    w.highest = w.guard = 0;
    w.broken = 0;
    w.primary = NULL;
    w.primary = new_node(0);
    remember(w.primary);
    for (int i = 0; i < h->n; i++) {
        const struct event *e = &h->event[i];
        switch (e->kind) {
        case WAIT: w.t += e->a; break;
        case GRANT: rightful_grant(e->a); break;
        case ZGRANT: zombie_grant(e); break;
        case FAILOVER:
        case SIBLING: take_over(e); break;
        case STEP: w.primary->offset += e->a; break;
        case ZRESTART:
            if (w.n_zombies > 0) w.zombies[e->lost % w.n_zombies]->id = ++w.ids;
            break;
        default: put_back(e);
        }
    }
    return w.broken;
}

/* --- what is expected --- */

#define ALL (RISES | ZOMBIE | UNIQUE | BOUND | HONEST)
static const struct expectation {
    int rule, family;
    unsigned never, sometimes; /* laws */
} expectations[] = {
    {COUNT_RULE, TAIL, ALL, 0},
    {COUNT_RULE, SIBLINGS, ALL, 0},
    {COUNT_RULE, RESTORES, ALL, 0},
    {COUNT_RULE, STORMS, ALL, 0},
    {COUNT_RULE, SKEWED, ALL, 0},
    {COUNT_RULE, STEPS_BACK, ALL, 0},
    {COUNT_RULE, REVERTS, BOUND, RISES | UNIQUE}, /* until `pawl token advance` */
    {COUNT_RULE, ZOMBIE_RESTARTS, BOUND, ZOMBIE},
    {FILE_RULE, TAIL, RISES | BOUND | HONEST, 0}, /* file has no zombies, etcd none by quorum */
    {FILE_RULE, SIBLINGS, RISES | BOUND | HONEST, 0},
    {FILE_RULE, RESTORES, RISES | BOUND | HONEST, 0},
    {FILE_RULE, STORMS, RISES | BOUND | HONEST, 0},
    {FILE_RULE, REVERTS, ALL, 0},
    {FILE_RULE, STEPS_BACK, RISES | BOUND | HONEST, 0},
    {FILE_RULE, REVERTS_ACROSS, BOUND, RISES},
    {CLOCK_RULE, TAIL, 0, ZOMBIE | UNIQUE},
    {AHEAD_RULE, TAIL, 0, BOUND},
    {AHEAD_RULE, SIBLINGS, 0, RISES | UNIQUE | HONEST},
    {AHEAD_RULE, RESTORES, 0, RISES | HONEST},
};

int main(void) {
    static struct history h;
    const char *names[] = {"rises", "zombie", "unique", "bound", "honest"};
    int histories = getenv("PAWL_TEST_FULL") ? 100000 : 2000, n = sizeof expectations / sizeof *expectations,
        failed = 0;
    const char *seed = getenv("PAWL_TEST_SEED");
    uint64_t first = seed ? strtoull(seed, NULL, 10) : 1;
    printf("1..%d\n", n);
    for (int i = 0; i < n; i++) {
        const struct expectation *e = &expectations[i];
        int broken[5] = {0};
        unsigned all = 0;
        random_state = first * UINT64_C(0x9E3779B97F4A7C15) + (uint64_t)e->family + 1;
        for (int j = 0; j < histories; j++) {
            draw(&h, &families[e->family]);
            unsigned laws = play(&h, &rules[e->rule]);
            all |= laws;
            for (int k = 0; k < 5; k++) broken[k] += (laws & 1u << k) != 0;
        }
        bool ok = !(all & e->never) && (all & e->sometimes) == e->sometimes;
        failed += !ok;
        printf("%sok %d - %s; %s:", ok ? "" : "not ", i + 1, rules[e->rule].name, families[e->family].name);
        for (int k = 0; k < 5; k++)
            if (broken[k]) printf(" %s %d", names[k], broken[k]);
        printf("%s of %d\n", all ? "" : " nothing broken in any", histories);
    }
    for (int i = 0; i < NODES_MAX; i++) free(w.nodes[i]);
    return failed != 0;
}
