/* config.h: the configuration file: INI with profiles.
 *
 *     url = file:/srv/locks          what holds without a profile stands above the first [section]
 *     [prod]                         pawl -u @prod
 *     url = rediss://app@10.0.0.5
 *     password = ...
 *
 * $PAWL_CONFIG, or else both ${XDG_CONFIG_HOME:-~/.config}/pawl/config and /etc/pawl/config, where the first has the
 * last word. An unknown key is an error; a file with a password must not be readable by others. */
#ifndef PAWL_CONFIG_H
#define PAWL_CONFIG_H
#include <stdbool.h>
#include <stdint.h>

struct config {
    char *url;                     /* with password and TLS parameters in it; NULL: not said */
    char *file;                    /* that said the url */
    char *label;                   /* NULL: not said */
    int64_t ttl_ms;                /* 0: not said */
    int for_correctness, log_json; /* -1: not said */
};
#define CONFIG_INIT                                                                                                    \
    { .for_correctness = -1, .log_json = -1 }

/* profile NULL: what stands above the first section. A profile has the last word over that, and must exist and have a
 * url. 0, or 125 and the file, line and key were named. */
int config_read(const char *profile, struct config *ret);
void config_free(struct config *config);
#endif
