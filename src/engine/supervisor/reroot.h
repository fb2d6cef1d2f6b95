/* Another root below a pid 1 that waits for its set-up. */
#ifndef SB_REROOT_H
#define SB_REROOT_H

#include "box.h"

/* The sandbox's own layers and template take the place of what its pid 1, a spare, was started on; the directory is
 * <root>/v1/s/<id>. -1 and *f: the pid 1 is of no use any more. */
int sb_reroot(struct sb_box *b, struct sb_failure *f);

#endif
