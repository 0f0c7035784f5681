/* history.c: keeps events in little room: names become numbers, each kind of event has an array of its own. */
#include "history_store.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *const whats[HISTORY_WHATS] = {"hold", "wait", "act", "write"};
static const char *const outcomes[HISTORY_OUTCOMES] = {"released",  "lost",   "killed", "busy",     "timeout",
                                                       "cancelled", "failed", "done",   "accepted", "refused"};
static const char *const faults[HISTORY_FAULTS] = {"overlap",  "shared_overlap", "token_fell", "token_repeated",
                                                   "late_act", "stale_write",    "starved"};

const char *history_what_name(enum history_what what) { return whats[what]; }
const char *history_outcome_name(enum history_outcome outcome) { return outcomes[outcome]; }
const char *history_fault_name(enum history_fault fault) { return faults[fault]; }

void *history_alloc(void *old, size_t count, size_t each) {
    void *p = reallocarray(old, count ? count : 1, each);
    if (!p) abort();
    return p;
}

struct history *history_new(void) {
    struct history *h = history_alloc(NULL, 1, sizeof *h);
    *h = (struct history){0};
    return h;
}

void history_clear(struct history *h) {
    for (size_t i = 0; i < h->n_names; i++) free(h->names[i].text);
    h->n_names = 0;
    h->lines = 0;
    if (h->slots) memset(h->slots, 0, h->n_slots * sizeof *h->slots);
    for (int i = 0; i < HISTORY_WHATS; i++) h->of[i].n = 0;
}

void history_free(struct history *h) {
    if (!h) return;
    history_clear(h);
    for (int i = 0; i < HISTORY_WHATS; i++) free(h->of[i].at);
    free(h->names);
    free(h->slots);
    free(h);
}

static uint64_t hash_of(const char *text) { /* FNV-1a */
    uint64_t x = UINT64_C(0xcbf29ce484222325);
    for (; *text; text++) x = (x ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return x;
}

static void grow_slots(struct history *h) {
    free(h->slots);
    h->n_slots = h->n_slots ? h->n_slots * 2 : 64;
    h->slots = history_alloc(NULL, h->n_slots, sizeof *h->slots);
    memset(h->slots, 0, h->n_slots * sizeof *h->slots);
    for (uint32_t i = 0; i < h->n_names; i++) {
        size_t s = h->names[i].hash & (h->n_slots - 1);
        while (h->slots[s]) s = (s + 1) & (h->n_slots - 1);
        h->slots[s] = i + 1;
    }
}

static uint32_t number_of(struct history *h, const char *text) {
    if ((h->n_names + 1) * 2 > h->n_slots) grow_slots(h);
    uint64_t hash = hash_of(text);
    size_t s = hash & (h->n_slots - 1);
    for (; h->slots[s]; s = (s + 1) & (h->n_slots - 1)) {
        const struct name *n = &h->names[h->slots[s] - 1];
        if (n->hash == hash && strcmp(n->text, text) == 0) return h->slots[s] - 1;
    }
    if (h->n_names == h->names_size) {
        h->names_size = h->names_size ? h->names_size * 2 : 32;
        h->names = history_alloc(h->names, h->names_size, sizeof *h->names);
    }
    char *copy = strdup(text);
    if (!copy) abort();
    h->names[h->n_names] = (struct name){copy, hash};
    h->slots[s] = (uint32_t)++h->n_names;
    return (uint32_t)h->n_names - 1;
}

void history_add(struct history *h, const struct history_event *e) {
    struct records *r = &h->of[e->what];
    if (r->n == r->size) {
        r->size = r->size ? r->size * 2 : 64;
        r->at = history_alloc(r->at, r->size, sizeof *r->at);
    }
    r->at[r->n++] = (struct record){.start = e->start,
                                    .end = e->end,
                                    .asked = e->asked,
                                    .token = e->token,
                                    .who = number_of(h, e->who),
                                    .lock = number_of(h, e->lock),
                                    .line = ++h->lines,
                                    .what = (uint8_t)e->what,
                                    .outcome = (uint8_t)e->outcome,
                                    .shared = e->shared};
}

/* Text as a JSON string; false if it does not fit. Bytes from 0x80 on are passed through: names are UTF-8. */
static bool quote(const char *text, char *ret, size_t size) {
    size_t n = 0;
    if (size < 3) return false;
    ret[n++] = '"';
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (n + 8 > size) return false;
        if (*c == '"' || *c == '\\') {
            ret[n++] = '\\';
            ret[n++] = (char)*c;
        } else if (*c < 0x20) {
            n += (size_t)snprintf(ret + n, size - n, "\\u%04x", *c);
        } else {
            ret[n++] = (char)*c;
        }
    }
    ret[n++] = '"';
    ret[n] = 0;
    return true;
}

size_t history_line(const struct history_event *e, char *ret, size_t size) {
    char who[700], lock[3200], more[160] = "";
    if (!quote(e->who, who, sizeof who) || !quote(e->lock, lock, sizeof lock)) return 0;
    size_t n = 0;
    if (e->token) n += (size_t)snprintf(more + n, sizeof more - n, ",\"token\":\"%" PRIu64 "\"", e->token);
    if (e->asked != HISTORY_NEVER && e->what == HISTORY_HOLD)
        n += (size_t)snprintf(more + n, sizeof more - n, ",\"asked\":%" PRId64, e->asked);
    if (e->shared) n += (size_t)snprintf(more + n, sizeof more - n, ",\"shared\":true");
    if (e->end != HISTORY_OPEN) snprintf(more + n, sizeof more - n, ",\"end\":%" PRId64, e->end);
    int len =
        snprintf(ret, size, "{\"who\":%s,\"what\":\"%s\",\"lock\":%s,\"start\":%" PRId64 "%s,\"outcome\":\"%s\"}\n",
                 who, whats[e->what], lock, e->start, more, outcomes[e->outcome]);
    return len > 0 && (size_t)len < size ? (size_t)len : 0;
}
