/* The sending half of a connection (conn.h): datagrams that the kernel did not take wait in it, bounded. */
#ifndef SB_SENDING_H
#define SB_SENDING_H

#include "conn.h"

/* Lock held. Sends, or queues it for the I/O thread; an ending connection swallows it. `fds` stay the caller's. */
int sb_sending_add(struct sb_conn *conn, const unsigned char *msg, size_t len, const int *fds,
                   unsigned nfds, struct sb_error *err);
/* [io] Sends what waits. */
void sb_sending_flush(struct sb_conn *conn);
/* [io] The connection's timer. */
void sb_sending_retry(struct sb_timer *timer);
/* Lock held, or nobody else has the connection: forgets what waits. */
void sb_sending_drop(struct sb_conn *conn);
/* The fields of a long message in a sealed memfd: its descriptor. */
int sb_sending_spill(const unsigned char *fields, size_t len, struct sb_error *err);

#endif
