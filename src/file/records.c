/* records.c: see records.h. Pawl's own are the slots whose byte is locked (lockfile.h). The rest of what the kernel's
 * table of locks shows for a file came by flock(2): there only the pid is known, and without /proc nothing. */
#include "records.h"
#include "clock.h"
#include "lockfile.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* One flock(2) in /proc/locks. */
struct kernel_lock {
    bool waits, shared;
    int64_t pid;
    dev_t dev;
    ino_t ino;
};
struct kernel_locks {
    struct kernel_lock *all;
    size_t n;
    dev_t dev; /* of the directory, as that table names it */
};
struct found {
    struct slot *all;
    size_t n;
};

static int by_file(const void *a, const void *b) {
    const struct kernel_lock *x = a, *y = b;
    if (x->ino != y->ino) return x->ino < y->ino ? -1 : 1;
    if (x->dev != y->dev) return x->dev < y->dev ? -1 : 1;
    if (x->pid != y->pid) return x->pid < y->pid ? -1 : 1;
    return (x->waits - y->waits) * 2 + (x->shared - y->shared);
}

/* The kernel writes its table a page at a time and goes on by position, so while others lock, a line may come again. */
static void sort_once_each(struct kernel_locks *locks) {
    size_t n = 0;
    if (locks->n) qsort(locks->all, locks->n, sizeof *locks->all, by_file);
    for (size_t i = 0; i < locks->n; i++)
        if (n == 0 || by_file(&locks->all[n - 1], &locks->all[i]) != 0) locks->all[n++] = locks->all[i];
    locks->n = n;
}

/* The first lock of that file, or where it would stand. */
static size_t first_of(const struct kernel_locks *locks, ino_t ino) {
    size_t from = 0, to = locks->n;
    while (from < to) {
        size_t middle = from + (to - from) / 2;
        if (locks->all[middle].ino < ino) from = middle + 1;
        else to = middle;
    }
    return from;
}

static void read_kernel_locks(struct kernel_locks *ret) {
    FILE *file = fopen("/proc/locks", "re");
    char line[256];
    size_t room = 0;
    if (!file) return;
    setvbuf(file, NULL, _IOFBF, 65536); /* each read walks all locks from the first */
    while (fgets(line, sizeof line, file)) {
        unsigned major, minor;
        uint64_t ino;
        char mode[16];
        struct kernel_lock lock = {.waits = strstr(line, "->") != NULL};
        const char *at = strstr(line, "FLOCK");
        if (!at || sscanf(at, "FLOCK %*s %15s %" SCNd64 " %x:%x:%" SCNu64, mode, &lock.pid, &major, &minor, &ino) != 5)
            continue;
        lock.shared = strcmp(mode, "READ") == 0;
        lock.dev = makedev(major, minor);
        lock.ino = ino;
        if (ret->n == room) {
            struct kernel_lock *more = realloc(ret->all, (room = 2 * room + 64) * sizeof *more);
            if (!more) break;
            ret->all = more;
        }
        ret->all[ret->n++] = lock;
    }
    fclose(file);
    sort_once_each(ret);
}

static void add(struct found *found, const struct slot *slot) {
    struct slot *more = realloc(found->all, (found->n + 1) * sizeof *more);
    if (!more) return;
    found->all = more;
    found->all[found->n++] = *slot;
}

static bool waits(const struct slot *slot) { return slot->kind == 'w' || slot->kind == 'r'; }

static int in_order(const void *a, const void *b) {
    const struct slot *x = a, *y = b;
    if (waits(x) != waits(y)) return waits(x) ? 1 : -1;
    return x->order < y->order ? -1 : x->order > y->order;
}

static void describe_pid(int64_t pid, char ret[ABOUT_SIZE]) {
    char path[64], command[32] = "", host[65] = "";
    *ret = 0;
    if (pid <= 0) return;
    snprintf(path, sizeof path, "/proc/%" PRId64 "/comm", pid);
    FILE *file = fopen(path, "re");
    if (file) {
        if (fgets(command, sizeof command, file)) command[strcspn(command, "\n")] = 0;
        fclose(file);
    }
    gethostname(host, sizeof host - 1);
    int n = snprintf(ret, ABOUT_SIZE, "host=%s&pid=%" PRId64, host, pid);
    if (*command && n > 0 && n < ABOUT_SIZE - 128) {
        strcat(ret, "&command=");
        url_escape(ret, ABOUT_SIZE, command, strlen(command), "-_.");
    }
}

static bool has_pid(const struct found *found, bool waiting, int64_t pid) {
    char key[32];
    snprintf(key, sizeof key, "pid=%" PRId64 "&", pid);
    for (size_t i = 0; i < found->n; i++)
        if (waits(found->all + i) == waiting && strstr(found->all[i].about, key)) return true;
    return false;
}

/* The holder who keeps his place in the queue, or NULL. */
static const struct slot *first_of_queue(const struct found *found) {
    for (size_t i = 0; i < found->n; i++)
        if (found->all[i].kind == 'x' && found->all[i].order) return found->all + i;
    return NULL;
}

/* Drops what a holder wrote as a waiter. */
static void drop_former(struct found *found) {
    const struct slot *holder = first_of_queue(found);
    int64_t order = holder ? holder->order : 0;
    size_t n = 0;
    for (size_t i = 0; i < found->n; i++)
        if (!order || !waits(found->all + i) || found->all[i].order != order) found->all[n++] = found->all[i];
    found->n = n;
}

/* Adds what came without pawl: as many as the kernel counts beyond ours. Ours stand once in the table for each holder,
 * and of all our waiters only the one that is in flock does: the first, unless it waits for the holder's place. */
static void add_foreign(const struct kernel_locks *locks, const struct stat *st, struct found *found) {
    size_t spare[2] = {0, 0};
    for (size_t i = 0; i < found->n; i++) spare[waits(found->all + i)]++;
    if (spare[1] > 1) spare[1] = 1;
    if (first_of_queue(found)) spare[1] = 0;
    struct found ours = {.all = found->all, .n = found->n}, others = {NULL, 0};
    for (size_t i = first_of(locks, st->st_ino); i < locks->n && locks->all[i].ino == st->st_ino; i++) {
        const struct kernel_lock *lock = locks->all + i;
        if (lock->dev != locks->dev) continue;
        if (has_pid(&ours, lock->waits, lock->pid) && spare[lock->waits] > 0) {
            spare[lock->waits]--;
            continue;
        }
        if (!lock->waits && has_pid(&ours, true, lock->pid)) continue; /* a waiter granted in this moment */
        struct slot slot = {.kind = lock->waits ? (lock->shared ? 'r' : 'w') : (lock->shared ? 's' : 'x'),
                            .order = INT64_MAX};
        describe_pid(lock->pid, slot.about);
        add(&others, &slot);
    }
    /* a holder whose record names another process than the one that locked: one of the others is it */
    for (size_t i = 0; i < others.n; i++) {
        bool waiting = waits(others.all + i);
        if (spare[waiting] > 0) spare[waiting]--;
        else add(found, others.all + i);
    }
    free(others.all);
}

/* false: the caller has seen enough. */
static bool show(const char *name, struct found *found, bk_each *each, void *data) {
    int place = 0;
    if (found->n) qsort(found->all, found->n, sizeof *found->all, in_order);
    for (size_t i = 0; i < found->n; i++) {
        const struct slot *slot = found->all + i;
        struct bk_record record = {.name = name,
                                   .about = slot->about,
                                   .token = slot->token,
                                   .since_ms = slot->since_ms,
                                   .left_ms = -1,
                                   .shared = slot->kind == 's' || slot->kind == 'r',
                                   .place = waits(slot) ? ++place : 0};
        if (!each(&record, data)) return false;
    }
    return true;
}

/* name NULL: to be found out from the file. */
static bool look(struct place *place, const char *file, const char *name, const struct kernel_locks *locks,
                 bk_each *each, void *data) {
    struct stat st;
    struct slot slot;
    struct found found = {NULL, 0};
    char own_name[NAME_MAX_LOCK + 1] = "";
    bool go_on = true;
    int fd = openat(place->fd, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    /* Who may not read it can still be told what the kernel knows. */
    if (fd < 0 && (errno == EACCES || errno == EPERM) && fstatat(place->fd, file, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISREG(st.st_mode)) {
        if (!name && name_decode(file, own_name)) name = own_name;
        add_foreign(locks, &st, &found);
        if (name) go_on = show(name, &found, each, data);
    }
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
        bool headed = lockfile_headed(fd) > 0; /* else only the kernel knows who locks it */
        if (!name && headed && name_is_short(file) && lockfile_name(fd, own_name)) name = own_name;
        if (!name && name_decode(file, own_name)) name = own_name;
        int slots = headed ? lockfile_slots(st.st_size) : 0;
        for (int i = 0; i < slots; i++)
            if (lockfile_read(fd, i, &slot) && lockfile_living(fd, &slot)) add(&found, &slot);
        drop_former(&found);
        add_foreign(locks, &st, &found);
        if (name) go_on = show(name, &found, each, data);
    }
    if (fd >= 0) close(fd);
    free(found.all);
    return go_on;
}

static enum bk_says look_at_all(struct place *place, const struct kernel_locks *locks, bk_each *each, void *data,
                                struct bk_until until, pawl_error *error) {
    int fd = openat(place->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        place_errno(place, NULL, "list the directory", error);
        if (fd >= 0) close(fd);
        return BK_FAULT;
    }
    enum bk_says says = BK_YES;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (*entry->d_name == '.') continue;
        if (clock_now_ns() >= until.at_ns) {
            error_set(error, PAWL_EUNREACHABLE, place->dir,
                      "%s: not all of its files could be looked at in the time given", place->dir);
            says = BK_FAULT;
            break;
        }
        if (!look(place, entry->d_name, NULL, locks, each, data)) break;
    }
    closedir(dir);
    return says;
}

enum bk_says records_of(struct place *place, const char *name, bk_each *each, void *data, struct bk_until until,
                        pawl_error *error) {
    char file[NAME_FILE_SIZE];
    if (name && !name_encode(name, strlen(name), file)) {
        error_set(error, PAWL_EINVALID, NULL, "the name of a lock has 1 to %d bytes and no NUL", NAME_MAX_LOCK);
        return BK_FAULT;
    }
    if (place_refresh(place, error)) return BK_FAULT;
    struct kernel_locks locks = {.dev = place_kernel_dev(place)};
    enum bk_says says = BK_YES;
    read_kernel_locks(&locks);
    if (name) look(place, file, name, &locks, each, data);
    else says = look_at_all(place, &locks, each, data, until, error);
    free(locks.all);
    return says;
}
