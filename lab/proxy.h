/* proxy.h: a fault in the network on demand: a TCP relay on the loopback, run by a thread of its own, whose directions
 * can be slowed, silenced and cut, also for connections that stand already. */
#ifndef LAB_PROXY_H
#define LAB_PROXY_H
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct proxy;
enum proxy_way { PROXY_TO_SERVER, PROXY_TO_CLIENT };

/* Relays 127.0.0.1:<a free port> to 127.0.0.1:port. ends the program if it cannot. */
struct proxy *proxy_start(int port);
void proxy_stop(struct proxy *p);
int proxy_port(const struct proxy *p);

/* Each byte arrives so much later. */
void proxy_delay(struct proxy *p, enum proxy_way way, int64_t ms);
/* Bytes of that direction vanish; the connection stands. */
void proxy_drop(struct proxy *p, enum proxy_way way, bool on);
/* Both directions stand still, nothing is read or lost, and new connections are accepted only: a frozen host. */
void proxy_freeze(struct proxy *p, bool on);
/* The same for the connections of one process, standing and new ones; 0: for none. */
void proxy_shun(struct proxy *p, pid_t pid);
/* Connections stand on our side while the server's side is closed, and nothing is ever said: a host that vanished. */
void proxy_half_open(struct proxy *p);
/* All connections are reset; new ones are refused while `refuse` is on. */
void proxy_cut(struct proxy *p, bool refuse);
/* The server gets the last request of a client once more, on another connection: a late duplicate. false: there is
 * none. */
bool proxy_replay(struct proxy *p);

/* What went through, for tests that count. */
int64_t proxy_bytes(struct proxy *p, enum proxy_way way);
int proxy_connections(struct proxy *p); /* accepted so far */
#endif
