/* url.h: where a lock lives, taken apart. "scheme:rest", where rest may be
 * //[user[:password]@]host[:port][,host...]/path, with ?key=value&key=value behind it. Everything is percent-decoded
 * but `rest`. */
#ifndef PAWL_URL_H
#define PAWL_URL_H
#include "error.h"
#include <stdbool.h>

struct url_host {
    char *host; /* without the brackets of IPv6 */
    int port;   /* 0: not given */
};
struct url_param {
    char *key, *value;
    bool read;
};
struct url {
    char *shown;           /* as given, but *** in place of secrets: for messages */
    char *scheme, *rest;   /* rest: raw text behind "scheme:", secrets and parameters included */
    char *user, *password; /* NULL: not given */
    struct url_host *hosts;
    size_t n_hosts;
    char *path;     /* without a leading '/' after an authority; "" if none. file:DIR: DIR */
    bool authority; /* had "//" */
    struct url_param *params;
    size_t n_params;
};

/* A text without a scheme is an error that says so. *ret is to be freed by url_free. */
int url_parse(const char *text, struct url **ret, pawl_error *error);
void url_free(struct url *url); /* NULL allowed; overwrites the password */
/* The value of a parameter, NULL if absent; marks it as known. Params are not const for that reason alone. */
const char *url_param(const struct url *url, const char *key);
/* Names the first parameter that nobody asked for. */
int url_params_known(const struct url *url, pawl_error *error);
/* Parses "key=value&key=value" into params (percent-decoded); used for about as well. */
int url_parse_params(const char *text, struct url_param **ret, size_t *ret_n);
void url_free_params(struct url_param *params, size_t n);
/* Appends text to buffer (of size, always ended by NUL) with every byte outside `keep` and [A-Za-z0-9] as %XX. Returns
 * false if it did not fit: then nothing was appended. */
bool url_escape(char *buffer, size_t size, const char *text, size_t length, const char *keep);
#endif
