/* The request for a new sandbox, checked before anything is allocated. */
#ifndef SB_CREATE_H
#define SB_CREATE_H

#include "box.h"
#include "wire.h"

#define SB_LIFETIME_MAX_MS (10ull * 365 * 86400 * 1000)

/* The usual limits. */
void sb_create_defaults(struct sb_record *r);

/* A new entry of the table, with its record and environment filled in. NULL: see *f. */
struct sb_box *sb_create_parse(const struct sb_wire_in *in, struct sb_failure *f);

#endif
