#include "place.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_PORT 2379

static enum bk_says invalid(const struct url *url, pawl_error *error, const char *what) {
    error_set(error, PAWL_EINVALID, NULL, "url %s: %s", url->shown, what);
    return BK_FAULT;
}

static bool copy(const char *from, char **ret) { return !from || (*ret = strdup(from)); }

static enum bk_says prefix_of(const struct url *url, struct place *place, pawl_error *error) {
    const char *given = url_param(url, "prefix");
    int n = given        ? snprintf(place->prefix, sizeof place->prefix, "%s", given)
            : *url->path ? snprintf(place->prefix, sizeof place->prefix, "/%s", url->path)
                         : snprintf(place->prefix, sizeof place->prefix, "/pawl/");
    if (given && *url->path) return invalid(url, error, "a path and prefix= say the same twice");
    if (n >= (int)sizeof place->prefix - 1) return invalid(url, error, "the prefix is longer than 255 bytes");
    if (n == 0) return invalid(url, error, "an empty prefix would take all keys for locks");
    if (!given && place->prefix[n - 1] != '/') strcat(place->prefix, "/");
    return BK_YES;
}

static bool hosts_of(const struct url *url, struct place *place) {
    place->n_hosts = url->n_hosts ? url->n_hosts : 1;
    place->hosts = calloc(place->n_hosts, sizeof *place->hosts);
    if (!place->hosts) return false;
    for (size_t i = 0; i < place->n_hosts; i++) {
        const char *host = url->n_hosts && *url->hosts[i].host ? url->hosts[i].host : "127.0.0.1";
        place->hosts[i].port = url->n_hosts && url->hosts[i].port ? url->hosts[i].port : DEFAULT_PORT;
        if (!(place->hosts[i].host = strdup(host))) return false;
    }
    return true;
}

enum bk_says place_parse(const struct url *url, struct place *place, pawl_error *error) {
    const char *token = url_param(url, "token");
    struct tls_options *o = &place->tls_options;
    place->tls = strcmp(url->scheme, "etcds") == 0;
    if (!url->authority) return invalid(url, error, "write etcd://HOST");
    if (token && strcmp(token, "revision") != 0) return invalid(url, error, "token can only be 'revision'");
    place->bare = token != NULL;
    if (!hosts_of(url, place) || !copy(url->user, &place->user) || !copy(url->password, &place->password) ||
        !copy(url_param(url, "cacert"), &o->cacert) || !copy(url_param(url, "cert"), &o->cert) ||
        !copy(url_param(url, "key"), &o->key) || !copy(url_param(url, "server-name"), &o->server_name)) {
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        return BK_FAULT;
    }
    o->alpn = "h2";
    o->service = "etcd";
    o->plain = "etcd://";
    if (!place->tls && (o->cacert || o->cert || o->key || o->server_name))
        return invalid(url, error, "cacert, cert, key and server-name need TLS: write etcds://");
    if (o->key && !o->cert) return invalid(url, error, "key needs cert");
    if (!place->user != !place->password) return invalid(url, error, "a user needs a password, and a password a user");
    enum bk_says says = prefix_of(url, place, error);
    return says == BK_YES && url_params_known(url, error) ? BK_FAULT : says;
}

void place_free(struct place *place) {
    struct tls_options *o = &place->tls_options;
    for (size_t i = 0; place->hosts && i < place->n_hosts; i++) free(place->hosts[i].host);
    free(place->hosts);
    free(o->cacert);
    free(o->cert);
    free(o->key);
    free(o->server_name);
    free(place->user);
    if (place->password) explicit_bzero(place->password, strlen(place->password));
    free(place->password);
    memset(place, 0, sizeof *place);
}

void place_lock(const struct place *place, const char *name, size_t length, char ret[LOCK_SIZE]) {
    static const char digits[] = "0123456789ABCDEF";
    char *to = ret + sprintf(ret, "%s", place->prefix);
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)name[i];
        if (c > 32 && c != 127 && c != '/' && c != '%') {
            *to++ = (char)c;
            continue;
        }
        *to++ = '%';
        *to++ = digits[c >> 4];
        *to++ = digits[c & 15];
    }
    strcpy(to, "/");
}

static int hex(unsigned char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; }

bool place_name(const struct place *place, const unsigned char *key, size_t length, char ret[NAME_BYTES + 1]) {
    size_t skip = strlen(place->prefix), used = 0;
    if (length <= skip || memcmp(key, place->prefix, skip) != 0) return false;
    bool coded = skip + 2 < length && hex(key[skip + 1]) >= 0 && hex(key[skip + 2]) >= 0;
    if (key[skip] == '%' && !coded) return false; /* %guard/..., %token: pawl's own; a lock's name has %25 there */
    for (size_t i = skip; i < length; i++) {
        if (key[i] == '/') {
            ret[used] = 0;
            return used > 0; /* also if nothing follows: another program's, which holds as any other does */
        }
        if (used == NAME_BYTES) return false;
        if (key[i] == '%' && i + 2 < length && hex(key[i + 1]) >= 0 && hex(key[i + 2]) >= 0) {
            ret[used++] = (char)(hex(key[i + 1]) * 16 + hex(key[i + 2]));
            i += 2;
        } else {
            ret[used++] = (char)key[i];
        }
        if (ret[used - 1] == 0) return false; /* no name has a NUL */
    }
    return false;
}
