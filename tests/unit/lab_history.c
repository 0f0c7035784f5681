/* lab_history.c: the history checker finds each planted violation, and only it; clean histories stay clean. A judge
 * that never finds anything would make every contention test pass, so each test names exactly the faults that it
 * expects. */
#include "history.h"
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MS INT64_C(1000000)

static struct history *h;
static struct history_verdict v;

static int setup(void **state) {
    (void)state;
    h = history_new();
    return 0;
}
static int teardown(void **state) {
    (void)state;
    history_free(h);
    return 0;
}

static void add(enum history_what what, const char *who, uint64_t token, int64_t start_ms, int64_t end_ms,
                enum history_outcome outcome, bool shared, int64_t asked_ms) {
    struct history_event e = {.what = what,
                              .outcome = outcome,
                              .who = who,
                              .lock = "l",
                              .token = token,
                              .start = start_ms * MS,
                              .end = end_ms < 0 ? HISTORY_OPEN : end_ms * MS,
                              .asked = asked_ms < 0 ? HISTORY_NEVER : asked_ms * MS,
                              .shared = shared};
    history_add(h, &e);
}
static void hold(const char *who, uint64_t token, int64_t start, int64_t end) {
    add(HISTORY_HOLD, who, token, start, end, HISTORY_RELEASED, false, -1);
}
static void shared(const char *who, uint64_t token, int64_t start, int64_t end) {
    add(HISTORY_HOLD, who, token, start, end, HISTORY_RELEASED, true, -1);
}
static void act(const char *who, uint64_t token, int64_t start, int64_t end) {
    add(HISTORY_ACT, who, token, start, end, HISTORY_DONE, false, -1);
}
static void write_(const char *who, uint64_t token, int64_t start, int64_t end, bool accepted) {
    add(HISTORY_WRITE, who, token, start, end, accepted ? HISTORY_ACCEPTED : HISTORY_REFUSED, false, -1);
}

/* n faults of that kind, and none of any other. */
static void expect_with(const struct history_limits *limits, enum history_fault fault, uint64_t n) {
    history_check(h, limits, &v);
    for (int f = 0; f < HISTORY_FAULTS; f++) {
        uint64_t want = f == (int)fault ? n : 0;
        if (v.faults[f] != want)
            fail_msg("%s: %" PRIu64 ", expected %" PRIu64 ": %s", history_fault_name((enum history_fault)f),
                     v.faults[f], want, v.examples[f][0]);
    }
    assert_int_equal(v.all_faults, n);
}
static void expect(enum history_fault fault, uint64_t n) { expect_with(NULL, fault, n); }
static void expect_clean(void) { expect(HISTORY_OVERLAP, 0); }

static void clean(void **state) {
    (void)state;
    hold("b", 11, 20, 30); /* order of lines means nothing */
    hold("a", 10, 10, 20); /* end and begin at the same instant do not overlap */
    hold("a", 12, 30, -1);
    shared("c", 9, 0, 9);
    shared("d", 8, 1, 10); /* shared grants at the same time: order unknown */
    act("a", 10, 11, 20);
    act("b", 11, 20, 30);
    write_("a", 10, 12, 13, true);
    write_("a", 10, 13, 14, true);
    write_("b", 11, 21, 22, true);
    write_("a", 10, 23, 24, false);
    add(HISTORY_WAIT, "e", 0, 5, 50, HISTORY_TIMEOUT, false, -1);
    expect_clean();
    assert_int_equal(v.holds, 5);
    assert_int_equal(v.workers, 5);
    assert_int_equal(v.locks, 1);
    assert_int_equal(v.handovers, 2);
    assert_int_equal(v.wait_max_ns, 45 * MS);
}

static void overlap(void **state) {
    (void)state;
    hold("a", 1, 0, 10);
    hold("b", 2, 9, 12);
    hold("c", 3, 12, 13);
    expect(HISTORY_OVERLAP, 1);
    assert_non_null(strstr(v.examples[HISTORY_OVERLAP][0],
                           "b held it from 0.009000 s (line 2) while a held it until 0.010000 s (line 1)"));
}

static void overlap_behind_a_long_hold(void **state) {
    (void)state;
    hold("a", 1, 0, 100); /* ends long after the hold between: comparing neighbours alone would miss c */
    hold("b", 2, 5, 6);
    hold("c", 3, 50, 60);
    expect(HISTORY_OVERLAP, 2);
}

static void overlap_of_one_worker(void **state) {
    (void)state;
    hold("a", 1, 0, -1);
    hold("a", 2, 5, 6);
    expect(HISTORY_OVERLAP, 1);
}

static void locks_are_apart(void **state) {
    (void)state;
    hold("a", 5, 0, 10);
    history_add(h, &(struct history_event){.what = HISTORY_HOLD,
                                           .who = "a",
                                           .lock = "m",
                                           .token = 5,
                                           .start = 5 * MS,
                                           .end = 15 * MS,
                                           .asked = 2 * MS});
    hold("b", 6, 20, 30);
    history_add(h, &(struct history_event){.what = HISTORY_HOLD,
                                           .who = "b",
                                           .lock = "m",
                                           .token = 6,
                                           .start = 16 * MS,
                                           .end = 17 * MS,
                                           .asked = 16 * MS});
    expect_clean();
    assert_int_equal(v.locks, 2);
}

static void shared_overlap(void **state) {
    (void)state;
    shared("a", 1, 0, 10);
    shared("b", 2, 5, 20);
    hold("c", 3, 10, 12); /* b still reads */
    shared("d", 4, 11, 13);
    expect(HISTORY_SHARED_OVERLAP, 2);
}

static void token_fell(void **state) {
    (void)state;
    hold("a", 10, 0, 1);
    hold("b", 12, 2, 3);
    hold("c", 11, 4, 5);
    hold("d", 13, 6, 7);
    expect(HISTORY_TOKEN_FELL, 1);
}

static void token_fell_far_back(void **state) {
    (void)state;
    hold("a", 99, 0, 1);
    hold("b", 100, 2, 3);
    shared("c", 99, 4, 5); /* also repeats a's */
    history_check(h, NULL, &v);
    assert_int_equal(v.faults[HISTORY_TOKEN_FELL], 1);
    assert_int_equal(v.faults[HISTORY_TOKEN_REPEATED], 1);
}

static void token_fell_among_shared(void **state) {
    (void)state;
    add(HISTORY_HOLD, "a", 7, 5, 50, HISTORY_RELEASED, true, 1);
    add(HISTORY_HOLD, "b", 6, 6, 50, HISTORY_RELEASED, true, 5); /* asked at the instant of a's grant: proves nothing */
    expect_clean();
    add(HISTORY_HOLD, "c", 5, 8, 50, HISTORY_RELEASED, true, 7); /* asked when a and b already held */
    expect(HISTORY_TOKEN_FELL, 1);
}

static void token_fell_without_proof(void **state) {
    (void)state;
    shared("a", 5, 0, 1);
    shared("b", 4, 2, 3); /* b may have been granted before a, and told late */
    expect_clean();
    add(HISTORY_HOLD, "c", 3, 5, 6, HISTORY_RELEASED, false, 4); /* proven twice, counted once */
    expect(HISTORY_TOKEN_FELL, 1);
}

static void token_told_late(void **state) {
    (void)state;
    hold("a", 5, 0, 1);
    add(HISTORY_HOLD, "b", 4, 3, 3, HISTORY_LOST, false, 0); /* granted before a */
    expect_clean();
    add(HISTORY_HOLD, "c", 3, 5, 5, HISTORY_LOST, false, 4); /* asked for when a had begun */
    add(HISTORY_HOLD, "d", 2, 7, 8, HISTORY_LOST, false, 0); /* held for a while */
    expect(HISTORY_TOKEN_FELL, 2);
}

static void token_fell_behind_another_lock(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) { /* events of one lock must not hide those of the next */
        history_add(h, &(struct history_event){.who = "z",
                                               .lock = "other",
                                               .token = 1,
                                               .start = 100 * MS,
                                               .end = 900 * MS,
                                               .asked = 50 * MS,
                                               .shared = true});
        hold("a", 10 + (uint64_t)i * 10, i * 4, i * 4 + 1);
        add(HISTORY_HOLD, "b", 9 + (uint64_t)i * 10, i * 4 + 2, i * 4 + 3, HISTORY_RELEASED, false, i ? i * 4 + 1 : -1);
    }
    history_check(h, NULL, &v);
    assert_int_equal(v.faults[HISTORY_TOKEN_FELL], 2);
}

static void token_fell_among_shared_behind_another_lock(void **state) {
    (void)state;
    history_add(h, &(struct history_event){.who = "z",
                                           .lock = "other",
                                           .token = 1,
                                           .start = 100 * MS,
                                           .end = 900 * MS,
                                           .asked = 50 * MS,
                                           .shared = true});
    add(HISTORY_HOLD, "a", 7, 5, 50, HISTORY_RELEASED, true, 1);
    add(HISTORY_HOLD, "b", 6, 8, 50, HISTORY_RELEASED, true, 7);
    expect(HISTORY_TOKEN_FELL, 1);
}

static void token_repeated(void **state) {
    (void)state;
    hold("a", 10, 0, 1);
    hold("b", 10, 2, 3);
    hold("c", 0, 4, 5); /* no tokens: nothing to say */
    hold("d", 0, 6, 7);
    expect(HISTORY_TOKEN_REPEATED, 1);
}

static void late_act(void **state) {
    (void)state;
    hold("a", 1, 0, 10);
    act("a", 1, 1, 10);
    act("a", 1, 9, 11);
    act("a", 1, 20, 21);
    expect(HISTORY_LATE_ACT, 2);
}

static void late_act_by_a_later_grant(void **state) {
    (void)state;
    act("a", 1, 0, 1); /* nobody saw the holds: killed wrappers write nothing */
    act("a", 1, 7, 8);
    act("b", 2, 8, 9);
    expect_clean();
    act("a", 1, 8, 9);
    expect(HISTORY_LATE_ACT, 1);
}

static void late_act_by_a_later_hold(void **state) {
    (void)state;
    hold("b", 2, 10, 20);
    act("a", 1, 5, 11);
    expect(HISTORY_LATE_ACT, 1);
}

static void late_act_by_the_earliest_of_later_grants(void **state) {
    (void)state;
    hold("c", 3, 10, 12);
    hold("b", 2, 20, 22); /* a second fault: tokens fell */
    act("a", 1, 13, 15);
    history_check(h, NULL, &v);
    assert_int_equal(v.faults[HISTORY_LATE_ACT], 1);
    assert_non_null(strstr(v.examples[HISTORY_LATE_ACT][0], "but a later grant began with c at 0.000000 s (line 1)"));
}

static void an_act_belongs_to_its_worker(void **state) {
    (void)state;
    hold("a", 1, 0, 5);
    act("b", 1, 6, 7); /* of a hold that nobody saw */
    expect_clean();
}

static void shared_acts_do_not_exclude_each_other(void **state) {
    (void)state;
    shared("a", 1, 0, 20);
    shared("b", 2, 5, 20);
    act("a", 1, 10, 11);
    act("b", 2, 10, 11);
    expect_clean();
    act("b", 2, 21, 22);
    hold("c", 3, 21, 30);
    expect(HISTORY_LATE_ACT, 1);
}

static void late_act_without_tokens(void **state) {
    (void)state;
    hold("a", 0, 0, 10);
    hold("a", 0, 20, 30);
    act("a", 0, 1, 2);
    act("a", 0, 25, 26);
    act("z", 0, 25, 26); /* of whose holds nothing is known */
    expect_clean();
    act("a", 0, 12, 13);
    expect(HISTORY_LATE_ACT, 1);
}

static void stale_write(void **state) {
    (void)state;
    write_("b", 2, 10, 11, true);
    write_("a", 1, 10, 12, true); /* at the same time: the order is unknown */
    write_("a", 1, 12, 13, false);
    expect_clean();
    write_("a", 1, 14, 15, true);
    expect(HISTORY_STALE_WRITE, 1);
    assert_non_null(strstr(v.examples[HISTORY_STALE_WRITE][0], "write of a with token 1"));
}

static void starved(void **state) {
    (void)state;
    for (int i = 0; i < 9; i++) hold("a", (uint64_t)i + 1, i, i + 1);
    for (int i = 9; i < 12; i++) hold("b", (uint64_t)i + 1, i, i + 1);
    expect_with(&(struct history_limits){.max_ratio = 3, .min_grants = 3}, HISTORY_STARVED, 0);
    assert_int_equal(v.grants_max, 9);
    assert_int_equal(v.grants_min, 3);
    expect_with(&(struct history_limits){.max_ratio = 2.9}, HISTORY_STARVED, 1);
    expect_with(&(struct history_limits){.min_grants = 4}, HISTORY_STARVED, 1);
    add(HISTORY_WAIT, "c", 0, 0, 9, HISTORY_TIMEOUT, false, -1); /* asked and got nothing */
    expect_with(&(struct history_limits){.max_ratio = 3}, HISTORY_STARVED, 1);
    assert_int_equal(v.grants_min, 0);
}

static void long_waits(void **state) {
    (void)state;
    add(HISTORY_HOLD, "a", 1, 100, 101, HISTORY_RELEASED, false, 0);
    add(HISTORY_WAIT, "b", 0, 0, 101, HISTORY_CANCELLED, false, -1);
    expect_with(&(struct history_limits){.max_wait_ns = 101 * MS}, HISTORY_STARVED, 0);
    expect_with(&(struct history_limits){.max_wait_ns = 99 * MS}, HISTORY_STARVED, 2);
    assert_int_equal(v.wait_max_ns, 101 * MS);
}

static void instants(void **state) { /* a virtual clock gives many events one time: no order, no fault */
    (void)state;
    hold("a", 6, 10, 10);
    hold("b", 5, 10, 10);
    hold("c", 7, 10, 20);
    hold("d", 8, 20, 20);
    hold("e", 9, 20, 25);
    expect_clean();
}

static void clear(void **state) {
    (void)state;
    hold("a", 1, 0, 10);
    hold("b", 1, 0, 10);
    history_clear(h);
    hold("c", 1, 0, 10);
    expect_clean();
    assert_int_equal(v.events, 1);
    assert_int_equal(v.workers, 1);
}

/* A lock as it should be, then one planted fault at a random place. */
static uint64_t next(uint64_t *seed) {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}
static void random_histories(void **state) {
    (void)state;
    for (uint64_t round = 1; round <= 300; round++) {
        uint64_t seed = round * UINT64_C(0x9E3779B97F4A7C15), token = 1000;
        uint64_t plant = next(&seed) % 100;
        enum history_fault fault = (enum history_fault)(round % 4 == 0   ? HISTORY_OVERLAP
                                                        : round % 4 == 1 ? HISTORY_TOKEN_REPEATED
                                                        : round % 4 == 2 ? HISTORY_LATE_ACT
                                                                         : HISTORY_STALE_WRITE);
        history_clear(h);
        int64_t now = 0;
        for (uint64_t i = 0; i < 100; i++) {
            char who[8];
            snprintf(who, sizeof who, "w%" PRIu64, next(&seed) % 7);
            token += 1 + next(&seed) % 5;
            int64_t start = now + (int64_t)(next(&seed) % 3), end = start + 4 + (int64_t)(next(&seed) % 9);
            bool here = i == plant && i > 0;
            bool overlaps = here && fault == HISTORY_OVERLAP, repeats = here && fault == HISTORY_TOKEN_REPEATED;
            if (repeats) hold("w9", token, start, start + 1);
            hold(who, token, overlaps ? now - 1 : repeats ? start + 1 : start, end);
            act(who, token, start + 2, here && fault == HISTORY_LATE_ACT ? end + 1 : end - 1);
            write_(who, token, start + 2, start + 3, true);
            if (here && fault == HISTORY_STALE_WRITE) write_("w9", token - 1, start + 4, start + 5, true);
            now = end;
        }
        expect(fault, plant > 0);
    }
}

static void lines(void **state) {
    (void)state;
    char line[512];
    const struct history_event events[] = {
        {.what = HISTORY_HOLD,
         .outcome = HISTORY_LOST,
         .who = "w \"1\"\n",
         .lock = "l\\\xc3\xa4",
         .token = (UINT64_C(1) << 53) - 1,
         .start = 7,
         .end = HISTORY_OPEN,
         .asked = 3,
         .shared = true},
        {.what = HISTORY_WRITE,
         .outcome = HISTORY_REFUSED,
         .who = "x",
         .lock = "r",
         .start = -5,
         .end = 9,
         .asked = HISTORY_NEVER},
    };
    static const char *const want[] = {
        "{\"who\":\"w "
        "\\\"1\\\"\\u000a\",\"what\":\"hold\",\"lock\":\"l\\\\\xc3\xa4\",\"start\":7,\"token\":\"9007199254740991\","
        "\"asked\":3,"
        "\"shared\":true,\"outcome\":\"lost\"}\n",
        "{\"who\":\"x\",\"what\":\"write\",\"lock\":\"r\",\"start\":-5,\"end\":9,\"outcome\":\"refused\"}\n",
    };
    for (int i = 0; i < 2; i++) {
        assert_int_equal(history_line(&events[i], line, sizeof line), strlen(want[i]));
        assert_string_equal(line, want[i]);
        assert_int_equal(history_line(&events[i], line, strlen(want[i])), 0);
        assert_int_equal(history_line(&events[i], line, strlen(want[i]) + 1), strlen(want[i]));
    }
}

static void expect_read(const char *text, const char *complaint) {
    FILE *f = fmemopen((void *)(uintptr_t)text, strlen(text), "r");
    assert_non_null(f);
    pawl_error error = PAWL_ERROR_INIT;
    int r = history_read(h, f, "f", &error);
    fclose(f);
    assert_int_equal(r, complaint ? PAWL_EINVALID : PAWL_OK);
    if (complaint && !strstr(error.text, complaint)) fail_msg("\"%s\" does not say \"%s\"", error.text, complaint);
}

#define LINE(more) "{\"who\":\"a\",\"what\":\"hold\",\"lock\":\"l\",\"start\":5,\"outcome\":\"released\"" more "}\n"

static void reading(void **state) {
    (void)state;
    expect_read(
        "\n" LINE(",\"token\":\"17\",\"end\":9") LINE(",\"token\":17,\"end\":null,\"shared\":false,\"asked\":5"), NULL);
    history_check(h, NULL, &v);
    assert_int_equal(v.faults[HISTORY_OVERLAP], 1);
    assert_int_equal(v.faults[HISTORY_TOKEN_REPEATED], 1);
    assert_non_null(strstr(v.examples[HISTORY_TOKEN_REPEATED][0], "(line 2) and to a (line 3)"));
}

static void bad_lines(void **state) {
    (void)state;
    expect_read(LINE(",\"tokn\":1"), "f:1: unknown field \"tokn\"");
    expect_read(LINE("") LINE(",\"end\":4"), "f:2: ends before it starts");
    expect_read(LINE(",\"asked\":6"), "asked for after");
    expect_read(LINE(",\"end\":7.5"), "\"end\" is no whole number");
    expect_read(LINE(",\"token\":\"12x\""), "\"token\"");
    expect_read(LINE(",\"token\":-1"), "\"token\"");
    expect_read(LINE(",\"token\":\"99999999999999999999999\""), "\"token\"");
    expect_read(LINE(",\"shared\":1"), "\"shared\"");
    expect_read(LINE(",\"who\":\"b\""), "f:1: not JSON");
    expect_read("{\"who\":\"a\",\"what\":\"hodl\",\"lock\":\"l\",\"start\":5,\"outcome\":\"released\"}",
                "\"what\" is \"hodl\"");
    expect_read("{\"who\":\"a\",\"what\":\"hold\",\"lock\":\"l\",\"start\":5}", "no \"outcome\"");
    expect_read("{\"what\":\"hold\",\"lock\":\"l\",\"start\":5}", "no \"who\"");
    expect_read("{\"who\":\"a\",\"what\":\"hold\",\"lock\":\"l\",\"outcome\":\"lost\"}", "no \"start\"");
    expect_read("[1]", "not a JSON object");
    expect_read("{", "not JSON");
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
int main(void) {
    /* clang-format off */
    const struct CMUnitTest tests[] = {
        T(clean), T(overlap), T(overlap_behind_a_long_hold), T(overlap_of_one_worker), T(locks_are_apart),
        T(shared_overlap), T(token_fell), T(token_fell_far_back), T(token_fell_among_shared),
        T(token_fell_without_proof), T(token_told_late), T(token_fell_behind_another_lock),
        T(token_fell_among_shared_behind_another_lock), T(token_repeated),
        T(late_act_by_the_earliest_of_later_grants), T(an_act_belongs_to_its_worker), T(late_act),
        T(late_act_by_a_later_grant), T(late_act_by_a_later_hold), T(shared_acts_do_not_exclude_each_other),
        T(late_act_without_tokens), T(stale_write), T(starved), T(long_waits), T(instants), T(clear),
        T(random_histories), T(lines), T(reading), T(bad_lines),
    };
    /* clang-format on */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
