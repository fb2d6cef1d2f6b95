/* Limits of a sandbox's memory and processor time, by the controllers of control groups. As root only. */
#ifndef SB_LIMITS_H
#define SB_LIMITS_H

#include "cgroup.h"
#include "record.h"

enum sb_bound { SB_BOUND_MEMORY, SB_BOUND_CPU, SB_BOUNDS };

/* The groups in which they hold, of one sandbox; -1: it has no such limit. With v1 groups of their own, one a
 * hierarchy, called `name`; with v2 that of the sandbox, and no name. */
struct sb_limits {
    int dir[SB_BOUNDS];
    char name[20];
};

/* Whether this machine can; tried out when it is first asked for. */
bool sb_limits_can(enum sb_bound what);
/* -1: the record asks for what this machine cannot. */
int sb_limits_check(const struct sb_record *r, struct sb_failure *f);
/* Groups with the record's limits. On failure nothing is left of them. */
int sb_limits_make(struct sb_limits *l, const struct sb_record *r, const struct sb_cgroup *g,
                   struct sb_failure *f);
/* Those of a process that an earlier supervisor started. */
void sb_limits_open(struct sb_limits *l, const struct sb_record *r, const struct sb_cgroup *g);
/* What pid 1 writes itself into (v1), and where the kernel counts whom it has killed for want of memory; how many
 * descriptors that is, the first `*joins` of the former kind, `*oom` of the latter. -1 and errno. */
int sb_limits_hand(const struct sb_limits *l, int fd[SB_BOUNDS + 1], int *joins, int *oom);
/* How many processes in it the kernel has killed for want of memory; 0 without a limit. */
uint64_t sb_limits_killed(const struct sb_limits *l);
/* Bytes in it, without files that the kernel may drop at any time; -1: it has no limit. */
int64_t sb_limits_memory(const struct sb_limits *l);
/* Nothing is in them any more: removed now, or at a later sweep. */
void sb_limits_drop(struct sb_limits *l);
bool sb_limits_unswept(void);
void sb_limits_sweep(void);
void sb_limits_leave(void);

#endif
