/* guard.h: the contract between the guard API and a kind of guard (dir, sqlite, ...).
 *
 * A kind stores records and makes a step atomic and durable; it decides nothing. The decision is one pure function,
 * guard_judge, so that every kind has the same rules. A step is: begin (locks the resource, reads its mark), judge,
 * commit (replaces the record, durably), end (unlocks; undoes what was not committed). */
#ifndef PAWL_GUARD_KIND_H
#define PAWL_GUARD_KIND_H
#include "error.h"
#include "pawl_guard.h"
#include "url.h"
#include <stdbool.h>

#define GUARD_NAME_MAX 512
#define GUARD_BY_MAX 255

/* The mark of a resource: its record without the data. */
struct guard_mark {
    int rule;     /* PAWL_RULE_DEFAULT: there is no record */
    bool used;    /* written under this very token (rule gt: no second time) */
    bool written; /* has data */
    uint64_t token, seq;
    int64_t at_us; /* wall clock */
    char lock[GUARD_NAME_MAX + 1], by[GUARD_BY_MAX + 1];
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
};
struct guard_change {
    const struct guard_mark *mark;
    const void *data; /* NULL: the data stays as it is */
    size_t length;
    const pawl_guard_reset_entry *reset; /* added to the record; NULL: none */
};

struct guard_kind {
    const char *scheme;
    int (*open)(const struct url *, struct guard_store **ret, pawl_error *); /* no I/O */
    void (*close)(struct guard_store *);
    int (*begin)(struct guard_store *, const struct guard_step *, struct guard_found *ret, pawl_error *);
    int (*commit)(struct guard_store *, const struct guard_change *, pawl_error *);
    void (*end)(struct guard_store *);
    int (*fd)(struct guard_store *); /* see pawl_guard_fd */
    /* The whole record, without a lock; PAWL_GNORECORD. One block of memory for free(3): guard_record_make. */
    int (*read)(struct guard_store *, const struct guard_step *, pawl_guard_record **ret, pawl_error *);
    int (*install)(struct guard_store *, int rule, int64_t until_ns, pawl_error *); /* rule ge, gt or seq; durable */
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

enum guard_intent { GUARD_SEAL, GUARD_WRITE };
struct guard_claim {
    const char *lock;
    int64_t token, seq;
    int rule;
    bool accept_jump;
};
/* PAWL_OK with what the mark becomes (by is left to the caller), PAWL_G..., or PAWL_EINVALID: the rule is another, or
 * seq does not go with it. */
int guard_judge(const struct guard_found *found, const struct guard_claim *claim, enum guard_intent intent,
                struct guard_mark *ret);
#endif
