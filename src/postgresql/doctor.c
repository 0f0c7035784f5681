/* doctor.c: is this PostgreSQL good for locks? What any role may read: settings, counts, its place in replication. */
#include "pawl.h"
#include "postgresql.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum column { VERSION, RECOVERY, REPLICAS, SYNC, CONNECTIONS, MOST_CONNECTIONS, LOCKS, MOST_LOCKS, FSYNC, FULL_PAGES };

static const char question_text[] =
    "SELECT current_setting('server_version'), pg_is_in_recovery(), "
    "(SELECT count(*) FROM pg_stat_replication), current_setting('synchronous_standby_names'), "
    "(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'), "
    "current_setting('max_connections')::int8 - current_setting('superuser_reserved_connections')::int8, "
    "(SELECT count(*) FROM pg_locks WHERE NOT fastpath), "
    "current_setting('max_locks_per_transaction')::int8 * (current_setting('max_connections')::int8 + "
    "current_setting('max_prepared_transactions')::int8), "
    "current_setting('fsync'), current_setting('full_page_writes')";

struct looking {
    const PGresult *r;
    bk_find *find;
    void *data;
};

static const char *text(const struct looking *l, enum column column) { return PQgetvalue(l->r, 0, column); }
static long long number(const struct looking *l, enum column column) { return atoll(text(l, column)); }

static void tell(const struct looking *l, const char *id, int level, const char *about, const char *seen,
                 const char *why, const char *fix) {
    bool fine = level == PAWL_LEVEL_FINE;
    struct bk_finding f = {id, level, about, seen, fine ? "" : why, fine ? "" : fix};
    l->find(&f, l->data);
}

static void share(const struct looking *l, const char *id, const char *about, enum column used, enum column most,
                  const char *why, const char *fix) {
    char seen[96];
    long long percent = number(l, most) > 0 ? number(l, used) * 100 / number(l, most) : 100;
    snprintf(seen, sizeof seen, "%lld of %lld", number(l, used), number(l, most));
    tell(l, id, percent >= 80 ? PAWL_LEVEL_WARNING : PAWL_LEVEL_FINE, about, seen, why, fix);
}

enum bk_says look_doctor(struct bk_session *s, bk_find *find, void *data, struct bk_until until, pawl_error *error) {
    AUTO_RESULT result = NULL;
    char seen[160];
    enum bk_says says = question_once(s, question_text, 0, NULL, until, &result, error);
    if (says != BK_YES) return says;
    const struct looking l = {result, find, data};
    bool standby = strcmp(text(&l, RECOVERY), "t") == 0;
    snprintf(seen, sizeof seen, "PostgreSQL %.60s, %s", text(&l, VERSION), standby ? "a standby" : "primary");
    tell(&l, "P01", standby ? PAWL_LEVEL_UNSAFE : PAWL_LEVEL_FINE, "server", seen,
         "a standby grants no locks that others see", "the address of the primary");
    snprintf(seen, sizeof seen, "%lld standbys, synchronous: %.60s", number(&l, REPLICAS),
             *text(&l, SYNC) ? text(&l, SYNC) : "none");
    tell(&l, "P02", number(&l, REPLICAS) ? PAWL_LEVEL_WARNING : PAWL_LEVEL_FINE, "standbys", seen,
         "locks are not replicated: whoever promotes one grants locks again that are held", "a guard, or --seal");
    share(&l, "P03", "connections", CONNECTIONS, MOST_CONNECTIONS,
          "a held lock keeps a connection: who gets none can take no lock", "raise max_connections");
    share(&l, "P04", "lock table", LOCKS, MOST_LOCKS, "a full lock table refuses new locks, and statements of others",
          "raise max_locks_per_transaction");
    bool lies = strcmp(text(&l, FSYNC), "on") != 0 || strcmp(text(&l, FULL_PAGES), "on") != 0;
    snprintf(seen, sizeof seen, "fsync %.10s, full_page_writes %.10s", text(&l, FSYNC), text(&l, FULL_PAGES));
    tell(&l, "P05", lies ? PAWL_LEVEL_UNSAFE : PAWL_LEVEL_FINE, "durability", seen,
         "a crash may lose or damage what was committed, the tokens and the guarded data with it", "turn both on");
    return BK_YES;
}
