/* place.h: the directory that holds the locks: which one, whether it can be trusted, how files come to be in it.
 * A session of the file backend is a place. */
#ifndef PAWL_FILE_PLACE_H
#define PAWL_FILE_PLACE_H
#include "error.h"
#include "name.h"
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

enum { COUNTER_SIZE = 224 };

struct counter_state {
    uint64_t last, since, bound, synced;
    char boot[40];          /* 37 are used; compared as bytes, so there is no padding */
    uint64_t ino, birth_ns; /* ino 0: never used */
};

struct counter {
    int fd; /* -1: not open */
    dev_t dev;
    ino_t ino;
    uint64_t birth_ns; /* 0: this file system keeps none */
    int64_t looked_ns; /* when its name was looked up */
    /* As it was written last: who comes again before anybody else need not read it digit by digit. "": not yet. */
    char text[COUNTER_SIZE];
    struct counter_state state;
};

struct place {
    char *dir; /* absolute */
    size_t dir_length;
    int fd;
    dev_t dev;
    ino_t ino;
    bool group;    /* setgid and group-writable: files are made for the group */
    bool anybody;  /* world-writable and sticky: strangers make files here */
    char boot[37]; /* boot id of the kernel */
    char counter_file[24];
    struct counter counter;
};

/* The directory that `file:` means for this user, from passwd, never from the environment. */
int place_default(char *ret, size_t size, pawl_error *error);
/* dir: absolute; make: create it and its parents, 0700, and insist that it is ours. */
int place_open(const char *dir, bool make, struct place **ret, pawl_error *error);
void place_close(struct place *place);
/* Opens the directory again if its path leads to another one now. */
int place_refresh(struct place *place, pawl_error *error);

/* fd, or what is behind it under a number above 2: who starts without 0, 1 and 2 must not print into what is ours. */
int place_above_two(int fd);
/* openat for reading and writing, without following links, waiting, or becoming a terminal's; never 0, 1 or 2: who
 * starts without them must not print into a lock file. */
int place_openat(const struct place *place, const char *file, int flags);
/* Why it could not, from errno; `what`: "lock file". PAWL_EUNSAFE if it is no regular file. */
int place_unopened(const struct place *place, const char *file, const char *what, pawl_error *error);

/* Device, inode and size of what a path leads to, links not followed; fd AT_FDCWD or a directory. Asks for no times: on
 * kernels with fine-grained time stamps a file whose times were asked for pays for new ones at its next write. */
bool place_inode(int fd, const char *path, dev_t *ret_dev, ino_t *ret_ino, int64_t *ret_size);
/* Has it a name still? Half the price of a look at the path; one that was moved away has, too. */
bool place_linked(int fd, int64_t *ret_size);

/* PAWL_EUNSAFE unless it is a regular file, with one link, made by somebody trusted here. `what`: "lock file". */
int place_trusts(const struct place *place, const char *file, const char *what, const struct stat *st,
                 pawl_error *error);
/* Makes `file` with this content, complete or not at all; one that is there already is left alone and is PAWL_OK.
 * sync: file and directory are on disk when this returns. */
int place_create(struct place *place, const char *file, const void *content, size_t size, bool sync, pawl_error *error);
/* Fills *error from errno: which PAWL_E... it is follows from errno. */
int place_errno(const struct place *place, const char *file, const char *attempted, pawl_error *error);

/* The device as the kernel's own tables name it, which is not that of stat on btrfs; 0: not known. */
dev_t place_kernel_dev(const struct place *place);
/* The type of a mount that keeps no locks we could trust, or NULL. For the tests: the text of mountinfo is given. On
 * refusal *ret_mount is where it is mounted. */
const char *place_bad_mount(const char *mountinfo, const char *dir, char *ret_mount, size_t size);
#endif
