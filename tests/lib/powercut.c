/* powercut.c: see powercut.h. In the shadow: files/<inode> is a file's flushed content, dirs/<inode> a directory's
 * flushed entries ("<inode> <d|f> <name>" and a newline each), keep/<inode> a second link of a removed file, so that
 * its number is not given to another one, and `lock`, held while one flush is copied, so that an older one never
 * replaces a newer. */
#include "powercut.h"
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK 4096
#define SHOWN __attribute__((visibility("default")))

static char root_path[PATH_MAX], shadow_path[PATH_MAX - 64]; /* "": off */
static int broken;

/* A second descriptor only for a file that was opened for writing alone: its close drops the POSIX locks of a process.
 */
static int readable(int fd) {
    char link[64];
    if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_WRONLY) return fd;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return open(link, O_RDONLY | O_CLOEXEC);
}

static bool copy_fd(int source, const char *to) {
    char buffer[65536];
    int from = readable(source), fd = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    ssize_t n = -1;
    off_t at = 0;
    while (from >= 0 && fd >= 0 && (n = pread(from, buffer, sizeof buffer, at)) > 0) {
        if (write(fd, buffer, (size_t)n) != n) break;
        at += n;
    }
    if (from >= 0 && from != source) close(from);
    if (fd >= 0) close(fd);
    return n == 0;
}

static bool list_fd(int dir_fd, const char *to) {
    int copy = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = copy < 0 ? NULL : fdopendir(copy);
    FILE *file = dir ? fopen(to, "we") : NULL;
    struct dirent *entry;
    while (file && (entry = readdir(dir)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            fprintf(file, "%lu %c %s\n", (unsigned long)entry->d_ino, entry->d_type == DT_DIR ? 'd' : 'f',
                    entry->d_name);
    if (dir) closedir(dir);
    return file && fclose(file) == 0;
}

static void shadow_name(char ret[PATH_MAX], const char *kind, unsigned long inode) {
    snprintf(ret, PATH_MAX, "%s/%s/%lu", shadow_path, kind, inode);
}

static bool inside(int fd) {
    char link[64], path[PATH_MAX];
    size_t length = strlen(root_path);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (!*root_path || n < (ssize_t)length) return false;
    path[n] = 0;
    return strncmp(path, root_path, length) == 0 && (path[length] == 0 || path[length] == '/');
}

static int flush(int fd) {
    struct stat st;
    if (fstat(fd, &st) < 0) return -1;
    bool dir = S_ISDIR(st.st_mode);
    if (broken & (dir ? POWERCUT_DIRECTORIES_NOT_FLUSHED : POWERCUT_FILES_NOT_FLUSHED)) return 0;
    char lock_name[PATH_MAX], to[PATH_MAX], fresh[PATH_MAX];
    snprintf(lock_name, sizeof lock_name, "%s/lock", shadow_path);
    shadow_name(to, dir ? "dirs" : "files", st.st_ino);
    snprintf(fresh, sizeof fresh, "%s/fresh", shadow_path);
    int lock = open(lock_name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    bool done = lock >= 0 && flock(lock, LOCK_EX) == 0 && (dir ? list_fd(fd, fresh) : copy_fd(fd, fresh)) &&
                renameat(AT_FDCWD, fresh, AT_FDCWD, to) == 0;
    if (lock >= 0) close(lock);
    if (!done) errno = EIO;
    return done ? 0 : -1;
}

/* --- the replaced calls --- */

SHOWN int fsync(int fd) {
    static int (*real)(int);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "fsync");
    return inside(fd) ? flush(fd) : real(fd);
}

SHOWN int fdatasync(int fd) {
    static int (*real)(int);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "fdatasync");
    return inside(fd) ? flush(fd) : real(fd);
}

/* A removed file keeps its number. */
static void keep(int dir_fd, const char *path) {
    struct stat st;
    char to[PATH_MAX];
    int number = errno;
    if (!*root_path || fstatat(dir_fd, path, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode)) return;
    int fd = openat(dir_fd, path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && inside(fd)) {
        shadow_name(to, "keep", st.st_ino);
        linkat(dir_fd, path, AT_FDCWD, to, 0);
    }
    if (fd >= 0) close(fd);
    errno = number;
}

SHOWN int unlinkat(int dir_fd, const char *path, int flags) {
    static int (*real)(int, const char *, int);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "unlinkat");
    if (!(flags & AT_REMOVEDIR)) keep(dir_fd, path);
    return real(dir_fd, path, flags);
}

SHOWN int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }

SHOWN int renameat(int from_fd, const char *from, int to_fd, const char *to) {
    static int (*real)(int, const char *, int, const char *);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "renameat");
    keep(to_fd, to);
    return real(from_fd, from, to_fd, to);
}

SHOWN int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }

/* --- on and off --- */

static void flush_tree(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;
    if (fd < 0) return;
    DIR *dir = fstat(fd, &st) == 0 && S_ISDIR(st.st_mode) ? fdopendir(dup(fd)) : NULL;
    struct dirent *entry;
    while (dir && (entry = readdir(dir))) {
        char name[PATH_MAX];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (snprintf(name, sizeof name, "%s/%s", path, entry->d_name) < (int)sizeof name) flush_tree(name);
    }
    if (dir) closedir(dir);
    flush(fd);
    close(fd);
}

static void turn_on(const char *root, const char *shadow) {
    if (!realpath(root, root_path)) *root_path = 0;
    snprintf(shadow_path, sizeof shadow_path, "%s", shadow);
}

void powercut_begin(const char *root, const char *shadow) {
    static const char *const parts[] = {"files", "dirs", "keep"};
    for (int i = 0; i < 3; i++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%s", shadow, parts[i]);
        mkdir(path, 0777);
    }
    broken = 0;
    turn_on(root, shadow);
    flush_tree(root_path);
}

void powercut_end(void) { *root_path = 0; }
void powercut_break(int what) { broken = what; }

__attribute__((constructor)) static void from_environment(void) {
    const char *root = getenv("POWERCUT_ROOT"), *shadow = getenv("POWERCUT_SHADOW");
    if (root && shadow) turn_on(root, shadow);
}

/* --- after the cut --- */

static uint64_t state;
static bool chance(void) { /* xorshift64; seed 0: never the unflushed */
    if (!state) return false;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state >> 40 & 1;
}

/* Flushed blocks, mixed with the last ones by chance. live: -1: the file is gone. */
static bool restore_file(unsigned long inode, int live, const char *out) {
    char name[PATH_MAX], block[BLOCK];
    struct stat st;
    shadow_name(name, "files", inode);
    int durable = open(name, O_RDONLY | O_CLOEXEC), to = open(out, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    bool done = to >= 0, whole = live >= 0 && chance();
    off_t length = durable >= 0 && fstat(durable, &st) == 0 ? st.st_size : 0;
    if (whole && fstat(live, &st) == 0) length = st.st_size;
    for (off_t at = 0; done && at < length; at += BLOCK) {
        bool last = live >= 0 && chance();
        ssize_t n = last || durable < 0 ? -1 : pread(durable, block, BLOCK, at);
        if (n <= 0) n = live < 0 || !last ? 0 : pread(live, block, BLOCK, at);
        if (n > 0) done = pwrite(to, block, (size_t)(at + n > length ? length - at : n), at) > 0;
    }
    done = done && ftruncate(to, length) == 0; /* what was never flushed reads as zeros */
    if (durable >= 0) close(durable);
    if (to >= 0) close(to);
    return done;
}

/* The last content of a file: in the tree, or kept. */
static int open_live(int dir_fd, const char *name, unsigned long inode) {
    char kept[PATH_MAX];
    struct stat st;
    int fd = dir_fd < 0 ? -1 : openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &st) == 0 && st.st_ino == inode) return fd;
    if (fd >= 0) close(fd);
    shadow_name(kept, "keep", inode);
    return open(kept, O_RDONLY | O_CLOEXEC);
}

static bool restore_dir(unsigned long inode, int live_fd, const char *out) {
    char list[PATH_MAX], line[PATH_MAX], name[NAME_MAX + 1], kind;
    unsigned long entry;
    if (mkdir(out, 0777) < 0) return false;
    shadow_name(list, "dirs", inode);
    if (live_fd >= 0 && chance()) {
        snprintf(list, sizeof list, "%s/fresh", shadow_path);
        list_fd(live_fd, list);
    }
    FILE *file = fopen(list, "re");
    bool done = true;
    char(*lines)[PATH_MAX] = NULL; /* read first: `fresh` is used again further down */
    size_t n = 0;
    while (file && fgets(line, sizeof line, file)) {
        lines = realloc(lines, (n + 1) * sizeof *lines);
        if (!lines) abort();
        strcpy(lines[n++], line);
    }
    if (file) fclose(file);
    for (size_t i = 0; i < n && done; i++) {
        char path[PATH_MAX];
        if (sscanf(lines[i], "%lu %c %255[^\n]", &entry, &kind, name) != 3) continue;
        snprintf(path, sizeof path, "%.*s/%s", PATH_MAX - NAME_MAX - 2, out, name);
        int live = kind == 'd' ? live_fd < 0 ? -1 : openat(live_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
                               : open_live(live_fd, name, entry);
        done = kind == 'd' ? restore_dir(entry, live, path) : restore_file(entry, live, path);
        if (live >= 0) close(live);
    }
    free(lines);
    return done;
}

bool powercut_restore(const char *root, const char *shadow, const char *out, uint64_t seed) {
    struct stat st;
    snprintf(shadow_path, sizeof shadow_path, "%s", shadow);
    state = seed;
    int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool done = fd >= 0 && fstat(fd, &st) == 0 && restore_dir(st.st_ino, fd, out);
    if (fd >= 0) close(fd);
    return done;
}
