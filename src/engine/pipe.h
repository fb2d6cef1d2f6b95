/* Reading and writing a pipe whose other end, and whose flags, belong to somebody hostile.
 *
 * The far side shares the open file, so O_NONBLOCK may vanish at any time: every transfer says
 * itself that it will not wait. Kernels before 6.4 cannot say that about pipes; there the pipe
 * is opened anew, which gives flags that nobody else holds. */
#ifndef SB_PIPE_H
#define SB_PIPE_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static inline int sb_pipe_is(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode);
}

/* Replaces what `fd` refers to by a non-blocking open file of our own. 0 or -1 and errno. */
static inline int sb_pipe_reopen(int fd, int mode)
{
    char path[40];
    int own, rc;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    own = open(path, mode | O_NONBLOCK | O_CLOEXEC);
    if (own < 0)
        return -1;
    rc = dup3(own, fd, O_CLOEXEC);
    close(own);
    return rc < 0 ? -1 : 0;
}

/* As read and write; -1 and EAGAIN where they would wait. *own: the pipe has been opened anew.
 * The caller watches it again (change its source) when *own turns 1. */
static inline ssize_t sb_pipe_read(int fd, int *own, void *buf, size_t len)
{
    struct iovec iov = {buf, len};
    ssize_t n;
    if (*own)
        return read(fd, buf, len);
    n = preadv2(fd, &iov, 1, -1, RWF_NOWAIT);
    if (n >= 0 || (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL))
        return n;
    if (sb_pipe_reopen(fd, O_RDONLY) < 0)
        return -1;
    *own = 1;
    return read(fd, buf, len);
}

static inline ssize_t sb_pipe_write(int fd, int *own, const void *data, size_t len)
{
    struct iovec iov = {.iov_len = len};
    ssize_t n;
    if (*own)
        return write(fd, data, len);
    __builtin_memcpy(&iov.iov_base, &data, sizeof data); /* not written through */
    n = pwritev2(fd, &iov, 1, -1, RWF_NOWAIT);
    if (n >= 0 || (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL))
        return n;
    if (sb_pipe_reopen(fd, O_WRONLY) < 0) {
        if (errno == ENXIO) /* no reader is left */
            errno = EPIPE;
        return -1;
    }
    *own = 1;
    return write(fd, data, len);
}

#endif
