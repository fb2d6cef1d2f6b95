/* Cloning a sandbox's first process, from the stage to the exec of pid 1. */
#ifndef SB_BIRTH_H
#define SB_BIRTH_H

#include "mounts.h"
#include "sup.h"

/* Fixed numbers of what the next child takes along. The supervisor keeps all numbers below SB_FD_END
 * occupied, so that everything else lies above and one close_range leaves a child with just these. */
enum {
    SB_FD_STATUS = 3, /* start protocol; free afterwards */
    SB_FD_ROOT = 10,
    SB_FD_DEV,
    SB_FD_BOOT_ID,
    SB_FD_CONTROL,
    SB_FD_LISTEN,
    SB_FD_IMAGE,
    SB_FD_NOTE,
    SB_FD_TREE, /* SB_TREES_MAX of them */
    SB_FD_END = SB_FD_TREE + SB_TREES_MAX,
};

enum { SB_STACK = 16384 };

/* What <id>/birth holds: the process that is about to be pid 1. The stage writes it before the child
 * may go on, so that whoever finds a sandbox without a record knows what to kill. */
struct sb_note {
    char magic[8]; /* "SBBIRTH1" */
    char host_boot[40];
    int64_t pid;
    uint64_t inode;
};

/* Shared between the supervisor, the stage and the child until the child's exec; one per create under
 * way, reused. The supervisor fills the first part and may read the second once its pidfd reports or
 * pid 1 has said hello. */
struct sb_birth {
    struct sb_birth *next; /* in the list of free ones */

    int user, net, cgroup; /* descriptors of the slot; cgroup -1: none */
    const struct sb_idmap *map;
    const char *tree[SB_TREES_MAX];
    int trees;
    uint64_t processes; /* limit */
    bool allow_setuid, single;
    const char *hostname;
    char shm[24]; /* the size of /dev/shm */
    struct sb_note note;
    uint64_t clone_at; /* chosen by sb_birth_start: where pid 1 may have the arguments of clone3 */
    void *filter;      /* the program with that address in it */

    const char *volatile step;
    volatile int err;
    volatile int go; /* futex: 1 the maps are written, -1 give up */
    int pidfd;
    pid_t pid;
    char stack[SB_STACK] __attribute__((aligned(16)));
};

struct sb_birth *sb_birth_take(void); /* NULL: no memory */
void sb_birth_give(struct sb_birth *b);
/* Clones the child with the descriptors at their fixed numbers. 0 with pid and pidfd (which is the
 * caller's then); -1: nothing is left of it, b->step and b->err say why. */
int sb_birth_start(struct sb_birth *b);

#endif
