/* What callers, supervisor and pid 1 say to each other, for SANDBAR_TRACE=1. */
#ifndef SB_ENGINE_TRACE_H
#define SB_ENGINE_TRACE_H

#include <stddef.h>

#include "../runtime/error.h"
#include "proto.h"

/* `event`: "send" or "receive". `err`: what an answer says went wrong, or NULL. Any thread. */
void sb_trace_message(const char *event, const char *peer, const struct sb_msg *head, size_t len,
                      unsigned nfds, const struct sb_error *err);
/* A turn in the life of a connection or a supervisor: what happened, to what, and why (NULL: nothing to
 * say). */
void sb_trace_turn(const char *event, const char *what, const struct sb_error *err);

#endif
