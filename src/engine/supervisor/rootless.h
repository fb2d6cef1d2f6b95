/* The namespace S that an ordinary user's supervisor lives in. */
#ifndef SB_ROOTLESS_H
#define SB_ROOTLESS_H

#include "sup.h"

/* Enters the S of living sandboxes of this state root, or a new one; sets sup.mode and sup.sub_*. */
int sb_rootless_enter(struct sb_failure *f);

#endif
