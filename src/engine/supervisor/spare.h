/* Spares: sandboxes of the base template whose pid 1 has been started ahead of need and waits for its
 * set-up. A create that asks for nothing special takes one: a rename and two messages. */
#ifndef SB_SPARE_H
#define SB_SPARE_H

#include "box.h"

/* How many there are: usually, and at most. A burst of creates that finds none ready doubles the number,
 * for the next one; those beyond the usual end when they were not needed for a minute. Each costs the
 * machine some 280 kB. */
enum { SB_SPARES = 4, SB_SPARES_MAX = 32, SB_SPARES_LOW = 1 };

/* A spare is an entry of the table with `spare` set, state creating and "." before the name of its
 * directory below <root>/v1/p as its id: no request can name it. */
bool sb_spare_wanted(void);
bool sb_spare_low(void); /* the next creates may find none */
bool sb_spare_surplus(void);
int64_t sb_spare_due_ms(void); /* when a failed one is tried again, or a surplus ends */
void sb_spare_make(void);
void sb_spare_shed(void);              /* ends one */
int sb_spare_count(void);              /* of those that are ready */
void sb_spare_ready(struct sb_box *b); /* its pid 1 said hello */
void sb_spare_ended(struct sb_box *b); /* its pid 1 is gone: nothing stays */
void sb_spare_drain(void);             /* ends all, waits for it */

/* Makes `b`, a create's new entry, of a spare: 1; 0: none, or none that fits; -1: see *f, and nothing
 * stays. */
int sb_spare_use(struct sb_box *b, struct sb_failure *f);
/* The same for one that is paused without memory: 1 or 0. What fails now is answered when pid 1 has ended. */
int sb_spare_resume(struct sb_box *b);

#endif
