/* Three failures of locks in files, on one machine. */
#include "../stage.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct place {
    char dir[96], url[112];
};

static void make_place(struct stage *s, struct place *p) {
    snprintf(p->dir, sizeof p->dir, "%s/locks", stage_dir(s));
    snprintf(p->url, sizeof p->url, "file:%s", p->dir);
    if (mkdir(p->dir, 0700)) stage_fail(s, "cannot make %s: %s", p->dir, strerror(errno));
}

static void play_removed(struct stage *s) {
    struct place place;
    char path[112];
    make_place(s, &place);
    struct worker *a = stage_worker(s, "A", place.url), *b = stage_worker(s, "B", place.url);
    worker_must_take(s, a, 5000);
    worker_write(s, a);
    snprintf(path, sizeof path, "%s/lock", place.dir);
    if (unlink(path)) stage_fail(s, "cannot remove %s: %s", path, strerror(errno));
    stage_fault(s, "lock file", "somebody tidies up: the lock file is removed");
    worker_must_take(s, b, 5000);
    worker_write(s, b);
    stage_wait(s, 300);
    worker_write(s, a);
    worker_release(s, a);
}

/* Another program gets the pid of one that is dead, as after a reboot or 32768 others. */
static void reuse_pid(struct stage *s, pid_t pid) {
    struct clone_args how = {.exit_signal = SIGCHLD, .set_tid = (uint64_t)(uintptr_t)&pid, .set_tid_size = 1};
    pid_t parent = getpid();
    long made = syscall(SYS_clone3, &how, sizeof how);
    if (made == 0) {
        signal(SIGTERM, SIG_DFL);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (getppid() == parent) pause();
        _exit(0);
    }
    if (made < 0 && errno != EEXIST) /* somebody has it already: as good */
        stage_skip(s, "choosing a pid needs CAP_SYS_ADMIN: %s", strerror(errno));
}

static void play_pid(struct stage *s) {
    struct place place;
    make_place(s, &place);
    struct worker *a = stage_worker(s, "A", place.url), *b = stage_worker(s, "B", place.url);
    worker_must_take(s, a, 5000);
    worker_write(s, a);
    pid_t pid = a->pid;
    worker_kill(s, a);
    reuse_pid(s, pid);
    stage_say(s, "another program gets A's pid");
    if (worker_take(s, b, 4000)) worker_write(s, b);
    else stage_broke(s, "the lock of a dead process is never free: its pid belongs to another program");
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void write_line(const char *path, const char *format, unsigned id) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd >= 0) dprintf(fd, format, id, id), close(fd);
}

/* A disk of our own that nobody else sees: in a mount namespace, and, unless we are root, a user namespace. */
static void small_disk(struct stage *s, const char *dir) {
    unsigned user = getuid(), group = getgid();
    if (unshare(CLONE_NEWNS | (user ? CLONE_NEWUSER : 0)))
        stage_skip(s, "a small disk needs a namespace of its own: %s", strerror(errno));
    if (user) {
        write_line("/proc/self/setgroups", "deny", 0);
        write_line("/proc/self/uid_map", "%u %u 1", user);
        write_line("/proc/self/gid_map", "%u %u 1", group);
    }
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount("tmpfs", dir, "tmpfs", 0, "size=256k,mode=0700"))
        stage_skip(s, "a small disk cannot be mounted: %s", strerror(errno));
}

static void fill(struct stage *s, const char *path) {
    static const char block[4096];
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600), blocks = 0;
    while (fd >= 0 && write(fd, block, sizeof block) == (ssize_t)sizeof block && blocks < 1000) blocks++;
    bool full = fd >= 0 && errno == ENOSPC;
    if (fd >= 0) close(fd);
    if (!full) stage_fail(s, "the disk does not get full");
}

static void one_turn(struct stage *s, struct worker *w) {
    if (!worker_take(s, w, 3000)) return;
    worker_write(s, w);
    stage_wait(s, 200);
    worker_release(s, w);
}

static void play_full(struct stage *s) {
    struct place place;
    char filler[112];
    make_place(s, &place);
    small_disk(s, place.dir);
    snprintf(filler, sizeof filler, "%s/log", place.dir);
    struct worker *a = stage_worker(s, "A", place.url), *b = stage_worker(s, "B", place.url);
    one_turn(s, a);
    one_turn(s, b);
    fill(s, filler);
    stage_fault(s, "disk", "a log fills the disk");
    one_turn(s, a);
    unlink(filler);
    stage_fault_over(s, "disk", "the log is removed: there is room again");
    one_turn(s, b);
    one_turn(s, a);
}

#define FILES .service = "file", .needs = "", .plain_breaks = true

const struct scenario scenario_file_removed = {
    .name = "file-removed",
    .title = "the lock file is removed while it is held",
    .happens = "A has locked a file. Something tidies up old files, or a script ends with rm of its lock. B makes the "
               "file anew and locks it: another file, of the same name.",
    .believed = "A lock file that nobody uses may be removed, and flock is safe.",
    .truth = "The kernel locks the file, not its name. pawl tells the holder at its release that the lock was lost, "
             "which is too late; its tokens live in another file and go on rising, so a guard refuses A.",
    FILES,
    .plain = &plain_flock,
    .pawl_breaks = true,
    .quick = true,
    .play = play_removed};
const struct scenario scenario_stale_pid = {
    .name = "stale-pid",
    .title = "a killed holder's pid file, and a pid that belongs to somebody else by now",
    .happens = "A writes its pid into a file, and is killed. Another program gets that pid. B looks: the process of "
               "the file lives, so it waits for ever.",
    .believed = "kill -0 tells whether the holder is alive.",
    .truth = "It tells whether any process has that number, in this container. A lock that the kernel keeps is free "
             "when its holder is dead, whoever has the pid.",
    FILES,
    .plain = &plain_pidfile,
    .play = play_pid};
const struct scenario scenario_full_disk = {
    .name = "full-disk",
    .title = "the disk with the token counter is full for a while",
    .happens = "The recipe writes its counter to a new file and renames that, as one should. The disk is full: the new "
               "file is empty, and takes the place of the old one. Tokens begin again at 1.",
    .believed = "A rename is atomic, so the counter is the old one or the new one.",
    .truth = "It is, and the new one is empty. pawl writes its counter in place, with a checksum, and grants nothing "
             "that it could not write.",
    FILES,
    .plain = &plain_counter,
    .plain_is_checked = true,
    .play = play_full};
