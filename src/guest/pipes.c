/* Pipes for commands.
 *
 * Two for output are made ahead, once an answer is out: making one takes several system calls, which the
 * next asker would wait for. Nobody inside gets at them before their command starts. */
#include "pipes.h"

#include "sys.h"

enum { AHEAD = 2 };

static int ahead[AHEAD][2];
static unsigned nahead;

int pipe_make(int fd[2], int ours)
{
    long r = SYS2(__NR_pipe2, fd, O_CLOEXEC);
    if (r < 0) {
        fd[0] = fd[1] = -1;
        return (int)r;
    }
    if (ours >= 0)
        sys_fcntl(fd[ours], F_SETFL, O_NONBLOCK | (ours == 1 ? O_WRONLY : O_RDONLY));
    return 0;
}

int pipe_make_output(int fd[2])
{
    if (nahead == 0)
        return pipe_make(fd, 0);
    nahead--;
    fd[0] = ahead[nahead][0];
    fd[1] = ahead[nahead][1];
    return 0;
}

void pipe_enlarge(int fd)
{
    sys_fcntl(fd, F_SETPIPE_SZ, SB_PIPE_BYTES);
}

void pipes_prepare(void)
{
    while (nahead < AHEAD && pipe_make(ahead[nahead], 0) == 0)
        nahead++;
}

void pipes_drop(void)
{
    while (nahead > 0) {
        nahead--;
        sys_close(ahead[nahead][0]);
        sys_close(ahead[nahead][1]);
    }
}
