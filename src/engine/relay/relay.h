/* The relay: the way of one sandbox to the world. A process of its own, started by the supervisor out of its
 * own program, without rights and files. Listening sockets were made in the sandbox's network; what it opens
 * itself is in the host's. One thread, everything bounded, everything from inside is hostile. */
#ifndef SB_RELAY_H
#define SB_RELAY_H

#include <netinet/in.h>

#include "counts.h"
#include "inject.h"
#include "policy.h"

/* Descriptors it is started with. */
enum {
    SB_RELAY_CONTROL = 3, /* to the supervisor; its end is ours */
    SB_RELAY_TCP4,
    SB_RELAY_UDP4,
    SB_RELAY_RAW4,
    SB_RELAY_TCP6,
    SB_RELAY_UDP6,
    SB_RELAY_RAW6,
    SB_RELAY_KEPT,   /* of no use: closing it would take long */
    SB_RELAY_COUNTS, /* memory that is shared with the supervisor */
    SB_RELAY_END,
};

extern struct sb_relay_counts *sb_relay_counts; /* ours */
extern int sb_relay_counts_fd;                  /* of all; -1: nobody counts */

#define SB_RELAY_NAME "sandbar-relay" /* argv[0] */

enum { SB_RESOLVERS = 3, SB_RELAY_DENIED = 32 };

/* ---- addresses: address.c ---- */

union sb_sockaddr {
    struct sockaddr any;
    struct sockaddr_in in4;
    struct sockaddr_in6 in6;
};

void sb_sockaddr_make(union sb_sockaddr *s, const struct sb_addr *a, unsigned int port);
void sb_sockaddr_read(const union sb_sockaddr *s, struct sb_addr *a, unsigned int *port);
socklen_t sb_sockaddr_len(const union sb_sockaddr *s);
void sb_addr_text(const struct sb_addr *a, char out[INET6_ADDRSTRLEN]);
bool sb_addr_is_relay(const struct sb_addr *a, int which); /* SB_NET_RESOLVER, ... (netrules.h) */
/* Whether a connection to it would end on this machine. */
bool sb_addr_is_own(const struct sb_addr *a);
/* The policy's word on an address, with what only this machine knows. */
sb_refusal sb_may_reach(const struct sb_addr *a, bool resolved);

/* ---- the process: main.c ---- */

int sb_relay_main(int argc, char **argv);
const struct sb_policy *sb_relay_policy(void);
const struct sb_inject *sb_relay_inject(void);
/* Tells the supervisor about something that was refused, once and then from time to time. `host`: a name, or an
 * address's text. */
void sb_relay_denied(const char *protocol, const char *host, unsigned int port, sb_refusal why);

/* ---- what it serves ---- */

int sb_tcp_start(void);
/* The policy has changed: what it does not allow is cut; with `injected` also what has headers of the rules before; `all`:
 * they would go another way now. */
void sb_tcp_recheck(bool all, bool injected);
void sb_tcp_tick(int64_t now);

int sb_udp_start(void);
void sb_udp_recheck(void);
void sb_udp_tick(int64_t now);

/* ---- its second process: opened.c ---- */

bool sb_opened_have(void);   /* there is one */
void sb_opened_take(int fd); /* the way to it */
void sb_opened_tell(const unsigned char *policy, size_t n);

/* ---- asking the host's resolvers: resolve.c ---- */

void sb_resolvers_set(const struct sb_reader *fields);
const union sb_sockaddr *sb_resolver_first(void); /* NULL: there is none */
/* Sends a query (any id) and gives the answer, with the query's id, or NULL and 0. `arg` is whose it is; at most
 * one is under way for each. False: too many are, or there is nobody to ask. */
typedef void sb_asked(void *arg, const unsigned char *answer, size_t n);
bool sb_ask(const unsigned char *query, size_t n, sb_asked *done, void *arg);
void sb_ask_cancel(const void *arg);
void sb_ask_tick(int64_t now);

#endif
