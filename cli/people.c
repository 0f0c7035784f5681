#include "people.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void people_free(struct people *people) {
    for (size_t i = 0; i < people->n; i++) {
        const pawl_entry *e = &people->list[i].entry;
        const char *strings[] = {e->name, e->label, e->host, e->user, e->command};
        for (size_t j = 0; j < sizeof strings / sizeof *strings; j++) free((char *)strings[j]);
    }
    free(people->list);
}

static const char *copy(const char *text) { return text && *text ? strdup(text) : NULL; }

static int collect(const pawl_entry *entry, void *data) {
    struct people *people = data;
    struct person *more = realloc(people->list, (people->n + 1) * sizeof *more);
    if (!more) {
        people->no_memory = true;
        return 1;
    }
    people->list = more;
    pawl_entry *e = &more[people->n++].entry;
    *e = *entry;
    e->name = strdup(entry->name ? entry->name : "");
    e->label = copy(entry->label);
    e->host = copy(entry->host);
    e->user = copy(entry->user);
    e->command = copy(entry->command);
    if (e->name) return 0;
    people->no_memory = true;
    people->n--;
    return 1;
}

/* By name, holders first, then in the order of the queue. */
static int by_name(const void *a, const void *b) {
    const pawl_entry *x = &((const struct person *)a)->entry, *y = &((const struct person *)b)->entry;
    int order = strcmp(x->name, y->name);
    return order ? order : (x->place > y->place) - (x->place < y->place);
}

int people_ask(pawl_client *client, const char *name, int64_t wait_ms, struct people *ret, pawl_error *error) {
    int code = pawl_inspect(client, name, wait_ms, collect, ret, error);
    if (!code && ret->no_memory) {
        snprintf(error->text, sizeof error->text, "out of memory");
        code = error->code = PAWL_EINTERNAL;
    }
    if (ret->n > 1) qsort(ret->list, ret->n, sizeof *ret->list, by_name);
    return code;
}

int people_look(const struct common *common, const char *name, int64_t wait_ms, struct people *ret) {
    pawl_error error = PAWL_ERROR_INIT;
    pawl_client *client;
    int code = open_client(common, name, &client);
    if (code) return code;
    if (people_ask(client, name, wait_ms, ret, &error)) code = complain_error(name, &error);
    pawl_close(client);
    return code;
}

size_t people_of_name(const struct people *people, size_t from) {
    size_t to = from + 1;
    while (to < people->n && strcmp(people->list[from].entry.name, people->list[to].entry.name) == 0) to++;
    return to - from;
}

/* --- for programs --- */

static void print_json_person(const pawl_entry *e) {
    char when[40];
    fputs("{\"command\":", stdout);
    print_json_string(stdout, e->command);
    if (e->pid) printf(",\"pid\":%" PRId64, e->pid);
    else fputs(",\"pid\":null", stdout);
    fputs(",\"user\":", stdout);
    print_json_string(stdout, e->user);
    fputs(",\"host\":", stdout);
    print_json_string(stdout, e->host);
    fputs(",\"label\":", stdout);
    print_json_string(stdout, e->label);
    if (e->token) printf(",\"token\":\"%" PRId64 "\"", e->token);
    else fputs(",\"token\":null", stdout);
    printf(",\"shared\":%s", e->shared ? "true" : "false");
    if (e->since_ms) {
        format_time(e->since_ms, when, sizeof when);
        printf(",\"since\":\"%s\"", when);
    } else {
        fputs(",\"since\":null", stdout);
    }
    if (e->left_ms > 0) printf(",\"left_ms\":%" PRId64 "}", e->left_ms);
    else fputs(",\"left_ms\":null}", stdout);
}

void people_print_json(const char *time, const char *name, const char *url, const struct person *list, size_t n) {
    bool held = n > 0 && list[0].entry.held;
    putchar('{');
    if (time) printf("\"time\":\"%s\",", time);
    fputs("\"name\":", stdout);
    print_json_string(stdout, name);
    fputs(",\"url\":", stdout);
    print_json_string(stdout, url);
    printf(",\"held\":%s", held ? "true" : "false");
    for (int waiting = 0; waiting < 2; waiting++) {
        const char *comma = "";
        fputs(waiting ? ",\"waiting\":[" : ",\"holders\":[", stdout);
        for (size_t i = 0; i < n; i++) {
            if (list[i].entry.held == waiting) continue;
            fputs(comma, stdout);
            print_json_person(&list[i].entry);
            comma = ",";
        }
        fputs("]", stdout);
    }
    puts("}");
}
