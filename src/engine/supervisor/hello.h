/* What a supervisor says of itself to those who greet it. */
#ifndef SB_HELLO_H
#define SB_HELLO_H

#include "conn.h"

/* SB_S_HELLO: 0, it is answered; -1 see *f. */
int sb_hello(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f);

#endif
