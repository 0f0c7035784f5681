/* seal.h: `pawl run --seal GUARD#RESOURCE`: before the child starts, the resource learns the new token, so that an
 * earlier holder is refused although the new one has not written yet. */
#ifndef PAWL_SEAL_H
#define PAWL_SEAL_H
#include "pawl.h"
#include <stdint.h>
#include <sys/types.h>

struct seal;

/* "sqlite:bank.db#balance"; without '#' the resource has the lock's name. lock_url is the lock's own. Opens no file. Returns 0, or the exit code,
 * with the complaint printed under `name`. */
int seal_open(const char *text, const char *name, const char *lock_url, struct seal **ret);
/* Raises the mark of the resource in the name of the process `worker`, which will run `command`. PAWL_OK: it is
 * durable. Else the lock is to be given back, and nothing is started: PAWL_G..., PAWL_E..., with the reason in *error.
 * PAWL_ECANCELLED: cancel_fd became readable meanwhile; the step may still happen until this process ends, which is
 * due. */
int seal_raise(struct seal *seal, int64_t token, pid_t worker, const char *command, int cancel_fd, pawl_error *error);
/* Whether the guard answers for the resource, and can be written: with a record of doctor's own, since whatever is less
 * than that proves less. A resource that was never written is as good, and so is a file or a directory that the first
 * write will make: doctor makes none. */
int seal_look(struct seal *seal, pawl_error *error);
void seal_close(struct seal *seal); /* NULL is allowed */
#endif
