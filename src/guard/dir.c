/* dir.c: guard in a directory: one file a resource, mark and data together, replaced by rename.
 *
 *   NAME.record   the record, described in record_file.h; never changed in place
 *   NAME.new      the next record, until it is renamed over the old one
 *   NAME.lock     locked (open file description lock) during a step; empty, never removed by pawl
 *   .pawl-guard   the rule of the set
 *
 * NAME is the resource with everything but [A-Za-z0-9._-] as %XX, a leading dot too, so no name leaves the directory. A
 * step is durable when commit returns: the file is flushed before the rename, the directory after it. */
#include "clock.h"
#include "guard.h"
#include "random.h"
#include "record_file.h"
#include "sha256.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_LONGEST 200 /* bytes of an encoded name; what is longer ends in a digest instead */
#define SET_FILE ".pawl-guard"

struct guard_store {
    char *path;
    int dir_fd;  /* -1: not opened yet */
    int lock_fd; /* -1: no step */
    char resource[GUARD_NAME_MAX + 1];
    char encoded[NAME_LONGEST + 1];
};

static void free_bytes(char **bytes) { free(*bytes); }
static void close_fd(int *fd) {
    if (*fd >= 0) close(*fd);
}
#define AUTO_FREE __attribute__((cleanup(free_bytes)))
#define AUTO_CLOSE __attribute__((cleanup(close_fd)))

static int dir_open(const struct url *url, struct guard_store **ret, pawl_error *error) {
    if (url->authority || !*url->path)
        return error_set(error, PAWL_EINVALID, NULL, "url %s: write dir:DIRECTORY", url->shown);
    struct guard_store *store = calloc(1, sizeof *store);
    if (!store || !(store->path = strdup(url->path))) {
        free(store);
        return error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
    }
    store->dir_fd = store->lock_fd = -1;
    *ret = store;
    return PAWL_OK;
}

static void dir_close(struct guard_store *store) {
    if (store->dir_fd >= 0) close(store->dir_fd);
    free(store->path);
    free(store);
}

static int system_error(const struct guard_store *store, pawl_error *error, const char *what, const char *name) {
    int code = errno == EACCES || errno == EPERM || errno == EROFS     ? PAWL_EDENIED
               : errno == EMFILE || errno == ENFILE || errno == ENOMEM ? PAWL_EINTERNAL
                                                                       : PAWL_EUNREACHABLE;
    return error_errno(error, code, store->path, "cannot %s %s/%s", what, store->path, name);
}

/* With make, an absent directory is created; without, PAWL_GNORECORD. */
static int enter_directory(struct guard_store *store, bool make, pawl_error *error) {
    if (store->dir_fd >= 0) return PAWL_OK;
    int fd = open(store->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT && !make) return PAWL_GNORECORD;
    if (fd < 0 && errno == ENOENT) {
        if (mkdir(store->path, 0777) < 0 && errno != EEXIST) return system_error(store, error, "make", "");
        fd = open(store->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        /* The new directory's own entry must last as long as what will be written in it. */
        AUTO_CLOSE int parent = fd < 0 ? -1 : openat(fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0 && (parent < 0 || fsync(parent) < 0)) {
            close(fd);
            return system_error(store, error, "flush the parent of", "");
        }
    }
    if (fd < 0) return system_error(store, error, "open", "");
    store->dir_fd = fd;
    return PAWL_OK;
}

/* The file name without its ending; different for different resources. */
static void encode(const char *resource, char ret[NAME_LONGEST + 1]) {
    size_t length = strlen(resource);
    char whole[3 * GUARD_NAME_MAX + 1] = "";
    if (*resource == '.') snprintf(whole, sizeof whole, "%%2E");
    url_escape(whole, sizeof whole, resource + (*resource == '.'), length - (*resource == '.'), "._-");
    if (strlen(whole) <= NAME_LONGEST) {
        snprintf(ret, NAME_LONGEST + 1, "%s", whole);
        return;
    }
    unsigned char digest[32];
    char hex[65];
    sha256(resource, length, digest);
    random_hex(digest, sizeof digest, hex);
    /* "%%" cannot come out of the escape, so a shortened name never meets a whole one. */
    snprintf(ret, NAME_LONGEST + 1, "%.*s%%%%%s", NAME_LONGEST - 66, whole, hex);
}

static void with_ending(const char *encoded, const char *ending, char ret[NAME_LONGEST + 16]) {
    snprintf(ret, NAME_LONGEST + 16, "%s%s", encoded, ending);
}

/* *ret_fd -1: there is no such file. */
static int open_file(struct guard_store *store, const char *name, int *ret_fd, pawl_error *error) {
    struct stat st;
    int fd = openat(store->dir_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno != ENOENT) return system_error(store, error, "open", name);
    if (fd >= 0 && (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))) {
        close(fd);
        return error_set(error, PAWL_EUNSAFE, store->path, "%s/%s is not a plain file", store->path, name);
    }
    *ret_fd = fd;
    return PAWL_OK;
}

/* Replaces `name` by head and data (data_fd: what is left to read there comes behind), durably. */
static int replace(struct guard_store *store, const char *name, const char *fresh, const char *head, size_t head_length,
                   const void *data, size_t length, int data_fd, pawl_error *error) {
    AUTO_CLOSE int fd = openat(store->dir_fd, fresh, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0) return system_error(store, error, "make", fresh);
    if (!write_all(fd, head, head_length) || !write_all(fd, data, length) ||
        (data_fd >= 0 && !copy_rest(data_fd, fd)) || fsync(fd) < 0) {
        int code = system_error(store, error, "write", fresh);
        unlinkat(store->dir_fd, fresh, 0);
        return code;
    }
    if (renameat(store->dir_fd, fresh, store->dir_fd, name) < 0) return system_error(store, error, "rename", fresh);
    if (fsync(store->dir_fd) < 0) return system_error(store, error, "flush the directory of", name);
    return PAWL_OK;
}

/* --- the lock of a resource --- */

/* Is the locked file still the one at this path? A cleaner may have removed it. */
static bool still_there(const struct guard_store *store, int fd, const char *name) {
    struct stat ours, there;
    return fstat(fd, &ours) == 0 && fstatat(store->dir_fd, name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
           ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
}

/* The kernel has no timed wait for such a lock, so this asks again, at most 16 ms apart. */
static int lock_file(struct guard_store *store, const char *name, int64_t until_ns, pawl_error *error) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    for (int64_t pause_ns = NS_PER_MS;;) {
        int fd = openat(store->dir_fd, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0666);
        if (fd < 0) return system_error(store, error, "open", name);
        bool locked = fcntl(fd, F_OFD_SETLK, &whole) == 0;
        if (locked && still_there(store, fd, name)) {
            store->lock_fd = fd;
            return PAWL_OK;
        }
        if (!locked && errno != EAGAIN && errno != EACCES && errno != EINTR) {
            int code = system_error(store, error, "lock", name);
            close(fd);
            return code;
        }
        close(fd);
        if (clock_now_ns() >= until_ns)
            return error_set(error, PAWL_ETIMEOUT, store->path, "another writer kept '%s' locked all the time (%s/%s)",
                             store->resource, store->path, name);
        clock_wait_fd(-1, 0, clock_now_ns() + random_between(pause_ns / 2, pause_ns), -1);
        if (pause_ns < 16 * NS_PER_MS) pause_ns *= 2;
    }
}

/* --- reading --- */

static int not_a_record(const struct guard_store *store, const char *name, const char *why, pawl_error *error) {
    return error_set(error, PAWL_EUNSAFE, store->path,
                     "%s/%s is not a record of this guard (%s); it is left alone: look at it, restore or remove it",
                     store->path, name, why);
}

/* Reads and checks a record's head. *ret_fd stands at the data; -1: no record. *ret_text owns the resets' texts. */
static int read_head(struct guard_store *store, const char *resource, const char *encoded, struct record_head *ret,
                     char **ret_text, int *ret_fd, pawl_error *error) {
    char name[NAME_LONGEST + 16];
    with_ending(encoded, ".record", name);
    AUTO_CLOSE int fd = -1;
    int code = open_file(store, name, &fd, error);
    if (code || fd < 0) {
        *ret_fd = -1;
        return code;
    }
    AUTO_FREE char *text = NULL;
    off_t data_at, size = lseek(fd, 0, SEEK_END);
    const char *why = record_head_read(fd, &text, ret, &data_at);
    if (!why && strcmp(ret->resource, resource) != 0) why = "it is of another resource";
    if (!why && data_at + (off_t)ret->length != size) why = "its length is wrong";
    if (!why && lseek(fd, data_at, SEEK_SET) < 0) why = "it cannot be read";
    if (why) {
        record_head_free(ret);
        return not_a_record(store, name, why, error);
    }
    *ret_fd = fd;
    *ret_text = text;
    fd = -1;
    text = NULL;
    return PAWL_OK;
}

/* The rule of the set; PAWL_RULE_DEFAULT: not installed. */
static int read_set(struct guard_store *store, int *ret_rule, pawl_error *error) {
    AUTO_CLOSE int fd = -1;
    char text[64] = "", name[16];
    int code = open_file(store, SET_FILE, &fd, error);
    if (code) return code;
    *ret_rule = PAWL_RULE_DEFAULT;
    if (fd < 0) return PAWL_OK;
    if (read(fd, text, sizeof text - 1) < 0) return system_error(store, error, "read", SET_FILE);
    if (sscanf(text, "pawl guard set 1\nrule %15s", name) == 1) *ret_rule = guard_rule_by_name(name);
    return *ret_rule ? PAWL_OK : not_a_record(store, SET_FILE, "it names no rule", error);
}

/* --- the contract --- */

static void dir_end(struct guard_store *store) {
    if (store->lock_fd >= 0) close(store->lock_fd);
    store->lock_fd = -1;
}

static int dir_begin(struct guard_store *store, const struct guard_step *step, struct guard_found *ret,
                     pawl_error *error) {
    char name[NAME_LONGEST + 16];
    int code = enter_directory(store, true, error);
    if (code) return code;
    snprintf(store->resource, sizeof store->resource, "%s", step->resource);
    encode(step->resource, store->encoded);
    with_ending(store->encoded, ".lock", name);
    if ((code = lock_file(store, name, step->until_ns, error))) return code;
    struct guard_found found = {.now_us = clock_wall_us()};
    struct record_head head = {0};
    AUTO_FREE char *text = NULL;
    AUTO_CLOSE int fd = -1;
    if ((code = read_head(store, step->resource, store->encoded, &head, &text, &fd, error)) == PAWL_OK)
        code = fd >= 0 ? PAWL_OK : read_set(store, &found.set_rule, error);
    if (code) dir_end(store);
    else {
        found.mark = head.mark;
        *ret = found;
    }
    record_head_free(&head);
    return code;
}

static int dir_commit(struct guard_store *store, const struct guard_change *change, pawl_error *error) {
    char name[NAME_LONGEST + 16], fresh[NAME_LONGEST + 16];
    struct record_head head = {0};
    AUTO_FREE char *text = NULL, *lines = NULL;
    AUTO_CLOSE int fd = -1;
    int code = read_head(store, store->resource, store->encoded, &head, &text, &fd, error);
    if (code) return code;
    size_t length = change->data ? change->length : head.length, lines_length;
    lines = record_head_lines(store->resource, change->mark, &head, change->reset, length, &lines_length);
    record_head_free(&head);
    if (!lines) return error_set(error, PAWL_EINTERNAL, store->path, "out of memory");
    with_ending(store->encoded, ".record", name);
    with_ending(store->encoded, ".new", fresh);
    return replace(store, name, fresh, lines, lines_length, change->data ? change->data : "",
                   change->data ? change->length : 0, change->data ? -1 : fd, error);
}

static int dir_fd(struct guard_store *store) { return store->lock_fd; }

static int dir_read(struct guard_store *store, const struct guard_step *step, pawl_guard_record **ret,
                    pawl_error *error) {
    char encoded[NAME_LONGEST + 1];
    int code = enter_directory(store, false, error);
    if (code) return code;
    encode(step->resource, encoded);
    struct record_head head = {0};
    AUTO_FREE char *text = NULL, *data = NULL;
    AUTO_CLOSE int fd = -1;
    if ((code = read_head(store, step->resource, encoded, &head, &text, &fd, error))) return code;
    if (fd < 0) return PAWL_GNORECORD;
    data = malloc(head.length + 1);
    if (!data) code = error_set(error, PAWL_EINTERNAL, store->path, "out of memory");
    else if (!read_all(fd, data, head.length)) code = system_error(store, error, "read", encoded);
    pawl_guard_record *record = NULL;
    if (!code) {
        record = guard_record_make(step->resource, &head.mark, data, head.length, head.resets, head.n_resets);
        if (!record) code = error_set(error, PAWL_EINTERNAL, store->path, "out of memory");
    }
    record_head_free(&head);
    if (!code) *ret = record;
    return code;
}

static int dir_install(struct guard_store *store, int rule, int64_t until_ns, pawl_error *error) {
    char text[64];
    int code = enter_directory(store, true, error), there = PAWL_RULE_DEFAULT;
    if (code) return code;
    snprintf(store->resource, sizeof store->resource, "%s", SET_FILE);
    if ((code = lock_file(store, SET_FILE ".lock", until_ns, error))) return code;
    code = read_set(store, &there, error);
    if (!code && there == PAWL_RULE_DEFAULT) {
        int n = snprintf(text, sizeof text, "pawl guard set 1\nrule %s\n", guard_rule_name(rule));
        code = replace(store, SET_FILE, SET_FILE ".new", text, (size_t)n, "", 0, -1, error);
    } else if (!code && there != rule)
        code = error_set(error, PAWL_EINVALID, store->path, "%s was installed with rule %s, not %s", store->path,
                         guard_rule_name(there), guard_rule_name(rule));
    dir_end(store);
    return code;
}

const struct guard_kind guard_dir = {.scheme = "dir",
                                     .open = dir_open,
                                     .close = dir_close,
                                     .begin = dir_begin,
                                     .commit = dir_commit,
                                     .end = dir_end,
                                     .fd = dir_fd,
                                     .read = dir_read,
                                     .install = dir_install};
