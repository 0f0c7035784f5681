/* sentinel.c: where the primary is. Sentinels decide nothing but the address: tokens do not depend on them.
 *
 * The sentinel that leads a failover shows the old address with the new epoch for some seconds (SENTINEL MASTER),
 * therefore an epoch counts only if GET-MASTER-ADDR-BY-NAME says the same before and after it. An old primary stays
 * writable for some ten seconds after a promotion, therefore a sentinel is asked again and again while locks are held.
 */
#include "clock.h"
#include "dial.h"
#include "verdict.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANSWERS 2                     /* so many sentinels are heard before one is believed, if so many answer */
#define ASK_NS (500 * NS_PER_MS)      /* not asked again sooner */
#define AFRESH_NS (4 * NS_PER_S)      /* and so much later if it did not answer */
#define PATIENCE_NS (200 * NS_PER_MS) /* a sentinel that does not answer must not cost the lock */

static void add_address(const struct place *p, struct wire *w) {
    wire_words(w, (const char *const[]){"SENTINEL", "GET-MASTER-ADDR-BY-NAME", p->master, NULL});
}

static bool same(const redisReply *a, const redisReply *b) {
    return a->type == REDIS_REPLY_ARRAY && b->type == REDIS_REPLY_ARRAY && a->elements == 2 && b->elements == 2 &&
           a->element[0]->str && a->element[1]->str && b->element[0]->str && b->element[1]->str &&
           strcmp(a->element[0]->str, b->element[0]->str) == 0 && strcmp(a->element[1]->str, b->element[1]->str) == 0;
}

static long long epoch_of(const redisReply *master) {
    for (size_t i = 0; master->type == REDIS_REPLY_ARRAY && i + 1 < master->elements; i += 2)
        if (master->element[i]->str && master->element[i + 1]->str &&
            strcmp(master->element[i]->str, "config-epoch") == 0)
            return atoll(master->element[i + 1]->str);
    return -1;
}

static enum bk_says hear(const struct place *p, struct watch *w, struct bk_until until, long long *ret_epoch,
                         pawl_error *error) {
    AUTO_REPLY auth = NULL;
    AUTO_REPLY before = NULL;
    AUTO_REPLY master = NULL;
    AUTO_REPLY after = NULL;
    struct wire *wire = &w->wire;
    wire->verb = "asking for";
    wire->name = p->master;
    if (p->sentinel_password) greet_auth(wire, p->sentinel_user, p->sentinel_password);
    add_address(p, wire);
    wire_words(wire, (const char *const[]){"SENTINEL", "MASTER", p->master, NULL});
    add_address(p, wire);
    enum bk_says says = wire_flush(wire, until, error);
    if (says == BK_YES && p->sentinel_password)
        says = greet_reply(wire, until, &auth, PAWL_EDENIED, "the sentinel does not accept sentinel-password", error);
    if (says == BK_YES) says = greet_reply(wire, until, &before, PAWL_EINVALID, "is it a sentinel?", error);
    if (says == BK_YES && before->type == REDIS_REPLY_NIL) {
        error_set(error, PAWL_EINVALID, wire->node, "sentinel %s knows no master '%s'", wire->node, p->master);
        return BK_FAULT;
    }
    if (says == BK_YES) says = greet_reply(wire, until, &master, PAWL_EINVALID, "is it a sentinel?", error);
    if (says == BK_YES) says = greet_reply(wire, until, &after, PAWL_EINVALID, "is it a sentinel?", error);
    if (says != BK_YES) return BK_FAULT;
    if (!same(before, after)) {
        error_set(error, PAWL_EUNREACHABLE, wire->node, "sentinel %s is just changing the primary of '%s'", wire->node,
                  p->master);
        return BK_FAULT;
    }
    *ret_epoch = epoch_of(master);
    w->port = atoi(after->element[1]->str);
    snprintf(w->address, sizeof w->address, "%s", after->element[0]->str);
    return BK_YES;
}

static enum bk_says ask_one(const struct place *p, size_t i, struct bk_until until, struct watch *ret,
                            long long *ret_epoch, pawl_error *error) {
    enum bk_says says = dial_host(p, &p->hosts[i], until, &ret->wire, error);
    if (says != BK_YES) return says;
    ret->sentinel = i;
    ret->asked_ns = clock_now_ns();
    says = hear(p, ret, until, ret_epoch, error);
    if (says != BK_YES) watch_end(ret, true);
    return says;
}

enum bk_says sentinel_find(const struct place *p, struct bk_until until, struct watch *ret, pawl_error *error) {
    long long best = -2;
    int answers = 0;
    for (size_t i = 0; i < p->n_hosts && answers < ANSWERS; i++) {
        struct watch one = {.wire.fd = -1};
        long long epoch = -1;
        pawl_error own = PAWL_ERROR_INIT;
        /* half of what is left is kept for the primary itself */
        if (ask_one(p, i, dial_share(until, 2 * (p->n_hosts - i)), &one, &epoch, &own) != BK_YES) {
            if (answers == 0) error_copy(error, &own);
            if (own.code == PAWL_ECANCELLED) break;
            continue;
        }
        answers++;
        if (epoch > best) {
            if (best > -2) watch_end(ret, false);
            *ret = one;
            best = epoch;
        } else {
            watch_end(&one, false);
        }
    }
    return answers ? BK_YES : BK_FAULT;
}

/* The kept sentinel, or the next one of the URL if that does not answer. */
static enum bk_says ask_again(const struct place *p, struct watch *w, struct bk_until until, redisReply **ret) {
    enum bk_says says = BK_YES;
    if (w->wire.fd < 0) {
        w->sentinel = (w->sentinel + 1) % p->n_hosts;
        says = dial_host(p, &p->hosts[w->sentinel], until, &w->wire, NULL);
        if (says == BK_YES && p->sentinel_password) {
            AUTO_REPLY auth = NULL;
            greet_auth(&w->wire, p->sentinel_user, p->sentinel_password);
            says = wire_flush(&w->wire, until, NULL);
            if (says == BK_YES) says = greet_reply(&w->wire, until, &auth, PAWL_EDENIED, "", NULL);
        }
    }
    if (says == BK_YES) {
        add_address(p, &w->wire);
        says = wire_flush(&w->wire, until, NULL);
        if (says == BK_YES) says = wire_reply(&w->wire, until, ret, NULL);
    }
    if (says != BK_YES) watch_end(w, true);
    return says;
}

enum bk_says watch_ask(const struct place *p, struct watch *w, struct bk_until until, pawl_error *error) {
    AUTO_REPLY reply = NULL;
    int64_t now = clock_now_ns();
    if (now - w->asked_ns < ASK_NS) return BK_YES;
    w->asked_ns = now;
    if (until.at_ns > now + PATIENCE_NS) until.at_ns = now + PATIENCE_NS;
    if (ask_again(p, w, until, &reply) != BK_YES || !same(reply, reply)) {
        w->asked_ns = now + AFRESH_NS;
        return BK_YES;
    }
    const char *host = reply->element[0]->str, *port = reply->element[1]->str;
    if (strcmp(host, w->address) == 0 && atoi(port) == w->port) return BK_YES;
    error_set(error, PAWL_EUNREACHABLE, w->wire.node,
              "the primary of '%s' was %s:%d and is now %s:%s, says sentinel %s", p->master, w->address, w->port, host,
              port, w->wire.node);
    return BK_FAULT;
}

void watch_end(struct watch *w, bool quiet) {
    if (w->wire.fd >= 0) wire_close(&w->wire, quiet);
}
