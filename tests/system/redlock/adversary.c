/* adversary.c: many who take one lock while everything goes wrong at random: locks vanish at any moment, messages are
 * late and come twice, connections break, instances are stopped, killed and emptied. Two promises must hold all the
 * same: no token is given twice; and whoever began after another one had succeeded gets a higher one. Where no lock
 * vanishes by itself (alone, hasty) there is a third one: nobody gets it while another one holds it, by the clock of
 * the holder. With a module whose seal does nothing (unsealed), or whose emptied instances vote at once (hasty), it has
 * to find something. */
#include "backend.h"
#include "clock.h"
#include "module.h"
#include "proxy.h"
#include "random.h"
#include "server.h"
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 3, CLIENTS = 3, TOKENS = 1 << 20 };

static const struct backend *backend;
static struct server servers[N];
static struct proxy *proxies[CLIENTS][N];
static int goal;
static bool broken; /* the module: something has to be found */
static bool wipes;  /* else nobody loses its memory: what the seal alone has to stand */
static bool alone;  /* nothing vanishes, so there is one holder */
static int64_t ttl_ms;
static struct holder {
    uint64_t token; /* 0: nobody */
    int64_t until_ns;
} holder;
static atomic_int acquired, doubled, fell, both, renewed, refused, rounds, wiped, stopped, replayed, dropped, cut;
static atomic_bool over;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static uint64_t *given; /* a hash set of tokens */
static uint64_t highest;

static uint64_t highest_now(void) {
    pthread_mutex_lock(&mutex);
    uint64_t h = highest;
    pthread_mutex_unlock(&mutex);
    return h;
}

static int64_t until_of(int64_t sent_ns, int64_t left_ms) {
    return clock_after_ms(sent_ns, left_ms - ttl_ms / 100 - 2); /* as the core counts */
}

/* It holds until then; until_ns 0: no more. */
static void hold(uint64_t token, int64_t until_ns) {
    pthread_mutex_lock(&mutex);
    if (holder.token == token) holder = until_ns ? (struct holder){token, until_ns} : (struct holder){0, 0};
    pthread_mutex_unlock(&mutex);
}

/* `above`: the highest that had succeeded before this attempt began. */
static void judge(uint64_t token, uint64_t above, int64_t until_ns) {
    pthread_mutex_lock(&mutex);
    int64_t now = clock_now_ns();
    if (until_ns > now) { /* else it is told "too late" */
        if (alone && holder.token && now < holder.until_ns) atomic_fetch_add(&both, 1);
        holder = (struct holder){token, until_ns};
    }
    size_t at = token * UINT64_C(0x9E3779B97F4A7C15) >> 44;
    while (given[at] && given[at] != token) at = (at + 1) % TOKENS;
    if (given[at]) atomic_fetch_add(&doubled, 1);
    given[at] = token;
    if (token <= above) atomic_fetch_add(&fell, 1);
    if (token > highest) highest = token;
    bool enough = broken && doubled + fell + both >= (alone ? 1 : 5); /* seen is seen */
    if (atomic_fetch_add(&acquired, 1) + 1 >= goal || enough) atomic_store(&over, true);
    pthread_mutex_unlock(&mutex);
}

static void pause_us(int64_t us) {
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    ppoll(NULL, 0, &t, NULL);
}

static struct bk_until soon(void) { return (struct bk_until){clock_after_ms(clock_now_ns(), 1000), -1}; }

/* --- those who want the lock --- */

struct worker {
    struct bk *bk;
    struct bk_session *session;
};

static void drop(struct worker *w) {
    if (w->session) backend->drop(w->session, false);
    w->session = NULL;
}

/* Where there is one holder it holds for longer at times, and renews. */
static void keep(struct worker *w, struct bk_life *life) {
    enum bk_says each;
    struct bk_life *lives[] = {life};
    pawl_error error = PAWL_ERROR_INIT;
    for (int n = random_between(0, 7) ? 0 : (int)random_between(1, 8); n > 0; n--) {
        int64_t left, sent_ns = clock_now_ns();
        if (backend->renew(w->session, lives, 1, soon(), &each, &left, &error) != BK_YES || each != BK_YES) return;
        hold(life->grant->token, until_of(sent_ns, left));
        atomic_fetch_add(&renewed, 1);
        pause_us(random_between(0, 30000));
    }
}

static void use(struct worker *w, struct bk_grant *grant, struct bk_life *life) {
    enum bk_says each = BK_UNKNOWN;
    struct bk_life *lives[] = {life};
    struct bk_grant *grants[] = {grant};
    int64_t left;
    pawl_error error = PAWL_ERROR_INIT;
    if (random_between(0, 3) == 0) pause_us(random_between(0, 1500));
    if (random_between(0, 3) == 0) backend->renew(w->session, lives, 1, soon(), &each, &left, &error);
    if (alone && random_between(0, 7) == 0) pause_us(random_between(0, 1000 * ttl_ms));
    if (alone) keep(w, life);
    hold(grant->token, 0);
    if (random_between(0, 5) && backend->release(w->session, grants, 1, soon(), &each, &error) > BK_NO) drop(w);
}

static void *work(void *data) {
    struct worker w = {.bk = data};
    while (!atomic_load(&over)) {
        pawl_error error = PAWL_ERROR_INIT;
        struct bk_busy busy;
        struct bk_grant grant = {0};
        struct bk_claim claim = {.name = "a", .name_len = 1, .ttl_ms = ttl_ms, .about = "host=h"};
        struct bk_life life = {.ttl_ms = ttl_ms, .grant = &grant};
        claim.life = &life;
        random_bytes(claim.owner, sizeof claim.owner);
        if (!w.session && backend->connect(w.bk, soon(), &w.session, &error) != BK_YES) {
            w.session = NULL;
            atomic_fetch_add(&refused, 1);
            pause_us(2000);
            continue;
        }
        uint64_t above = highest_now();
        enum bk_says says = BK_NO;
        int64_t sent_ns = clock_now_ns();
        for (int i = 0; i < 3 && says != BK_YES; i++) { /* repeats of one attempt, too */
            says = backend->take(w.session, &claim, false, soon(), &grant, &busy, &error);
            atomic_fetch_add(&rounds, 1);
            if (says > BK_NO) break;
            if (says == BK_NO) pause_us(random_between(0, 300));
        }
        grant.claim = &claim;
        if (says == BK_YES) {
            judge(grant.token, above, until_of(sent_ns, grant.left_ms));
            use(&w, &grant, &life);
            backend->end(&grant, false);
        } else if (says == BK_UNKNOWN) {
            drop(&w);
        }
    }
    drop(&w);
    return NULL;
}

/* --- the adversary --- */

static bool votes(int i) {
    char *meta = server_redis(servers[i].port, "GET adv:%%r");
    bool yes = meta && strlen(meta) == 212;
    free(meta);
    return yes;
}

/* One at a time: with two of three nothing is left that knows the numbers. Those before may wait for their vote yet. */
static void wipe(int i, bool restart) {
    for (int k = 0; k < N; k++)
        if (!votes(k)) return;
    if (restart) server_restart(&servers[i]);
    else free(server_redis(servers[i].port, "FLUSHALL"));
    atomic_fetch_add(&wiped, 1);
}

static void *harm(void *data) {
    (void)data;
    while (!atomic_load(&over)) {
        int i = (int)random_between(0, N - 1), c = (int)random_between(0, CLIENTS - 1);
        struct proxy *p = proxies[c][i];
        int64_t what = random_between(0, 999);
        if (what < 500 && !alone) {
            free(server_redis(servers[i].port, "DEL adv:a"));
            atomic_fetch_add(&dropped, 1);
        } else if (what < 800) {
            proxy_delay(p, random_between(0, 1) ? PROXY_TO_SERVER : PROXY_TO_CLIENT,
                        random_between(0, 2) ? 0 : random_between(1, 4));
        } else if (what < 960) {
            atomic_fetch_add(&replayed, proxy_replay(p));
        } else if (what < 970) {
            proxy_cut(p, false);
            atomic_fetch_add(&cut, 1);
        } else if (what < 976) {
            server_kill(&servers[i], SIGSTOP);
            pause_us(random_between(1000, 15000));
            server_kill(&servers[i], SIGCONT);
            atomic_fetch_add(&stopped, 1);
        } else if (what < (alone ? 1000 : 980) && wipes) {
            wipe(i, what % 4 == 0);
            if (alone) pause_us(random_between(0, 2) ? random_between(0, 100000) : 3000 * ttl_ms); /* then all vote */
        }
        pause_us(random_between(0, 800));
    }
    return NULL;
}

static void *watch(void *data) {
    (void)data;
    int64_t end = clock_after_ms(clock_now_ns(), broken ? 600000 : 200000 + (alone ? 400 : 40) * goal);
    while (!atomic_load(&over) && clock_now_ns() < end) pause_us(20000);
    atomic_store(&over, true);
    return NULL;
}

static struct bk *open_client(int c) {
    char text[256];
    pawl_error error = PAWL_ERROR_INIT;
    struct url *url;
    struct bk *bk;
    for (int i = 0; i < N; i++) proxies[c][i] = proxy_start(servers[i].port);
    snprintf(text, sizeof text,
             "redlock://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d?prefix=adv:", proxy_port(proxies[c][0]),
             proxy_port(proxies[c][1]), proxy_port(proxies[c][2]));
    if (url_parse(text, &url, &error) || backend->open(url, &bk, &error) != BK_YES) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
    url_free(url);
    return bk;
}

/* All go at it until the goal is reached. */
static void run(void) {
    pthread_t workers[CLIENTS], watcher;
    struct bk *clients[CLIENTS];
    for (int i = 0; i < N; i++) server_start_redis(&servers[i], NULL);
    for (int c = 0; c < CLIENTS; c++) clients[c] = open_client(c);
    for (int c = 0; c < CLIENTS; c++) pthread_create(&workers[c], NULL, work, clients[c]);
    pthread_create(&watcher, NULL, watch, NULL);
    harm(NULL); /* the servers end with the thread that started them */
    for (int c = 0; c < CLIENTS; c++) pthread_join(workers[c], NULL);
    pthread_join(watcher, NULL);
    for (int c = 0; c < CLIENTS; c++) {
        backend->close(clients[c], false);
        for (int i = 0; i < N; i++) proxy_stop(proxies[c][i]);
    }
    for (int i = 0; i < N; i++) server_stop(&servers[i]);
}

/* adversary sealed|unsealed|alone|hasty MODULE */
int main(int argc, char **argv) {
    void *module = argc > 2 ? dlopen(argv[2], RTLD_NOW | RTLD_LOCAL) : NULL;
    const struct backend *const *table = module ? dlsym(module, MODULE_BACKEND_SYMBOL) : NULL;
    if (!table) return fprintf(stderr, "%s\n", dlerror()), 2;
    backend = *table;
    alone = strcmp(argv[1], "alone") == 0 || strcmp(argv[1], "hasty") == 0;
    broken = strcmp(argv[1], "unsealed") == 0 || strcmp(argv[1], "hasty") == 0;
    wipes = alone || !broken;
    ttl_ms = alone ? 400 : 150;
    goal = broken ? 100000 : alone ? (getenv("PAWL_TEST_FULL") ? 2000 : 300) : getenv("PAWL_TEST_FULL") ? 100000 : 5000;
    given = calloc(TOKENS, sizeof *given);
    run();
    printf("# %d acquisitions of %d attempts; locks dropped %d, messages doubled %d, connections cut %d, instances "
           "stopped %d, "
           "emptied %d, renewals %d\n",
           acquired, rounds, dropped, replayed, cut, stopped, wiped, renewed);
    printf("# tokens given twice %d, tokens that fell %d, two holders %d\n", doubled, fell, both);
    bool violated = doubled + fell + both > 0, reached = acquired >= goal,
         fine = broken ? violated : reached && !violated;
    if (!broken)
        printf("%s 1 - %d acquisitions, none with a token twice or lower%s\n", fine ? "ok" : "not ok", goal,
               alone ? ", nor while another one held" : "");
    else printf("%s 1 - without the %s the same finds a violation\n", fine ? "ok" : "not ok", alone ? "wait" : "seal");
    puts("1..1");
    free(given);
    return !fine;
}
