/* calls.h: the suite above the core: the calls of pawl.h, over each backend. Times are real. */
#ifndef PAWL_TEST_CALLS_H
#define PAWL_TEST_CALLS_H
#include "contract.h"
#include "pawl.h"
#include <pthread.h>

#define AWAIT_MS 10000 /* nothing here takes so long, whatever the machine is doing */

pawl_client *call_open(struct suite *); /* at the place of this case */
pawl_lock *call_acquire(pawl_client *, const char *name, int64_t wait_ms);
/* PAWL_OK or why not; the lock is released again. */
int call_try(pawl_client *, const char *name);
void call_release(pawl_lock *);
int call_entries(pawl_client *, const char *name); /* holders and waiters */
/* Holders and waiters of the name are n, soon; fails otherwise. Backends without records of waiters: only holders. */
void call_await_entries(pawl_client *, const char *name, int n);
bool call_readable(int fd, int64_t ms); /* soon */
int64_t call_now_ms(void);
int64_t call_ran_ms(void); /* for upper bounds: ran.h */

/* A thread that acquires, and waits for it. */
struct call_thread {
    pthread_t thread;
    pawl_client *client;
    const char *name;
    int64_t wait_ms;
    int cancel_fd, shared;
    int code;
    int64_t token, took_ms;
    pawl_lock *lock;
};
void call_thread_start(struct call_thread *);
void call_thread_join(struct call_thread *);
#endif
