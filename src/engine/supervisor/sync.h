/* A sync, by a process of its own. */
#ifndef SB_SYNC_H
#define SB_SYNC_H

#include <stdbool.h>
#include <stdint.h>

#include "loop.h"

struct sb_sync;

/* Begins to sync the file system that `dir` is on, and meanwhile to clean the works of `dir`, if it is a sandbox's that
 * has been `used`, and to drop `mounts` (see dissolve.h; -1: nothing), which is taken over. `ready` is called when all
 * is done, and calls sb_sync_end. NULL: see errno; nothing was begun, and `mounts` is closed. Nobody may kill that
 * process: the second one would outlive its memory. */
struct sb_sync *sb_sync_start(int dir, bool used, int mounts, struct sb_source *src,
                              void (*ready)(struct sb_source *, uint32_t));
/* Of the process behind `src`, which may also be one that was begun in another way (NULL). 0: all is on the disk. Else
 * an errno. */
int sb_sync_end(struct sb_sync **s, struct sb_source *src);

#endif
