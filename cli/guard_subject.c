#include "guard_subject.h"
#include "cli.h"
#include "clock.h"
#include "url.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ANSWER_WITHIN_MS = 30000, ARGUMENTS_MAX = 32, REPLY_MAX = 4 << 20 };

const char *answer_name(enum answer answer) {
    static const char *const names[] = {"accepted", "stale",          "wrong lock", "damaged",
                                        "no token", "no such record", "broken",     "not reached"};
    return names[answer];
}

void reply_free(struct reply *reply) {
    free(reply->block);
    *reply = (struct reply){0};
}

/* --- a program --- */

struct run_of {
    pid_t pid;
    int in, out; /* -1: closed */
    const char *data;
    size_t left;
    char *text;
    size_t used;
};

static enum answer broken(struct subject *subject, const char *what, const char *detail) {
    snprintf(subject->broken, sizeof subject->broken, "%s%s%.400s", what, detail ? ": " : "", detail ? detail : "");
    return BROKEN;
}

/* Whatever is wrong there, it is no promise that was broken. */
static enum answer away(struct subject *subject, const char *text) {
    snprintf(subject->broken, sizeof subject->broken, "%.500s", text);
    subject->away = true;
    return AWAY;
}

static bool launch(struct subject *subject, const char *const *arguments, struct run_of *ret) {
    char *argv[ARGUMENTS_MAX];
    int n = 0, in[2], out[2];
    for (; subject->program[n] && n < ARGUMENTS_MAX - 8; n++) argv[n] = subject->program[n];
    for (; *arguments; arguments++) argv[n++] = (char *)*arguments;
    argv[n] = NULL;
    if (pipe2(in, O_CLOEXEC) < 0) return false;
    if (pipe2(out, O_CLOEXEC) < 0) {
        close(in[0]);
        close(in[1]);
        return false;
    }
    ret->pid = fork();
    if (ret->pid == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        signal(SIGPIPE, SIG_DFL);
        execvp(argv[0], argv);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    fcntl(in[1], F_SETFL, O_NONBLOCK);
    ret->in = in[1];
    ret->out = out[0];
    return ret->pid > 0;
}

static void shut(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* Feeds and reads until the program closes its stdout. false: too late or too much. */
static bool converse(struct run_of *run) {
    int64_t until = clock_after_ms(clock_now_ns(), ANSWER_WITHIN_MS);
    while (run->out >= 0) {
        if (run->left == 0) shut(&run->in);
        struct pollfd p[2] = {{.fd = run->out, .events = POLLIN}, {.fd = run->in, .events = POLLOUT}};
        if (poll(p, 2, clock_poll_ms(clock_now_ns(), until)) <= 0) return false;
        if (p[1].revents) {
            ssize_t n = write(run->in, run->data, run->left);
            if (n > 0) {
                run->data += n;
                run->left -= (size_t)n;
            } else if (errno != EAGAIN && errno != EINTR) run->left = 0; /* it does not want to read: its business */
        }
        if (p[0].revents) {
            char *more = run->used < REPLY_MAX ? realloc(run->text, run->used + 65537) : NULL;
            if (!more) return false;
            run->text = more;
            ssize_t n = read(run->out, run->text + run->used, 65536);
            if (n > 0) run->used += (size_t)n;
            if (n == 0 || (n < 0 && errno != EINTR)) shut(&run->out);
            run->text[run->used] = 0;
        }
    }
    return true;
}

static enum answer verdict(struct subject *subject, int status, const char *text) {
    char detail[128];
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (code == 0) return ACCEPTED;
    if (code == 1) return NO_RECORD;
    if (code == 121) return STALE;
    if (code == 119 && strncmp(text, "wrong-lock", 10) == 0) return WRONG_LOCK;
    if (code == 119 && strncmp(text, "damaged", 7) == 0) return DAMAGED;
    if (code == 119 && strncmp(text, "no-token", 8) == 0) return NO_TOKEN;
    if (code < 0) snprintf(detail, sizeof detail, "signal %d", WTERMSIG(status));
    else snprintf(detail, sizeof detail, "exit code %d, and on stdout '%.60s'", code, text);
    return broken(subject, "the program ended with", detail);
}

/* *ret_text (NULL: not wanted) is to be freed. */
static enum answer ask(struct subject *subject, const char *const *arguments, const char *data, size_t length,
                       char **ret_text, size_t *ret_used) {
    struct run_of run = {.in = -1, .out = -1, .data = data, .left = length};
    int status = 0;
    if (!launch(subject, arguments, &run)) return broken(subject, "cannot start the program", strerror(errno));
    bool done = converse(&run);
    int pidfd = done ? pidfd_open(run.pid, 0) : -1;
    if (pidfd >= 0) done = clock_wait_fd(pidfd, POLLIN, clock_after_ms(clock_now_ns(), ANSWER_WITHIN_MS), -1) == 1;
    if (!done) kill(run.pid, SIGKILL);
    waitpid(run.pid, &status, 0);
    shut(&pidfd);
    shut(&run.in);
    shut(&run.out);
    enum answer answer =
        done ? verdict(subject, status, run.text ? run.text : "") : broken(subject, "no end within 30 s", arguments[0]);
    if (ret_text && answer == ACCEPTED) {
        *ret_text = run.text;
        *ret_used = run.used;
    } else free(run.text);
    return answer;
}

static enum answer program_write(struct subject *subject, const char *verb, const struct question *q) {
    char token[24] = "";
    if (q->token) snprintf(token, sizeof token, "%" PRId64, q->token);
    const char *arguments[] = {verb, q->resource, q->lock, token, q->by, q->accept_jump ? "accept-jump" : NULL, NULL};
    return ask(subject, arguments, q->data, q->length, NULL, NULL);
}

static char *cut_line(char **at) {
    char *line = *at, *end = line ? strchr(line, '\n') : NULL;
    if (!end) return NULL;
    *end = 0;
    *at = end + 1;
    return line;
}

static enum answer program_get(struct subject *subject, const char *resource, struct reply *ret) {
    const char *arguments[] = {"get", resource, NULL};
    struct reply reply = {0};
    size_t used = 0;
    enum answer answer = ask(subject, arguments, "", 0, &reply.block, &used);
    if (answer != ACCEPTED) return answer;
    char *at = reply.block;
    reply.token = cut_line(&at);
    reply.lock = cut_line(&at);
    reply.by = cut_line(&at);
    if (!reply.by) {
        reply_free(&reply);
        return broken(subject, "get", "three lines were expected: token, lock, writer");
    }
    reply.data = at;
    reply.length = used - (size_t)(at - reply.block);
    *ret = reply;
    return answer;
}

/* --- a URL --- */

static enum answer of_code(struct subject *subject, int code, const pawl_error *error) {
    switch (code) {
    case PAWL_OK: return ACCEPTED;
    case PAWL_GSTALE: return STALE;
    case PAWL_GWRONGLOCK: return WRONG_LOCK;
    case PAWL_GDAMAGED: return DAMAGED;
    case PAWL_GNORECORD: return NO_RECORD;
    case PAWL_GNOTOKEN: return NO_TOKEN;
    case PAWL_EUNREACHABLE:
    case PAWL_EDENIED: return away(subject, error->text);
    default: return broken(subject, pawl_strerror(code), error->text);
    }
}

/* A handle for each question, as a program would have; NULL: it cannot be opened. */
static pawl_guard *open_subject(struct subject *subject) {
    pawl_error error = PAWL_ERROR_INIT;
    pawl_guard_options options = PAWL_GUARD_OPTIONS_INIT;
    pawl_guard *guard = NULL;
    options.wait_ms = ANSWER_WITHIN_MS;
    if (pawl_guard_open(subject->url, &options, &guard, &error)) broken(subject, "open", error.text);
    return guard;
}

static enum answer url_write(struct subject *subject, bool seal, const struct question *q) {
    pawl_error error = PAWL_ERROR_INIT;
    pawl_guard_write write = PAWL_GUARD_WRITE_INIT;
    pawl_guard *guard = open_subject(subject);
    if (!guard) return BROKEN;
    write.resource = q->resource;
    write.lock = q->lock;
    write.token = q->token;
    write.by = q->by;
    write.rule = q->rule;
    write.seq = q->seq;
    write.flags = q->accept_jump ? PAWL_GUARD_ACCEPT_JUMP : 0;
    int code =
        seal ? pawl_guard_seal(guard, &write, &error) : pawl_guard_put(guard, &write, q->data, q->length, &error);
    pawl_guard_close(guard);
    return of_code(subject, code, &error);
}

static enum answer url_get(struct subject *subject, const char *resource, bool audit, struct reply *ret) {
    pawl_error error = PAWL_ERROR_INIT;
    pawl_guard *guard = open_subject(subject);
    pawl_guard_record *record = NULL;
    if (!guard) return BROKEN;
    int code = pawl_guard_get(guard, resource, &record, &error);
    pawl_guard_close(guard);
    if (code) return of_code(subject, code, &error);
    char *block = NULL;
    size_t size = 0, at[3], n = 0;
    FILE *file = open_memstream(&block, &size);
    if (!file) {
        pawl_guard_free(record);
        return broken(subject, "out of memory", NULL);
    }
    fprintf(file, "%" PRId64 "%c", record->token, 0);
    at[n++] = (size_t)ftell(file);
    fprintf(file, "%s%c", record->lock, 0);
    at[n++] = (size_t)ftell(file);
    fprintf(file, "%s%c", record->by, 0);
    at[n++] = (size_t)ftell(file);
    for (size_t i = 0; audit && i < record->n_resets; i++)
        fprintf(file, "%" PRId64 " %" PRId64 " %s %s\n", record->resets[i].from, record->resets[i].to,
                record->resets[i].by, record->resets[i].why);
    if (!audit) fwrite(record->data, 1, record->length, file);
    fputc(0, file);
    pawl_guard_free(record);
    if (fclose(file) != 0) {
        free(block);
        return broken(subject, "out of memory", NULL);
    }
    *ret = (struct reply){block, block + at[0], block + at[1], block + at[2], size - at[2] - 1, block};
    return ACCEPTED;
}

/* --- either --- */

enum answer subject_put(struct subject *subject, const struct question *question) {
    return subject->program ? program_write(subject, "put", question) : url_write(subject, false, question);
}

enum answer subject_seal(struct subject *subject, const struct question *question) {
    return subject->program ? program_write(subject, "seal", question) : url_write(subject, true, question);
}

enum answer subject_get(struct subject *subject, const char *resource, struct reply *ret) {
    return subject->program ? program_get(subject, resource, ret) : url_get(subject, resource, false, ret);
}

enum answer subject_audit(struct subject *subject, const char *resource, struct reply *ret) {
    if (!subject->program) return url_get(subject, resource, true, ret);
    const char *arguments[] = {"audit", resource, NULL};
    struct reply reply = {0};
    enum answer answer = ask(subject, arguments, "", 0, &reply.block, &reply.length);
    reply.data = reply.block;
    if (answer == ACCEPTED) *ret = reply;
    return answer;
}

enum answer subject_reset(struct subject *subject, const char *resource, int64_t to, const char *by, const char *why) {
    if (subject->program) {
        char number[24];
        snprintf(number, sizeof number, "%" PRId64, to);
        const char *arguments[] = {"reset", resource, number, by, why, NULL};
        return ask(subject, arguments, "", 0, NULL, NULL);
    }
    pawl_error error = PAWL_ERROR_INIT;
    pawl_guard *guard = open_subject(subject);
    if (!guard) return BROKEN;
    int code = pawl_guard_reset(guard, resource, to, by, why, &error);
    pawl_guard_close(guard);
    return of_code(subject, code, &error);
}

/* --- a set of its own --- */

int scratch_make(const char *url, struct scratch *ret) {
    struct url *parsed;
    char escaped[3 * PATH_MAX] = "";
    if (strncmp(url, "dir:", 4) != 0 || url_parse(url, &parsed, NULL)) return 0;
    bool right = *parsed->path && !parsed->authority && !parsed->n_params; /* else open_guard says what is wrong */
    if (right) ret->parent = strdup(parsed->path);
    url_free(parsed);
    if (!right) return 0;
    ret->made_parent = ret->parent && mkdir(ret->parent, 0777) == 0;
    if (!ret->parent || asprintf(&ret->folder, "%s/.pawl-test-XXXXXX", ret->parent) < 0) ret->folder = NULL;
    if (!ret->folder || !mkdtemp(ret->folder)) {
        int code = complain(EXIT_UNREACHABLE, NULL, "cannot make a folder in %s: %s", url, strerror(errno));
        free(ret->folder);
        ret->folder = NULL;
        return code;
    }
    url_escape(escaped, sizeof escaped, ret->folder, strlen(ret->folder), "/._-");
    if (asprintf(&ret->url, "dir:%s", escaped) < 0) ret->url = NULL;
    return ret->url ? 0 : complain(EXIT_FAILED, NULL, "out of memory");
}

void scratch_remove(struct scratch *scratch) {
    DIR *listing = scratch->folder ? opendir(scratch->folder) : NULL;
    for (const struct dirent *entry; listing && (entry = readdir(listing));)
        unlinkat(dirfd(listing), entry->d_name, 0); /* not "." and ".." */
    if (listing) closedir(listing);
    if (scratch->folder) rmdir(scratch->folder);
    if (scratch->made_parent) rmdir(scratch->parent);
    free(scratch->folder);
    free(scratch->parent);
    free(scratch->url);
}
