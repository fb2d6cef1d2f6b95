/* What is set up in the network of a sandbox that may reach something: the same for all of them. */
#ifndef SB_NETRULES_H
#define SB_NETRULES_H

#include <stddef.h>

/* Addresses in a sandbox's network. 192.0.0.0/29 is set aside for what a host does within itself (RFC 7335). */
#define SB_NET_RESOLVER4 0xC0000001u /* 192.0.0.1: asked by /etc/resolv.conf */
#define SB_NET_OWN4 0xC0000002u      /* 192.0.0.2: the sandbox's own, source of what goes out */
#define SB_NET_RELAY4 0xC0000003u    /* 192.0.0.3: where the listeners are */
#define SB_NET_PREFIX6                                                                         \
    {                                                                                          \
        0xfd, 0x73, 0x61, 0x6e, 0x64, 0x62, 0x6f, 0x78, 0, 0, 0, 0, 0, 0, 0, 0 /* + 1, 2, 3 */ \
    }
enum { SB_NET_RESOLVER = 1, SB_NET_OWN = 2, SB_NET_RELAY = 3 }; /* last byte, both families */
enum { SB_NET_PORT = 1 };                                       /* of the listeners */

/* Netlink messages, made once. `route`: for rtnetlink, each acknowledged by itself, in this order: IPv4
 * address and route, IPv6 address and route. `rules`: one batch for nf_tables; its last message is
 * acknowledged, or the first that fails. */
struct sb_netrules {
    unsigned char route[4][128];
    size_t route_len[4];
    unsigned char rules[8192];
    size_t rules_len;
};
const struct sb_netrules *sb_netrules(void);

#endif
