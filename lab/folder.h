/* folder.h: a verb that starts servers or processes: in a process of its own, below one temporary directory, which is
 * $TMPDIR meanwhile. That process and its parent, the keeper, are subreapers, and each ends and removes what is left if
 * the other one is killed; what is left if both are, the next one removes. */
#ifndef LAB_FOLDER_H
#define LAB_FOLDER_H
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

extern volatile sig_atomic_t lab_interrupted; /* the signal; 0: none */

enum { LAB_INTERRUPTED = 128 + SIGTERM }; /* what fn returns then; the keeper knows by which signal */

/* Runs fn(data) there and removes the directory; returns what fn does; 128 + the signal; or LAB_FAILED, also where fn
 * ended the process. servers: it starts some, whose directories may not have long names. INT, TERM, HUP and QUIT only
 * set lab_interrupted: fn is to end then, within three seconds, or is ended. */
int lab_in_folder(int (*fn)(const void *data), const void *data, bool servers);

/* Ends and reaps the children of this process, and, if it is a subreaper, whatever is below them: as long as it takes,
 * but no longer than `ms`. Async-signal-safe. */
void folder_end_below(int64_t ms);
#endif
