/* Pid 1 of a sandbox: one thread, one epoll loop, one struct of state.
 *
 * It is inside the boundary: the caller and the supervisor believe nothing it says, and it believes
 * nothing that callers or commands say. It never blocks on either: sends do not wait, files are touched
 * only by workers (file operations) and by the child of a command on its way to execve. */
#ifndef GUEST_GUEST_H
#define GUEST_GUEST_H

#include <stddef.h>
#include <stdint.h>

#include "../engine/proto.h"

enum {
    FD_CONTROL = 3,  /* seqpacket pair to the supervisor, at the start */
    FD_LISTEN = 4,   /* a later supervisor connects here */
    MAX_CONNS = 256, /* caller connections */
    MAX_LEAVES = 64, /* empty leaf groups in stock */
};

/* Something the loop watches. Owned by whoever embeds it; removed before its descriptor is closed,
 * since workers may hold a copy of the descriptor and keep it registered. */
struct watch {
    int fd; /* -1: nothing */
    uint32_t events;
    void (*ready)(struct watch *w, uint32_t events);
};

/* A v2 group that holds one command's tree. Descriptors made by the supervisor: cgroup.procs,
 * cgroup.kill, and the directory, at which a command can be started. -1: none. Once cgroup.kill was
 * written the directory is closed: the kernel (6.18) kills whatever is started there afterwards. */
struct leaf {
    int procs, kill, dir;
    uint64_t number; /* what the supervisor calls it */
};

struct conn;
struct proc;

struct guest {
    int epoll;
    int single; /* this namespace has one id: no user but ours can be taken on */
    uint32_t uid, gid;

    /* from SB_G_INIT */
    int ready;
    uint32_t epoch;
    uint64_t limit_commands;
    uint64_t limit_started, started; /* commands that it may start in all, and has; 0: any number */
    int oom; /* where the kernel counts whom it has killed for memory; -1: memory has no limit */
    int oom_score;        /* ours, to be changed; -1: it stays */
    uint64_t limit_files; /* of a command's process; ours is the machine's. 0: ours */
    char *user, *cwd;     /* NULL: not given */
    char **env;           /* NULL-terminated, "NAME=value" */
    size_t nenv;
    uint64_t clone_at; /* where the filter lets clone3 have its arguments, 0: not any more */

    struct watch control, listener, children, timer;
    struct conn *conns;
    size_t nconns;

    struct leaf leaves[MAX_LEAVES];
    unsigned nleaves;
    enum { LEAVES_NOT, LEAVES_ASKED, LEAVES_AWAITED } leaves_asked;
    int leaves_used; /* there have been leaves: trees are killed by them */
    int leaf_dirs;   /* and with directories: one without is used up */

    /* from SB_G_LIFE, for the case that nobody else ends it; milliseconds of sys_boot_ms */
    uint64_t ends_ms, grace_ms;
    int owned;
    uint64_t alone_ms; /* since when there has been no supervisor; 0: there is one */

    uint32_t stop_req;
    int stopping;          /* SB_G_STOP was received: nothing new is started */
    uint64_t stop_kill_ms; /* when TERM becomes KILL; 0 = done */

    /* From SB_G_FREEZE to SB_G_THAW, see freeze.c. Our clocks stand still meanwhile. */
    enum { FREEZE_NOT, FREEZE_BEGUN, FREEZE_DONE } frozen;
    uint64_t frozen_at, freeze_due; /* sys_now_ms */
    uint32_t freeze_req;
    int freeze_stops; /* processes are stopped by us: there is no group to freeze */

    /* A message being read, and one being written: one at a time each. Only touched pages cost. */
    unsigned char in[SB_MSG_MAX];
    unsigned char out[SB_MSG_MAX];
};

extern struct guest guest;

/* loop.c */
int loop_start(void);
_Noreturn void loop_run(void);
int loop_watch(struct watch *w, int fd, uint32_t events,
               void (*ready)(struct watch *, uint32_t events));
void loop_change(struct watch *w, uint32_t events);
void loop_unwatch(struct watch *w);
/* Calls proc_tick at this time (sys_now_ms) or earlier. */
void loop_wake_at(uint64_t ms);

/* control.c */
void control_adopt(int fd);
void control_need_leaves(void);
void control_await_leaves(void);
void control_stop_check(void);
/* Ends pid 1 if its time is over, else says in how many milliseconds to look again (0: never). */
uint64_t control_life_tick(void);
/* Reads what the supervisor has sent and nobody has looked at yet. */
void control_catch_up(void);
/* An answer to the supervisor, which gets lost if there is none. */
void control_send(const struct sb_packer *p);
void control_reply(uint32_t req);

/* stack.c: gives back the stack that the kernel made for us. */
void stack_leave(const unsigned long *old);

/* memory.c: what a limit of memory means to commands. */
void memory_start(int oom);
uint64_t memory_killed(void); /* how many processes the kernel has killed since the start */
/* Until `on` is 0 again what we start is killed rather than us. */
void memory_expose(int on);

/* usage.c */
void usage_answer(uint32_t req);

/* freeze.c */
void freeze_begin(uint32_t req, uint32_t epoch, uint64_t grace_ms, int stops);
void freeze_check(void); /* a file operation has ended, or time has passed */
void freeze_end(uint32_t epoch);

/* errors.c, for a positive errno: the contract's name of its kind, and words. */
const char *kind_of_errno(int err);
const char *text_of_errno(int err);

#endif
