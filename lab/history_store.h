/* history_store.h: how history.c keeps what history_check.c judges: 48 bytes an event, names as numbers. */
#ifndef LAB_HISTORY_STORE_H
#define LAB_HISTORY_STORE_H
#include "history.h"

struct record {
    int64_t start, end, asked;
    uint64_t token;
    uint32_t who, lock; /* numbers of names */
    uint32_t line;
    uint8_t what, outcome, shared;
};
struct records {
    struct record *at;
    size_t n, size;
};
struct name {
    char *text;
    uint64_t hash;
};
struct history {
    struct records of[HISTORY_WHATS];
    struct name *names; /* in order of appearance */
    size_t n_names, names_size;
    uint32_t *slots; /* open addressing: 1 + number of the name, 0 free */
    size_t n_slots;
    uint32_t lines;
};

void *history_alloc(void *old, size_t count, size_t each); /* realloc that aborts */
#endif
