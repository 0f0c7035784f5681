#include "certificates.h"
#include <stdio.h>
#include <stdlib.h>

bool make_certificates(const char *dir) {
    char line[1200];
    snprintf(line, sizeof line,
             "cd %s && exec 2>/dev/null && "
             "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.crt "
             "-subj /CN=authority -days 2 && "
             "for n in server client; do openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $n.key "
             "-out $n.csr -subj /CN=$n || exit 1; done && "
             "printf 'subjectAltName=DNS:lock.test,IP:127.0.0.1' >ext && "
             "openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out server.crt -days 2 "
             "-extfile ext && "
             "openssl x509 -req -in client.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out client.crt -days 2",
             dir);
    return system(line) == 0;
}
