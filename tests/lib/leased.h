/* leased.h: "mem:" with the leases of etcd: what hangs on one life is renewed, and ends, together. For the simulation
 * and the contract suite; the service's clock is mem_clock. */
#ifndef PAWL_TEST_LEASED_H
#define PAWL_TEST_LEASED_H
#include "backend.h"

const struct backend *leased_backend(void);
#endif
