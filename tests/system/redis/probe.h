/* probe.h: one holder that drives the Redis backend directly, so that a test sees each answer as the core would.
 */
#ifndef TESTS_PROBE_H
#define TESTS_PROBE_H
#include "backend.h"
#include "server.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct probe {
    struct bk *bk;
    struct bk_session *session;
    char name[64], about[64];
    struct bk_claim claim;
    struct bk_grant grant;
    struct bk_life life;
    struct bk_busy busy;
    pawl_error error; /* of the last question */
};

extern const struct backend *probe_backend;
struct bk_until probe_soon(int ms);

/* Opens the URL (printf form); connects nothing. */
void probe_open(struct probe *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
enum bk_says probe_connect(struct probe *p);
/* Both, and must succeed. */
void probe_ready(struct probe *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The next attempt is for this name, with a fresh owner value. */
void probe_name(struct probe *p, const char *name);
enum bk_says probe_take(struct probe *p, bool queue);
enum bk_says probe_renew(struct probe *p);
enum bk_says probe_release(struct probe *p);
enum bk_says probe_forget(struct probe *p);
void probe_drop(struct probe *p); /* the session only */
void probe_close(struct probe *p);
#endif
