/* Lists of sandboxes, a page at a time. */
#ifndef SB_LISTING_H
#define SB_LISTING_H

#include "box.h"
#include "conn.h"

/* Does it have all labels that the request names? */
bool sb_listing_labels_match(const struct sb_box *b, const struct sb_wire_in *in);
/* SB_S_LIST: 0, it is answered; -1 see *f. */
int sb_listing(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f);

#endif
