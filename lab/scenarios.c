/* scenarios.c: the table of all scenarios, in the order in which they are told. */
#include "stage.h"
#include <string.h>

#define SCENARIOS(X)                                                                                                   \
    X(zombie)                                                                                                          \
    X(zombie_long)                                                                                                     \
    X(partition)                                                                                                       \
    X(late_duplicate)                                                                                                  \
    X(stale_release)                                                                                                   \
    X(lost_reply)                                                                                                      \
    X(wrapper_killed)                                                                                                  \
    X(herd)                                                                                                            \
    X(redis_clock)                                                                                                     \
    X(redis_failover)                                                                                                  \
    X(redis_failover_wait)                                                                                             \
    X(redlock_clock)                                                                                                   \
    X(redlock_partition)                                                                                               \
    X(redlock_restart)                                                                                                 \
    X(pooler_leak)                                                                                                     \
    X(pooler_starve)                                                                                                   \
    X(pg_promotion)                                                                                                    \
    X(host_vanishes)                                                                                                   \
    X(etcd_leader_killed)                                                                                              \
    X(etcd_leader_frozen)                                                                                              \
    X(etcd_leader_cut)                                                                                                 \
    X(etcd_partition)                                                                                                  \
    X(etcd_quorum_lost)                                                                                                \
    X(etcd_late_token)                                                                                                 \
    X(file_removed)                                                                                                    \
    X(stale_pid)                                                                                                       \
    X(full_disk)

#define DECLARE(name) extern const struct scenario scenario_##name;
#define POINT(name) &scenario_##name,
SCENARIOS(DECLARE)
const struct scenario *const scenarios[] = {SCENARIOS(POINT) NULL};

const struct scenario *scenario_find(const char *name) {
    for (int i = 0; scenarios[i]; i++)
        if (strcmp(scenarios[i]->name, name) == 0) return scenarios[i];
    return NULL;
}

const char *scenario_recipe(const struct scenario *scenario) {
    return scenario->plain_does ? scenario->plain_does : scenario->plain->does;
}
