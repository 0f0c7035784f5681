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
#define SOON_MS 60000    /* whoever votes again by then is worth no way out */
#define VOTELESS_MS 1000 /* it hangs on the slow ones then */

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
    s->sent = s->heard = s->failed = s->redialled = s->reached = s->voteless = 0;
    s->enough = s->bk->quorum;
    s->until = until;
    s->patience_ns = clock_after_ms(clock_now_ns(), timeout_ms(s->bk, ttl_ms));
    for (int i = 0; i < s->bk->n; i++) {
        struct peer *p = &s->peers[i];
        redisReply *none;
        p->stale = p->owed;
        if (p->owed >= PEER_DRAIN) (void)peer_hear(p, &none); /* all of it is stale */
        if (in(whom, i) && p->state == PEER_READY) ask(s, i);
    }
    s->ready = whom & ~s->sent;
}

/* Goes on with one instance; true: it replied. */
static bool go_on(struct bk_session *s, int i, redisReply **ret) {
    struct peer *p = &s->peers[i];
    for (;;) {
        if (p->state == PEER_CLOSED) {
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

static void call_slow(struct bk_session *s, peers late) {
    for (int i = 0; i < s->bk->n; i++) {
        if (!in(late, i)) continue;
        atomic_store_explicit(&s->bk->slow[i], true, memory_order_relaxed);
        error_set(&s->peers[i].why, PAWL_EUNREACHABLE, s->peers[i].node, "%s: does not answer", s->peers[i].node);
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
        if (result == 0 && clock_now_ns() >= s->patience_ns) call_slow(s, left);
        return BK_NO;
    }
}

bool round_cut(const struct bk_session *s, pawl_error *error) {
    struct pollfd cancel = {.fd = s->until.cancel_fd, .events = POLLIN};
    if (s->until.cancel_fd < 0 || poll(&cancel, 1, 0) <= 0) return false;
    error_set(error, PAWL_ECANCELLED, NULL, "%s '%s': cancelled", s->verb, s->name);
    return true;
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

bool round_abstains(struct bk_session *s, int i, const redisReply *reply, bool *ret_newer) {
    struct peer *p = &s->peers[i];
    char what = reply->type == REDIS_REPLY_STRING && reply->len ? reply->str[0] : 0;
    if (what == 'U' || what == 'R') {
        p->lost = true;
        s->voteless |= one(i);
        p->empty = what == 'U';
        error_set(&p->why, PAWL_EUNSAFE, p->node,
                  what == 'U' ? "%s: has lost its memory and does not vote"
                              : "%s: was restarted or promoted and does not vote",
                  p->node);
        return true;
    }
    if (what == 'W') {
        char when[48];
        p->lost = false;
        s->voteless |= one(i);
        p->ready_ns = clock_after_ms(clock_now_ns(), strtoll(reply->str + 1, NULL, 10));
        error_set(&p->why, PAWL_EUNREACHABLE, p->node, "%s: came back without its memory and %s", p->node,
                  peer_ready_text(p, when));
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

/* As much of a text as there is room for, by whole words. */
static int words(const char *text, int most) {
    int length = (int)strlen(text);
    if (length <= most) return length;
    for (length = most; length > 0 && text[length] != ' ';) length--;
    return length ? length : most;
}

void round_no_quorum(const struct bk_session *s, int answered, pawl_error *error) {
    char faults[360] = "";
    int lost = 0, empty = 0, waiting = 0, ready = 0, code = PAWL_EUNREACHABLE, denied = 0;
    size_t used = 0;
    int64_t soon_ns = clock_after_ms(clock_now_ns(), SOON_MS);
    const char *quote = *s->name ? "'" : "", *space = *s->name ? " " : "";
    for (int i = 0; i < s->bk->n; i++) {
        const struct peer *p = &s->peers[i];
        ready += p->state == PEER_READY;
        empty += p->state == PEER_READY && p->lost && p->empty;
        if (!p->why.code) continue;
        lost += p->state == PEER_READY && p->lost;
        waiting += p->state == PEER_READY && !p->lost && p->ready_ns > soon_ns;
        denied += p->why.code == PAWL_EDENIED;
        const char *text = p->why.text;
        if (strncmp(text, "cannot connect to ", 18) == 0) text += 18;
        int room = (int)(sizeof faults - used), most = 340 / s->bk->n;
        int n = snprintf(faults + used, (size_t)room, "%s%.*s", used ? "; " : "", words(text, most), text);
        used += (size_t)(n < room ? n : room - 1);
    }
    bool first = ready && empty == ready; /* so it looks, and then all of them are needed */
    if (s->bk->n - lost < s->bk->quorum && !first) code = PAWL_EUNSAFE;
    else if (s->bk->n - denied < s->bk->quorum) code = PAWL_EDENIED;
    error_set(
        error, code, NULL, "%s%s%s%s%s: no quorum: %d of %d instances answer, %d are needed: %s%s", s->verb, space,
        quote, s->name, quote, answered, s->bk->n, s->bk->quorum, faults,
        code == PAWL_EUNSAFE ? ". Say where the tokens go on: pawl init --floor"
        : first ? ". None of those that answer has anything: a first start needs all of them (else: pawl init --floor)"
        : waiting && s->bk->n - waiting < s->bk->quorum
            ? ". Whoever knows that no lock is held ends the wait: pawl init --floor"
            : "");
}
