/* doctor.h: what pawl doctor sees of a lock directory. */
#ifndef PAWL_FILE_DOCTOR_H
#define PAWL_FILE_DOCTOR_H
#include "backend.h"
#include "place.h"

enum bk_says doctor_of(struct place *place, bk_find *find, void *data, pawl_error *error);
#endif
