/* script.h: the Lua scripts beside this file, embedded at build time (embed.py). Each says above its text which rule it
 * implements. Called by EVALSHA; a server that does not know one gets the text by EVAL. */
#ifndef REDIS_SCRIPT_H
#define REDIS_SCRIPT_H

struct script {
    char sha[41];
    unsigned bit; /* of its own among those of a module */
    const char *text;
};
extern const struct script script_evict, script_take, script_release, script_renew, script_tokens, script_guard;
#endif
