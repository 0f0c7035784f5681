#include "socket_of.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The inode of the socket at 127.0.0.1:mine that is connected to 127.0.0.1:other; 0: none. */
static unsigned long inode_of(int mine, int other) {
    char line[256];
    unsigned long found = 0;
    FILE *file = fopen("/proc/net/tcp", "re");
    while (file && !found && fgets(line, sizeof line, file)) {
        unsigned local, remote;
        unsigned long inode;
        if (sscanf(line, "%*d: %*x:%x %*x:%x %*x %*x:%*x %*x:%*x %*x %*u %*u %lu", &local, &remote, &inode) == 3 &&
            (int)local == mine && (int)remote == other)
            found = inode;
    }
    if (file) fclose(file);
    return found;
}

static bool has_socket(pid_t pid, unsigned long inode) {
    char path[320], text[64], wanted[64];
    bool has = false;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    snprintf(wanted, sizeof wanted, "socket:[%lu]", inode);
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && !has && (entry = readdir(dir));) {
        snprintf(path, sizeof path, "/proc/%d/fd/%s", (int)pid, entry->d_name);
        ssize_t n = readlink(path, text, sizeof text - 1);
        text[n > 0 ? n : 0] = 0;
        has = strcmp(text, wanted) == 0;
    }
    if (dir) closedir(dir);
    return has;
}

bool socket_is_of(int fd, pid_t pid) {
    struct sockaddr_in mine = {0}, peer = {0};
    socklen_t size = sizeof mine;
    if (getsockname(fd, (struct sockaddr *)&mine, &size) || getpeername(fd, (struct sockaddr *)&peer, &size))
        return false;
    unsigned long inode = inode_of(ntohs(peer.sin_port), ntohs(mine.sin_port));
    return inode && has_socket(pid, inode);
}
