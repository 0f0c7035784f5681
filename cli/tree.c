/* tree.c: see tree.h. The way of killing: KILL the direct children, reap, take what came up, again. A long chain of
 * forks makes that slow, so every few rounds the whole tree is walked as well. Stopping everything first was tried and
 * is worse: it does not outrun processes that fork and exit. */
#include "tree.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WALK_EACH = 8 };

static ssize_t read_file(const char *path, char *buffer, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    size_t length = 0;
    ssize_t n;
    while (length < size - 1 && (n = read(fd, buffer + length, size - 1 - length)) > 0) length += (size_t)n;
    close(fd);
    buffer[length] = 0;
    return (ssize_t)length;
}

char process_state(pid_t pid, pid_t *ret_parent, pid_t *ret_group, uint64_t *ret_start, char *ret_name) {
    char path[40], text[1024], state;
    int parent, group;
    uint64_t start;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (read_file(path, text, sizeof text) <= 0) return 0;
    char *name = strchr(text, '('), *end = strrchr(text, ')'); /* a name may contain both */
    if (!name || !end ||
        sscanf(end + 1, " %c %d %d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %" SCNu64, &state,
               &parent, &group, &start) != 4)
        return 0;
    *end = 0;
    if (ret_parent) *ret_parent = parent;
    if (ret_group) *ret_group = group;
    if (ret_start) *ret_start = start;
    if (ret_name) snprintf(ret_name, 16, "%s", name + 1);
    return state;
}

/* --- listing --- */

struct list {
    struct tree_entry *at;
    size_t n, room;
};

static void list_add(struct list *list, pid_t pid, pid_t parent) {
    if (list->n == list->room) {
        size_t room = list->room ? 2 * list->room : 64;
        struct tree_entry *at = realloc(list->at, room * sizeof *at);
        if (!at) return; /* the next round finds it */
        list->at = at;
        list->room = room;
    }
    list->at[list->n++] = (struct tree_entry){.pid = pid, .parent = parent};
}

static void add_children_of_thread(struct list *list, pid_t pid, const char *thread) {
    char path[64], buffer[4096];
    snprintf(path, sizeof path, "/proc/%d/task/%.16s/children", (int)pid, thread);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t n;
    long child = 0;
    while ((n = read(fd, buffer, sizeof buffer)) > 0)
        for (ssize_t i = 0; i < n; i++) {
            if (buffer[i] >= '0' && buffer[i] <= '9') {
                child = 10 * child + (buffer[i] - '0');
            } else if (child) {
                list_add(list, (pid_t)child, pid);
                child = 0;
            }
        }
    close(fd);
}

static void add_children(struct list *list, pid_t pid) {
    char path[40];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *threads = opendir(path);
    if (!threads) return;
    for (struct dirent *entry; (entry = readdir(threads));)
        if (entry->d_name[0] != '.') add_children_of_thread(list, pid, entry->d_name);
    closedir(threads);
}

size_t tree_list(pid_t root, struct tree_entry **ret) {
    struct list list = {0};
    add_children(&list, root);
    for (size_t i = 0; i < list.n; i++) add_children(&list, list.at[i].pid);
    *ret = list.at;
    return list.n;
}

/* --- signalling --- */

/* A pidfd of an entry that is still where it was seen, or came up to root or to us since; -1: it is gone. */
static int open_entry(const struct tree_entry *entry, pid_t root, pid_t group) {
    pid_t parent, its_group;
    int fd = pidfd_open(entry->pid, 0);
    if (fd < 0) return -1;
    if (process_state(entry->pid, &parent, &its_group, NULL, NULL) &&
        (parent == entry->parent || parent == root || parent == getpid()) && (group <= 0 || its_group == group))
        return fd;
    close(fd);
    return -1;
}

size_t tree_signal(pid_t root, int sig, pid_t group, int wake) {
    struct tree_entry *entries;
    size_t n = tree_list(root, &entries), reached = 0;
    for (size_t i = 0; i < n; i++) {
        int fd = open_entry(&entries[i], root, group);
        if (fd < 0) continue;
        if (pidfd_send_signal(fd, sig, NULL, 0) == 0) reached++;
        if (wake) pidfd_send_signal(fd, SIGCONT, NULL, 0);
        close(fd);
    }
    free(entries);
    return reached;
}

/* --- killing --- */

/* true: there are no children any more. */
static bool reap(pid_t leader, struct tree_death *ret) {
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid < 0) return errno == ECHILD;
        if (pid == 0) return false;
        if (pid == leader) ret->leader_status = status;
        ret->killed++;
    }
}

static void kill_children(struct tree_death *ret) {
    struct list list = {0};
    add_children(&list, getpid());
    ret->spared = 0;
    /* A direct child keeps its pid until we reap it: no pidfd is needed. */
    for (size_t i = 0; i < list.n; i++)
        if (kill(list.at[i].pid, SIGKILL) != 0 && errno == EPERM) {
            ret->spared++;
            ret->spared_pid = list.at[i].pid;
        }
    free(list.at);
}

static bool only_spared_left(const struct tree_death *death) {
    struct list list = {0};
    add_children(&list, getpid());
    bool only = death->spared && list.n == death->spared;
    free(list.at);
    return only;
}

void tree_kill(pid_t leader, struct tree_death *ret) {
    sigset_t chld;
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    *ret = (struct tree_death){.leader_status = -1};
    for (int round = 0;; round++) {
        kill_children(ret);
        if (round % WALK_EACH == WALK_EACH - 1) tree_signal(getpid(), SIGKILL, 0, 0);
        if (reap(leader, ret)) return;
        if (only_spared_left(ret)) return;
        sigtimedwait(&chld, NULL, &(struct timespec){.tv_nsec = round < 100 ? 1000000 : 10000000});
    }
}

void tree_names(pid_t root, char *ret, size_t size) {
    struct tree_entry *entries;
    size_t n = tree_list(root, &entries), length = 0;
    for (size_t i = 0; i < n && length < size - 48; i++) {
        char name[16], state = process_state(entries[i].pid, NULL, NULL, NULL, name);
        if (state && state != 'Z')
            length += (size_t)snprintf(ret + length, size - length, "%s%s (pid %d)", length ? ", " : "", name,
                                       (int)entries[i].pid);
    }
    free(entries);
}
