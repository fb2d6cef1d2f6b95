/* SIGTERM as an operation: for a program that is a server and wants to finish what it has begun. */
#ifndef SB_SERVER_ENDING_H
#define SB_SERVER_ENDING_H

#include "runtime/op.h"

/* Completes at the first SIGTERM of the process; a second one ends it as ever. Takes the signal over until then: of two
 * at a time the second is Busy. Cancelled, it leaves the signal as it was found. */
struct sb_op *sb_server_ending(struct sb_mailbox *mailbox);

#endif
