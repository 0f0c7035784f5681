/* quorum.c: what is said where there is no quorum: how many there are, and each instance with its fault. Those with the
 * same fault are named together; where there is no room for all, names are shortened in the middle, then some are only
 * counted. */
#include "clock.h"
#include "redlock.h"
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define SOON_MS 60000  /* whoever votes again by then is worth no way out */
#define FAULT_SIZE 240 /* of a text that was stripped of what the head says already */
#define NAME_MOST 120  /* of the lock's name */
#define MORE_SIZE 16   /* "; and 14 more" */
#define WITHIN "does not answer within"

struct faults {
    char text[PEERS_MAX][FAULT_SIZE]; /* "": none */
    bool silent[PEERS_MAX];           /* nothing came from it */
};

/* --- one instance --- */

/* The start of a text that says the same again is left out. */
static const char *past(const char *text, const char *start, const char *end) {
    size_t n = strlen(start), m = strlen(end);
    return n && strncmp(text, start, n) == 0 && strncmp(text + n, end, m) == 0 ? text + n + m : text;
}

static void fault_of(const struct bk_session *s, int i, struct faults *ret) {
    const struct peer *p = &s->peers[i];
    const char *text = p->why.text;
    char attempt[FAULT_SIZE];
    bool missing = (s->asked & ~(s->heard | s->failed)) >> i & 1;
    ret->silent[i] = missing || (p->state != PEER_READY && p->why.code == PAWL_EUNREACHABLE);
    *ret->text[i] = 0;
    if (!p->why.code && missing) snprintf(ret->text[i], FAULT_SIZE, WITHIN " %lld ms", (long long)round_took_ms(s));
    if (!p->why.code) return;
    text = past(text, p->node, ": ");
    text = past(text, p->node, " ");
    text = past(text, p->host->host, ": ");
    snprintf(attempt, sizeof attempt, *s->name ? "%s '%.200s'" : "%s", s->verb, s->name);
    snprintf(ret->text[i], FAULT_SIZE, "%s", past(text, attempt, ": "));
}

/* --- what fits --- */

static bool inside_character(char c) { return ((unsigned char)c & 0xc0) == 0x80; }

/* The middle is left out. */
static void shorten(const char *text, size_t most, char *ret) {
    size_t length = strlen(text), head = (most - 3) / 2, tail = length - (most - 3 - head);
    if (length <= most) {
        strcpy(ret, text);
        return;
    }
    while (head > 0 && inside_character(text[head])) head--;
    while (inside_character(text[tail])) tail++;
    sprintf(ret, "%.*s...%s", (int)head, text, text + tail);
}

/* The end is left out, by whole words, and no number is left without what it counts. */
static void cut(char *text, size_t most) {
    size_t n = most - 3;
    if (strlen(text) <= most) return;
    while (n > 0 && text[n] != ' ') n--;
    while (n > 0 && isdigit((unsigned char)text[n - 1])) do
            n--;
        while (n > 0 && text[n] != ' ');
    strcpy(text + (n ? n : most - 3), "...");
}

/* The instances that have the fault of the first of them: "a:1, b:1: does not answer", of so many names at the most. */
static int group(const struct bk_session *s, const struct faults *f, int first, int most, size_t width, char *ret,
                 size_t size) {
    char fault[FAULT_SIZE], node[sizeof s->peers->node];
    int named = 0, all = 0;
    size_t used = 0;
    snprintf(fault, sizeof fault, "%s", f->text[first]);
    cut(fault, 2 * width);
    for (int i = first; i < s->bk->n; i++) {
        if (strcmp(f->text[i], f->text[first]) != 0) continue;
        all++;
        if (named == most) continue;
        shorten(s->peers[i].node, width, node);
        used += (size_t)snprintf(ret + used, size - used, "%s%s", named++ ? ", " : "", node);
    }
    if (all > named) used += (size_t)snprintf(ret + used, size - used, " and %d more", all - named);
    snprintf(ret + used, size - used, ": %s", fault);
    return all;
}

/* false: not all of them are named. */
static bool list(const struct bk_session *s, const struct faults *f, size_t width, char *ret, size_t size) {
    char text[PEERS_MAX * (sizeof s->peers->node + 2) + FAULT_SIZE];
    int left = 0;
    bool whole = true;
    size_t used = 0;
    *ret = 0;
    for (int i = 0; i < s->bk->n; i++) left += *f->text[i] != 0;
    for (int i = 0; i < s->bk->n && left; i++) {
        bool told = !*f->text[i];
        for (int j = 0; j < i && !told; j++) told = strcmp(f->text[i], f->text[j]) == 0;
        if (told) continue;
        int most = PEERS_MAX, of = group(s, f, i, most, width, text, sizeof text);
        size_t room = size - used - (left > of ? MORE_SIZE : 0) - 3;
        while (strlen(text) > room && most > 0) {
            whole = false;
            most = most > of ? of - 1 : most - 1;
            if (most) group(s, f, i, most, width, text, sizeof text);
        }
        if (!most) break;
        used += (size_t)snprintf(ret + used, size - used, "%s%s", used ? "; " : "", text);
        left -= of;
    }
    if (left) snprintf(ret + used, size - used, "%s %d more", used ? "; and" : "of", left);
    return whole && !left;
}

/* --- all together --- */

struct count {
    int lost, empty, waiting, ready, denied, unsafe, late;
    bool all_silent; /* whoever has a fault */
};

static struct count count(const struct bk_session *s, const struct faults *f) {
    struct count c = {.all_silent = true};
    int64_t soon_ns = clock_after_ms(clock_now_ns(), SOON_MS);
    for (int i = 0; i < s->bk->n; i++) {
        const struct peer *p = &s->peers[i];
        bool is_ready = p->state == PEER_READY;
        c.ready += is_ready;
        c.empty += is_ready && p->lost && p->empty;
        c.late += strncmp(f->text[i], WITHIN, strlen(WITHIN)) == 0;
        if (*f->text[i]) c.all_silent = c.all_silent && f->silent[i];
        if (!p->why.code) continue;
        c.lost += is_ready && p->lost;
        c.waiting += is_ready && !p->lost && p->ready_ns > soon_ns;
        c.denied += p->why.code == PAWL_EDENIED;
        c.unsafe += p->why.code == PAWL_EUNSAFE && !p->lost;
    }
    return c;
}

void round_no_quorum(const struct bk_session *s, int answered, pawl_error *error) {
    static const size_t widths[] = {sizeof s->peers->node - 1, 60, 32, 24};
    const struct bk *bk = s->bk;
    struct faults f;
    char name[NAME_MOST + 4], head[sizeof error->text], faults[sizeof error->text], way_out[120] = "";
    for (int i = 0; i < bk->n; i++) fault_of(s, i, &f);
    const struct count c = count(s, &f);
    bool first = c.ready && c.empty == c.ready; /* so it looks, and then all of them are needed */
    int code = PAWL_EUNREACHABLE;
    if (bk->n - c.lost - c.unsafe < bk->quorum && !first) code = PAWL_EUNSAFE;
    else if (bk->n - c.denied < bk->quorum) code = PAWL_EDENIED;
    if (bk->n - c.lost < bk->quorum && !first) strcpy(way_out, ". Say where the tokens go on: pawl init --floor");
    else if (first)
        strcpy(way_out, ". None of those that answer has anything: a first start needs all of them (else: pawl init "
                        "--floor)");
    else if (c.waiting && bk->n - c.waiting < bk->quorum)
        strcpy(way_out, ". Whoever knows that no lock is held ends the wait: pawl init --floor");
    else if (c.late && bk->n - c.late < bk->quorum && s->ttl_ms > 0)
        snprintf(way_out, sizeof way_out, ". If they are only slow, a ttl of %lld ms is too short for them",
                 (long long)s->ttl_ms);
    shorten(s->name, NAME_MOST, name);
    snprintf(head, sizeof head, *name ? "%s '%s'" : "%s%s", s->verb, name);
    size_t used = strlen(head);
    used += (size_t)snprintf(head + used, sizeof head - used, ": no quorum: %d of %d instances %s, %d are needed",
                             answered, bk->n, c.all_silent ? "answer" : "vote", bk->quorum);
    size_t room = sizeof error->text - used - 2 - strlen(way_out);
    for (size_t i = 0; i < sizeof widths / sizeof *widths && !list(s, &f, widths[i], faults, room); i++) continue;
    error_set(error, code, NULL, "%s%s%s%s", head, *faults ? ": " : "", faults, way_out);
}
