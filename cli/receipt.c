/* receipt.c: --receipt FILE: one JSON line appended for every outcome, whatever it is. The file is opened before
 * anything else happens, so that a command never runs without the receipt that was asked for; the line is one write. */
#include "clock.h"
#include "pawl_guard.h"
#include "run.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int receipt_open(struct run *run) {
    run->receipt_fd = -1;
    if (!run->options.receipt) return 0;
    int fd = open(run->options.receipt, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
    if (fd < 0)
        return complain(EXIT_FAILED, run->options.name, "cannot open the receipt %s: %s", run->options.receipt,
                        strerror(errno));
    run->receipt_fd = fd;
    return 0;
}

static const char *outcome_word(const struct run_result *result) {
    switch (result->outcome) {
    case OUTCOME_RAN: return result->code == PAWL_ELOST || result->unproven ? "lost" : "ran";
    case OUTCOME_LOST: return "lost";
    case OUTCOME_CANCELLED: return "cancelled";
    case OUTCOME_CANNOT_EXEC:
    case OUTCOME_NONE: return "error";
    case OUTCOME_NOT_TAKEN: break;
    }
    switch (result->code) {
    case PAWL_EBUSY: return "busy";
    case PAWL_ETIMEOUT: return "timeout";
    case PAWL_EUNREACHABLE:
    case PAWL_EDENIED: return "unreachable";
    case PAWL_EUNSAFE:
    case PAWL_EUNSUPPORTED:
    case PAWL_GSTALE:
    case PAWL_GWRONGLOCK:
    case PAWL_GDAMAGED: return "refused"; /* G: by the guard of --seal */
    default: return "error";
    }
}

static void field(FILE *file, const char *key, const char *value) {
    fprintf(file, ",\"%s\":", key);
    print_json_string(file, value);
}

static void receipt_write(const struct run *run, const struct run_result *result, int exit_code) {
    char *line = NULL, *shown, when[40];
    size_t length;
    if (run->receipt_fd < 0) return;
    FILE *file = open_memstream(&line, &length);
    if (!file) return;
    format_time(clock_wall_us() / 1000, when, sizeof when);
    fprintf(file, "{\"time\":\"%s\"", when);
    field(file, "name", run->options.name);
    field(file, "url", shown = shown_url(run->options.common.url));
    field(file, "outcome", outcome_word(result));
    fprintf(file, ",\"exit\":%d", exit_code);
    if (result->token) fprintf(file, ",\"token\":\"%" PRId64 "\"", result->token);
    fprintf(file, ",\"waited_ms\":%" PRId64, result->waited_ms);
    if (result->token) fprintf(file, ",\"held_ms\":%" PRId64, result->held_ms);
    field(file, "command", run->options.command[0]);
    if (result->cmd && result->status >= 0 && result->outcome != OUTCOME_CANCELLED)
        fprintf(file, WIFSIGNALED(result->status) ? ",\"signal\":%d" : ",\"status\":%d",
                WIFSIGNALED(result->status) ? WTERMSIG(result->status) : WEXITSTATUS(result->status));
    if (*result->left_behind) field(file, "left_behind", result->left_behind);
    if (result->outcome == OUTCOME_CANNOT_EXEC) field(file, "reason", strerror(result->exec_errno));
    else if (*result->text) field(file, "reason", result->text);
    fputs("}\n", file);
    free(shown);
    if (fclose(file) == 0 && write(run->receipt_fd, line, length) != (ssize_t)length)
        complain(0, run->options.name, "cannot write the receipt %s: %s", run->options.receipt, strerror(errno));
    free(line);
}

void record_outcome(const struct run *run, const struct run_result *result, int exit_code) {
    receipt_write(run, result, exit_code);
    metrics_add_run(run, result, exit_code);
}
