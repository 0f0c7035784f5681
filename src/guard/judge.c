/* judge.c: is this token new enough? The one place where guards of every kind decide. Pure: no I/O, no clock. */
#include "guard.h"
#include "token.h"
#include <stdio.h>
#include <string.h>

/* Tokens never run ahead of the clocks that made them, so one far above both the mark and the guard's clock is a
 * damaged number; accepted, it would shut out every honest holder. */
static bool damaged(const struct guard_found *found, const struct guard_claim *claim) {
    if (claim->token < 0 || (uint64_t)claim->token > TOKEN_MAX) return true;
    if (claim->accept_jump) return false;
    uint64_t clock = found->now_us > 0 ? (uint64_t)found->now_us : 0;
    uint64_t top = found->mark.token > clock ? found->mark.token : clock;
    return (uint64_t)claim->token > top + TOKEN_DAY_US;
}

static bool fresh(const struct guard_mark *mark, uint64_t token, uint64_t seq, enum guard_intent intent) {
    if (token != mark->token) return token > mark->token;
    if (intent == GUARD_SEAL || mark->rule == PAWL_RULE_GE) return true;
    return mark->rule == PAWL_RULE_GT ? !mark->used : seq > mark->seq;
}

int guard_judge(const struct guard_found *found, const struct guard_claim *claim, enum guard_intent intent,
                struct guard_mark *ret) {
    bool exists = found->mark.rule != PAWL_RULE_DEFAULT;
    struct guard_mark mark = found->mark;
    if (claim->token == 0) return PAWL_GNOTOKEN;
    if (exists && strcmp(mark.lock, claim->lock) != 0) return PAWL_GWRONGLOCK;
    if (!exists) mark.rule = claim->rule ? claim->rule : found->set_rule ? found->set_rule : PAWL_RULE_GE;
    else if (claim->rule && claim->rule != mark.rule) return PAWL_EINVALID;
    bool counts = mark.rule == PAWL_RULE_SEQ && intent == GUARD_WRITE;
    if (counts ? claim->seq < 1 : claim->seq != 0) return PAWL_EINVALID;
    if (damaged(found, claim)) return PAWL_GDAMAGED;
    uint64_t token = (uint64_t)claim->token, seq = (uint64_t)claim->seq;
    if (exists && !fresh(&mark, token, seq, intent)) return PAWL_GSTALE;
    bool same = exists && token == mark.token;
    if (intent == GUARD_WRITE) mark.used = true;
    else if (!same) mark.used = false;
    if (counts || !same) mark.seq = seq;
    mark.token = token;
    mark.at_us = found->now_us;
    snprintf(mark.lock, sizeof mark.lock, "%s", claim->lock);
    if (claim->service || !same)
        snprintf(mark.service, sizeof mark.service, "%s", claim->service ? claim->service : "");
    *ret = mark;
    return PAWL_OK;
}

void guard_reset_mark(const struct guard_found *found, int64_t to, const char *by, const char *why,
                      struct guard_mark *ret, pawl_guard_reset_entry *ret_entry) {
    *ret_entry = (pawl_guard_reset_entry){by, why, (int64_t)found->mark.token, to, found->now_us / 1000};
    *ret = found->mark;
    ret->token = (uint64_t)to;
    ret->seq = 0;
    ret->used = false;
    ret->at_us = found->now_us;
    *ret->service = 0;
    snprintf(ret->by, sizeof ret->by, "%s", by);
}
