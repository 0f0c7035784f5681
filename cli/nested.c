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

/* What tells one service from another, and one set of names in it; and what a URL means that does not say it. */
static const struct kind {
    const char *scheme, *service, *port, *path, *param, *value;
    bool any_order; /* of the hosts */
} kinds[] = {
    {"redis", "redis", "6379", "0", "prefix", "pawl:", false},
    {"rediss", "redis", "6379", "0", "prefix", "pawl:", false},
    {"redis+sentinel", "sentinel", "26379", "0", "prefix", "pawl:", true},
    {"redlock", "redlock", "6379", "0", "prefix", "pawl:", true},
    {"redlocks", "redlock", "6379", "0", "prefix", "pawl:", true},
    {"postgresql", "postgresql", "5432", "", "key", "hashtextextended", false},
    {"postgres", "postgresql", "5432", "", "key", "hashtextextended", false},
    {"etcd", "etcd", "2379", "", "prefix", "/pawl/", true},
    {"etcds", "etcd", "2379", "", "prefix", "/pawl/", true},
};

static const struct kind *kind_of(const struct url *url) {
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (url->n_hosts && strcmp(url->scheme, kinds[i].scheme) == 0) return &kinds[i];
    return NULL;
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static bool spell_hosts(const struct url *url, const struct kind *kind, FILE *to) {
    char **hosts = calloc(url->n_hosts, sizeof *hosts);
    bool good = hosts;
    for (size_t i = 0; i < url->n_hosts && good; i++) {
        char port[16];
        snprintf(port, sizeof port, "%d", url->hosts[i].port);
        good = asprintf(&hosts[i], "%s:%s", url->hosts[i].host, url->hosts[i].port ? port : kind->port) > 0;
        for (char *c = good ? hosts[i] : ""; *c; c++) *c = (char)tolower((unsigned char)*c);
    }
    if (good && kind->any_order) qsort(hosts, url->n_hosts, sizeof *hosts, by_text);
    for (size_t i = 0; i < url->n_hosts && hosts; i++) {
        if (good) fprintf(to, "%s%s", i ? "," : "", hosts[i]);
        free(hosts[i]);
    }
    free(hosts);
    return good;
}

/* redis: a database by path or ?db=; a sentinel's master is before it; etcd's path is another spelling of a prefix. */
static void spell_place(const struct url *url, const struct kind *kind, FILE *to) {
    const char *db = url_param(url, "db"), *value = url_param(url, kind->param), *path = url->path;
    if (strcmp(kind->service, "etcd") == 0 && *path && !value)
        fprintf(to, "?prefix=/%s%s", path, path[strlen(path) - 1] == '/' ? "" : "/");
    else {
        bool master_only = strcmp(kind->service, "sentinel") == 0 && !strchr(path, '/');
        fprintf(to, "%s%s%s", path, master_only ? "/" : "", *path && !master_only ? "" : db ? db : kind->path);
        fprintf(to, "?%s=%s", kind->param, value ? value : kind->value);
    }
}

static char *spell_service(const struct url *url, const struct kind *kind) {
    char *spelled = NULL;
    size_t length;
    FILE *to = open_memstream(&spelled, &length);
    if (!to) return NULL;
    fprintf(to, "%s://", kind->service);
    bool good = spell_hosts(url, kind, to);
    fputc('/', to);
    spell_place(url, kind, to);
    if (fclose(to) == 0 && good) return spelled;
    free(spelled);
    return NULL;
}

/* The URL without secrets, and spelled one way only: file:/a/../b, or a link to it, is file:/b; redis://HOST is
 * redis://host:6379/0, whatever user and timeouts it names. NULL: no memory. */
static char *where_it_lives(const char *url) {
    struct url *parsed;
    char *shown = shown_url(url), *spelled = NULL;
    if (!shown || url_parse(url, &parsed, NULL)) return shown;
    const struct kind *kind = kind_of(parsed);
    if (strcmp(parsed->scheme, "file") == 0) spelled = spell_file(parsed);
    if (kind) spelled = spell_service(parsed, kind);
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
