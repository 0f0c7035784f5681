/* worker.h: a lock user in a process of its own, which does what it is told and can be stopped and killed. It takes
 * the lock with pawl, or with a plain recipe, and writes to the resource through a guard, or without. */
#ifndef LAB_WORKER_H
#define LAB_WORKER_H
#include "plain.h"
#include <stdint.h>
#include <sys/types.h>

enum worker_does {
    WORKER_TAKE,
    WORKER_CHECK, /* do I still have it? Plain recipes do not ask */
    WORKER_WRITE, /* without asking */
    WORKER_RELEASE,
    WORKER_VANISH /* the host is gone: no word to anybody, not even from the kernel */
};
struct order {
    enum worker_does does;
    int64_t wait_ms; /* of a take */
    char lock[24];   /* of a take and a write; "": the part's */
    char data[64];   /* of a write */
};
struct answer {
    int code; /* PAWL_OK, PAWL_E..., PAWL_G... */
    int64_t token, began_ns, done_ns;
    char text[400];
};
struct part {         /* what a worker is given; all strings are copied */
    const char *name; /* "A" */
    const char *url;
    const struct plain *plain; /* NULL: pawl */
    int64_t ttl_ms;
    const char *lock;
    const char *guard;     /* URL; NULL: none */
    int64_t guard_wait_ms; /* 0: as usual */
    const char *file;      /* written where there is no guard */
};
struct worker {
    char name[24];
    pid_t pid; /* 0: dead */
    int sock;
    struct worker_shared *shared;
};

void worker_start(struct worker *w, const struct part *part);
void worker_send(struct worker *w, const struct order *order);
/* false: no answer within ms, or it is dead. */
bool worker_answer(struct worker *w, int64_t ms, struct answer *ret);
/* When the worker's hold ended by itself, as far as it can know: the deadline that it last saw, or the time it learned
 * of its loss. INT64_MAX: it believes in it. */
int64_t worker_hold_end(const struct worker *w, int64_t now_ns);
void worker_signal(struct worker *w, int signal); /* SIGKILL: also reaped */
void worker_end(struct worker *w);                /* killed */
#endif
