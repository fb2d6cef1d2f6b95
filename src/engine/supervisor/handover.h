/* A newer supervisor takes this one's place. */
#ifndef SB_HANDOVER_H
#define SB_HANDOVER_H

#include "sup.h"

struct sb_conn;
struct sb_wire_in;

/* Handler of SB_S_HANDOVER, see requests.c. */
int sb_handover_ask(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f);
bool sb_handover_begun(void); /* we were asked to leave */
/* And nothing is under way, and the next one waits: once no request is left to be read, we may. */
bool sb_handover_ready(void);
/* When we leave in any case (real time). */
int64_t sb_handover_due_ms(void);

#endif
