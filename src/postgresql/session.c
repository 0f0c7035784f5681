/* session.c: one connection: a primary, direct (a pooler would give our session to others between two statements), with
 * settings of our own, and with time limits on both ends that follow from the ttl: a client that is cut off notices it
 * before the server gives its lock away. */
#include "clock.h"
#include "postgresql.h"
#include "random.h"
#include "refusal.h"
#include "resolve.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_PARAMETERS 64
#define LAYOUT 2 /* sql/begin.sql */
#define SOCKET_FOLDERS "/var/run/postgresql,/tmp"

struct targets { /* parallel lists, as libpq wants them */
    char host[1024], address[1024], port[256];
};

static const char *given(const struct bk *bk, const char *keyword) {
    for (const PQconninfoOption *o = bk->dsn; o->keyword; o++)
        if (strcmp(o->keyword, keyword) == 0) return o->val && *o->val ? o->val : NULL;
    return NULL;
}

/* The i-th piece of a comma list; the only one serves for all. */
static void piece(const char *list, int i, char *ret, size_t size) {
    const char *at = list ? list : "";
    for (const char *comma; i > 0 && (comma = strchr(at, ',')); i--) at = comma + 1;
    snprintf(ret, size, "%.*s", (int)strcspn(at, ","), at);
}

static void add_target(struct targets *t, bool first, const char *host, const char *address, const char *port) {
    if (!first) {
        strncat(t->host, ",", sizeof t->host - strlen(t->host) - 1);
        strncat(t->address, ",", sizeof t->address - strlen(t->address) - 1);
        strncat(t->port, ",", sizeof t->port - strlen(t->port) - 1);
    }
    strncat(t->host, host, sizeof t->host - strlen(t->host) - 1);
    strncat(t->address, address, sizeof t->address - strlen(t->address) - 1);
    strncat(t->port, port, sizeof t->port - strlen(t->port) - 1);
}

/* libpq would look names up itself, and hang with a silent name server: it gets addresses. */
static enum bk_says find_targets(const struct bk *bk, struct bk_until until, struct targets *t, pawl_error *error) {
    const char *hosts = given(bk, "host"), *ports = given(bk, "port");
    bool first = true;
    if (!hosts) hosts = SOCKET_FOLDERS;
    int n = 1;
    for (const char *c = hosts; *c; c++) n += *c == ',';
    enum bk_says says = BK_FAULT;
    for (int i = 0; i < n; i++) {
        char host[256], port[16], address[INET6_ADDRSTRLEN + 16];
        struct resolved found;
        piece(hosts, i, host, sizeof host);
        piece(ports, i, port, sizeof port);
        if (!*port) strcpy(port, "5432");
        if (*host == '/' || *host == '@' || !*host) {
            add_target(t, first, host, "", port);
            first = false;
            continue;
        }
        struct bk_until share = until;
        int64_t now = clock_now_ns();
        if (n - i > 1 && until.at_ns != INT64_MAX) share.at_ns = now + (until.at_ns - now) / (n - i + 1);
        says = resolve(host, atoi(port), share, &found, error);
        for (int k = 0; says == BK_YES && k < found.n; k++) {
            if (getnameinfo((struct sockaddr *)&found.address[k], found.length[k], address, sizeof address, NULL, 0,
                            NI_NUMERICHOST))
                continue;
            add_target(t, first, host, address, port);
            first = false;
        }
    }
    return first ? says : BK_YES;
}

static long long most(int64_t a, int64_t b) { return a > b ? a : b; }

/* Of a host that vanished, this end must know first: we probe from ttl/3 on and give up at 2/3, the server (greeting)
 * from ttl/2 on until the ttl, both each second; a probe more where a ttl below 3 s leaves no second between the two.
 *
 * libpq looks into the environment for what is not given: each parameter is, if only as empty, which an array cannot
 * say but a connection string in the place of the database's name can. */
static int parameters(const struct bk *bk, const struct targets *t, const char *keys[], const char *values[],
                      char numbers[2][24], char empty[1024]) {
    int n = 0;
    *empty = 0;
    for (const PQconninfoOption *o = bk->dsn; o->keyword; o++)
        if (strcmp(o->keyword, "service") != 0) {
            size_t length = strlen(empty);
            snprintf(empty + length, 1024 - length, "%s='' ", o->keyword);
        }
    keys[n] = "dbname";
    values[n++] = empty;
    snprintf(numbers[0], 24, "%lld", most(bk->ttl_ms / 3000, 1));
    snprintf(numbers[1], 24, "%lld", most(bk->ttl_ms * 2 / 3, 1000));
    static _Thread_local char user[64];
    struct passwd entry, *found = NULL;
    char buffer[1024];
    if (getpwuid_r(geteuid(), &entry, buffer, sizeof buffer, &found) == 0 && found)
        snprintf(user, sizeof user, "%s", found->pw_name);
    const char *const own[][2] = {{"host", t->host},
                                  {"hostaddr", t->address},
                                  {"port", t->port},
                                  {"client_encoding", "UTF8"},
                                  {"fallback_application_name", "pawl"},
                                  {"keepalives", "1"},
                                  {"keepalives_idle", numbers[0]},
                                  {"keepalives_interval", "1"},
                                  {"keepalives_count", "9"},
                                  {"tcp_user_timeout", numbers[1]}};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        if (strcmp(own[i][0], "hostaddr") == 0 && given(bk, "hostaddr")) continue;
        keys[n] = own[i][0];
        values[n++] = own[i][1];
    }
    for (const PQconninfoOption *o = bk->dsn; o->keyword && n < MOST_PARAMETERS - 2; o++) {
        bool done = strcmp(o->keyword, "connect_timeout") == 0;
        for (size_t i = 0; i < sizeof own / sizeof *own; i++) done = done || strcmp(o->keyword, own[i][0]) == 0;
        if (done && strcmp(o->keyword, "hostaddr") != 0) continue;
        const char *value = o->val && *o->val ? o->val : strcmp(o->keyword, "user") == 0 ? user : o->compiled;
        if (!value || !*value) continue;
        keys[n] = o->keyword;
        values[n++] = value;
    }
    keys[n] = NULL;
    values[n] = NULL;
    return n;
}

/* "FATAL:  28P01: password ...\nLOCATION: ...", of a server (PQERRORS_VERBOSE), or libpq's own words. */
static const char *state_in(const char *text) {
    for (const char *at = text; (at = strstr(at, ":  ")); at += 3)
        if (strspn(at + 3, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") == 5 && at[8] == ':') return at + 3;
    return "";
}

static enum bk_says refused(struct bk_session *s, pawl_error *error) {
    static const char *const denials[] = {"authentication failed", "password", "certificate", "does not exist",
                                          "no such"};
    char text[360];
    refusal_text(s->conn, text, sizeof text);
    char *location = strstr(text, " LOCATION:");
    if (location) *location = 0;
    const char *state = state_in(text), *advice = "";
    bool denied = strncmp(state, "28", 2) == 0 || strncmp(state, "3D", 2) == 0 || strncmp(state, "42", 2) == 0;
    for (size_t i = 0; i < sizeof denials / sizeof *denials && (!*state || strncmp(state, "08", 2) == 0); i++)
        denied = denied || strstr(text, denials[i]);
    if (strncmp(state, "53300", 5) == 0)
        advice = "; raise max_connections (or the limit of the role or database), or lower max_waiters: a client has a "
                 "connection for each 256 locks that it holds, and one for each that waits";
    bool strange = !*state && (strstr(text, "closed the connection") || strstr(text, "invalid response") ||
                               strstr(text, "expected authentication"));
    char *guess = strange ? strstr(text, "  This probably means") : NULL;
    if (guess) *guess = 0;
    if (strange) advice = ": is it PostgreSQL that listens there?";
    error_set(error, denied ? PAWL_EDENIED : PAWL_EUNREACHABLE, s->node, "cannot connect to PostgreSQL: %s%s", text,
              advice);
    return BK_FAULT;
}

static enum bk_says wait_connected(struct bk_session *s, struct bk_until until, pawl_error *error) {
    PostgresPollingStatusType status = PGRES_POLLING_WRITING;
    for (;;) {
        if (status == PGRES_POLLING_OK) return BK_YES;
        if (status == PGRES_POLLING_FAILED || PQsocket(s->conn) < 0) return refused(s, error);
        int ready = clock_wait_fd(PQsocket(s->conn), status == PGRES_POLLING_READING ? POLLIN : POLLOUT, until.at_ns,
                                  until.cancel_fd);
        if (ready == -1) error_set(error, PAWL_ECANCELLED, s->node, "cancelled while connecting to PostgreSQL");
        else if (ready != 1)
            error_set(error, PAWL_EUNREACHABLE, s->node,
                      "PostgreSQL does not answer at %s:%s (no connection in time%s)",
                      PQhost(s->conn) ? PQhost(s->conn) : "its address", PQport(s->conn) ? PQport(s->conn) : "",
                      PQstatus(s->conn) == CONNECTION_STARTED ? "" : "; is it PostgreSQL that listens there?");
        if (ready != 1) return BK_FAULT;
        status = PQconnectPoll(s->conn);
    }
}

/* Ours, whatever the role or the database say; and what we must know. */
static char *greeting(struct bk_session *s) {
    char *text = NULL, *application = PQescapeLiteral(s->conn, s->bk->application, strlen(s->bk->application));
    int version = PQserverVersion(s->conn);
    const char *newer = version >= 170000 ? "SET transaction_timeout = 0;" : version >= 140000 ? "" : NULL;
    if (!application ||
        asprintf(
            &text,
            "SET application_name = %s; SET client_min_messages = error; SET statement_timeout = 0; SET lock_timeout = "
            "0;"
            "SET idle_in_transaction_session_timeout = 0; SET default_transaction_isolation = 'read committed';"
            "SET default_transaction_read_only = off; SET search_path = pg_catalog, pg_temp;"
            "SET plan_cache_mode = force_generic_plan;"
            "SET tcp_keepalives_idle = %lld; SET tcp_keepalives_interval = 1; SET tcp_keepalives_count = 9;"
            "SET tcp_user_timeout = %lld; %s%s"
            "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off';"
            "SELECT pg_backend_pid(), pg_is_in_recovery()",
            application, most(s->bk->ttl_ms / 2000, 2), most(s->bk->ttl_ms, 2000),
            newer ? "SET idle_session_timeout = 0; SET client_connection_check_interval = '1s';" : "",
            newer ? newer : "") < 0)
        text = NULL;
    PQfreemem(application);
    return text;
}

enum how { BARE, GREETED, INSTALLS, ADMITTED };

static enum bk_says check_server(struct bk_session *s, const PGresult *result, enum how how, pawl_error *error) {
    if (strcmp(PQgetvalue(result, 0, 1), "t") == 0) {
        error_set(
            error, PAWL_EUNREACHABLE, s->node,
            "%s is a standby: its advisory locks are not those of the primary; name the primary, or several hosts with "
            "target_session_attrs=read-write",
            s->node);
        return BK_FAULT;
    }
    bool pooled = !s->bk->pooler && atoi(PQgetvalue(result, 0, 0)) != PQbackendPID(s->conn);
    if (pooled && how == INSTALLS) {
        error_set(
            error, PAWL_EUNSAFE, s->node,
            "%s is a pooler: what follows could be another session. Connect to the server itself; or, through the "
            "pooler: pawl init --print URL | psql -1 URL",
            s->node);
        return BK_FAULT;
    }
    if (pooled) {
        error_set(error, PAWL_EUNSAFE, s->node,
                  "%s is a pooler: it may give our session, and the locks in it, to others. Connect to the server "
                  "itself; or take "
                  "the lock inside a transaction, in SQL: pawl.lock(name); or, if it pools whole sessions, say "
                  "?pooler=session",
                  s->node);
        return BK_FAULT;
    }
    return BK_YES;
}

static enum bk_says greet(struct bk_session *s, enum how how, struct bk_until until, pawl_error *error) {
    char *text = greeting(s), clock[32];
    AUTO_RESULT result = NULL;
    AUTO_RESULT admitted = NULL;
    if (!text) {
        error_set(error, PAWL_EINTERNAL, s->node, "out of memory");
        return BK_FAULT;
    }
    enum bk_says says = question_script(s, text, until, &result, error);
    free(text);
    if (says == BK_YES) says = check_server(s, result, how, error);
    if (says != BK_YES || how != ADMITTED) return says;
    const char *values[] = {clock};
    snprintf(clock, sizeof clock, "%lld", (long long)clock_wall_us());
    says = question_once(s, "SELECT m.layout, pawl.admit($1) FROM pawl.meta m", 1, values, until, &admitted, error);
    int layout = says == BK_YES && PQntuples(admitted) == 1 ? atoi(PQgetvalue(admitted, 0, 0)) : 0;
    if (says != BK_YES || layout == LAYOUT) return says;
    if (layout > LAYOUT)
        error_set(
            error, PAWL_EUNSAFE, s->node,
            "%s: layout %d of pawl is installed there, which is newer than this one (%d): use the pawl that made it",
            s->node, layout, LAYOUT);
    else
        error_set(error, PAWL_EUNSAFE, s->node, "%s: an older layout of pawl is installed there: pawl init URL",
                  s->node);
    return BK_FAULT;
}

/* What is said unasked: nothing of interest, or a goodbye, which is kept. libpq would print it. */
static void hear(void *session, const PGresult *said) {
    struct bk_session *s = session;
    const char *severity = PQresultErrorField(said, PG_DIAG_SEVERITY_NONLOCALIZED);
    if (!severity || (strcmp(severity, "FATAL") != 0 && strcmp(severity, "PANIC") != 0)) return;
    s->gone = true;
    refusal_goodbye(said, s->goodbye, sizeof s->goodbye);
}

static enum bk_says connect_and_greet(struct bk *bk, enum how how, struct bk_until until, struct bk_session **ret,
                                      pawl_error *error) {
    struct targets targets = {"", "", ""};
    const char *keys[MOST_PARAMETERS], *values[MOST_PARAMETERS];
    char numbers[2][24], empty[1024];
    enum bk_says says = find_targets(bk, until, &targets, error);
    if (says != BK_YES) return says;
    parameters(bk, &targets, keys, values, numbers, empty);
    struct bk_session *s = calloc(1, sizeof *s);
    if (s) *s = (struct bk_session){.bk = bk, .conn = PQconnectStartParams(keys, values, 1)};
    if (!s || !s->conn) {
        free(s);
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        return BK_FAULT;
    }
    PQsetNoticeReceiver(s->conn, hear, s);
    snprintf(s->node, sizeof s->node, "%.100s", targets.host);
    PQsetErrorVerbosity(s->conn,
                        PQERRORS_VERBOSE); /* until it stands: a connection that fails tells its code in no other way */
    says = PQstatus(s->conn) == CONNECTION_BAD ? refused(s, error) : wait_connected(s, until, error);
    if (says == BK_YES) {
        snprintf(s->node, sizeof s->node, "%.100s:%.20s", PQhost(s->conn), PQport(s->conn));
        PQsetnonblocking(s->conn, 1);
        PQsetErrorVerbosity(s->conn, PQERRORS_DEFAULT);
        if (how != BARE) says = greet(s, how, until, error);
    }
    if (says == BK_YES) *ret = s;
    else session_drop(s, false);
    return says == BK_UNKNOWN ? BK_FAULT : says;
}

/* One question about one value, one short answer. false: none, see *error. */
static bool ask(struct bk_session *s, const char *sql, const char *value, struct bk_until until, char ret[32],
                pawl_error *error) {
    AUTO_RESULT result = NULL;
    const char *values[] = {value};
    if (question_once(s, sql, 1, values, until, &result, error) != BK_YES) return false;
    snprintf(ret, 32, "%s", PQgetvalue(result, 0, 0));
    return true;
}

#define MARK(session, mark) ask(session, "SELECT set_config('pawl.session', $1, false)", mark, until, answer, error)

/* A pooler that gives one session to two clients shows one of them what the other set. Asked before anything is locked:
 * what is locked in a session that changes hands stays locked. */
static enum bk_says wholeness(struct bk_session *a, struct bk_session *b, const char *key, struct bk_until until,
                              pawl_error *error) {
    char answer[32];
    if (!MARK(a, key) || !MARK(b, "another") ||
        !ask(a, "SELECT coalesce(current_setting($1, true), '')", "pawl.session", until, answer, error))
        return BK_FAULT;
    if (strcmp(answer, key) == 0) return BK_YES;
    error_set(error, PAWL_EUNSAFE, a->node, "%s: " REFUSAL_POOLER " (one client sees what another one set)", a->node);
    return BK_FAULT;
}

static enum bk_says lock_by_turns(struct bk_session *a, struct bk_session *b, const char *key, struct bk_until until,
                                  pawl_error *error) {
    static const char lock[] = "SELECT pg_try_advisory_lock($1::int8)",
                      unlock[] = "SELECT pg_advisory_unlock($1::int8)";
    const struct {
        struct bk_session *who;
        const char *sql;
    } steps[] = {{a, lock}, {b, lock}, {a, unlock}, {b, lock}, {b, unlock}};
    char answers[6] = "", answer[32] = "";
    for (int i = 0; i < 5; i++) {
        if (!ask(steps[i].who, steps[i].sql, key, until, answer, error)) return BK_FAULT;
        answers[i] = *answer;
    }
    if (strcmp(answers, "tfttt") == 0) return BK_YES;
    for (int i = 0; i < 4; i++) ask(i % 2 ? b : a, unlock, key, until, answer, NULL); /* whoever has it */
    error_set(error, PAWL_EUNSAFE, a->node,
              "%s only pretends to lock: of two connections that tried, freed and tried again the same advisory lock, "
              "it said %s and not tfttt; use PostgreSQL itself",
              a->node, answers);
    return BK_FAULT;
}

/* There are servers, and things between, that say yes to every lock. */
enum bk_says session_exclusion(struct bk_session *a, struct bk_until until, pawl_error *error) {
    struct bk_session *b;
    int64_t number;
    char key[24];
    random_bytes(&number, sizeof number);
    snprintf(key, sizeof key, "%lld", (long long)number);
    enum bk_says says = connect_and_greet(a->bk, GREETED, until, &b, error);
    if (says != BK_YES) return says;
    says = wholeness(a, b, key, until, error);
    if (says == BK_YES) says = lock_by_turns(a, b, key, until, error);
    session_drop(b, false);
    return says;
}

enum bk_says session_connect(struct bk *bk, struct bk_until until, struct bk_session **ret, pawl_error *error) {
    struct bk_session *s;
    enum bk_says says = connect_and_greet(bk, bk->tokens ? ADMITTED : GREETED, until, &s, error);
    if (says != BK_YES) return says;
    if (bk->selftest && !atomic_load(&bk->tested)) says = session_exclusion(s, until, error);
    if (says == BK_YES) {
        atomic_store(&bk->tested, true);
        *ret = s;
    } else {
        session_drop(s, false);
    }
    return says;
}

enum bk_says session_bare(struct bk *bk, struct bk_until until, struct bk_session **ret, pawl_error *error) {
    return connect_and_greet(bk, BARE, until, ret, error);
}

enum bk_says session_init(struct bk *bk, struct bk_until until, pawl_error *error) {
    struct bk_session *s;
    PGresult *result = NULL;
    enum bk_says says = connect_and_greet(bk, INSTALLS, until, &s, error);
    if (says != BK_YES) return says;
    says = question_script(s, pawl_sql, until, &result, error);
    PQclear(result);
    session_drop(s, false);
    return says;
}

void session_drop(struct bk_session *s, bool forked) {
    int null = forked ? open("/dev/null", O_RDWR | O_CLOEXEC) : -1;
    if (null >= 0) { /* libpq says goodbye: not on our parent's connection */
        if (PQsocket(s->conn) >= 0) dup2(null, PQsocket(s->conn));
        close(null);
    }
    PQfinish(s->conn);
    free(s);
}

int session_fds(struct bk_session *s, const struct bk_grant *grant, int *ret, int max) {
    (void)grant;
    if (!s || max < 1 || PQsocket(s->conn) < 0) return 0;
    *ret = PQsocket(s->conn);
    return 1;
}
