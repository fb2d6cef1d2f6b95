/* Sockets of a sandbox's network: made by a short-lived process in our memory that goes there. The
 * supervisor itself never leaves its network: rootless there would be no way back. */
#include "sockets.h"

#include <errno.h>
#include <linux/sched.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "birth.h"
#include "raw.h"
#include "sup.h"

struct job {
    int pidfd, fd[2];
    int err;
};

static int make(void *arg)
{
    struct job *j = arg;
    static const int family[2] = {AF_INET, AF_INET6};
    long rc = sb_sys(setns, j->pidfd, CLONE_NEWNET);
    for (int i = 0; rc >= 0 && i < 2; i++) {
        rc = sb_sys(socket, family[i], SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (rc >= 0)
            j->fd[i] = (int)rc;
        else if (rc == -EAFNOSUPPORT && i == 1)
            rc = 0;
    }
    j->err = rc < 0 ? (int)-rc : 0;
    return rc < 0;
}

int sb_sockets_make(int pidfd, int fd[2], struct sb_failure *f)
{
    static char stack[SB_STACK] __attribute__((aligned(16)));
    struct job j = {pidfd, {-1, -1}, EINTR};
    struct clone_args args = {
        .flags = CLONE_VM | CLONE_VFORK | CLONE_FILES | CLONE_CLEAR_SIGHAND,
        .stack = (uint64_t)(uintptr_t)stack,
        .stack_size = sizeof stack,
    };
    long pid = sb_raw_clone3(&args, sizeof args, make, &j);
    if (pid < 0)
        j.err = (int)-pid;
    else
        while (waitid(P_PID, (id_t)pid, &(siginfo_t){0}, WEXITED | __WALL) < 0 && errno == EINTR)
            ;
    if (j.err == 0) {
        fd[0] = j.fd[0];
        fd[1] = j.fd[1];
        return 0;
    }
    sb_close(&j.fd[0]);
    sb_close(&j.fd[1]);
    return sb_failed(f, j.err == ESRCH ? "NotRunning" : NULL, j.err, "socket",
                     "cannot enter the sandbox's network");
}
