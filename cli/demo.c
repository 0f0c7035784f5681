/* demo.c: pawl demo zombie: a worker that lost its lock without knowing it, with a guard and without.
 *
 * By default in memory: two clients of one mem: service in this process, which cannot stop only one of them, so worker
 * 1's renewals end with max_hold, as they would in a stopped process. With -u each worker is a process, and worker 1 is
 * really stopped (SIGSTOP) while it holds the lock. */
#include "clock.h"
#include "guard.h"
#include "options.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define ACCOUNT "account:us-east:9021"
enum { WAIT_2_MS = 60000 };

struct times {
    int lease_1_ms, stall_ms, start_2_ms, lease_2_ms;
};
/* etcd has no shorter leases than seconds, and ends them up to a second late. */
static const struct times quick = {300, 500, 350, 1000}, slow = {2000, 3500, 2100, 4000};

struct order {
    enum { TAKE, WRITE } what;
    int64_t ttl_ms, wait_ms, max_hold_ms;
    int balance;
};

struct result {
    int code;
    int64_t token, left_ms;
    char text[512];
};

struct stage {
    const char *url; /* of the lock */
    struct times times;
    bool processes, guarded;
    char folder[64], guard[128], plain[128];
    int64_t began_ns;
};

struct worker {
    const struct stage *stage;
    const char *name;
    pawl_client *client;
    pawl_lock *lock;
    pid_t pid; /* 0: in this process */
    int sock;
};

/* --- a worker: whatever it does, it never asks whether it still has the lock --- */

static int take(struct worker *w, const struct order *order, struct result *ret, pawl_error *error) {
    pawl_options options = PAWL_OPTIONS_INIT;
    pawl_acquire_options how = PAWL_ACQUIRE_INIT;
    options.label = w->name;
    how.ttl_ms = order->ttl_ms;
    how.max_hold_ms = order->max_hold_ms;
    int code = pawl_open(w->stage->url, &options, &w->client, error);
    if (!code) code = pawl_acquire(w->client, ACCOUNT, &how, &w->lock, error); /* a service that is not there: told now */
    how.wait_ms = order->wait_ms;
    if (code == PAWL_EBUSY) code = pawl_acquire(w->client, ACCOUNT, &how, &w->lock, error);
    if (code) return code;
    ret->token = pawl_token(w->lock);
    ret->left_ms = pawl_remaining_ms(w->lock);
    return PAWL_OK;
}

static int write_guarded(const struct worker *w, const char *data, pawl_error *error) {
    pawl_guard *guard;
    pawl_guard_write write = PAWL_GUARD_WRITE_INIT;
    int code = pawl_guard_open(w->stage->guard, NULL, &guard, error);
    if (code) return code;
    write.resource = write.lock = ACCOUNT;
    write.token = pawl_token(w->lock);
    write.by = w->name;
    code = pawl_guard_put(guard, &write, data, strlen(data), error);
    pawl_guard_close(guard);
    return code;
}

static int write_plain(const struct worker *w, const char *data, pawl_error *error) {
    FILE *file = fopen(w->stage->plain, "we");
    if (file && fputs(data, file) >= 0 && fclose(file) == 0) return PAWL_OK;
    snprintf(error->text, sizeof error->text, "cannot write %s: %s", w->stage->plain, strerror(errno));
    return PAWL_EINTERNAL;
}

static void perform(struct worker *w, const struct order *order, struct result *ret) {
    pawl_error error = PAWL_ERROR_INIT;
    char data[16];
    struct result result = {0};
    snprintf(data, sizeof data, "%d", order->balance);
    if (order->what == TAKE) result.code = take(w, order, &result, &error);
    else result.code = w->stage->guarded ? write_guarded(w, data, &error) : write_plain(w, data, &error);
    snprintf(result.text, sizeof result.text, "%s", error.text);
    *ret = result;
}

static _Noreturn void worker_main(struct worker *w, pid_t parent) {
    struct order order;
    struct result result;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent) _exit(1);
    while (recv(w->sock, &order, sizeof order, 0) == (ssize_t)sizeof order) {
        perform(w, &order, &result);
        if (send(w->sock, &result, sizeof result, MSG_NOSIGNAL) < 0) break;
    }
    pawl_close(w->client);
    _exit(0);
}

static bool worker_start(struct worker *w, const struct stage *stage, const char *name) {
    int pair[2];
    *w = (struct worker){.stage = stage, .name = name, .sock = -1};
    if (!stage->processes) return true;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) return false;
    pid_t parent = getpid();
    fflush(stdout);
    w->pid = fork();
    w->sock = pair[w->pid == 0];
    close(pair[w->pid != 0]);
    if (w->pid == 0) worker_main(w, parent);
    return w->pid > 0;
}

static struct result ask(struct worker *w, struct order order) {
    struct result result = {.code = PAWL_EINTERNAL, .text = "the worker died"};
    if (!w->stage->processes) perform(w, &order, &result);
    else if (send(w->sock, &order, sizeof order, MSG_NOSIGNAL) == (ssize_t)sizeof order) {
        struct result got;
        if (recv(w->sock, &got, sizeof got, 0) == (ssize_t)sizeof got) result = got;
    }
    return result;
}

static void worker_end(struct worker *w) {
    if (w->pid > 0) {
        kill(w->pid, SIGCONT);
        close(w->sock);
        waitpid(w->pid, NULL, 0);
    } else pawl_close(w->client);
}

/* --- the story --- */

__attribute__((format(printf, 3, 4))) static void tell(const struct stage *stage, const char *who, const char *format,
                                                       ...) {
    va_list arguments;
    va_start(arguments, format);
    printf("%6" PRId64 " ms  %s  ", (clock_now_ns() - stage->began_ns) / NS_PER_MS, who);
    vprintf(format, arguments);
    putchar('\n');
    va_end(arguments);
    fflush(stdout);
}

static void wait_until(const struct stage *stage, int64_t ms) {
    clock_wait_fd(-1, 0, stage->began_ns + ms * NS_PER_MS, -1);
}

static int told(const struct result *result, const char *who) {
    return result->code ? complain(exit_code(result->code), "demo", "%s: %s", who, result->text) : 0;
}

/* What is at the end: 0, or an exit code. */
static int show_record(const struct stage *stage, int *ret_balance) {
    pawl_error error = PAWL_ERROR_INIT;
    char text[32] = "";
    if (!stage->guarded) {
        FILE *file = fopen(stage->plain, "re");
        bool got = file && fgets(text, sizeof text, file);
        if (file) fclose(file);
        if (!got) return complain(EXIT_FAILED, "demo", "cannot read %s", stage->plain);
        *ret_balance = atoi(text);
        printf("           in the end  balance %s, and nobody knows by whom\n", text);
        return 0;
    }
    pawl_guard *guard;
    pawl_guard_record *record;
    int code = pawl_guard_open(stage->guard, NULL, &guard, &error);
    if (code) return complain_error("demo", &error);
    code = pawl_guard_get(guard, ACCOUNT, &record, &error);
    pawl_guard_close(guard);
    if (code) return complain_error("demo", &error);
    *ret_balance = atoi(record->data);
    printf("           in the end  balance %s, token %" PRId64 ", written by %s\n", (const char *)record->data,
           record->token, record->by);
    pawl_guard_free(record);
    return 0;
}

struct outcome {
    int balance;
    bool refused;
    int64_t tokens[2];
};

/* The service keeps the lock of a stopped holder: then there is no zombie, and nothing to show. */
static int no_zombie(const struct stage *stage) {
    char *shown = shown_url(stage->url);
    int code = complain(EXIT_REFUSED, "demo",
                        "%s cannot show it: there the lock of a stopped holder is kept for as long as its process or "
                        "session lives; try -u redis://HOST, or no -u",
                        shown ? shown : "this service");
    free(shown);
    return code;
}

/* Before the first line: is it there, what times can it have, is there a zombie to show? 0, or an exit code. */
static int look_at_service(struct stage *stage) {
    struct worker looker = {.stage = stage, .name = "demo"};
    struct order order = {.what = TAKE, .wait_ms = WAIT_2_MS};
    struct result result = {0};
    pawl_error error = PAWL_ERROR_INIT;
    order.ttl_ms = stage->times.lease_1_ms;
    int code = take(&looker, &order, &result, &error);
    if (code == PAWL_EINVALID) {
        pawl_close(looker.client);
        looker.client = NULL;
        stage->times = slow;
        order.ttl_ms = slow.lease_1_ms;
        code = take(&looker, &order, &result, &error);
    }
    if (!code) pawl_release(looker.lock, WAIT_2_MS, NULL); /* a short ttl may be over on a slow machine */
    pawl_close(looker.client);
    if (code) return complain(exit_code(code), "demo", "%s", error.text);
    return result.left_ms == PAWL_FOREVER ? no_zombie(stage) : 0;
}

static int second_worker(const struct stage *stage, struct worker *two, struct outcome *ret) {
    const struct times *t = &stage->times;
    struct result result = ask(two, (struct order){TAKE, t->lease_2_ms, WAIT_2_MS, 0, 0});
    if (result.code) return told(&result, two->name);
    ret->tokens[1] = result.token;
    tell(stage, two->name, "has the lock for %d ms, token %" PRId64, t->lease_2_ms, result.token);
    result = ask(two, (struct order){.what = WRITE, .balance = 2500});
    if (result.code) return told(&result, two->name);
    tell(stage, two->name, "writes balance 2500: accepted");
    return 0;
}

static const char *ink(bool good) { return !use_colour(1) ? "" : good ? "\033[32m" : "\033[31m"; }

static int play(struct stage *stage, struct worker *one, struct worker *two, struct outcome *ret) {
    const struct times *t = &stage->times;
    stage->began_ns = clock_now_ns();
    struct result result =
        ask(one, (struct order){TAKE, t->lease_1_ms, WAIT_2_MS, stage->processes ? 0 : t->lease_1_ms / 4, 0});
    if (result.code) return told(&result, one->name);
    ret->tokens[0] = result.token;
    stage->began_ns = clock_now_ns();
    tell(stage, one->name, "has the lock for %d ms, token %" PRId64, t->lease_1_ms, result.token);
    if (stage->processes) kill(one->pid, SIGSTOP);
    tell(stage, one->name,
         stage->processes ? "is stopped (SIGSTOP), before it has written" : "stalls for %d ms, before it has written",
         t->stall_ms);
    wait_until(stage, t->start_2_ms);
    int code = second_worker(stage, two, ret);
    if (code) return code;
    wait_until(stage, t->stall_ms);
    if (stage->processes) kill(one->pid, SIGCONT);
    result = ask(one, (struct order){.what = WRITE, .balance = 1500});
    if (result.code && result.code != PAWL_GSTALE) return told(&result, one->name);
    ret->refused = result.code == PAWL_GSTALE;
    tell(stage, one->name, "wakes up, believes that it has the lock, writes balance 1500: %s%s%s", ink(ret->refused),
         ret->refused ? "REFUSED" : "accepted", *ink(true) ? "\033[0m" : "");
    if (ret->refused) printf("           %s\n", result.text);
    return show_record(stage, &ret->balance);
}

static int act(struct stage *stage, bool guarded, struct outcome *ret) {
    struct worker one, two;
    stage->guarded = guarded;
    printf(guarded ? "\nWith a guard (%.*s):\n" : "\nWithout a guard:\n", (int)strcspn(stage->guard, ":"),
           stage->guard);
    if (!worker_start(&one, stage, "worker 1"))
        return complain(EXIT_FAILED, "demo", "cannot start a worker: %s", strerror(errno));
    int code = EXIT_FAILED;
    if (worker_start(&two, stage, "worker 2")) {
        code = play(stage, &one, &two, ret);
        worker_end(&two);
    }
    worker_end(&one);
    return code;
}

static int zombie(struct stage *stage) {
    struct outcome with = {0}, without = {0};
    int code = stage->processes ? look_at_service(stage) : 0;
    if (code) return code;
    printf("A worker that lost its lock without knowing it writes to %s.\n", ACCOUNT);
    code = act(stage, true, &with);
    if (!code) code = act(stage, false, &without);
    if (code) return code;
    printf("\nwithout a guard: balance %d (%s)    with a guard: balance %d, worker 1 %s (token %" PRId64 " < %" PRId64
           ")\n",
           without.balance, without.balance == 2500 ? "right by luck" : "wrong", with.balance,
           with.refused ? "refused" : "NOT refused", with.tokens[0], with.tokens[1]);
    return with.refused && with.balance == 2500 && without.balance == 1500 ? 0 : EXIT_FAILED;
}

/* --- the other stories need servers: pawl-lab tells them --- */

static const char *const by_lab[] = {"partition", "stale-release", "redis-failover", "pooler-leak", NULL};

static bool is_by_lab(const char *name) {
    for (int i = 0; by_lab[i]; i++)
        if (strcmp(name, by_lab[i]) == 0) return true;
    return false;
}

/* Beside this program, as installed and in the build tree; else from PATH. */
static int ask_lab(const char *name) {
    static const char *const places[] = {"pawl-lab", "../lab/pawl-lab"};
    char self[512], path[600];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    char *slash = strrchr(self, '/');
    for (int i = 0; i < 2 && slash; i++) {
        snprintf(path, sizeof path, "%.*s/%s", (int)(slash - self), self, places[i]);
        execl(path, "pawl-lab", "run", "-v", name, (char *)NULL);
    }
    execlp("pawl-lab", "pawl-lab", "run", "-v", name, (char *)NULL);
    return complain(EXIT_FAILED, "demo", "%s is told by pawl-lab, which is not here: %s", name, strerror(errno));
}

/* --- the verb --- */

static void use_folder(struct stage *stage) {
    pawl_guard *guard;
    snprintf(stage->plain, sizeof stage->plain, "%s/account", stage->folder);
    snprintf(stage->guard, sizeof stage->guard, "sqlite:%s/accounts.db", stage->folder);
    if (pawl_guard_open(stage->guard, NULL, &guard, NULL)) /* a build without SQLite */
        snprintf(stage->guard, sizeof stage->guard, "dir:%s/accounts", stage->folder);
    else pawl_guard_close(guard);
}

static void remove_folder(const struct stage *stage) {
    static const char *const names[] = {"/account", "/accounts.db", "/accounts.db-journal", NULL};
    char path[192];
    for (int i = 0; names[i]; i++) {
        snprintf(path, sizeof path, "%s%s", stage->folder, names[i]);
        unlink(path);
    }
    if (strncmp(stage->guard, "dir:", 4) == 0) {
        static const char *const endings[] = {".record", ".new", ".lock"};
        for (int i = 0; i < 3; i++) {
            snprintf(path, sizeof path, "%s/account%%3Aus-east%%3A9021%s", stage->guard + 4, endings[i]);
            unlink(path);
        }
        rmdir(stage->guard + 4);
    }
    rmdir(stage->folder);
}

static const struct stage *playing;

/* Nothing is left of an interrupted story either; its workers die with this process. */
static void interrupted(int signal_) {
    remove_folder(playing);
    signal(signal_, SIG_DFL);
    raise(signal_);
}

static void until_signalled(const struct stage *stage) {
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    playing = stage;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (signal(signals[i], interrupted) == SIG_IGN && signals[i] == SIGHUP) signal(SIGHUP, SIG_IGN);
}

int cmd_demo(int argc, char **argv) {
    static const struct verb verb = {
        .name = "demo",
        .usage = "pawl demo [zombie] [-u URL]\n"
                 "pawl demo partition|stale-release|redis-failover|pooler-leak\n\n"
                 "Shows what a fencing token is for: worker 1 stalls until its lease is over, worker 2\n"
                 "gets the lock and writes, worker 1 wakes up and writes too; with a guard, and without.\n"
                 "In memory, unless -u names a service: then with processes, one of which is stopped.\n"
                 "The others are played by pawl-lab, on servers of their own.\n\n"
                 "Exit: 0 the guard refused the zombie; 119 this service cannot show it;\n"
                 "120 unreachable or denied; 125 failed. The others: as pawl-lab run.\n",
        .common = COMMON_URL,
        .mixed = true,
        .most = 1,
        .operands = "zombie"};
    struct common common = COMMON_INIT;
    int n, code = parse_options(&verb, argc, argv, &common, &n);
    if (code >= 0) return code;
    if (n && is_by_lab(argv[1]) && strcmp(common.from, "-u") == 0)
        return complain(EXIT_FAILED, "demo", "%s is played on servers of its own: without -u", argv[1]);
    if (n && is_by_lab(argv[1])) return ask_lab(argv[1]);
    if (n && strcmp(argv[1], "zombie") != 0)
        return complain(EXIT_FAILED, NULL,
                        "demo: there is no demo '%s', only zombie, partition, stale-release, redis-failover and "
                        "pooler-leak (pawl-lab list has more)",
                        argv[1]);
    struct stage stage = {.url = "mem:demo", .times = quick};
    const char *base = getenv("TMPDIR");
    if (!base || !*base || strlen(base) > sizeof stage.folder - sizeof "/pawl-demo-XXXXXX") base = "/tmp";
    snprintf(stage.folder, sizeof stage.folder, "%.46s/pawl-demo-XXXXXX", base);
    if (strcmp(common.from, "-u") == 0 && strncmp(common.url, "mem:", 4) != 0) {
        stage.url = common.url;
        stage.processes = true;
    }
    if (!mkdtemp(stage.folder))
        return complain(EXIT_FAILED, "demo", "cannot make a directory in %s: %s", base, strerror(errno));
    use_folder(&stage);
    until_signalled(&stage);
    code = zombie(&stage);
    remove_folder(&stage);
    return code;
}
