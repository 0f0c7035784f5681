/* handle.h: how `pawl release` finds a `pawl hold -d`: a socket in a directory of the user, which depends on no
 * environment (root: /run/pawl-hold; others: <home from passwd>/.local/state/pawl-hold, both 0700).
 *
 * A handle is "<pid>-<16 hex digits>". HANDLE.sock is where the hold listens; a hold that ended by itself leaves its
 * result in HANDLE.end, so that a release that comes later can still tell. A result is three lines: the exit code, the
 * JSON event, and the text for people. */
#ifndef PAWL_HANDLE_H
#define PAWL_HANDLE_H
#include <stdbool.h>
#include <sys/types.h>

#define HANDLE_SIZE 40

struct hold_result {
    int code;
    char json[8192], text[4096];
};

/* Makes a handle of this process and listens on it. The descriptor, or -1 and the reason was printed. */
int handle_listen(char ret[HANDLE_SIZE]);
/* Takes the socket away; with result, leaves that behind. */
void handle_end(const char *handle, const struct hold_result *result);

bool handle_valid(const char *text);
enum handle_state { HANDLE_TALKS, HANDLE_ENDED, HANDLE_DIED, HANDLE_UNKNOWN, HANDLE_ERROR };
/* Asks the hold to release and waits for its result; one that ended before, or died, is cleared away. HANDLE_ERROR: the
 * reason was printed. TALKS and ENDED fill *ret. */
enum handle_state handle_release(const char *handle, struct hold_result *ret);

/* The other end: takes one connection of the same user (or root) and reads its request; -1: not a request. */
int handle_accept(int listener);
void handle_answer(int fd, const struct hold_result *result);
#endif
