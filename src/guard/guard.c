/* guard.c: the guard API: checks arguments, runs one step of a kind, and puts a refusal into words. */
#include "guard.h"
#include "about.h"
#include "clock.h"
#include "export.h"
#include "metrics.h"
#include "module.h"
#include "sized.h"
#include "text.h"
#include "token.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern const struct guard_kind guard_dir;

/* One row a scheme; module NULL: built in. */
static const struct row {
    const char *scheme, *module;
    const struct guard_kind *builtin;
} rows[] = {{"dir", NULL, &guard_dir},
            {"sqlite", "guard-sqlite", NULL},
            {"redis", "redis", NULL},
            {"rediss", "redis", NULL},
            {"redis+unix", "redis", NULL},
            {"redis+sentinel", "redis", NULL},
            {"postgresql", "postgresql", NULL},
            {"postgres", "postgresql", NULL},
            {"etcd", "etcd", NULL},
            {"etcds", "etcd", NULL}};

struct pawl_guard {
    const struct guard_kind *kind;
    struct guard_store *store;
    char *shown; /* the URL without secrets */
    int64_t wait_ms;
    char by[GUARD_BY_MAX + 1];
    bool inside; /* between enter and leave */
    pid_t user;  /* who made the first step; 0: nobody. A forked child must not share files and locks with its parent */
};

static int find_kind(const char *scheme, const struct guard_kind **ret, pawl_error *error) {
    char list[160] = "";
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s:", used ? " " : "", rows[i].scheme);
        if (strcmp(rows[i].scheme, scheme) != 0) continue;
        if (rows[i].builtin) {
            *ret = rows[i].builtin;
            return PAWL_OK;
        }
        void *symbol;
        int code = module_symbol(rows[i].module, GUARD_KIND_SYMBOL, &symbol, error);
        if (code == PAWL_OK) *ret = *(const struct guard_kind *const *)symbol;
        return code;
    }
    return error_set(error, PAWL_EINVALID, NULL, "there is no guard of kind '%s:'; this version has %s", scheme, list);
}

static void free_url(struct url **url) { url_free(*url); }

PAWL_EXPORT int pawl_guard_open(const char *text, const pawl_guard_options *given, pawl_guard **ret_guard,
                                pawl_error *error) {
    pawl_guard_options options = PAWL_GUARD_OPTIONS_INIT;
    int code = sized_take(&options, given, "guard options", error);
    if (code) return code;
    if (options.by && (!*options.by || strlen(options.by) > GUARD_BY_MAX))
        return error_set(error, PAWL_EINVALID, NULL, "a worker's name has 1 to %d bytes", GUARD_BY_MAX);
    __attribute__((cleanup(free_url))) struct url *url = NULL;
    if ((code = url_parse(text, &url, error))) return code;
    const struct guard_kind *kind = NULL;
    if ((code = find_kind(url->scheme, &kind, error))) return code;
    pawl_guard *guard = calloc(1, sizeof *guard);
    if (!guard || !(guard->shown = strdup(url->shown))) {
        free(guard);
        return error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
    }
    guard->kind = kind;
    guard->wait_ms = options.wait_ms;
    if (options.by) snprintf(guard->by, sizeof guard->by, "%s", options.by);
    else {
        char about[ABOUT_SIZE];
        about_self(NULL, 0, about);
        about_describe(about, guard->by, sizeof guard->by);
    }
    if ((code = kind->open(url, &guard->store, error)) == PAWL_OK && (code = url_params_known(url, error)))
        kind->close(guard->store);
    if (code) {
        free(guard->shown);
        free(guard);
        return code;
    }
    *ret_guard = guard;
    return PAWL_OK;
}

PAWL_EXPORT void pawl_guard_close(pawl_guard *guard) {
    if (!guard) return;
    if (guard->user == 0 || guard->user == getpid()) {
        pawl_guard_leave(guard);
        guard->kind->close(guard->store);
    } /* else SQLite allows not even a close */
    free(guard->shown);
    free(guard);
}

/* --- arguments --- */

/* Well-formed UTF-8 without NUL, 1 to GUARD_NAME_MAX bytes. */
static bool is_name(const char *text) { return text && *text && strlen(text) <= GUARD_NAME_MAX && text_valid(text); }

static int check_name(const pawl_guard *guard, const char *what, const char *name, pawl_error *error) {
    if (is_name(name)) return PAWL_OK;
    return error_set(error, PAWL_EINVALID, guard->shown, "a %s's name is 1 to %d bytes of UTF-8", what, GUARD_NAME_MAX);
}

static int check_write(const pawl_guard *guard, const pawl_guard_write *write, pawl_error *error) {
    int code = check_name(guard, "resource", write->resource, error);
    if (!code) code = check_name(guard, "lock", write->lock, error);
    if (code) return code;
    if (write->by && (!*write->by || strlen(write->by) > GUARD_BY_MAX))
        return error_set(error, PAWL_EINVALID, guard->shown, "a worker's name has 1 to %d bytes", GUARD_BY_MAX);
    if (write->rule && !guard_rule_name(write->rule))
        return error_set(error, PAWL_EINVALID, guard->shown, "%d is not a rule", write->rule);
    if (write->service && (!*write->service || strlen(write->service) > GUARD_SERVICE_MAX))
        return error_set(error, PAWL_EINVALID, guard->shown, "a service is named by its scheme, of 1 to %d bytes",
                         GUARD_SERVICE_MAX);
    if (write->flags & ~PAWL_GUARD_ACCEPT_JUMP)
        return error_set(error, PAWL_EINVALID, guard->shown, "unknown flags %#x", write->flags);
    return PAWL_OK;
}

/* Before any step. */
static int check_process(pawl_guard *guard, pawl_error *error) {
    if (guard->inside)
        return error_set(error, PAWL_EINVALID, guard->shown, "pawl_guard_leave was not called after pawl_guard_enter");
    if (guard->user == 0) guard->user = getpid();
    if (guard->user == getpid()) return PAWL_OK;
    return error_set(error, PAWL_EINVALID, guard->shown,
                     "this guard was opened and used before the fork: open one in the child");
}

static struct guard_step step_of(const pawl_guard *guard, const char *resource) {
    return (struct guard_step){resource, clock_after_ms(clock_now_ns(), guard->wait_ms)};
}

/* --- words --- */

static void ago(int64_t us, char *ret, size_t size) {
    if (us < 0) us = 0;
    if (us < 2000000) snprintf(ret, size, "%" PRId64 " ms", us / 1000);
    else if (us < 120000000) snprintf(ret, size, "%" PRId64 " s", us / 1000000);
    else if (us < INT64_C(7200) * 1000000) snprintf(ret, size, "%" PRId64 " min", us / 60000000);
    else if (us < INT64_C(172800) * 1000000) snprintf(ret, size, "%" PRId64 " h", us / INT64_C(3600000000));
    else snprintf(ret, size, "%" PRId64 " days", us / INT64_C(86400000000));
}

static int explain_stale(const pawl_guard_write *write, const struct guard_found *found, const char *node,
                         const char *from, pawl_error *error) {
    const struct guard_mark *mark = &found->mark;
    char when[32];
    ago(found->now_us - mark->at_us, when, sizeof when);
    const char *verb = mark->used ? "written" : "sealed";
    if (found->lapsed)
        return error_set(error, PAWL_GSTALE, node,
                         "stale token %" PRId64 "%s: lock '%s' is not held under it any more. Nothing was changed.",
                         write->token, from, write->lock);
    if ((uint64_t)write->token < mark->token) {
        char moved[256] = "";
        if (write->service && *mark->service && strcmp(write->service, mark->service) != 0)
            snprintf(moved, sizeof moved,
                     " Moved from another service: that one is of %s:, this one of %s:; if the lock has its home at "
                     "%s: now, lift its numbers: pawl token advance --to %" PRIu64 ".",
                     mark->service, write->service, write->service, mark->token);
        return error_set(error, PAWL_GSTALE, node,
                         "stale token %" PRId64 "%s; current is %" PRIu64 ", %s by %s %s ago. Nothing was changed.%s",
                         write->token, from, mark->token, verb, mark->by, when, moved);
    }
    if (mark->rule == PAWL_RULE_SEQ)
        return error_set(error, PAWL_GSTALE, node,
                         "stale sequence %" PRId64 " of token %" PRId64 "%s; current is %" PRIu64
                         ", written by %s %s ago. Nothing was changed.",
                         write->seq, write->token, from, mark->seq, mark->by, when);
    return error_set(error, PAWL_GSTALE, node,
                     "stale token %" PRId64
                     "%s: this grant has written already (rule gt), %s ago by %s. Nothing was changed.",
                     write->token, from, when, mark->by);
}

static int explain(const pawl_guard *guard, const pawl_guard_write *write, const struct guard_found *found, int code,
                   pawl_error *error) {
    const struct guard_mark *mark = &found->mark;
    char from[GUARD_BY_MAX + 8] = "";
    if (write->by) snprintf(from, sizeof from, " from %s", write->by);
    switch (code) {
    case PAWL_GSTALE:
        metrics_class(&process_metrics, write->lock)->stale++;
        return explain_stale(write, found, guard->shown, from, error);
    case PAWL_GWRONGLOCK:
        return error_set(error, code, guard->shown,
                         "wrong lock: the resource belongs to lock '%s', not '%s' (token %" PRId64
                         "%s). Nothing was changed.",
                         mark->lock, write->lock, write->token, from);
    case PAWL_GDAMAGED:
        if (write->token < 0 || (uint64_t)write->token > TOKEN_MAX)
            return error_set(error, code, guard->shown,
                             "damaged token %" PRId64 "%s: a token is 1 to %" PRIu64 ". Nothing was changed.",
                             write->token, from, TOKEN_MAX);
        return error_set(error, code, guard->shown,
                         "damaged token %" PRId64 "%s: more than a day above both the last one (%" PRIu64
                         ") and this clock (%" PRId64 "). Nothing was changed. If it is right, accept the jump.",
                         write->token, from, mark->token, found->now_us);
    case PAWL_GNOTOKEN:
        return error_set(error, code, guard->shown,
                         "no token%s: a write needs the token of lock '%s'. Nothing was changed.", from, write->lock);
    default: break;
    }
    if (write->rule && mark->rule && write->rule != mark->rule)
        return error_set(error, code, guard->shown, "the rule of this resource is %s since its first write, not %s",
                         guard_rule_name(mark->rule), guard_rule_name(write->rule));
    return error_set(error, code, guard->shown,
                     write->seq ? "a sequence number (%" PRId64 ") goes with rule seq only, from 1 up, for writes"
                                : "rule seq wants a sequence number from 1 up with each write, not %" PRId64,
                     write->seq);
}

/* --- steps --- */

static struct guard_claim claim_of(const pawl_guard_write *write) {
    return (struct guard_claim){.lock = write->lock,
                                .service = write->service,
                                .token = write->token,
                                .seq = write->seq,
                                .rule = write->rule,
                                .accept_jump = write->flags & PAWL_GUARD_ACCEPT_JUMP};
}

/* Begins a step and judges; on success the step is open and *ret is what the mark becomes. */
static int begin(pawl_guard *guard, const pawl_guard_write *write, const struct guard_step *step,
                 enum guard_intent intent, struct guard_mark *ret, pawl_error *error) {
    struct guard_found found = {0};
    int code = guard->kind->begin(guard->store, step, &found, error);
    if (code) return code;
    struct guard_claim claim = claim_of(write);
    if ((code = guard_judge(&found, &claim, intent, ret))) {
        guard->kind->end(guard->store);
        return explain(guard, write, &found, code, error);
    }
    snprintf(ret->by, sizeof ret->by, "%s", write->by ? write->by : guard->by);
    return PAWL_OK;
}

static int ask(pawl_guard *guard, const pawl_guard_write *write, const struct guard_step *step,
               enum guard_intent intent, const void *data, size_t length, pawl_error *error) {
    struct guard_ask question = {.intent = intent,
                                 .claim = claim_of(write),
                                 .by = write->by ? write->by : guard->by,
                                 .data = data,
                                 .length = length};
    struct guard_found found = {0};
    int code = guard->kind->ask(guard->store, step, &question, &found, error);
    return code && found.judged ? explain(guard, write, &found, code, error) : code;
}

static int change(pawl_guard *guard, const pawl_guard_write *given, enum guard_intent intent, const void *data,
                  size_t length, pawl_error *error) {
    pawl_guard_write write = PAWL_GUARD_WRITE_INIT;
    int code = sized_take(&write, given, "guarded write", error);
    if (!code) code = check_write(guard, &write, error);
    if (!code) code = check_process(guard, error);
    if (code) return code;
    struct guard_step step = step_of(guard, write.resource);
    if (guard->kind->ask) return ask(guard, &write, &step, intent, data, length, error);
    struct guard_mark mark;
    if ((code = begin(guard, &write, &step, intent, &mark, error))) return code;
    if (data) mark.written = true;
    struct guard_change to = {&mark, data, length, NULL};
    code = guard->kind->commit(guard->store, &to, error);
    guard->kind->end(guard->store);
    return code;
}

PAWL_EXPORT int pawl_guard_put(pawl_guard *guard, const pawl_guard_write *write, const void *data, size_t length,
                               pawl_error *error) {
    return change(guard, write, GUARD_WRITE, data ? data : "", data ? length : 0, error);
}

PAWL_EXPORT int pawl_guard_seal(pawl_guard *guard, const pawl_guard_write *write, pawl_error *error) {
    return change(guard, write, GUARD_SEAL, NULL, 0, error);
}

/* The mark is raised durably first, in a step of its own; the second step proves that nobody came in between. It is
 * kept open and never committed. */
PAWL_EXPORT int pawl_guard_enter(pawl_guard *guard, const pawl_guard_write *given, pawl_error *error) {
    pawl_guard_write write = PAWL_GUARD_WRITE_INIT;
    int code = sized_take(&write, given, "guarded write", error);
    if (code) return code;
    if (guard->kind->ask)
        return error_set(error, PAWL_EUNSUPPORTED, guard->shown,
                         "%s: cannot keep others out while something else is changed: it cannot know whether you are "
                         "still at it; use a guard of kind dir: or sqlite:",
                         guard->kind->scheme);
    code = change(guard, &write, GUARD_WRITE, NULL, 0, error);
    if (code) return code;
    struct guard_step step = step_of(guard, write.resource);
    struct guard_found found = {0};
    if ((code = guard->kind->begin(guard->store, &step, &found, error))) return code;
    if (found.mark.token != (uint64_t)write.token || found.mark.seq != (uint64_t)write.seq) {
        guard->kind->end(guard->store);
        return explain(guard, &write, &found, PAWL_GSTALE, error);
    }
    guard->inside = true;
    return PAWL_OK;
}

PAWL_EXPORT void pawl_guard_leave(pawl_guard *guard) {
    if (guard->inside) guard->kind->end(guard->store);
    guard->inside = false;
}

PAWL_EXPORT int pawl_guard_fd(pawl_guard *guard) { return guard->inside ? guard->kind->fd(guard->store) : -1; }

static void no_record(const pawl_guard *guard, const char *resource, pawl_error *error) {
    error_set(error, PAWL_GNORECORD, guard->shown, "no such record: nothing was ever written or sealed as '%s'",
              resource);
}

static int do_reset(pawl_guard *guard, const struct guard_step *step, int64_t to, const char *by, const char *why,
                    pawl_error *error) {
    struct guard_found found = {0};
    struct guard_mark mark;
    pawl_guard_reset_entry entry;
    int code = guard->kind->begin(guard->store, step, &found, error);
    if (code) return code;
    if (found.mark.rule == PAWL_RULE_DEFAULT) code = PAWL_GNORECORD;
    else {
        guard_reset_mark(&found, to, by, why, &mark, &entry);
        struct guard_change change = {&mark, NULL, 0, &entry};
        code = guard->kind->commit(guard->store, &change, error);
    }
    guard->kind->end(guard->store);
    return code;
}

static int ask_reset(pawl_guard *guard, const struct guard_step *step, int64_t to, const char *by, const char *why,
                     pawl_error *error) {
    struct guard_ask question = {.intent = GUARD_RESET, .claim = {.lock = "", .token = to}, .by = by, .why = why};
    struct guard_found found = {0};
    return guard->kind->ask(guard->store, step, &question, &found, error);
}

PAWL_EXPORT int pawl_guard_reset(pawl_guard *guard, const char *resource, int64_t to, const char *by, const char *why,
                                 pawl_error *error) {
    int code = check_name(guard, "resource", resource, error);
    if (code) return code;
    if (to < 1 || (uint64_t)to > TOKEN_MAX)
        return error_set(error, PAWL_EINVALID, guard->shown, "a token is 1 to %" PRIu64 ", not %" PRId64, TOKEN_MAX,
                         to);
    if (!why || !*why || strlen(why) > GUARD_BY_MAX || strpbrk(why, "\r\n") ||
        (by && (!*by || strlen(by) > GUARD_BY_MAX)))
        return error_set(error, PAWL_EINVALID, guard->shown, "a reset says why in one line of 1 to %d bytes",
                         GUARD_BY_MAX);
    if ((code = check_process(guard, error))) return code;
    struct guard_step step = step_of(guard, resource);
    code = guard->kind->ask ? ask_reset(guard, &step, to, by ? by : guard->by, why, error)
                            : do_reset(guard, &step, to, by ? by : guard->by, why, error);
    if (code == PAWL_GNORECORD) no_record(guard, resource, error);
    return code;
}

PAWL_EXPORT int pawl_guard_get(pawl_guard *guard, const char *resource, pawl_guard_record **ret_record,
                               pawl_error *error) {
    int code = check_name(guard, "resource", resource, error);
    if (code) return code;
    if ((code = check_process(guard, error))) return code;
    struct guard_step step = step_of(guard, resource);
    code = guard->kind->read(guard->store, &step, ret_record, error);
    if (code == PAWL_GNORECORD) no_record(guard, resource, error);
    return code;
}

PAWL_EXPORT int pawl_guard_install(pawl_guard *guard, int rule, pawl_error *error) {
    if (rule == PAWL_RULE_DEFAULT) rule = PAWL_RULE_GE;
    if (!guard_rule_name(rule)) return error_set(error, PAWL_EINVALID, guard->shown, "%d is not a rule", rule);
    int code = check_process(guard, error);
    if (code) return code;
    return guard->kind->install(guard->store, rule, clock_after_ms(clock_now_ns(), guard->wait_ms), error);
}

PAWL_EXPORT void pawl_guard_options_init(pawl_guard_options *options, size_t size) {
    pawl_guard_options fresh = PAWL_GUARD_OPTIONS_INIT;
    sized_init(options, size, &fresh);
}

PAWL_EXPORT void pawl_guard_write_init(pawl_guard_write *write, size_t size) {
    pawl_guard_write fresh = PAWL_GUARD_WRITE_INIT;
    sized_init(write, size, &fresh);
}

PAWL_EXPORT const char *pawl_guard_rule_name(int rule) { return guard_rule_name(rule); }

PAWL_EXPORT void pawl_guard_free(pawl_guard_record *record) { free(record); }

PAWL_EXPORT int pawl_guard_protect(pawl_guard *guard, const char *table, const char *expression, pawl_error *error) {
    if (!guard->kind->protect)
        return error_set(error, PAWL_EUNSUPPORTED, guard->shown, "only postgresql: has tables to protect");
    if (!table || !*table || (expression && !*expression))
        return error_set(error, PAWL_EINVALID, guard->shown, "name a table; an expression, if any, is not empty");
    int code = check_process(guard, error);
    if (code) return code;
    return guard->kind->protect(guard->store, table, expression, clock_after_ms(clock_now_ns(), guard->wait_ms), error);
}

PAWL_EXPORT const char *pawl_guard_install_text(pawl_guard *guard) { return guard->kind->install_text; }
