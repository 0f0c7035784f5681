/* about.h: what a holder says of itself for who: one line of text, the form of URL parameters, at most 255 bytes:
 * "host=web1&pid=4711&user=ana&command=backup&label=nightly%20run". Never arguments, never secrets. */
#ifndef PAWL_ABOUT_H
#define PAWL_ABOUT_H
#include "pawl.h"

#define ABOUT_SIZE 256

/* Of this process; label may be NULL; pid 0: its own. Names too long are cut. */
void about_self(const char *label, int64_t pid, char ret[ABOUT_SIZE]);

struct about {
    struct url_param *params;
    size_t n;
};
/* Takes text apart into the string fields and the pid of *entry; what is absent stays NULL or 0. Free with about_free
 * after the entry was used. Text that is not of the form yields an entry with nothing known. */
void about_parse(const char *text, struct about *ret, pawl_entry *entry);
void about_free(struct about *about);
/* For people: "backup (pid 4711, ana@web1)"; "another program" if nothing is known. */
void about_describe(const char *text, char *ret, size_t size);
#endif
