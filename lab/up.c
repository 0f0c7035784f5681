/* up.c: pawl-lab up: a service to play with: on the loopback, in a temporary directory, ended with Ctrl-C. */
#include "folder.h"
#include "lab.h"
#include "pawl.h"
#include "server.h"
#include <poll.h>
#include <stdio.h>
#include <string.h>

static const char help[] =
    "usage: pawl-lab up redis|redlock|postgresql|etcd [--json]\n"
    "  --json    the URL as one JSON object\n"
    "Starts servers on free ports of the loopback, prepares them for pawl, prints the URL to use, and ends\n"
    "them when interrupted. What they keep is removed.\n";

struct order {
    const char *service;
    bool json;
};

enum { SERVERS = 5 };

static void start_redis(struct server servers[]) { server_start_redis(&servers[0], NULL); }
static void start_redlock(struct server servers[]) {
    for (int i = 0; i < 5; i++) server_start_redis(&servers[i], NULL);
}
static void start_postgresql(struct server servers[]) { server_start_postgres(&servers[0], ""); }
static void start_etcd(struct server servers[]) { server_start_etcd_cluster(servers, 3, NULL); }

static const struct service {
    const char *name;
    int servers;
    void (*start)(struct server servers[]);
} services[] = {{"redis", 1, start_redis},
                {"redlock", 5, start_redlock},
                {"postgresql", 1, start_postgresql},
                {"etcd", 3, start_etcd}};

static const struct service *service_of(const char *name) {
    for (size_t i = 0; i < sizeof services / sizeof *services; i++)
        if (strcmp(services[i].name, name) == 0) return &services[i];
    return NULL;
}

static void url_of(const struct service *service, const struct server servers[], char *ret, size_t size) {
    if (service->servers == 1) {
        snprintf(ret, size, "%s", servers[0].url);
        return;
    }
    snprintf(ret, size, "%s://", service->name);
    for (int i = 0; i < service->servers; i++) {
        size_t used = strlen(ret);
        snprintf(ret + used, size - used, "%s127.0.0.1:%d", i ? "," : "", servers[i].port);
    }
}

static int prepare(const char *url) {
    pawl_client *client;
    pawl_error error = PAWL_ERROR_INIT;
    int code = pawl_open(url, NULL, &client, &error);
    if (code == PAWL_OK) {
        code = pawl_init(client, 20000, &error);
        pawl_close(client);
    }
    return code == PAWL_OK || code == PAWL_EUNSUPPORTED ? LAB_OK : lab_complain("%s", error.text);
}

static int up(const void *data) {
    const struct order *o = data;
    const struct service *service = service_of(o->service);
    struct server servers[SERVERS] = {0};
    char url[256];
    service->start(servers);
    url_of(service, servers, url, sizeof url);
    int code = lab_interrupted ? LAB_INTERRUPTED : prepare(url);
    if (code == LAB_OK && o->json) printf("{\"url\":\"%s\"}\n", url);
    else if (code == LAB_OK)
        printf("%s\n\n    export PAWL_URL='%s'\n    pawl run job -- sleep 10\n\nCtrl-C ends it.\n", url, url);
    if (code == LAB_OK && (fflush(stdout) || ferror(stdout)))
        code = lab_complain("cannot write the URL to standard output");
    while (code == LAB_OK && !lab_interrupted) poll(NULL, 0, 200);
    for (int i = 0; i < service->servers; i++) server_stop(&servers[i]);
    return code;
}

int lab_up(int argc, char **argv) {
    struct order o = {0};
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0) {
            fputs(help, stdout);
            return LAB_OK;
        } else if (strcmp(argv[i], "--json") == 0) o.json = true;
        else if (o.service || *argv[i] == '-') return lab_complain("up: unknown argument: %s", argv[i]);
        else o.service = argv[i];
    if (!o.service) return lab_complain("up wants redis, redlock, postgresql or etcd\n%s", help);
    if (!service_of(o.service)) return lab_complain("up wants redis, redlock, postgresql or etcd, not %s", o.service);
    return lab_in_folder(up, &o, true);
}
