/* Waiting for the disk. The process that does it shares the supervisor's memory, so that starting it copies none,
 * and has a descriptor table of its own, so that it keeps no lock and no socket of a supervisor that is killed. If
 * there is a mount namespace to dissolve, a second one does that: one waits for the disk, the other for the processors,
 * and whoever has been told that a sandbox is paused may mount its files again. */
#include "sync.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "birth.h"
#include "job.h"
#include "raw.h"
#include "slot.h"
#include "sup.h"

enum { STACK = 4096 };

/* The supervisor's until the start, both processes' until their end. */
struct sb_sync {
    int dir, mounts;
    bool used;
    volatile int go; /* futex: the supervisor's own copies are closed */
    struct clone_args second;
    char stack[2][STACK] __attribute__((aligned(16)));
};

/* What needs no disk. */
static int tidy(void *arg)
{
    const struct sb_sync *s = arg;
    if (s->used)
        sb_slot_clean_works(s->dir); /* so that no resume has to */
    if (s->mounts >= 0)
        sb_sys(close, s->mounts);
    return 0;
}

static void close_all_but(int a, int b)
{
    int low = a < b ? a : b, high = a < b ? b : a;
    if (low < 0)
        low = high;
    if (low > 0)
        sb_sys(close_range, 0, low - 1, 0);
    if (high - low > 1)
        sb_sys(close_range, low + 1, high - 1, 0);
    sb_sys(close_range, high + 1, ~0U, 0);
}

static int sync_main(void *arg)
{
    struct sb_sync *s = arg;
    struct timespec limit = {5, 0};
    long second = -1;
    close_all_but(s->dir, s->mounts);
    while (s->mounts >= 0 && s->go == 0)
        if (sb_sys(futex, &s->go, FUTEX_WAIT_PRIVATE, 0, &limit) == -ETIMEDOUT)
            break;
    if (s->mounts >= 0)
        second = sb_raw_clone3(&s->second, sizeof s->second, tidy, s);
    long rc = sb_sys(syncfs, s->dir);
    if (second < 0)
        tidy(s);
    while (second > 0 && sb_sys(wait4, second, 0, __WALL, 0) == -EINTR)
        ;
    return rc < 0 ? (int)-rc : 0;
}

struct sb_sync *sb_sync_start(int dir, bool used, int mounts, struct sb_source *src,
                              void (*ready)(struct sb_source *, uint32_t))
{
    struct sb_sync *s = calloc(1, sizeof *s);
    int pidfd = -1, copy = -1;
    long pid = -1;
    if (s != NULL)
        copy = fcntl(dir, F_DUPFD_CLOEXEC, SB_FD_END);
    if (copy >= 0) {
        s->dir = copy;
        s->mounts = mounts;
        s->used = used;
        struct clone_args args = {
            .flags = CLONE_VM | CLONE_PIDFD | CLONE_CLEAR_SIGHAND,
            .pidfd = (uint64_t)(uintptr_t)&pidfd,
            .stack = (uint64_t)(uintptr_t)s->stack[0],
            .stack_size = STACK,
        };
        s->second = (struct clone_args){
            .flags = CLONE_VM | CLONE_FILES,
            .stack = (uint64_t)(uintptr_t)s->stack[1],
            .stack_size = STACK,
        };
        pid = sb_raw_clone3(&args, sizeof args, sync_main, s);
        if (pid < 0)
            errno = (int)-pid;
    }
    sb_close(&copy);
    sb_close(&mounts);
    if (pid > 0) {
        s->go = 1;
        sb_sys(futex, &s->go, FUTEX_WAKE_PRIVATE, 1);
        if (sb_loop_add(src, sb_lift(pidfd), EPOLLIN, ready) == 0)
            return s;
        while (waitpid((pid_t)pid, NULL, __WALL) < 0 && errno == EINTR)
            ; /* it is on its stack in `s` until then */
        errno = ENOMEM;
    }
    free(s);
    return NULL;
}

int sb_sync_end(struct sb_sync **s, struct sb_source *src)
{
    int err = sb_job_end(src, NULL);
    if (err != EINTR) /* else by a stranger, and the second one may live: its memory stays */
        free(*s);
    *s = NULL;
    return err;
}
