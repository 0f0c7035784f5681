/* records.h: who holds and who waits, read without disturbing any lock. */
#ifndef PAWL_FILE_RECORDS_H
#define PAWL_FILE_RECORDS_H
#include "backend.h"
#include "place.h"

/* Holders, then waiters in order, of one lock or of all (NULL), those included that came by flock(2) without pawl. */
enum bk_says records_of(struct place *place, const char *name, bk_each *each, void *data, struct bk_until until,
                        pawl_error *error);
#endif
