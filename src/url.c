/* url.c: one pass from left to right; every piece is copied decoded, and the shown text is made beside it. */
#include "url.h"
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static int hex(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* A decoded copy of [from, to); NULL: a bad escape or a %00 (errno EINVAL), or out of memory (ENOMEM). */
static char *decoded(const char *from, const char *to) {
    char *copy = malloc((size_t)(to - from) + 1), *at = copy;
    if (!copy) return NULL;
    while (from < to) {
        if (*from != '%') {
            *at++ = *from++;
            continue;
        }
        if (to - from < 3 || hex(from[1]) < 0 || hex(from[2]) < 0 || (hex(from[1]) == 0 && hex(from[2]) == 0)) {
            free(copy);
            errno = EINVAL;
            return NULL;
        }
        *at++ = (char)(hex(from[1]) * 16 + hex(from[2]));
        from += 3;
    }
    *at = 0;
    return copy;
}

/* Says why decoded gave nothing. */
static int undecoded(const struct url *url, const char *where, pawl_error *error) {
    if (errno == ENOMEM) return error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
    return error_set(error, PAWL_EINVALID, NULL, "url %s: bad %%XX in %s", url->shown, where);
}

static const char *find(const char *from, const char *to, char c) {
    const char *at = memchr(from, c, (size_t)(to - from));
    return at ? at : to;
}

static bool is_secret(const char *key) {
    return strstr(key, "password") || strstr(key, "secret") || strcmp(key, "pass") == 0;
}

void url_free_params(struct url_param *params, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (is_secret(params[i].key)) explicit_bzero(params[i].value, strlen(params[i].value));
        free(params[i].key);
        free(params[i].value);
    }
    free(params);
}

int url_parse_params(const char *text, struct url_param **ret, size_t *ret_n) {
    struct url_param *params = NULL;
    size_t n = 0;
    for (const char *at = text, *end = text + strlen(text); at < end;) {
        const char *stop = find(at, end, '&'), *equals = find(at, stop, '=');
        struct url_param *more = realloc(params, (n + 1) * sizeof *params);
        if (!more) {
            url_free_params(params, n);
            return PAWL_EINTERNAL;
        }
        params = more;
        params[n] =
            (struct url_param){.key = decoded(at, equals), .value = decoded(equals < stop ? equals + 1 : stop, stop)};
        if (!params[n].key || !params[n].value || !*params[n].key) {
            int code = (!params[n].key || !params[n].value) && errno == ENOMEM ? PAWL_EINTERNAL : PAWL_EINVALID;
            free(params[n].key);
            free(params[n].value);
            url_free_params(params, n);
            return code;
        }
        n++;
        at = stop < end ? stop + 1 : end;
    }
    *ret = params;
    *ret_n = n;
    return PAWL_OK;
}

static int parse_port(const char *text, int *ret) {
    char *end;
    long n = strtol(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end || n < 1 || n > 65535) return PAWL_EINVALID;
    *ret = (int)n;
    return PAWL_OK;
}

static int add_host(struct url *url, const char *from, const char *to, pawl_error *error) {
    const char *host_end, *port = NULL;
    if (from < to && *from == '[') {
        host_end = find(from, to, ']');
        if (host_end == to) return error_set(error, PAWL_EINVALID, NULL, "url %s: '[' without ']'", url->shown);
        from++;
        if (host_end + 1 < to && host_end[1] == ':') port = host_end + 2;
        else if (host_end + 1 < to) return error_set(error, PAWL_EINVALID, NULL, "url %s: text behind ']'", url->shown);
    } else {
        host_end = find(from, to, ':');
        if (host_end < to) port = host_end + 1;
    }
    struct url_host host = {.host = decoded(from, host_end)};
    if (!host.host) return undecoded(url, "a host", error);
    if (port) {
        char text[8];
        if (to - port >= (long)sizeof text) port = to;
        snprintf(text, sizeof text, "%.*s", (int)(to - port), port);
        if (parse_port(text, &host.port)) {
            free(host.host);
            return error_set(error, PAWL_EINVALID, NULL, "url %s: a port is a number from 1 to 65535", url->shown);
        }
    }
    struct url_host *more = realloc(url->hosts, (url->n_hosts + 1) * sizeof *more);
    if (!more) {
        free(host.host);
        return error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
    }
    url->hosts = more;
    url->hosts[url->n_hosts++] = host;
    return PAWL_OK;
}

/* What is before the '@' is a list of hosts, of which the last has a user and password. A password may have a raw ','
 * unless it could be a port. */
static bool begins_with_host(const char *from, const char *comma) {
    const char *colon = find(from, comma, ':');
    return *from == '[' || colon == comma || colon + 1 + strspn(colon + 1, "0123456789") == comma;
}

/* What stands raw in user:password and would end it, or the authority, for another reader of the URL. */
static int check_userinfo(const struct url *url, const char *text, const char *from, const char *at_sign,
                          pawl_error *error) {
    const char *raw = from + strcspn(from, "@/?#[]"), *comma = find(from, at_sign, ','),
               *last = memrchr(from, ',', (size_t)(at_sign - from));
    if (last && (find(from, last, '@') < last || begins_with_host(from, comma)))
        return error_set(
            error, PAWL_EINVALID, NULL,
            "url %s: with character %d of it another user or password begins: they stand once, before the first host "
            "(within them, ',' is %%2C and '@' is %%40)",
            url->shown, (int)(last - text) + 2);
    if (raw >= at_sign) return PAWL_OK;
    return error_set(error, PAWL_EINVALID, NULL,
                     "url %s: character %d of it, a raw '%c' in the user or password: write it as %%%02X", url->shown,
                     (int)(raw - text) + 1, *raw, (unsigned)*raw);
}

static int parse_authority(struct url *url, const char *from, const char *to, pawl_error *error) {
    const char *at_sign = memrchr(from, '@', (size_t)(to - from));
    if (at_sign) {
        const char *colon = find(from, at_sign, ':');
        if (colon > from) url->user = decoded(from, colon);
        if (colon < at_sign) url->password = decoded(colon + 1, at_sign);
        if ((colon > from && !url->user) || (colon < at_sign && !url->password))
            return undecoded(url, "the user or password (write % as %25, @ as %40)", error);
        from = at_sign + 1;
    }
    bool several = find(from, to, ',') < to;
    for (int place = 1; from < to || (several && from == to); place++) {
        const char *stop = find(from, to, ',');
        if (several && (from == stop || *from == ':'))
            return error_set(error, PAWL_EINVALID, NULL, "url %s: host %d of the list is empty", url->shown, place);
        int code = add_host(url, from, stop, error);
        if (code) return code;
        if (stop == to) break;
        from = stop + 1;
    }
    return PAWL_OK;
}

/* Of the raw key [from, to), which may be escaped. */
static bool is_secret_key(const char *from, const char *to) {
    char *key = decoded(from, to);
    bool secret = !key || is_secret(key);
    free(key);
    return secret;
}

/* Each is a host or host:port. */
static bool are_hosts(const char *from, const char *end) {
    for (;; from++) {
        const char *stop = from < end && *from == '[' ? find(from, end, ']') : from;
        stop += strcspn(stop, ":,/?");
        if (*stop == ':' && !isdigit((unsigned char)*++stop)) return false;
        stop += strspn(stop, "0123456789");
        if (stop < end && !strchr(",/?", *stop)) return false;
        if (stop >= end || *stop != ',') return true;
        from = stop;
    }
}

/* The '@' that ends user:password; NULL: there is none. A password with a raw '?' is wrong, and yet must not be shown.
 */
static const char *end_of_userinfo(const char *start, const char *question, const char *end) {
    const char *at_sign = memrchr(start, '@', (size_t)(question - start));
    if (at_sign || find(start, question, ':') == question) return at_sign;
    if (are_hosts(start, question) && question[strcspn(question, "=&@")] != '@') return NULL; /* no key has an '@' */
    return memrchr(question, '@', (size_t)(end - question));
}

/* Behind it a part of user:password is not shown: the ':', or what a password may stand behind all the same; NULL. */
static const char *before_secret(const char *start, const char *at_sign) {
    for (const char *at = start; at < at_sign; at++) {
        if (*at == ':' || *at == ',') return at;
        if (strncasecmp(at, "%3a", 3) == 0) return at + 2;
    }
    return NULL;
}

/* In a libpq keyword string, "password=secret" or "password='a b'", the value becomes ***. In place: room for 3 more
 * each. */
static void mask_keywords(char *text) {
    for (char *at = text; (at = strstr(at, "password="));) {
        char *value = at + strlen("password="), quote = *value == '\'' ? '\'' : 0, *end = value + (quote != 0);
        while (*end && (quote ? *end != quote : !strchr(" &", *end))) end++;
        end += quote && *end;
        memmove(value + 3, end, strlen(end) + 1);
        memcpy(value, "***", 3);
        at = value + 3;
    }
}

/* Where what may be shown goes on: at the '@', or behind the secret parameter that it is a part of. */
static const char *past_secret(const char *question, const char *at_sign, const char *end) {
    if (at_sign < question) return at_sign;
    const char *before = memrchr(question, '&', (size_t)(at_sign - question)), *key = (before ? before : question) + 1;
    const char *equals = find(key, at_sign, '=');
    return equals < at_sign && is_secret_key(key, equals) ? find(at_sign, end, '&') : at_sign;
}

/* The text with *** for the password between ':' and the last '@' of the authority, and for secret parameters. */
static char *shown(const char *text) {
    const char *end = text + strlen(text), *colon = find(text, end, ':'), *question = find(text, end, '?');
    char *copy = malloc(4 * (size_t)(end - text) + 16), *to = copy;
    if (!copy) return NULL;
    const char *from = text;
    const char *at_sign = NULL, *secret = NULL;
    if (colon < question && strncmp(colon, "://", 3) == 0) {
        at_sign = end_of_userinfo(colon + 3, question, end);
        secret = at_sign ? before_secret(colon + 3, at_sign) : NULL;
    } else if (colon < question && strncmp(text, "file:", 5) != 0) {
        /* not of the form, perhaps mistyped: what stands before an @ may be a password all the same */
        at_sign = memrchr(colon, '@', (size_t)(end - colon));
        secret = at_sign ? memrchr(colon, ':', (size_t)(at_sign - colon)) : NULL;
    }
    if (secret && secret < at_sign) {
        to += sprintf(to, "%.*s***", (int)(secret - text) + 1, text);
        from = past_secret(question, at_sign, end);
        question = find(from, end, '?');
    }
    while (from < end) {
        const char *stop = find(from, end, from < question ? '?' : '&');
        if (stop < end) stop++;
        const char *equals = find(from, stop, '=');
        if (from > question && equals < stop && is_secret_key(from, equals)) {
            to += sprintf(to, "%.*s=***%s", (int)(equals - from), from, stop[-1] == '&' ? "&" : "");
            from = stop;
            continue;
        }
        to += sprintf(to, "%.*s", (int)(stop - from), from);
        from = stop;
    }
    *to = 0;
    mask_keywords(copy);
    return copy;
}

/* The '@' that was meant to end user:password; NULL: there is none. */
static const char *userinfo_end(const char *from, const char *slash, const char *question, const char *end) {
    const char *at_sign = memrchr(from, '@', (size_t)(slash - from));
    if (at_sign || find(from, slash, ':') == slash) return at_sign;
    return slash < question && are_hosts(from, slash) ? NULL : end_of_userinfo(from, question, end);
}

static int parse(struct url *url, const char *text, pawl_error *error) {
    const char *end = text + strlen(text), *colon = text;
    while (isalnum((unsigned char)*colon) || *colon == '+' || *colon == '-' || *colon == '.') colon++;
    if (colon == text || *colon != ':' || !isalpha((unsigned char)*text))
        return error_set(error, PAWL_EINVALID, NULL, "url '%s' has no scheme: write file:DIR, redis://HOST, ...",
                         url->shown);
    url->scheme = strndup(text, (size_t)(colon - text));
    const char *from = colon + 1, *question = find(from, end, '?');
    url->rest = strdup(from);
    if (!url->scheme || !url->rest) return error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
    if (strncmp(from, "//", 2) == 0) {
        const char *slash = find(from + 2, question, '/');
        const char *at_sign = userinfo_end(from + 2, slash, question, end);
        url->authority = true;
        int code = at_sign ? check_userinfo(url, text, from + 2, at_sign, error) : PAWL_OK;
        if (code == PAWL_OK) code = parse_authority(url, from + 2, slash, error);
        if (code) return code;
        from = slash < question ? slash + 1 : question;
    }
    url->path = decoded(from, question);
    if (!url->path) return undecoded(url, "the path", error);
    int code = question < end ? url_parse_params(question + 1, &url->params, &url->n_params) : PAWL_OK;
    if (code == PAWL_EINTERNAL) return error_set(error, code, NULL, "out of memory");
    if (code) return error_set(error, code, NULL, "url %s: parameters are key=value&key=value", url->shown);
    for (size_t i = 0; i < url->n_params; i++)
        for (size_t j = 0; j < i; j++)
            if (strcmp(url->params[i].key, url->params[j].key) == 0)
                return error_set(error, PAWL_EINVALID, NULL, "url %s: parameter '%s' is given twice", url->shown,
                                 url->params[i].key);
    return PAWL_OK;
}

int url_parse(const char *text, struct url **ret, pawl_error *error) {
    struct url *url = calloc(1, sizeof *url);
    if (url) url->shown = shown(text);
    if (!url || !url->shown) {
        free(url);
        return error_set(error, PAWL_EINTERNAL, NULL, "out of memory");
    }
    int code = parse(url, text, error);
    if (code) {
        url_free(url);
        return code;
    }
    *ret = url;
    return PAWL_OK;
}

static void wipe(char *secret) {
    if (secret) explicit_bzero(secret, strlen(secret));
    free(secret);
}

void url_free(struct url *url) {
    if (!url) return;
    free(url->shown);
    free(url->scheme);
    wipe(url->rest);
    free(url->user);
    wipe(url->password);
    for (size_t i = 0; i < url->n_hosts; i++) free(url->hosts[i].host);
    free(url->hosts);
    free(url->path);
    url_free_params(url->params, url->n_params);
    free(url);
}

const char *url_param(const struct url *url, const char *key) {
    for (size_t i = 0; i < url->n_params; i++)
        if (strcmp(url->params[i].key, key) == 0) {
            url->params[i].read = true;
            return url->params[i].value;
        }
    return NULL;
}

int url_params_known(const struct url *url, pawl_error *error) {
    for (size_t i = 0; i < url->n_params; i++)
        if (!url->params[i].read)
            return error_set(error, PAWL_EINVALID, NULL, "url %s: %s: has no parameter '%s'", url->shown, url->scheme,
                             url->params[i].key);
    return PAWL_OK;
}

bool url_escape(char *buffer, size_t size, const char *text, size_t length, const char *keep) {
    size_t used = strlen(buffer), at = used;
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        bool plain = c < 128 && (isalnum(c) || (c && strchr(keep, c)));
        if (at + (plain ? 1 : 3) >= size) {
            buffer[used] = 0;
            return false;
        }
        if (plain) buffer[at++] = (char)c;
        else at += (size_t)sprintf(buffer + at, "%%%02X", c);
    }
    buffer[at] = 0;
    return true;
}
