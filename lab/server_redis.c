/* server_redis.c: starts redis-server and redis-sentinel, and asks them things beside the code under test. */
#include "server.h"
#include <hiredis/hiredis.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *text_of(const redisReply *reply) {
    char *text = NULL, *part, *more;
    switch (reply->type) {
    case REDIS_REPLY_INTEGER: return asprintf(&text, "%lld", reply->integer) < 0 ? NULL : text;
    case REDIS_REPLY_NIL: return strdup("");
    case REDIS_REPLY_ERROR: return asprintf(&text, "-%s", reply->str) < 0 ? NULL : text;
    case REDIS_REPLY_ARRAY: break;
    default: return strdup(reply->str);
    }
    text = strdup("");
    for (size_t i = 0; i < reply->elements && text; i++) {
        part = text_of(reply->element[i]);
        if (!part || asprintf(&more, "%s%s%s", text, i ? "\n" : "", part) < 0) more = NULL;
        free(part);
        free(text);
        text = more;
    }
    return text;
}

static char *ask(int port, const char *format, va_list arguments) {
    struct timeval limit = {.tv_sec = 2};
    char *line, *text = NULL, *at, *words[32];
    int n = 0;
    if (vasprintf(&line, format, arguments) < 0) return NULL;
    at = line;
    for (char *word; n < 32 && (word = strsep(&at, " "));) words[n++] = word;
    redisContext *c = redisConnectWithTimeout("127.0.0.1", port, limit);
    if (c && !c->err) {
        redisSetTimeout(c, limit);
        redisReply *reply = redisCommandArgv(c, n, (const char **)words, NULL);
        if (reply) text = text_of(reply);
        freeReplyObject(reply);
    }
    if (c) redisFree(c);
    free(line);
    return text;
}

char *server_redis(int port, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char *text = ask(port, format, arguments);
    va_end(arguments);
    return text;
}

int64_t server_redis_int(int port, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char *text = ask(port, format, arguments), *end = text;
    va_end(arguments);
    int64_t number = text ? strtoll(text, &end, 10) : -1;
    if (!text || end == text || *end) number = -1;
    free(text);
    return number;
}

/* Anything but LOADING will do: a server that wants a password is up as well. */
static bool answers(const struct server *s) {
    char *text = server_redis(s->port, "PING");
    bool up = text && strncmp(text, "-LOADING", 8) != 0;
    free(text);
    return up;
}

void server_start_redis(struct server *s, const char *const options[]) {
    server_make_dir(s, "redis");
    s->port = server_free_port();
    s->ready = answers;
    snprintf(s->url, sizeof s->url, "redis://127.0.0.1:%d", s->port);
    server_arg(s, "redis-server");
    server_arg(s, "--port");
    server_arg(s, "%d", s->port);
    for (const char *const *o = (const char *const[]){"--bind", "127.0.0.1", "--save", "", "--dir", s->dir,
                                                      "--repl-diskless-sync-delay", "0", NULL};
         *o; o++)
        server_arg(s, "%s", *o);
    for (; options && *options; options++) server_arg(s, "%s", *options);
    server_run(s);
}

void server_start_sentinel(struct server *s, int port, const char *lines) {
    char path[96];
    server_make_dir(s, "sentinel");
    s->port = server_free_port();
    s->ready = answers;
    snprintf(path, sizeof path, "%s/sentinel.conf", s->dir);
    FILE *file = fopen(path, "w");
    if (!file ||
        fprintf(file,
                "port %d\nbind 127.0.0.1\ndir %s\nsentinel monitor mymaster 127.0.0.1 %d 2\n"
                "sentinel down-after-milliseconds mymaster 700\nsentinel failover-timeout mymaster 4000\n%s\n",
                s->port, s->dir, port, lines) < 0 ||
        fclose(file)) {
        fprintf(stderr, "server: cannot write %s\n", path);
        exit(1);
    }
    snprintf(s->url, sizeof s->url, "redis+sentinel://127.0.0.1:%d/mymaster", s->port);
    server_arg(s, "redis-sentinel");
    server_arg(s, "%s", path);
    server_run(s);
}
