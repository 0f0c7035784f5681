/* greet.c: what is said first on a new connection: who we are, and is this a server that can keep locks? */
#include "dial.h"
#include "verdict.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void greet_auth(struct wire *w, const char *user, const char *password) {
    struct args a = {.n = 0};
    arg_text(&a, "AUTH");
    if (user) arg_text(&a, user);
    arg_text(&a, password);
    wire_add(w, &a);
}

/* The value behind "key:" of an INFO text. */
static bool info(const char *text, const char *key, char *ret, size_t size) {
    size_t n = strlen(key);
    for (const char *at = text; (at = strstr(at, key)); at += n) {
        if ((at != text && at[-1] != '\n') || at[n] != ':') continue;
        const char *from = at + n + 1;
        snprintf(ret, size, "%.*s", (int)strcspn(from, "\r\n"), from);
        return true;
    }
    return false;
}

enum bk_says greet_reply(struct wire *w, struct bk_until until, redisReply **ret, int code, const char *what,
                         pawl_error *error) {
    if (wire_reply(w, until, ret, error) != BK_YES) return BK_FAULT;
    if ((*ret)->type != REDIS_REPLY_ERROR) return BK_YES;
    if (verdict_is((*ret)->str, "unknown command") || verdict(w, (*ret)->str, error) == BK_UNKNOWN)
        error_set(error, code, w->node, "%s: %s (%.200s)", w->node, what, (*ret)->str);
    return BK_FAULT;
}

static enum bk_says check_server(const struct wire *w, const char *server, const char *replication, char ret_run_id[41],
                                 pawl_error *error) {
    char mode[16] = "", version[24] = "", role[16] = "", host[80] = "?", port[8] = "?";
    info(server, "redis_mode", mode, sizeof mode);
    info(server, "redis_version", version, sizeof version);
    info(replication, "role", role, sizeof role);
    if (strcmp(mode, "cluster") == 0) {
        error_set(error, PAWL_EUNSUPPORTED, w->node,
                  "%s belongs to a Redis Cluster, which is not supported: a lock there can "
                  "be granted twice; use a single primary, or redlock:",
                  w->node);
        return BK_FAULT;
    }
    if (strcmp(mode, "sentinel") == 0) {
        error_set(error, PAWL_EINVALID, w->node, "%s is a sentinel: write redis+sentinel://%s/mymaster", w->node,
                  w->node);
        return BK_FAULT;
    }
    if (atoi(version) < 5) {
        error_set(error, PAWL_EUNSUPPORTED, w->node, "%s runs Redis '%s'; 5 or newer is needed", w->node, version);
        return BK_FAULT;
    }
    if (strcmp(role, "master") != 0) {
        info(replication, "master_host", host, sizeof host);
        info(replication, "master_port", port, sizeof port);
        error_set(error, PAWL_EUNREACHABLE, w->node,
                  "%s is a replica of %s:%s; locks need the primary: name it, or use "
                  "redis+sentinel:",
                  w->node, host, port);
        return BK_FAULT;
    }
    if (info(server, "run_id", ret_run_id, 41) && strlen(ret_run_id) == 40) return BK_YES;
    error_set(error, PAWL_EUNSUPPORTED, w->node, "%s does not tell its run id (INFO server)", w->node);
    return BK_FAULT;
}

enum bk_says greet_server(const struct place *p, struct wire *w, struct bk_until until, char ret_run_id[41],
                          pawl_error *error) {
    AUTO_REPLY auth = NULL;
    AUTO_REPLY select = NULL;
    AUTO_REPLY server = NULL;
    AUTO_REPLY replication = NULL;
    char db[16];
    snprintf(db, sizeof db, "%d", p->db);
    if (p->password) greet_auth(w, p->user, p->password);
    if (p->db) wire_words(w, (const char *const[]){"SELECT", db, NULL});
    wire_words(w, (const char *const[]){"INFO", "server", NULL});
    wire_words(w, (const char *const[]){"INFO", "replication", NULL});
    enum bk_says says = wire_flush(w, until, error);
    if (says == BK_YES && p->password)
        says = greet_reply(w, until, &auth, PAWL_EDENIED, "the server does not accept the password of the URL", error);
    if (says == BK_YES && p->db) says = greet_reply(w, until, &select, PAWL_EINVALID, "it has no such database", error);
    if (says == BK_YES) says = greet_reply(w, until, &server, PAWL_EDENIED, "INFO server is refused", error);
    if (says == BK_YES) says = greet_reply(w, until, &replication, PAWL_EDENIED, "INFO replication is refused", error);
    if (says != BK_YES) return BK_FAULT;
    if (server->type != REDIS_REPLY_STRING || replication->type != REDIS_REPLY_STRING) {
        error_set(error, PAWL_EUNREACHABLE, w->node, "%s: INFO does not answer with a text: not a Redis server?",
                  w->node);
        return BK_FAULT;
    }
    return check_server(w, server->str, replication->str, ret_run_id, error);
}
