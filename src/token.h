/* token.h: the rule by which fencing tokens are made, pure.
 *
 * A token is a number of microseconds since 1970 used as a counter, never ahead of the clock, so that the service that
 * was started, restored or promoted last starts above everything before it (docs/ARCHITECTURE.md, tokens; the
 * simulation is in tests/sim and models/tokens_sim.py).
 *
 *   ADMIT    the identity of the service changed, or nothing is stored:  since = last = max(last + 2^20, now)
 *   GRANT    redis, postgresql:  last + 1
 *            file, mem, etcd:    max(last + 1, since + max(0, now - since) / 8)
 *   ADVANCE  since = last = max(last + 2^20, now, to), where `to` is not more than ten years ahead of the clock: numbers
 *            cannot be taken back */
#ifndef PAWL_TOKEN_H
#define PAWL_TOKEN_H
#include "error.h"
#include <stdbool.h>
#include <stdint.h>

#define TOKEN_MAX ((UINT64_C(1) << 53) - 1)
#define TOKEN_LEAP (UINT64_C(1) << 20)
#define TOKEN_DAY_US (INT64_C(86400) * 1000000)

struct token_state {
    uint64_t since, last;
};

void token_admit(struct token_state *state, int64_t now_us);
void token_advance(struct token_state *state, int64_t now_us, uint64_t to);
/* The same of the number alone. */
uint64_t token_lifted(uint64_t last, int64_t now_us, uint64_t to);
/* Whether somebody may lift numbers to that; else PAWL_EINVALID. */
int token_may_lift(int64_t to, int64_t now_us, pawl_error *error);
/* The next token, also stored in state->last; 0: the number space is used up, nothing changed. */
uint64_t token_grant(struct token_state *state, int64_t now_us);
/* Decimal digits only, 1 .. TOKEN_MAX; false: not a token. */
bool token_parse(const char *text, uint64_t *ret);
#endif
