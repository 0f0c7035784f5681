/* client.h: the inside of the core, shared by its files and by nobody else.
 *
 * One mutex a client guards everything here that is not marked otherwise; it is never held during a question to the
 * service. A pawl_lock is worked on by one party at a time (the calling thread, or the keeper); others only wake it,
 * mark it, or read its deadline. Functions named *_locked want the mutex. */
#ifndef PAWL_CLIENT_H
#define PAWL_CLIENT_H
#include "about.h"
#include "backend.h"
#include "heap.h"
#include "lease.h"
#include "map.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/types.h>

#define NAME_MAX_BYTES 512
#define QUESTION_MS 5000        /* the longest that one question of a caller may take */
#define LOSSES_AT_ONCE 64       /* while one holds the mutex */
#define KEEPER_QUESTION_MS 1000 /* the same for the keeper, who has others to look after */
/* Questions of one client under way at once; more wait for a session. Claims that wait in their own do not count. */
#define SESSIONS_MAX 8

#define container_of(pointer, type, member) ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

struct session {
    struct bk_session *bk;
    bool busy;  /* lent to somebody, or waiting for a claim (claim.pin) */
    bool fresh; /* connected for this very question: its trouble is the service's */
    bool dead;  /* to be dropped when nobody uses it */
    bool waits; /* busy for as long as a claim waits in it */
    int wanted; /* parties that wait for this very session: they come first */
    bool doubt; /* a question ended without an answer, and it holds grants: its next beat decides */
    int holds;  /* session-bound grants on it */
    int64_t idle_since_ns;
    int64_t beat_ns, asked_ns; /* when to ask whether it still answers; since when the answer is due, 0: it is not */
    struct session *next;
};

enum lock_state {
    LOCK_PENDING, /* an attempt is under way */
    LOCK_HELD,
    LOCK_LOST,   /* waits for its release by the user */
    LOCK_FAILED, /* event form: the same */
    LOCK_ENDING  /* the user let go; the keeper (or the caller in pawl_release) frees it at the service */
};

struct name; /* names.c */

struct pawl_lock { /* a program may hold many: ordered so that nothing is padded */
    pawl_client *client;
    enum lock_state state;
    int refs; /* the user, or who ends it: 1; the keeper while it works on it: 1 */
    bool event_form, is_try, linked;
    bool in_keeper;       /* the keeper is asking for it: others leave it to him */
    bool keeps_session;   /* the claim waits in session: it stays lent to this lock */
    atomic_bool granted;  /* grant is to be released, and ended */
    bool given_back;      /* grant was released: ended with the lock, for a renewal under way may read it */
    atomic_bool admitted; /* it is its turn among the locks of this process (names.c) */
    atomic_bool woken;
    void *user;
    pawl_lock *next, *previous; /* all locks of the client */

    struct bk_claim claim;
    struct bk_grant grant;
    struct lease own_lease, *lease; /* lease: NULL before the first question and after the end */
    struct session *session;        /* session-bound: where the grant, or the waiting claim, lives */
    int64_t max_hold_ms;
    _Atomic int64_t max_until_ns; /* INT64_MIN: lost */

    /* the attempt */
    int64_t began_ns, give_up_ns, ask_at_ns, last_sent_ns, backoff_ms;
    int64_t undo_since_ns;      /* the first of the undo_tries */
    int64_t in_flight_until_ns; /* a question ended unknown: until then it may still reach the service */
    char *holder;               /* last known, for messages */
    int undo_tries;
    int fruitless, late_grants; /* questions without an answer in a row; grants that came too late */
    int64_t late_ms;            /* so long the last of those took */
    int cancel_fd;              /* blocking form: the caller's */
    int wake_fd, backend_fd;    /* blocking form: eventfd, made when it must wait; busy.wake_fd of the last answer */
    bool contact;               /* the service has answered this attempt */
    bool unanswered;            /* the last question was not: who held it before it may hold it no more */
    bool waiting_told;          /* the observer knows that it waits */
    unsigned char lost_reason;  /* PAWL_LOST_... */
    bool dirty;                 /* something of the claim may be there: undo */
    bool unsure;                /* a question ended unknown: its place is not given to another attempt */
    bool in_waiters;            /* the hub may name it: it waits, or it is held and watched */
    bool keeper_hears;          /* the keeper listens for it, and no caller */
    bool rests; /* blocking form: until it is woken; it may have to listen to the hub meanwhile (hub.c) */
    bool hears; /* it reads messages of the hub at this moment */
    bool in_events, result_waits, loss_waits; /* event.c */

    struct name *name_entry; /* names.c */
    pawl_lock *name_next, *name_previous;
    struct map_node by_owner; /* hub.c */
    pawl_lock *rest_next, *rest_previous;
    pawl_lock *event_next;  /* event.c */
    struct heap_node timer; /* in client->work: when the keeper has to do something about this lock itself */
    int lost_fd;
    int end_code; /* why it failed, or PAWL_ELOST */
    char *end_text;

    struct { /* by observer.c, for pawl_metrics */
        struct metrics_class *class;
        int64_t granted_ns, renewed_ns;
        bool waits, held, over; /* over: how the attempt ended was counted */
    } seen;

    char *about; /* own label; NULL: the client's */
    char name[];
};

#define PLACES 256
struct pawl_client {
    pid_t pid;
    const struct backend *be;
    struct bk *bk;
    struct url *url;
    pawl_options options;
    char *label;
    char about[ABOUT_SIZE];
    int64_t (*now)(void *data); /* virtual in the simulation */
    void *now_data;
    bool manual; /* no thread: the simulation calls keeper_run */

    pthread_mutex_t mutex;
    pthread_cond_t session_free, proved; /* proved: the keeper is done with a held lock */
    struct session *sessions;
    int n_sessions, n_asking;  /* n_asking: those that are busy with a question, or being connected */
    struct map names, waiters; /* waiters: whom the hub may name */
    uint64_t places[PLACES];   /* names.c: taken, a bit each, by hash of the name */
    struct heap leases, work;
    struct lease *shared_leases;
    size_t n_shared_leases;
    pawl_lock *locks;
    size_t n_locks;

    bool started, stop;
    pthread_t keeper;
    int poke_fd, hang_up_fd;        /* hang_up_fd: session-bound: an epoll of all sessions; -1: none yet */
    int64_t keeper_sleeps_until_ns; /* INT64_MIN: awake */
    bool lease_planned;             /* since the keeper fell asleep: or a session got its first grant */

    bool hub_wanted, hub_ready, hub_refused;
    int64_t hub_retry_ns, hub_backoff_ms;
    size_t keeper_hears;           /* so many in waiters */
    pawl_lock *resting, *listener; /* of the blocking form; listener: one of them */
    int spare_wake_fd;             /* of a lock that waited; -1: none */

    pawl_lock *event_first, *event_last;
    int event_fd, queue_fd, deadline_fd;
    int64_t earliest_ns; /* no deadline is earlier; LIFE_ENDLESS: none */
};

/* client.c */
int client_new(const struct backend *be, struct bk *bk, struct url *url, const pawl_options *options, pawl_client **ret,
               pawl_error *error);                          /* consumes bk and url, also on failure */
int client_check_name(const char *name, pawl_error *error); /* its length, and that it is UTF-8 */
int client_check_ttl(const pawl_client *client, int64_t ttl_ms, pawl_error *error); /* 0: the client's */
int client_enter(pawl_client *client, pawl_error *error); /* refuses after fork; starts a keeper that has to renew */
int64_t
lock_safe_until(const pawl_lock *lock); /* any thread: the lease's deadline or max_until, whichever is earlier */
static inline int64_t client_now(const pawl_client *client) { return client->now(client->now_data); }
/* Nothing is renewed, watched or sent: a release is done at once by whoever asks for it. */
static inline bool client_needs_no_service(const pawl_client *client) {
    const struct bk_caps *caps = &client->be->caps;
    return caps->life == BK_LIFE_NONE && !caps->session_bound && !caps->hub;
}
/* Sleeps until *what happens, for a second at most; false: it is until_ns already. */
bool client_wait_locked(pawl_client *client, pthread_cond_t *what, int64_t until_ns);

/* session.c: connections, lent to one party at a time */
enum session_want {
    SESSION_ANY,  /* a question that returns at once */
    SESSION_EMPTY /* a session-bound wait: one that holds nothing */
};
int session_borrow(pawl_client *client, enum session_want want, struct bk_until until, struct session **ret,
                   pawl_error *error);
int session_borrow_this(pawl_client *client, struct session *session, struct bk_until until, pawl_error *error);
void session_return(pawl_client *client, struct session *session, bool broken);
void session_waits_locked(pawl_client *client, struct session *session); /* it stays lent to a claim that waits in it */
void session_died_locked(pawl_client *client, struct session *session,
                         const char *why);                                /* its grants are lost; why: "" unknown */
void session_let_go_locked(pawl_client *client, struct session *session); /* one grant less on it */
void session_drop_all(pawl_client *client, bool forked);
void session_hang_ups_locked(pawl_client *client); /* what hang_up_fd tells */
/* Asks sessions that hold grants whether they still answer; a third of the ttl without an answer is the end of one.
 * When to come back. */
int64_t session_beats_locked(pawl_client *client);

/* names.c: threads of this process that want the same name queue here first, first come first served */
int names_enter_locked(pawl_lock *lock);  /* PAWL_OK: see lock->admitted; PAWL_EINTERNAL */
void names_leave_locked(pawl_lock *lock); /* admits and wakes who is next; harmless if not in */
void names_free(pawl_client *client);
void names_give_place_locked(pawl_lock *lock); /* claim.place */
void names_take_place_locked(pawl_lock *lock); /* the attempt is over; harmless if it has none */

/* lock.c, for everybody (the rest in lock.h) */
void lock_lose_locked(pawl_lock *lock, int reason, const char *text); /* PAWL_LOST_... */
void lock_wake_locked(pawl_lock *lock);
void lock_unref_locked(pawl_lock *lock);
void lock_free(pawl_lock *lock, bool forked);
void lock_leave_locked(pawl_lock *lock); /* out of names, waiters and heaps */

/* keeper.c: the one thread */
int keeper_start_locked(pawl_client *client, pawl_error *error); /* harmless if it runs */
void keeper_stop(pawl_client *client);
int64_t keeper_run(pawl_client *client);                     /* does what is due; when to come back */
void keeper_want_locked(pawl_client *client, int64_t at_ns); /* pokes the keeper if it would sleep beyond that */
int64_t keeper_question_ms_locked(pawl_client *client);      /* how long a question may take that is no renewal */
void keeper_work_locked(pawl_lock *lock, int64_t at_ns);     /* the keeper is to step this lock */

/* hub.c: the channel through which the service wakes waiters */
void hub_enter_locked(pawl_lock *lock); /* the hub may name it; room was made in waiters */
void hub_leave_locked(pawl_lock *lock);
void hub_watch_locked(pawl_lock *lock); /* held: the hub is to tell if the service loses it */
bool hub_keeper_listens_locked(const pawl_client *client);
int64_t hub_keeper_locked(pawl_client *client); /* the keeper's part; when it is to come back */
/* The lock rests from now on. The descriptor that it is to watch for all, -1: none; readable: it was. */
int hub_listen(pawl_lock *lock, bool readable);
bool hub_must_tell_locked(const pawl_lock *lock); /* through wake_fd, that it is woken */
void hub_go_on(pawl_lock *lock);                  /* it rests no more; harmless if it did not */

/* event.c */
void event_result_locked(pawl_lock *lock);
void event_loss_locked(pawl_lock *lock);
void event_forget_locked(pawl_lock *lock);
void event_deadline_locked(pawl_client *client, int64_t safe_until_ns); /* one more deadline */
void event_deadlines_moved_locked(pawl_client *client);                 /* looks through all of them */
int64_t event_earliest_locked(pawl_client *client); /* the next one: not of a lock that was released meanwhile */
void event_lost_fd_locked(pawl_lock *lock);

/* observer.c */
void observe(pawl_lock *lock, int type, int code, const char *text);
void observe_let_go(pawl_lock *lock); /* PAWL_RELEASED of a lock that the keeper asks for: it is counted at its end */
void observe_end(pawl_lock *lock);    /* nobody will hear of it any more */
#endif
