/* greet.h: what is said first on a new connection: who we are, and is this a server that can keep locks? */
#ifndef REDIS_GREET_H
#define REDIS_GREET_H
#include "place.h"
#include "wire.h"

struct greeting {
    char run_id[41]; /* of the server process */
    bool replica;    /* after a FAULT: for that reason */
    int next;        /* which reply is awaited */
};

void greet_auth(struct wire *w, const char *user, const char *password);
/* One reply of the greeting. A refusal is a FAULT: the connection was for nothing, and nothing was asked yet. */
enum bk_says greet_reply(struct wire *w, struct bk_until until, redisReply **ret, int code, const char *what,
                         pawl_error *error);
/* Adds the questions. Then greet_hear is to get each reply: NO: there are more to come, YES: it was the last, and all
 * is well. */
void greet_ask(const struct place *p, struct wire *w);
enum bk_says greet_hear(const struct place *p, const struct wire *w, const redisReply *reply, struct greeting *g,
                        pawl_error *error);
/* All of it. channel: NULL, or it is subscribed to in the same breath, and the answer to that is still to be read. */
enum bk_says greet_server(const struct place *p, struct wire *w, const char *channel, struct bk_until until,
                          char ret_run_id[41], pawl_error *error);
#endif
