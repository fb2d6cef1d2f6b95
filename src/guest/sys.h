/* Raw system calls: each returns what the kernel returns, a negative errno on failure. Only calls that
 * both machines have; no C library, no errno variable. */
#ifndef GUEST_SYS_H
#define GUEST_SYS_H

#include <stddef.h>
#include <stdint.h>

#include <asm/errno.h>
#include <asm/unistd.h>
#include <linux/sched.h>
#include <linux/stat.h>

#include "arch.h"

#define SYS0(n) sys_call(n, 0, 0, 0, 0, 0, 0)
#define SYS1(n, a) sys_call(n, (long)(a), 0, 0, 0, 0, 0)
#define SYS2(n, a, b) sys_call(n, (long)(a), (long)(b), 0, 0, 0, 0)
#define SYS3(n, a, b, c) sys_call(n, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define SYS4(n, a, b, c, d) sys_call(n, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define SYS5(n, a, b, c, d, e) sys_call(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)
#define SYS6(n, a, b, c, d, e, f) \
    sys_call(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

enum {
    O_RDONLY = 0,
    O_WRONLY = 1,
    O_RDWR = 2,
    O_ACCMODE = 3,
    O_CREAT = 0100,
    O_EXCL = 0200,
    O_NOCTTY = 0400,
    O_TRUNC = 01000,
    O_APPEND = 02000,
    O_NONBLOCK = 04000,
    O_CLOEXEC = 02000000,
    O_PATH = 010000000,
#if defined(__aarch64__)
    O_DIRECTORY = 040000,
    O_NOFOLLOW = 0100000,
#else
    O_DIRECTORY = 0200000,
    O_NOFOLLOW = 0400000,
#endif
    O_TMPFILE = 020000000 | O_DIRECTORY,
    AT_FDCWD = -100,
    AT_SYMLINK_NOFOLLOW = 0x100,
    AT_REMOVEDIR = 0x200,
    AT_SYMLINK_FOLLOW = 0x400,
    AT_EMPTY_PATH = 0x1000,
    W_OK = 2,
    F_SETFD = 2,
    F_GETFL = 3,
    F_SETFL = 4,
    F_DUPFD_CLOEXEC = 1030,
    F_SETPIPE_SZ = 1031,
    F_GET_SEALS = 1034,
    F_SEAL_SHRINK = 2,
    F_SEAL_WRITE = 8,
    MSG_CTRUNC = 8,
    MSG_TRUNC = 0x20,
    MSG_PEEK = 2,
    MSG_DONTWAIT = 0x40,
    MSG_NOSIGNAL = 0x4000,
    MSG_CMSG_CLOEXEC = 0x40000000,
    SOL_SOCKET = 1,
    SO_PEERCRED = 17,
    SO_SNDTIMEO = 21,
    SCM_RIGHTS = 1,
    EPOLLIN = 1,
    EPOLLOUT = 4,
    EPOLLERR = 8,
    EPOLLHUP = 0x10,
    EPOLLET = 1u << 31,
    EPOLL_CTL_ADD = 1,
    EPOLL_CTL_DEL = 2,
    EPOLL_CTL_MOD = 3,
    PROT_READ = 1,
    PROT_WRITE = 2,
    MAP_PRIVATE = 2,
    MAP_ANONYMOUS = 0x20,
    MAP_FIXED_NOREPLACE = 0x100000,
    MREMAP_MAYMOVE = 1,
    SIGKILL = 9,
    SIGTERM = 15,
    SIGCHLD = 17,
    SIGCONT = 18,
    SIGSTOP = 19,
    CLOCK_REALTIME = 0,
    CLOCK_MONOTONIC = 1,
    CLOCK_BOOTTIME = 7,
    WNOHANG = 1,
    WSTOPPED = 2,
    WNOWAIT = 0x01000000,
    P_PID = 1,
    WALL = 0x40000000,
    FUTEX_WAIT = 0,
    FIONREAD = 0x541B,
    TCGETS = 0x5401,
    TCSETS = 0x5402,
    TIOCSCTTY = 0x540E,
    TIOCGWINSZ = 0x5413,
    TIOCSWINSZ = 0x5414,
    TIOCSPTLCK = 0x40045431,
    TIOCGPTPEER = 0x5441,
    POLLIN = 1,
    POLLERR = 8,
    POLLHUP = 0x10,
    SIGPIPE = 13,
    IN_MODIFY = 2,
    IN_ATTRIB = 4,
    IN_MOVED_FROM = 0x40,
    IN_MOVED_TO = 0x80,
    IN_CREATE = 0x100,
    IN_DELETE = 0x200,
    IN_DELETE_SELF = 0x400,
    IN_MOVE_SELF = 0x800,
    IN_UNMOUNT = 0x2000,
    IN_Q_OVERFLOW = 0x4000,
    IN_IGNORED = 0x8000,
    IN_ONLYDIR = 0x01000000,
    IN_EXCL_UNLINK = 0x04000000,
    IN_MASK_CREATE = 0x10000000,
    IN_ISDIR = 0x40000000,
    NAME_MAX = 255,
    PATH_MAX = 4096,
};

struct sys_iov {
    void *base;
    size_t len;
};

struct sys_msghdr {
    void *name;
    int namelen;
    struct sys_iov *iov;
    size_t iovlen;
    void *control;
    size_t controllen;
    unsigned flags;
};

struct sys_cmsg {
    size_t len;
    int level, type;
};

struct sys_epoll_event {
    uint32_t events;
    void *data;
}
#if defined(__x86_64__)
__attribute__((packed))
#endif
;

struct sys_timespec {
    int64_t sec, nsec;
};

struct sys_rusage {
    struct {
        int64_t sec, usec;
    } utime, stime;
    int64_t maxrss, unused[13];
};

struct sys_dirent {
    uint64_t ino;
    int64_t off;
    uint16_t reclen;
    uint8_t type;
    char name[];
};

static inline _Noreturn void sys_exit(int code)
{
    for (;;)
        SYS1(__NR_exit_group, code);
}

static inline int sys_close(int fd)
{
    return (int)SYS1(__NR_close, fd);
}

static inline int sys_openat(int dir, const char *path, int flags, unsigned mode)
{
    return (int)SYS4(__NR_openat, dir, path, flags | O_CLOEXEC, mode);
}

static inline long sys_read(int fd, void *buf, size_t len)
{
    long r;
    do
        r = SYS3(__NR_read, fd, buf, len);
    while (r == -EINTR);
    return r;
}

static inline long sys_write(int fd, const void *buf, size_t len)
{
    long r;
    do
        r = SYS3(__NR_write, fd, buf, len);
    while (r == -EINTR);
    return r;
}

static inline int sys_fcntl(int fd, int cmd, long arg)
{
    return (int)SYS3(__NR_fcntl, fd, cmd, arg);
}

static inline int sys_statx(int dir, const char *path, int flags, struct statx *st)
{
    __builtin_memset(st, 0, sizeof *st); /* checkers do not know that the kernel fills it in */
    return (int)SYS5(__NR_statx, dir, path, flags, STATX_BASIC_STATS, st);
}

static inline int sys_fstat(int fd, struct statx *st)
{
    return sys_statx(fd, "", AT_EMPTY_PATH, st);
}

static inline int sys_kill(int pid, int sig)
{
    return (int)SYS2(__NR_kill, pid, sig);
}

static inline void *sys_mmap(size_t len, int prot, int flags, int fd)
{
    long r = SYS6(__NR_mmap, 0, len, prot, flags, fd, 0);
    void *p = NULL;
    if (r > 0 || r <= -4096)
        __builtin_memcpy(&p, &r, sizeof p);
    return p;
}

static inline void sys_munmap(void *p, size_t len)
{
    SYS2(__NR_munmap, p, len);
}

/* Milliseconds for deadlines, nanoseconds for identities. */
static inline uint64_t sys_clock_ns(int clock)
{
    struct sys_timespec t = {0, 0};
    SYS2(__NR_clock_gettime, clock, &t);
    return (uint64_t)t.sec * 1000000000u + (uint64_t)t.nsec;
}

static inline uint64_t sys_now_ms(void)
{
    return sys_clock_ns(CLOCK_MONOTONIC) / 1000000u;
}

/* The supervisor's clock, which goes on while the machine sleeps. */
static inline uint64_t sys_boot_ms(void)
{
    return sys_clock_ns(CLOCK_BOOTTIME) / 1000000u;
}

#endif
