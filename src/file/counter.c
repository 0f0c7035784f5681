/* counter.c: see counter.h. The file is text of fixed width, so that people can read it and a draw need not print it
 * anew; it fits a sector and carries a check sum, so it is whole or known to be damaged. */
#include "counter.h"
#include "clock.h"
#include "digits.h"
#include "token.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

struct counter_io counter_io = {pwrite, fdatasync, clock_wall_us};

#define CLOCK_SANE_US                                                                                                  \
    INT64_C(1577836800000000) /* 2020-01-01: no clock of a machine that runs this was right before                     \
                               */

#define HEAD "pawl tokens 1\nlast "
enum { SUMMED = 200, TOKEN_DIGITS = 16 };

/* --- the text --- */

static uint64_t sum_of(const char *text) {
    uint64_t h = UINT64_C(0xcbf29ce484222325), word;
    for (size_t i = 0; i < SUMMED; i += sizeof word) {
        memcpy(&word, text + i, sizeof word);
        h = (h ^ word) * UINT64_C(0x9E3779B97F4A7C15);
        h ^= h >> 32;
    }
    return h;
}

static void put_sum(char **at, const char *text) {
    uint64_t sum = sum_of(text);
    put_text(at, "check ", 6);
    for (int i = 60; i >= 0; i -= 4) *(*at)++ = "0123456789abcdef"[sum >> i & 15];
    put_text(at, "\n\n", 2);
}

static void print_state(const struct counter_state *s, char ret[COUNTER_SIZE]) {
    char *at = ret;
    put_number(&at, HEAD, TOKEN_DIGITS, s->last);
    put_number(&at, "\nsince ", TOKEN_DIGITS, s->since);
    put_number(&at, "\nbound ", TOKEN_DIGITS, s->bound);
    put_number(&at, "\nsynced ", TOKEN_DIGITS, s->synced);
    put_text(&at, "\nboot ", 6);
    put_text(&at, s->boot, 36);
    put_number(&at, "\nfile ", 20, s->ino);
    put_number(&at, " ", 25, s->birth_ns);
    put_text(&at, "\n", 1);
    put_sum(&at, ret);
}

/* The same text with another last token. */
static void print_last(uint64_t last, char text[COUNTER_SIZE]) {
    char *at = text, *sum = text + SUMMED;
    put_number(&at, HEAD, TOKEN_DIGITS, last);
    put_sum(&sum, text);
}

/* Walks over the text: the literal, then a number of that many digits. */
static bool number(const char **at, const char *literal, int digits, uint64_t *ret) {
    size_t length = strlen(literal);
    uint64_t n = 0;
    if (memcmp(*at, literal, length) != 0) return false;
    *at += length;
    for (int i = 0; i < digits; i++, (*at)++) {
        if (**at < '0' || **at > '9') return false;
        n = n * 10 + (uint64_t)(**at - '0');
    }
    *ret = n;
    return true;
}

static bool parse_state(const char text[COUNTER_SIZE], struct counter_state *ret) {
    struct counter_state s = {0};
    const char *at = text;
    char check[COUNTER_SIZE - SUMMED], *end = check;
    if (!number(&at, HEAD, TOKEN_DIGITS, &s.last) || !number(&at, "\nsince ", TOKEN_DIGITS, &s.since) ||
        !number(&at, "\nbound ", TOKEN_DIGITS, &s.bound) || !number(&at, "\nsynced ", TOKEN_DIGITS, &s.synced) ||
        memcmp(at, "\nboot ", 6) != 0)
        return false;
    memcpy(s.boot, at + 6, 36);
    s.boot[36] = 0;
    at += 42;
    if (!number(&at, "\nfile ", 20, &s.ino) || !number(&at, " ", 25, &s.birth_ns)) return false;
    put_sum(&end, text);
    if (memcmp(text + SUMMED, check, sizeof check) != 0) return false;
    if (s.since > s.last || s.last > s.bound || s.synced > s.bound || s.bound > TOKEN_MAX + COUNTER_AHEAD) return false;
    *ret = s;
    return true;
}

/* --- the file --- */

static int failed(const struct place *place, const char *attempted, pawl_error *error) {
    return place_errno(place, place->counter_file, attempted, error);
}

static int create(struct place *place, pawl_error *error) {
    struct counter_state empty = {.boot = "------------------------------------"};
    char text[COUNTER_SIZE];
    print_state(&empty, text);
    return place_create(place, place->counter_file, text, COUNTER_SIZE, true, error);
}

static int open_counter(struct place *place, pawl_error *error) {
    struct stat st;
    struct statx birth;
    int fd;
    for (int made = 0;; made++) {
        fd = place_openat(place, place->counter_file, 0);
        if (fd >= 0) break;
        if (errno != ENOENT || made == 100) return place_unopened(place, place->counter_file, "token counter", error);
        int code = create(place, error);
        if (code) return code;
    }
    int code = PAWL_OK;
    if (fstat(fd, &st) != 0 || statx(fd, "", AT_EMPTY_PATH, STATX_INO | STATX_BTIME, &birth) != 0)
        code = failed(place, "look at the token counter", error);
    else code = place_trusts(place, place->counter_file, "token counter", &st, error);
    if (code) {
        close(fd);
        return code;
    }
    place->counter = (struct counter){.fd = fd, .dev = st.st_dev, .ino = st.st_ino};
    if (birth.stx_mask & STATX_BTIME)
        place->counter.birth_ns = (uint64_t)birth.stx_btime.tv_sec * 1000000000u + birth.stx_btime.tv_nsec;
    return PAWL_OK;
}

int counter_ready(struct place *place, pawl_error *error) {
    return place->counter.fd < 0 ? open_counter(place, error) : PAWL_OK;
}

static void unlock(struct place *place) { flock(place->counter.fd, LOCK_UN); }

static void forget_counter(struct place *place) {
    unlock(place);
    close(place->counter.fd);
    place->counter.fd = -1;
}

/* Others hold it for microseconds; only one who was stopped in the middle makes us wait. */
static int lock(struct place *place, struct bk_until until, pawl_error *error) {
    for (int tries = 0; flock(place->counter.fd, LOCK_EX | LOCK_NB) != 0; tries++) {
        if (errno != EWOULDBLOCK && errno != EINTR) return failed(place, "lock the token counter", error);
        if (tries < 20) {
            sched_yield();
            continue;
        }
        if (clock_now_ns() >= until.at_ns)
            return error_set(error, PAWL_EUNREACHABLE, place->counter_file,
                             "the token counter %s/%s stays locked by another process; one that was stopped? (lslocks)",
                             place->dir, place->counter_file);
        struct pollfd cancel = {.fd = until.cancel_fd, .events = POLLIN};
        struct timespec nap = {.tv_nsec = tries < 40 ? 50000 : 1000000};
        if (ppoll(&cancel, 1, &nap, NULL) > 0)
            return error_set(error, PAWL_ECANCELLED, place->counter_file,
                             "cancelled while waiting for the token counter");
    }
    return PAWL_OK;
}

/* Still the file that its name leads to? Removed or replaced is seen at once, moved away within a millisecond. */
static bool current(struct place *place) {
    struct counter *counter = &place->counter;
    dev_t dev;
    ino_t ino;
    int64_t size, now = clock_now_ns();
    if (now - counter->looked_ns < NS_PER_MS) return place_linked(counter->fd, &size);
    counter->looked_ns = now;
    return place_inode(place->fd, place->counter_file, &dev, &ino, &size) && ino == counter->ino && dev == counter->dev;
}

/* Locks the file that the name leads to now, and reads it. */
static int enter(struct place *place, struct bk_until until, struct counter_state *ret, pawl_error *error) {
    struct counter *counter = &place->counter;
    for (int tries = 0;; tries++) {
        int code = counter->fd < 0 ? open_counter(place, error) : PAWL_OK;
        if (code == PAWL_OK) code = lock(place, until, error);
        if (code) return code;
        if (current(place)) break;
        forget_counter(place); /* replaced by another, as by a restore: that one counts */
        if (tries == 100)
            return error_set(error, PAWL_EUNREACHABLE, place->counter_file, "%s/%s is replaced all the time",
                             place->dir, place->counter_file);
    }
    char text[COUNTER_SIZE];
    ssize_t n = pread(counter->fd, text, COUNTER_SIZE, 0);
    int code = PAWL_OK;
    if (n == COUNTER_SIZE && memcmp(text, counter->text, COUNTER_SIZE) == 0) *ret = counter->state;
    else if (n < 0) code = failed(place, "read the token counter", error);
    else if (n != COUNTER_SIZE || !parse_state(text, ret))
        code =
            error_set(error, PAWL_EUNSAFE, place->counter_file,
                      "the token counter %s/%s is damaged, nothing was changed: restore it from a backup; or, if the "
                      "clock of this machine is right, remove it, and tokens start at the clock",
                      place->dir, place->counter_file);
    if (code) unlock(place);
    return code;
}

/* --- the rule --- */

static int store(struct place *place, const struct counter_state *state, pawl_error *error) {
    struct counter *counter = &place->counter;
    counter->state.last = state->last;
    if (counter->text[0] && memcmp(&counter->state, state, sizeof *state) == 0) {
        print_last(state->last, counter->text);
    } else {
        counter->state = *state;
        print_state(state, counter->text);
    }
    ssize_t n = counter_io.write(counter->fd, counter->text, COUNTER_SIZE, 0);
    if (n >= 0 && n != COUNTER_SIZE) errno = ENOSPC;
    return n == COUNTER_SIZE ? PAWL_OK : failed(place, "write the token counter", error);
}

/* Makes `last` safe against a power cut: the bound on disk first, then the note that it is there. */
static int reserve(struct place *place, struct counter_state *state, pawl_error *error) {
    state->bound = state->last + COUNTER_AHEAD;
    int code = store(place, state, error);
    if (code == PAWL_OK && counter_io.sync(place->counter.fd) != 0)
        code = failed(place, "sync the token counter", error);
    if (code) return code;
    state->synced = state->bound;
    return store(place, state, error);
}

static int need_clock(const struct place *place, int64_t now_us, pawl_error *error) {
    if (now_us >= CLOCK_SANE_US) return PAWL_OK;
    return error_set(
        error, PAWL_EUNSAFE, place->counter_file,
        "the token counter %s/%s is new, or was restored, and must start at the clock, but the clock of this "
        "machine says a time before 2020; set it first",
        place->dir, place->counter_file);
}

/* Whether the file is the one that its content says, and of this boot; if not, the state starts anew. */
static int identify(const struct place *place, struct counter_state *state, int64_t now_us, pawl_error *error) {
    bool same_file = state->ino == place->counter.ino && state->birth_ns == place->counter.birth_ns;
    bool same_boot = memcmp(state->boot, place->boot, 36) == 0;
    if (same_file && same_boot) return PAWL_OK;
    struct token_state t = {.since = state->since, .last = same_boot ? state->last : state->bound};
    if (!same_file) {
        int code = need_clock(place, now_us, error);
        if (code) return code;
        token_admit(&t, now_us);
    }
    state->since = t.since;
    state->last = t.last;
    state->synced = 0; /* nothing more is given out before the new state is on disk */
    state->ino = place->counter.ino;
    state->birth_ns = place->counter.birth_ns;
    memcpy(state->boot, place->boot, sizeof place->boot);
    return PAWL_OK;
}

static int exhausted(const struct place *place, pawl_error *error) {
    return error_set(error, PAWL_EUNSAFE, place->counter_file, "the numbers of %s/%s are used up (2^53)", place->dir,
                     place->counter_file);
}

enum bk_says counter_draw(struct place *place, struct bk_until until, uint64_t *ret, pawl_error *error) {
    struct counter_state state;
    int64_t now = counter_io.wall_us();
    if (enter(place, until, &state, error)) return BK_FAULT;
    int code = identify(place, &state, now, error);
    struct token_state t = {.since = state.since, .last = state.last};
    if (code == PAWL_OK && token_grant(&t, now) == 0) code = exhausted(place, error);
    if (code == PAWL_OK) {
        state.last = t.last;
        code = t.last > state.synced ? reserve(place, &state, error) : store(place, &state, error);
    }
    unlock(place);
    if (code) return BK_FAULT;
    *ret = t.last;
    return BK_YES;
}

static int advance_to(struct place *place, struct counter_state *state, int64_t now, uint64_t to, pawl_error *error) {
    int code = need_clock(place, now, error);
    if (code == PAWL_OK) code = identify(place, state, now, error);
    struct token_state t = {.since = state->since, .last = state->last};
    if (code) return code;
    token_advance(&t, now, to);
    if (t.last > TOKEN_MAX) return exhausted(place, error);
    state->since = t.since;
    state->last = t.last;
    return reserve(place, state, error);
}

enum bk_says counter_stand(struct place *place, bool advance, uint64_t to, struct bk_until until, struct bk_tokens *ret,
                           pawl_error *error) {
    struct counter_state state;
    int64_t now = counter_io.wall_us();
    if (enter(place, until, &state, error)) return BK_FAULT;
    int code = advance ? advance_to(place, &state, now, to, error) : PAWL_OK;
    unlock(place);
    if (code) return BK_FAULT;
    *ret = (struct bk_tokens){.since = state.since, .last = state.last, .clock_us = now};
    if (state.ino)
        snprintf(ret->stored, sizeof ret->stored, "%s %" PRIu64 " %" PRIu64, state.boot, state.ino, state.birth_ns);
    snprintf(ret->answering, sizeof ret->answering, "%s %" PRIu64 " %" PRIu64, place->boot,
             (uint64_t)place->counter.ino, place->counter.birth_ns);
    return BK_YES;
}
