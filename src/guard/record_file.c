#include "record_file.h"
#include "token.h"
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEAD_MAX (1 << 20)
#define KEEP "._-"

bool write_all(int fd, const void *data, size_t length) {
    for (const char *at = data; length > 0;) {
        ssize_t n = write(fd, at, length);
        if (n < 0 && errno != EINTR) return false;
        if (n > 0) {
            at += n;
            length -= (size_t)n;
        }
    }
    return true;
}

bool read_all(int fd, void *ret, size_t length) {
    for (char *at = ret; length > 0;) {
        ssize_t n = read(fd, at, length);
        if (n == 0) errno = EIO;
        if (n == 0 || (n < 0 && errno != EINTR)) return false;
        if (n > 0) {
            at += n;
            length -= (size_t)n;
        }
    }
    return true;
}

bool copy_rest(int from_fd, int to_fd) {
    char buffer[16384];
    for (;;) {
        ssize_t n = read(from_fd, buffer, sizeof buffer);
        if (n == 0) return true;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 || !write_all(to_fd, buffer, (size_t)n)) return false;
    }
}

/* --- parsing --- */

/* Cuts the next word, ended by `stop`, off *at; NULL: there is none. */
static char *cut(char **at, char stop) {
    char *word = *at, *end = word ? strchr(word, stop) : NULL;
    if (!end) return NULL;
    *end = 0;
    *at = end + 1;
    return word;
}

/* Decodes %XX in place. */
static bool unescape(char *text) {
    char *to = text;
    for (const char *from = text; *from; from++) {
        unsigned value = (unsigned char)*from;
        if (*from == '%') {
            int used = 0;
            if (sscanf(from, "%%%2x%n", &value, &used) != 1 || used != 3 || value == 0) return false;
            from += 2;
        }
        *to++ = (char)value;
    }
    *to = 0;
    return true;
}

static bool number(const char *text, int64_t *ret) {
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (end == text || *end || errno || n < 0) return false;
    *ret = n;
    return true;
}

static bool into(char *ret, size_t size, char *word) {
    if (!unescape(word) || !*word || strlen(word) >= size) return false;
    strcpy(ret, word);
    return true;
}

static bool parse_reset(struct record_head *head, char *line) {
    pawl_guard_reset_entry *more = realloc(head->resets, (head->n_resets + 1) * sizeof *more);
    if (!more) return false;
    head->resets = more;
    char *at = cut(&line, ' '), *from = cut(&line, ' '), *to = cut(&line, ' '), *by = cut(&line, ' ');
    int64_t at_us;
    pawl_guard_reset_entry entry = {.by = by, .why = line};
    if (!by || !number(at, &at_us) || !number(from, &entry.from) || !number(to, &entry.to) || !unescape(by) ||
        !unescape(line) || strlen(by) > GUARD_BY_MAX || strlen(line) > GUARD_BY_MAX) /* RESET_MOST relies on it */
        return false;
    entry.at_ms = at_us / 1000;
    head->resets[head->n_resets++] = entry;
    return true;
}

/* One bit for each line that must be there. */
enum {
    RESOURCE = 1,
    LOCK = 2,
    TOKEN = 4,
    SEQ = 8,
    RULE = 16,
    USED = 32,
    WRITTEN = 64,
    AT = 128,
    BY = 256,
    LENGTH = 512,
    ALL = 1023
};

static int parse_line(struct record_head *head, const char *key, char *value) {
    struct guard_mark *mark = &head->mark;
    int64_t n = 0;
    if (strcmp(key, "resource") == 0) return into(head->resource, sizeof head->resource, value) ? RESOURCE : -1;
    if (strcmp(key, "lock") == 0) return into(mark->lock, sizeof mark->lock, value) ? LOCK : -1;
    if (strcmp(key, "by") == 0) return into(mark->by, sizeof mark->by, value) ? BY : -1;
    if (strcmp(key, "service") == 0) return into(mark->service, sizeof mark->service, value) ? 0 : -1;
    if (strcmp(key, "token") == 0) return token_parse(value, &mark->token) ? TOKEN : -1;
    if (strcmp(key, "rule") == 0) return (mark->rule = guard_rule_by_name(value)) ? RULE : -1;
    if (strcmp(key, "reset") == 0) return parse_reset(head, value) ? 0 : -1;
    if (!number(value, &n)) return -1;
    if (strcmp(key, "seq") == 0) return mark->seq = (uint64_t)n, SEQ;
    if (strcmp(key, "used") == 0 && n <= 1) return mark->used = n, USED;
    if (strcmp(key, "written") == 0 && n <= 1) return mark->written = n, WRITTEN;
    if (strcmp(key, "at") == 0) return mark->at_us = n, AT;
    if (strcmp(key, "length") == 0) return head->length = (size_t)n, LENGTH;
    return -1;
}

const char *record_head_parse(char *text, size_t size, struct record_head *ret, size_t *ret_data_at) {
    static const char first[] = "pawl guard 1\n";
    struct record_head head = {0};
    if (!text || size < sizeof first - 1 || memcmp(text, first, sizeof first - 1) != 0)
        return "it does not begin with 'pawl guard 1'";
    char *end = memmem(text, size, "\n\n", 2), *at = text + sizeof first - 1;
    if (!end || memchr(text, 0, (size_t)(end - text))) return "its head is damaged";
    end[1] = 0;
    int seen = 0, now = 0;
    while (now >= 0 && *at) {
        char *line = cut(&at, '\n'), *key = line ? cut(&line, ' ') : NULL;
        now = key ? parse_line(&head, key, line) : -1;
        if (now > 0 && seen & now) now = -1;
        if (now > 0) seen |= now;
    }
    if (now < 0 || seen != ALL) {
        record_head_free(&head);
        return "its head is damaged";
    }
    *ret = head;
    *ret_data_at = (size_t)(end - text) + 2;
    return NULL;
}

const char *record_head_read(int fd, char **ret_text, struct record_head *ret, off_t *ret_data_at) {
    char *text = NULL;
    size_t used = 0, size = 0, data_at;
    while (size < HEAD_MAX && !memmem(text ? text : "", used, "\n\n", 2)) {
        if (used == size) {
            char *more = realloc(text, size = size ? 2 * size : 4096);
            if (!more) {
                free(text);
                return "out of memory";
            }
            text = more;
        }
        ssize_t n = pread(fd, text + used, size - used, (off_t)used);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        used += (size_t)n;
    }
    const char *why = record_head_parse(text, used, ret, &data_at);
    if (why) {
        free(text);
        return why;
    }
    *ret_text = text;
    *ret_data_at = (off_t)data_at;
    return NULL;
}

void record_head_free(struct record_head *head) {
    free(head->resets);
    head->resets = NULL;
    head->n_resets = 0;
}

/* --- writing --- */

struct text {
    char *bytes; /* NULL: out of memory */
    size_t used, size;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *text, const char *format, ...) {
    va_list arguments;
    if (!text->bytes) return;
    va_start(arguments, format);
    int n = vsnprintf(text->bytes + text->used, text->size - text->used, format, arguments);
    va_end(arguments);
    text->used += (size_t)n;
}

static void add_word(struct text *text, const char *before, const char *word) {
    char escaped[3 * GUARD_NAME_MAX + 1] = "";
    url_escape(escaped, sizeof escaped, word, strlen(word), KEEP);
    add(text, "%s%s", before, escaped);
}

static void add_reset(struct text *text, const pawl_guard_reset_entry *entry) {
    add(text, "reset %" PRId64 " %" PRId64 " %" PRId64, entry->at_ms * 1000, entry->from, entry->to);
    add_word(text, " ", entry->by);
    add_word(text, " ", entry->why);
    add(text, "\n");
}

/* A resource and a lock, escaped, and what is of fixed length; then what one reset may take. */
#define LINES_MOST (8 * GUARD_NAME_MAX + 1024)
#define RESET_MOST (6 * GUARD_BY_MAX + 128)
_Static_assert(LINES_MOST + RECORD_RESETS * RESET_MOST < HEAD_MAX, "what is written can be read");

char *record_head_lines(const char *resource, const struct guard_mark *mark, const struct record_head *old,
                        const pawl_guard_reset_entry *reset, size_t length, size_t *ret_size) {
    size_t all = old->n_resets + (reset ? 1 : 0), forgotten = all > RECORD_RESETS ? all - RECORD_RESETS : 0;
    struct text text = {.size = LINES_MOST + (all - forgotten) * RESET_MOST};
    text.bytes = malloc(text.size);
    add_word(&text, "pawl guard 1\nresource ", resource);
    add_word(&text, "\nlock ", mark->lock);
    add(&text, "\ntoken %" PRIu64 "\nseq %" PRIu64 "\nrule %s\nused %d\nwritten %d\nat %" PRId64, mark->token,
        mark->seq, guard_rule_name(mark->rule), mark->used, mark->written, mark->at_us);
    add_word(&text, "\nby ", mark->by);
    if (*mark->service) add_word(&text, "\nservice ", mark->service);
    add(&text, "\n");
    for (size_t i = forgotten; i < old->n_resets; i++) add_reset(&text, &old->resets[i]);
    if (reset) add_reset(&text, reset);
    add(&text, "length %zu\n\n", length);
    *ret_size = text.used;
    return text.bytes;
}
