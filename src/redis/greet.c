#include "greet.h"
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

/* An error reply: what it means, or else `code` and `what`. */
static enum bk_says refused(const struct wire *w, const redisReply *reply, int code, const char *what,
                            pawl_error *error) {
    if (verdict_is(reply->str, "unknown command") || verdict(w, reply->str, error) == BK_UNKNOWN)
        error_set(error, code, w->node, "%s: %s (%.200s)", w->node, what, reply->str);
    return BK_FAULT;
}

enum bk_says greet_reply(struct wire *w, struct bk_until until, redisReply **ret, int code, const char *what,
                         pawl_error *error) {
    if (wire_reply(w, until, ret, error) != BK_YES) return BK_FAULT;
    return (*ret)->type == REDIS_REPLY_ERROR ? refused(w, *ret, code, what, error) : BK_YES;
}

static enum bk_says check_server(const struct wire *w, const char *text, struct greeting *g, pawl_error *error) {
    char mode[16] = "", version[24] = "";
    info(text, "redis_mode", mode, sizeof mode);
    info(text, "redis_version", version, sizeof version);
    if (strcmp(mode, "cluster") == 0)
        error_set(error, PAWL_EUNSUPPORTED, w->node,
                  "%s belongs to a Redis Cluster, which is not supported: a lock there can "
                  "be granted twice; use a single primary, or redlock:",
                  w->node);
    else if (strcmp(mode, "sentinel") == 0)
        error_set(error, PAWL_EINVALID, w->node, "%s is a sentinel: write redis+sentinel://%s/mymaster", w->node,
                  w->node);
    else if (atoi(version) < 5)
        error_set(error, PAWL_EUNSUPPORTED, w->node, "%s runs Redis '%s'; 5 or newer is needed", w->node, version);
    else if (!info(text, "run_id", g->run_id, sizeof g->run_id) || strlen(g->run_id) != 40)
        error_set(error, PAWL_EUNSUPPORTED, w->node, "%s does not tell its run id (INFO server)", w->node);
    else return BK_NO;
    return BK_FAULT;
}

static enum bk_says check_role(const struct wire *w, const char *text, struct greeting *g, pawl_error *error) {
    char role[16] = "", host[80] = "?", port[8] = "?";
    info(text, "role", role, sizeof role);
    if (strcmp(role, "master") == 0) return BK_YES;
    info(text, "master_host", host, sizeof host);
    info(text, "master_port", port, sizeof port);
    g->replica = true;
    error_set(error, PAWL_EUNREACHABLE, w->node,
              "%s is a replica of %s:%s; locks need the primary: name it, or use "
              "redis+sentinel:",
              w->node, host, port);
    return BK_FAULT;
}

void greet_ask(const struct place *p, struct wire *w) {
    char db[16];
    snprintf(db, sizeof db, "%d", p->db);
    if (p->password) greet_auth(w, p->user, p->password);
    if (p->db) wire_words(w, (const char *const[]){"SELECT", db, NULL});
    wire_words(w, (const char *const[]){"INFO", "server", NULL});
    wire_words(w, (const char *const[]){"INFO", "replication", NULL});
}

enum bk_says greet_hear(const struct place *p, const struct wire *w, const redisReply *reply, struct greeting *g,
                        pawl_error *error) {
    static const struct {
        int code;
        const char *what;
    } steps[] = {{PAWL_EDENIED, "the server does not accept the password of the URL"},
                 {PAWL_EINVALID, "it has no such database"},
                 {PAWL_EDENIED, "INFO server is refused"},
                 {PAWL_EDENIED, "INFO replication is refused"}};
    if (g->next == 0 && !p->password) g->next = 1;
    if (g->next == 1 && !p->db) g->next = 2;
    int step = g->next++;
    if (reply->type == REDIS_REPLY_ERROR) return refused(w, reply, steps[step].code, steps[step].what, error);
    if (step < 2) return BK_NO;
    if (reply->type == REDIS_REPLY_STRING)
        return step == 2 ? check_server(w, reply->str, g, error) : check_role(w, reply->str, g, error);
    error_set(error, PAWL_EUNREACHABLE, w->node, "%s: INFO does not answer with a text: not a Redis server?", w->node);
    return BK_FAULT;
}

enum bk_says greet_server(const struct place *p, struct wire *w, const char *channel, struct bk_until until,
                          char ret_run_id[41], pawl_error *error) {
    struct greeting g = {.next = 0};
    greet_ask(p, w);
    if (channel) wire_words(w, (const char *const[]){"SUBSCRIBE", channel, NULL});
    enum bk_says says = wire_flush(w, until, error) == BK_YES ? BK_NO : BK_FAULT;
    while (says == BK_NO) {
        AUTO_REPLY reply = NULL;
        if (wire_reply(w, until, &reply, error) != BK_YES) return BK_FAULT;
        says = greet_hear(p, w, reply, &g, error);
    }
    if (says == BK_YES) memcpy(ret_run_id, g.run_id, sizeof g.run_id);
    return says;
}
