/* The heap of timers of the I/O thread; everything here is [io]. Setting and clearing are in
 * loop.h. */
#ifndef SB_TIMER_H
#define SB_TIMER_H

#include "loop.h"

uint64_t sb_timers_next(void); /* SB_NEVER: none */
void sb_timers_fire(uint64_t now);
void sb_timers_forget(void); /* in a forked child */

#endif
