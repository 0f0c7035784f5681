/* history_json.c: reads a history, one JSON object a line. Strict: an unknown field or word is an error that names it,
 * since a misspelt field would make the check pass for the wrong reason. */
#include "error.h"
#include "history_store.h"
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char *const known[] = {"who", "what", "lock", "token", "start", "end", "asked", "outcome", "shared"};

struct place { /* for messages */
    const char *file;
    uint64_t line;
    pawl_error *error;
};
#define BAD(p, ...) error_set((p)->error, PAWL_EINVALID, (p)->file, __VA_ARGS__)

static int read_word(const struct place *p, json_t *o, const char *key, const char *(*name)(int), int n, int *ret) {
    const char *text = json_string_value(json_object_get(o, key));
    if (!text) return BAD(p, "%s:%" PRIu64 ": no \"%s\", or it is no string", p->file, p->line, key);
    for (int i = 0; i < n; i++)
        if (strcmp(text, name(i)) == 0) {
            *ret = i;
            return PAWL_OK;
        }
    return BAD(p, "%s:%" PRIu64 ": \"%s\" is \"%.60s\", which means nothing there", p->file, p->line, key, text);
}

static int read_time(const struct place *p, json_t *o, const char *key, int64_t otherwise, int64_t *ret) {
    json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v)) {
        *ret = otherwise;
        return PAWL_OK;
    }
    if (!json_is_integer(v))
        return BAD(p, "%s:%" PRIu64 ": \"%s\" is no whole number of nanoseconds", p->file, p->line, key);
    *ret = json_integer_value(v);
    return PAWL_OK;
}

/* A number, or a string of digits (as tokens are printed everywhere else). */
static int read_token(const struct place *p, json_t *o, uint64_t *ret) {
    json_t *v = json_object_get(o, "token");
    *ret = 0;
    if (!v || json_is_null(v)) return PAWL_OK;
    const char *text = json_string_value(v);
    char *end = NULL;
    errno = 0;
    if (json_is_integer(v) && json_integer_value(v) >= 0) *ret = (uint64_t)json_integer_value(v);
    else if (text && *text >= '0' && *text <= '9') *ret = strtoull(text, &end, 10);
    else return BAD(p, "%s:%" PRIu64 ": \"token\" is no number", p->file, p->line);
    if (errno || (end && *end)) return BAD(p, "%s:%" PRIu64 ": \"token\" is no number", p->file, p->line);
    return PAWL_OK;
}

static const char *what_name(int i) { return history_what_name((enum history_what)i); }
static const char *outcome_name(int i) { return history_outcome_name((enum history_outcome)i); }

static int read_event(const struct place *p, json_t *o, struct history_event *e) {
    const char *key;
    json_t *value;
    int what, outcome;
    if (!json_is_object(o)) return BAD(p, "%s:%" PRIu64 ": not a JSON object", p->file, p->line);
    json_object_foreach(o, key, value) {
        size_t i = 0;
        while (i < sizeof known / sizeof *known && strcmp(known[i], key) != 0) i++;
        if (i == sizeof known / sizeof *known)
            return BAD(p, "%s:%" PRIu64 ": unknown field \"%.60s\"", p->file, p->line, key);
    }
    e->who = json_string_value(json_object_get(o, "who"));
    e->lock = json_string_value(json_object_get(o, "lock"));
    if (!e->who || !e->lock) return BAD(p, "%s:%" PRIu64 ": no \"%s\"", p->file, p->line, e->who ? "lock" : "who");
    if (read_word(p, o, "what", what_name, HISTORY_WHATS, &what)) return PAWL_EINVALID;
    if (read_word(p, o, "outcome", outcome_name, HISTORY_OUTCOMES, &outcome)) return PAWL_EINVALID;
    e->what = (enum history_what)what;
    e->outcome = (enum history_outcome)outcome;
    value = json_object_get(o, "shared");
    if (value && !json_is_boolean(value))
        return BAD(p, "%s:%" PRIu64 ": \"shared\" is not true or false", p->file, p->line);
    e->shared = json_is_true(value);
    if (!json_is_integer(json_object_get(o, "start"))) return BAD(p, "%s:%" PRIu64 ": no \"start\"", p->file, p->line);
    if (read_time(p, o, "start", 0, &e->start) || read_time(p, o, "end", HISTORY_OPEN, &e->end) ||
        read_time(p, o, "asked", HISTORY_NEVER, &e->asked) || read_token(p, o, &e->token))
        return PAWL_EINVALID;
    if (e->end < e->start) return BAD(p, "%s:%" PRIu64 ": ends before it starts", p->file, p->line);
    if (e->asked > e->start) return BAD(p, "%s:%" PRIu64 ": asked for after it was granted", p->file, p->line);
    return PAWL_OK;
}

int history_read(struct history *h, FILE *file, const char *name, pawl_error *error) {
    char *line = NULL;
    size_t size = 0;
    ssize_t length;
    struct place p = {.file = name, .error = error};
    int r = PAWL_OK;
    while (r == PAWL_OK && (length = getline(&line, &size, file)) >= 0) {
        p.line++;
        if (line[strspn(line, " \t\r\n")] == 0) continue;
        json_error_t why;
        json_t *o = json_loadb(line, (size_t)length, JSON_REJECT_DUPLICATES, &why);
        struct history_event e = {0};
        if (!o) {
            r = BAD(&p, "%s:%" PRIu64 ": not JSON: %s", name, p.line, why.text);
        } else if ((r = read_event(&p, o, &e)) == PAWL_OK) {
            h->lines = (uint32_t)p.line - 1; /* history_add counts on: examples name lines of the file */
            history_add(h, &e);
        }
        json_decref(o);
    }
    if (r == PAWL_OK && ferror(file)) r = error_errno(error, PAWL_EINTERNAL, name, "reading %s", name);
    free(line);
    return r;
}
