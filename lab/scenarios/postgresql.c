/* Three failures of session locks in PostgreSQL. */
#include "../stage.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static void play_leak(struct stage *s) {
    struct server *postgres = stage_server(s), *pooler = stage_server(s);
    server_start_postgres(postgres, "");
    stage_init(s, postgres->url);
    server_start_pgbouncer(pooler, postgres, "transaction", "default_pool_size = 1");
    stage_say(s, "A and B connect through PgBouncer, pool_mode = transaction");
    struct worker *a = stage_worker(s, "A", pooler->url), *b = stage_worker(s, "B", pooler->url);
    bool first = worker_try(s, a);
    if (first && worker_try(s, b)) {
        worker_write(s, b);
        stage_wait(s, 300);
        worker_write(s, a);
    }
    if (first) return;
    stage_say(s, "pawl refuses a session lock behind a pooler. Both connect directly");
    a = stage_worker(s, "A2", postgres->url);
    b = stage_worker(s, "B2", postgres->url);
    worker_must_take(s, a, 5000);
    if (worker_try(s, b)) worker_write(s, b);
    stage_wait(s, 300);
    worker_write(s, a);
}

static bool promoted(void *data) {
    char *text = server_sql(*(int *)data, "SELECT NOT pg_is_in_recovery()");
    bool yes = text && strcmp(text, "t") == 0;
    free(text);
    return yes;
}

static void play_promotion(struct stage *s) {
    struct server *old = stage_server(s), *standby = stage_server(s);
    server_start_postgres(old, "");
    stage_init(s, old->url);
    server_start_standby(standby, old, "");
    struct worker *a = stage_worker(s, "A", old->url), *b = stage_worker(s, "B", standby->url);
    worker_must_take(s, a, 5000);
    worker_write(s, a);
    stage_fault(s, "old primary", "cut off from the cluster manager, but alive, and A is still connected to it");
    free(server_sql(standby->port, "SELECT pg_promote()"));
    stage_until(s, promoted, &standby->port, 20000, "the standby to be promoted");
    stage_say(s, "the standby is promoted; its lock table is empty");
    worker_must_take(s, b, 10000);
    worker_write(s, b);
    stage_wait(s, 300);
    worker_write(s, a);
}

static void play_vanishes(struct stage *s) {
    struct server *postgres = stage_server(s);
    server_start_postgres(postgres, "");
    stage_init(s, postgres->url);
    stage_ttl(s, 3000);
    struct worker *a = stage_worker(s, "A", postgres->url), *b = stage_worker(s, "B", postgres->url);
    worker_must_take(s, a, 5000);
    worker_vanish(s, a);
    if (!worker_take(s, b, 12000))
        stage_broke(
            s, "after 12 s the lock of a host that is gone is still taken; by default it is for more than 2 hours");
    else worker_write(s, b);
}

const struct scenario scenario_pooler_leak = {.name = "pooler-leak",
                                              .title =
                                                  "PgBouncer in transaction mode hands a session lock to somebody else",
                                              .happens = "A takes a session lock through the pooler, which gives A's "
                                                         "server connection to B after the statement. B takes the "
                                                         "same lock in the same session: granted.",
                                              .believed = "A session lock belongs to my session.",
                                              .truth = "It belongs to the server's session, and behind such a pooler "
                                                       "that is nobody's. pawl notices and refuses; transaction "
                                                       "scope works there.",
                                              .service = "postgresql",
                                              .needs = "initdb pgbouncer",
                                              .plain = &plain_postgresql,
                                              .plain_breaks = true,
                                              .play = play_leak};
const struct scenario scenario_pg_promotion = {.name = "pg-promotion",
                                               .title = "a standby is promoted while the old primary lives on",
                                               .happens = "A holds a session lock. The cluster manager promotes the "
                                                          "standby, where the lock table is empty. B gets the lock "
                                                          "there. A's session on the old primary is as good as ever.",
                                               .believed = "PostgreSQL is consistent, so its locks are.",
                                               .truth = "Advisory locks are in the memory of one server and are not "
                                                        "replicated. The token's identity row makes the tokens of the "
                                                        "promoted server higher, so a guard refuses A.",
                                               .service = "postgresql",
                                               .needs = "initdb",
                                               .plain = &plain_postgresql,
                                               .plain_breaks = true,
                                               .pawl_breaks = true,
                                               .play = play_promotion};
const struct scenario scenario_host_vanishes = {
    .name = "host-vanishes",
    .title = "the holder's host vanishes without a word",
    .happens =
        "A's machine loses power. No FIN reaches the server, so its session goes on, and the lock with it. B waits.",
    .believed = "If the connection dies, the lock is freed.",
    .truth = "The server must notice first: two hours by default. pawl sets keepalives and time limits from the ttl on "
             "both ends.",
    .service = "postgresql",
    .needs = "initdb",
    .plain = &plain_postgresql,
    .plain_breaks = true,
    .play = play_vanishes};
