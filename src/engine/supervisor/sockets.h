/* Sockets of a sandbox's network. */
#ifndef SB_SUP_SOCKETS_H
#define SB_SUP_SOCKETS_H

#include "fail.h"

/* fd[0] an IPv4 and fd[1] an IPv6 TCP socket (or -1: the machine has none), unconnected and
 * non-blocking, in the network of the process behind `pidfd`. */
int sb_sockets_make(int pidfd, int fd[2], struct sb_failure *f);

#endif
