#include "dial.h"
#include "clock.h"
#include "resolve.h"
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
    if (wire_open(w, fd, NULL, p->socket_path, p->prefix)) return BK_YES;
    error_set(error, PAWL_EINTERNAL, p->socket_path, "out of memory");
    return BK_FAULT;
}

struct bk_until dial_share(struct bk_until until, size_t n) {
    int64_t now = clock_now_ns();
    if (until.at_ns != INT64_MAX) until.at_ns = now + (until.at_ns - now) / (int64_t)n;
    return until;
}

enum bk_says dial_host(const struct place *p, const struct url_host *h, struct bk_until until, struct wire *w,
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
    if (wire_open(w, fd, tls, node, p->prefix)) return BK_YES;
    error_set(error, PAWL_EINTERNAL, node, "out of memory");
    return BK_FAULT;
}

enum bk_says dial_place(const struct place *p, size_t i, struct bk_until until, struct wire *ret, pawl_error *error) {
    return p->socket_path ? open_socket(p, ret, error) : dial_host(p, &p->hosts[i], until, ret, error);
}

static enum bk_says greeted(struct bk *bk, enum bk_says says, const char *channel, struct bk_until until,
                            struct wire *w, char ret_run_id[41], pawl_error *error) {
    if (says != BK_YES) return says;
    says = greet_server(&bk->place, w, channel, until, ret_run_id, error);
    if (says != BK_YES) wire_close(w, true);
    return says;
}

/* Whichever sentinels name, if it says itself that it is the primary. */
static enum bk_says dial_master(struct bk *bk, const char *channel, struct bk_until until, struct wire *ret,
                                char ret_run_id[41], struct watch *watch, pawl_error *error) {
    char address[256];
    struct url_host master = {.host = address};
    pawl_error own = PAWL_ERROR_INIT;
    enum bk_says says = sentinel_find(&bk->place, until, watch, error);
    if (says != BK_YES) return says;
    strcpy(address, watch->address);
    master.port = watch->port;
    place_map(&bk->place, address, &master.port);
    says = greeted(bk, dial_host(&bk->place, &master, until, ret, &own), channel, until, ret, ret_run_id, &own);
    if (says == BK_YES) return BK_YES;
    error_set(error, own.code, own.node, "sentinel %s says that '%s' is at %s:%d: %.330s", watch->wire.node,
              bk->place.master, watch->address, watch->port, own.text);
    watch_end(watch, true);
    return says;
}

enum bk_says dial(struct bk *bk, const char *channel, struct bk_until until, struct wire *ret, char ret_run_id[41],
                  struct watch *watch, pawl_error *error) {
    size_t n = bk->place.socket_path ? 1 : bk->place.n_hosts;
    enum bk_says says = BK_FAULT;
    if (bk->place.master) return dial_master(bk, channel, until, ret, ret_run_id, watch, error);
    for (size_t i = 0; i < n; i++) {
        pawl_error one = PAWL_ERROR_INIT;
        struct bk_until each = dial_share(until, n - i);
        says = greeted(bk, dial_place(&bk->place, i, each, ret, &one), channel, each, ret, ret_run_id, &one);
        if (says == BK_YES) return BK_YES;
        error_copy(error, &one);
        if (one.code == PAWL_ECANCELLED) break;
    }
    return says;
}
