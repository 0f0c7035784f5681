#include "resolve.h"
#include "clock.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct question { /* shared by the asking thread and the resolving one; the last to leave frees it */
    atomic_int users;
    int done_fd, gai;
    char *host, port[8];
    struct addrinfo *found;
};

static void leave(struct question *q) {
    if (atomic_fetch_sub(&q->users, 1) > 1) return;
    if (q->found) freeaddrinfo(q->found);
    if (q->done_fd >= 0) close(q->done_fd);
    free(q->host);
    free(q);
}

static void ask(struct question *q, int flags) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | flags};
    q->gai = getaddrinfo(q->host, q->port, &hints, &q->found);
}

static void *answer(void *data) {
    struct question *q = data;
    ask(q, AI_ADDRCONFIG);
    if (q->gai) ask(q, 0);
    uint64_t one = 1;
    if (write(q->done_fd, &one, sizeof one) < 0) { /* nobody can be told; the asker's deadline stands */
    }
    leave(q);
    return NULL;
}

static int start(struct question *q) {
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, old;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    atomic_fetch_add(&q->users, 1);
    int number = pthread_create(&thread, &attributes, answer, q);
    if (number) atomic_fetch_sub(&q->users, 1);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attributes);
    return number;
}

static enum bk_says finish(const struct question *q, struct resolved *ret, pawl_error *error) {
    if (q->gai) {
        error_set(error, PAWL_EUNREACHABLE, q->host, "%s: its address was not found: %s", q->host,
                  gai_strerror(q->gai));
        return BK_FAULT;
    }
    ret->n = 0;
    for (struct addrinfo *a = q->found; a && ret->n < RESOLVE_MAX; a = a->ai_next) {
        if (a->ai_addrlen > sizeof ret->address[0]) continue;
        memcpy(&ret->address[ret->n], a->ai_addr, a->ai_addrlen);
        ret->length[ret->n++] = a->ai_addrlen;
    }
    return BK_YES;
}

enum bk_says resolve(const char *host, int port, struct bk_until until, struct resolved *ret, pawl_error *error) {
    struct question *q = calloc(1, sizeof *q);
    if (q) *q = (struct question){.users = 1, .done_fd = -1, .host = strdup(host)};
    if (!q || !q->host) {
        free(q);
        error_set(error, PAWL_EINTERNAL, host, "out of memory");
        return BK_FAULT;
    }
    snprintf(q->port, sizeof q->port, "%d", port);
    enum bk_says says = BK_FAULT;
    ask(q, AI_NUMERICHOST);
    if (q->gai == 0) {
        says = finish(q, ret, error);
    } else if ((q->done_fd = eventfd(0, EFD_CLOEXEC)) < 0 || (errno = start(q)) != 0) {
        error_errno(error, PAWL_EINTERNAL, host, "cannot start resolving %s", host);
    } else {
        int ready = clock_wait_fd(q->done_fd, POLLIN, until.at_ns, until.cancel_fd);
        uint64_t one; /* the read orders the answer before it, for whoever checks memory order */
        if (ready == 1 && read(q->done_fd, &one, sizeof one) > 0) says = finish(q, ret, error);
        else if (ready == -1) error_set(error, PAWL_ECANCELLED, host, "cancelled while resolving %s", host);
        else error_set(error, PAWL_EUNREACHABLE, host, "%s: no name server told its address in time", host);
    }
    leave(q);
    return says;
}

/* 1 connected, 0 not (errno says why), -1 cancelled, -2 out of time. */
static int try_address(const struct resolved *r, int i, struct bk_until until, int *ret_fd) {
    int fd = socket(r->address[i].ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1, number = 0;
    if (fd < 0) return 0;
    socklen_t size = sizeof number;
    int result = connect(fd, (const struct sockaddr *)&r->address[i], r->length[i]) == 0 ? 1 : 0;
    if (!result && errno == EINPROGRESS) {
        result = clock_wait_fd(fd, POLLOUT, until.at_ns, until.cancel_fd);
        if (result == 1 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &number, &size) == 0 && number) {
            errno = number;
            result = 0;
        } else if (result == 0) {
            result = -2;
        }
    }
    if (result != 1) {
        number = errno;
        close(fd);
        errno = number;
        return result;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    *ret_fd = fd;
    return 1;
}

enum bk_says resolve_connect(const char *host, int port, struct bk_until until, int *ret_fd, pawl_error *error) {
    struct resolved found;
    char node[128];
    snprintf(node, sizeof node, strchr(host, ':') ? "[%.110s]:%d" : "%.110s:%d", host, port);
    enum bk_says says = resolve(host, port, until, &found, error);
    if (says != BK_YES) return says;
    error_set(error, PAWL_EUNREACHABLE, node, "%s has no address", node);
    for (int i = 0; i < found.n; i++) {
        struct bk_until each = until; /* a silent address leaves time for the next ones */
        if (until.at_ns != INT64_MAX && i + 1 < found.n) {
            int64_t now = clock_now_ns();
            each.at_ns = now + (until.at_ns - now) / (found.n - i);
        }
        int result = try_address(&found, i, each, ret_fd);
        if (result == 1) return BK_YES;
        if (result == -1) {
            error_set(error, PAWL_ECANCELLED, node, "cancelled while connecting to %s", node);
            return BK_FAULT;
        }
        if (result == -2) error_set(error, PAWL_EUNREACHABLE, node, "%s does not answer (no connection in time)", node);
        else error_errno(error, PAWL_EUNREACHABLE, node, "cannot connect to %s", node);
    }
    return BK_FAULT;
}

bool resolve_is_loopback(const char *host) {
    struct in6_addr six;
    if (strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0) return true;
    return inet_pton(AF_INET6, host, &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

static void *ip_of(struct sockaddr_storage *a) {
    return a->ss_family == AF_INET ? (void *)&((struct sockaddr_in *)a)->sin_addr
                                   : (void *)&((struct sockaddr_in6 *)a)->sin6_addr;
}

void resolve_peer(int fd, char ret[64]) {
    struct sockaddr_storage there, here;
    socklen_t there_size = sizeof there, here_size = sizeof here;
    char own[INET6_ADDRSTRLEN];
    *ret = 0;
    if (getpeername(fd, (struct sockaddr *)&there, &there_size) ||
        getsockname(fd, (struct sockaddr *)&here, &here_size))
        return;
    if (there.ss_family == AF_UNIX) strcpy(ret, THIS_MACHINE);
    if (there.ss_family != AF_INET && there.ss_family != AF_INET6) return;
    if (!inet_ntop(there.ss_family, ip_of(&there), ret, 64) ||
        !inet_ntop(here.ss_family, ip_of(&here), own, sizeof own))
        return;
    if (strcmp(ret, own) == 0) strcpy(ret, THIS_MACHINE);
}
