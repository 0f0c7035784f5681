/* socket_of.h: which process is at the other end of a connection on the loopback, by /proc. */
#ifndef LAB_SOCKET_OF_H
#define LAB_SOCKET_OF_H
#include <stdbool.h>
#include <sys/types.h>

bool socket_is_of(int fd, pid_t pid);
#endif
