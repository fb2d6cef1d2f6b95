/* Dissolving a sandbox's mount namespace outside of everybody's way. */
#ifndef SB_DISSOLVE_H
#define SB_DISSOLVE_H

#include <stdbool.h>

/* The mount namespace of the process behind `pidfd`, so that its end does not dissolve it; -1: it will
 * (too many are under way, or an older kernel). For sb_dissolve, which takes -1 as well. */
int sb_dissolve_hold(int pidfd);
/* `slow`: it may take seconds, as a file system does that is synced first. */
void sb_dissolve(int fd, bool slow);
/* One that is held is dropped by somebody else. */
void sb_dissolve_gave(int fd);

#endif
