/* The TLS handshakes of a listener, one after the other. Each costs the I/O thread a signature, with an RSA key as long as
 * many requests together. So after each the thread is the others' for as long as it took, however many clients come; who
 * has to wait does so in a queue. Everything is [io]. */
#ifndef SB_SERVER_HANDSHAKES_H
#define SB_SERVER_HANDSHAKES_H

#include <stdint.h>

#include "http/core.h"

struct sb_peer;

struct sb_handshakes {
    struct sb_peer *first, **last; /* who waits */
    struct sb_peer *turn;          /* whose turn it is at the moment */
    struct sb_timer timer;
    uint64_t next; /* none before that */
};

void sb_handshakes_init(struct sb_handshakes *h);
/* May it go on with its handshake? Else it is queued, and gets a turn of sb_peer_turn. */
int sb_handshakes_enter(struct sb_handshakes *h, struct sb_peer *peer);
/* It has, since `began`. */
void sb_handshakes_took(struct sb_handshakes *h, uint64_t began);
void sb_handshakes_leave(struct sb_handshakes *h, struct sb_peer *peer); /* idempotent */

#endif
