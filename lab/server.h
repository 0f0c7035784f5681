/* server.h: real servers for the lab and the tests: each in a temporary directory of its own, on a free port of the
 * loopback, ended by its pid, and killed by the kernel if whoever started it dies (PR_SET_PDEATHSIG of the starting
 * thread). A starter ends the program with a text on stderr if its server does not come up: nothing can go on without
 * it. */
#ifndef LAB_SERVER_H
#define LAB_SERVER_H
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define SERVER_ARGS 64

struct server {
    pid_t pid; /* 0: not running */
    int port;
    int quit;      /* the signal that ends it without a trace in the system; SIGKILL if not set */
    char dir[64];  /* under $TMPDIR or /tmp; removed by server_stop */
    char url[128]; /* what pawl -u takes */
    uid_t user;    /* 0: as whoever runs it */
    gid_t group;
    const char *shim; /* a library to preload, set before the start (skew.h); NULL: none */
    char *argv[SERVER_ARGS];
    bool (*ready)(const struct server *);
};

/* --- for starters --- */

/* A port of 127.0.0.1 that nobody uses now. */
int server_free_port(void);
/* Makes s->dir. */
void server_make_dir(struct server *s, const char *name);
/* Appends a copy of an argument (printf form) to s->argv. */
void server_arg(struct server *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Runs s->argv in s->dir with its output in s->dir/log, and waits (60 s) until s->ready says true. */
void server_run(struct server *s);
void server_begin(struct server *s); /* the first half of it */
void server_await(struct server *s); /* the second */
/* A blocking connection to 127.0.0.1:port with 2 s time limits, or -1. */
int server_dial(int port);

/* --- for users; a struct server is all zeros (but shim) before its start --- */

void server_kill(struct server *s,
                 int signal);          /* SIGSTOP, SIGCONT: sent only; others: also waited for, then pid is 0 */
void server_restart(struct server *s); /* same port, directory and arguments; killed first if it runs */
void server_stop(struct server *s);    /* killed, the directory removed */

/* options: pairs as on the command line ("--appendonly", "yes"), ended by NULL; NULL: none. No persistence by default.
 */
void server_start_redis(struct server *s, const char *const options[]);
/* A sentinel that watches 127.0.0.1:port as "mymaster" with quorum 2; lines: more configuration, or "". */
void server_start_sentinel(struct server *s, int port, const char *lines);
/* Sends one command of words split at spaces and returns the reply's text (malloc): bulk and status as they are,
 * integers in decimal, arrays with one element a line, errors with a leading '-'; "" for nil; NULL: no answer. */
char *server_redis(int port, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same as a number; -1 for anything else. */
int64_t server_redis_int(int port, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* settings: lines for postgresql.conf, or "". Trusts everybody on the loopback; user and database are "postgres". As
 * root it runs as the user postgres. Restarts immediately after a kill. */
void server_start_postgres(struct server *s, const char *settings);
/* A standby of `primary`, streaming. */
void server_start_standby(struct server *s, const struct server *primary, const char *settings);
/* PgBouncer before `postgres`. mode: "session", "transaction", "statement"; settings: more lines, or "". Needs
 * server_has_pgbouncer. */
void server_start_pgbouncer(struct server *s, const struct server *postgres, const char *mode, const char *settings);
bool server_has_pgbouncer(void);
/* Runs one SQL text as postgres and returns the first column of the first row (malloc); "" for none; "-SQLSTATE text"
 * for an error; NULL: no answer. */
char *server_sql(int port, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* options: arguments of etcd, ended by NULL; NULL: none. */
void server_start_etcd(struct server *s, const char *const options[]);
/* n members of one cluster, each a server of its own. */
void server_start_etcd_cluster(struct server members[], int n, const char *const options[]);
/* The same; member i listens to the others at listen[i], and tells them that it does at tell[i]: a proxy. */
void server_start_etcd_apart(struct server members[], int n, const int listen[], const int tell[]);

/* Asks again each 10 ms until condition(data) is true; false: ms went by. */
bool server_until(bool (*condition)(void *), void *data, int ms);
#endif
