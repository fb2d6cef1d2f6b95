/* Dissolving mount namespaces. The kernel waits for all processors several times when it dissolves one
 * with overlays in it, some 0.5 ms, and whoever drops the last reference waits along: pid 1, whose end
 * is what destroy waits for. So destroy takes a reference, and once it is answered that is dropped by
 * a process that has nothing else to do. Its waits are bounded by the kernel's; there are at most
 * DISSOLVERS of them, and namespaces held for them: what comes beyond is dissolved by its own pid 1. */
#include "dissolve.h"

#include <errno.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "job.h"
#include "loop.h"
#include "raw.h"
#include "sup.h"

#ifndef PIDFD_GET_MNT_NAMESPACE /* Linux 6.11 */
#define PIDFD_GET_MNT_NAMESPACE _IO(0xFF, 3)
#endif

enum { DISSOLVERS = 8, STACK = 4096 };

struct dissolver {
    struct sb_source proc; /* its pidfd; -1: none runs */
    volatile int fd;       /* -1: it is up to the dissolver to close it */
    bool alone;
    volatile int go; /* futex: our own copy of fd is closed */
    char stack[STACK] __attribute__((aligned(16)));
};

static struct {
    struct dissolver each[DISSOLVERS];
    int held, running;
} all = {.each = {[0 ... DISSOLVERS - 1] = {.proc = {.fd = -1}}}};

int sb_dissolve_hold(int pidfd)
{
    if (all.held + all.running >= DISSOLVERS)
        return -1;
    int fd = sb_lift(ioctl(pidfd, PIDFD_GET_MNT_NAMESPACE, 0));
    if (fd >= 0)
        all.held++;
    return fd;
}

/* Raw. With the supervisor's descriptors: to copy and close them all took 2 ms where a thousand sandboxes were alive.
 * But as long as it has them the supervisor's end goes unnoticed; so one that may take long lets them go at once. */
static int dissolver_main(void *arg)
{
    struct dissolver *d = arg;
    struct timespec limit = {5, 0};
    const int fd = d->fd;
    d->fd = -1;
    if (!d->alone) {
        sb_sys(close, fd);
        return 0;
    }
    sb_sys(close_range, 0, fd - 1, 0);
    sb_sys(close_range, fd + 1, ~0U, 0);
    while (d->go == 0)
        if (sb_sys(futex, &d->go, FUTEX_WAIT_PRIVATE, 0, &limit) == -ETIMEDOUT)
            break;
    sb_sys(close, fd);
    return 0;
}

/* Killed before it came to it: then we close what was its to close. */
static void check(const struct dissolver *d)
{
    int left = d->alone ? -1 : d->fd;
    sb_close(&left);
}

static void dissolved(struct sb_source *src, uint32_t events)
{
    (void)events;
    sb_job_end(src, NULL);
    check(SB_OWNER(src, struct dissolver, proc));
    all.running--;
}

void sb_dissolve_gave(int fd)
{
    all.held -= fd >= 0;
}

void sb_dissolve(int fd, bool slow)
{
    struct dissolver *d = all.each;
    if (fd < 0)
        return;
    all.held--;
    while (d->proc.fd >= 0)
        d++; /* one is free: no more are held than there are */
    int pidfd = -1;
    struct clone_args args = {
        .flags = CLONE_VM | CLONE_PIDFD | CLONE_CLEAR_SIGHAND | (slow ? 0 : CLONE_FILES),
        .pidfd = (uint64_t)(uintptr_t)&pidfd,
        .stack = (uint64_t)(uintptr_t)d->stack,
        .stack_size = sizeof d->stack,
    };
    d->fd = fd;
    d->alone = slow;
    d->go = 0;
    long pid = sb_raw_clone3(&args, sizeof args, dissolver_main, d);
    if (slow || pid < 0)
        sb_close(&fd);
    if (pid < 0)
        return;
    d->go = 1;
    sb_sys(futex, &d->go, FUTEX_WAKE_PRIVATE, 1);
    if (sb_loop_add(&d->proc, sb_lift(pidfd), EPOLLIN, dissolved) == 0) {
        all.running++;
        return;
    }
    waitpid((pid_t)pid, NULL, __WALL);
    check(d);
}
