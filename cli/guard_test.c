/* guard_test.c: pawl guard test: does a guard keep the promises of docs/FENCING.md? Each check is one function that
 * returns what went wrong, in records of its own; a wrong guard fails the check of the promise that it breaks. */
#include "clock.h"
#include "guard_subject.h"
#include "options.h"
#include "random.h"
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define TOP ((INT64_C(1) << 53) - 1)
#define DAY INT64_C(86400000000)
enum { RACERS = 8 };

struct test {
    struct subject subject;
    char prefix[32]; /* of this run's resources */
    char why[700];   /* of the check that failed */
    int64_t now;     /* a token of today */
    int rounds;
};

typedef const char *check_fn(struct test *t);

__attribute__((format(printf, 2, 3))) static const char *fail(struct test *t, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(t->why, sizeof t->why, format, arguments);
    va_end(arguments);
    return t->why;
}

/* --- small questions --- */

struct name {
    char text[512];
};
static struct name named(const struct test *t, const char *what) {
    struct name name;
    snprintf(name.text, sizeof name.text, "%s:%s", t->prefix, what);
    return name;
}

static struct question with(const struct name *name, int64_t token, const char *data) {
    return (struct question){name->text, "test-lock", "worker 1", data, token, strlen(data), false, 0, 0};
}

/* NULL if the answer is the wanted one. */
static const char *expect(struct test *t, enum answer wanted, enum answer got, const char *what, int64_t token) {
    if (got == wanted) return NULL;
    return fail(t, "%s with token %" PRId64 " must be answered '%s', but was '%s'%s%s", what, token,
                answer_name(wanted), answer_name(got), got >= BROKEN ? ": " : "",
                got >= BROKEN ? t->subject.broken : "");
}

static const char *put(struct test *t, enum answer wanted, const struct name *name, int64_t token, const char *data) {
    struct question q = with(name, token, data);
    return expect(t, wanted, subject_put(&t->subject, &q), "put", token);
}

static const char *put_as(struct test *t, enum answer wanted, struct question q) {
    return expect(t, wanted, subject_put(&t->subject, &q), q.accept_jump ? "put, jump accepted," : "put", q.token);
}

static const char *seal(struct test *t, enum answer wanted, const struct name *name, int64_t token) {
    struct question q = with(name, token, "");
    return expect(t, wanted, subject_seal(&t->subject, &q), "seal", token);
}

/* The record is exactly this. */
static const char *is(struct test *t, const struct name *name, int64_t token, const char *data, size_t length) {
    struct reply reply;
    char digits[24];
    enum answer got = subject_get(&t->subject, name->text, &reply);
    if (got != ACCEPTED) return expect(t, ACCEPTED, got, "get of a record", token);
    snprintf(digits, sizeof digits, "%" PRId64, token);
    const char *why = NULL;
    if (strcmp(reply.token, digits) != 0) why = fail(t, "the token must read %s, but reads %.40s", digits, reply.token);
    else if (strcmp(reply.lock, "test-lock") != 0)
        why = fail(t, "the lock must read test-lock, but reads %.40s", reply.lock);
    else if (reply.length != length || memcmp(reply.data, data, length) != 0)
        why = fail(t, "the data must be '%.40s' (%zu bytes), but is '%.40s' (%zu bytes)", data, length, reply.data,
                   reply.length);
    reply_free(&reply);
    return why;
}

static const char *is_text(struct test *t, const struct name *name, int64_t token, const char *data) {
    return is(t, name, token, data, strlen(data));
}

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        const char *why_ = (call);                                                                                     \
        if (why_) return why_;                                                                                         \
    } while (0)

/* --- the checks --- */

static const char *check_read_back(struct test *t) {
    struct name r = named(t, "read-back");
    TRY(put(t, ACCEPTED, &r, t->now, "1000"));
    TRY(is_text(t, &r, t->now, "1000"));
    struct reply reply;
    if (subject_get(&t->subject, r.text, &reply) != ACCEPTED) return fail(t, "get failed");
    bool named_right = strcmp(reply.by, "worker 1") == 0;
    reply_free(&reply);
    return named_right ? NULL : fail(t, "the writer must read 'worker 1'");
}

static const char *check_no_record(struct test *t) {
    struct name r = named(t, "absent");
    struct reply reply;
    enum answer got = subject_get(&t->subject, r.text, &reply);
    if (got == ACCEPTED) reply_free(&reply);
    TRY(expect(t, NO_RECORD, got, "get of nothing", 0));
    return expect(t, NO_RECORD, subject_reset(&t->subject, r.text, 5, "ana", "test"), "reset of nothing", 5);
}

static const char *check_same_holder(struct test *t) {
    struct name r = named(t, "same-holder");
    TRY(put(t, ACCEPTED, &r, t->now, "first"));
    TRY(put(t, ACCEPTED, &r, t->now, "second"));
    return is_text(t, &r, t->now, "second");
}

static const char *check_stale(struct test *t) {
    struct name r = named(t, "stale");
    TRY(put(t, ACCEPTED, &r, t->now, "1000"));
    TRY(put(t, ACCEPTED, &r, t->now + 10, "2500"));
    TRY(put(t, STALE, &r, t->now + 9, "1500"));
    TRY(put(t, STALE, &r, 1, "1500"));
    TRY(is_text(t, &r, t->now + 10, "2500"));
    return put(t, ACCEPTED, &r, t->now + 10, "2501");
}

static const char *check_last_digit(struct test *t) {
    struct name r = named(t, "last-digit"), top = named(t, "top");
    TRY(put(t, ACCEPTED, &r, t->now + 1, "new"));
    TRY(put(t, STALE, &r, t->now, "old"));
    TRY(is_text(t, &r, t->now + 1, "new"));
    struct question q = with(&top, TOP - 1, "a");
    q.accept_jump = true;
    TRY(put_as(t, ACCEPTED, q));
    TRY(is_text(t, &top, TOP - 1, "a"));
    TRY(put(t, STALE, &top, TOP - 2, "b"));
    TRY(put(t, ACCEPTED, &top, TOP, "c"));
    TRY(put(t, STALE, &top, TOP - 1, "d"));
    return is_text(t, &top, TOP, "c");
}

static const char *check_wrong_lock(struct test *t) {
    struct name r = named(t, "wrong-lock");
    TRY(put(t, ACCEPTED, &r, t->now, "mine"));
    struct question q = with(&r, t->now + 5, "theirs");
    q.lock = "another-lock";
    TRY(put_as(t, WRONG_LOCK, q));
    q.token = t->now - 5;
    TRY(put_as(t, WRONG_LOCK, q));
    TRY(expect(t, WRONG_LOCK, subject_seal(&t->subject, &q), "seal", q.token));
    return is_text(t, &r, t->now, "mine");
}

static const char *check_damaged(struct test *t) {
    struct name r = named(t, "damaged");
    TRY(put(t, ACCEPTED, &r, t->now, "1"));
    TRY(put(t, DAMAGED, &r, t->now + 2 * DAY, "2"));
    TRY(put(t, DAMAGED, &r, TOP, "2"));
    TRY(seal(t, DAMAGED, &r, t->now + 2 * DAY));
    TRY(is_text(t, &r, t->now, "1"));
    TRY(put(t, ACCEPTED, &r, t->now + 1, "3"));
    struct question q = with(&r, t->now + 2 * DAY, "4");
    q.accept_jump = true;
    TRY(put_as(t, ACCEPTED, q));
    return is_text(t, &r, t->now + 2 * DAY, "4");
}

static const char *check_no_token(struct test *t) {
    struct name r = named(t, "no-token"), fresh = named(t, "no-token-fresh");
    TRY(put(t, ACCEPTED, &r, t->now, "1"));
    TRY(put(t, NO_TOKEN, &r, 0, "2"));
    TRY(put(t, NO_TOKEN, &fresh, 0, "2"));
    return is_text(t, &r, t->now, "1");
}

static const char *check_seal(struct test *t) {
    struct name r = named(t, "seal"), fresh = named(t, "seal-fresh");
    TRY(put(t, ACCEPTED, &r, t->now, "old"));
    TRY(seal(t, ACCEPTED, &r, t->now + 1));
    TRY(is_text(t, &r, t->now + 1, "old"));
    TRY(put(t, STALE, &r, t->now, "zombie"));
    TRY(put(t, ACCEPTED, &r, t->now + 1, "new"));
    TRY(seal(t, ACCEPTED, &r, t->now + 1));
    TRY(seal(t, STALE, &r, t->now));
    TRY(is_text(t, &r, t->now + 1, "new"));
    TRY(seal(t, ACCEPTED, &fresh, t->now));
    return put(t, STALE, &fresh, t->now - 1, "zombie");
}

static const char *check_reset(struct test *t) {
    struct name r = named(t, "reset");
    static const char why[] = "the counter was lost with its disk";
    char from[24], to[24];
    TRY(put(t, ACCEPTED, &r, t->now, "kept"));
    TRY(expect(t, ACCEPTED, subject_reset(&t->subject, r.text, 50, "ana", why), "reset", 50));
    TRY(is_text(t, &r, 50, "kept"));
    TRY(put(t, STALE, &r, 49, "zombie"));
    struct question q = with(&r, 60, "theirs");
    q.lock = "another-lock";
    TRY(put_as(t, WRONG_LOCK, q));
    TRY(put(t, ACCEPTED, &r, 50, "new"));
    struct reply reply;
    TRY(expect(t, ACCEPTED, subject_audit(&t->subject, r.text, &reply), "audit", 50));
    snprintf(from, sizeof from, "%" PRId64, t->now);
    snprintf(to, sizeof to, "50");
    bool listed = reply.data && strstr(reply.data, from) && strstr(reply.data, to) && strstr(reply.data, "ana") &&
                  strstr(reply.data, why);
    if (!listed)
        fail(t, "audit must list the reset from %s to 50 by ana with its reason, but says '%.200s'", from,
             reply.data ? reply.data : "");
    reply_free(&reply);
    return listed ? NULL : t->why;
}

static const char *check_names(struct test *t) {
    static const char *const names[] = {"a/b", "a%2Fb", "a", "A", "../../a", "a b", "\xC3\xA9", "a.", "'a"};
    int n = sizeof names / sizeof *names;
    for (int i = 0; i < n; i++) {
        struct name r = named(t, names[i]);
        TRY(put(t, ACCEPTED, &r, t->now + i, names[i]));
    }
    for (int i = 0; i < n; i++) {
        struct name r = named(t, names[i]);
        TRY(is_text(t, &r, t->now + i, names[i]));
    }
    return NULL;
}

static const char *check_data(struct test *t) {
    struct name r = named(t, "data");
    static char large[300000];
    for (size_t i = 0; i < sizeof large; i++) large[i] = (char)(i * 31 + i / 251);
    struct question q = with(&r, t->now, "");
    TRY(put_as(t, ACCEPTED, q));
    TRY(is(t, &r, t->now, "", 0));
    q.data = large;
    q.length = sizeof large;
    TRY(put_as(t, ACCEPTED, q));
    return is(t, &r, t->now, large, sizeof large);
}

/* --- at the same time --- */

struct race {
    _Atomic int64_t accepted; /* the highest one that was acknowledged */
    _Atomic int fell;
    enum answer answers[RACERS];
    char broken[512];
};

static void race_one(struct test *t, struct race *race, const struct name *r, int64_t token, int start, int i) {
    char data[24], go;
    snprintf(data, sizeof data, "%" PRId64, token);
    if (read(start, &go, 1) < 0) _exit(1); /* ends when the parent closes its end: all start at once */
    struct question q = with(r, token, data);
    int64_t before = atomic_load(&race->accepted);
    race->answers[i] = subject_put(&t->subject, &q);
    if (race->answers[i] >= BROKEN) memcpy(race->broken, t->subject.broken, sizeof race->broken);
    if (race->answers[i] == ACCEPTED) {
        if (token < before) atomic_store(&race->fell, 1);
        int64_t was = before;
        while (was < token && !atomic_compare_exchange_weak(&race->accepted, &was, token)) {
        }
    }
    _exit(0);
}

/* One write each, at once; the tokens are shuffled. */
static const char *race_round(struct test *t, struct race *race, const struct name *r, int64_t base) {
    pid_t pids[RACERS];
    int start[2], order[RACERS];
    *race = (struct race){0};
    for (int i = 0; i < RACERS; i++) order[i] = i;
    for (int i = RACERS - 1; i > 0; i--) {
        int j = (int)random_between(0, i), other = order[i];
        order[i] = order[j];
        order[j] = other;
    }
    if (pipe(start) < 0) return fail(t, "cannot make a pipe");
    for (int i = 0; i < RACERS; i++) {
        pids[i] = fork();
        if (pids[i] < 0) race->answers[i] = BROKEN;
        if (pids[i] != 0) continue;
        close(start[1]);
        race_one(t, race, r, base + order[i], start[0], i);
    }
    close(start[0]);
    close(start[1]);
    for (int i = 0; i < RACERS; i++)
        if (pids[i] > 0) waitpid(pids[i], NULL, 0);
    for (int i = 0; i < RACERS; i++) {
        if (race->answers[i] == AWAY) {
            memcpy(t->subject.broken, race->broken, sizeof race->broken);
            t->subject.away = true;
        }
        if (race->answers[i] != ACCEPTED && race->answers[i] != STALE)
            return fail(t, "put was answered '%s' %s", answer_name(race->answers[i]), race->broken);
        if (order[i] == RACERS - 1)
            TRY(expect(t, ACCEPTED, race->answers[i], "put of the highest one", base + RACERS - 1));
    }
    if (race->fell) return fail(t, "a token was accepted after a higher one had been accepted");
    char data[24];
    snprintf(data, sizeof data, "%" PRId64, base + RACERS - 1);
    return is_text(t, r, base + RACERS - 1, data);
}

static const char *check_race(struct test *t) {
    struct name r = named(t, "race");
    struct race *race = mmap(NULL, sizeof *race, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (race == MAP_FAILED) return fail(t, "out of memory");
    const char *why = NULL;
    for (int i = 0; i < t->rounds && !why; i++) {
        why = race_round(t, race, &r, t->now + (int64_t)i * RACERS);
        if (!why) continue;
        char text[512];
        snprintf(text, sizeof text, "%s", why);
        why = fail(t, "round %d of %d writers: %s", i + 1, RACERS, text);
    }
    munmap(race, sizeof *race);
    return why;
}

/* --- rules, of a URL --- */

static const char *check_gt(struct test *t) {
    struct name r = named(t, "gt");
    struct question q = with(&r, t->now, "1");
    q.rule = PAWL_RULE_GT;
    TRY(put_as(t, ACCEPTED, q));
    TRY(put(t, STALE, &r, t->now, "2"));
    TRY(seal(t, ACCEPTED, &r, t->now + 1));
    TRY(put(t, ACCEPTED, &r, t->now + 1, "3"));
    TRY(put(t, STALE, &r, t->now + 1, "4"));
    return is_text(t, &r, t->now + 1, "3");
}

static const char *check_seq(struct test *t) {
    struct name r = named(t, "seq");
    struct question q = with(&r, t->now, "1");
    q.rule = PAWL_RULE_SEQ;
    q.seq = 1;
    TRY(put_as(t, ACCEPTED, q));
    TRY(put_as(t, STALE, q));
    q.seq = 2;
    TRY(put_as(t, ACCEPTED, q));
    q.token = t->now - 1;
    q.seq = 3;
    TRY(put_as(t, STALE, q));
    q.token = t->now + 1;
    q.seq = 1;
    return put_as(t, ACCEPTED, q);
}

/* --- the verb --- */

static const struct {
    const char *what;
    check_fn *fn;
    bool url_only;
} checks[] = {
    {"what is written is read back: data, token, lock, writer", check_read_back, false},
    {"no such record has an answer of its own", check_no_record, false},
    {"the same holder may write again", check_same_holder, false},
    {"a lower token is stale and changes nothing", check_stale, false},
    {"tokens keep their last digit, up to 2^53-1", check_last_digit, false},
    {"another lock's token is refused as such, whatever its number", check_wrong_lock, false},
    {"a damaged token is refused, unless the jump is accepted", check_damaged, false},
    {"no token is no permission", check_no_token, false},
    {"a seal stops the old holder before the new one writes", check_seal, false},
    {"a reset keeps data and lock, and is listed with its reason", check_reset, false},
    {"names stay apart", check_names, false},
    {"empty, binary and large data", check_data, false},
    {"writers at the same time: the highest token stays", check_race, false},
    {"rule gt: one write a grant", check_gt, true},
    {"rule seq: a repeated request is refused", check_seq, true},
};

static int run_checks(struct test *t) {
    unsigned char bytes[6];
    char hex[13];
    int ran = 0, failed = 0;
    random_bytes(bytes, sizeof bytes);
    random_hex(bytes, sizeof bytes, hex);
    snprintf(t->prefix, sizeof t->prefix, "pawl-test-%s", hex);
    t->now = clock_wall_us();
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        if (checks[i].url_only && t->subject.program) continue;
        const char *why = checks[i].fn(t);
        if (t->subject.away)
            return complain(EXIT_UNREACHABLE, NULL, "guard test: %s. Not tested: '%s', and what follows",
                            t->subject.broken, checks[i].what);
        ran++;
        if (why) failed++;
        printf("%s  %s\n", why ? "FAIL" : "ok  ", checks[i].what);
        if (why) {
            fputs("      ", stdout);
            print_plain(stdout, why);
            putchar('\n');
        }
        fflush(stdout);
    }
    if (failed) printf("%d of %d promises are broken: this guard does not protect its resources\n", failed, ran);
    else printf("all %d promises are kept\n", ran);
    return failed ? 1 : 0;
}

int cmd_guard_test(int argc, char **argv) {
    bool exec = false;
    int64_t rounds = 30;
    const struct option_row rows[] = {{"exec", OPT_ON, &exec}, {"rounds", OPT_NUMBER, &rounds, 1, 100000}, {0}};
    const struct verb verb = {
        .name = "guard test",
        .usage = "pawl guard test URL\n"
                 "pawl guard test --exec PROGRAM [ARG...]\n\n"
                 "Puts the promises of a guard to the test (docs/FENCING.md), in records named pawl-test-...:\n"
                 "with dir: in a folder of their own that goes afterwards; elsewhere they stay, so test on an\n"
                 "empty set. With --exec the guard is anybody's, behind a program that is run once for each\n"
                 "question:\n\n"
                 "  PROGRAM put RESOURCE LOCK TOKEN BY [accept-jump] < DATA\n"
                 "  PROGRAM seal RESOURCE LOCK TOKEN BY\n"
                 "  PROGRAM get RESOURCE         prints token, lock and writer, a line each, then the data\n"
                 "  PROGRAM reset RESOURCE TO BY WHY\n"
                 "  PROGRAM audit RESOURCE       prints a line for each reset: from, to, by whom, why\n\n"
                 "It exits with 0: done; 121: stale; 1: no such record; 119: refused otherwise, and prints\n"
                 "wrong-lock, damaged or no-token. TOKEN may be empty.\n\n"
                 "  --rounds N   of eight writers at the same time (30)\n\n"
                 "Exit: 0 all promises are kept; 1 not; 120 it could not be reached; 125 failed.\n",
        .rows = rows,
        .least = 1,
        .most = -1,
        .operands = "URL"};
    struct common common = COMMON_INIT;
    int n, code = parse_options(&verb, argc, argv, &common, &n);
    if (code >= 0) return code;
    if (!exec && n > 1)
        return complain(EXIT_FAILED, NULL, "guard test: '%s' is too much (--exec stands before PROGRAM)", argv[2]);
    struct test t = {.rounds = (int)rounds, .subject = {.program = exec ? argv + 1 : NULL, .url = argv[1]}};
    struct scratch scratch = {0};
    signal(SIGPIPE, SIG_IGN);
    pawl_guard *guard = NULL;
    if (!exec && (code = open_guard(argv[1], NULL, &guard))) return code; /* a bad URL is no broken promise */
    pawl_guard_close(guard);
    code = exec ? 0 : scratch_make(argv[1], &scratch);
    if (scratch.url) t.subject.url = scratch.url;
    if (!code) code = run_checks(&t);
    scratch_remove(&scratch);
    return code;
}
