#include "worker.h"
#include "clock.h"
#include "pawl_guard.h"
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Written by a thread of the worker, and still there when it is stopped or dead. */
struct worker_shared {
    _Atomic int64_t deadline_ns; /* last one seen; 0: no hold, or one without a deadline */
    _Atomic int64_t lost_ns;     /* 0: not lost, as far as it knows */
};

/* --- inside the worker --- */

static struct {
    const struct part *part;
    struct worker_shared *shared;
    pthread_mutex_t mutex; /* around lock: the watching thread looks at it */
    pawl_client *client;
    pawl_lock *lock;
    void *plain;
    int64_t token;
} me = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void *watch_deadline(void *unused) {
    for (;; poll(NULL, 0, 4)) {
        pthread_mutex_lock(&me.mutex);
        int64_t now = clock_now_ns(), left = me.lock ? pawl_remaining_ms(me.lock) : 0;
        int64_t deadline = atomic_load(&me.shared->deadline_ns);
        if (me.lock && !atomic_load(&me.shared->lost_ns)) {
            if (pawl_check(me.lock) != PAWL_OK)
                atomic_store(&me.shared->lost_ns, deadline && deadline < now ? deadline : now);
            else if (left != PAWL_FOREVER && left > 0) atomic_store(&me.shared->deadline_ns, now + left * NS_PER_MS);
        }
        pthread_mutex_unlock(&me.mutex);
    }
    return unused;
}

static int give_back(pawl_error *error) {
    pthread_mutex_lock(&me.mutex);
    pawl_lock *lock = me.lock;
    me.lock = NULL;
    atomic_store(&me.shared->deadline_ns, 0);
    atomic_store(&me.shared->lost_ns, 0);
    pthread_mutex_unlock(&me.mutex);
    if (me.part->plain) return me.plain ? me.part->plain->release(me.plain, error) : PAWL_OK;
    return lock ? pawl_release(lock, 2000, error) : PAWL_OK;
}

static const char *lock_of(const struct order *order) { return *order->lock ? order->lock : me.part->lock; }

static int take_with_pawl(const struct order *order, pawl_error *error) {
    pawl_options options = PAWL_OPTIONS_INIT;
    pawl_acquire_options how = PAWL_ACQUIRE_INIT;
    pawl_lock *lock;
    int code = PAWL_OK;
    options.ttl_ms = me.part->ttl_ms;
    options.label = me.part->name;
    how.wait_ms = order->wait_ms;
    if (me.lock) give_back(NULL);
    if (!me.client) code = pawl_open(me.part->url, &options, &me.client, error);
    if (code == PAWL_OK) code = pawl_acquire(me.client, lock_of(order), &how, &lock, error);
    if (code) return code;
    int64_t left = pawl_remaining_ms(lock);
    me.token = pawl_token(lock);
    pthread_mutex_lock(&me.mutex);
    me.lock = lock;
    if (left != PAWL_FOREVER) atomic_store(&me.shared->deadline_ns, clock_now_ns() + left * NS_PER_MS);
    pthread_mutex_unlock(&me.mutex);
    return PAWL_OK;
}

static int take(const struct order *order, pawl_error *error) {
    const struct plain *plain = me.part->plain;
    int code = PAWL_OK;
    if (!plain) return take_with_pawl(order, error);
    if (!me.plain) code = plain->open(me.part->url, me.part->ttl_ms, &me.plain, error);
    return code ? code : plain->take(me.plain, lock_of(order), order->wait_ms, &me.token, error);
}

static int write_resource(const struct order *order, pawl_error *error) {
    const char *data = order->data;
    const struct part *p = me.part;
    if (!p->guard) {
        int fd = open(p->file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        bool good = fd >= 0 && write(fd, data, strlen(data)) == (ssize_t)strlen(data);
        if (!good) snprintf(error->text, sizeof error->text, "cannot write %s: %s", p->file, strerror(errno));
        if (fd >= 0) close(fd);
        return good ? PAWL_OK : PAWL_EINTERNAL;
    }
    pawl_guard *guard;
    pawl_guard_write write = PAWL_GUARD_WRITE_INIT;
    pawl_guard_options options = PAWL_GUARD_OPTIONS_INIT;
    if (p->guard_wait_ms) options.wait_ms = p->guard_wait_ms;
    int code = pawl_guard_open(p->guard, &options, &guard, error);
    if (code) return code;
    write.resource = *order->lock ? order->lock : "resource";
    write.lock = lock_of(order);
    write.token = me.token;
    write.by = p->name;
    write.flags = p->plain ? PAWL_GUARD_ACCEPT_JUMP : 0; /* a recipe's numbers are its own */
    code = pawl_guard_put(guard, &write, data, strlen(data), error);
    pawl_guard_close(guard);
    return code;
}

/* Closed in this mode a socket says nothing, as if the cable had been cut and the host burnt. */
static int vanish(pawl_error *error) {
    int on = 1, sockets = 0;
    for (int fd = 3; fd < 256; fd++)
        if (setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &on, sizeof on) == 0) sockets++;
        else if (errno == EPERM) {
            snprintf(error->text, sizeof error->text, "TCP_REPAIR needs CAP_NET_ADMIN");
            return PAWL_EUNSUPPORTED;
        }
    if (sockets) _exit(0);
    snprintf(error->text, sizeof error->text, "it has no connection");
    return PAWL_EINTERNAL;
}

static int perform(const struct order *order, pawl_error *error) {
    switch (order->does) {
    case WORKER_TAKE: return take(order, error);
    case WORKER_CHECK: return me.lock ? pawl_check(me.lock) : PAWL_OK;
    case WORKER_WRITE: return write_resource(order, error);
    case WORKER_RELEASE: return give_back(error);
    case WORKER_VANISH: return vanish(error);
    }
    return PAWL_EINVALID;
}

static _Noreturn void worker_main(const struct worker *w, const struct part *part, pid_t parent) {
    struct order order;
    pthread_t thread;
    unsigned sock = (unsigned)w->sock; /* the sockets of proxies and other workers must not live on here */
    if (sock > 3) close_range(3, sock - 1, 0);
    close_range(sock + 1, ~0U, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    signal(SIGTERM, SIG_DFL);
    me.part = part;
    me.shared = w->shared;
    if (!part->plain && pthread_create(&thread, NULL, watch_deadline, NULL)) _exit(1);
    while (recv(w->sock, &order, sizeof order, 0) == (ssize_t)sizeof order) {
        pawl_error error = PAWL_ERROR_INIT;
        struct answer answer = {.began_ns = clock_now_ns()};
        answer.code = perform(&order, &error);
        answer.done_ns = clock_now_ns();
        answer.token = me.token;
        snprintf(answer.text, sizeof answer.text, "%.399s", error.text);
        if (send(w->sock, &answer, sizeof answer, MSG_NOSIGNAL) < 0) break;
    }
    _exit(0);
}

/* --- outside --- */

static void fail(const char *what) {
    fprintf(stderr, "pawl-lab: cannot start a worker: %s: %s\n", what, strerror(errno));
    exit(1);
}

void worker_start(struct worker *w, const struct part *part) {
    int pair[2];
    *w = (struct worker){.sock = -1};
    snprintf(w->name, sizeof w->name, "%s", part->name);
    w->shared = mmap(NULL, sizeof *w->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (w->shared == MAP_FAILED) fail("mmap");
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) fail("socketpair");
    pid_t parent = getpid();
    fflush(NULL);
    w->pid = fork();
    if (w->pid < 0) fail("fork");
    w->sock = pair[w->pid == 0];
    close(pair[w->pid != 0]);
    if (w->pid == 0) worker_main(w, part, parent);
}

void worker_send(struct worker *w, const struct order *order) {
    if (w->pid) send(w->sock, order, sizeof *order, MSG_NOSIGNAL);
}

bool worker_answer(struct worker *w, int64_t ms, struct answer *ret) {
    if (clock_wait_fd(w->sock, POLLIN, clock_after_ms(clock_now_ns(), ms), -1) != 1) return false;
    return recv(w->sock, ret, sizeof *ret, MSG_DONTWAIT) == (ssize_t)sizeof *ret;
}

int64_t worker_hold_end(const struct worker *w, int64_t now_ns) {
    int64_t lost = atomic_load(&w->shared->lost_ns), deadline = atomic_load(&w->shared->deadline_ns);
    if (lost) return lost;
    return deadline && deadline < now_ns ? deadline : INT64_MAX;
}

void worker_signal(struct worker *w, int signal) {
    if (!w->pid) return;
    kill(w->pid, signal);
    if (signal != SIGKILL) return;
    waitpid(w->pid, NULL, 0);
    w->pid = 0;
}

void worker_end(struct worker *w) {
    worker_signal(w, SIGKILL);
    if (w->sock > 0) close(w->sock);
    if (w->shared) munmap(w->shared, sizeof *w->shared);
    *w = (struct worker){.sock = -1};
}
