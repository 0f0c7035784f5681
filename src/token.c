#include "token.h"

#define AHEAD_US (3653 * TOKEN_DAY_US) /* ten years */

static uint64_t higher(uint64_t a, uint64_t b) { return a > b ? a : b; }
static uint64_t positive(int64_t n) { return n > 0 ? (uint64_t)n : 0; }

void token_admit(struct token_state *state, int64_t now_us) { token_advance(state, now_us, 0); }

void token_advance(struct token_state *state, int64_t now_us, uint64_t to) {
    state->since = state->last = token_lifted(state->last, now_us, to);
}

uint64_t token_lifted(uint64_t last, int64_t now_us, uint64_t to) {
    return higher(higher(last + TOKEN_LEAP, positive(now_us)), to);
}

int token_may_lift(int64_t to, int64_t now_us, pawl_error *error) {
    if (to < 1 || (uint64_t)to > TOKEN_MAX)
        return error_set(error, PAWL_EINVALID, NULL, "a token is a number from 1 to %llu",
                         (unsigned long long)TOKEN_MAX);
    if (to - now_us <= AHEAD_US) return PAWL_OK;
    return error_set(
        error, PAWL_EINVALID, NULL,
        "%lld is more than ten years ahead of this clock: numbers cannot be taken back, and would run out; "
        "it is to be the last one that was given or seen (pawl token show, pawl guard get)",
        (long long)to);
}

uint64_t token_grant(struct token_state *state, int64_t now_us) {
    uint64_t elapsed = positive(now_us - (int64_t)state->since);
    uint64_t next = higher(state->last + 1, state->since + elapsed / 8);
    if (next > TOKEN_MAX) return 0;
    return state->last = next;
}

bool token_parse(const char *text, uint64_t *ret) {
    uint64_t n = 0;
    if (!*text) return false;
    for (const char *p = text; *p; p++) {
        if (*p < '0' || *p > '9') return false;
        n = n * 10 + (uint64_t)(*p - '0');
        if (n > TOKEN_MAX) return false;
    }
    if (n == 0) return false;
    *ret = n;
    return true;
}
