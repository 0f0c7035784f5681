/* stage.h: where one variant of a scenario is played, in a process of its own: servers, proxies, workers, and the
 * record of what happens. Whatever a scenario does goes through here, so that it is recorded and ended with the stage.
 *
 * A scenario is one file in scenarios/ with one struct scenario and a line in scenarios.c. Its play is told once and
 * runs three times: the stage gives each worker the plain recipe or pawl, and the resource a guard or none. What cannot
 * go on (a server that does not start, a worker that does not answer in time) ends the stage as failed. */
#ifndef LAB_STAGE_H
#define LAB_STAGE_H
#include "plain.h"
#include "proxy.h"
#include "server.h"
#include "skew.h"
#include "story.h"
#include "worker.h"

struct stage;

struct scenario {
    const char *name, *title;
    const char *happens, *believed, *truth; /* a sentence or two each */
    const char *service;                    /* redis, redlock, postgresql, etcd, file */
    const char *needs;                      /* programs, separated by spaces */
    const struct plain *plain;
    const char *plain_does;         /* where it is not plain->does */
    bool plain_is_checked;          /* the plain resource compares the recipe's own tokens */
    bool plain_breaks, pawl_breaks; /* what theory says; guarded never does */
    bool quick;                     /* in the short set of ./check */
    void (*play)(struct stage *s);
};
extern const struct scenario *const scenarios[]; /* ends with NULL */
const struct scenario *scenario_find(const char *name);
const char *scenario_recipe(const struct scenario *scenario); /* what its plain variant does */

/* Plays; never returns NULL. In a process that is exited afterwards: its servers are children of the caller. */
void stage_play(const struct scenario *scenario, enum variant variant, struct story *ret);
/* For the test of the lab: a guard that checks nothing ("open-guard"), tokens that fall ("old-token"), a torture of the
 * plain lock ("plain"), when PAWL_LAB_PLANT names it. */
bool stage_planted(const char *what);

/* --- for scenarios --- */

enum variant stage_variant(const struct stage *s);
bool stage_has_pawl(const struct stage *s);

/* The ttl of every lock taken from now on; 2000 ms if not said. */
void stage_ttl(struct stage *s, int64_t ms);
struct server *stage_server(struct stage *s); /* zeroed; to be started by server_start_... */
struct proxy *stage_proxy(struct stage *s, int port);
/* Where pawl needs it (postgresql, redlock): pawl init. */
void stage_init(struct stage *s, const char *url);
const char *stage_dir(const struct stage *s); /* a temporary directory */
const char *stage_pawl(void);                 /* the command: $PAWL_BIN, beside this program, or in PATH */
/* A name for the picture: "redis 1". Of servers, proxies and the like. */
void stage_fault(struct stage *s, const char *what, const char *format, ...) __attribute__((format(printf, 3, 4)));
void stage_fault_over(struct stage *s, const char *what, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* One line of the steps. */
void stage_say(struct stage *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
void stage_wait(struct stage *s, int64_t ms); /* lets time pass, as the scenario says it does */
/* A break that neither overlap nor token shows. */
void stage_broke(struct stage *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
_Noreturn void stage_fail(struct stage *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
_Noreturn void stage_skip(struct stage *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Waits until condition(data), else fails with `what`. */
void stage_until(struct stage *s, bool (*condition)(void *), void *data, int ms, const char *what);
struct story *stage_story(struct stage *s);

/* A worker; url is where it finds the lock. */
struct worker *stage_worker(struct stage *s, const char *name, const char *url);
bool worker_try(struct stage *s, struct worker *w);                   /* once; true: has it */
bool worker_take(struct stage *s, struct worker *w, int64_t wait_ms); /* waits; true: has it */
void worker_must_take(struct stage *s, struct worker *w, int64_t wait_ms);
void worker_take_start(struct stage *s, struct worker *w, int64_t wait_ms);
bool worker_take_end(struct stage *s, struct worker *w); /* of the take just begun */
/* Asks itself first, if it uses pawl without a guard: careful users do. False: it knew that it had lost the lock, or
 * was refused. */
bool worker_write(struct stage *s, struct worker *w);
/* Does not ask: it asked before, and was interrupted between question and write. */
bool worker_write_late(struct stage *s, struct worker *w);
void worker_release(struct stage *s, struct worker *w);
void worker_pause(struct stage *s, struct worker *w); /* SIGSTOP: a long collection, a paused machine, a swap storm */
void worker_resume(struct stage *s, struct worker *w);
void worker_kill(struct stage *s, struct worker *w);
void worker_vanish(struct stage *s, struct worker *w);
#endif
