/* dsn.c: the URL: everything that libpq knows, and our own parameters:
 *   key=MODE          how a name becomes numbers (key.c)
 *   pooler=session    what stands between keeps a session whole: do not refuse it
 *   token=off         no tokens and nothing written: efficiency only, and pawl need not be installed
 *   flush=off         a token may be handed out before it is on disk: a crash of the server may repeat it
 *   selftest=on       before the first use, see with two connections that a lock excludes
 *   max_waiters=N     connections of one client that wait at the same time (8); more waiters ask from time to time */
#include "about.h"
#include "postgresql.h"
#include "refusal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool ours(const char *key, size_t length) {
    static const char *const names[] = {"key", "pooler", "token", "flush", "max_waiters", "selftest"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == length && strncmp(names[i], key, length) == 0) return true;
    return false;
}

/* The text for libpq: "postgresql:" and the rest without our parameters. */
static char *without_ours(const char *rest) {
    const char *at = strchr(rest, '?'), *end;
    char *text = malloc(strlen(rest) + 16), *to = text;
    bool first = true;
    if (!text) return NULL;
    to += sprintf(to, "%s%.*s", strncmp(rest, "//", 2) == 0 ? "postgresql:" : "",
                  (int)(at ? at - rest : (long)strlen(rest)), rest);
    for (at = at ? at + 1 : NULL; at && *at; at = *end ? end + 1 : NULL) {
        end = strchrnul(at, '&');
        if (ours(at, strcspn(at, "=&"))) {
            if (!*end) break;
            continue;
        }
        to += sprintf(to, "%c%.*s", first ? '?' : '&', (int)(end - at), at);
        first = false;
        if (!*end) break;
    }
    return text;
}

static bool yes_or(const struct url *url, const char *key, const char *word, bool *ret, pawl_error *error) {
    const char *value = url_param(url, key);
    *ret = value != NULL;
    if (!value || strcmp(value, word) == 0) return true;
    error_set(error, PAWL_EINVALID, NULL, "url %s: %s can only be '%s', not '%s'", url->shown, key, word, value);
    return false;
}

static bool parameters(const struct url *url, struct bk *bk, pawl_error *error) {
    const char *key = url_param(url, "key"), *waiters = url_param(url, "max_waiters");
    bool no_token, no_flush, test;
    if (key && !key_mode_parse(key, &bk->key)) {
        error_set(error, PAWL_EINVALID, NULL,
                  "url %s: key is one of hashtextextended hashtext fnv1a63 java31 int8 int4x2, not '%s'", url->shown,
                  key);
        return false;
    }
    bk->max_waiters = 8;
    if (waiters && ((bk->max_waiters = atoi(waiters)) < 1 || bk->max_waiters > 1000)) {
        error_set(error, PAWL_EINVALID, NULL, "url %s: max_waiters is from 1 to 1000, not '%s'", url->shown, waiters);
        return false;
    }
    if (!yes_or(url, "pooler", "session", &bk->pooler, error) || !yes_or(url, "token", "off", &no_token, error) ||
        !yes_or(url, "flush", "off", &no_flush, error) || !yes_or(url, "selftest", "on", &test, error))
        return false;
    bk->selftest = test;
    bk->tokens = !no_token;
    bk->flush = !no_flush;
    return true;
}

/* What a service file says, for what the URL does not. libpq reads it while it connects only, and then resolves the
 * names in it, for as long as it takes: so it is told something impossible, and asked what it knows by then. */
static bool take_service(struct bk *bk, pawl_error *error) {
    const char *keys[] = {"service", "gssencmode", NULL}, *values[] = {NULL, "none of these", NULL};
    PQconninfoOption *service = bk->dsn;
    while (service->keyword && strcmp(service->keyword, "service") != 0) service++;
    values[0] = service->val;
    if (!values[0] || !*values[0]) return true;
    PGconn *conn = PQconnectStartParams(keys, values, 0);
    PQconninfoOption *known = conn && strstr(PQerrorMessage(conn), keys[1]) ? PQconninfo(conn) : NULL;
    char why[200] = "out of memory";
    if (conn) refusal_text(conn, why, sizeof why);
    if (!known) error_set(error, PAWL_EINVALID, NULL, "service file: %s", why);
    for (PQconninfoOption *o = bk->dsn, *k = known; known && o->keyword && k->keyword; o++, k++) { /* the same list */
        bool ours = strcmp(o->keyword, k->keyword) != 0 || strcmp(o->keyword, keys[1]) == 0;
        if (ours || (o->val && *o->val) || !k->val) continue;
        o->val = k->val;
        k->val = NULL;
    }
    PQconninfoFree(known);
    PQfinish(conn);
    free(service->val);
    service->val = NULL;
    return known != NULL;
}

enum bk_says dsn_open(const struct url *url, struct bk **ret, pawl_error *error) {
    struct bk *bk = calloc(1, sizeof *bk);
    char *text = without_ours(url->rest), *why = NULL;
    bool good = bk && text;
    if (!good) error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
    if (good && !(bk->dsn = PQconninfoParse(text, &why))) {
        if (why) why[strcspn(why, "\n")] = 0;
        error_set(error, PAWL_EINVALID, NULL, "url %s: %s", url->shown, why ? why : "libpq does not understand it");
        good = false;
    }
    good = good && parameters(url, bk, error) && take_service(bk, error);
    if (good && !statements_make(bk)) {
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        good = false;
    }
    PQfreemem(why);
    if (text) explicit_bzero(text, strlen(text));
    free(text);
    if (!good) {
        if (bk) dsn_close(bk, false);
        return BK_FAULT;
    }
    bk->ttl_ms = 15000;
    strcpy(bk->application, "pawl");
    *ret = bk;
    return BK_YES;
}

void dsn_close(struct bk *bk, bool forked) {
    (void)forked;
    statements_free(bk);
    PQconninfoFree(bk->dsn);
    free(bk);
}
