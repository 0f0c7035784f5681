/* contract.h: one suite for every backend, through `struct backend` alone.
 *
 * A fixture says where a service is and how its time passes. A party is one client of it with one attempt: a backend
 * opened from the URL, a session, a claim, and perhaps a grant. Everything that a test made is taken down behind it. */
#ifndef PAWL_TEST_CONTRACT_H
#define PAWL_TEST_CONTRACT_H
#include "backend.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct fixture {
    const char *name, *scheme;
    /* Starts what is needed, once. The reason if this machine cannot: the suite is skipped; else NULL. */
    const char *(*start)(void);
    void (*stop)(void);
    const char *(*url)(void); /* the same for all parties of a case, a new place for the next (contract_case_number) */
    void (*pass_ms)(int64_t ms);                           /* the service's time goes on */
    const struct backend *(*wrap)(const struct backend *); /* NULL: as it is */
    void (*settle)(int waiting); /* NULL, or waits until so many waits have reached the service */
};
extern const struct fixture fixtures[]; /* ended by one without a name */

#define TTL_MS 60000

struct party {
    struct party *next;
    struct bk *bk;
    bool own_bk, hub;
    struct bk_session *session;
    struct bk_claim claim;
    struct bk_life life;
    struct bk_grant grant;
    struct bk_busy busy;
    bool held;
    int woken; /* told through the hub */
    char name[520], about[64];
};

struct suite {
    const struct fixture *fixture;
    const struct backend *backend;
    struct party *parties;
};

/* A party with a client of its own; or one more of the client of `other`. */
struct party *party_new(struct suite *, const char *name);
struct party *party_beside(struct suite *, struct party *other, const char *name);
void party_shared(struct party *);
void party_ttl(struct party *, int64_t ttl_ms);
void party_new_owner(struct party *); /* a new attempt */

/* Questions; `queue` opens the hub first. They fail the test on UNKNOWN or FAULT. */
bool party_take(struct suite *, struct party *, bool queue);
/* Queues and asks again whenever told to, or when it is time, for at most 10 s. */
bool party_await(struct suite *, struct party *);
bool party_forget(struct suite *, struct party *); /* whether anything was there */
bool party_release(struct suite *, struct party *);
bool party_renew(struct suite *, struct party *);
bool party_prove(struct suite *, struct party *);
/* How many records there are of the name; the last one's fields are copied. */
int party_records(struct suite *, struct party *, const char *name, struct bk_record *ret_last);
/* Gives the party's hub what came; waits for it until at_ns. */
void party_hear(struct suite *, struct party *, int64_t at_ns);
void party_hear_all(struct suite *);             /* until nothing more comes */
void party_gone(struct suite *, struct party *); /* ends all that it has, without a word to the service */

struct bk_until soon(void); /* 10 s from now */
struct bk *open_url(struct suite *, const char *url);

/* What a service must have to owe a case. */
enum {
    ALWAYS = 0,
    OWNERS = 1,    /* it knows the owner of a grant, so that a repeat or a forgery can be told */
    TTL = 2,       /* grants end by themselves */
    LOCK_LIFE = 4, /* each grant is renewed by itself */
    SHARED = 8,
    NOT_SHARED = 16,
    FIFO = 32,
    HUB = 64,
    DESCRIPTORS = 128, /* a grant is kept by descriptors */
    SERVERS = 256      /* it is reached over a network */
};
struct contract_case {
    const char *name;
    CMUnitTestFunction function;
    unsigned needs;
};
/* The cases, one list a file, ended by one without a name. A suite is the state of each. */
#define CASE(function, needs)                                                                                          \
    { #function, function, needs }
extern int contract_case_number;
int case_setup(void **state);
int case_teardown(void **state);
extern const struct contract_case basic_cases[], wait_cases[], limit_cases[];
extern const struct contract_case call_cases[], argument_cases[], event_cases[], process_cases[], away_cases[];
/* What this program runs: lists.c, or calls.c. */
extern const struct contract_case *const contract_lists[];
void contract_prepare(struct suite *, const char *module);
#endif
