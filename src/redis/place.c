#include "place.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum bk_says invalid(const struct url *url, const char *what, pawl_error *error) {
    error_set(error, PAWL_EINVALID, NULL, "url %s: %s", url->shown, what);
    return BK_FAULT;
}

/* A copy of the parameter; true unless memory is out. */
static bool copy(const struct url *url, const char *key, char **ret) {
    const char *value = url_param(url, key);
    if (value) *ret = strdup(value);
    return !value || *ret;
}

static bool copy_text(const char *text, char **ret) {
    if (text) *ret = strdup(text);
    return !text || *ret;
}

static bool parse_db(const char *text, int *ret) {
    char *end;
    long n = strtol(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end || n > 1000000) return false;
    *ret = (int)n;
    return true;
}

static bool copy_hosts(const struct url *url, int port, struct place *place) {
    static const struct url_host here = {.host = (char *)"127.0.0.1"};
    const struct url_host *from = url->n_hosts ? url->hosts : &here;
    size_t n = url->n_hosts ? url->n_hosts : 1;
    place->hosts = calloc(n, sizeof *place->hosts);
    if (!place->hosts) return false;
    for (; place->n_hosts < n; place->n_hosts++) {
        struct url_host *to = &place->hosts[place->n_hosts];
        to->port = from[place->n_hosts].port ? from[place->n_hosts].port : port;
        to->host = strdup(from[place->n_hosts].host);
        if (!to->host) return false;
    }
    return true;
}

/* "master/db" of a sentinel URL, "db" of the others, a path of a socket's. */
static enum bk_says parse_path(const struct url *url, struct place *place, pawl_error *error) {
    const char *db = url_param(url, "db"), *path = url->path;
    if (place->socket_path) {
        path = "";
    } else if (place->master) {
        char *slash = strchr(place->master, '/');
        path = slash ? slash + 1 : "";
        if (slash) *slash = 0;
        if (!*place->master) return invalid(url, "name the master: redis+sentinel://HOST,HOST/mymaster", error);
    }
    if (*path && db) return invalid(url, "the database is given twice", error);
    if (*path) db = path;
    if (db && !parse_db(db, &place->db)) return invalid(url, "a database is a number", error);
    if (place->master && strchr(place->master, '/')) *strchr(place->master, '/') = 0;
    return BK_YES;
}

static bool copies(const struct url *url, struct place *place, bool sentinel) {
    bool ok = copy_text(url->user && *url->user ? url->user : NULL, &place->user) &&
              copy_text(url->password, &place->password) && copy(url, "cacert", &place->tls_options.cacert) &&
              copy(url, "cert", &place->tls_options.cert) && copy(url, "key", &place->tls_options.key) &&
              copy(url, "server-name", &place->tls_options.server_name);
    if (ok && sentinel)
        ok = copy_text(url->path, &place->master) && copy(url, "sentinel-user", &place->sentinel_user) &&
             copy(url, "sentinel-password", &place->sentinel_password) && copy(url, "map", &place->map);
    const char *prefix = url_param(url, "prefix");
    return ok && copy_text(prefix ? prefix : "pawl:", &place->prefix);
}

/* One entry of a map, of which *at is moved behind it. false: it is not of the form. */
static bool map_entry(const char **at, char from[300], char to[256], int *to_port) {
    char text[600], *arrow, *colon, *end;
    size_t n = strcspn(*at, ",");
    if (n >= sizeof text) return false;
    memcpy(text, *at, n);
    text[n] = 0;
    *at += n + ((*at)[n] == ',');
    arrow = strchr(text, '>');
    colon = arrow ? strrchr(arrow, ':') : NULL;
    if (!colon || arrow == text || colon == arrow + 1 || arrow - text >= 300 || colon - arrow > 255) return false;
    *arrow = *colon = 0;
    *to_port = (int)strtol(colon + 1, &end, 10);
    strcpy(from, text);
    strcpy(to, arrow + 1);
    return strchr(from, ':') && isdigit((unsigned char)colon[1]) && !*end && *to_port > 0 && *to_port < 65536;
}

void place_map(const struct place *place, char *host, int *port) {
    char wanted[300], from[300], to[256];
    int to_port;
    snprintf(wanted, sizeof wanted, "%.255s:%d", host, *port);
    for (const char *at = place->map; at && *at;) {
        if (!map_entry(&at, from, to, &to_port) || strcmp(from, wanted) != 0) continue;
        strcpy(host, to);
        *port = to_port;
        return;
    }
}

static bool map_is_valid(const char *map) {
    char from[300], to[256];
    int port;
    bool valid = map && *map;
    while (valid && *map) valid = map_entry(&map, from, to, &port);
    return valid;
}

static enum bk_says check(const struct url *url, const struct place *place, pawl_error *error) {
    const struct tls_options *o = &place->tls_options;
    if (!place->tls && (o->cacert || o->cert || o->key || o->server_name))
        return invalid(url, "cacert, cert, key and server-name need TLS: write rediss://, or tls=yes for sentinels",
                       error);
    if (o->key && !o->cert) return invalid(url, "key needs cert", error);
    if (place->user && !place->password) { /* which may be the password: it is not shown */
        error_set(error, PAWL_EINVALID, NULL,
                  "url %s://***%s: a user without a password (write user:password@, or :password@)", url->scheme,
                  strchr(url->shown, '@'));
        return BK_FAULT;
    }
    if (place->sentinel_user && !place->sentinel_password)
        return invalid(url, "sentinel-user needs sentinel-password", error);
    if (place->map && !map_is_valid(place->map)) return invalid(url, "map is HOST:PORT>HOST:PORT,...", error);
    if (place->prefix_length > PREFIX_MAX) return invalid(url, "prefix is longer than 128 bytes", error);
    return url_params_known(url, error) == PAWL_OK ? BK_YES : BK_FAULT;
}

enum bk_says place_parse(const struct url *url, struct place *place, pawl_error *error) {
    bool sentinel = strcmp(url->scheme, "redis+sentinel") == 0, local = strcmp(url->scheme, "redis+unix") == 0;
    memset(place, 0, sizeof *place);
    if (!url->authority && !local)
        return invalid(url,
                       strncmp(url->scheme, "redlock", 7) == 0 ? "write it as redlock://HOST,HOST,HOST"
                                                               : "write it as redis://HOST",
                       error);
    if (sentinel) {
        const char *tls = url_param(url, "tls");
        place->tls = tls && strcmp(tls, "yes") == 0;
        if (tls && !place->tls && strcmp(tls, "no") != 0) return invalid(url, "tls is yes or no", error);
    } else {
        place->tls = strcmp(url->scheme, "rediss") == 0 || strcmp(url->scheme, "redlocks") == 0;
    }
    place->tls_options.service = sentinel ? "a sentinel" : "Redis";
    place->tls_options.plain = sentinel                                  ? "tls=no"
                               : strncmp(url->scheme, "redlock", 7) == 0 ? "redlock://"
                                                                         : "redis://";
    if (local && (url->n_hosts || !*url->path))
        return invalid(url, "a socket is a path: redis+unix:///run/redis/redis.sock", error);
    bool ok = copies(url, place, sentinel);
    if (ok && local) ok = asprintf(&place->socket_path, "%s%s", url->authority ? "/" : "", url->path) > 0;
    if (ok && !local) ok = copy_hosts(url, sentinel ? 26379 : 6379, place);
    if (!ok) {
        error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
        return BK_FAULT;
    }
    place->prefix_length = strlen(place->prefix);
    enum bk_says says = parse_path(url, place, error);
    return says == BK_YES ? check(url, place, error) : says;
}

static void wipe(char *secret) {
    if (secret) explicit_bzero(secret, strlen(secret));
    free(secret);
}

void place_free(struct place *place) {
    for (size_t i = 0; i < place->n_hosts; i++) free(place->hosts[i].host);
    free(place->hosts);
    free(place->socket_path);
    free(place->master);
    free(place->tls_options.cacert);
    free(place->tls_options.cert);
    free(place->tls_options.key);
    free(place->tls_options.server_name);
    free(place->user);
    wipe(place->password);
    free(place->sentinel_user);
    wipe(place->sentinel_password);
    free(place->map);
    free(place->prefix);
    memset(place, 0, sizeof *place);
}

void place_keys(const struct place *place, const char *name, size_t length, struct keys *ret) {
    static const char digits[] = "0123456789ABCDEF";
    size_t n = place->prefix_length;
    memcpy(ret->lock, place->prefix, n);
    for (size_t i = 0; i < length && i < NAME_MAX_BYTES; i++) {
        unsigned char c = (unsigned char)name[i];
        if (c >= 32 && c != '%' && c != '{' && c != '}' && c != 127) {
            ret->lock[n++] = (char)c;
            continue;
        }
        ret->lock[n++] = '%';
        ret->lock[n++] = digits[c >> 4];
        ret->lock[n++] = digits[c & 15];
    }
    ret->lock_length = n;
    memcpy(ret->queue, place->prefix, place->prefix_length);
    memcpy(ret->queue + place->prefix_length, "%q:", 3);
    memcpy(ret->queue + place->prefix_length + 3, ret->lock + place->prefix_length, n - place->prefix_length);
    ret->queue_length = n + 3;
}

static int hex(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool place_name(const struct place *place, const char *key, size_t length, char ret[NAME_MAX_BYTES + 1]) {
    size_t n = 0;
    if (length <= place->prefix_length || memcmp(key, place->prefix, place->prefix_length) != 0) return false;
    for (size_t i = place->prefix_length; i < length; i++) {
        char c = key[i];
        if (c == '%') {
            if (i + 2 >= length || hex(key[i + 1]) < 0 || hex(key[i + 2]) < 0) return false;
            c = (char)(hex(key[i + 1]) * 16 + hex(key[i + 2]));
            i += 2;
        }
        if (n == NAME_MAX_BYTES || !c) return false;
        ret[n++] = c;
    }
    ret[n] = 0;
    return true;
}

bool value_is_ours(const char *value, size_t length) {
    if (!value || length < VALUE_ABOUT || value[16] != ':') return false;
    for (int i = 0; i < VALUE_ABOUT; i++) {
        if (i == 16) continue;
        if (i > 16 && i < VALUE_MS ? !isxdigit((unsigned char)value[i]) : !isdigit((unsigned char)value[i]))
            return false;
    }
    return true;
}

uint64_t value_number(const char *text, size_t digits) {
    char copy[24];
    snprintf(copy, sizeof copy, "%.*s", (int)digits, text);
    return strtoull(copy, NULL, 10);
}
