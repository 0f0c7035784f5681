/* cli.c: messages, durations, times and JSON strings, as every verb prints and reads them. */
#include "cli.h"
#include "clock.h"
#include "pawl_guard.h"
#include "text.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct messages messages;

int exit_code(int pawl_code) {
    switch (pawl_code) {
    case PAWL_OK: return 0;
    case PAWL_EBUSY: return EXIT_BUSY;
    case PAWL_ETIMEOUT: return EXIT_TIMEOUT;
    case PAWL_ELOST: return EXIT_LOST;
    case PAWL_EUNREACHABLE:
    case PAWL_EDENIED: return EXIT_UNREACHABLE;
    case PAWL_EUNSAFE:
    case PAWL_EUNSUPPORTED:
    case PAWL_GWRONGLOCK:
    case PAWL_GDAMAGED:
    case PAWL_GNOTOKEN: return EXIT_REFUSED;
    case PAWL_GSTALE: return EXIT_STALE;
    default: return EXIT_FAILED;
    }
}

/* --- messages --- */

void print_plain(void *file, const char *text) {
    for (uint32_t code; *text;) {
        size_t n = text_next(text, &code);
        for (bool plain = text_plain(code); n > 0; n--, text++)
            fprintf(file, plain ? "%c" : "\\x%02X", (unsigned char)*text);
    }
}

static void print_message(const char *level, const char *name, const char *format, va_list arguments) {
    char *line = NULL, text[2048];
    size_t length = 0;
    vsnprintf(text, sizeof text, format, arguments);
    FILE *memory = open_memstream(&line, &length); /* one write a line, so that processes do not mix theirs */
    if (!memory) return;
    if (messages.json) {
        char when[40];
        format_time(clock_wall_us() / 1000, when, sizeof when);
        fprintf(memory, "{\"time\":\"%s\",\"level\":\"%s\",\"name\":", when, level);
        print_json_string(memory, name);
        fputs(",\"text\":", memory);
        print_json_string(memory, text);
        fputs("}", memory);
    } else {
        fputs("pawl: ", memory);
        if (name && *name) {
            print_plain(memory, name);
            fputs(": ", memory);
        }
        print_plain(memory, text);
    }
    fputc('\n', memory);
    if (fclose(memory) == 0) fwrite(line, 1, length, stderr);
    free(line);
}

int complain(int code, const char *name, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print_message("error", name, format, arguments);
    va_end(arguments);
    return code;
}

int complain_error(const char *name, const pawl_error *error) {
    bool node = *error->node && !strstr(error->text, error->node);
    const char *text = *error->text ? error->text : pawl_strerror(error->code);
    return complain(exit_code(error->code), name, "%s%s%s", node ? error->node : "", node ? ": " : "", text);
}

void warn(const char *name, const char *format, ...) {
    va_list arguments;
    if (messages.quiet) return;
    va_start(arguments, format);
    print_message("warning", name, format, arguments);
    va_end(arguments);
}

void inform(const char *name, const char *format, ...) {
    va_list arguments;
    if (messages.quiet) return;
    va_start(arguments, format);
    print_message("info", name, format, arguments);
    va_end(arguments);
}

void advise(const char *name, const char *format, ...) {
    va_list arguments;
    if (!messages.verbose) return;
    va_start(arguments, format);
    print_message("info", name, format, arguments);
    va_end(arguments);
}

bool flush_stdout(const char *name) {
    static bool failed;
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return !failed;
    complain(EXIT_FAILED, name, "cannot write to stdout%s%s", errno ? ": " : "", errno ? strerror(errno) : "");
    __fpurge(stdout);
    clearerr(stdout); /* it was said */
    failed = true;
    return false;
}

bool use_colour(int fd) {
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(fd) && !(no && *no) && term && *term && strcmp(term, "dumb") != 0;
}

/* --- numbers --- */

#define TEN_YEARS_MS (INT64_C(10) * 366 * 86400 * 1000)

static bool unit_ms(const char *text, int64_t *ret) {
    static const struct {
        const char *unit;
        int64_t ms;
    } units[] = {{"ms", 1}, {"s", 1000}, {"", 1000}, {"m", 60000}, {"h", 3600000}};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(text, units[i].unit) == 0) {
            *ret = units[i].ms;
            return true;
        }
    return false;
}

bool parse_duration(const char *text, int64_t *ret_ms) {
    int64_t whole = 0, part = 0, scale = 1, unit;
    const char *at = text;
    bool digits = false;
    for (; isdigit((unsigned char)*at); at++, digits = true)
        if ((whole = whole * 10 + (*at - '0')) > TEN_YEARS_MS) return false;
    if (*at == '.') {
        if (!isdigit((unsigned char)*++at)) return false;
        for (; isdigit((unsigned char)*at); at++, digits = true)
            if (scale < 1000000000) part = part * 10 + (*at - '0'), scale *= 10;
    }
    if (!digits || !unit_ms(at, &unit) || whole > TEN_YEARS_MS / unit) return false;
    int64_t ms = whole * unit + (part * unit + scale - 1) / scale;
    if (ms > TEN_YEARS_MS) return false;
    *ret_ms = ms;
    return true;
}

void spell_duration(int64_t ms, char *ret, size_t size) {
    if (ms % 3600000 == 0 && ms) snprintf(ret, size, "%" PRId64 "h", ms / 3600000);
    else if (ms % 1000 == 0) snprintf(ret, size, "%" PRId64 "s", ms / 1000);
    else snprintf(ret, size, "%" PRId64 "ms", ms);
}

bool parse_exit_code(const char *text, int *ret) {
    size_t length = strlen(text);
    if (length < 1 || length > 3 || strspn(text, "0123456789") != length || atoi(text) > 255) return false;
    *ret = atoi(text);
    return true;
}

void format_duration(int64_t ms, char *ret, size_t size) {
    static const struct {
        int64_t ms;
        const char *name;
    } units[] = {{86400000, "d"}, {3600000, "h"}, {60000, "min"}, {1000, "s"}};
    if (ms < 1000) {
        snprintf(ret, size, "%" PRId64 " ms", ms < 0 ? 0 : ms);
        return;
    }
    for (size_t i = 0; i < 4; i++) {
        if (ms < units[i].ms) continue;
        int64_t rest = i < 3 ? ms % units[i].ms / units[i + 1].ms : 0;
        if (rest)
            snprintf(ret, size, "%" PRId64 " %s %" PRId64 " %s", ms / units[i].ms, units[i].name, rest,
                     units[i + 1].name);
        else snprintf(ret, size, "%" PRId64 " %s", ms / units[i].ms, units[i].name);
        return;
    }
}

void format_time(int64_t wall_ms, char *ret, size_t size) {
    time_t seconds = wall_ms / 1000;
    struct tm tm;
    char text[32];
    gmtime_r(&seconds, &tm);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(ret, size, "%s.%03dZ", text, (int)(wall_ms % 1000));
}

void format_clock(int64_t wall_ms, char *ret, size_t size) {
    time_t then = wall_ms / 1000, today = clock_wall_us() / 1000000;
    struct tm a, b;
    localtime_r(&then, &a);
    localtime_r(&today, &b);
    bool same_day = a.tm_year == b.tm_year && a.tm_yday == b.tm_yday;
    if (!strftime(ret, size, same_day ? "%H:%M:%S" : "%Y-%m-%d %H:%M:%S", &a) && size) *ret = 0;
}

/* --- text --- */

void print_json_string(void *file, const char *text) {
    if (!text) {
        fputs("null", file);
        return;
    }
    fputc('"', file);
    for (uint32_t code; *text;) {
        size_t n = text_next(text, &code);
        if (code == TEXT_NOT_UTF8) fputs("\\ufffd", file);
        else if (code == '"' || code == '\\') fprintf(file, "\\%c", *text);
        else if (code == '\n') fputs("\\n", file);
        else if (code == '\t') fputs("\\t", file);
        else if (!text_plain(code)) fprintf(file, "\\u%04" PRIx32, code);
        else fwrite(text, 1, n, file);
        text += n;
    }
    fputc('"', file);
}

/* Edit distance with swaps of neighbours, of words of at most 31 bytes; large otherwise. */
static size_t edit_distance(const char *a, const char *b) {
    size_t m = strlen(a), n = strlen(b), d[33][33];
    if (m > 31 || n > 31) return 99;
    for (size_t i = 0; i <= m; i++) d[i][0] = i;
    for (size_t j = 0; j <= n; j++) d[0][j] = j;
    for (size_t i = 1; i <= m; i++)
        for (size_t j = 1; j <= n; j++) {
            size_t least = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < least) least = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < least) least = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < least)
                least = d[i - 2][j - 2] + 1;
            d[i][j] = least;
        }
    return d[m][n];
}

void nearest_offer(struct nearest *nearest, const char *candidate) {
    size_t length = strlen(nearest->text), most = length > 5 ? 2 : 1;
    size_t distance = edit_distance(nearest->text, candidate);
    if (length > 2 && strncmp(candidate, nearest->text, length) == 0) distance = 1; /* an abbreviation */
    if (distance > most || (nearest->word && distance >= nearest->distance)) return;
    nearest->word = candidate;
    nearest->distance = distance;
}
