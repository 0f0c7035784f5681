/* lock.h: one lock from its first question to its end: lock.c drives it, acquire.c and keeper.c are the drivers. */
#ifndef PAWL_LOCK_H
#define PAWL_LOCK_H
#include "client.h"

/* Checks the arguments and makes a pending lock. */
int lock_new(pawl_client *client, const char *name, const pawl_acquire_options *options, void *user, pawl_lock **ret,
             pawl_error *error);
/* Into the client's books; PAWL_EBUSY: a try, and this process has it. */
int lock_enter_locked(pawl_lock *lock, pawl_error *error);
/* At most one question, of at most question_ms. PAWL_OK: held; STEP_WAIT: again at lock_next_step_ns, or when woken or
 * backend_fd is readable; else why it failed. */
enum { STEP_WAIT = -1 };
int lock_step(pawl_lock *lock, int64_t question_ms, int cancel_fd, pawl_error *error);
int64_t lock_next_step_ns(const pawl_lock *lock);
void lock_held_locked(pawl_lock *lock); /* after PAWL_OK: schedules the life */
/* One try to release what was granted, or to undo what may have been. YES, NO: over. */
enum bk_says lock_undo(pawl_lock *lock, struct bk_until until, pawl_error *error);
/* The same with a plan: true: over (or expired by itself); false: again at ask_at_ns. */
bool lock_end_step(pawl_lock *lock, int64_t question_ms, pawl_error *error);
int lock_busy(pawl_lock *lock, bool here, pawl_error *error); /* words and code for a lock that somebody else has */
void lock_end_text(pawl_lock *lock, int code, const char *text);
#endif
