/* Leashes: how the end of something that only a host knows of (a request in nginx) reaches the
 * runtime. */
#ifndef SB_LEASH_H
#define SB_LEASH_H

#include "op.h"

/* An operation that completes when the one connection made to *path (malloc'ed) has ended: by its
 * owner, or because its owner is no more. Unavailable when nobody connects. NULL: *err says why. */
struct sb_op *sb_leash(struct sb_mailbox *mailbox, char **path, struct sb_error *err);

#endif
