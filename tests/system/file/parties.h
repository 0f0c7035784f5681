/* parties.h: clients of file: in the tests: a backend, a session and one claim each, in a directory of their own.
 */
#ifndef PAWL_TEST_FILE_PARTIES_H
#define PAWL_TEST_FILE_PARTIES_H
#include "backend.h"
#include <stdint.h>

extern const struct backend file_backend;

struct party {
    struct bk *bk;
    struct bk_session *session;
    struct bk_claim claim;
    struct bk_grant grant;
    struct bk_busy busy;
    pawl_error error;
    bool held;
};

/* A new empty directory, mode 0700, below /tmp. */
const char *new_dir(char ret[64]);
/* Removes the files of a directory, those in the directories in it as well, and the directory. */
void remove_dir(const char *path);
/* For cmocka: such a directory for each test. */
extern char dir[64];
int dir_setup(void **state);
int dir_teardown(void **state);
/* "DIR/FILE"; good until the next call. */
const char *in_dir(const char *file);
/* The whole file; its size in *ret_size; to be freed. */
char *read_file(const char *path, size_t *ret_size);
void write_file(const char *path, const void *data, size_t size);

/* Ends the process with the error's text if that fails. `path` as in file:PATH. */
void party_open(struct party *ret, const char *path, const char *name);
void party_close(struct party *party);
enum bk_says party_take(struct party *party, bool queue);
/* Queues and waits until it is granted; false: not within 20 s, or FAULT. */
bool party_wait(struct party *party);
void party_release(struct party *party); /* release and end */
void party_forget(struct party *party);
struct bk_until soon(void); /* in 10 s */

struct seen {
    struct bk_record record;
    char name[520], about[256];
};
/* What records say, at most `most`; returns how many. */
int party_records(struct party *party, const char *name, struct seen *ret, int most);

/* Runs COMMAND in /bin/sh; its status. */
int shell(const char *format, ...) __attribute__((format(printf, 1, 2)));
#endif
