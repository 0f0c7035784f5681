#include "about.h"
#include "text.h"
#include "url.h"
#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* As much of value as fits, never ending inside a UTF-8 character. */
static void add(char *text, const char *key, const char *value, size_t most) {
    size_t used = strlen(text), length = value ? strnlen(value, most) : 0;
    if (snprintf(text + used, ABOUT_SIZE - used, "%s%s=", used ? "&" : "", key) < (int)(ABOUT_SIZE - used)) {
        for (; length > 0; length--) {
            if (((unsigned char)value[length] & 0xC0) == 0x80) continue;
            if (url_escape(text, ABOUT_SIZE, value, length, "-_.")) return;
        }
    }
    text[used] = 0;
}

void about_self(const char *label, int64_t shown_pid, char ret[ABOUT_SIZE]) {
    char host[65] = "", pid[16], buffer[1024];
    struct passwd entry, *found = NULL;
    *ret = 0;
    gethostname(host, sizeof host - 1);
    snprintf(pid, sizeof pid, "%d", (int)(shown_pid ? shown_pid : getpid()));
    add(ret, "host", host, 64);
    add(ret, "pid", pid, 16);
    if (getpwuid_r(geteuid(), &entry, buffer, sizeof buffer, &found) == 0 && found)
        add(ret, "user", found->pw_name, 32);
    add(ret, "command", program_invocation_short_name, 32);
    add(ret, "label", label, 64);
}

void about_parse(const char *text, struct about *ret, pawl_entry *entry) {
    *ret = (struct about){0};
    if (url_parse_params(text, &ret->params, &ret->n)) return;
    for (size_t i = 0; i < ret->n; i++) {
        const char *key = ret->params[i].key, *value = ret->params[i].value;
        if (strcmp(key, "host") == 0) entry->host = value;
        else if (strcmp(key, "pid") == 0) entry->pid = strtoll(value, NULL, 10);
        else if (strcmp(key, "user") == 0) entry->user = value;
        else if (strcmp(key, "command") == 0) entry->command = value;
        else if (strcmp(key, "label") == 0) entry->label = value;
    }
}

void about_free(struct about *about) { url_free_params(about->params, about->n); }

/* Others wrote it, and it goes to a terminal. */
static void tame(char *text) {
    for (uint32_t code; *text;) {
        size_t n = text_next(text, &code);
        if (!text_plain(code)) memset(text, '?', n);
        text += n;
    }
}

void about_describe(const char *text, char *ret, size_t size) {
    struct about about;
    pawl_entry entry = {.size = sizeof entry};
    about_parse(text, &about, &entry);
    if (!entry.command && !entry.pid) snprintf(ret, size, "another program");
    else
        snprintf(ret, size, "%s (pid %lld, %s%s%s)", entry.command ? entry.command : "a program", (long long)entry.pid,
                 entry.user ? entry.user : "", entry.user ? "@" : "", entry.host ? entry.host : "?");
    tame(ret);
    about_free(&about);
}
