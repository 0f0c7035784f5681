/* fixture.h: the set of resources that a test works on: a folder, or a prefix in a service of our own. */
#ifndef TESTS_GUARD_FIXTURE_H
#define TESTS_GUARD_FIXTURE_H
#include "guard/guard.h"
#include <stdbool.h>

extern const char *kind; /* dir, sqlite, redis, etcd */
extern char folder[64], url[192];
extern pawl_guard *guard;
extern pawl_error error;

void begin_kind(const char *name); /* "sqlite-wal": in a file with that journal mode */
void end_kind(void);
int set_up(void **data);
int tear_down(void **data);

bool is_service(void);
void service_signal(int signal);
void service_restart(void); /* with its data */
int entries_of(const char *path);

/* Something that is no record where that of "r" would stand. */
void foreign_write(const char *text);
const char *foreign_place(void);
char *foreign_read(void); /* to be freed */

/* mirror.c: a resource and what it must have become. */
struct mirror {
    char resource[24];
    struct guard_mark mark; /* rule 0: there is none */
    char data[24];
    size_t resets;
};
/* One random step on the guard and on the mirror. NULL, or where they differ. */
const char *mirror_step(struct mirror *mirror, unsigned *seed);
#endif
