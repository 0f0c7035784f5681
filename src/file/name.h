/* name.h: the file name of a lock, and back. All but [A-Za-z0-9._-] is written as %XX, a leading dot too, so no lock
 * leaves its directory or meets the files that pawl keeps for itself (they begin with a dot). A file name over 200
 * bytes becomes its first 128 bytes, "%-" (which no %XX can be), and the SHA-256 of the lock's name in hex: never cut,
 * so no two names meet; the name itself stands in the head of the file. */
#ifndef PAWL_FILE_NAME_H
#define PAWL_FILE_NAME_H
#include <stdbool.h>
#include <stddef.h>

#define NAME_MAX_LOCK 512 /* bytes in the name of a lock */
#define NAME_FILE_SIZE 201

/* false: the name is empty, longer than NAME_MAX_LOCK, or holds a NUL. */
bool name_encode(const char *name, size_t length, char ret[NAME_FILE_SIZE]);
/* false: not the file name of a lock, or a shortened one. */
bool name_decode(const char *file, char ret[NAME_MAX_LOCK + 1]);
bool name_is_short(const char *file); /* shortened: the name is to be read from the file */
#endif
