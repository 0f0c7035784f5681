/* counter.h: the fencing tokens of a directory: a file beside the locks (no lock's file name begins with a dot).
 *
 * The state is since, last, bound, synced; the boot id, inode and birth time of the file itself. To draw is GRANT of
 * token.h. A token is given out only if it is not above `synced`; else bound = token + 2^22 is written, brought to
 * disk, and noted as synced. Under another boot id, last = bound: the power may have gone with `last` in the page
 * cache. With another inode or birth time (copied back from a backup), or new, it is ADMIT: at the clock.
 *
 * `bound` may be in the page cache only (its writer was killed before the disk had it), so nobody believes it: `synced`
 * says what is on the disk. A damaged file is refused, never written. Not survived: the file put back in place with its
 * inode (the eighth of the clock covers that while clocks are right), and a lost disk with a clock that went back. */
#ifndef PAWL_FILE_COUNTER_H
#define PAWL_FILE_COUNTER_H
#include "backend.h"
#include "place.h"

#define COUNTER_FILE ".pawl.tokens" /* where anybody makes files, each user has one of his own, .UID behind it */
#define COUNTER_AHEAD (UINT64_C(1) << 22)
/* Opens it, made if need be: where strangers make files, before a lock file is made, or who gets no token here would
 * leave one behind that nobody else may use. */
int counter_ready(struct place *place, pawl_error *error);
/* The next token, on disk as far as it must be. FAULT: none was given out. */
enum bk_says counter_draw(struct place *place, struct bk_until until, uint64_t *ret, pawl_error *error);
/* Where the numbers stand; with advance, after ADVANCE to at least `to`. */
enum bk_says counter_stand(struct place *place, bool advance, uint64_t to, struct bk_until until, struct bk_tokens *ret,
                           pawl_error *error);

/* How it meets the world: replaced in tests that cut the power and turn clocks. */
struct counter_io {
    ssize_t (*write)(int fd, const void *data, size_t size, off_t at);
    int (*sync)(int fd);
    int64_t (*wall_us)(void);
};
extern struct counter_io counter_io;
#endif
