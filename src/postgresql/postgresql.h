/* postgresql.h: what the files of the PostgreSQL backend share. Reading order: sql/, key.c, postgresql.c,
 * session.c.
 *
 * A lock is an advisory lock of one server session: it lives no longer than that connection, so a grant is pinned to
 * it, and there is no lease to renew. A claim that waits is a statement that is being executed: it has a connection of
 * its own, and the connection's socket is what wakes it. */
#ifndef POSTGRESQL_POSTGRESQL_H
#define POSTGRESQL_POSTGRESQL_H
#include "backend.h"
#include <libpq-fe.h>
#include <stdatomic.h>

#define KEY_TEXT_SIZE 520 /* the longest value of a key: a name */

enum key_mode { KEY_HASHTEXTEXTENDED, KEY_HASHTEXT, KEY_FNV1A63, KEY_JAVA31, KEY_INT8, KEY_INT4X2 };

/* Prepared once a session. x: exclusive, s: shared. */
enum statement { TRY_X, TRY_S, UNLOCK_X, UNLOCK_S, WAIT, HELD, HOLDER, N_STATEMENTS };

struct bk {
    PQconninfoOption *dsn; /* as given, without our own parameters */
    enum key_mode key;
    bool pooler;        /* ?pooler=session: the user says that a pooler keeps sessions whole */
    bool tokens, flush; /* ?token=off, ?flush=off */
    bool selftest;      /* ?selftest=on */
    atomic_bool tested;
    int max_waiters;
    int64_t ttl_ms;
    char application[64];
    atomic_int waiting; /* connections with a claim that waits */
    char *sql[N_STATEMENTS];
};

struct bk_session {
    struct bk *bk;
    PGconn *conn;
    char node[128];
    bool gone;         /* its state is not known any more: to be dropped */
    char goodbye[300]; /* why the server ended it, "" unknown */
    unsigned prepared; /* bits of statements that the server knows */
    /* What is to be done about the answer that is still to come, if nobody waits for it any more. */
    enum { OWES_NOTHING, OWES_ANSWER, OWES_PREPARED, OWES_TRY } owes;
    enum statement owed; /* which was prepared, or tried with this key */
    char owed_key[2][KEY_TEXT_SIZE];
};

/* dsn.c */
enum bk_says dsn_open(const struct url *url, struct bk **ret, pawl_error *error);
void dsn_close(struct bk *bk, bool forked);

/* key.c: the arguments of an advisory lock function for a name. */
struct key {
    const char *expression; /* of $1 and $2: "hashtextextended($1, 0)" */
    int n;                  /* 1 or 2 parameters */
    const char *values[2];
    char text[2][513];
};
/* Half of KEY_INT4X2: a number, or the hash of a word. */
#define KEY_PART(parameter)                                                                                            \
    "CASE WHEN " parameter "::text ~ '^-?[0-9]+$' THEN " parameter "::text::int4 ELSE hashtext(" parameter "::text) "  \
    "END"
bool key_of(enum key_mode mode, const char *name, size_t length, struct key *ret, pawl_error *error);
/* "key:NUMBER" and "key:CLASS/ID", as pawl ls shows a lock whose name nobody can know: the numbers. 0: it is no such
 * text, 1: NUMBER in ret[0], 2: CLASS and ID in ret[0] and ret[1]. */
int key_shown(const char *name, int64_t ret[2]);
const char *key_expression(enum key_mode mode);
bool key_mode_parse(const char *text, enum key_mode *ret);

/* statement.c: the texts, as they follow from the parameters. false: out of memory. */
bool statements_make(struct bk *bk);
void statements_free(struct bk *bk);
/* What pawl.wait does, where pawl need not be installed (?token=off): the parameters were set by WAIT. */
extern const char statement_bare_wait[];

/* session.c */
/* Two connections try, free and try again the same lock: YES, FAULT with PAWL_EUNSAFE (it only pretends to lock), or
 * what kept us from knowing. */
enum bk_says session_exclusion(struct bk_session *s, struct bk_until until, pawl_error *error);
enum bk_says session_connect(struct bk *bk, struct bk_until until, struct bk_session **ret, pawl_error *error);
/* One without settings of its own, for single statements: a pooler may stand between. */
enum bk_says session_bare(struct bk *bk, struct bk_until until, struct bk_session **ret, pawl_error *error);
/* Installs pawl.sql, in one transaction. */
enum bk_says session_init(struct bk *bk, struct bk_until until, pawl_error *error);
void session_drop(struct bk_session *session, bool forked);
int session_fds(struct bk_session *session, const struct bk_grant *grant, int *ret, int max);

/* question.c: one statement and its answer. */
/* Sends it; FAULT: surely not executed. */
enum bk_says question_send(struct bk_session *s, enum statement statement, int n, const char *const values[],
                           struct bk_until until, pawl_error *error);
/* Waits for the answer of what was sent: YES and one result (PQclear it), or UNKNOWN, or FAULT (the server refused it).
 */
enum bk_says question_answer(struct bk_session *s, struct bk_until until, PGresult **ret, pawl_error *error);
/* Takes in the answer of a question that nobody waited for, and gives back what it took. YES, or FAULT: not yet, or the
 * connection ended. */
enum bk_says question_settle(struct bk_session *s, struct bk_until until, pawl_error *error);
/* Both. */
enum bk_says question(struct bk_session *s, enum statement statement, int n, const char *const values[],
                      struct bk_until until, PGresult **ret, pawl_error *error);
/* One that is not prepared. */
enum bk_says question_once(struct bk_session *s, const char *sql, int n, const char *const values[],
                           struct bk_until until, PGresult **ret, pawl_error *error);
/* Whether it still answers, without waiting (backend.h, beat). */
enum bk_says question_beat(struct bk_session *s, pawl_error *error);
enum bk_says question_send_script(struct bk_session *s, const char *sql, struct bk_until until, pawl_error *error);
/* Several statements in one go, without parameters; the last result. */
enum bk_says question_script(struct bk_session *s, const char *sql, struct bk_until until, PGresult **ret,
                             pawl_error *error);

/* look.c */
enum bk_says look_records(struct bk_session *s, const char *name, bk_each *each, void *data, struct bk_until until,
                          pawl_error *error);
enum bk_says look_doctor(struct bk_session *s, bk_find *find, void *data, struct bk_until until,
                         pawl_error *error); /* doctor.c */
enum bk_says look_evict(struct bk_session *s, const struct bk_claim *claim, bool at_once, struct bk_until until,
                        struct bk_evicted *ret, pawl_error *error);
enum bk_says look_tokens(struct bk_session *s, bool advance, uint64_t to, struct bk_until until, struct bk_tokens *ret,
                         pawl_error *error);
enum bk_says look_prove(struct bk_session *s, const struct bk_grant *grant, struct bk_until until, pawl_error *error);
/* Who holds it: about text of the first holder, "" if nobody does. */
void look_holder(struct bk_session *s, const struct bk_claim *claim, struct bk_until until, char ret[256]);

extern const char pawl_sql[];

static inline void result_clear(PGresult **result) { PQclear(*result); }
#define AUTO_RESULT __attribute__((cleanup(result_clear))) PGresult *
#endif
