/* record_file.h: the file form of a record, for dir and etcd guards; readable with cat, and by other programs.
 *
 *   pawl guard 1
 *   resource account%3Aus-east%3A9021
 *   lock acct
 *   token 1796043852633178
 *   seq 0
 *   rule ge
 *   used 1                            written under this token (0: only sealed)
 *   written 1                         has data
 *   at 1796043852640001               microseconds since 1970
 *   by worker%202
 *   service redis                     of the lock; left out if it was not told
 *   reset 1796043852640001 7 9 ana restored%20from%20tape      any number: when, from, to, who, why
 *   length 4
 *
 *   2500                              data: exactly `length` bytes to the end of the file
 *
 * Texts have everything but [A-Za-z0-9._-] as %XX, so a line has no strange characters and a word no space. */
#ifndef PAWL_GUARD_RECORD_FILE_H
#define PAWL_GUARD_RECORD_FILE_H
#include "guard.h"
#include <sys/types.h>

#define RECORD_RESETS 500 /* the newest are kept */

struct record_head {
    struct guard_mark mark;
    char resource[GUARD_NAME_MAX + 1];
    size_t length;
    pawl_guard_reset_entry *resets; /* texts inside the text of record_head_read */
    size_t n_resets;
};

/* Parses the head of the file on fd. NULL, with *ret_text (to be freed) under *ret; or what is wrong. */
const char *record_head_read(int fd, char **ret_text, struct record_head *ret, off_t *ret_data_at);
void record_head_free(struct record_head *head);
/* The same from text of `size` bytes, which is changed. */
const char *record_head_parse(char *text, size_t size, struct record_head *ret, size_t *ret_data_at);
/* The head of the next record, with the resets of `old` and one more (NULL: none). NULL: out of memory. */
char *record_head_lines(const char *resource, const struct guard_mark *mark, const struct record_head *old,
                        const pawl_guard_reset_entry *reset, size_t length, size_t *ret_size);

bool write_all(int fd, const void *data, size_t length);
bool read_all(int fd, void *ret, size_t length);
bool copy_rest(int from_fd, int to_fd);
#endif
