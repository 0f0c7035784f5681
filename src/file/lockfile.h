/* lockfile.h: one lock file: its two kinds of locks, and who is written into it.
 *
 * flock(2) on the file is the lock, so that util-linux flock and pawl exclude each other. In front of it stands a queue
 * made of byte locks far behind the end of the file, held through the open file description (OFD): a waiter locks a
 * byte whose offset is the time of its arrival, blocks until no earlier byte is locked, then in flock. It keeps its
 * byte until it releases the lock, so a hand-over wakes one thread once; a reader frees it when it has got the lock, to
 * let the next one in beside it. One that dies leaves the queue with its descriptor, and nothing is shared but the
 * kernel's own table. Who only tries asks first whether any byte is locked (F_OFD_GETLK locks nothing), so nobody
 * barges in, readers included, and those who try never disturb one another.
 *
 * To wake one waiter at a time, each blocks on the byte of the one before it. Who that is stands in the file as a mere
 * hint: after each wait the kernel is asked whether an earlier byte is locked, and if so, that one is waited for.
 *
 * The file: a head of 2048 bytes ("pawl lock 1", the name of the lock), then slots of 512 bytes, one line each. Slot 0
 * is the exclusive holder; the others are a ring for shared holders and waiters. A record counts only while a byte that
 * it names is locked (a waiter's is its place in the queue): that lock dies with its process, so a record of the dead
 * is never shown, and looking disturbs nobody. Whatever goes wrong with records never fails a lock. */
#ifndef PAWL_FILE_LOCKFILE_H
#define PAWL_FILE_LOCKFILE_H
#include "about.h"
#include "place.h"
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct lockfile {
    int fd;
    dev_t dev;
    ino_t ino;
    int64_t size;      /* when it was looked at last */
    int64_t looked_ns; /* when its path led to it */
    bool headed;       /* has pawl's head; otherwise it is empty */
    int slot;          /* ours in the ring; 0: none */
    bool seen;         /* to have pawl's head, a moment ago */
    bool lent;         /* copies of the descriptor may be kept elsewhere */
    int64_t arrival;   /* ours in the queue, also of an exclusive holder who waited; 0: not in it */
    int64_t before;    /* whose arrival was before ours: a hint, 0 none */
    char file[NAME_FILE_SIZE];
};

struct slot {
    char kind;        /* 'x' 's': exclusive, shared holder; 'w' 'r': waiter for an exclusive, shared lock */
    uint64_t token;   /* 0 of a waiter */
    int64_t since_ms; /* wall clock */
    int64_t order;    /* the arrival of a waiter, or of an exclusive holder who was one; else 0 */
    char about[ABOUT_SIZE];
};

/* Opens the file of that lock, made if need be. PAWL_EUNSAFE if it is somebody else's content, or not to be trusted. */
int lockfile_open(struct place *place, const char *name, size_t length, struct lockfile *ret, pawl_error *error);
/* What of it is in use: most names are short, and a program may hold many locks. */
static inline size_t lockfile_size(const struct lockfile *file) {
    return offsetof(struct lockfile, file) + strlen(file->file) + 1;
}
/* Releases whatever is locked, also for copies of the descriptor in other processes. */
void lockfile_unlock(struct lockfile *file);
void lockfile_close(struct lockfile *file); /* does not unlock while copies of the descriptor are open elsewhere */

/* 0: locked. 1: busy. -1: errno. Never blocks. */
int lockfile_try(struct lockfile *file, bool shared);
/* Joins the queue; never blocks. 0 or errno. */
int lockfile_queue(struct lockfile *file);
/* The two blocking steps of a waiter; 0 or errno. Both are made to be cancelled: lockfile_unlock cleans up whatever was
 * reached. */
int lockfile_turn(struct lockfile *file);
int lockfile_wait(struct lockfile *file, bool shared);
void lockfile_leave(struct lockfile *file); /* leaves the queue */

/* Still the file that its path leads to? */
bool lockfile_current(const struct place *place, struct lockfile *file); /* looks at its size, too */
/* The same at the end of a hold: a file that is moved away within a millisecond is not seen. */
bool lockfile_still(const struct place *place, struct lockfile *file);
/* After locking: the file may have been written, or given away, since it was opened. */
int lockfile_recheck(const struct place *place, struct lockfile *file, pawl_error *error);

/* Writes the record of a holder, or of a waiter in the queue. */
void lockfile_record(struct lockfile *file, const char *name, size_t length, const struct slot *slot);
/* The record in the slot of that number, of the living or of the dead. */
bool lockfile_read(int fd, int number, struct slot *ret);
bool lockfile_living(int fd, const struct slot *slot);
/* A living holder; false: none that is known. *ret may have been written. */
bool lockfile_holder(int fd, struct slot *ret);
int lockfile_slots(int64_t file_size); /* numbers below are worth reading */
/* The name in the head, for shortened file names. */
bool lockfile_name(int fd, char ret[NAME_MAX_LOCK + 1]);
/* Whether the file has pawl's head. errno is set if it cannot be read. */
int lockfile_headed(int fd);
#endif
