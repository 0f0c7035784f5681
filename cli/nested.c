/* nested.c: PAWL_LOCK names the grants under which a process runs, outermost first:
 *
 *     TOKEN,MODE,PID,START,URL,NAME[ TOKEN,...]     MODE x or s; the holder's pid and start time; URL without secrets
 *
 * It names them and cannot release them. A run of a lock that an ancestor holds would wait for ever; an entry whose
 * holder is gone (a daemon left behind by an earlier run) is not believed. */
#include "run.h"
#include "tree.h"
#include "url.h"
#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *spell_file(const struct url *url) {
    char *dir = NULL, *spelled = NULL, real[PATH_MAX];
    if (asprintf(&dir, "%s%s", url->authority ? "/" : "", url->path) < 0) dir = NULL;
    if (dir && realpath(dir, real) && asprintf(&spelled, "file:%s", real) < 0) spelled = NULL;
    free(dir);
    return spelled;
}

static char *spell_redis(const struct url *url) {
    char *spelled = NULL;
    size_t length;
    const char *prefix = url_param(url, "prefix");
    FILE *to = open_memstream(&spelled, &length);
    if (!to) return NULL;
    fputs("redis://", to);
    for (size_t i = 0; i < url->n_hosts; i++) {
        fputs(i ? "," : "", to);
        for (const char *c = url->hosts[i].host; *c; c++) fputc(tolower((unsigned char)*c), to);
        fprintf(to, ":%d", url->hosts[i].port ? url->hosts[i].port : 6379);
    }
    fprintf(to, "/%s", *url->path ? url->path : "0");
    fprintf(to, "?prefix=%s", prefix ? prefix : "pawl:");
    if (fclose(to) == 0) return spelled;
    free(spelled);
    return NULL;
}

/* The URL without secrets, and spelled one way only: file:/a/../b, or a link to it, is file:/b; redis://HOST is
 * redis://host:6379/0, whatever user and timeouts it names. NULL: no memory. */
static char *where_it_lives(const char *url) {
    struct url *parsed;
    char *shown = shown_url(url), *spelled = NULL;
    if (!shown || url_parse(url, &parsed, NULL)) return shown;
    if (strcmp(parsed->scheme, "file") == 0) spelled = spell_file(parsed);
    if (strcmp(parsed->scheme, "redis") == 0 && parsed->n_hosts) spelled = spell_redis(parsed);
    url_free(parsed);
    if (!spelled) return shown;
    free(shown);
    return spelled;
}

/* "URL,NAME", escaped; both are kept apart by the comma, which escaping removes from them. */
static bool lock_identity(const struct run_options *options, char *ret, size_t size) {
    char *shown = where_it_lives(options->common.url);
    *ret = 0;
    bool fits = shown && url_escape(ret, size, shown, strlen(shown), ":/._-@") && strlen(ret) + 2 < size;
    if (fits) {
        strcat(ret, ",");
        fits = url_escape(ret, size, options->name, strlen(options->name), ":/._-@");
    }
    free(shown);
    return fits;
}

enum { IDENTITY_SIZE = 8192 };

static bool conflicts(const char *entry, size_t length, const char *identity, bool shared, int64_t *ret_token) {
    int64_t token;
    char mode;
    int pid, used = 0;
    uint64_t start, now_start;
    if (sscanf(entry, "%" SCNd64 ",%c,%d,%" SCNu64 ",%n", &token, &mode, &pid, &start, &used) != 4 || !used)
        return false;
    if (length - (size_t)used != strlen(identity) || strncmp(entry + used, identity, length - (size_t)used) != 0)
        return false;
    if (mode == 's' && shared) return false;
    if (!process_state(pid, NULL, NULL, &now_start, NULL) || now_start != start) return false;
    *ret_token = token;
    return true;
}

bool nested_conflict(const struct run_options *options, int64_t *ret_token) {
    char identity[IDENTITY_SIZE];
    const char *chain = getenv("PAWL_LOCK");
    if (!chain || !*chain || !lock_identity(options, identity, sizeof identity)) return false;
    for (const char *at = chain; *at;) {
        size_t length = strcspn(at, " ");
        if (conflicts(at, length, identity, options->shared, ret_token)) return true;
        at += length + (at[length] == ' ');
    }
    return false;
}

char *nested_chain(const struct run_options *options, pid_t holder, int64_t token) {
    char identity[IDENTITY_SIZE], *chain = NULL;
    const char *outer = getenv("PAWL_LOCK");
    uint64_t start = 0;
    if (!lock_identity(options, identity, sizeof identity)) *identity = 0;
    process_state(holder, NULL, NULL, &start, NULL);
    if (asprintf(&chain, "%s%s%" PRId64 ",%c,%d,%" PRIu64 ",%s", outer ? outer : "", outer && *outer ? " " : "", token,
                 options->shared ? 's' : 'x', (int)holder, start, identity) < 0)
        return NULL;
    return chain;
}
