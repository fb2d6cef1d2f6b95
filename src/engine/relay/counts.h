/* What relays have carried: memory that they share with the supervisor, who believes nothing of it. */
#ifndef SB_RELAY_COUNTS_H
#define SB_RELAY_COUNTS_H

#include <stdint.h>

/* Bytes to and from the world, DNS apart. */
struct sb_relay_counts {
    uint64_t sent, received;
};

/* Each process has its own. */
enum sb_counts { SB_COUNTS_RELAY, SB_COUNTS_TLS, SB_COUNTS };

#endif
