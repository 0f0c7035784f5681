#include "clock.h"
#include "fixture.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char why[1200];

struct chosen {
    enum guard_intent intent;
    pawl_guard_write write;
    char data[24];
};

static int pick(unsigned *seed, int n) { return rand_r(seed) % n; }

static void choose(const struct mirror *m, unsigned *seed, struct chosen *ret) {
    static const int64_t odd[] = {0, -1, INT64_C(9007199254740991), INT64_C(9007199254740992), 9, 10, 100, INT64_MAX};
    static const int64_t seqs[] = {0, 0, 1, 2, 9, 10, 100, -1, INT64_MAX};
    static const char *const services[] = {NULL, NULL, "redis", "etcd"}, *const bys[] = {NULL, "a", "b \n'c'"};
    pawl_guard_write w = PAWL_GUARD_WRITE_INIT;
    ret->intent = pick(seed, 4) ? GUARD_WRITE : pick(seed, 3) ? GUARD_SEAL : GUARD_RESET;
    w.resource = m->resource;
    w.lock = pick(seed, 12) ? "acct" : "acct ";
    w.token = pick(seed, 4) ? (int64_t)m->mark.token + (pick(seed, 2) ? 0 : pick(seed, 4) - 1) : odd[pick(seed, 8)];
    w.seq = m->mark.rule == PAWL_RULE_SEQ && pick(seed, 4) ? (int64_t)(m->mark.seq + (uint64_t)pick(seed, 3) - 1)
                                                           : seqs[pick(seed, 9)];
    if (m->mark.rule != PAWL_RULE_SEQ && pick(seed, 4)) w.seq = 0;
    if (ret->intent != GUARD_WRITE && pick(seed, 4)) w.seq = 0;
    w.rule = m->mark.rule && pick(seed, 8) ? PAWL_RULE_DEFAULT : pick(seed, 4);
    w.by = bys[pick(seed, 3)];
    w.service = services[pick(seed, 4)];
    w.flags = pick(seed, 8) ? 0 : PAWL_GUARD_ACCEPT_JUMP;
    ret->write = w;
    snprintf(ret->data, sizeof ret->data, "data %d", pick(seed, 1000));
}

static int reference(struct mirror *m, const struct chosen *c) {
    const pawl_guard_write *w = &c->write;
    struct guard_found found = {.mark = m->mark, .now_us = clock_wall_us()};
    struct guard_claim claim = {w->lock, w->token, w->seq, w->rule, w->flags != 0, w->service};
    struct guard_mark mark;
    pawl_guard_reset_entry entry;
    if (c->intent == GUARD_RESET) {
        if (w->token < 1 || w->token > INT64_C(9007199254740991)) return PAWL_EINVALID;
        if (!m->mark.rule) return PAWL_GNORECORD;
        guard_reset_mark(&found, w->token, w->by ? w->by : "me", "why", &m->mark, &entry);
        m->resets++;
        return PAWL_OK;
    }
    int code = guard_judge(&found, &claim, c->intent, &mark);
    if (code) return code;
    m->mark = mark;
    snprintf(m->mark.by, sizeof m->mark.by, "%s", w->by ? w->by : "me");
    if (c->intent == GUARD_SEAL) return PAWL_OK;
    m->mark.written = true;
    strcpy(m->data, c->data);
    return PAWL_OK;
}

static int real(const struct chosen *c) {
    pawl_guard_write w = c->write;
    if (!w.by) w.by = "me";
    if (c->intent == GUARD_RESET) return pawl_guard_reset(guard, w.resource, w.token, w.by, "why", &error);
    if (c->intent == GUARD_SEAL) return pawl_guard_seal(guard, &w, &error);
    return pawl_guard_put(guard, &w, c->data, strlen(c->data), &error);
}

static bool same(const struct mirror *m, const pawl_guard_record *r) {
    return strcmp(r->lock, m->mark.lock) == 0 && (uint64_t)r->token == m->mark.token &&
           (uint64_t)r->seq == m->mark.seq && r->rule == m->mark.rule && (r->written != 0) == m->mark.written &&
           strcmp(r->by, m->mark.by) == 0 && strcmp(r->service, m->mark.service) == 0 &&
           strcmp(r->data, m->data) == 0 && r->n_resets == m->resets;
}

const char *mirror_step(struct mirror *m, unsigned *seed) {
    static int count;
    struct chosen c;
    pawl_guard_record *record = NULL;
    if (!*m->resource || (m->mark.rule && pick(seed, 30) == 0)) { /* a new one from time to time */
        *m = (struct mirror){0};
        snprintf(m->resource, sizeof m->resource, "mirror %d", ++count);
    }
    struct mirror before = *m;
    choose(m, seed, &c);
    int want = reference(m, &c), got = real(&c);
    snprintf(why, sizeof why,
             "%s of %s: token %" PRId64 ", seq %" PRId64 ", rule %d, on token %" PRIu64 ", seq %" PRIu64
             ", rule %d, used %d: %d, not %d",
             c.intent == GUARD_WRITE  ? "put"
             : c.intent == GUARD_SEAL ? "seal"
                                      : "reset",
             m->resource, c.write.token, c.write.seq, c.write.rule, before.mark.token, before.mark.seq,
             before.mark.rule, before.mark.used, got, want);
    if (got != want) return why;
    got = pawl_guard_get(guard, m->resource, &record, &error);
    bool right = m->mark.rule ? got == PAWL_OK && same(m, record) : got == PAWL_GNORECORD;
    if (!right) strncat(why, "; then the record differs", sizeof why - strlen(why) - 1);
    pawl_guard_free(record);
    return right ? NULL : why;
}
