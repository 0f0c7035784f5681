#include "folder.h"
#include "clock.h"
#include "lab.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* BASE_OF_SERVERS: the names of sockets are short. */
enum { PATIENCE_S = 3, OVERDUE_MS = 12000, BASE_MOST = 80, BASE_OF_SERVERS = 14 };

volatile sig_atomic_t lab_interrupted;
static char folder[BASE_MOST + 20];

/* --- what is below --- */

/* A PostgreSQL that is killed leaves its shared memory in the system. */
static bool is_postgres(pid_t pid) {
    char path[32], name[16] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, name, sizeof name - 1);
    close(fd);
    return n > 0 && strncmp(name, "postgres", 8) == 0;
}

static void kill_children(bool kindly) {
    char path[64], text[4096], *at = text;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    for (pid_t pid; (pid = (pid_t)strtol(at, &at, 10)) > 0 && *at == ' ';) {
        kill(pid, kindly && is_postgres(pid) ? SIGQUIT : SIGKILL);
        kill(pid, SIGCONT);
    }
}

void folder_end_below(int64_t ms) {
    int64_t began = clock_now_ns(), end = clock_after_ms(began, ms);
    for (;;) {
        pid_t ended;
        kill_children(clock_now_ns() < began + (end - began) / 2);
        while ((ended = waitpid(-1, NULL, WNOHANG)) > 0) {
        }
        if ((ended < 0 && errno == ECHILD) || clock_now_ns() > end) return;
        poll(NULL, 0, 5);
    }
}

/* --- the directory --- */

static void remove_dir(const char *dir) {
    if (access(dir, F_OK)) return;
    pid_t pid = fork();
    if (pid == 0) {
        execlp("rm", "rm", "-rf", "--", dir, (char *)NULL);
        _exit(127);
    }
    int status = -1;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (status) lab_complain("cannot remove %s", dir);
}

/* Everything of this run has the lock of its directory open: who can take it knows that nobody is left. It comes
 * locked into being. */
static bool lock_dir(const char *dir) {
    char early[sizeof folder + 16], path[sizeof folder + 16];
    snprintf(early, sizeof early, "%s/.lock-new", dir);
    snprintf(path, sizeof path, "%s/.lock", dir);
    int fd = open(early, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    return fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && rename(early, path) == 0; /* open until we end */
}

static void sweep_one(int base, const char *dir, const char *name) {
    char path[sizeof folder + 16];
    struct stat what;
    snprintf(path, sizeof path, "%.24s/.lock", name);
    int fd = openat(base, path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return;
    if (fstat(fd, &what) == 0 && what.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0) {
        snprintf(path, sizeof path, "%.80s/%.24s", dir, name);
        remove_dir(path);
    }
    close(fd);
}

/* What was left by one that was killed with all its processes. */
static void sweep(const char *base) {
    DIR *dir = opendir(base);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (strncmp(entry->d_name, "pawl-lab-", 9) == 0 && strlen(entry->d_name) == 15)
            sweep_one(dirfd(dir), base, entry->d_name);
    if (dir) closedir(dir);
}

static int make(bool servers) {
    const char *base = getenv("TMPDIR");
    if (!base || !*base || strlen(base) > (servers ? BASE_OF_SERVERS : BASE_MOST)) base = "/tmp";
    sweep(base);
    snprintf(folder, sizeof folder, "%s/pawl-lab-XXXXXX", base);
    if (!mkdtemp(folder) || chmod(folder, 0711) || !lock_dir(folder))
        return lab_complain("cannot make a directory in %s: %s", base, strerror(errno));
    setenv("TMPDIR", folder, 1);
    return LAB_OK;
}

/* --- the two processes --- */

static void leave(void) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* the player may, when its patience is over */
    pthread_mutex_lock(&mutex);
    folder_end_below(3000);
    remove_dir(folder);
    pthread_mutex_unlock(&mutex);
}

static sem_t interrupted;

static void interrupt(int signal) {
    lab_interrupted = signal;
    sem_post(&interrupted);
}

/* A thread, since a handler may do none of this. It did not end by itself: it may be inside of something that waits. */
static void *await_patience(void *unused) {
    (void)unused;
    while (sem_wait(&interrupted)) continue;
    int64_t end = clock_after_ms(clock_now_ns(), PATIENCE_S * 1000);
    while (clock_now_ns() < end) poll(NULL, 0, 100);
    leave();
    _exit(LAB_INTERRUPTED);
}

/* With all signals blocked: they are for the player itself. */
static void start_patience(void) {
    sigset_t all, old;
    pthread_t thread;
    sem_init(&interrupted, 0, 0);
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &old);
    if (pthread_create(&thread, NULL, await_patience, NULL) == 0) pthread_detach(thread);
    sigprocmask(SIG_SETMASK, &old, NULL);
}

static _Noreturn void player(int (*fn)(const void *), const void *data, pid_t parent, const sigset_t *mask, int *ret) {
    struct sigaction act = {.sa_handler = interrupt};
    start_patience();
    setpgid(0, 0); /* what is typed at the terminal comes to the keeper, which passes it on */
    signal(SIGTTOU, SIG_IGN);
    sigaction(SIGTERM, &act, NULL);
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGQUIT, &act, NULL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) raise(SIGTERM);
    sigprocmask(SIG_SETMASK, mask, NULL);
    int code = fn(data);
    int64_t end = clock_after_ms(clock_now_ns(), lab_interrupted ? 0 : 5000);
    while (waitpid(-1, NULL, WNOHANG) >= 0 && clock_now_ns() < end) poll(NULL, 0, 10); /* what the servers left */
    leave();
    *ret = fflush(stdout) || ferror(stdout) ? lab_complain("cannot write to standard output") : code;
    exit(0);
}

/* Passes signals on until it has ended; returns the last of them, or 0. */
static int keep(pid_t player, const sigset_t *mask) {
    int got = 0;
    int64_t end = INT64_MAX;
    while (waitpid(player, NULL, WNOHANG) == 0) {
        int signal = sigtimedwait(mask, NULL, &(struct timespec){.tv_nsec = 200000000});
        if (clock_now_ns() > end) kill(player, SIGKILL);
        if (signal <= 0 || signal == SIGCHLD) continue;
        if (!got) end = clock_after_ms(clock_now_ns(), OVERDUE_MS);
        got = signal;
        kill(player, SIGTERM);
    }
    return got;
}

int lab_in_folder(int (*fn)(const void *data), const void *data, bool servers) {
    static const int passed[] = {SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGCHLD};
    sigset_t mask, old;
    pid_t parent = getpid();
    if (make(servers)) return LAB_FAILED;
    int *code = mmap(NULL, sizeof *code, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED) return lab_complain("no memory");
    *code = -1;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    sigemptyset(&mask);
    for (size_t i = 0; i < sizeof passed / sizeof *passed; i++) {
        struct sigaction was;
        sigaction(passed[i], NULL, &was);
        if (passed[i] == SIGHUP && was.sa_handler == SIG_IGN) continue; /* nohup */
        signal(passed[i], SIG_DFL);
        sigaddset(&mask, passed[i]);
    }
    sigprocmask(SIG_BLOCK, &mask, &old);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) player(fn, data, parent, &old, code);
    int signal = pid < 0 ? 0 : keep(pid, &mask);
    leave();
    if (*code >= 0 && *code != LAB_INTERRUPTED) return *code;
    if (signal) return 128 + signal;
    return *code < 0 ? lab_complain("it could not be finished; see above") : *code;
}
