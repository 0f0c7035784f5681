/* lockfile.c: see lockfile.h. */
#include "lockfile.h"
#include "clock.h"
#include "counter.h"
#include "digits.h"
#include "token.h"
#include "url.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define MAGIC "pawl lock 1\n"
enum { MAGIC_SIZE = sizeof MAGIC - 1, HEAD_SIZE = 2048, TAIL = 2032, SLOT_SIZE = 512, SLOTS = 257 };
/* Byte locks: the queue from 2^61, two bytes a nanosecond (with a gap between neighbours, so that the kernel need not
 * merge and split them), the signs of life of holders from 2^62. */
#define QUEUE (INT64_C(1) << 61)
#define QUEUE_END (INT64_C(1) << 62)
#define PLACE(arrival) (QUEUE + (arrival))
#define LIVES QUEUE_END

static int byte_lock(int fd, int command, short type, int64_t at, int64_t length) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = length};
    return fcntl(fd, command, &lock);
}

/* --- the file --- */

int lockfile_headed(int fd) {
    char magic[MAGIC_SIZE];
    errno = 0;
    ssize_t n = pread(fd, magic, sizeof magic, 0);
    return n == (ssize_t)sizeof magic && memcmp(magic, MAGIC, sizeof magic) == 0;
}

static int foreign(const struct place *place, const char *file, pawl_error *error) {
    return error_set(error, PAWL_EUNSAFE, file,
                     "%s/%s is not a lock file: it has content that pawl did not write; nothing was changed",
                     place->dir, file);
}

static void head_of(const char *name, size_t length, char ret[HEAD_SIZE]) {
    memset(ret, 0, HEAD_SIZE);
    strcpy(ret, MAGIC "name=");
    url_escape(ret, HEAD_SIZE - 1, name, length, "._-/:");
    strcat(ret, "\n");
}

static int inspect(const struct place *place, struct lockfile *file, pawl_error *error) {
    struct stat st;
    if (fstat(file->fd, &st) != 0) return place_errno(place, file->file, "look at the lock file", error);
    int code = place_trusts(place, file->file, "lock file", &st, error);
    if (code) return code;
    file->dev = st.st_dev;
    file->ino = st.st_ino;
    file->size = st.st_size;
    file->headed = st.st_size > 0;
    if (file->headed && !lockfile_headed(file->fd))
        return errno ? place_errno(place, file->file, "read the lock file", error) : foreign(place, file->file, error);
    file->seen = file->headed;
    return PAWL_OK;
}

int lockfile_open(struct place *place, const char *name, size_t length, struct lockfile *ret, pawl_error *error) {
    struct lockfile file = {0};
    if (!name_encode(name, length, file.file))
        return error_set(error, PAWL_EINVALID, NULL, "the name of a lock has 1 to %d bytes and no NUL", NAME_MAX_LOCK);
    for (int made = 0;; made++) {
        file.fd = place_openat(place, file.file, 0);
        if (file.fd >= 0) break;
        if (errno != ENOENT || made == 100) return place_unopened(place, file.file, "lock file", error);
        char head[HEAD_SIZE];
        head_of(name, length, head);
        int code = place_refresh(place, error);
        if (code == PAWL_OK && place->anybody) code = counter_ready(place, error);
        if (code == PAWL_OK) code = place_create(place, file.file, head, sizeof head, false, error);
        if (code) return code;
    }
    int code = inspect(place, &file, error);
    if (code) {
        close(file.fd);
        return code;
    }
    *ret = file;
    return PAWL_OK;
}

void lockfile_unlock(struct lockfile *file) {
    flock(file->fd, LOCK_UN); /* first, because somebody is waiting for this one only */
    byte_lock(file->fd, F_OFD_SETLK, F_UNLCK, 0, 0);
    file->slot = 0;
    file->arrival = 0;
}

void lockfile_close(struct lockfile *file) {
    close(file->fd);
    file->fd = -1;
}

bool lockfile_current(const struct place *place, struct lockfile *file) {
    char path[PATH_MAX]; /* place_open saw to it that it fits */
    dev_t dev;
    ino_t ino;
    memcpy(path, place->dir, place->dir_length);
    path[place->dir_length] = '/';
    strcpy(path + place->dir_length + 1, file->file);
    bool current = place_inode(AT_FDCWD, path, &dev, &ino, &file->size) && dev == file->dev && ino == file->ino;
    file->looked_ns = current ? clock_now_ns() : 0;
    return current;
}

bool lockfile_still(const struct place *place, struct lockfile *file) {
    if (clock_now_ns() - file->looked_ns < NS_PER_MS) return place_linked(file->fd, &file->size);
    return lockfile_current(place, file);
}

int lockfile_recheck(const struct place *place, struct lockfile *file, pawl_error *error) {
    if (file->headed && lockfile_headed(file->fd)) return PAWL_OK; /* the same file, so trusted as before */
    return inspect(place, file, error);
}

/* --- locks --- */

int lockfile_try(struct lockfile *file, bool shared) {
    struct flock queue = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = QUEUE, .l_len = QUEUE_END - QUEUE};
    bool alone = file->headed && file->size <= HEAD_SIZE + SLOT_SIZE; /* nobody has ever waited for it */
    if (!alone && fcntl(file->fd, F_OFD_GETLK, &queue) != 0) return -1;
    if (!alone && queue.l_type != F_UNLCK) return 1;
    if (flock(file->fd, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB) == 0) return 0;
    return errno == EWOULDBLOCK ? 1 : -1;
}

static int next_slot(int fd, int last);

/* In the head: the last arrival, and the last slot of the ring that was given out. Nobody relies on it. */
struct tail {
    int64_t arrival, slot;
};

static struct tail read_tail(const struct lockfile *file) {
    struct tail tail;
    if (!file->headed || pread(file->fd, &tail, sizeof tail, TAIL) != (ssize_t)sizeof tail) return (struct tail){0};
    if (tail.arrival < 0) tail.arrival = 0;
    if (tail.slot < 0 || tail.slot >= SLOTS) tail.slot = 0;
    return tail;
}

static bool write_tail(const struct lockfile *file, const struct tail *tail) {
    return file->headed && pwrite(file->fd, tail, sizeof *tail, TAIL) == (ssize_t)sizeof *tail;
}

int lockfile_queue(struct lockfile *file) {
    struct tail tail = read_tail(file);
    int64_t arrival = clock_now_ns();
    /* two that arrive in the same nanosecond: one stands behind the other */
    while (byte_lock(file->fd, F_OFD_SETLK, F_WRLCK, PLACE(arrival), 1) != 0) {
        if (errno != EAGAIN && errno != EACCES) return errno;
        arrival++;
    }
    file->arrival = arrival;
    file->before = tail.arrival < arrival ? tail.arrival : 0;
    file->slot = next_slot(file->fd, (int)tail.slot);
    write_tail(file, &(struct tail){arrival, file->slot}); /* if it fails, the next one takes longer to find us */
    return 0;
}

/* Blocks until nobody holds the byte. Kept, it would be taken for its former owner by those between him and us. */
static int await_byte(int fd, int64_t at) {
    while (byte_lock(fd, F_OFD_SETLKW, F_WRLCK, at, 1) != 0)
        if (errno != EINTR) return errno;
    return byte_lock(fd, F_OFD_SETLK, F_UNLCK, at, 1) == 0 ? 0 : errno;
}

int lockfile_turn(struct lockfile *file) {
    int number = file->before ? await_byte(file->fd, PLACE(file->before)) : 0;
    while (number == 0) {
        struct flock earlier = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = QUEUE};
        earlier.l_len = PLACE(file->arrival) - QUEUE;
        if (fcntl(file->fd, F_OFD_GETLK, &earlier) != 0) return errno;
        if (earlier.l_type == F_UNLCK) return 0;
        number = await_byte(file->fd, earlier.l_start);
    }
    return number;
}

int lockfile_wait(struct lockfile *file, bool shared) {
    int fd = file->fd, result, before;
    do {
        /* flock is no cancellation point; nothing but the call itself stands between the two lines */
        pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before);
        result = flock(fd, shared ? LOCK_SH : LOCK_EX);
        pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &before);
    } while (result != 0 && errno == EINTR);
    return result == 0 ? 0 : errno;
}

void lockfile_leave(struct lockfile *file) {
    if (file->arrival) byte_lock(file->fd, F_OFD_SETLK, F_UNLCK, PLACE(file->arrival), 1);
    file->arrival = 0;
}

/* --- records --- */

static off_t offset_of(int slot) { return HEAD_SIZE + (off_t)slot * SLOT_SIZE; }

/* The byte whose lock says that the one of this record lives: of a waiter its place in the queue, of a holder one of
 * its own, so that a new holder need not wait for the old one's. */
static int64_t life_byte(const struct slot *slot) {
    return slot->kind == 'x' || slot->kind == 's' ? LIVES + (int64_t)slot->token : PLACE(slot->order);
}

bool lockfile_living(int fd, const struct slot *slot) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = life_byte(slot), .l_len = 1};
    return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* The next of the ring, but for slots of readers who hold the lock: waiters come and go, and a reader may stay for
 * long. */
static int next_slot(int fd, int last) {
    struct slot slot;
    int next = last;
    for (int tries = 0; tries < 8; tries++) {
        next = next % (SLOTS - 1) + 1;
        if (!lockfile_read(fd, next, &slot) || slot.kind != 's' || !lockfile_living(fd, &slot)) break;
    }
    return next;
}

static void write_head(struct lockfile *file, const char *name, size_t length) {
    char head[HEAD_SIZE];
    head_of(name, length, head);
    file->headed = pwrite(file->fd, head, sizeof head, 0) == (ssize_t)sizeof head;
}

void lockfile_record(struct lockfile *file, const char *name, size_t length, const struct slot *slot) {
    char text[SLOT_SIZE] = {0}, *to = text;
    bool waits = slot->kind == 'w' || slot->kind == 'r';
    if (!file->headed && !waits) write_head(file, name, length); /* for a waiter the file is its holder's */
    if (!file->headed) return;
    if (slot->kind == 's' && file->slot == 0) {
        struct tail tail = read_tail(file);
        tail.slot = file->slot = next_slot(file->fd, (int)tail.slot);
        if (!write_tail(file, &tail)) return;
    }
    *to++ = slot->kind;
    put_number(&to, " ", 16, slot->token);
    put_number(&to, " ", 13, (uint64_t)slot->since_ms);
    put_number(&to, " ", 19, (uint64_t)slot->order);
    *to++ = ' ';
    put_text(&to, slot->about, strnlen(slot->about, ABOUT_SIZE - 1));
    *to = '\n';
    /* written before it counts; what did not get there must not count, or an old record would be shown as ours */
    int at = slot->kind == 'x' ? 0 : file->slot;
    if (pwrite(file->fd, text, sizeof text, offset_of(at)) == (ssize_t)sizeof text && !waits)
        byte_lock(file->fd, F_OFD_SETLK, F_WRLCK, life_byte(slot), 1);
}

/* Others may have written it: nothing but printable ASCII passes. */
static bool parse_slot(char text[SLOT_SIZE + 1], struct slot *ret) {
    struct slot slot = {0};
    int at = 0;
    text[SLOT_SIZE] = 0;
    char *end = strchr(text, '\n');
    if (!end) return false;
    *end = 0;
    if (sscanf(text, "%c %" SCNu64 " %" SCNd64 " %" SCNd64 "%n", &slot.kind, &slot.token, &slot.since_ms, &slot.order,
               &at) != 4 ||
        text[at] != ' ' || strlen(text + at + 1) >= ABOUT_SIZE || !strchr("xswr", slot.kind))
        return false;
    if (slot.token > TOKEN_MAX || slot.since_ms < 0 || slot.order < 0 || slot.order >= QUEUE) return false;
    for (const char *p = text + at + 1; *p; p++)
        if (*p < '!' || *p > '~') return false;
    strcpy(slot.about, text + at + 1);
    *ret = slot;
    return true;
}

bool lockfile_read(int fd, int number, struct slot *ret) {
    char text[SLOT_SIZE + 1];
    return pread(fd, text, SLOT_SIZE, offset_of(number)) == SLOT_SIZE && parse_slot(text, ret) &&
           (number == 0) == (ret->kind == 'x');
}

/* False also at the moment of a hand-over, when the new holder has not yet written its record. */
static bool any_holder_lives(int fd) {
    struct flock lives = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LIVES};
    return fcntl(fd, F_OFD_GETLK, &lives) == 0 && lives.l_type != F_UNLCK;
}

bool lockfile_holder(int fd, struct slot *ret) {
    enum { CHUNK = 16 };
    char text[CHUNK * SLOT_SIZE];
    if (!any_holder_lives(fd)) return false;
    if (lockfile_read(fd, 0, ret) && lockfile_living(fd, ret)) return true;
    for (int first = 1; first < SLOTS; first += CHUNK) {
        ssize_t n = pread(fd, text, sizeof text, offset_of(first));
        for (int i = 0; i < CHUNK && n >= (i + 1) * SLOT_SIZE; i++)
            if (text[i * SLOT_SIZE] == 's' && lockfile_read(fd, first + i, ret) && lockfile_living(fd, ret))
                return true;
        if (n < (ssize_t)sizeof text) return false;
    }
    return false;
}

int lockfile_slots(int64_t file_size) {
    int64_t n = (file_size - HEAD_SIZE) / SLOT_SIZE;
    return n < 0 ? 0 : n > SLOTS ? SLOTS : (int)n;
}

bool lockfile_name(int fd, char ret[NAME_MAX_LOCK + 1]) {
    char head[HEAD_SIZE + 1];
    ssize_t n = pread(fd, head, HEAD_SIZE, 0);
    if (n != HEAD_SIZE) return false;
    head[n] = 0;
    char *name = head + MAGIC_SIZE, *end = strchr(name, '\n');
    if (strncmp(head, MAGIC "name=", MAGIC_SIZE + 5) != 0 || !end) return false;
    *end = 0;
    struct url_param *params = NULL;
    size_t count = 0;
    bool good = false;
    if (url_parse_params(name, &params, &count) == PAWL_OK && count == 1 && strlen(params[0].value) <= NAME_MAX_LOCK) {
        strcpy(ret, params[0].value);
        good = true;
    }
    url_free_params(params, count);
    return good;
}
