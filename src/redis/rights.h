/* rights.h: which rights a user lacks, each asked for in a way that changes nothing for long. */
#ifndef REDIS_RIGHTS_H
#define REDIS_RIGHTS_H
#include "place.h"
#include "wire.h"

enum { RIGHTS_REDIS = 1, RIGHTS_REDLOCK = 2 };
struct missing {
    char text[400];    /* as ACL SETUSER wants it; "" none */
    bool locks, waits; /* what suffers: locks; else who waits; else only pawl ls */
};
/* YES, or no answer in time. */
enum bk_says rights_look(const struct place *place, int service, struct wire *wire, struct bk_until until,
                         struct missing *m, pawl_error *error);
/* The same of the channel; the connection listens afterwards, and is good for nothing else. */
void rights_look_at_channel(const struct place *place, struct wire *wire, struct bk_until until, struct missing *m);
int rights_level(const struct missing *m);
const char *rights_why(const struct missing *m);
#endif
