/* The one process struct of the supervisor, and what every file of it may rely on.
 *
 * The supervisor has one thread. Whatever else runs in its address space (a stage, a sandbox's first
 * process before its exec, the maker of a slot) is a cloned process on a stack of its own that makes
 * raw system calls only (raw.h) and touches nothing but the struct it was given. */
#ifndef SB_SUP_H
#define SB_SUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "fail.h"

enum sb_mode {
    SB_MODE_ROOT,   /* real root: 65,536 ids per sandbox, idmapped layers, cgroups */
    SB_MODE_SUBIDS, /* an ordinary user with sub-ids, inside the namespace S */
    SB_MODE_SINGLE, /* an ordinary user with one id, shown inside as 1000 */
};

/* One line of an id map: `count` ids from `inside` on are `outside`'s of the parent namespace. */
struct sb_idline {
    uint32_t inside, outside, count;
};

struct sb_idmap {
    int n;
    struct sb_idline line[3];
};

/* Lives from main() to exit. Descriptors are close-on-exec and numbered above SB_FD_END (birth.h). */
struct sb_sup {
    enum sb_mode mode;
    int root, v1, boxes, templates, prepared, layers, snapshots, named,
        trash;                            /* directories of the state root */
    int null;                             /* /dev/null, read-write */
    int image;                            /* pid 1's program: sealed memfd, read-only */
    int self;                             /* our own, for relays */
    uid_t owner;                          /* who may connect, as seen from here: always 0 */
    uint32_t sub_uid, sub_gid, sub_count; /* the ranges mapped into S; 0 without */
    char groups[128]; /* single-id form: supplementary groups that stay, "4,27"; "" without any */
    uint64_t linger_ms;
    int64_t clock_offset_ms; /* the test clock: added to CLOCK_BOOTTIME */
    int64_t grace_ms; /* how long after its end, or alone, pid 1 waits for a supervisor to end it */
    char host_boot[40]; /* the machine's boot id */
    char top_name[32];  /* name of our cgroup and of this state root: "sandbar-<hash>" */
    uint64_t root_hash;
    bool leaving;
};

extern struct sb_sup sup;

#define SB_CLEAN(fn) __attribute__((cleanup(fn)))
#define sb_autofd SB_CLEAN(sb_close_at)
#define sb_autofree SB_CLEAN(sb_free_at)

/* util.c */
void sb_close(int *fd); /* closes a valid *fd, sets it to -1 */
void sb_close_at(int *fd);
void sb_free_at(void *p);
int64_t sb_now_ms(void);  /* CLOCK_BOOTTIME plus the test clock: lifetimes, linger */
int64_t sb_real_ms(void); /* CLOCK_BOOTTIME alone: waits for pid 1 */
int64_t sb_wall_ms(void);
void sb_random(void *buf, size_t n);
void sb_uuid(char out[37]);
int sb_write_at(int dir, const char *name, const void *data, size_t n, mode_t mode);
/* The whole file as an allocated, zero-terminated buffer; NULL and errno (EFBIG above `max`). */
char *sb_read_at(int dir, const char *name, size_t max, size_t *n);
/* Calls fn for each entry of a directory. 0, or an errno: not for all. */
int sb_each_name(int dir, void (*fn)(const char *name));
/* openat for descriptors that live long: lifted above SB_FD_END. */
int sb_lift(int fd);
/* An errno that says nothing of what was looked at, but that there is too little to look at it. */
bool sb_lacking(int err);
uint64_t sb_hash(const void *data, size_t n, uint64_t seed);
int sb_put(const char *path, const char *text); /* writes a /proc or cgroup file; 0 or -errno */

/* Identity of a process: pid, inode of its pidfd, start time in clock ticks (0 where the inode is
 * enough). */
struct sb_ident {
    int64_t pid;
    uint64_t inode, start;
};
/* Fills *id for a process whose pidfd is at hand: 0 or -1. */
int sb_ident_of(int pidfd, pid_t pid, struct sb_ident *id);
/* A pidfd of exactly this process, or -1 (ESRCH: gone, or the pid is another's now). */
int sb_ident_open(const struct sb_ident *id);

#endif
