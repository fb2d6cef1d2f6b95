#include "job.h"

#include <errno.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/wait.h>

#include "sup.h"

int sb_job_watch(struct sb_source *src, pid_t pid, void (*ended)(struct sb_source *, uint32_t))
{
    int fd = pid < 0 ? -1 : sb_lift(pidfd_open(pid, 0));
    if (fd >= 0 && sb_loop_add(src, fd, EPOLLIN, ended) == 0)
        return 0;
    int err = errno;
    if (pid > 0) {
        kill(pid, SIGKILL); /* our child, not reaped: the pid is still its own */
        waitpid(pid, NULL, 0);
    }
    errno = err;
    return -1;
}

int sb_job_end(struct sb_source *src, pid_t *pid)
{
    siginfo_t info = {0};
    waitid(P_PIDFD, (id_t)src->fd, &info, WEXITED | __WALL);
    sb_loop_drop(src);
    if (pid != NULL)
        *pid = info.si_pid;
    return info.si_code == CLD_EXITED ? info.si_status : EINTR;
}
