#include "../stage.h"
#include <stdlib.h>
#include <string.h>

static void play(struct stage *s) {
    struct server *postgres = stage_server(s), *pooler = stage_server(s);
    const char *names[] = {"B", "C", "D"};
    struct worker *waiting[3];
    server_start_postgres(postgres, "");
    stage_init(s, postgres->url);
    server_start_pgbouncer(pooler, postgres, "session", "default_pool_size = 4\nquery_wait_timeout = 3");
    const char *url = stage_has_pawl(s) ? postgres->url : pooler->url;
    stage_say(s, stage_has_pawl(s) ? "the locks have connections of their own; the application's four are in the pool"
                                   : "locks and queries share a pool of four connections, pool_mode = session");
    struct worker *a = stage_worker(s, "A", url);
    worker_must_take(s, a, 5000);
    for (int i = 0; i < 3; i++) {
        waiting[i] = stage_worker(s, names[i], url);
        worker_take_start(s, waiting[i], 6000);
        stage_wait(s, 250); /* it is connected and waits, before the next one comes */
    }
    char *text = server_sql(pooler->port, "SELECT 1");
    if (text && strcmp(text, "1") == 0) {
        stage_say(s, "A's query runs");
        worker_write(s, a);
    } else stage_broke(s, "the holder's query gets no connection: all are taken by those who wait for the lock");
    free(text);
    worker_release(s, a);
    if (worker_take_end(s, waiting[0])) worker_release(s, waiting[0]);
}

const struct scenario scenario_pooler_starve = {
    .name = "pooler-starve",
    .title = "waiters take all connections of the pool, and the holder cannot work",
    .happens = "A has the lock in a session of the pool. Three others wait for it, each in a connection. The pool of "
               "four is empty: A's "
               "own query waits for those who wait for A.",
    .believed = "Waiting for a lock costs nothing.",
    .truth = "In a session pool each waiter pins a connection. pawl refuses a pooler unless told otherwise, so locks "
             "have connections of "
             "their own, few for each process however many locks it holds.",
    .service = "postgresql",
    .needs = "initdb pgbouncer",
    .plain = &plain_postgresql,
    .plain_breaks = true,
    .play = play};
