/* doctor.h: what pawl doctor found, shared by the verb (doctor.c) and by what it says beside the findings (setup.c). */
#ifndef PAWL_CLI_DOCTOR_H
#define PAWL_CLI_DOCTOR_H
#include "options.h"

struct finding {
    int level; /* PAWL_LEVEL_... */
    char *id, *about, *seen, *why, *fix;
};
struct findings {
    struct finding list[256]; /* a majority of many instances tells much */
    int n;
    int worst, worst_of_service, worst_efficiency; /* of all; of all but C05; of what efficiency needs */
};

/* setup.c */
enum { SETUP_TEXT = 4096 };
/* The kind of service: "redis" for rediss: and the like too; "" if it is not known. */
const char *setup_scheme(const char *url);
/* What one lock costs there, in words. */
void setup_cost(const char *scheme, int64_t ttl_ms, char ret[SETUP_TEXT]);
/* The smallest rights, as lines for the service's own tools. false: there are none to give. */
bool setup_rights(const char *url, char ret[SETUP_TEXT]);
/* What is promised here, given what was found; one line, or one JSON object, each. */
void setup_guarantees(const char *scheme, const struct findings *all, bool json);
#endif
