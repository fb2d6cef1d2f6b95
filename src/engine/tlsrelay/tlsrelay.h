/* The second process of a sandbox's relay: it reads requests inside TLS, for hosts whose requests get headers. The relay
 * decides and dials, and hands over connections; nothing is opened here. It knows the sandbox's authority, the secrets,
 * and whom the host trusts. */
#ifndef SB_TLSRELAY_H
#define SB_TLSRELAY_H

#include <openssl/ssl.h>

#include "../relay/counts.h"
#include "../relay/inject.h"

#define SB_TLSRELAY_NAME "sandbar-tls" /* argv[0] */

/* ---- main.c ---- */

const struct sb_inject *sb_tlsrelay_inject(void);
extern struct sb_relay_counts *sb_tlsrelay_counts;
/* Tells the relay that the connection is over: enum sb_opened_end (proto.h). */
void sb_tlsrelay_over(uint64_t serial, int how);

/* ---- session.c ---- */

/* Of both sides; NULL: there is none. `trusted`: certificates in PEM. */
int sb_session_start(const char *trusted);
/* Two sockets, which it takes; `hello`: what has been read from the program. */
void sb_session_open(uint64_t serial, const char *host, const int fd[2], const void *hello,
                     size_t n);
void sb_session_tick(int64_t now);

#endif
