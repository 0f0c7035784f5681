/* run.c: pawl run: options, and the checks before anything is started. run.h tells how the rest works. */
#include "run.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: pawl run [options] NAME [--] CMD [ARG...]\n"
    "       pawl run [options] NAME -c STRING\n"
    "Holds the lock NAME while CMD runs. Nothing behind NAME is read as an option but one -- or -c.\n"
    "\n"
    "  -u, --url URL             where the lock lives (else PAWL_URL, the configuration, file:)\n"
    "  -t, --ttl 15s             how long the lock outlives a holder that died (not for file:)\n"
    "  -w, --wait DUR            wait so long at most (also --timeout); for ever if not said\n"
    "  -n, --nb                  do not wait, also beside -w (also --nonblock, --nowait)\n"
    "  -s, --shared              with other shared holders;  -x, -e, --exclusive: alone (default)\n"
    "  -E, --conflict-exit-code N  exit with N in place of 123 (busy) and 124 (waited too long)\n"
    "      --grace 2s            from SIGTERM to SIGKILL when the lock is lost\n"
    "      --on-lost term|kill   kill: no SIGTERM first\n"
    "      --hold-at-least DUR   keep the lock so long even if CMD ends earlier\n"
    "      --max-hold DUR        end CMD after so long\n"
    "      --repeat              again and again: after CMD ended, or the lock was lost\n"
    "      --receipt FILE        append one line of JSON for every outcome; ask the service at the end\n"
    "      --metrics-dir DIR     counters for Prometheus, in a file for its textfile collector\n"
    "      --seal GUARD#RESOURCE tell the resource of the new token before CMD starts (pawl guard --help)\n"
    "      --for correctness     refuse a service that may grant a lock twice; ask it at the end\n"
    "      --label TEXT          shown to others by pawl who\n"
    "  -v, -q                    more or fewer messages;  --json, --log json: as JSON\n"
    "\n"
    "Exit: that of CMD, 128+n if signal n ended it; 119 refused, 120 unreachable, 121 refused by --seal, 122 lost,\n"
    "123 busy, 124 waited too long, 125 pawl failed, 126 CMD cannot be executed, 127 not found.\n";

/* What options leave behind before they are settled. */
struct raw {
    bool no_wait, exclusive;
    const char *on_lost;
};

static int settle_mode(struct run_options *options, const struct raw *raw) {
    if (options->shared && raw->exclusive)
        return complain(EXIT_FAILED, NULL, "run: --shared and --exclusive exclude each other");
    if (raw->no_wait) options->wait_ms = 0;
    if (raw->on_lost && strcmp(raw->on_lost, "kill") == 0) options->kill_at_once = true;
    else if (raw->on_lost && strcmp(raw->on_lost, "term") != 0)
        return complain(EXIT_FAILED, NULL, "run: --on-lost '%s': must be term or kill", raw->on_lost);
    if (options->max_hold_ms && options->hold_at_least_ms > options->max_hold_ms)
        return complain(EXIT_FAILED, NULL, "run: --hold-at-least is longer than --max-hold");
    return 0;
}

/* words: NAME and what stands behind it. */
static int settle_command(struct run_options *options, int n, char **words) {
    static char path[] = "/bin/sh", option[] = "-c", *shell[] = {path, option, NULL, NULL};
    options->name = words[0];
    if (n > 1 && (strcmp(words[1], "-c") == 0 || strcmp(words[1], "--command") == 0)) {
        if (n < 3) return complain(EXIT_FAILED, options->name, "%s needs a command string", words[1]);
        if (n > 3)
            return complain(EXIT_FAILED, options->name, "%s takes one string; '%s' is too much", words[1], words[3]);
        shell[2] = words[2];
        options->command = shell;
        return 0;
    }
    int skip = n > 1 && strcmp(words[1], "--") == 0;
    if (n - 1 - skip < 1 && strstr(options->name, "://")) /* it may hold a password: not repeated */
        return complain(EXIT_FAILED, NULL, "a URL stands in the place of the name: pawl run -u URL NAME COMMAND");
    if (n - 1 - skip < 1)
        return complain(EXIT_FAILED, options->name, "a command is missing (pawl run %s COMMAND)", options->name);
    options->command = words + 1 + skip;
    return 0;
}

static int parse(int argc, char **argv, struct run_options *options) {
    struct raw raw = {0};
    const struct option_row rows[] = {{"w wait timeout", OPT_DURATION, &options->wait_ms, 0, 0},
                                      {"n nb nonblock nonblocking nowait", OPT_ON, &raw.no_wait, 0, 0},
                                      {"s shared", OPT_ON, &options->shared, 0, 0},
                                      {"x e exclusive", OPT_ON, &raw.exclusive, 0, 0},
                                      {"E conflict-exit-code", OPT_EXIT_CODE, &options->conflict_code, 0, 0},
                                      {"grace", OPT_DURATION, &options->grace_ms, 0, 0},
                                      {"on-lost", OPT_TEXT, &raw.on_lost, 0, 0},
                                      {"hold-at-least", OPT_DURATION, &options->hold_at_least_ms, 0, 0},
                                      {"max-hold", OPT_DURATION, &options->max_hold_ms, 1, 0},
                                      {"repeat", OPT_ON, &options->repeat, 0, 0},
                                      {"receipt", OPT_TEXT, &options->receipt, 0, 0},
                                      {"seal", OPT_TEXT, &options->seal, 0, 0},
                                      {"metrics-dir", OPT_TEXT, &options->metrics_dir, 0, 0},
                                      {0}};
    const struct verb verb = {.name = "run",
                              .usage = usage,
                              .rows = rows,
                              .common = COMMON_URL | COMMON_LOCK | COMMON_JSON,
                              .least = 1,
                              .most = -1,
                              .operands = "NAME"};
    int n, code = parse_options(&verb, argc, argv, &options->common, &n);
    if (code >= 0) return code;
    code = settle_mode(options, &raw);
    if (!code) code = settle_command(options, n, argv + 1);
    return code ? code : -1;
}

static void tell_url(const struct run *run) {
    char *shown = shown_url(run->options.common.url);
    report_progress(run, "url %s (from %s)", shown ? shown : "?", run->options.common.from);
    free(shown);
}

static int refuse_nested(const struct run_options *options) {
    int64_t token;
    if (!nested_conflict(options, &token)) return 0;
    return complain(EXIT_FAILED, options->name,
                    "this process already runs under this lock (token %lld, see PAWL_LOCK): waiting for it would never "
                    "end",
                    (long long)token);
}

/* A lock in the memory of one process, for a command in another. */
static int refuse_memory(const struct run_options *options) {
    if (strncmp(options->common.url, "mem:", 4) != 0) return 0;
    return complain(EXIT_FAILED, options->name,
                    "mem: (from %s) is a lock inside one process, for tests of programs: no other pawl would meet it; "
                    "use file: or a service",
                    options->common.from);
}

/* The reason was printed; the receipt has the outcome. */
static void receipt_refused(const struct run *run, int exit_code) {
    struct run_result result = {.outcome = OUTCOME_NOT_TAKEN,
                                .code = exit_code == EXIT_REFUSED ? PAWL_EUNSAFE : PAWL_EINVALID,
                                .status = -1,
                                .text = "refused before the lock was asked for"};
    record_outcome(run, &result, exit_code);
}

int cmd_run(int argc, char **argv) {
    struct run run = {.options = {.common = COMMON_INIT, .wait_ms = PAWL_FOREVER, .grace_ms = -1, .conflict_code = -1},
                      .receipt_fd = -1};
    int code = parse(argc, argv, &run.options);
    if (code >= 0) return code;
    messages.json = messages.json || run.options.common.json;
    run.stderr_terminal = isatty(2);
    if (messages.verbose) tell_url(&run);
    code = refuse_memory(&run.options);
    if (!code) code = refuse_nested(&run.options);
    if (!code) code = receipt_open(&run);
    if (code) return code;
    metrics_check_dir(&run.options);
    code = settle_times(&run);
    if (!code && run.options.seal)
        code = seal_open(run.options.seal, run.options.name, run.options.common.url, &run.seal);
    if (code) receipt_refused(&run, code);
    else code = front_run(&run);
    seal_close(run.seal);
    return code;
}
