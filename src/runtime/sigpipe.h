/* Writing to a pipe that nobody reads raises SIGPIPE, which would kill the program that loaded us. For as long as we
 * write it is blocked in the thread that does; what came of it is taken away again. No part of a program's own settings
 * changes, also not for a moment. */
#ifndef SB_SIGPIPE_H
#define SB_SIGPIPE_H

#include <pthread.h>
#include <signal.h>
#include <time.h>

static inline void sb_sigpipe_hold(sigset_t *old)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &set, old);
}

/* `old` is the mask from before: one that was blocked there is the program's. */
static inline void sb_sigpipe_swallow(const sigset_t *old)
{
    static const struct timespec at_once;
    sigset_t set;
    if (sigismember(old, SIGPIPE))
        return;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    sigtimedwait(&set, NULL, &at_once);
}

#endif
