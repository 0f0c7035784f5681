/* Failures around etcd: the service stays right, its clients do not. */
#include "../stage.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct cluster {
    struct server *member[3];
    struct proxy *way[3]; /* of the other members to it; NULL: direct */
    int leader;
    char from_leader[128], from_others[128]; /* all members; the leader first, or last */
};

static bool post(int port, const char *path, const char *body, char *ret, size_t size) {
    char request[256];
    size_t used = 0;
    int fd = server_dial(port);
    if (fd < 0) return false;
    int n = snprintf(request, sizeof request, "POST %s HTTP/1.0\r\nContent-Length: %zu\r\n\r\n%s", path, strlen(body),
                     body);
    if (send(fd, request, (size_t)n, MSG_NOSIGNAL) == n)
        for (ssize_t got; used < size - 1 && (got = read(fd, ret + used, size - 1 - used)) > 0;) used += (size_t)got;
    close(fd);
    ret[used] = 0;
    return strstr(ret, " 200 ") != NULL;
}

/* Its own id is the leader's. */
static bool leads(int port) {
    char reply[2048], mine[32] = "", leader[32] = "";
    if (!post(port, "/v3/maintenance/status", "{}", reply, sizeof reply)) return false;
    const char *a = strstr(reply, "\"member_id\":\""), *b = strstr(reply, "\"leader\":\"");
    if (!a || !b) return false;
    sscanf(a + 13, "%31[0-9]", mine);
    sscanf(b + 10, "%31[0-9]", leader);
    return *mine && strcmp(mine, leader) == 0;
}

static bool has_leader(void *data) {
    struct cluster *c = data;
    for (c->leader = 0; c->leader < 3; c->leader++)
        if (leads(c->member[c->leader]->port)) return true;
    return false;
}

static void start(struct stage *s, struct cluster *c, bool apart) {
    struct server *all = stage_server(s); /* three in a row */
    stage_server(s);
    stage_server(s);
    if (!apart) server_start_etcd_cluster(all, 3, NULL);
    else {
        int listen[3], tell[3];
        for (int i = 0; i < 3; i++) {
            c->way[i] = stage_proxy(s, listen[i] = server_free_port());
            tell[i] = proxy_port(c->way[i]);
        }
        server_start_etcd_apart(all, 3, listen, tell);
    }
    for (int i = 0; i < 3; i++) c->member[i] = &all[i];
    stage_until(s, has_leader, c, 10000, "a leader");
    int l = c->leader;
    snprintf(c->from_leader, sizeof c->from_leader, "etcd://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d", all[l].port,
             all[(l + 1) % 3].port, all[(l + 2) % 3].port);
    snprintf(c->from_others, sizeof c->from_others, "etcd://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d",
             all[(l + 1) % 3].port, all[(l + 2) % 3].port, all[l].port);
    stage_ttl(s, 3000);
}

/* B's. A plain A loses the lock, sooner or later; another A does not, and its lease would have ended twice. */
static int64_t patience_ms(const struct stage *s) { return stage_has_pawl(s) ? 8000 : 25000; }

static void lose_leader(struct stage *s, int signal, const char *how) {
    struct cluster c;
    start(s, &c, false);
    struct worker *a = stage_worker(s, "A", c.from_leader), *b = stage_worker(s, "B", c.from_others);
    worker_must_take(s, a, 5000);
    worker_write(s, a);
    server_kill(c.member[c.leader], signal);
    stage_fault(s, "etcd leader", "%s", how);
    bool got = worker_take(s, b, patience_ms(s));
    if (got) worker_write(s, b);
    if (signal == SIGSTOP) {
        server_kill(c.member[c.leader], SIGCONT);
        stage_fault_over(s, "etcd leader", "the old leader goes on");
    }
    worker_write(s, a);
}
static void play_killed(struct stage *s) { lose_leader(s, SIGKILL, "the leader is killed"); }
static void play_frozen(struct stage *s) {
    lose_leader(s, SIGSTOP, "the leader is frozen: it neither answers nor hangs up");
}

static void cut_leader(struct cluster *c, bool on) {
    for (int i = 0; i < 3; i++)
        if (i == c->leader) proxy_freeze(c->way[i], on);
        else proxy_shun(c->way[i], on ? c->member[c->leader]->pid : 0);
}

static void play_cut(struct stage *s) {
    struct cluster c;
    start(s, &c, true);
    struct worker *a = stage_worker(s, "A", c.from_leader), *b = stage_worker(s, "B", c.from_others);
    worker_must_take(s, a, 5000);
    worker_write(s, a);
    cut_leader(&c, true);
    stage_fault(s, "etcd leader", "nothing passes between the leader and the other two; clients still reach all three");
    if (worker_take(s, b, patience_ms(s))) worker_write(s, b);
    worker_write(s, a);
    cut_leader(&c, false);
    stage_fault_over(s, "etcd leader", "the three are together again");
}

static void play_partition(struct stage *s) {
    struct cluster c;
    struct proxy *way[3];
    char url[128] = "etcd://";
    start(s, &c, false);
    for (int i = 0; i < 3; i++) {
        way[i] = stage_proxy(s, c.member[i]->port);
        snprintf(url + strlen(url), 24, "%s127.0.0.1:%d", i ? "," : "", proxy_port(way[i]));
    }
    struct worker *a = stage_worker(s, "A", url), *b = stage_worker(s, "B", c.from_leader);
    worker_must_take(s, a, 5000);
    worker_write(s, a);
    for (int i = 0; i < 3; i++) proxy_freeze(way[i], true);
    stage_fault(s, "network of A", "nothing passes between A and etcd any more");
    worker_must_take(s, b, 20000);
    worker_write(s, b);
    stage_wait(s, 300);
    worker_write(s, a);
    for (int i = 0; i < 3; i++) proxy_freeze(way[i], false);
    stage_fault_over(s, "network of A", "the network is whole again");
}

static void play_quorum(struct stage *s) {
    struct cluster c;
    start(s, &c, false);
    struct worker *a = stage_worker(s, "A", c.from_leader), *b = stage_worker(s, "B", c.from_others);
    worker_must_take(s, a, 5000);
    for (int i = 1; i < 3; i++) server_kill(c.member[(c.leader + i) % 3], SIGKILL);
    stage_fault(s, "etcd", "two of three members die: no quorum, nobody can renew");
    stage_wait(s, 4000);
    for (int i = 1; i < 3; i++) server_restart(c.member[(c.leader + i) % 3]);
    stage_fault_over(s, "etcd", "the members are back");
    if (worker_take(s, b, 12000)) worker_write(s, b);
    stage_wait(s, 300);
    worker_write(s, a);
}

static bool taken(void *data) {
    char reply[2048]; /* the key "lock", or any under pawl's prefix */
    return post(*(int *)data, "/v3/kv/range", "{\"key\":\"bG9jaw==\"}", reply, sizeof reply) &&
           strstr(reply, "\"kvs\"");
}

static void play_late_token(struct stage *s) {
    struct server *etcd = stage_server(s);
    char url[64];
    server_start_etcd(etcd, NULL);
    struct proxy *way = stage_proxy(s, etcd->port);
    snprintf(url, sizeof url, "etcd://127.0.0.1:%d", proxy_port(way));
    stage_ttl(s, 2000);
    struct worker *a = stage_worker(s, "A", url), *b = stage_worker(s, "B", etcd->url);
    if (stage_has_pawl(s)) worker_must_take(s, a, 5000);
    else {
        proxy_delay(way, PROXY_TO_CLIENT, 300);
        worker_take_start(s, a, 5000);
        stage_until(s, taken, &etcd->port, 5000, "A's transaction");
        stage_say(s, "A's transaction is done; A has not read its token yet");
    }
    worker_pause(s, a);
    worker_must_take(s, b, 20000);
    worker_write(s, b);
    worker_resume(s, a);
    if (!stage_has_pawl(s) && !worker_take_end(s, a)) stage_fail(s, "A was not told of its grant");
    if (worker_write_late(s, a) && !stage_has_pawl(s))
        stage_broke(s, "a resource that compares tokens took a stale write: A read its token after B's grant");
}

#define ETCD .service = "etcd", .needs = "etcd", .plain = &plain_etcd, .plain_breaks = true

const struct scenario scenario_etcd_leader_killed = {
    .name = "etcd-leader-killed",
    .title = "the etcd leader dies, which the holder was connected to",
    .happens = "A renews through one endpoint, which dies. The cluster elects another leader and goes on; A's lease "
               "ends. B gets the "
               "lock. A was told of an error by its keep-alive, and logged it.",
    .believed = "etcd is highly available, so my lock is.",
    .truth = "The service is; the client must go to another endpoint, and must take a missing renewal for what it is.",
    ETCD,
    .play = play_killed};
const struct scenario scenario_etcd_leader_frozen = {
    .name = "etcd-leader-frozen",
    .title = "the etcd leader freezes: it neither answers nor hangs up",
    .happens = "The same, but A's connection stands. Nothing tells A that nobody is at the other end.",
    .believed = "A broken connection will be reported.",
    .truth = "A frozen one is not. Each request needs a deadline of its own, well before the lease ends.",
    ETCD,
    .play = play_frozen};
const struct scenario scenario_etcd_leader_cut = {
    .name = "etcd-leader-cut",
    .title = "the etcd leader is cut off from the other members, but not from its clients",
    .happens =
        "A renews at the leader, which loses touch with the other two. They elect another one and go on; the old "
        "leader answers, but cannot renew. A's lease ends, B gets the lock, A was told of errors and logged "
        "them.",
    .believed = "My endpoint answers, so all is well.",
    .truth = "A member without a majority can keep nothing alive. The client must go to another endpoint, well before "
             "the lease ends.",
    ETCD,
    .play = play_cut};
const struct scenario scenario_etcd_partition = {
    .name = "etcd-partition",
    .title = "the holder is cut off from all members of etcd",
    .happens = "A cannot reach etcd any more, but it can reach the storage. Its lease ends, B gets the lock and "
               "writes, A writes.",
    .believed = "etcd is linearizable, so two holders are impossible.",
    .truth = "In etcd there is one. The other one is A, who has not heard. pawl's deadline ends before the lease does.",
    ETCD,
    .play = play_partition};
const struct scenario scenario_etcd_quorum_lost = {
    .name = "etcd-quorum-lost",
    .title = "etcd loses its quorum for a while",
    .happens = "Two of three members die: no renewal can succeed for longer than the ttl. They come back. B waits all "
               "the time.",
    .believed = "Whoever could not renew for a whole ttl has lost the lock.",
    .truth =
        "Without a quorum no lease can end, and a new leader gives each its full ttl again: the plain holder is safe, "
        "by luck, "
        "as long as it goes on renewing. pawl cannot know that and stops at its deadline; B is served one ttl later.",
    .service = "etcd",
    .needs = "etcd",
    .plain = &plain_etcd,
    .play = play_quorum};
const struct scenario scenario_etcd_late_token = {
    .name = "etcd-late-token",
    .title = "a token that is read after the grant fences the wrong one",
    .happens =
        "The recipe creates its key, then reads the store for a token. A is paused between the two; its lease ends, B "
        "gets the "
        "lock and writes. A wakes up and reads a revision above B's. The resource compares tokens, and accepts A.",
    .believed = "Any revision of etcd is a fencing token.",
    .truth = "Only one that belongs to the grant itself: the create revision of the key, from the transaction that "
             "proves it.",
    ETCD,
    .plain_is_checked = true,
    .pawl_breaks = true,
    .play = play_late_token};
