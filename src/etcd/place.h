/* place.h: an etcd URL understood.
 *
 *   etcd://[user:password@]host[:port][,host...][/prefix]   etcds:// the same over TLS
 *   ?prefix=TEXT (the path, else /pawl/)  token=revision  cacert= cert= key= server-name=
 *
 * A lock's keys stand under prefix enc(name) '/', one for each who holds or waits, as etcd's own clients do it: so
 * locks of `etcdctl lock` and ours exclude each other if the prefix is that of theirs. In a name '/', '%' and control
 * characters are written as %XX, so that no name's keys lie under another's. */
#ifndef ETCD_PLACE_H
#define ETCD_PLACE_H
#include "tls.h"

#define PREFIX_MAX 256
#define NAME_BYTES 512
#define LOCK_SIZE (PREFIX_MAX + 3 * NAME_BYTES + 2) /* the prefix of one lock's keys */
#define KEY_SIZE (LOCK_SIZE + 64)

struct place {
    struct url_host *hosts;
    size_t n_hosts;
    bool tls, bare; /* bare: tokens are create revisions, nothing added */
    struct tls_options tls_options;
    char *user, *password;
    char prefix[PREFIX_MAX + 1];
};
/* FAULT: the culprit is named. place_free is needed after FAULT too. */
enum bk_says place_parse(const struct url *url, struct place *place, pawl_error *error);
void place_free(struct place *place);
/* prefix enc(name) '/'. */
void place_lock(const struct place *place, const char *name, size_t length, char ret[LOCK_SIZE]);
/* The name of a lock's key, decoded, or false: it is none, as what pawl keeps beside the locks (%guard/..., %token). */
bool place_name(const struct place *place, const unsigned char *key, size_t length, char ret[NAME_BYTES + 1]);
#endif
