/* doctor.c: is this PostgreSQL good for locks? What any role may read: settings, counts, its place in replication. */
#include "pawl.h"
#include "postgresql.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum column {
    VERSION,
    REPLICAS,
    SYNC,
    CONNECTIONS,
    MOST_CONNECTIONS,
    LOCKS,
    MOST_LOCKS,
    FSYNC,
    FULL_PAGES,
    TIMEOUTS,
    SSL,
    LOCAL,
    MIGHTY
};

static const char question_text[] =
    "SELECT current_setting('server_version'), "
    "(SELECT count(*) FROM pg_stat_replication), current_setting('synchronous_standby_names'), "
    "used, most, "
    "(SELECT count(*) FROM pg_locks WHERE NOT fastpath), "
    "current_setting('max_locks_per_transaction')::int8 * (current_setting('max_connections')::int8 + "
    "current_setting('max_prepared_transactions')::int8), "
    "current_setting('fsync'), current_setting('full_page_writes'), "
    "(SELECT string_agg(name || ' ' || reset_val || coalesce(unit, ''), ', ' ORDER BY name) FROM pg_settings WHERE "
    "name "
    "IN ('idle_in_transaction_session_timeout', 'transaction_timeout', 'statement_timeout') "
    "AND reset_val <> '0' OR name = 'default_transaction_isolation' AND reset_val NOT LIKE 'read%' "
    "OR name = 'default_transaction_read_only' AND reset_val = 'on'), "
    "(SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), "
    "coalesce(inet_server_addr() <<= '127.0.0.0/8' OR inet_server_addr() = '::1', true), "
    "(SELECT bool_or(rolsuper OR oid = (SELECT nspowner FROM pg_namespace WHERE nspname = 'pawl')) FROM pg_roles WHERE "
    "rolname = session_user) "
    /* of the server, the database and the role: the one with the least room; all roles may see these counts */
    "FROM (SELECT used, most FROM (SELECT (SELECT sum(numbackends) FROM pg_stat_database) AS used, "
    "current_setting('max_connections')::int8 - current_setting('superuser_reserved_connections')::int8 - "
    "coalesce(current_setting('reserved_connections', true)::int8, 0) AS most "
    "UNION ALL SELECT numbackends, datconnlimit FROM pg_stat_database JOIN pg_database ON oid = datid "
    "WHERE oid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND datconnlimit >= 0 "
    "UNION ALL SELECT (SELECT count(*) FROM pg_stat_activity WHERE usesysid = oid), rolconnlimit FROM pg_roles "
    "WHERE rolname = session_user AND rolconnlimit >= 0) AS limits "
    "ORDER BY used / greatest(most, 1)::numeric DESC LIMIT 1) AS room";

struct looking {
    const PGresult *r;
    bk_find *find;
    void *data;
};

static const char *text(const struct looking *l, enum column column) { return PQgetvalue(l->r, 0, column); }
static long long number(const struct looking *l, enum column column) { return atoll(text(l, column)); }

static void tell(const struct looking *l, const char *id, int level, const char *about, const char *seen,
                 const char *why, const char *fix) {
    bool quiet = level == PAWL_LEVEL_FINE || level == PAWL_LEVEL_UNSEEN;
    struct bk_finding f = {id, level, about, seen, quiet ? "" : why, quiet ? "" : fix};
    l->find(&f, l->data);
}

static bool is(const struct looking *l, enum column column) { return strcmp(text(l, column), "t") == 0; }
static int bad(bool is_so, int level) { return is_so ? level : PAWL_LEVEL_FINE; }

/* rest: how many more there is room for, and for whom. */
static void share(const struct looking *l, const char *id, const char *about, enum column used, enum column most,
                  const char *rest, const char *why, const char *fix) {
    char seen[160];
    long long n = number(l, used), all = number(l, most), percent = all > 0 ? n * 100 / all : 100;
    snprintf(seen, sizeof seen, "%lld of %lld are used: room for %lld %s", n, all, all > n ? all - n : 0, rest);
    tell(l, id, bad(percent >= 80, PAWL_LEVEL_WARNING), about, seen, why, fix);
}

static void standbys(const struct looking *l) {
    char seen[160];
    long long n = number(l, REPLICAS);
    bool waits = *text(l, SYNC) && !n;
    snprintf(seen, sizeof seen, "%lld connected, synchronous: %.60s", n, *text(l, SYNC) ? text(l, SYNC) : "none");
    tell(l, "P02",
         waits ? PAWL_LEVEL_UNSAFE
         : n   ? PAWL_LEVEL_WARNING
               : PAWL_LEVEL_FINE,
         "standbys", seen,
         waits ? "every commit waits for a standby that is not there, also the one that makes tokens durable"
               : "locks are not replicated: whoever promotes one grants locks again that are held",
         waits ? "start the standby, or empty synchronous_standby_names" : "a guard, or --seal");
}

static void durability(const struct looking *l) {
    char seen[160];
    bool lies = strcmp(text(l, FSYNC), "on") != 0 || strcmp(text(l, FULL_PAGES), "on") != 0;
    snprintf(seen, sizeof seen, "fsync %.10s, full_page_writes %.10s", text(l, FSYNC), text(l, FULL_PAGES));
    tell(l, "P05", bad(lies, PAWL_LEVEL_UNSAFE), "durability", seen,
         "a crash may lose or damage what was committed, the tokens and the guarded data with it", "turn both on");
}

/* What the URL gives up. */
static void choices(const struct looking *l, const struct bk *bk) {
    bool gives_up = !bk->tokens || !bk->flush || bk->pooler;
    char seen[96];
    snprintf(seen, sizeof seen, "%s%s%s%s", gives_up ? "" : "nothing is given up", bk->tokens ? "" : "token=off ",
             bk->flush ? "" : "flush=off ", bk->pooler ? "pooler=session" : "");
    tell(l, "P08", bad(gives_up, PAWL_LEVEL_WARNING), "parameters", seen,
         !bk->tokens  ? "without tokens no guard can tell a stale writer"
         : !bk->flush ? "after a crash of the server a token may be given out twice"
                      : "a pooler that does not keep sessions whole loses locks, and this cannot be seen from here",
         bk->tokens && bk->flush ? "a URL that leads to the server itself" : "without that parameter");
}

static void way_there(const struct looking *l) {
    bool open = !is(l, SSL) && !is(l, LOCAL);
    tell(l, "P07", bad(open, PAWL_LEVEL_WARNING), "encryption",
         is(l, SSL)     ? "TLS"
         : is(l, LOCAL) ? "none, on this machine"
                        : "none, and the network is between",
         "whoever is on the way can answer in the server's place", "sslmode=verify-full");
    tell(l, "P10", bad(is(l, MIGHTY), PAWL_LEVEL_WARNING), "role",
         is(l, MIGHTY) ? "owns the schema pawl, or is a superuser" : "only uses the schema pawl",
         "it can lower numbers, and end the sessions of others", "a role of its own: pawl doctor --acl");
}

enum bk_says look_doctor(struct bk_session *s, bk_find *find, void *data, struct bk_until until, pawl_error *error) {
    AUTO_RESULT result = NULL;
    char seen[160];
    enum bk_says says = question_once(s, question_text, 0, NULL, until, &result, error);
    if (says != BK_YES) return says;
    const struct looking l = {result, find, data};
    snprintf(seen, sizeof seen, "PostgreSQL %.60s, primary", text(&l, VERSION)); /* no other is connected to */
    tell(&l, "P01", PAWL_LEVEL_FINE, "server", seen, "", "");
    standbys(&l);
    share(&l, "P03", "connections", CONNECTIONS, MOST_CONNECTIONS, "clients that hold or wait",
          "a held lock keeps a connection: who gets none can take no lock",
          "raise max_connections, or the limit of the role");
    share(&l, "P04", "lock table", LOCKS, MOST_LOCKS,
          "locks (as many as are taken in a second, times the seconds of each)",
          "a full lock table refuses new locks, and statements of others", "raise max_locks_per_transaction");
    durability(&l);
    tell(&l, "P06", bad(*text(&l, TIMEOUTS), PAWL_LEVEL_WARNING), "defaults",
         *text(&l, TIMEOUTS) ? text(&l, TIMEOUTS) : "none of this role or database",
         "they end a transaction that holds pawl.lock(), or refuse it a lock or a guard (pawl run and pawl_acquire put "
         "them aside)",
         "ALTER ROLE ... SET ... for the role that locks; limits may stay if its locks are shorter");
    way_there(&l);
    choices(&l, s->bk);
    pawl_error own = PAWL_ERROR_INIT;
    says = session_exclusion(s, until, &own);
    bool pretends = own.code == PAWL_EUNSAFE, seen_it = says == BK_YES || pretends;
    tell(&l, "P09",
         pretends  ? PAWL_LEVEL_UNSAFE
         : seen_it ? PAWL_LEVEL_FINE
                   : PAWL_LEVEL_UNSEEN,
         "exclusion", own.code ? own.text : "of two connections one gets the lock", "it is no lock",
         "PostgreSQL itself");
    return BK_YES;
}
