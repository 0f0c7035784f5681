/* The decision of a guard, as a table: what the mark is, what comes, what is answered and what the mark becomes. */
#include "guard/guard.h"
#include "guard/record_file.h"
#include "token.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define NOW INT64_C(1796043852000000)
#define DAY ((int64_t)TOKEN_DAY_US)
enum { D = PAWL_RULE_DEFAULT, GE = PAWL_RULE_GE, GT = PAWL_RULE_GT, SEQ = PAWL_RULE_SEQ };
enum { S = GUARD_SEAL, W = GUARD_WRITE };

static const struct row {
    const char *what;
    struct { /* the mark before; rule D: no record */
        int rule;
        int64_t token, seq;
        bool used;
    } was;
    struct {
        int intent;
        int64_t token, seq;
        int rule;
        bool jump;
        const char *lock;
    } comes;
    int answer;
    int64_t token, seq; /* the mark behind; if accepted */
    bool used;
} rows[] = {
    {"first write", {D}, {W, 5}, PAWL_OK, 5, 0, true},
    {"first seal", {D}, {S, 5}, PAWL_OK, 5, 0, false},
    {"no token", {GE, 5}, {W, 0}, PAWL_GNOTOKEN},
    {"no token, no record", {D}, {W, 0}, PAWL_GNOTOKEN},
    {"lower", {GE, 5, 0, true}, {W, 4}, PAWL_GSTALE},
    {"lower by one at the top", {GE, (int64_t)TOKEN_MAX, 0, true}, {W, (int64_t)TOKEN_MAX - 1}, PAWL_GSTALE},
    {"equal at the top",
     {GE, (int64_t)TOKEN_MAX, 0, true},
     {W, (int64_t)TOKEN_MAX},
     PAWL_OK,
     (int64_t)TOKEN_MAX,
     0,
     true},
    {"same holder again", {GE, 5, 0, true}, {W, 5}, PAWL_OK, 5, 0, true},
    {"higher", {GE, 5, 0, true}, {W, 6}, PAWL_OK, 6, 0, true},
    {"lower against a seal", {GE, 5, 0, false}, {W, 4}, PAWL_GSTALE},
    {"seal lower", {GE, 5, 0, true}, {S, 4}, PAWL_GSTALE},
    {"seal higher", {GE, 5, 0, true}, {S, 6}, PAWL_OK, 6, 0, false},
    {"seal again after the write", {GE, 5, 0, true}, {S, 5}, PAWL_OK, 5, 0, true},
    {"gt: once", {GT, 5, 0, true}, {W, 5}, PAWL_GSTALE},
    {"gt: after its own seal", {GT, 5, 0, false}, {W, 5}, PAWL_OK, 5, 0, true},
    {"gt: seal is repeatable, and gives no second write", {GT, 5, 0, true}, {S, 5}, PAWL_OK, 5, 0, true},
    {"gt: higher", {GT, 5, 0, true}, {W, 6}, PAWL_OK, 6, 0, true},
    {"gt: lower", {GT, 5, 0, false}, {W, 4}, PAWL_GSTALE},
    {"seq: next", {SEQ, 5, 3, true}, {W, 5, 4}, PAWL_OK, 5, 4, true},
    {"seq: repeated", {SEQ, 5, 3, true}, {W, 5, 3}, PAWL_GSTALE},
    {"seq: late duplicate", {SEQ, 5, 3, true}, {W, 5, 2}, PAWL_GSTALE},
    {"seq: a new grant counts from one", {SEQ, 5, 3, true}, {W, 6, 1}, PAWL_OK, 6, 1, true},
    {"seq: a lower grant, whatever its count", {SEQ, 5, 3, true}, {W, 4, 99}, PAWL_GSTALE},
    {"seq: without a count", {SEQ, 5, 3, true}, {W, 5, 0}, PAWL_EINVALID},
    {"seq: seal keeps the count", {SEQ, 5, 3, true}, {S, 5}, PAWL_OK, 5, 3, true},
    {"seq: seal of a new grant starts it", {SEQ, 5, 3, true}, {S, 6}, PAWL_OK, 6, 0, false},
    {"seq: write after the seal", {SEQ, 6, 0, false}, {W, 6, 1}, PAWL_OK, 6, 1, true},
    {"ge: a count is a mistake", {GE, 5}, {W, 6, 1}, PAWL_EINVALID},
    {"seal with a count is a mistake", {SEQ, 5}, {S, 6, 1}, PAWL_EINVALID},
    {"rule fixed by the first write", {GE, 5, 0, true}, {W, 6, 0, GT}, PAWL_EINVALID},
    {"the same rule may be said again", {GT, 5, 0, true}, {W, 6, 0, GT}, PAWL_OK, 6, 0, true},
    {"wrong lock, higher", {GE, 5}, {W, 9, 0, D, false, "other"}, PAWL_GWRONGLOCK},
    {"wrong lock, lower", {GE, 5}, {W, 1, 0, D, false, "other"}, PAWL_GWRONGLOCK},
    {"a day above the clock", {GE, 5}, {W, NOW + DAY}, PAWL_OK, NOW + DAY, 0, true},
    {"more than a day above the clock", {GE, 5}, {W, NOW + DAY + 1}, PAWL_GDAMAGED},
    {"first write, more than a day above", {D}, {W, NOW + DAY + 1}, PAWL_GDAMAGED},
    {"seal, more than a day above", {GE, 5}, {S, NOW + DAY + 1}, PAWL_GDAMAGED},
    {"the mark itself is ahead", {GE, NOW + 5 * DAY}, {W, NOW + 6 * DAY}, PAWL_OK, NOW + 6 * DAY, 0, true},
    {"far above a mark that is ahead", {GE, NOW + 5 * DAY}, {W, NOW + 6 * DAY + 1}, PAWL_GDAMAGED},
    {"jump accepted", {GE, 5}, {W, (int64_t)TOKEN_MAX, 0, D, true}, PAWL_OK, (int64_t)TOKEN_MAX, 0, true},
    {"over the top, jump accepted", {GE, 5}, {W, (int64_t)TOKEN_MAX + 1, 0, D, true}, PAWL_GDAMAGED},
    {"negative", {GE, 5}, {W, -5, 0, D, true}, PAWL_GDAMAGED},
};

static void test_table(void **data) {
    (void)data;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *r = &rows[i];
        struct guard_found found = {.mark = {.rule = r->was.rule,
                                             .token = (uint64_t)r->was.token,
                                             .seq = (uint64_t)r->was.seq,
                                             .used = r->was.used},
                                    .now_us = NOW};
        if (r->was.rule) strcpy(found.mark.lock, "acct");
        struct guard_claim claim = {r->comes.lock ? r->comes.lock : "acct", r->comes.token, r->comes.seq, r->comes.rule,
                                    r->comes.jump};
        if (!r->was.rule && r->comes.seq) claim.rule = PAWL_RULE_SEQ;
        struct guard_mark mark = {.token = 77, .at_us = 77};
        int answer = guard_judge(&found, &claim, (enum guard_intent)r->comes.intent, &mark);
        if (answer != r->answer) fail_msg("%s: answered %d, not %d", r->what, answer, r->answer);
        if (answer) {
            if (mark.token != 77 || mark.at_us != 77) fail_msg("%s: the mark was touched", r->what);
            continue;
        }
        if ((int64_t)mark.token != r->token || (int64_t)mark.seq != r->seq || mark.used != r->used)
            fail_msg("%s: mark %ld/%ld/%d", r->what, (long)mark.token, (long)mark.seq, mark.used);
        assert_string_equal(mark.lock, "acct");
        assert_int_equal(mark.at_us, NOW);
    }
}

static void test_first_write_takes_the_rule_of_the_set(void **data) {
    (void)data;
    struct guard_found found = {.set_rule = PAWL_RULE_GT, .now_us = NOW};
    struct guard_claim claim = {.lock = "acct", .token = 5};
    struct guard_mark mark;
    assert_int_equal(guard_judge(&found, &claim, GUARD_WRITE, &mark), PAWL_OK);
    assert_int_equal(mark.rule, PAWL_RULE_GT);
    claim.rule = PAWL_RULE_GE;
    assert_int_equal(guard_judge(&found, &claim, GUARD_WRITE, &mark), PAWL_OK);
    assert_int_equal(mark.rule, PAWL_RULE_GE);
}

/* --- the file form --- */

static struct guard_mark strange_mark(void) {
    struct guard_mark mark = {
        .rule = PAWL_RULE_SEQ, .used = true, .written = true, .token = TOKEN_MAX, .seq = 17, .at_us = NOW};
    strcpy(mark.lock, "a\nlock with \"strange\" %41 characters \xC3\xA9");
    strcpy(mark.by, "worker 1\nlength 9999\n\n");
    return mark;
}

static void test_record_round_trip(void **data) {
    (void)data;
    struct guard_mark mark = strange_mark();
    struct record_head none = {0}, first = {0}, second = {0};
    pawl_guard_reset_entry reset = {"ana", "restored from tape; token 5", 7, 5, NOW / 1000};
    size_t size, at;
    char *text = record_head_lines("x/../y", &mark, &none, &reset, 4, &size);
    assert_non_null(text);
    char *copy = malloc(size);
    memcpy(copy, text, size);
    assert_null(record_head_parse(copy, size, &first, &at));
    assert_int_equal(at, size);
    reset.from = 8;
    char *again = record_head_lines("x/../y", &first.mark, &first, &reset, 4, &size);
    assert_null(record_head_parse(again, size, &second, &at));
    assert_int_equal(second.n_resets, 2);
    assert_int_equal(second.resets[0].from, 7);
    assert_int_equal(second.resets[1].from, 8);
    assert_string_equal(second.resets[0].why, "restored from tape; token 5");
    assert_string_equal(second.resource, "x/../y");
    assert_string_equal(second.mark.lock, mark.lock);
    assert_string_equal(second.mark.by, mark.by);
    assert_int_equal(second.mark.token, TOKEN_MAX);
    assert_int_equal(second.mark.seq, 17);
    assert_int_equal(second.length, 4);
    record_head_free(&first);
    record_head_free(&second);
    free(text);
    free(copy);
    free(again);
}

/* However often it is reset, what is written can be read again. */
static void test_record_forgets_the_oldest_resets(void **data) {
    (void)data;
    struct guard_mark mark = strange_mark();
    struct record_head head = {0};
    char *text = NULL;
    for (int i = 1; i <= RECORD_RESETS + 2; i++) {
        pawl_guard_reset_entry reset = {"ana", "again", i, 5, NOW / 1000};
        size_t size, at;
        char *next = record_head_lines("r", &mark, &head, &reset, 4, &size);
        record_head_free(&head);
        free(text);
        text = next;
        assert_null(record_head_parse(text, size, &head, &at));
    }
    assert_int_equal(head.n_resets, RECORD_RESETS);
    assert_int_equal(head.resets[0].from, 3);
    assert_int_equal(head.resets[RECORD_RESETS - 1].from, RECORD_RESETS + 2);
    record_head_free(&head);
    free(text);
}

/* Cut short anywhere, or with any one byte of the head changed to something that matters, a record is refused or the
 * same. */
static void test_record_damage_is_seen(void **data) {
    (void)data;
    struct guard_mark mark = strange_mark();
    struct record_head none = {0}, head;
    size_t size, at;
    char *text = record_head_lines("r", &mark, &none, NULL, 4, &size), *copy = malloc(size);
    for (size_t n = 0; n < size; n++) {
        memcpy(copy, text, n);
        assert_non_null(record_head_parse(copy, n, &head, &at));
    }
    static const char *const bad[] = {"token 0\n",   "token 9007199254740992\n",
                                      "token 1e9\n", "token -1\n",
                                      "rule gte\n",  "seq x\n",
                                      "length -1\n", "extra 1\n",
                                      "\ttoken 1\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char whole[2048];
        int n = snprintf(
            whole, sizeof whole, "pawl guard 1\nresource r\nlock l\n%sat 1\nby b\nused 1\nwritten 1\n%s%s%s%s\n",
            bad[i], strncmp(bad[i], "token", 5) ? "token 1\n" : "", strncmp(bad[i], "seq", 3) ? "seq 0\n" : "",
            strncmp(bad[i], "rule", 4) ? "rule ge\n" : "", strncmp(bad[i], "length", 6) ? "length 0\n" : "");
        if (!record_head_parse(whole, (size_t)n, &head, &at)) fail_msg("accepted: %s", bad[i]);
    }
    char fine[] =
        "pawl guard 1\nresource r\nlock l\ntoken 1\nseq 0\nrule ge\nused 1\nwritten 0\nat 1\nby b\nlength 0\n\n";
    assert_null(record_head_parse(fine, sizeof fine - 1, &head, &at));
    free(text);
    free(copy);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table), cmocka_unit_test(test_first_write_takes_the_rule_of_the_set),
        cmocka_unit_test(test_record_round_trip), cmocka_unit_test(test_record_forgets_the_oldest_resets),
        cmocka_unit_test(test_record_damage_is_seen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
