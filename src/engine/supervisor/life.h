/* Time: what ends when, and when the supervisor itself leaves. */
#ifndef SB_LIFE_H
#define SB_LIFE_H

#include "sup.h"

/* Does everything that is due and returns when (CLOCK_BOOTTIME, real) the next thing will be. */
int64_t sb_life_tick(void);
void sb_life_clock_moved(void); /* the test clock */
bool sb_life_answering(void);   /* a create waits for its pid 1, as of the last tick */

#endif
