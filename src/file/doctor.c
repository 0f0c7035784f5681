/* doctor.c: is this directory good for locks? Network and FUSE mounts never come so far: place.c refuses them. */
#include "doctor.h"
#include "pawl.h"
#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { MANY_FILES = 50000, FEW_BYTES = 1 << 20, FEW_INODES = 100 };

struct looking {
    const struct place *place;
    struct stat st;
    bk_find *find;
    void *data;
};

static void tell(const struct looking *l, const char *id, int level, const char *about, const char *seen,
                 const char *why, const char *fix) {
    bool fine = level == PAWL_LEVEL_FINE;
    struct bk_finding f = {id, level, about, seen, fine ? "" : why, fine ? "" : fix};
    l->find(&f, l->data);
}

static void file_system(const struct looking *l) {
    static const struct {
        unsigned long magic;
        const char *name;
        int level;
        const char *why, *fix;
    } rows[] = {
        {TMPFS_MAGIC, "tmpfs", PAWL_LEVEL_WARNING, "after a reboot the tokens go on from the clock alone",
         "a directory on a disk, as /var/lib/pawl"},
        {RAMFS_MAGIC, "ramfs", PAWL_LEVEL_WARNING, "after a reboot the tokens go on from the clock alone",
         "a directory on a disk, as /var/lib/pawl"},
        {OVERLAYFS_SUPER_MAGIC, "overlay", PAWL_LEVEL_WARNING,
         "the layer of a container: nobody outside of it meets in these locks, and they go with it",
         "a volume or a bind mount that all who want the lock see"},
        {EXT4_SUPER_MAGIC, "ext4", PAWL_LEVEL_FINE, "", ""},
        {XFS_SUPER_MAGIC, "xfs", PAWL_LEVEL_FINE, "", ""},
        {BTRFS_SUPER_MAGIC, "btrfs", PAWL_LEVEL_FINE, "", ""},
    };
    struct statfs fs;
    char seen[64];
    if (fstatfs(l->place->fd, &fs) != 0) return;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if ((unsigned long)fs.f_type == rows[i].magic) {
            tell(l, "F01", rows[i].level, "file system", rows[i].name, rows[i].why, rows[i].fix);
            return;
        }
    snprintf(seen, sizeof seen, "a local file system (type %lx)", (unsigned long)fs.f_type);
    tell(l, "F01", PAWL_LEVEL_FINE, "file system", seen, "", "");
}

static void permissions(const struct looking *l) {
    mode_t mode = l->st.st_mode & 07777;
    char seen[64];
    snprintf(seen, sizeof seen, "mode %04o, user %d, group %d", (unsigned)mode, (int)l->st.st_uid, (int)l->st.st_gid);
    if (mode & S_IWOTH) /* sticky: without that it is refused */
        tell(l, "F02", PAWL_LEVEL_WARNING, "permissions", seen,
             "every user may make lock files, and each is private to the one who made it: all others are refused that "
             "lock",
             "a directory of your own, or of a group with mode 2770");
    else if ((mode & S_IWGRP) && !(mode & S_ISGID))
        tell(l, "F02", PAWL_LEVEL_WARNING, "permissions", seen,
             "the group may make lock files, but each is private to the one who made it: the others are denied",
             "chmod g+s on the directory");
    else if (!(mode & S_IWGRP) && l->st.st_uid != geteuid())
        tell(l, "F02", PAWL_LEVEL_WARNING, "permissions", seen,
             "the directory belongs to another user, who can take locks away",
             "a directory of your own, or of a group with mode 2770");
    else tell(l, "F02", PAWL_LEVEL_FINE, "permissions", seen, "", "");
}

static void room(const struct looking *l) {
    struct statvfs vfs;
    char seen[96];
    if (fstatvfs(l->place->fd, &vfs) != 0) return;
    unsigned long long bytes = (unsigned long long)vfs.f_bavail * vfs.f_frsize;
    bool few = bytes < FEW_BYTES, full = vfs.f_files && vfs.f_favail < FEW_INODES;
    snprintf(seen, sizeof seen, "%llu MiB and %llu files are free", bytes >> 20, (unsigned long long)vfs.f_favail);
    tell(l, "F03", few || full ? PAWL_LEVEL_UNSAFE : PAWL_LEVEL_FINE, "room", seen,
         "a new lock needs a file, and a token a write", "make room");
}

static void whereabouts(const struct looking *l) {
    static const char *const temporary[] = {"/tmp", "/var/tmp", "/dev/shm"};
    const char *dir = l->place->dir;
    for (size_t i = 0; i < sizeof temporary / sizeof *temporary; i++) {
        size_t n = strlen(temporary[i]);
        if (strncmp(dir, temporary[i], n) != 0 || (dir[n] && dir[n] != '/')) continue;
        tell(l, "F04", PAWL_LEVEL_WARNING, "place", dir,
             "a service with PrivateTmp= sees another one, and cleaners remove old files, with them the locks",
             "file: without a directory, or one below /var/lib");
        return;
    }
    tell(l, "F04", PAWL_LEVEL_FINE, "place", dir, "", "");
}

static void many_files(const struct looking *l) {
    int fd = openat(l->place->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *listing = fd < 0 ? NULL : fdopendir(fd);
    char seen[64];
    int n = 0;
    if (!listing) {
        if (fd >= 0) close(fd);
        tell(l, "F05", PAWL_LEVEL_UNSEEN, "lock files", "the directory cannot be listed", "", "");
        return;
    }
    while (readdir(listing)) n++;
    closedir(listing);
    snprintf(seen, sizeof seen, "%d files", n);
    tell(l, "F05", n > MANY_FILES ? PAWL_LEVEL_WARNING : PAWL_LEVEL_FINE, "lock files", seen,
         "a file is kept for each name that was ever locked: pawl ls gets slow",
         "fewer names, or another directory for each kind");
}

enum bk_says doctor_of(struct place *place, bk_find *find, void *data, pawl_error *error) {
    struct looking l = {.place = place, .find = find, .data = data};
    if (place_refresh(place, error)) return BK_FAULT;
    if (fstat(place->fd, &l.st) != 0) {
        place_errno(place, NULL, "look at the directory", error);
        return BK_FAULT;
    }
    file_system(&l);
    permissions(&l);
    room(&l);
    whereabouts(&l);
    many_files(&l);
    return BK_YES;
}
