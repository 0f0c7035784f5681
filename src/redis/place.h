/* place.h: a Redis URL understood: where to dial, as whom, and under which prefix the keys stand.
 *
 *   redis://[user:password@]host[:port][,host...][/db]      rediss:// the same over TLS
 *   redis+unix:///path/to/socket[?db=N]                     redis+sentinel://host[:port],.../master[/db]
 *   ?prefix=TEXT (pawl:)  db=N  cacert= cert= key= server-name=    sentinel: tls=yes sentinel-user= sentinel-password=
 */
#ifndef REDIS_PLACE_H
#define REDIS_PLACE_H
#include "tls.h"

#define PREFIX_MAX 128
#define NAME_MAX_BYTES 512
#define KEY_SIZE (PREFIX_MAX + 3 * NAME_MAX_BYTES + 8)

struct place {
    struct url_host *hosts; /* servers, or sentinels */
    size_t n_hosts;
    char *socket_path, *master; /* NULL: not a unix socket, no sentinels */
    bool tls;
    struct tls_options tls_options;
    char *user, *password, *sentinel_user, *sentinel_password;
    int db;
    char *map; /* NULL: none */
    char *prefix;
    size_t prefix_length;
};

/* FAULT: the culprit is named. place_free is needed after FAULT too. */
enum bk_says place_parse(const struct url *url, struct place *place, pawl_error *error);
void place_free(struct place *place);

/* Replaces an address that a sentinel named, if the map has it; host has room for 256 bytes. */
void place_map(const struct place *place, char *host, int *port);

struct keys {
    char lock[KEY_SIZE], queue[KEY_SIZE];
    size_t lock_length, queue_length;
};
/* prefix name and prefix "%q:" name, where '%', '{', '}' and control characters of the name are written as %XX: so no
 * name meets a key of our own beside the locks, and none changes what a prefix in braces means. */
void place_keys(const struct place *place, const char *name, size_t length, struct keys *ret);
/* The name in a key, or false: the key is none of a lock. */
bool place_name(const struct place *place, const char *key, size_t length, char ret[NAME_MAX_BYTES + 1]);

/* The value of a lock: number(16) ':' owner(48) wall clock(13) about. Is it of that form? */
#define OWNER_CHARS 48
#define VALUE_MS 65    /* where the wall clock stands, 13 digits */
#define VALUE_ABOUT 78 /* where about begins; without the clock in a member of the queue, at 48 */
bool value_is_ours(const char *value, size_t length);
/* The number of `digits` digits at text. */
uint64_t value_number(const char *text, size_t digits);
#endif
