/* What is asked of the supervisor: sandboxes created, found, changed, destroyed. Any thread. */
#ifndef SB_LIFECYCLE_H
#define SB_LIFECYCLE_H

#include "box.h"

/* A request whose answer is the whole story. `fields` is a run of fields, copied. NULL: out of
 * memory. */
struct sb_op *sb_engine_request(struct sb_engine *engine, struct sb_mailbox *mailbox, uint16_t type,
                                const void *fields, size_t len);

/* SB_S_CREATE, SB_S_CONNECT, SB_S_RESUME: the record, and an sb_box as the object when it runs.
 * Create gives a release that destroys the sandbox; a sandbox created for nobody (cancelled,
 * timed out) is destroyed. A create carries a token, made here unless `fields` has one: it is sent
 * again when its answer is lost, and its release destroys no other sandbox of the same id. Only when no
 * supervisor is left to ask it ends with OutcomeUnknown; a scoped one is destroyed then. */
struct sb_op *sb_engine_open(struct sb_engine *engine, struct sb_mailbox *mailbox, uint16_t type,
                             const void *fields, size_t len);

#endif
