/* certificates.h: what a TLS server and its clients need, made with openssl. */
#ifndef PAWL_TEST_CERTIFICATES_H
#define PAWL_TEST_CERTIFICATES_H
#include <stdbool.h>

/* In dir: an authority (ca), a server's for "lock.test" and 127.0.0.1 (server), and a client's (client): .crt and .key
 * of each. */
bool make_certificates(const char *dir);
#endif
