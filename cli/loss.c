/* loss.c: when a tree must be told to end, so that it is dead before anybody else can have the lock.
 *
 *     grant or renewal        renewal due                TERM              KILL   safe            expiry
 *     |----- ttl/3 -----------|----- retries ------------|---- grace ------|-kill-|--- margin ----|
 *
 * TERM must not come before a renewal had its chance, which bounds the grace. */
#include "clock.h"
#include "run.h"
#include <string.h>

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

enum { GRACE_MS = 2000 };

int settle_times(struct run *run) {
    const struct run_options *options = &run->options;
    int64_t ttl = options->common.ttl_ms, margin = most(ttl / 100 + 2, 20);
    run->margin_ms = margin;
    run->kill_ms = most(10, least(ttl / 20, 100));
    bool no_lease = strncmp(options->common.url, "file:", 5) == 0 || strncmp(options->common.url, "postgres", 8) == 0;
    int64_t room =
        ttl / 2 - margin - run->kill_ms; /* a renewal at ttl/3, and as long again as half of that for retries */
    if (no_lease) run->grace_ms = options->grace_ms < 0 ? GRACE_MS : options->grace_ms;
    else if (options->grace_ms < 0) run->grace_ms = most(0, least(GRACE_MS, least(ttl / 3, room)));
    else if (options->kill_at_once || options->grace_ms <= room) run->grace_ms = options->grace_ms;
    else {
        char grace[32], ttl_text[32], room_text[32], longer[32];
        spell_duration(options->grace_ms, grace, sizeof grace);
        spell_duration(ttl, ttl_text, sizeof ttl_text);
        spell_duration(most(0, room), room_text, sizeof room_text);
        int64_t enough = 2 * (options->grace_ms + margin + run->kill_ms) + options->grace_ms / 16;
        spell_duration((enough / 1000 + 1) * 1000, longer, sizeof longer);
        return complain(EXIT_REFUSED, options->name,
                        "a grace of %s does not fit into a ttl of %s: the command would be told to end before a late "
                        "renewal had its chance; use --grace %s or less, or a ttl of %s or more",
                        grace, ttl_text, room_text, longer);
    }
    return 0;
}

int64_t told_at(const struct run *run, int64_t safe_ns) {
    int64_t before_ms = run->kill_ms + (run->options.kill_at_once ? 0 : run->grace_ms);
    return safe_ns == INT64_MAX ? safe_ns : safe_ns - before_ms * NS_PER_MS;
}

int64_t look_each_ms(const struct run *run, int64_t left_ns) {
    int64_t ttl = run->options.common.ttl_ms;
    return left_ns / NS_PER_MS > ttl / 2 ? ttl / 6 : most(ttl / 24, 10);
}
