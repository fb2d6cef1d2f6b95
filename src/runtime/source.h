/* Between source.c and the loop, which alone drives it. Adding and removing sources is in loop.h. */
#ifndef SB_SOURCE_H
#define SB_SOURCE_H

#include <signal.h>

#include "loop.h"

/* Before there is a driver. `wake_fd`, edge-triggered and never read, ends a wait. 0, or -1 and errno. */
int sb_sources_open(int wake_fd);
void sb_sources_close(void); /* idempotent */

enum sb_turn {
    SB_TURN_WORK,   /* something happened, or the time is over */
    SB_TURN_WOKEN,  /* by wake_fd, and nothing else happened */
    SB_TURN_SIGNAL, /* a signal that `mask` lets in was handled */
};
/* [io] Waits at most `ns`, SB_NEVER: for ever, then tells the sources. Meanwhile the signals of `mask` are
 * blocked instead of the thread's, unless it is NULL. */
enum sb_turn sb_sources_turn(uint64_t ns, const sigset_t *mask);

/* As those in internal.h. The child has no sources, and their descriptors are closed. */
void sb_sources_fork_lock(void);
void sb_sources_fork_unlock(void);
void sb_sources_fork_child(void);

#endif
