/* handle.c: the directory of holds. Paths go through /proc/self/fd, because a socket's path has room for 107 bytes
 * only. */
#include "handle.h"
#include "cli.h"
#include "clock.h"
#include "random.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define KEEP_RESULTS_S 86400

static bool directory_path(char ret[PATH_MAX]) {
    if (geteuid() == 0) return snprintf(ret, PATH_MAX, "/run/pawl-hold") > 0;
    const struct passwd *entry = getpwuid(geteuid());
    if (!entry || !entry->pw_dir || *entry->pw_dir != '/') return false;
    return snprintf(ret, PATH_MAX, "%s/.local/state/pawl-hold", entry->pw_dir) < PATH_MAX;
}

/* Every missing folder of the path, each for this user only. */
static void make_folders(char *path) {
    for (char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = 0;
        mkdir(path, 0700);
        *at = '/';
    }
    mkdir(path, 0700);
}

/* -1: *ret_path says which, errno why. */
static int open_directory(bool create, char ret_path[PATH_MAX]) {
    struct stat st;
    snprintf(ret_path, PATH_MAX, "a home directory in passwd");
    errno = ENOENT;
    if (!directory_path(ret_path)) return -1;
    if (create) make_folders(ret_path);
    int fd = open(ret_path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return -1;
    if (fstat(fd, &st) || st.st_uid != geteuid() || (st.st_mode & (S_IRWXG | S_IRWXO))) {
        close(fd);
        errno = EPERM;
        return -1;
    }
    return fd;
}

/* Results that nobody asked for, and sockets of holds that died, go after a day. */
static void sweep(int directory) {
    int copy = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *listing = copy < 0 ? NULL : fdopendir(copy);
    if (!listing) return;
    time_t now = clock_wall_us() / 1000000;
    for (const struct dirent *entry; (entry = readdir(listing));) {
        struct stat st;
        char *end;
        long pid = strtol(entry->d_name, &end, 10);
        if (pid <= 0 || *end != '-' || fstatat(directory, entry->d_name, &st, AT_SYMLINK_NOFOLLOW)) continue;
        bool gone = S_ISREG(st.st_mode) || (kill((pid_t)pid, 0) && errno == ESRCH);
        if (gone && now - st.st_mtime > KEEP_RESULTS_S) unlinkat(directory, entry->d_name, 0);
    }
    closedir(listing);
}

static void socket_address(int directory, const char *handle, struct sockaddr_un *ret) {
    ret->sun_family = AF_UNIX;
    snprintf(ret->sun_path, sizeof ret->sun_path, "/proc/self/fd/%d/%s.sock", directory, handle);
}

bool handle_valid(const char *text) {
    size_t digits = strspn(text, "0123456789");
    return digits > 0 && digits < 11 && text[digits] == '-' && strlen(text + digits + 1) == 16 &&
           strspn(text + digits + 1, "0123456789abcdef") == 16;
}

int handle_listen(char ret[HANDLE_SIZE]) {
    struct sockaddr_un address;
    char path[PATH_MAX], handle[HANDLE_SIZE];
    unsigned char bytes[8];
    int directory = open_directory(true, path);
    if (directory < 0) {
        complain(EXIT_FAILED, NULL, "hold -d needs the directory %s, of this user and mode 0700: %s", path,
                 strerror(errno));
        return -1;
    }
    sweep(directory);
    random_bytes(bytes, sizeof bytes);
    char hex[2 * sizeof bytes + 1];
    random_hex(bytes, sizeof bytes, hex);
    snprintf(handle, sizeof handle, "%d-%s", (int)getpid(), hex);
    socket_address(directory, handle, &address);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 4)) {
        complain(EXIT_FAILED, NULL, "hold -d cannot listen in %s: %s", path, strerror(errno));
        if (fd >= 0) close(fd);
        fd = -1;
    }
    close(directory);
    if (fd >= 0) memcpy(ret, handle, sizeof handle);
    return fd;
}

/* --- results --- */

static void write_result(int fd, const struct hold_result *result) {
    dprintf(fd, "%d\n%s\n%s\n", result->code, result->json, result->text);
}

static bool read_result(int fd, struct hold_result *ret) {
    char buffer[sizeof *ret + 16];
    size_t used = 0;
    ssize_t n;
    while (used < sizeof buffer - 1 && (n = read(fd, buffer + used, sizeof buffer - 1 - used)) != 0) {
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return false;
        used += (size_t)n;
    }
    buffer[used] = 0;
    char *rest = buffer;
    const char *code = strsep(&rest, "\n"), *json = strsep(&rest, "\n"), *text = strsep(&rest, "\n");
    if (!code || !json || !text || !rest || !parse_exit_code(code, &ret->code)) return false;
    snprintf(ret->json, sizeof ret->json, "%s", json);
    snprintf(ret->text, sizeof ret->text, "%s", text);
    return true;
}

void handle_end(const char *handle, const struct hold_result *result) {
    char path[PATH_MAX], name[HANDLE_SIZE + 8];
    int directory = open_directory(false, path);
    if (directory < 0) return;
    if (result) { /* first: whoever finds no socket must find the result */
        snprintf(name, sizeof name, "%s.end", handle);
        int fd = openat(directory, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd >= 0) {
            write_result(fd, result);
            close(fd);
        }
    }
    snprintf(name, sizeof name, "%s.sock", handle);
    unlinkat(directory, name, 0);
    close(directory);
}

/* The result that an ended hold left; it is told once. */
static bool take_result(int directory, const char *handle, struct hold_result *ret) {
    char name[HANDLE_SIZE + 8];
    snprintf(name, sizeof name, "%s.end", handle);
    int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return false;
    bool ok = read_result(fd, ret);
    close(fd);
    unlinkat(directory, name, 0);
    return ok;
}

static bool same_user(int fd) {
    struct ucred peer;
    socklen_t size = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && (peer.uid == geteuid() || peer.uid == 0);
}

static bool talk(int fd, const struct sockaddr_un *address, struct hold_result *ret) {
    const struct timeval patience = {.tv_sec = 10}; /* twice what a release may take */
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience); /* for connect: others may wait before us */
    if (connect(fd, (const struct sockaddr *)address, sizeof *address)) return false;
    errno = EPERM;
    if (!same_user(fd) || send(fd, "release\n", 8, MSG_NOSIGNAL) != 8) return false;
    errno = ECONNRESET; /* when it ends before the result is whole */
    return read_result(fd, ret);
}

/* Dead is only one whose socket nobody listens on. */
static enum handle_state ask(int directory, const char *handle, struct hold_result *ret) {
    struct sockaddr_un address;
    socket_address(directory, handle, &address);
    for (int tries = 0;; tries++) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        bool ok = fd >= 0 && talk(fd, &address, ret);
        int error = errno;
        if (fd >= 0) close(fd);
        if (ok) return HANDLE_TALKS;
        if (error == ENOENT) return HANDLE_UNKNOWN;
        if (error == ECONNREFUSED) return HANDLE_DIED;
        if ((error == EPIPE || error == ECONNRESET) && tries < 3) continue; /* it ended meanwhile: now that shows */
        if (error == EAGAIN)
            complain(EXIT_FAILED, NULL, "release: the hold %s does not answer: is its process stopped?", handle);
        else complain(EXIT_FAILED, NULL, "release: cannot ask the hold %s: %s", handle, strerror(error));
        return HANDLE_ERROR;
    }
}

enum handle_state handle_release(const char *handle, struct hold_result *ret) {
    char path[PATH_MAX];
    int directory = open_directory(false, path);
    if (directory < 0 && errno == ENOENT) return HANDLE_UNKNOWN;
    if (directory < 0) {
        complain(EXIT_FAILED, NULL, "cannot use the directory %s: %s", path, strerror(errno));
        return HANDLE_ERROR;
    }
    enum handle_state state = ask(directory, handle, ret);
    if (state == HANDLE_DIED || state == HANDLE_UNKNOWN) {
        if (take_result(directory, handle, ret)) state = HANDLE_ENDED;
        else if (state == HANDLE_DIED) handle_end(handle, NULL);
    }
    sweep(directory);
    close(directory);
    return state;
}

int handle_accept(int listener) {
    char request[16];
    const struct timeval patience = {.tv_sec = 1};
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (same_user(fd) && recv(fd, request, sizeof request, 0) == 8 && memcmp(request, "release\n", 8) == 0) return fd;
    close(fd);
    return -1;
}

void handle_answer(int fd, const struct hold_result *result) {
    write_result(fd, result);
    close(fd);
}
