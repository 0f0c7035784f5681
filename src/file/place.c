/* place.c: see place.h. The one thing to know: network and FUSE mounts are refused by their type, which is read from
 * the kernel's mount table before the path is touched, because touching a dead one hangs beyond the reach of SIGKILL.
 */
#include "place.h"
#include "counter.h"
#include "random.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { LARGEST_FILE = 256 * 1024 }; /* more than lockfile.c ever writes */

int place_default(char *ret, size_t size, pawl_error *error) {
    if (geteuid() == 0) {
        snprintf(ret, size, "/var/lib/pawl");
        return PAWL_OK;
    }
    char buffer[4096];
    struct passwd entry, *found = NULL;
    int number = getpwuid_r(geteuid(), &entry, buffer, sizeof buffer, &found);
    if (number || !found || found->pw_dir[0] != '/')
        return error_set(error, PAWL_EDENIED, NULL,
                         "file: is a directory in the home of user %d, but passwd has no home for that user; name a "
                         "directory: file:DIR",
                         (int)geteuid());
    if ((size_t)snprintf(ret, size, "%s/.local/state/pawl", found->pw_dir) >= size)
        return error_set(error, PAWL_EINVALID, NULL, "the home directory in passwd is too long");
    return PAWL_OK;
}

/* --- mounts --- */

static const char *const bad_types[] = {"nfs",   "nfs4",     "cifs",   "smb3",     "smbfs", "fuse",   "fuseblk",
                                        "9p",    "virtiofs", "ceph",   "afs",      "coda",  "lustre", "gfs2",
                                        "ocfs2", "gpfs",     "beegfs", "orangefs", "ncpfs"};

static const struct {
    unsigned long magic;
    const char *type;
} bad_magic[] = {
    {NFS_SUPER_MAGIC, "nfs"},     {SMB_SUPER_MAGIC, "smbfs"}, {0xFF534D42, "cifs"},   {0xFE534D42, "smb3"},
    {0x65735546, "fuse"},         {V9FS_MAGIC, "9p"},         {0x00C36400, "ceph"},   {AFS_SUPER_MAGIC, "afs"},
    {0x6B414653, "afs"},          {CODA_SUPER_MAGIC, "coda"}, {0x0BD00BD0, "lustre"}, {0x01161970, "gfs2"},
    {OCFS2_SUPER_MAGIC, "ocfs2"}, {0x47504653, "gpfs"},       {0x19830326, "beegfs"}, {0x20030528, "orangefs"},
};

/* mountinfo writes space, tab, newline and backslash as \ooo. */
static void unescape(char *text) {
    char *to = text;
    for (const char *p = text; *p; p++)
        if (p[0] == '\\' && p[1] && p[2] && p[3]) {
            *to++ = (char)((p[1] - '0') * 64 + (p[2] - '0') * 8 + (p[3] - '0'));
            p += 3;
        } else *to++ = *p;
    *to = 0;
}

static bool is_under(const char *dir, const char *mount) {
    size_t n = strlen(mount);
    if (strcmp(mount, "/") == 0) return true;
    return strncmp(dir, mount, n) == 0 && (dir[n] == '/' || dir[n] == 0);
}

const char *place_bad_mount(const char *mountinfo, const char *dir, char *ret_mount, size_t size) {
    const char *found = NULL;
    size_t longest = 0;
    for (const char *line = mountinfo; *line;) {
        const char *end = strchrnul(line, '\n'), *dash = memmem(line, (size_t)(end - line), " - ", 3);
        char mount[PATH_MAX], type[64];
        if (dash && sscanf(line, "%*d %*d %*s %*s %4095s", mount) == 1 && sscanf(dash + 3, "%63s", type) == 1) {
            unescape(mount);
            if (is_under(dir, mount) && strlen(mount) >= longest) {
                longest = strlen(mount);
                found = NULL;
                char *dot = strchr(type, '.'); /* fuse.sshfs */
                if (dot) *dot = 0;
                for (size_t i = 0; i < sizeof bad_types / sizeof *bad_types; i++)
                    if (strcmp(type, bad_types[i]) == 0) found = bad_types[i];
                if (found) snprintf(ret_mount, size, "%s", mount);
            }
        }
        line = *end ? end + 1 : end;
    }
    return found;
}

/* The whole file, or NULL. */
static char *slurp(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return NULL;
    size_t used = 0, room = 16384;
    char *text = malloc(room);
    for (ssize_t n = 1; text && n > 0; used += (size_t)n) {
        if (room - used < 4096) {
            char *more = realloc(text, room *= 2);
            if (!more) break;
            text = more;
        }
        n = read(fd, text + used, room - used - 1);
        if (n <= 0) break;
    }
    close(fd);
    if (text) text[used] = 0;
    return text;
}

dev_t place_kernel_dev(const struct place *place) {
    char path[64];
    unsigned mount = 0, id, major, minor;
    dev_t found = 0;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", place->fd);
    char *info = slurp(path), *table = slurp("/proc/self/mountinfo");
    const char *at = info ? strstr(info, "mnt_id:") : NULL;
    if (table && at && sscanf(at, "mnt_id: %u", &mount) == 1)
        for (const char *line = table; line && *line && !found; line = (line = strchr(line, '\n')) ? line + 1 : NULL)
            if (sscanf(line, "%u %*u %u:%u", &id, &major, &minor) == 3 && id == mount) found = makedev(major, minor);
    free(info);
    free(table);
    return found;
}

static int refuse_mount(const char *dir, const char *type, const char *mount, pawl_error *error) {
    return error_set(
        error, PAWL_EUNSAFE, dir,
        "%s is on a %s mount%s%s, where flock may hang, or not exclude other machines; name a directory on a "
        "local file system, or use a service (redis://, postgresql://, etcd://)",
        dir, type, *mount ? " at " : "", mount);
}

static int check_mounts(const char *dir, pawl_error *error) {
    char mount[PATH_MAX] = "";
    char *table = slurp("/proc/self/mountinfo");
    if (!table) return PAWL_OK; /* no /proc: the magic number decides, after opening */
    const char *type = place_bad_mount(table, dir, mount, sizeof mount);
    free(table);
    return type ? refuse_mount(dir, type, mount, error) : PAWL_OK;
}

/* --- opening --- */

/* "cannot ATTEMPTED DIR/FILE: why", with advice where there is any. */
int place_errno(const struct place *place, const char *file, const char *attempted, pawl_error *error) {
    const char *advice = "";
    int code = PAWL_EUNREACHABLE;
    switch (errno) {
    case EACCES:
    case EPERM:
        code = PAWL_EDENIED;
        advice = place->group ? "" : "; users share locks in a directory of their group with mode 2770";
        break;
    case EROFS:
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case ENOENT:
    case ENOTDIR: code = PAWL_EDENIED; break;
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case EAGAIN: code = PAWL_EINTERNAL; break;
    case ENAMETOOLONG: code = PAWL_EINVALID; break;
    default: break;
    }
    char path[PATH_MAX], why[128];
    snprintf(path, sizeof path, "%s%s%s", place->dir, file ? "/" : "", file ? file : "");
    return error_set(error, code, path, "cannot %s %s: %s%s", attempted, path, strerror_r(errno, why, sizeof why),
                     advice);
}

static int make_parents(const char *dir, pawl_error *error) {
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s", dir) >= sizeof path)
        return error_set(error, PAWL_EINVALID, NULL, "the path of the lock directory is too long");
    for (char *slash = strchr(path + 1, '/');; slash = strchr(slash + 1, '/')) {
        if (slash) *slash = 0;
        if (mkdir(path, 0700) != 0 && errno != EEXIST)
            return error_errno(error, errno == ENOMEM ? PAWL_EINTERNAL : PAWL_EDENIED, dir,
                               "cannot make %s for the locks of file: (name another directory: file:DIR): mkdir %s",
                               dir, path);
        if (!slash) return PAWL_OK;
        *slash = '/';
    }
}

static int open_dir(struct place *place, int *ret_fd, struct stat *ret_st, pawl_error *error) {
    int fd = place_above_two(open(place->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd < 0) {
        if (errno == ENOENT)
            return error_set(error, PAWL_EDENIED, place->dir, "the directory %s does not exist; make it first",
                             place->dir);
        return place_errno(place, NULL, "open the directory", error);
    }
    struct statfs fs;
    if (fstat(fd, ret_st) != 0 || fstatfs(fd, &fs) != 0) {
        int code = place_errno(place, NULL, "look at the directory", error);
        close(fd);
        return code;
    }
    for (size_t i = 0; i < sizeof bad_magic / sizeof *bad_magic; i++)
        if ((unsigned long)fs.f_type == bad_magic[i].magic) {
            close(fd);
            return refuse_mount(place->dir, bad_magic[i].type, "", error);
        }
    if ((ret_st->st_mode & S_IWOTH) && !(ret_st->st_mode & S_ISVTX)) {
        close(fd);
        return error_set(error, PAWL_EUNSAFE, place->dir,
                         "anybody may remove files in %s (mode %04o), and with them the locks; chmod o-w or +t it",
                         place->dir, (unsigned)ret_st->st_mode & 07777);
    }
    *ret_fd = fd;
    return PAWL_OK;
}

static void adopt(struct place *place, int fd, const struct stat *st) {
    if (place->fd >= 0) close(place->fd);
    if (place->counter.fd >= 0) close(place->counter.fd);
    place->counter.fd = -1;
    place->fd = fd;
    place->dev = st->st_dev;
    place->ino = st->st_ino;
    place->group = (st->st_mode & S_ISGID) && (st->st_mode & S_IWGRP);
    place->anybody = st->st_mode & S_IWOTH;
    /* There nobody can lock a file of another, so the numbers of one user are all that a lock ever has. */
    if (place->anybody) snprintf(place->counter_file, sizeof place->counter_file, COUNTER_FILE ".%u", geteuid());
    else strcpy(place->counter_file, COUNTER_FILE);
}

/* A write beyond the limit would raise SIGXFSZ, which ends the program. */
static int check_limit(const char *dir, pawl_error *error) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= LARGEST_FILE)
        return PAWL_OK;
    return error_set(error, PAWL_EDENIED, dir,
                     "the limit of file sizes (ulimit -f) is %llu bytes, a lock file may need %d",
                     (unsigned long long)limit.rlim_cur, LARGEST_FILE);
}

static int fill(struct place *place, bool make, pawl_error *error) {
    struct stat st;
    int fd, code = check_mounts(place->dir, error);
    if (code == PAWL_OK) code = check_limit(place->dir, error);
    if (code == PAWL_OK && make) code = make_parents(place->dir, error);
    if (code == PAWL_OK) code = open_dir(place, &fd, &st, error);
    if (code) return code;
    adopt(place, fd, &st);
    if (make && st.st_uid != geteuid())
        return error_set(error, PAWL_EUNSAFE, place->dir, "%s belongs to user %d, not to us (%d)", place->dir,
                         (int)st.st_uid, (int)geteuid());
    char *boot = slurp("/proc/sys/kernel/random/boot_id");
    if (!boot || strlen(boot) < 36) {
        free(boot);
        return error_set(
            error, PAWL_EUNSAFE, "/proc/sys/kernel/random/boot_id",
            "cannot read the boot id of this kernel from /proc/sys/kernel/random/boot_id; is /proc mounted?");
    }
    memcpy(place->boot, boot, 36);
    free(boot);
    return PAWL_OK;
}

int place_open(const char *dir, bool make, struct place **ret, pawl_error *error) {
    if (strlen(dir) >= PATH_MAX - NAME_FILE_SIZE - 1)
        return error_set(error, PAWL_EINVALID, NULL, "the path of the lock directory is too long");
    struct place *place = calloc(1, sizeof *place);
    if (!place || !(place->dir = strdup(dir))) {
        free(place);
        return error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
    }
    place->dir_length = strlen(dir);
    place->fd = place->counter.fd = -1;
    int code = fill(place, make, error);
    if (code) {
        place_close(place);
        return code;
    }
    *ret = place;
    return PAWL_OK;
}

void place_close(struct place *place) {
    if (place->fd >= 0) close(place->fd);
    if (place->counter.fd >= 0) close(place->counter.fd);
    free(place->dir);
    free(place);
}

int place_refresh(struct place *place, pawl_error *error) {
    struct stat st;
    if (stat(place->dir, &st) == 0 && st.st_dev == place->dev && st.st_ino == place->ino) return PAWL_OK;
    int fd, code = open_dir(place, &fd, &st, error);
    if (code) return code;
    adopt(place, fd, &st);
    return PAWL_OK;
}

/* --- files --- */

int place_above_two(int fd) {
    if (fd < 0 || fd > 2) return fd;
    int higher = fcntl(fd, F_DUPFD_CLOEXEC, 3), number = errno;
    close(fd);
    errno = number;
    return higher;
}

int place_openat(const struct place *place, const char *file, int flags) {
    return place_above_two(
        openat(place->fd, file, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | flags, 0600));
}

int place_unopened(const struct place *place, const char *file, const char *what, pawl_error *error) {
    const char *why = errno == ELOOP                      ? "is a symbolic link"
                      : errno == EISDIR                   ? "is a directory"
                      : errno == ENXIO || errno == ENODEV ? "is not a regular file"
                      : errno == ETXTBSY                  ? "is a running program"
                                                          : NULL;
    if (why) return error_set(error, PAWL_EUNSAFE, file, "the %s %s/%s %s; refused", what, place->dir, file, why);
    char attempted[64];
    snprintf(attempted, sizeof attempted, "open the %s", what);
    return place_errno(place, file, attempted, error);
}

bool place_inode(int fd, const char *path, dev_t *ret_dev, ino_t *ret_ino, int64_t *ret_size) {
    struct statx st;
    if (statx(fd, path, AT_SYMLINK_NOFOLLOW, STATX_INO | STATX_SIZE, &st) != 0) return false;
    *ret_dev = makedev(st.stx_dev_major, st.stx_dev_minor);
    *ret_ino = st.stx_ino;
    *ret_size = (int64_t)st.stx_size;
    return true;
}

bool place_linked(int fd, int64_t *ret_size) {
    struct statx st;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_NLINK | STATX_SIZE, &st) != 0) return false;
    *ret_size = (int64_t)st.stx_size;
    return st.stx_nlink > 0;
}

int place_trusts(const struct place *place, const char *file, const char *what, const struct stat *st,
                 pawl_error *error) {
    const char *why = NULL;
    if (!S_ISREG(st->st_mode)) why = "is not a regular file";
    else if (st->st_nlink > 1) why = "has more than one link";
    if (why) return error_set(error, PAWL_EUNSAFE, file, "the %s %s/%s %s; refused", what, place->dir, file, why);
    if (place->anybody && st->st_uid != geteuid())
        return error_set(
            error, PAWL_EUNSAFE, file,
            "the %s %s/%s was made by user %d, and anybody may make files there; refused (users share locks in "
            "a directory of their group with mode 2770)",
            what, place->dir, file, (int)st->st_uid);
    return PAWL_OK;
}

static int fill_new(const struct place *place, int fd, const void *content, size_t size, bool sync) {
    /* fchmod, because the umask may have taken away what the group needs */
    if (fchmod(fd, place->group ? 0660 : 0600) != 0) return -1;
    ssize_t n = pwrite(fd, content, size, 0);
    if (n >= 0 && (size_t)n < size) errno = ENOSPC;
    if (n < 0 || (size_t)n < size) return -1;
    return sync ? fsync(fd) : 0;
}

int place_create(struct place *place, const char *file, const void *content, size_t size, bool sync,
                 pawl_error *error) {
    unsigned char bytes[8];
    char digits[17], draft[32];
    random_bytes(bytes, sizeof bytes);
    random_hex(bytes, sizeof bytes, digits);
    snprintf(draft, sizeof draft, ".pawl.new.%s", digits);
    int fd = place_openat(place, draft, O_CREAT | O_EXCL);
    if (fd < 0) return place_errno(place, file, "create", error);
    int made = fill_new(place, fd, content, size, sync);
    if (made == 0) made = renameat2(place->fd, draft, place->fd, file, RENAME_NOREPLACE);
    int code = PAWL_OK;
    if (made != 0) {
        if (errno != EEXIST) code = place_errno(place, file, "create", error);
        unlinkat(place->fd, draft, 0);
    } else if (sync && fsync(place->fd) != 0) code = place_errno(place, file, "sync the directory of", error);
    close(fd);
    return code;
}
