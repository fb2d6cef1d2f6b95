/* Control groups (v2, no controllers needed): a group per sandbox and leaves for its commands. As
 * root only, where a v2 mount is writable; elsewhere every call is a successful no-op. */
#ifndef SB_CGROUP_H
#define SB_CGROUP_H

#include "sup.h"

enum { SB_LEAVES_FIRST = 4, SB_LEAVES_MAX = 1024 };

/* The group of one sandbox. `name` empty: there is none. `leaves` counts those ever made. The pairs
 * in `pair` (cgroup.procs, cgroup.kill) belong to the supervisor until pid 1 has got them. */
struct sb_cgroup {
    char name[32];
    int dir;
    int leaves;
    int pair[2 * SB_LEAVES_FIRST];
    int npair;
};

bool sb_cgroup_have(void);
/* Finds the v2 mount and moves the supervisor into a group of its own at its root. */
void sb_cgroup_start(void);
void sb_cgroup_leave(void);
int sb_cgroup_make(struct sb_cgroup *g); /* with the first leaves; 0 or -1 and errno */
int sb_cgroup_more(struct sb_cgroup *g); /* SB_LEAVES_FIRST more leaves in `pair` */
void sb_cgroup_unpair(struct sb_cgroup *g);
int sb_cgroup_open(struct sb_cgroup *g, const char *name); /* an existing one, after a restart */
/* Removes it now or, while the kernel is still emptying it, at a later sb_cgroup_sweep. */
void sb_cgroup_remove(struct sb_cgroup *g);
/* Removes what is left of removed groups; with `kept`, kills and removes every group of this state
 * root for which kept(name) is false. */
void sb_cgroup_sweep(bool (*kept)(const char *name));
bool sb_cgroup_unswept(void);

#endif
