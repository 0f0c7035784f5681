/* round.c: one question to many instances at once. It is over as soon as whoever asked knows enough, and never waits
 * for the slow ones while a quorum has answered: for each of them once, for its time limit, and not again before it has
 * caught up. */
#include "clock.h"
#include "redis/verdict.h"
#include "redlock.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT_LEAST_MS 5
#define TIMEOUT_MOST_MS 50
#define VOTELESS_MS 1000 /* it hangs on the slow ones then */
#define LONG_MS 1000     /* who is silent for longer is not slow */

static bool in(peers set, int i) { return set >> i & 1; }
static peers one(int i) { return 1u << i; }

static int64_t timeout_ms(const struct bk *bk, int64_t ttl_ms) {
    if (bk->timeout_ms) return bk->timeout_ms;
    int64_t ms = ttl_ms / 20;
    return ms < TIMEOUT_LEAST_MS ? TIMEOUT_LEAST_MS : ms > TIMEOUT_MOST_MS ? TIMEOUT_MOST_MS : ms;
}

static void ask(struct bk_session *s, int i) {
    struct peer *p = &s->peers[i];
    struct question *q = s->question;
    if (q->epoch_arg) {
        q->args.value[q->epoch_arg] = s->epoch;
        q->args.length[q->epoch_arg] = EPOCH_CHARS;
    }
    if (peer_ask(p, q->script, &q->args, q->keys)) s->sent |= one(i), s->reached |= one(i);
    else if (p->state == PEER_READY) s->failed |= one(i); /* it owes us too much */
}

void round_start(struct bk_session *s, struct question *q, peers whom, int64_t ttl_ms, struct bk_until until) {
    s->question = q;
    s->asked = whom;
    s->sent = s->heard = s->failed = s->redialled = s->reached = s->again = s->voteless = 0;
    s->enough = s->bk->quorum;
    s->until = until;
    s->ttl_ms = ttl_ms;
    s->began_ns = clock_now_ns();
    s->patience_ns = clock_after_ms(s->began_ns, timeout_ms(s->bk, ttl_ms));
    for (int i = 0; i < s->bk->n; i++) {
        struct peer *p = &s->peers[i];
        redisReply *none;
        p->stale = p->owed;
        bool behind = p->owed > 0 && atomic_load_explicit(&s->bk->slow[i], memory_order_relaxed);
        if (p->owed >= PEER_DRAIN || behind) (void)peer_hear(p, &none); /* all of it is stale */
        if (in(whom, i) && p->state == PEER_READY) ask(s, i);
    }
    s->ready = whom & ~s->sent;
}

/* Goes on with one instance; true: it replied. */
static bool go_on(struct bk_session *s, int i, redisReply **ret) {
    struct peer *p = &s->peers[i];
    for (;;) {
        if (p->state == PEER_CLOSED) {
            s->again |= s->sent & one(i);
            s->sent &= ~one(i);
            if (in(s->redialled, i) || clock_now_ns() < p->retry_ns) {
                s->failed |= one(i);
                return false;
            }
            s->redialled |= one(i);
            struct bk_until short_time = s->until; /* for a name server that does not answer */
            if (short_time.at_ns > s->patience_ns) short_time.at_ns = s->patience_ns;
            peer_dial(p, short_time);
        }
        peer_step(p, s->until);
        if (p->state == PEER_READY && !in(s->sent, i)) ask(s, i);
        if (in(s->failed, i)) return false;
        enum bk_says says = peer_hear(p, ret);
        if (says == BK_NO && p->state != PEER_CLOSED) return false;
        if (says != BK_YES) continue;
        if ((*ret)->type == REDIS_REPLY_ERROR && verdict_is((*ret)->str, "NOSCRIPT")) {
            freeReplyObject(*ret);
            *ret = NULL;
            p->known = 0;
            s->sent &= ~one(i);
            continue;
        }
        s->heard |= one(i);
        p->why.code = PAWL_OK;
        if (p->stale == 0) atomic_store_explicit(&s->bk->slow[i], false, memory_order_relaxed);
        return true;
    }
}

/* Those that have not answered; *ret_worth: some of them are not known to be slow. */
static peers missing(const struct bk_session *s, bool *ret_worth) {
    peers left = s->asked & ~(s->heard | s->failed);
    *ret_worth = false;
    for (int i = 0; i < s->bk->n; i++)
        if (in(left, i) && !atomic_load_explicit(&s->bk->slow[i], memory_order_relaxed)) *ret_worth = true;
    return left;
}

int64_t round_took_ms(const struct bk_session *s) { return (clock_now_ns() - s->began_ns) / NS_PER_MS; }

static void call_late(struct bk_session *s, peers late, bool slow) {
    char within[32] = "";
    int64_t ms = round_took_ms(s);
    if (ms < LONG_MS) snprintf(within, sizeof within, " within %lld ms", (long long)ms);
    for (int i = 0; i < s->bk->n; i++) {
        if (!in(late, i)) continue;
        if (slow) atomic_store_explicit(&s->bk->slow[i], true, memory_order_relaxed);
        error_set(&s->peers[i].why, PAWL_EUNREACHABLE, s->peers[i].node, "%s: does not answer%s", s->peers[i].node,
                  within);
    }
}

/* 1: something came; 0: the time is over; -1: cancelled. */
static int wait(struct bk_session *s, peers left, int64_t at_ns) {
    struct pollfd fds[PEERS_MAX + 1];
    int who[PEERS_MAX];
    nfds_t n = 0;
    for (int i = 0; i < s->bk->n; i++)
        if (in(left, i)) {
            fds[n].fd = peer_fd(&s->peers[i], &fds[n].events);
            fds[n].revents = 0;
            who[n++] = i;
        }
    fds[n] = (struct pollfd){.fd = s->until.cancel_fd, .events = POLLIN};
    /* Also when the time is over: what came while we stood still is there. */
    int came = poll(fds, n + 1, clock_poll_ms(clock_now_ns(), at_ns));
    if (came < 0) return errno == EINTR ? 1 : -1;
    if (came == 0 && clock_now_ns() >= at_ns) return 0;
    for (nfds_t i = 0; i < n; i++)
        if (fds[i].revents) s->ready |= one(who[i]);
    return fds[n].revents ? -1 : 1;
}

enum bk_says round_next(struct bk_session *s, int *ret_i, redisReply **ret) {
    for (;;) {
        bool worth;
        for (int i = 0; i < s->bk->n; i++) {
            if (!in(s->ready & ~(s->heard | s->failed), i)) continue;
            s->ready &= ~one(i);
            if (!go_on(s, i, ret)) continue;
            *ret_i = i;
            return BK_YES;
        }
        bool enough = __builtin_popcount(s->heard) >= s->enough;
        bool sure = __builtin_popcount(s->heard & ~s->voteless) >= s->enough;
        peers left = missing(s, &worth);
        if (!left || (sure && !worth)) return BK_NO;
        int64_t at_ns = sure ? s->patience_ns : enough ? clock_after_ms(s->patience_ns, VOTELESS_MS) : s->until.at_ns;
        if (at_ns > s->until.at_ns) at_ns = s->until.at_ns;
        int result = wait(s, left, at_ns);
        if (result == 1) continue;
        if (result == 0) call_late(s, left, clock_now_ns() >= s->patience_ns);
        return BK_NO;
    }
}

bool round_cut(const struct bk_session *s, pawl_error *error) {
    struct pollfd cancel = {.fd = s->until.cancel_fd, .events = POLLIN};
    if (s->until.cancel_fd < 0 || poll(&cancel, 1, 0) <= 0) return false;
    error_set(error, PAWL_ECANCELLED, NULL, "%s '%s': cancelled", s->verb, s->name);
    return true;
}

void round_verdict(struct bk_session *s, int i, const redisReply *reply) {
    struct peer *p = &s->peers[i];
    p->wire.verb = s->verb;
    p->wire.name = s->name;
    verdict(&p->wire, reply->str ? reply->str : "an answer of another form than was asked for", &p->why);
}

/* --- who does not vote --- */

void adopt_epoch(struct bk_session *s, const char *epoch) {
    if (strncmp(epoch, s->epoch, 16) > 0) memcpy(s->epoch, epoch, EPOCH_CHARS);
}

const char *peer_ready_text(const struct peer *p, char ret[48]) {
    int64_t left = p->ready_ns - clock_now_ns();
    snprintf(ret, 48, "votes again in %lld s", (long long)(left > 0 ? (left + NS_PER_S - 1) / NS_PER_S : 0));
    return ret;
}

void peer_is_lost(struct peer *p) { error_set(&p->why, PAWL_EUNSAFE, p->node, "%s: %s", p->node, peer_lost_text(p)); }

void peer_waits(struct peer *p) {
    char when[48];
    error_set(&p->why, PAWL_EUNREACHABLE, p->node, "%s: came back without its memory and %s", p->node,
              peer_ready_text(p, when));
}

bool round_abstains(struct bk_session *s, int i, const redisReply *reply, bool *ret_newer) {
    struct peer *p = &s->peers[i];
    char what = reply->type == REDIS_REPLY_STRING && reply->len ? reply->str[0] : 0;
    if (what == 'U' || what == 'R') {
        p->lost = true;
        s->voteless |= one(i);
        p->empty = what == 'U';
        peer_is_lost(p);
        return true;
    }
    if (what == 'W') {
        p->lost = false;
        s->voteless |= one(i);
        p->ready_ns = clock_after_ms(clock_now_ns(), strtoll(reply->str + 1, NULL, 10));
        peer_waits(p);
        return true;
    }
    p->ready_ns = 0;
    if (what == 'E' && reply->len == 1 + EPOCH_CHARS) {
        memcpy(p->epoch, reply->str + 1, EPOCH_CHARS);
        p->lost = false;
        *ret_newer = *ret_newer || strncmp(p->epoch, s->epoch, 16) > 0;
        error_set(&p->why, PAWL_EUNREACHABLE, p->node, "%s: is in another epoch", p->node);
        return true;
    }
    p->lost = false;
    if (s->question->epoch_arg) memcpy(p->epoch, s->epoch, EPOCH_CHARS);
    return false;
}
