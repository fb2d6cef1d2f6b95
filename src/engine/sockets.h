/* Unconnected TCP sockets of a sandbox's network, asked of the supervisor: how a port is reached
 * without a relay. A socket stays in the network it was made in. */
#ifndef SB_SOCKETS_H
#define SB_SOCKETS_H

#include "../runtime/op.h"

/* One IPv4 and one IPv6 socket, non-blocking and close-on-exec, the receiver's to close; -1
 * where that family does not exist. With an error both are -1: NotRunning, NotFound, or what
 * befell the supervisor. */
typedef void sb_sockets_fn(void *arg, int v4, int v6, const struct sb_error *err);

/* [io] `done` runs once, later or before this returns. `engine` is what core.engine{} makes. */
void sb_client_sockets(const struct sb_object *engine, const char *id, sb_sockets_fn *done,
                       void *arg);

/* The type of that engine object. */
const struct sb_object_type *sb_client_engine_type(void);

#endif
