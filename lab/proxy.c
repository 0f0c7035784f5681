#include "proxy.h"
#include "clock.h"
#include "server.h"
#include "socket_of.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define PAIRS 512
#define REQUEST 8192

struct chunk {
    struct chunk *next;
    int64_t due_ns;
    size_t size, sent;
    char data[];
};
struct stream { /* one direction of one connection */
    int from, to;
    struct chunk *first, *last;
    bool ended; /* `from` will send no more */
};
struct pair {
    int client, server; /* client -1: the slot is free; server -1: half open */
    bool shunned;
    struct stream way[2];
};
struct proxy {
    pthread_t thread;
    pthread_mutex_t mutex;
    int listener, poke_fd, port, target;
    bool stop, frozen, refuse, drop[2];
    int64_t delay_ms[2], bytes[2];
    int connections;
    pid_t shunned;
    char request[REQUEST];
    size_t request_size;
    struct pair pairs[PAIRS];
};

static void fail(const char *what) {
    fprintf(stderr, "proxy: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void poke(struct proxy *p) { eventfd_write(p->poke_fd, 1); }

static int dial(const struct proxy *p) {
    int fd = server_dial(p->target), on = 1;
    if (fd < 0) return -1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void free_chunks(struct stream *s) {
    for (struct chunk *c = s->first, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    s->first = s->last = NULL;
}

static void reset(int fd) {
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    if (fd < 0) return;
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(fd);
}

static void end_pair(struct pair *pair, bool hard) {
    free_chunks(&pair->way[0]);
    free_chunks(&pair->way[1]);
    if (hard) {
        reset(pair->client);
        reset(pair->server);
    } else {
        close(pair->client);
        if (pair->server >= 0) close(pair->server);
    }
    pair->client = pair->server = -1;
}

static void accept_one(struct proxy *p) {
    int on = 1, fd = accept4(p->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    if (p->refuse) {
        reset(fd);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    for (int i = 0; i < PAIRS; i++) {
        struct pair *pair = &p->pairs[i];
        if (pair->client >= 0) continue;
        int server = dial(p);
        if (server < 0) break;
        pair->client = fd;
        pair->server = server;
        pair->shunned = p->shunned && socket_is_of(fd, p->shunned);
        pair->way[PROXY_TO_SERVER] = (struct stream){.from = fd, .to = server};
        pair->way[PROXY_TO_CLIENT] = (struct stream){.from = server, .to = fd};
        p->connections++;
        return;
    }
    reset(fd);
}

/* false: the connection is over. */
static bool take_in(struct proxy *p, struct stream *s, enum proxy_way way) {
    char data[16384];
    ssize_t n = recv(s->from, data, sizeof data, 0);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (n == 0) {
        s->ended = true;
        return true;
    }
    p->bytes[way] += n;
    if (way == PROXY_TO_SERVER && n <= REQUEST) {
        memcpy(p->request, data, (size_t)n);
        p->request_size = (size_t)n;
    }
    if (p->drop[way]) return true;
    struct chunk *c = malloc(sizeof *c + (size_t)n);
    if (!c) fail("out of memory");
    *c = (struct chunk){.due_ns = clock_after_ms(clock_now_ns(), p->delay_ms[way]), .size = (size_t)n};
    memcpy(c->data, data, (size_t)n);
    if (s->last) s->last->next = c;
    else s->first = c;
    s->last = c;
    return true;
}

static bool give_out(struct stream *s, int64_t now) {
    while (s->first && s->first->due_ns <= now) {
        struct chunk *c = s->first;
        ssize_t n = send(s->to, c->data + c->sent, c->size - c->sent, MSG_NOSIGNAL);
        if (n < 0) return errno == EAGAIN || errno == EINTR;
        c->sent += (size_t)n;
        if (c->sent < c->size) return true;
        s->first = c->next;
        if (!s->first) s->last = NULL;
        free(c);
    }
    return !s->ended || s->first;
}

static void serve(struct proxy *p, struct pair *pair, short client_events, short server_events) {
    int64_t now = clock_now_ns();
    short events[2] = {client_events, server_events};
    if (pair->server < 0) { /* half open: what the client says vanishes, until it hangs up */
        char data[4096];
        ssize_t n = client_events ? recv(pair->client, data, sizeof data, 0) : 1;
        if (n == 0 || (n < 0 && errno != EAGAIN)) end_pair(pair, false);
        return;
    }
    for (enum proxy_way way = 0; way < 2; way++) {
        struct stream *s = &pair->way[way];
        if ((events[way] && !s->ended && !take_in(p, s, way)) || !give_out(s, now)) {
            end_pair(pair, false);
            return;
        }
    }
}

/* Fills p and returns the time when delayed bytes are due. */
static int64_t prepare(struct proxy *p, struct pollfd *fds) {
    int64_t due = INT64_MAX;
    fds[0] = (struct pollfd){.fd = p->poke_fd, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = p->listener, .events = POLLIN};
    for (int i = 0; i < PAIRS; i++) {
        struct pair *pair = &p->pairs[i];
        fds[2 + 2 * i] = fds[3 + 2 * i] = (struct pollfd){.fd = -1};
        if (pair->client < 0 || pair->shunned || p->frozen) continue;
        fds[2 + 2 * i] = (struct pollfd){.fd = pair->way[0].ended ? -1 : pair->client, .events = POLLIN};
        if (pair->server < 0) continue;
        fds[3 + 2 * i] = (struct pollfd){.fd = pair->way[1].ended ? -1 : pair->server, .events = POLLIN};
        for (int way = 0; way < 2; way++)
            if (pair->way[way].first && pair->way[way].first->due_ns < due) due = pair->way[way].first->due_ns;
    }
    return due;
}

static void *run(void *data) {
    struct proxy *p = data;
    static _Thread_local struct pollfd fds[2 + 2 * PAIRS];
    pthread_mutex_lock(&p->mutex);
    while (!p->stop) {
        eventfd_t drained;
        int64_t due = prepare(p, fds);
        pthread_mutex_unlock(&p->mutex);
        poll(fds, 2 + 2 * PAIRS, clock_poll_ms(clock_now_ns(), due));
        pthread_mutex_lock(&p->mutex);
        eventfd_read(p->poke_fd, &drained);
        for (int i = 0; i < PAIRS && !p->frozen; i++)
            if (p->pairs[i].client >= 0 && !p->pairs[i].shunned)
                serve(p, &p->pairs[i], fds[2 + 2 * i].revents, fds[3 + 2 * i].revents);
        if (fds[1].revents) accept_one(p);
    }
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

struct proxy *proxy_start(int port) {
    struct proxy *p = calloc(1, sizeof *p);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (!p) fail("out of memory");
    for (int i = 0; i < PAIRS; i++) p->pairs[i].client = p->pairs[i].server = -1;
    p->target = port;
    p->poke_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    p->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (p->poke_fd < 0 || p->listener < 0 || bind(p->listener, (struct sockaddr *)&address, size) ||
        listen(p->listener, 512) || getsockname(p->listener, (struct sockaddr *)&address, &size))
        fail("cannot listen");
    p->port = ntohs(address.sin_port);
    pthread_mutex_init(&p->mutex, NULL);
    if (pthread_create(&p->thread, NULL, run, p)) fail("no thread");
    return p;
}

void proxy_stop(struct proxy *p) {
    if (!p) return;
    pthread_mutex_lock(&p->mutex);
    p->stop = true;
    poke(p);
    pthread_mutex_unlock(&p->mutex);
    pthread_join(p->thread, NULL);
    for (int i = 0; i < PAIRS; i++)
        if (p->pairs[i].client >= 0) end_pair(&p->pairs[i], true);
    close(p->listener);
    close(p->poke_fd);
    free(p);
}

int proxy_port(const struct proxy *p) { return p->port; }

#define LOCKED(statement)                                                                                              \
    do {                                                                                                               \
        pthread_mutex_lock(&p->mutex);                                                                                 \
        statement;                                                                                                     \
        poke(p);                                                                                                       \
        pthread_mutex_unlock(&p->mutex);                                                                               \
    } while (0)

void proxy_delay(struct proxy *p, enum proxy_way way, int64_t ms) { LOCKED(p->delay_ms[way] = ms); }
void proxy_drop(struct proxy *p, enum proxy_way way, bool on) { LOCKED(p->drop[way] = on); }
void proxy_freeze(struct proxy *p, bool on) { LOCKED(p->frozen = on); }

static void shun(struct proxy *p, pid_t pid) {
    p->shunned = pid;
    for (int i = 0; i < PAIRS; i++)
        p->pairs[i].shunned = pid && p->pairs[i].client >= 0 && socket_is_of(p->pairs[i].client, pid);
}

static void half_open(struct proxy *p) {
    for (int i = 0; i < PAIRS; i++) {
        struct pair *pair = &p->pairs[i];
        if (pair->client < 0 || pair->server < 0) continue;
        free_chunks(&pair->way[0]);
        free_chunks(&pair->way[1]);
        close(pair->server);
        pair->server = -1;
    }
}

static void cut(struct proxy *p, bool refuse) {
    p->refuse = refuse;
    for (int i = 0; i < PAIRS; i++)
        if (p->pairs[i].client >= 0) end_pair(&p->pairs[i], true);
}

void proxy_shun(struct proxy *p, pid_t pid) { LOCKED(shun(p, pid)); }
void proxy_half_open(struct proxy *p) { LOCKED(half_open(p)); }
void proxy_cut(struct proxy *p, bool refuse) { LOCKED(cut(p, refuse)); }

bool proxy_replay(struct proxy *p) {
    char request[REQUEST], reply[4096];
    pthread_mutex_lock(&p->mutex);
    size_t size = p->request_size;
    memcpy(request, p->request, size);
    pthread_mutex_unlock(&p->mutex);
    int fd = size ? server_dial(p->target) : -1;
    if (fd < 0) return false;
    bool done = send(fd, request, size, MSG_NOSIGNAL) == (ssize_t)size && recv(fd, reply, sizeof reply, 0) > 0;
    close(fd);
    return done;
}

int64_t proxy_bytes(struct proxy *p, enum proxy_way way) {
    int64_t n;
    LOCKED(n = p->bytes[way]);
    return n;
}

int proxy_connections(struct proxy *p) {
    int n;
    LOCKED(n = p->connections);
    return n;
}
