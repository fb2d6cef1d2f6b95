/* Starts relays' processes and takes them in. */
#include "relays.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "birth.h"
#include "loop.h"
#include "raw.h"

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

extern const unsigned char sb_bytes_tlsrelay[], sb_bytes_tlsrelay_end[];

enum { FIRST = 3 };

struct start {
    const char *name, *arg;
    int image;
    const int *fd;
    int n;
    volatile int err;
};

static int run(void *of)
{
    struct start *s = of;
    const char *const argv[] = {s->name, s->arg, NULL};
    const char *const envp[] = {NULL};
    const int end = FIRST + s->n;
    long rc = sb_sys(setsid, 0);
    /* All that are given lie above all numbers they are to have, as does the program. */
    for (int i = 0; rc >= 0 && i < s->n; i++)
        rc = s->fd[i] >= 0 ? sb_sys(dup3, s->fd[i], FIRST + i, 0) : sb_sys(close, FIRST + i) * 0;
    if (rc >= 0)
        rc = sb_sys(dup3, s->image, end, O_CLOEXEC);
    if (rc >= 0)
        rc = sb_sys(close_range, end + 1, ~0U, 0);
    if (rc >= 0)
        rc = sb_sys(execveat, end, "", argv, envp, AT_EMPTY_PATH);
    s->err = (int)-rc;
    return 1;
}

int sb_relay_spawn(const char *name, int image, const char *arg, const int *fd, int n)
{
    static char stack[SB_STACK] __attribute__((aligned(16)));
    int pidfd = -1;
    struct start s = {name, arg, image, fd, n, 0};
    struct clone_args args = {
        .flags = CLONE_VM | CLONE_VFORK | CLONE_CLEAR_SIGHAND | CLONE_PIDFD,
        .pidfd = (uint64_t)(uintptr_t)&pidfd,
        .stack = (uint64_t)(uintptr_t)stack,
        .stack_size = sizeof stack,
    };
    long pid = sb_raw_clone3(&args, sizeof args, run, &s);
    if (pid < 0) {
        errno = (int)-pid;
        return -1;
    }
    if (s.err == 0)
        return pidfd;
    while (waitid(P_PIDFD, (id_t)pidfd, &(siginfo_t){0}, WEXITED | __WALL) < 0 && errno == EINTR)
        ;
    close(pidfd);
    errno = s.err;
    return -1;
}

static void reap(struct sb_source *src, uint32_t events)
{
    (void)events;
    waitid(P_PIDFD, (id_t)src->fd, &(siginfo_t){0}, WEXITED | WNOHANG | __WALL);
    sb_loop_drop(src);
    sb_loop_bury(src);
}

void sb_relay_reap(int pidfd)
{
    struct sb_source *dying = calloc(1, sizeof *dying);
    if (dying == NULL)
        close(pidfd);
    else if (sb_loop_add(dying, pidfd, EPOLLIN, reap) < 0)
        free(dying); /* a zombie stays until we end */
}

/* The program, carried in ours; -1 and errno. Written once. */
static int image(void)
{
    static int fd = -1;
    const unsigned char *at = sb_bytes_tlsrelay;
    if (fd >= 0)
        return fd;
    sb_autofd int made = memfd_create("sandbar-tls", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_EXEC);
    if (made < 0 && errno == EINVAL) /* kernels before MFD_EXEC */
        made = memfd_create("sandbar-tls", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    while (made >= 0 && at < sb_bytes_tlsrelay_end) {
        ssize_t n = write(made, at, (size_t)(sb_bytes_tlsrelay_end - at));
        if (n <= 0)
            return -1;
        at += n;
    }
    if (made < 0 ||
        fcntl(made, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0)
        return -1;
    /* A program that is open for writing is not run. */
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", made);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd;
}

int sb_tlsrelay_start(const char *id)
{
    int pair[2], program = image();
    if (program < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -1;
    int pidfd = sb_relay_spawn("sandbar-tls", program, id, &pair[1], 1);
    close(pair[1]);
    if (pidfd < 0) {
        close(pair[0]);
        return -1;
    }
    sb_relay_reap(pidfd);
    return pair[0];
}

bool sb_tlsrelay_works(void)
{
    static enum { UNKNOWN, WORKS, FAILS } state;
    siginfo_t end = {.si_status = 1};
    if (state != UNKNOWN)
        return state == WORKS;
    int program = image();
    int pidfd = program >= 0 ? sb_relay_spawn("sandbar-tls", program, "check", NULL, 0) : -1;
    state = FAILS;
    if (pidfd < 0)
        return false;
    while (waitid(P_PIDFD, (id_t)pidfd, &end, WEXITED | __WALL) < 0 && errno == EINTR)
        ;
    close(pidfd);
    state = end.si_code == CLD_EXITED && end.si_status == 0 ? WORKS : FAILS;
    return state == WORKS;
}
