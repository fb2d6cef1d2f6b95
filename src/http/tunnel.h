/* A connection to an origin that carries bytes as they are: name, proxy and TLS are libcurl's, what goes through is
 * the caller's. All [io] unless said. */
#ifndef SB_HTTP_TUNNEL_H
#define SB_HTTP_TUNNEL_H

#include "http/port.h"

struct sb_tunnel;

/* Connects, and hands over a connected stream socket: the connection itself or, where there is TLS in it, one end of a
 * pair whose other end is pumped. There the end of what the caller sends is the end of the connection, since libcurl
 * ends only both directions of TLS. Answers from the loop, as sb_dial_start does; what it answers for want of anybody
 * on the other side is Unavailable. NULL: out of memory. The tunnel ends with the port. */
struct sb_tunnel *sb_tunnel_start(struct sb_port *port, sb_dial_fn *done, void *arg);
/* Before it has answered. */
void sb_tunnel_cancel(struct sb_tunnel *tunnel);

#endif
