/* guard.h: the contract between the guard API and a kind of guard (dir, sqlite, ...).
 *
 * A kind stores records and makes a step atomic and durable; it decides nothing. The decision is one pure function,
 * guard_judge, so that every kind has the same rules. A step is: begin (locks the resource, reads its mark), judge,
 * commit (replaces the record, durably), end (unlocks; undoes what was not committed). A service that cannot be kept
 * locked while we think has `ask` instead: the whole step at once. */
#ifndef PAWL_GUARD_KIND_H
#define PAWL_GUARD_KIND_H
#include "error.h"
#include "pawl_guard.h"
#include "url.h"
#include <stdbool.h>

#define GUARD_NAME_MAX 512
#define GUARD_BY_MAX 255
#define GUARD_SERVICE_MAX 31

/* The mark of a resource: its record without the data. */
struct guard_mark {
    int rule;     /* PAWL_RULE_DEFAULT: there is no record */
    bool used;    /* written under this very token (rule gt: no second time) */
    bool written; /* has data */
    uint64_t token, seq;
    int64_t at_us; /* wall clock */
    char lock[GUARD_NAME_MAX + 1], by[GUARD_BY_MAX + 1];
    char service[GUARD_SERVICE_MAX + 1]; /* scheme of the lock's service; "" unknown */
};

struct guard_store; /* one URL, opened */

struct guard_step {
    const char *resource;
    int64_t until_ns; /* CLOCK_BOOTTIME */
};
struct guard_found {
    struct guard_mark mark;
    int set_rule;   /* of the set; PAWL_RULE_DEFAULT: not installed */
    int64_t now_us; /* the guard's clock */
    bool judged;    /* ask: what was returned is a judgement over this mark */
    bool lapsed;    /* ask: stale because the service says that the lock is not held any more */
};
struct guard_change {
    const struct guard_mark *mark;
    const void *data; /* NULL: the data stays as it is */
    size_t length;
    const pawl_guard_reset_entry *reset; /* added to the record; NULL: none */
};

enum guard_intent { GUARD_SEAL, GUARD_WRITE, GUARD_RESET };
struct guard_claim {
    const char *lock;
    int64_t token, seq;
    int rule;
    bool accept_jump;
    const char *service; /* scheme; NULL: unknown */
};
struct guard_ask {
    enum guard_intent intent;
    struct guard_claim claim; /* of a reset: the token only */
    const char *by, *why;     /* why: of a reset */
    const void *data;         /* of a write */
    size_t length;
};

struct guard_kind {
    const char *scheme;
    int (*open)(const struct url *, struct guard_store **ret, pawl_error *); /* no I/O */
    void (*close)(struct guard_store *);
    int (*begin)(struct guard_store *, const struct guard_step *, struct guard_found *ret, pawl_error *);
    int (*commit)(struct guard_store *, const struct guard_change *, pawl_error *);
    void (*end)(struct guard_store *);
    int (*fd)(struct guard_store *); /* see pawl_guard_fd */
    /* In place of these four, which are NULL then: PAWL_OK; with ret->judged what guard_judge says; PAWL_GNORECORD of a
     * reset; or another code, with its error. Nothing can be entered. */
    int (*ask)(struct guard_store *, const struct guard_step *, const struct guard_ask *, struct guard_found *ret,
               pawl_error *);
    /* The whole record, without a lock; PAWL_GNORECORD. One block of memory for free(3): guard_record_make. */
    int (*read)(struct guard_store *, const struct guard_step *, pawl_guard_record **ret, pawl_error *);
    int (*install)(struct guard_store *, int rule, int64_t until_ns, pawl_error *); /* rule ge, gt or seq; durable */
    /* NULL but for databases: see pawl_guard_protect and pawl_guard_install_text. */
    int (*protect)(struct guard_store *, const char *table, const char *expression, int64_t until_ns, pawl_error *);
    const char *install_text;
};

/* A module exports one table under this name, and pawl_backend_abi (module.h). */
#define GUARD_KIND_SYMBOL "pawl_guard_kind"

/* Builds a record in one block; data and the texts of resets are copied. NULL: out of memory. */
pawl_guard_record *guard_record_make(const char *resource, const struct guard_mark *mark, const void *data,
                                     size_t length, const pawl_guard_reset_entry *resets, size_t n_resets);
const char *guard_rule_name(int rule); /* "ge"; NULL: no such rule */
/* PAWL_RULE_...; PAWL_RULE_DEFAULT: no rule has this name. */
int guard_rule_by_name(const char *name);

/* --- the decision, pure --- */

/* PAWL_OK with what the mark becomes (by is left to the caller), PAWL_G..., or PAWL_EINVALID: the rule is another, or
 * seq does not go with it. */
int guard_judge(const struct guard_found *found, const struct guard_claim *claim, enum guard_intent intent,
                struct guard_mark *ret);
/* What a mark becomes by a reset, and the entry to keep, which refers to by and why. */
void guard_reset_mark(const struct guard_found *found, int64_t to, const char *by, const char *why,
                      struct guard_mark *ret, pawl_guard_reset_entry *ret_entry);
#endif
