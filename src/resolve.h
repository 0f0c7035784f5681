/* resolve.h: host names to addresses, with a deadline. getaddrinfo(3) cannot be interrupted, so it runs in a thread
 * that is left behind when time is up; literal addresses need none. */
#ifndef PAWL_RESOLVE_H
#define PAWL_RESOLVE_H
#include "backend.h"
#include <sys/socket.h>

#define RESOLVE_MAX 8
struct resolved {
    struct sockaddr_storage address[RESOLVE_MAX];
    socklen_t length[RESOLVE_MAX];
    int n;
};

/* YES, or FAULT with PAWL_EUNREACHABLE (the name is unknown, or nobody answered in time) or PAWL_ECANCELLED. */
enum bk_says resolve(const char *host, int port, struct bk_until until, struct resolved *ret, pawl_error *error);
/* A connected, non-blocking, close-on-exec TCP socket with TCP_NODELAY: the first address that answers. */
enum bk_says resolve_connect(const char *host, int port, struct bk_until until, int *ret_fd, pawl_error *error);
/* A name or an address of this machine, as it is written: nothing is looked up. */
bool resolve_is_loopback(const char *host);
/* The host at the other end of a connected socket: its address, or THIS_MACHINE whichever of our own addresses leads
 * there; "" if there is none. */
#define THIS_MACHINE "this machine"
void resolve_peer(int fd, char ret[64]);
#endif
