/* Where the completed operations of one Lua state land, with one pollable descriptor.
 *
 * The wake is a coalesced edge, never a message: the I/O thread links the operation, exchanges
 * `armed` with 1 and signals only when it was 0; the consumer clears the signal, stores 0, then
 * detaches the whole list. At most one wake is outstanding, so signalling never blocks. */
#ifndef SB_MAILBOX_H
#define SB_MAILBOX_H

#include "op.h"

/* One reference for the caller. Belongs to the generation it was made in; in a forked child
 * sb_mailbox_renew gives it new descriptors, an empty queue, and forgets the old operations. */
struct sb_mailbox *sb_mailbox_new(struct sb_error *err);
struct sb_mailbox *sb_mailbox_ref(struct sb_mailbox *mailbox);
void sb_mailbox_unref(struct sb_mailbox *mailbox);
int sb_mailbox_renew(struct sb_mailbox *mailbox, struct sb_error *err);

int sb_mailbox_fd(const struct sb_mailbox *mailbox); /* eventfd, readable when there is something */

/* Detaches up to `max` completed operations, oldest first, each with the completer's
 * former reference now the caller's; returns how many. When more are left the descriptor
 * stays readable. */
size_t sb_mailbox_drain(struct sb_mailbox *mailbox, struct sb_op **ops, size_t max);

/* How many operations made for it are not completed yet. */
size_t sb_mailbox_pending(const struct sb_mailbox *mailbox);

/* Blocks until readable, the deadline (sb_now clock), or a signal; runs the loop meanwhile if nobody
 * else does. 1 readable, 0 deadline, -1 interrupted. */
int sb_mailbox_poll(struct sb_mailbox *mailbox, uint64_t deadline);

/* The same until an operation of this mailbox and generation is done, for a caller who waits for
 * nothing else: whatever else has arrived is dropped. 1 done, 0 deadline, -1 interrupted. */
int sb_mailbox_await(struct sb_mailbox *mailbox, struct sb_op *op, uint64_t deadline);

/* For hosts that can only connect (OpenResty): makes a 0700 directory with a listening unix socket
 * and returns its path (malloc'ed). The first connection from this very process becomes a second
 * wake channel (one byte 'w' per edge), listener and directory vanish. sb_mailbox_nudge sends
 * `byte` on it ('l' look again, 'i' you may stop). */
char *sb_mailbox_listen(struct sb_mailbox *mailbox, struct sb_error *err);
void sb_mailbox_nudge(struct sb_mailbox *mailbox, char byte);

#endif
