/* pawl_guard.h: the resource's side of a fencing token.
 *
 * A guard keeps, beside the data of a resource, the highest token that wrote it, and refuses a lower one: a holder that
 * lost its lock without knowing can do no harm. Each call is one atomic, durable step: after a crash the record is the
 * old one or the new one, and an accepted write is never lost. docs/FENCING.md tells what a guard does and what it does
 * not.
 *
 * Knows resources and tokens, nothing of locks. A call returns PAWL_OK, a refusal (PAWL_G...: nothing was changed), or
 * a PAWL_E... code of pawl.h: the step did not happen, or, for PAWL_EUNREACHABLE alone, may have happened. A handle is
 * used by one thread at a time, in one process (not in a child after its first use); open one for each. The library
 * prints nothing and reads no environment. */
#ifndef PAWL_GUARD_H
#define PAWL_GUARD_H
#include "pawl.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef struct pawl_guard pawl_guard; /* one set of resources, by its URL (docs/FENCING.md) */

enum {                    /* refusals; never renumbered */
       PAWL_GSTALE = 101, /* a later holder was here: whoever wrote this lost the lock */
       PAWL_GWRONGLOCK,   /* the resource belongs to another lock, whose tokens say nothing about this one's */
       PAWL_GDAMAGED,     /* no holder can have this token: more than a day above the last one and the guard's clock */
       PAWL_GNORECORD,    /* nothing was ever written or sealed under this name */
       PAWL_GNOTOKEN      /* the writer brought none */
};

enum {                    /* when a token is new enough; a property of the resource, fixed by its first write or seal */
       PAWL_RULE_DEFAULT, /* the set's (pawl_guard_install), which is ge unless installed otherwise */
       PAWL_RULE_GE,      /* token >= last: the holder may write again */
       PAWL_RULE_GT,      /* one write a grant */
       PAWL_RULE_SEQ      /* token > last, or the same token with a higher seq: a repeated request is refused */
};

#define PAWL_GUARD_ACCEPT_JUMP 1u /* do not refuse a token as damaged */

typedef struct {
    size_t size;
    int64_t wait_ms; /* at most, for other writers of the same resource */
    const char *by;  /* who writes, when a write does not say; NULL: "command (pid 4711, ana@web1)" of this process */
} pawl_guard_options;
#define PAWL_GUARD_OPTIONS_INIT                                                                                        \
    { sizeof(pawl_guard_options), 10000, NULL }

typedef struct {
    size_t size;
    const char *resource; /* 1 to 512 bytes of UTF-8, as the lock's name */
    const char *lock;
    int64_t token;  /* of the lock, 1 .. 2^53-1; 0: none */
    const char *by; /* the worker, at most 255 bytes, for the next one's refusal; NULL: the handle's */
    int64_t seq;    /* rule seq: 1 .. ; else 0 */
    int rule;       /* PAWL_RULE_DEFAULT: whatever the resource has */
    unsigned flags;
    const char *service; /* scheme of the lock's service, "redis", for the words of a refusal; NULL: not told */
} pawl_guard_write;
#define PAWL_GUARD_WRITE_INIT                                                                                          \
    { sizeof(pawl_guard_write), NULL, NULL, 0, NULL, 0, PAWL_RULE_DEFAULT, 0, NULL }

typedef struct {
    const char *by, *why;
    int64_t from, to, at_ms;
} pawl_guard_reset_entry;

typedef struct {
    const char *resource, *lock, *by; /* by: who wrote or sealed last */
    int64_t token, seq, at_ms;        /* at_ms: wall clock, milliseconds since 1970 */
    int rule;
    int written; /* zero: sealed, never written; there is no data */
    const void *data;
    size_t length;
    const pawl_guard_reset_entry *resets; /* oldest first */
    size_t n_resets;
    const char *service; /* of the lock that wrote or sealed last; "" not told */
} pawl_guard_record;

/* Opens nothing yet; PAWL_EINVALID, or PAWL_EUNSUPPORTED when this build lacks the kind. */
int pawl_guard_open(const char *url, const pawl_guard_options *options, pawl_guard **ret_guard, pawl_error *error);
void pawl_guard_close(pawl_guard *guard); /* NULL is allowed */

/* Prepares the set and fixes the rule for resources to come. Again with another rule: PAWL_EINVALID. Optional: without
 * it a set is prepared by its first write, with ge; but postgresql: needs it, or pawl_init. */
int pawl_guard_install(pawl_guard *guard, int rule, pawl_error *error);
/* What an install does, as a text for the service's own tools; NULL: not a database. Lives as long as the handle. */
const char *pawl_guard_install_text(pawl_guard *guard);
/* postgresql: only, after an install: each INSERT, UPDATE and DELETE of the table wants a current token, told by SET
 * LOCAL pawl.lock and pawl.token, of the resource that the row stands for: `expression`, SQL over the row's columns;
 * NULL: "TABLE:" and the primary key. Stops programs that forgot, not a role that makes up a token. Again: as it is
 * said now. */
int pawl_guard_protect(pawl_guard *guard, const char *table, const char *expression, pawl_error *error);
/* Replaces the data, if the token is new enough. A refusal's text names both workers and both tokens. */
int pawl_guard_put(pawl_guard *guard, const pawl_guard_write *write, const void *data, size_t length,
                   pawl_error *error);
/* Raises the mark without a write: from now on nobody with a lower token gets in, though the new holder has not written
 * yet. A repeat with the same token is accepted under each rule. */
int pawl_guard_seal(pawl_guard *guard, const pawl_guard_write *write, pawl_error *error);
/* Writes nothing, but raises the mark and keeps every other writer of the resource out until pawl_guard_leave: for a
 * resource that is changed by other means. One at a time for each handle; nothing else may be called in between.
 * PAWL_EUNSUPPORTED: redis:, postgresql: and etcd:, which cannot know whether we are still at it. */
int pawl_guard_enter(pawl_guard *guard, const pawl_guard_write *write, pawl_error *error);
void pawl_guard_leave(pawl_guard *guard);
/* After pawl_guard_enter: a descriptor whose duplicates keep others out after this process died; -1 where there is
 * none. */
int pawl_guard_fd(pawl_guard *guard);
/* Free with pawl_guard_free. */
int pawl_guard_get(pawl_guard *guard, const char *resource, pawl_guard_record **ret_record, pawl_error *error);
void pawl_guard_free(pawl_guard_record *record); /* NULL is allowed */
/* Sets the mark, lower or higher, after tokens were lost for good. Data, lock and rule stay; the reset is kept in the
 * record with who and why (1 to 255 bytes). */
int pawl_guard_reset(pawl_guard *guard, const char *resource, int64_t to, const char *by, const char *why,
                     pawl_error *error);

const char *pawl_guard_rule_name(int rule); /* "ge"; NULL: no such rule */
void pawl_guard_options_init(pawl_guard_options *options, size_t size);
void pawl_guard_write_init(pawl_guard_write *write, size_t size);

#ifdef __cplusplus
}
#endif
#endif
