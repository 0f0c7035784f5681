/* basic.c: what a grant is: taken once, proved, renewed, given back, forgotten; and its token. */
#include "contract.h"
#include "token.h"
#include <stdio.h>
#include <string.h>

static const struct bk_caps *caps_of(struct suite *suite) { return &suite->backend->caps; }

static void capabilities(void **state) {
    struct suite *suite = *state;
    const struct bk_caps *caps = caps_of(suite);
    const struct backend *b = suite->backend;
    assert_string_equal(caps->scheme, suite->fixture->scheme);
    assert_true(b->open && b->close && b->connect && b->drop && b->fds && b->take && b->forget && b->release);
    assert_true(b->prove && b->end && b->records && b->tokens);
    assert_int_equal(caps->hub, b->hub_open && b->hub_fd && b->hub_io && b->hub_close);
    assert_int_equal(caps->life == BK_LIFE_TTL, b->end_life != NULL);
    if (caps->life != BK_LIFE_NONE) {
        assert_non_null(b->renew);
        assert_true(caps->renew_batch >= 1);
        assert_true(caps->ttl_min_ms >= 1 && caps->ttl_min_ms <= 2000);
        assert_true(caps->ttl_max_ms >= 3600000 && caps->ttl_max_ms <= 86400000);
    }
    if (caps->session_bound) assert_true(caps->per_session >= 1);
}

static void taken_once(void **state) {
    struct suite *suite = *state;
    struct party *a = party_new(suite, "taken-once"), *b = party_new(suite, "taken-once");
    assert_true(party_take(suite, a, false));
    uint64_t first = a->grant.token;
    for (int i = 0; i < 3; i++) assert_false(party_take(suite, b, false));
    assert_true(party_release(suite, a));
    assert_true(party_take(suite, b, false));
    assert_true(b->grant.token > first);
    assert_true(party_release(suite, b));
}

static void same_client_is_excluded(void **state) {
    struct suite *suite = *state;
    struct party *a = party_new(suite, "same-client"), *b = party_beside(suite, a, "same-client");
    assert_true(party_take(suite, a, false));
    assert_false(party_take(suite, b, false));
    assert_true(party_release(suite, a));
    assert_true(party_take(suite, b, false));
    assert_true(party_release(suite, b));
}

static void repeat_says_what_is_left(void **state) {
    struct suite *suite = *state;
    struct party *a = party_new(suite, "repeat"), *b = party_new(suite, "repeat");
    assert_true(party_take(suite, a, false));
    uint64_t token = a->grant.token;
    for (int i = 0; i < 3; i++) {
        assert_true(party_take(suite, a, i % 2));
        assert_int_equal(a->grant.token, token);
        assert_true(a->grant.left_ms <= TTL_MS);
    }
    assert_false(party_take(suite, b, false));
    assert_true(party_release(suite, a));
    assert_true(party_take(suite, b, false));
    assert_true(party_release(suite, b));
}

static void released_once(void **state) {
    struct suite *suite = *state;
    struct party *a = party_new(suite, "released-once");
    assert_true(party_take(suite, a, false));
    assert_true(party_release(suite, a));
    assert_false(party_release(suite, a));
    assert_false(party_prove(suite, a));
}

static void wrong_owner_changes_nothing(void **state) {
    struct suite *suite = *state;
    struct party *a = party_new(suite, "wrong-owner"), *b = party_new(suite, "wrong-owner");
    assert_true(party_take(suite, a, false));
    b->grant = a->grant; /* the right token, another owner */
    b->grant.of = NULL;
    b->grant.claim = &b->claim;
    assert_false(party_release(suite, b));
    assert_false(party_prove(suite, b));
    assert_true(party_prove(suite, a));
    a->grant.token--; /* the right owner, another token */
    assert_false(party_release(suite, a));
    assert_false(party_prove(suite, a));
    a->grant.token++;
    assert_true(party_prove(suite, a));
    assert_true(party_release(suite, a));
}

static void older_grant_changes_nothing(void **state) {
    struct suite *suite = *state;
    struct party *old = party_new(suite, "older"), *new = party_new(suite, "older");
    assert_true(party_take(suite, old, false));
    assert_true(party_release(suite, old));
    assert_true(party_take(suite, new, false));
    assert_false(party_release(suite, old));
    assert_false(party_prove(suite, old));
    if (caps_of(suite)->life == BK_LIFE_LOCK) assert_false(party_renew(suite, old));
    assert_true(party_prove(suite, new));
    assert_true(party_release(suite, new));
}

static void proved_while_held(void **state) {
    struct suite *suite = *state;
    struct party *a = party_new(suite, "proved");
    assert_true(party_take(suite, a, false));
    assert_true(party_prove(suite, a));
    assert_true(party_release(suite, a));
}

static void renew_never_creates(void **state) {
    struct suite *suite = *state;
    struct party *a = party_new(suite, "renew"), *b = party_new(suite, "renew");
    assert_true(party_take(suite, a, false));
    assert_true(party_renew(suite, a));
    assert_false(party_take(suite, b, false));
    assert_true(party_release(suite, a));
    assert_false(party_renew(suite, a));
    assert_int_equal(party_records(suite, b, "renew", NULL), 0);
    assert_true(party_take(suite, b, false));
    assert_false(party_renew(suite, a));
    assert_true(party_renew(suite, b));
    assert_true(party_release(suite, b));
}

static void renew_answers_each(void **state) {
    struct suite *suite = *state;
    struct party *a = party_new(suite, "each-a"), *b = party_beside(suite, a, "each-b");
    struct party *c = party_beside(suite, a, "each-c");
    assert_true(party_take(suite, a, false) && party_take(suite, b, false) && party_take(suite, c, false));
    assert_true(party_release(suite, b));
    struct bk_life *lives[] = {&a->life, &b->life, &c->life};
    enum bk_says says[3] = {BK_UNKNOWN, BK_UNKNOWN, BK_UNKNOWN};
    int64_t left[3] = {0, -7, 0};
    pawl_error error = PAWL_ERROR_INIT;
    assert_int_equal(suite->backend->renew(a->session, lives, 3, soon(), says, left, &error), BK_YES);
    assert_true(says[0] == BK_YES && says[1] == BK_NO && says[2] == BK_YES);
    assert_in_range(left[0], 1, TTL_MS);
    assert_in_range(left[2], 1, TTL_MS);
}

static void release_answers_each(void **state) {
    struct suite *suite = *state;
    struct party *a = party_new(suite, "many-a"), *b = party_beside(suite, a, "many-b");
    struct party *c = party_beside(suite, a, "many-c");
    assert_true(party_take(suite, a, false) && party_take(suite, b, false) && party_take(suite, c, false));
    assert_true(party_release(suite, b));
    struct bk_grant *grants[] = {&a->grant, &b->grant, &c->grant};
    enum bk_says says[3] = {BK_UNKNOWN, BK_UNKNOWN, BK_UNKNOWN};
    pawl_error error = PAWL_ERROR_INIT;
    assert_int_equal(suite->backend->release(a->session, grants, 3, soon(), says, &error), BK_YES);
    assert_true(says[0] == BK_YES && says[1] == BK_NO && says[2] == BK_YES);
    assert_int_equal(party_records(suite, a, "many-a", NULL) + party_records(suite, a, "many-c", NULL), 0);
}

static void forget_undoes(void **state) {
    struct suite *suite = *state;
    struct party *a = party_new(suite, "forget"), *b = party_new(suite, "forget");
    assert_true(party_take(suite, a, false));
    assert_true(party_forget(suite, a));
    assert_true(party_take(suite, b, false));
    assert_false(party_forget(suite, a)); /* again: another's grant is not touched */
    assert_true(party_prove(suite, b));
    assert_true(party_release(suite, b));
}

static void forget_of_nothing(void **state) {
    struct suite *suite = *state;
    struct party *a = party_new(suite, "nothing"), *b = party_new(suite, "nothing");
    party_forget(suite, a);
    assert_true(party_take(suite, b, false));
    party_forget(suite, a);
    assert_true(party_prove(suite, b));
    assert_true(party_release(suite, b));
}

static void grant_outlives_session(void **state) {
    struct suite *suite = *state;
    struct party *a = party_new(suite, "outlives"), *b = party_new(suite, "outlives");
    pawl_error error = PAWL_ERROR_INIT;
    assert_true(party_take(suite, a, false));
    suite->backend->drop(a->session, false);
    a->session = NULL;
    assert_false(party_take(suite, b, false));
    assert_int_equal(suite->backend->connect(a->bk, soon(), &a->session, &error), BK_YES);
    assert_true(party_prove(suite, a));
    assert_true(party_release(suite, a));
}

static void tokens_rise(void **state) {
    struct suite *suite = *state;
    struct party *party[2] = {party_new(suite, "rise"), party_new(suite, "rise")};
    uint64_t last = 0;
    for (int i = 0; i < 1000; i++) {
        struct party *a = party[i % 2];
        party_new_owner(a);
        assert_true(party_take(suite, a, false));
        if (a->grant.token <= last)
            fail_msg("grant %d: token %llu after %llu", i, (unsigned long long)a->grant.token,
                     (unsigned long long)last);
        last = a->grant.token;
        assert_true(party_release(suite, a));
    }
}

static void tokens_advance(void **state) {
    struct suite *suite = *state;
    struct party *a = party_new(suite, "advance");
    struct bk_tokens before = {0}, after = {0};
    pawl_error error = PAWL_ERROR_INIT;
    assert_true(party_take(suite, a, false));
    uint64_t token = a->grant.token;
    assert_true(party_release(suite, a));
    assert_int_equal(suite->backend->tokens(a->session, false, 0, soon(), &before, &error), BK_YES);
    assert_true(before.last >= token);
    assert_true(before.clock_us > INT64_C(1700000000000000));
    uint64_t to = before.last + 5000000;
    assert_int_equal(suite->backend->tokens(a->session, true, to, soon(), &after, &error), BK_YES);
    assert_true(after.last >= to);
    party_new_owner(a);
    assert_true(party_take(suite, a, false));
    assert_true(a->grant.token > to);
    token = a->grant.token;
    assert_int_equal(suite->backend->tokens(a->session, true, 0, soon(), &after, &error), BK_YES);
    assert_true(party_release(suite, a));
    party_new_owner(a);
    assert_true(party_take(suite, a, false));
    assert_true(a->grant.token > token + TOKEN_LEAP);
    assert_true(party_release(suite, a));
}

static void records_tell(void **state) {
    struct suite *suite = *state;
    struct party *a = party_new(suite, "records"), *b = party_new(suite, "records"), *c = party_new(suite, "other");
    struct bk_record record = {0};
    assert_int_equal(party_records(suite, a, "records", NULL), 0);
    assert_true(party_take(suite, a, false));
    assert_true(party_take(suite, c, false));
    assert_int_equal(party_records(suite, b, "records", &record), 1);
    assert_string_equal(record.name, "records");
    assert_int_equal(record.place, 0);
    assert_false(record.shared);
    if (record.token) assert_int_equal(record.token, a->grant.token);
    if (*record.about) assert_string_equal(record.about, a->about);
    assert_true(party_records(suite, b, NULL, NULL) >= 2);
    assert_true(party_release(suite, a));
    assert_int_equal(party_records(suite, b, "records", NULL), 0);
    assert_true(party_release(suite, c));
}

const struct contract_case basic_cases[] = {
    CASE(capabilities, ALWAYS),
    CASE(taken_once, ALWAYS),
    CASE(same_client_is_excluded, ALWAYS),
    CASE(repeat_says_what_is_left, OWNERS),
    CASE(released_once, OWNERS),
    CASE(wrong_owner_changes_nothing, OWNERS),
    CASE(older_grant_changes_nothing, OWNERS),
    CASE(proved_while_held, ALWAYS),
    CASE(renew_never_creates, LOCK_LIFE),
    CASE(renew_answers_each, LOCK_LIFE),
    CASE(release_answers_each, OWNERS),
    CASE(forget_undoes, OWNERS),
    CASE(forget_of_nothing, ALWAYS),
    CASE(grant_outlives_session, OWNERS),
    CASE(tokens_rise, ALWAYS),
    CASE(tokens_advance, ALWAYS),
    CASE(records_tell, ALWAYS),
    {0},
};
