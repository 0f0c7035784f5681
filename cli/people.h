/* people.h: who holds a lock and who waits, as who, ls and watch show it: copied out of the library's callback, sorted
 * by name, holders first, then in the order of the queue. What is unknown is null or "-", never a guess; looking never
 * blocks a lock. */
#ifndef PAWL_CLI_PEOPLE_H
#define PAWL_CLI_PEOPLE_H
#include "options.h"

struct person {
    pawl_entry entry; /* the strings are our copies */
};
struct people { /* begin with {0} */
    struct person *list;
    size_t n;
    bool no_memory;
};

/* name NULL: all locks. PAWL_OK, or the code, with *error filled. people_free is due in both cases. */
int people_ask(pawl_client *client, const char *name, int64_t wait_ms, struct people *ret, pawl_error *error);
/* The same with a client of its own. 0, or the exit code and the reason was printed. */
int people_look(const struct common *common, const char *name, int64_t wait_ms, struct people *ret);
void people_free(struct people *people);
/* How many entries from `from` on have its name. */
size_t people_of_name(const struct people *people, size_t from);
/* One lock as one JSON object and a newline; time NULL: none. The same for every service. */
void people_print_json(const char *time, const char *name, const char *url, const struct person *list, size_t n);
#endif
