/* Control groups (v2, no controllers needed): a group per sandbox and leaves for its commands. As
 * root only, where a v2 mount is writable; elsewhere every call is a successful no-op. */
#ifndef SB_CGROUP_H
#define SB_CGROUP_H

#include "sup.h"

/* How many are made with a group, and how many each time that pid 1 runs out: a leaf costs the machine some
 * 10 kB, and most sandboxes run one command at a time. */
enum { SB_LEAVES_FIRST = 2, SB_LEAVES_MORE = 4, SB_LEAVES_MAX = 1024 };

/* The group of one sandbox. `name` empty: there is none. `leaves` counts those ever made. The
 * descriptors in `fd` belong to the supervisor until pid 1 has got them: for each leaf cgroup.procs,
 * cgroup.kill and, where `each` is 3, its directory, at which pid 1 may start a process. */
struct sb_cgroup {
    char name[32];
    int dir;
    int leaves;
    uid_t root; /* the id of root inside, who may start processes in the leaves */
    int fd[3 * SB_LEAVES_MORE];
    int nfds, each;
    int number[SB_LEAVES_MORE]; /* of the leaves in `fd` */
};

bool sb_cgroup_have(void);
/* Finds the v2 mount and moves the supervisor into a group of its own at its root. */
void sb_cgroup_start(void);
void sb_cgroup_leave(void);
/* Without leaves yet; 0 or -1 and errno. */
int sb_cgroup_make(struct sb_cgroup *g, uid_t root);
/* More leaves in `fd`, at first those whose `n` numbers pid 1 gives back: removed and made anew. */
int sb_cgroup_more(struct sb_cgroup *g, const int *back, int n);
void sb_cgroup_handed(struct sb_cgroup *g); /* closes what is in `fd` */
/* An existing one, after a restart. */
int sb_cgroup_open(struct sb_cgroup *g, const char *name, uid_t root);
/* Freezes or thaws everything in it. What was told to stand does so a little later: then `events` (the
 * caller's) reports EPOLLPRI, and `stands` says so. */
int sb_cgroup_freeze(struct sb_cgroup *g, bool on);
int sb_cgroup_events(const struct sb_cgroup *g);
bool sb_cgroup_stands(int events);
/* Processor time of all that was ever in it; -1: there is no such group. */
int64_t sb_cgroup_cpu_us(const struct sb_cgroup *g);
/* Removes it now or, while the kernel is still emptying it, at a later sb_cgroup_sweep. */
void sb_cgroup_remove(struct sb_cgroup *g);
/* Removes what is left of removed groups; with `kept`, kills and removes every group of this state
 * root for which kept(name) is false. */
void sb_cgroup_sweep(bool (*kept)(const char *name));
bool sb_cgroup_unswept(void);
/* Removes the groups of other state roots that hold no process and that no supervisor uses: their roots
 * may be gone, and with them everybody who would. */
void sb_cgroup_sweep_deserted(void);
/* Turns a controller on for the groups of sandboxes: whether they have this file of it then. */
bool sb_cgroup_control(const char *controller, const char *file);

/* For hierarchies of v1, see limits.c: a group of this state root's below `root`, locked as ours; its end; the empty
 * groups in it; and those of other state roots that nobody uses. */
int sb_cgroup_take_top(int root);
void sb_cgroup_give_top(int root, int *top);
void sb_cgroup_sweep_left(int top);
void sb_cgroup_sweep_others(int root);

#endif
