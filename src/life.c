/* life.c: the one state machine of a held lock.
 *
 *            confirm                      confirm                     doubt
 *   start ------------->  SURE  <-------------------------  DOUBT  <-------+
 *                          |  \------------ doubt ---------->  |  \--------+
 *                          |                                   |
 *                          +--- end (refused, given up), or safe_until passed ---> LOST (final)
 *
 * Invariants, asserted in debug builds:
 *  I1  safe_until = sent + left - margin of one confirmed question, never later.
 *  I2  a lost life stays lost: safe_until is INT64_MIN for good.
 *  I3  next <= safe_until: nobody sleeps through the deadline.
 *  I4  a doubt moves neither state nor deadline, only the time of the next question. */
#include "life.h"
#include "clock.h"
#include <assert.h>
#include <stdatomic.h>

static int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t at_least(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t safe_until(const struct life *life) {
    return atomic_load_explicit(&life->safe_until_ns, memory_order_acquire);
}

void life_init(struct life *life, int64_t ttl_ms, int64_t margin_ms) {
    int64_t ttl_ns = ttl_ms * NS_PER_MS;
    int64_t margin_ns = margin_ms > 0 ? margin_ms * NS_PER_MS : at_least(ttl_ns / 100 + 2 * NS_PER_MS, 20 * NS_PER_MS);
    *life = (struct life){.ttl_ns = ttl_ns, .margin_ns = margin_ns, .safe_until_ns = INT64_MIN, .next_ns = INT64_MAX};
}

bool life_confirm(struct life *life, int64_t sent_ns, int64_t left_ms) {
    bool doubted = life->backoff_ns > 0;
    life->backoff_ns = 0;
    if (left_ms == -1) {
        atomic_store_explicit(&life->safe_until_ns, LIFE_ENDLESS, memory_order_release);
        life->next_ns = INT64_MAX;
        return doubted;
    }
    if (left_ms < 0) left_ms = 0; /* -1 alone is without end */
    int64_t end = clock_after_ms(sent_ns, left_ms) - life->margin_ns;
    atomic_store_explicit(&life->safe_until_ns, end, memory_order_release);
    /* A third of the ttl is used up before the first renewal, two thirds are left for trying. */
    life->next_ns = at_most(at_least(end + life->margin_ns - life->ttl_ns / 3 * 2, sent_ns), end);
    assert(life->next_ns <= safe_until(life)); /* I3 */
    return doubted;
}

bool life_doubt(struct life *life, int64_t now_ns) {
    int64_t end = safe_until(life);
    bool begins = life->backoff_ns == 0;
    if (end == INT64_MIN) return false; /* I2 */
    life->backoff_ns = begins ? at_least(life->ttl_ns / 60, 10 * NS_PER_MS)
                              : at_most(2 * life->backoff_ns, at_least(life->ttl_ns / 12, 10 * NS_PER_MS));
    life->next_ns = at_most(now_ns + life->backoff_ns, end);
    assert(safe_until(life) == end && life->next_ns <= end); /* I3, I4 */
    return begins;
}

void life_end(struct life *life) {
    atomic_store_explicit(&life->safe_until_ns, INT64_MIN, memory_order_release);
    life->next_ns = INT64_MAX;
}

enum life_do life_due(const struct life *life, int64_t now_ns) {
    int64_t end = safe_until(life);
    if (end == INT64_MIN || now_ns >= end) return LIFE_LOSE;
    return now_ns >= life->next_ns ? LIFE_RENEW : LIFE_WAIT;
}
