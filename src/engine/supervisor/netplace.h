/* Preparing a sandbox's network for its relay. */
#ifndef SB_NETPLACE_H
#define SB_NETPLACE_H

#include <stdbool.h>

#include "fail.h"

/* Sockets in the sandbox's network, served from outside it. -1: this kernel has no IPv6. */
struct sb_net_sockets {
    int tcp4, udp4, raw4, tcp6, udp6, raw6;
    int kept; /* its closing takes the kernel 8 ms: for the relay to hold until it ends */
};

/* Addresses, routes and rules in the network of the process behind `pidfd`, unless they are there, and new
 * sockets. 0, or -1 and *f: no socket is left, everything there is refused. */
int sb_netplace_make(int pidfd, struct sb_net_sockets *s, struct sb_failure *f);
/* Whether this machine can do that: tried out once, in a network that then ends. */
bool sb_netplace_works(void);
void sb_netplace_close(struct sb_net_sockets *s);

#endif
