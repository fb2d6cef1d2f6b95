/* Pauses that keep memory: a sandbox's processes stand where they are until it is resumed. */
#ifndef SB_FREEZE_H
#define SB_FREEZE_H

#include "box.h"

/* Begins one of a running sandbox; the waiters are answered when all stands, or when it turns out that it
 * cannot be done: then the sandbox goes on running. -1 and *f: not begun. */
int sb_freeze_begin(struct sb_box *b, struct sb_failure *f);
void sb_freeze_answered(struct sb_box *b); /* pid 1 begins nothing any more */
/* It did not come to be: the sandbox goes on, `f` is the answer (kind and words). */
void sb_freeze_undo(struct sb_box *b, const struct sb_failure *f);
void sb_freeze_late(struct sb_box *b); /* it takes too long */
/* A frozen one goes on, as its record says from then on; answers those who wait for that. -1 and *f: the record
 * cannot be written, and it stays paused. */
int sb_freeze_thaw(struct sb_box *b, struct sb_failure *f);
/* The snapshot is taken for which it stood: it runs on, or is resumed if somebody has asked for that. */
void sb_freeze_copied(struct sb_box *b);
void sb_freeze_go_on(struct sb_box *b); /* what is done to it, and nothing else */
/* Only the group, whatever the record says: after a supervisor that died between the two. */
void sb_freeze_loosen(struct sb_box *b);

#endif
