/* server_etcd.c: starts etcd, one member or several. */
#include "server.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Its health page says so when there is a leader. */
static bool healthy(const struct server *s) {
    char answer[1024] = "", request[] = "GET /health HTTP/1.0\r\n\r\n";
    int fd = server_dial(s->port);
    if (fd < 0) return false;
    size_t used = 0;
    if (write(fd, request, sizeof request - 1) > 0)
        for (ssize_t n; used < sizeof answer - 1 && (n = read(fd, answer + used, sizeof answer - 1 - used)) > 0;)
            used += (size_t)n;
    close(fd);
    return strstr(answer, "\"health\":\"true\"") != NULL;
}

/* The others are not up yet: it is enough that it listens. */
static bool listens(const struct server *s) {
    int fd = server_dial(s->port);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

/* It takes part in TLS where it was given a certificate. */
static const char *scheme(const char *const options[]) {
    for (; options && *options; options++)
        if (strncmp(*options, "--cert-file=", 12) == 0) return "https";
    return "http";
}

/* listen, tell: its port for the other members, and what they are told. */
static void common(struct server *s, int listen, int tell, const char *const options[]) {
    const char *how = scheme(options);
    snprintf(s->url, sizeof s->url, "etcd://127.0.0.1:%d", s->port);
    server_arg(s, "etcd");
    server_arg(s, "--data-dir");
    server_arg(s, "%s/data", s->dir);
    server_arg(s, "--listen-client-urls=%s://127.0.0.1:%d", how, s->port);
    server_arg(s, "--advertise-client-urls=%s://127.0.0.1:%d", how, s->port);
    server_arg(s, "--listen-peer-urls=http://127.0.0.1:%d", listen);
    server_arg(s, "--initial-advertise-peer-urls=http://127.0.0.1:%d", tell);
    for (; options && *options; options++) server_arg(s, "%s", *options);
}

void server_start_etcd(struct server *s, const char *const options[]) {
    int peer = server_free_port();
    server_make_dir(s, "etcd");
    s->port = server_free_port();
    s->ready = strcmp(scheme(options), "http") == 0 ? healthy : listens;
    common(s, peer, peer, options);
    server_arg(s, "--initial-cluster=default=http://127.0.0.1:%d", peer);
    server_run(s);
}

static void start_cluster(struct server members[], int n, const int listen[], const int tell[],
                          const char *const options[]) {
    char cluster[512] = "";
    for (int i = 0; i < n; i++)
        snprintf(cluster + strlen(cluster), sizeof cluster - strlen(cluster), "%sm%d=http://127.0.0.1:%d", i ? "," : "",
                 i, tell[i]);
    for (int i = 0; i < n; i++) {
        server_make_dir(&members[i], "etcd");
        members[i].port = server_free_port();
        members[i].ready = listens;
        common(&members[i], listen[i], tell[i], options);
        server_arg(&members[i], "--name=m%d", i);
        server_arg(&members[i], "--initial-cluster=%s", cluster);
        server_run(&members[i]);
    }
    for (int i = 0; i < n; i++) {
        if (strcmp(scheme(options), "http") == 0) members[i].ready = healthy;
        server_await(&members[i]);
    }
}

void server_start_etcd_cluster(struct server members[], int n, const char *const options[]) {
    int peers[8];
    for (int i = 0; i < n; i++) peers[i] = server_free_port();
    start_cluster(members, n, peers, peers, options);
}

void server_start_etcd_apart(struct server members[], int n, const int listen[], const int tell[]) {
    start_cluster(members, n, listen, tell, NULL);
}
