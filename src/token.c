#include "token.h"

static uint64_t higher(uint64_t a, uint64_t b) { return a > b ? a : b; }
static uint64_t positive(int64_t n) { return n > 0 ? (uint64_t)n : 0; }

void token_admit(struct token_state *state, int64_t now_us) { token_advance(state, now_us, 0); }

void token_advance(struct token_state *state, int64_t now_us, uint64_t to) {
    state->since = state->last = higher(higher(state->last + TOKEN_LEAP, positive(now_us)), to);
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
