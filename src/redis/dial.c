#include "clock.h"
#include "redis.h"
#include "resolve.h"
#include "verdict.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static enum bk_says open_socket(const struct place *p, struct wire *w, pawl_error *error) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(p->socket_path) >= sizeof address.sun_path) {
        error_set(error, PAWL_EINVALID, p->socket_path, "%s: too long for a socket path (107 bytes)", p->socket_path);
        return BK_FAULT;
    }
    memcpy(address.sun_path, p->socket_path, strlen(p->socket_path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&address, sizeof address)) {
        error_errno(error, errno == EACCES ? PAWL_EDENIED : PAWL_EUNREACHABLE, p->socket_path, "cannot connect to %s",
                    p->socket_path);
        if (fd >= 0) close(fd);
        return BK_FAULT;
    }
    if (wire_open(w, fd, NULL, p->socket_path)) return BK_YES;
    error_set(error, PAWL_EINTERNAL, p->socket_path, "out of memory");
    return BK_FAULT;
}

static enum bk_says open_host(const struct place *p, const struct url_host *h, struct bk_until until, struct wire *w,
                              pawl_error *error) {
    struct tls *tls = NULL;
    char node[128];
    int fd;
    snprintf(node, sizeof node, strchr(h->host, ':') ? "[%.110s]:%d" : "%.110s:%d", h->host, h->port);
    enum bk_says says = resolve_connect(h->host, h->port, until, &fd, error);
    if (says != BK_YES) return says;
    if (p->tls) says = tls_start(fd, &p->tls_options, h->host, node, until, &tls, error);
    if (says != BK_YES) {
        close(fd);
        return says;
    }
    if (wire_open(w, fd, tls, node)) return BK_YES;
    error_set(error, PAWL_EINTERNAL, node, "out of memory");
    return BK_FAULT;
}

static void add_auth(struct wire *w, const char *user, const char *password) {
    struct args a = {.n = 0};
    arg_text(&a, "AUTH");
    if (user) arg_text(&a, user);
    arg_text(&a, password);
    wire_add(w, &a);
}

static void add_words(struct wire *w, const char *first, const char *second) {
    struct args a = {.n = 0};
    arg_text(&a, first);
    if (second) arg_text(&a, second);
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

/* One reply of the greeting. A refusal is a FAULT: the connection was for nothing, and nothing was asked yet. */
static enum bk_says greeted(struct wire *w, struct bk_until until, redisReply **ret, int code, const char *what,
                            pawl_error *error) {
    if (wire_reply(w, until, ret, error) != BK_YES) return BK_FAULT;
    if ((*ret)->type != REDIS_REPLY_ERROR) return BK_YES;
    if (verdict(w, (*ret)->str, error) == BK_UNKNOWN)
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

static enum bk_says greet(const struct place *p, struct wire *w, struct bk_until until, char ret_run_id[41],
                          pawl_error *error) {
    AUTO_REPLY auth = NULL;
    AUTO_REPLY select = NULL;
    AUTO_REPLY server = NULL;
    AUTO_REPLY replication = NULL;
    char db[16];
    snprintf(db, sizeof db, "%d", p->db);
    if (p->password) add_auth(w, p->user, p->password);
    if (p->db) add_words(w, "SELECT", db);
    add_words(w, "INFO", "server");
    add_words(w, "INFO", "replication");
    enum bk_says says = wire_flush(w, until, error);
    if (says == BK_YES && p->password)
        says = greeted(w, until, &auth, PAWL_EDENIED, "the server does not accept the password of the URL", error);
    if (says == BK_YES && p->db) says = greeted(w, until, &select, PAWL_EINVALID, "it has no such database", error);
    if (says == BK_YES) says = greeted(w, until, &server, PAWL_EDENIED, "INFO server is refused", error);
    if (says == BK_YES) says = greeted(w, until, &replication, PAWL_EDENIED, "INFO replication is refused", error);
    if (says != BK_YES) return BK_FAULT;
    if (server->type != REDIS_REPLY_STRING || replication->type != REDIS_REPLY_STRING) {
        error_set(error, PAWL_EUNREACHABLE, w->node, "%s: INFO does not answer with a text: not a Redis server?",
                  w->node);
        return BK_FAULT;
    }
    return check_server(w, server->str, replication->str, ret_run_id, error);
}

static enum bk_says dial_one(struct bk *bk, size_t i, struct bk_until until, struct wire *ret, char ret_run_id[41],
                             pawl_error *error) {
    const struct place *p = &bk->place;
    enum bk_says says = p->socket_path ? open_socket(p, ret, error) : open_host(p, &p->hosts[i], until, ret, error);
    if (says != BK_YES) return says;
    says = greet(p, ret, until, ret_run_id, error);
    if (says != BK_YES) wire_close(ret, true);
    return says;
}

enum bk_says dial(struct bk *bk, struct bk_until until, struct wire *ret, char ret_run_id[41], pawl_error *error) {
    size_t n = bk->place.socket_path ? 1 : bk->place.n_hosts;
    enum bk_says says = BK_FAULT;
    for (size_t i = 0; i < n; i++) {
        struct bk_until each = until; /* a silent server leaves time for the next ones */
        int64_t now = clock_now_ns();
        if (until.at_ns != INT64_MAX) each.at_ns = now + (until.at_ns - now) / (int64_t)(n - i);
        pawl_error one = PAWL_ERROR_INIT;
        says = dial_one(bk, i, each, ret, ret_run_id, &one);
        if (says == BK_YES) return BK_YES;
        error_copy(error, &one);
        if (one.code == PAWL_ECANCELLED) break;
    }
    return says;
}
