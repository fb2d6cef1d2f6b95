/* One child on its way to execve. */
#ifndef GUEST_SPAWN_H
#define GUEST_SPAWN_H

#include <stddef.h>
#include <stdint.h>

struct leaf;

enum { ENV_SPARE = 7 }; /* HOME USER LOGNAME PATH SHELL TERM and the NULL */

enum spawn_step {
    STEP_NONE,
    STEP_CGROUP,
    STEP_USER,
    STEP_STDIO,
    STEP_TERMINAL,
    STEP_LIMIT,
    STEP_IDS,
    STEP_CWD,
    STEP_EXECVE,
};

/* Shared between parent and child, which live in one address space until execve. */
struct launch {
    char **argv, **env; /* env: nenv entries, and ENV_SPARE slots for the child */
    size_t nenv;
    int clean;               /* no defaults in env */
    const char *user, *cwd;  /* cwd NULL: the home, or "/" */
    int in, out, err;        /* -1: as ours, which is /dev/null */
    int terminal;            /* -1: none; else it is its terminal, and all three */
    const struct leaf *leaf; /* where it belongs; may be none */
    int inside;              /* it is there from its first moment on */
    uint64_t mark;           /* without a leaf: see tree.c */
    /* what went wrong, by the child */
    enum spawn_step step;
    int error;
};

/* The pid, or a negative errno when there is no child at all. Until spawn_end the child may be running in
 * our memory: all that *l names, the message it came with and guest.out are its own, and there is no
 * second one. Descriptors are copied already. */
int spawn_begin(struct launch *l);
/* Waits until it has left. With step set it has failed and is reaped already. */
void spawn_end(struct launch *l, int pid);

const char *spawn_step_name(enum spawn_step step);

/* The value of a variable in a NULL-terminated environment, or NULL. */
const char *env_value(char *const *env, const char *name);

#endif
