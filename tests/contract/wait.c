/* wait.c: waiting, handing over, sharing, and the end of a time to live. */
#include "clock.h"
#include "contract.h"
#include "ran.h"
#include <stdio.h>
#include <string.h>

static const struct bk_caps *caps_of(struct suite *suite) { return &suite->backend->caps; }
/* Longer than a machine stands still between two steps of a test. */
static int64_t short_ttl(struct suite *suite) {
    return caps_of(suite)->ttl_min_ms > 1500 ? caps_of(suite)->ttl_min_ms : 1500;
}

static void waiter_is_served(void **state) {
    struct suite *suite = *state;
    struct party *a = party_new(suite, "served"), *b = party_new(suite, "served");
    assert_true(party_take(suite, a, false));
    assert_false(party_take(suite, b, true));
    assert_true(b->busy.ask_again_ms > 0);
    if (*b->busy.holder) assert_string_equal(b->busy.holder, a->about);
    assert_true(party_release(suite, a));
    assert_true(party_await(suite, b));
    assert_true(b->grant.token > a->grant.token);
    assert_true(party_prove(suite, b));
    assert_true(party_release(suite, b));
}

static void in_order(void **state) {
    struct suite *suite = *state;
    struct party *line[6], *barger = party_new(suite, "order");
    for (int i = 0; i < 6; i++) {
        line[i] = party_new(suite, "order");
        assert_int_equal(party_take(suite, line[i], i > 0), i == 0);
    }
    for (int i = 0; i < 5; i++) {
        assert_true(party_release(suite, line[i]));
        for (int j = 5; j > i + 1; j--) assert_false(party_take(suite, line[j], true));
        assert_false(party_take(suite, barger, false));
        assert_true(party_await(suite, line[i + 1]));
    }
    assert_true(party_release(suite, line[5]));
    assert_true(party_take(suite, barger, false));
    assert_true(party_release(suite, barger));
}

static void waiters_are_recorded(void **state) {
    struct suite *suite = *state;
    struct party *a = party_new(suite, "line"), *b = party_new(suite, "line");
    struct bk_record record = {0};
    assert_true(party_take(suite, a, false));
    assert_false(party_take(suite, b, true));
    assert_true(b->busy.queued);
    assert_int_equal(party_records(suite, a, "line", &record), 2);
    assert_int_equal(record.place, 1);
    party_forget(suite, b);
    assert_int_equal(party_records(suite, a, "line", &record), 1);
    assert_int_equal(record.place, 0);
}

static void hub_wakes_exactly_one(void **state) {
    struct suite *suite = *state;
    struct party *a = party_new(suite, "hub"), *b = party_new(suite, "hub"), *c = party_beside(suite, b, "hub");
    struct party *d = party_new(suite, "hub");
    assert_true(party_take(suite, a, false));
    assert_false(party_take(suite, b, true));
    assert_false(party_take(suite, c, true));
    assert_false(party_take(suite, d, true));
    party_hear_all(suite); /* where a waiter is told when its watch stands */
    b->woken = c->woken = d->woken = 0;
    assert_true(party_release(suite, a));
    for (int64_t end = soon().at_ns; !b->woken && clock_now_ns() < end;) party_hear(suite, b, end);
    assert_true(party_take(suite, b, true));
    party_hear(suite, b, 0);
    party_hear(suite, d, 0);
    assert_int_equal(b->woken, 1);
    assert_int_equal(c->woken, 0);
    assert_int_equal(d->woken, 0);
    assert_true(party_release(suite, b));
    for (int64_t end = soon().at_ns; !c->woken && clock_now_ns() < end;) party_hear(suite, c, end);
    assert_int_equal(c->woken, 1);
    assert_true(party_take(suite, c, true));
}

static void forget_hands_on(void **state) {
    struct suite *suite = *state;
    struct party *a = party_new(suite, "hands-on"), *b = party_new(suite, "hands-on");
    struct party *c = party_new(suite, "hands-on"), *d = party_new(suite, "hands-on");
    assert_true(party_take(suite, a, false));
    assert_false(party_take(suite, b, true));
    assert_false(party_take(suite, c, true));
    assert_false(party_take(suite, d, true));
    party_forget(suite, c); /* leaves from the middle */
    assert_true(party_release(suite, a));
    party_forget(suite, b); /* perhaps it was just handed to b */
    int64_t sent = ran_ns();
    assert_true(party_await(suite, d));
    if (caps_of(suite)->hub) assert_true(ran_ns() - sent < 400 * NS_PER_MS);
    assert_true(party_release(suite, d));
    assert_int_equal(party_records(suite, d, "hands-on", NULL), 0);
}

static void waiter_that_died_costs_a_claim_time(void **state) {
    struct suite *suite = *state;
    struct party *a = party_new(suite, "dead"), *b = party_new(suite, "dead"), *c = party_new(suite, "dead");
    assert_true(party_take(suite, a, false));
    assert_false(party_take(suite, b, true));
    assert_false(party_take(suite, c, true));
    assert_true(party_release(suite, a)); /* b is told, and never comes */
    assert_false(party_take(suite, c, true));
    suite->fixture->pass_ms(1000);
    assert_true(party_await(suite, c));
    assert_false(party_take(suite, b, true));
    assert_true(party_release(suite, c));
    assert_true(party_await(suite, b));
}

static void expiry_frees(void **state) {
    struct suite *suite = *state;
    struct party *a = party_new(suite, "expiry"), *b = party_new(suite, "expiry");
    party_ttl(a, short_ttl(suite));
    assert_true(party_take(suite, a, false));
    if (a->grant.left_ms >= 0) assert_in_range(a->grant.left_ms, 1, short_ttl(suite));
    assert_false(party_take(suite, b, false));
    suite->fixture->pass_ms(short_ttl(suite) + 50);
    assert_true(party_await(suite, b));
    assert_true(b->grant.token > a->grant.token);
    assert_false(party_prove(suite, a));
    assert_false(party_release(suite, a));
    if (caps_of(suite)->life == BK_LIFE_LOCK) assert_false(party_renew(suite, a));
    assert_true(party_prove(suite, b));
    assert_true(party_release(suite, b));
}

static void expiry_serves_the_first_waiter(void **state) {
    struct suite *suite = *state;
    struct party *a = party_new(suite, "expiry-wait"), *b = party_new(suite, "expiry-wait");
    party_ttl(a, short_ttl(suite));
    assert_true(party_take(suite, a, false));
    assert_false(party_take(suite, b, true));
    if (caps_of(suite)->life == BK_LIFE_LOCK)
        assert_true(b->busy.ask_again_ms <= short_ttl(suite) + 1000); /* else it is told */
    suite->fixture->pass_ms(short_ttl(suite) + 50);
    assert_true(party_await(suite, b));
    assert_true(party_release(suite, b));
}

static void renew_holds_on(void **state) {
    struct suite *suite = *state;
    struct party *a = party_new(suite, "holds-on"), *b = party_new(suite, "holds-on");
    int64_t ttl = 2 * short_ttl(suite);
    party_ttl(a, ttl);
    assert_true(party_take(suite, a, false));
    for (int i = 0; i < 2; i++) {
        suite->fixture->pass_ms(ttl * 6 / 10);
        assert_true(party_renew(suite, a));
    }
    assert_false(party_take(suite, b, false));
    assert_true(party_prove(suite, a));
    assert_true(party_release(suite, a));
}

static void shared_matrix(void **state) {
    struct suite *suite = *state;
    struct party *r1 = party_new(suite, "matrix"), *r2 = party_new(suite, "matrix"), *w = party_new(suite, "matrix");
    struct bk_record record = {0};
    party_shared(r1);
    party_shared(r2);
    assert_true(party_take(suite, r1, false));
    assert_true(party_take(suite, r2, false));
    assert_int_not_equal(r1->grant.token, r2->grant.token);
    assert_false(party_take(suite, w, false));
    assert_int_equal(party_records(suite, w, "matrix", &record), 2);
    assert_true(record.shared);
    assert_true(party_release(suite, r1));
    assert_false(party_take(suite, w, false));
    assert_true(party_release(suite, r2));
    assert_true(party_take(suite, w, false));
    assert_true(w->grant.token > r2->grant.token);
    party_new_owner(r1);
    assert_false(party_take(suite, r1, false));
    assert_true(party_release(suite, w));
    assert_true(party_take(suite, r1, false));
    assert_true(party_release(suite, r1));
}

static void shared_is_refused_where_it_is_not(void **state) {
    struct suite *suite = *state;
    struct party *r = party_new(suite, "no-shared"), *other = party_new(suite, "no-shared");
    struct bk_grant grant = {0};
    pawl_error error = PAWL_ERROR_INIT;
    party_shared(r);
    enum bk_says says = suite->backend->take(r->session, &r->claim, false, soon(), &grant, &r->busy, &error);
    if (says == BK_YES) { /* the core refuses it before; if it comes here, it is at least exclusive */
        assert_false(party_take(suite, other, false));
        suite->backend->end(&grant, false);
        return;
    }
    assert_int_equal(says, BK_FAULT);
    assert_int_equal(error.code, PAWL_EUNSUPPORTED);
}

static void readers_go_together(void **state) {
    struct suite *suite = *state;
    struct party *w = party_new(suite, "together"), *r1 = party_new(suite, "together");
    struct party *r2 = party_new(suite, "together"), *w2 = party_new(suite, "together");
    struct party *r3 = party_new(suite, "together");
    party_shared(r1);
    party_shared(r2);
    party_shared(r3);
    assert_true(party_take(suite, w, false));
    assert_false(party_take(suite, r1, true));
    assert_false(party_take(suite, r2, true));
    assert_false(party_take(suite, w2, true));
    assert_false(party_take(suite, r3, true));
    assert_true(party_release(suite, w));
    assert_true(party_await(suite, r2));
    assert_true(party_await(suite, r1));
    assert_false(party_take(suite, r3, true)); /* a writer waits before it */
    assert_true(party_release(suite, r1));
    assert_false(party_take(suite, w2, true));
    assert_true(party_release(suite, r2));
    assert_true(party_await(suite, w2));
    assert_true(party_release(suite, w2));
    assert_true(party_await(suite, r3));
    assert_true(party_release(suite, r3));
}

const struct contract_case wait_cases[] = {
    CASE(waiter_is_served, ALWAYS),
    CASE(in_order, FIFO),
    CASE(waiters_are_recorded, HUB),
    CASE(hub_wakes_exactly_one, HUB | FIFO),
    CASE(forget_hands_on, ALWAYS),
    CASE(waiter_that_died_costs_a_claim_time, HUB | FIFO | LOCK_LIFE),
    CASE(expiry_frees, TTL),
    CASE(expiry_serves_the_first_waiter, TTL),
    CASE(renew_holds_on, TTL),
    CASE(shared_matrix, SHARED),
    CASE(shared_is_refused_where_it_is_not, NOT_SHARED),
    CASE(readers_go_together, SHARED | FIFO),
    {0},
};
