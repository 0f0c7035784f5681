/* guard_subject.h: what pawl guard test puts to the test: a guard of this build by its URL, or anybody's by a program.
 *
 * The program's protocol, one process a question; DATA is on stdin, results are on stdout:
 *
 *   PROGRAM put RESOURCE LOCK TOKEN BY [accept-jump] < DATA
 *   PROGRAM seal RESOURCE LOCK TOKEN BY
 *   PROGRAM get RESOURCE                  prints the token, the lock and the writer, each on a line, then the data
 *   PROGRAM reset RESOURCE TO BY WHY
 *   PROGRAM audit RESOURCE                prints a line for each reset, with the words FROM TO BY WHY in it
 *
 * Exit: 0 done; 121 stale; 1 no such record; 119 refused otherwise, with the first word on stdout: wrong-lock, damaged
 * or no-token. TOKEN may be empty: none. */
#ifndef PAWL_CLI_GUARD_SUBJECT_H
#define PAWL_CLI_GUARD_SUBJECT_H
#include "guard.h"

enum answer {
    ACCEPTED,
    STALE,
    WRONG_LOCK,
    DAMAGED,
    NO_TOKEN,
    NO_RECORD,
    BROKEN,
    AWAY /* a service that does not answer */
};

struct subject {
    char *const *program; /* with its first arguments, ended by NULL; NULL: */
    const char *url;
    char broken[512]; /* what happened at the last BROKEN, or AWAY */
    bool away;        /* one was AWAY: nothing can be said of this guard */
};

struct question {
    const char *resource, *lock, *by, *data;
    int64_t token;
    size_t length;
    bool accept_jump;
    int rule; /* a URL's only */
    int64_t seq;
};

struct reply { /* of get and audit; to be freed by reply_free */
    char *token, *lock, *by, *data;
    size_t length;
    char *block;
};

const char *answer_name(enum answer answer);
enum answer subject_put(struct subject *subject, const struct question *question);
enum answer subject_seal(struct subject *subject, const struct question *question);
enum answer subject_get(struct subject *subject, const char *resource, struct reply *ret);
enum answer subject_reset(struct subject *subject, const char *resource, int64_t to, const char *by, const char *why);
/* ret->data: the lines. */
enum answer subject_audit(struct subject *subject, const char *resource, struct reply *ret);
void reply_free(struct reply *reply);
/* A directory is tested in a folder of its own, which goes afterwards: records cannot be taken out of a guard. */
struct scratch {
    char *parent, *folder, *url; /* NULL: none is needed */
    bool made_parent;
};

/* 0, or the exit code and the reason was printed; scratch_remove is due in both cases. */
int scratch_make(const char *url, struct scratch *ret);
void scratch_remove(struct scratch *scratch);
#endif
