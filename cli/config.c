/* config.c: each file is read line by line, once for what stands above the first section and once for the profile; the
 * later word wins, but what belongs to a connection (url, password, TLS files) is replaced as a whole. */
#include "config.h"
#include "cli.h"
#include "url.h"
#include <errno.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum key {
    KEY_URL,
    KEY_PASSWORD,
    KEY_CACERT,
    KEY_CERT,
    KEY_KEY,
    KEY_SERVER_NAME,
    KEY_TTL,
    KEY_LABEL,
    KEY_FOR,
    KEY_LOG,
    N_KEYS
};
static const char *const key_names[N_KEYS] = {"url",         "password", "cacert", "cert", "key",
                                              "server-name", "ttl",      "label",  "for",  "log"};

/* One section of one file: the raw values and their lines. */
struct section {
    const char *file;
    char *value[N_KEYS];
    int line[N_KEYS];
};

static void wipe(char *text) {
    if (text) explicit_bzero(text, strlen(text));
    free(text);
}

static void section_clear(struct section *section) {
    for (int i = 0; i < N_KEYS; i++) wipe(section->value[i]);
    *section = (struct section){.file = section->file};
}

void config_free(struct config *config) {
    wipe(config->url);
    free(config->file);
    free(config->label);
    *config = (struct config)CONFIG_INIT;
}

/* --- reading --- */

static char *trim(char *text) {
    while (*text == ' ' || *text == '\t') text++;
    size_t n = strlen(text);
    while (n > 0 && strchr(" \t\r\n", text[n - 1])) n--;
    text[n] = 0;
    return text;
}

static int unknown_key(const char *file, int line, const char *key) {
    struct nearest nearest = {.text = key};
    for (int i = 0; i < N_KEYS; i++) nearest_offer(&nearest, key_names[i]);
    return complain(EXIT_FAILED, NULL, "%s line %d: unknown key '%s'%s%s%s", file, line, key,
                    nearest.word ? "; did you mean '" : "", nearest.word ? nearest.word : "", nearest.word ? "'?" : "");
}

/* "key = value" into the section. */
static int read_pair(struct section *into, char *text, int line, bool *secret) {
    char *equals = strchr(text, '=');
    if (!equals) return complain(EXIT_FAILED, NULL, "%s line %d: neither key = value nor [profile]", into->file, line);
    *equals = 0;
    const char *key = trim(text), *value = trim(equals + 1);
    int i = 0;
    while (i < N_KEYS && strcmp(key, key_names[i]) != 0) i++;
    if (i == N_KEYS) return unknown_key(into->file, line, key);
    if (!*value) return complain(EXIT_FAILED, NULL, "%s line %d: %s has no value", into->file, line, key);
    if (i == KEY_PASSWORD) *secret = true;
    if (i == KEY_URL) {
        char *shown = NULL;
        struct url *url;
        if (url_parse(value, &url, NULL) == PAWL_OK) {
            shown = strdup(url->shown);
            url_free(url);
        }
        if (shown && strcmp(shown, value) != 0) *secret = true;
        free(shown);
    }
    if (into->value[i])
        return complain(EXIT_FAILED, NULL, "%s line %d: %s is already given in line %d", into->file, line, key,
                        into->line[i]);
    into->line[i] = line;
    into->value[i] = strdup(value);
    return into->value[i] ? 0 : complain(EXIT_FAILED, NULL, "out of memory");
}

static int check_mode(FILE *in, const char *file) {
    struct stat st;
    if (fstat(fileno(in), &st)) return complain(EXIT_FAILED, NULL, "%s: %s", file, strerror(errno));
    mode_t refused = st.st_uid == 0 ? S_IRWXO : S_IRWXO | S_IRWXG;
    if (st.st_mode & refused)
        return complain(EXIT_FAILED, NULL, "%s has a password and others can read it (mode %03o): chmod 600 %s", file,
                        (unsigned)(st.st_mode & 0777), file);
    return 0;
}

/* --- meaning --- */

/* The URL with password and TLS files put in; NULL: out of memory, or no room for them (*ret_why). */
static char *complete_url(const struct section *section, const char **ret_why) {
    const char *url = section->value[KEY_URL], *password = section->value[KEY_PASSWORD];
    const char *authority = strstr(url, "://"), *question = strchr(url, '?');
    size_t room = strlen(url) + 8, used = 0;
    for (int i = KEY_PASSWORD; i <= KEY_SERVER_NAME; i++)
        if (section->value[i]) room += strlen(key_names[i]) + 2 + 3 * strlen(section->value[i]);
    char *whole = calloc(1, room);
    if (!whole) return NULL;
    if (password) {
        const char *start = authority ? authority + 3 : url, *stop = start + strcspn(start, "/?");
        const char *at_sign = memrchr(start, '@', (size_t)(stop - start));
        if (!authority || (at_sign && memchr(start, ':', (size_t)(at_sign - start)))) {
            *ret_why = authority ? "the url has a password already" : "the url names no server";
            free(whole);
            return NULL;
        }
        if (!at_sign) at_sign = start;
        used = (size_t)(at_sign - url);
        memcpy(whole, url, used);
        strcat(whole, ":");
        url_escape(whole, room, password, strlen(password), "");
        if (*at_sign != '@') strcat(whole, "@");
    }
    strcat(whole, url + used);
    for (int i = KEY_CACERT; i <= KEY_SERVER_NAME; i++) {
        if (!section->value[i]) continue;
        strcat(strcat(strcat(whole, question ? "&" : "?"), key_names[i]), "=");
        url_escape(whole, room, section->value[i], strlen(section->value[i]), "-_./");
        question = whole;
    }
    return whole;
}

static int bad_value(const struct section *section, enum key key, const char *why) {
    return complain(EXIT_FAILED, NULL, "%s line %d: %s: %s", section->file, section->line[key], key_names[key], why);
}

static int merge_connection(const struct section *section, struct config *config) {
    const char *why = "out of memory";
    if (!section->value[KEY_URL]) {
        for (int i = KEY_PASSWORD; i <= KEY_SERVER_NAME; i++)
            if (section->value[i]) return bad_value(section, (enum key)i, "there is no url beside it");
        return 0;
    }
    if (*section->value[KEY_URL] == '@') return bad_value(section, KEY_URL, "a profile cannot name another");
    char *url = complete_url(section, &why);
    if (!url) return bad_value(section, KEY_PASSWORD, why);
    wipe(config->url);
    free(config->file);
    config->url = url;
    config->file = strdup(section->file);
    return 0;
}

/* One of two words as 0 or 1. */
static int either(const struct section *section, enum key key, const char *no, const char *yes, int *ret) {
    const char *value = section->value[key];
    if (!value) return 0;
    if (strcmp(value, no) != 0 && strcmp(value, yes) != 0) {
        char why[64];
        snprintf(why, sizeof why, "must be %s or %s", no, yes);
        return bad_value(section, key, why);
    }
    *ret = strcmp(value, yes) == 0;
    return 0;
}

static int merge(const struct section *section, struct config *config) {
    const char *ttl = section->value[KEY_TTL], *label = section->value[KEY_LABEL];
    int64_t ttl_ms;
    int code = merge_connection(section, config);
    if (code == 0 && ttl) {
        if (!parse_duration(ttl, &ttl_ms) || ttl_ms < 100 || ttl_ms > 86400000)
            return bad_value(section, KEY_TTL, "must be a duration from 100ms to 24h, as in 15s");
        config->ttl_ms = ttl_ms;
    }
    if (code == 0 && label) {
        free(config->label);
        config->label = strdup(label);
    }
    if (code == 0) code = either(section, KEY_FOR, "efficiency", "correctness", &config->for_correctness);
    return code ? code : either(section, KEY_LOG, "text", "json", &config->log_json);
}

/* What was read of a section goes into *config, if it is the one that is wanted; it must be right in any case. */
static int end_section(struct section *section, bool wanted, struct config *config) {
    struct config unused = CONFIG_INIT;
    int code = merge(section, wanted ? config : &unused);
    config_free(&unused);
    section_clear(section);
    return code;
}

/* *ret_found is set if the file has the section. */
static int read_lines(FILE *in, const char *profile, const char *file, struct config *config, bool *secret,
                      bool *ret_found) {
    struct section section = {.file = file};
    char *text = NULL;
    size_t size = 0;
    bool wanted = !profile;
    int line = 0, code = 0;
    while (code == 0 && getline(&text, &size, in) >= 0) {
        char *at = trim(text);
        line++;
        if (!*at || *at == '#' || *at == ';') continue;
        if (*at == '[') {
            size_t n = strlen(at);
            code = end_section(&section, wanted, config);
            if (code == 0 && (n < 3 || at[n - 1] != ']'))
                code = complain(EXIT_FAILED, NULL, "%s line %d: a profile is [name]", file, line);
            if (code) break;
            at[n - 1] = 0;
            wanted = profile && strcmp(trim(at + 1), profile) == 0;
            *ret_found = *ret_found || wanted;
        } else {
            code = read_pair(&section, at, line, secret);
        }
    }
    if (code == 0) code = end_section(&section, wanted, config);
    section_clear(&section);
    if (text)
        explicit_bzero(text, size); /* all of it: an empty file leaves it without an end, a long line behind others */
    free(text);
    return code;
}

/* A file that is not there is 0, unless it must be. */
static int read_file(const char *file, const char *profile, bool must, struct config *config, bool *ret_found) {
    bool secret = false;
    FILE *in = fopen(file, "re");
    if (!in && !must && (errno == ENOENT || errno == ENOTDIR)) return 0;
    if (!in)
        return complain(EXIT_FAILED, NULL, "cannot read the configuration %s: %s (HOME or PAWL_CONFIG names it)", file,
                        strerror(errno));
    int code = read_lines(in, profile, file, config, &secret, ret_found);
    if (code == 0 && ferror(in))
        code = complain(EXIT_FAILED, NULL, "cannot read the configuration %s: %s", file, strerror(errno));
    if (code == 0 && secret) code = check_mode(in, file);
    fclose(in);
    return code;
}

static void user_file(char ret[PATH_MAX]) {
    const char *folder = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    if (folder && *folder == '/') {
        snprintf(ret, PATH_MAX, "%s/pawl/config", folder);
        return;
    }
    if (!home || !*home) {
        const struct passwd *entry = getpwuid(geteuid());
        home = entry ? entry->pw_dir : "/nonexistent";
    }
    snprintf(ret, PATH_MAX, "%s/.config/pawl/config", home);
}

int config_read(const char *profile, struct config *ret) {
    const char *only = getenv("PAWL_CONFIG"), *files[2] = {"/etc/pawl/config", NULL};
    char user[PATH_MAX];
    bool must = only && *only, found = false;
    if (must) files[0] = only;
    else user_file(user), files[1] = user;
    struct config config = CONFIG_INIT;
    int code = 0;
    for (int pass = 0; pass < (profile ? 2 : 1) && code == 0; pass++)
        for (int i = 0; i < 2 && files[i] && code == 0; i++) {
            if (pass == 1 && i == 0) wipe(config.url), config.url = NULL; /* the profile's own or none */
            code = read_file(files[i], pass ? profile : NULL, must, &config, &found);
        }
    if (code == 0 && profile && (!found || !config.url))
        code = complain(EXIT_FAILED, NULL,
                        found ? "the profile '%s' has no url (%s%s%s)" : "there is no profile '%s' in %s%s%s", profile,
                        files[1] ? files[1] : files[0], files[1] ? " or " : "", files[1] ? files[0] : "");
    if (code) config_free(&config);
    else *ret = config;
    return code;
}
