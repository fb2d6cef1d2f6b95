/* What takes long is done by a process of our own, which is watched until it ends. */
#ifndef SB_JOB_H
#define SB_JOB_H

#include <sys/types.h>

#include "loop.h"

/* `ended` is called once it has. What fork said is passed on: -1 and errno then, and also where it cannot be watched,
 * which ends it. */
int sb_job_watch(struct sb_source *src, pid_t pid, void (*ended)(struct sb_source *, uint32_t));
/* For `ended`: buries it and forgets `src`. The errno it ended with; 0: none. *pid may be asked for (NULL: not). */
int sb_job_end(struct sb_source *src, pid_t *pid);

#endif
