/* The program that holds the lock for a command is killed; what becomes of the command? Here with the real wrappers:
 * etcdctl lock, and pawl run. */
#include "../stage.h"
#include "clock.h"
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* A command that writes ten times a second, and logs "NAME SECONDS.NS STATUS". */
static const char script[] =
    "echo $$ >%s/%s.pid; while :; do %s; echo \"%s $(date +%%s.%%N) $?\" >>%s/log; sleep 0.1; done";

struct job {
    const char *name;
    char pid_file[96];
    pid_t front, command; /* 0: not yet */
    int hold;
};

static void start(struct stage *s, struct job *j, const struct server *etcd) {
    char write[200], line[700], endpoint[64];
    snprintf(j->pid_file, sizeof j->pid_file, "%s/%s.pid", stage_dir(s), j->name);
    if (stage_variant(s) == VARIANT_GUARDED)
        snprintf(write, sizeof write, "echo %s | '%s' guard put dir:%s/guard resource 2>>%s/refusals", j->name,
                 stage_pawl(), stage_dir(s), stage_dir(s));
    else snprintf(write, sizeof write, "echo %s >%s/resource", j->name, stage_dir(s));
    snprintf(line, sizeof line, script, stage_dir(s), j->name, write, j->name, stage_dir(s));
    snprintf(endpoint, sizeof endpoint, "--endpoints=127.0.0.1:%d", etcd->port);
    j->front = fork();
    if (j->front) return;
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) _exit(127);
    setenv("ETCDCTL_API", "3", 1);
    if (stage_has_pawl(s))
        execl(stage_pawl(), "pawl", "run", "-u", etcd->url, "-t", "2s", "lock", "--", "sh", "-c", line, (char *)NULL);
    else execlp("etcdctl", "etcdctl", endpoint, "lock", "--ttl=2", "lock", "--", "sh", "-c", line, (char *)NULL);
    _exit(127);
}

static bool runs(void *data) {
    struct job *j = data;
    FILE *file = fopen(j->pid_file, "re");
    if (file && fscanf(file, "%d", &j->command) != 1) j->command = 0;
    if (file) fclose(file);
    return j->command > 0;
}

static void begin(struct stage *s, struct job *j, int ms) {
    stage_until(s, runs, j, ms, "the command to run");
    stage_say(s, "%s's command runs (pid %d)", j->name, (int)j->command);
    story_span(stage_story(s), SPAN_HOLD, j->name, clock_now_ns());
    j->hold = stage_story(s)->n_spans - 1;
}

static bool gone(void *data) {
    const struct job *j = data;
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)j->command);
    FILE *file = fopen(path, "re");
    if (file && fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 0;
    if (file) fclose(file);
    return !file || state == 'Z';
}

/* What the commands logged becomes part of the record. */
static void read_log(struct stage *s, const struct job jobs[2]) {
    char path[96], name[8];
    long long seconds, ns;
    int status;
    int64_t offset = clock_now_ns() - clock_wall_us() * 1000;
    snprintf(path, sizeof path, "%s/log", stage_dir(s));
    FILE *file = fopen(path, "re");
    while (file && fscanf(file, "%7s %lld.%lld %d", name, &seconds, &ns, &status) == 4) {
        bool accepted = status == 0;
        struct point *p = story_point(stage_story(s), accepted ? POINT_ACCEPTED : POINT_REFUSED, name,
                                      seconds * NS_PER_S + ns + offset);
        p->hold = strcmp(name, "A") == 0 ? jobs[0].hold : jobs[1].hold;
        snprintf(p->text, sizeof p->text, accepted ? "%s writes" : "%s is refused", name);
    }
    if (file) fclose(file);
}

static void play(struct stage *s) {
    struct server *etcd = stage_server(s);
    struct job jobs[2] = {{.name = "A"}, {.name = "B"}}, *a = &jobs[0], *b = &jobs[1];
    server_start_etcd(etcd, NULL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    stage_say(s,
              stage_has_pawl(s) ? "A: pawl run -t 2s lock -- sh -c ..." : "A: etcdctl lock --ttl=2 lock -- sh -c ...");
    start(s, a, etcd);
    begin(s, a, 10000);
    start(s, b, etcd);
    stage_wait(s, 300);
    kill(a->front, SIGKILL);
    stage_say(s, "A's wrapper is killed (SIGKILL)");
    snprintf(story_point(stage_story(s), POINT_KILLED, "A", clock_now_ns())->text, 160, "the wrapper is killed");
    bool dead = server_until(gone, a, 1000);
    stage_story(s)->spans[a->hold].to = dead ? clock_now_ns() : INT64_MAX;
    stage_story(s)->spans[a->hold].outcome = HISTORY_KILLED;
    stage_say(s, dead ? "A's command is dead too" : "A's command lives on");
    begin(s, b, 15000);
    stage_wait(s, 500);
    for (int i = 0; i < 2; i++) {
        kill(jobs[i].front, SIGKILL);
        if (jobs[i].command) kill(jobs[i].command, SIGKILL);
    }
    stage_story(s)->ended = clock_now_ns();
    read_log(s, jobs);
}

const struct scenario scenario_wrapper_killed = {
    .name = "wrapper-killed",
    .title = "the wrapper that holds the lock is killed, and its command lives on",
    .happens = "A wrapper takes the lock and runs a command. The wrapper is killed with SIGKILL (out of memory, kill "
               "-9). Its lease "
               "ends, another machine starts the same command, and the first one still runs.",
    .believed = "The command runs under the lock.",
    .truth = "It runs beside the process that keeps the lock. pawl run has two watchers, and each kills the whole tree "
             "when the other "
             "one dies, before the lock can be free.",
    .service = "etcd",
    .needs = "etcd etcdctl",
    .plain = &plain_etcd,
    .plain_does = "etcdctl lock NAME CMD",
    .plain_breaks = true,
    .play = play};
