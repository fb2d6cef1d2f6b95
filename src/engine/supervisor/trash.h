/* Removal of directories, out of everybody's way. */
#ifndef SB_TRASH_H
#define SB_TRASH_H

#include "sup.h"

/* Renames dir/name into the trash under a fresh name: gone for everybody at once. 0 or -1. */
int sb_trash_put(int dir, const char *name);
bool sb_trash_wanted(void); /* there is something, and nobody removes it yet */
int64_t sb_trash_due_ms(void);
bool sb_trash_busy(void);   /* there is something, or it is being removed */
void sb_trash_finish(void); /* once more, for a moment: the supervisor is leaving */
void sb_trash_start(void);  /* starts a niced process that empties the trash */

#endif
