/* Transfers that never wait, see transfer.h. */
#include "transfer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define THROUGH_MOST 65536 /* what a private pipe surely takes */

void sb_transfer_init(struct sb_transfer *t, int fd)
{
    struct stat st;
    *t = (struct sb_transfer){SB_TRANSFER_NOWAIT, 0, {-1, -1}, 0};
    if (fstat(fd, &st) < 0)
        return; /* the first transfer will say why */
    if (S_ISSOCK(st.st_mode))
        t->how = SB_TRANSFER_SOCKET;
    t->is_pipe = S_ISFIFO(st.st_mode);
}

void sb_transfer_init_pipe(struct sb_transfer *t)
{
    *t = (struct sb_transfer){SB_TRANSFER_NOWAIT, 1, {-1, -1}, 0};
}

void sb_transfer_close(struct sb_transfer *t)
{
    for (int i = 0; i < 2; i++)
        if (t->through[i] >= 0)
            close(t->through[i]);
    t->through[0] = t->through[1] = -1;
    t->staged = 0;
}

/* The kernel refused RWF_NOWAIT for this descriptor. */
static void fall_back(struct sb_transfer *t, int fd)
{
    if (t->is_pipe && pipe2(t->through, O_CLOEXEC | O_NONBLOCK) == 0) {
        t->how = SB_TRANSFER_SPLICE;
        return;
    }
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0)
        fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    t->how = SB_TRANSFER_PLAIN;
}

static int is_ready(int fd, short events)
{
    struct pollfd p = {.fd = fd, .events = events};
    return poll(&p, 1, 0) > 0;
}

static ssize_t splice_in(struct sb_transfer *t, int fd, char *buf, size_t len)
{
    ssize_t n = splice(fd, NULL, t->through[1], NULL, len < THROUGH_MOST ? len : THROUGH_MOST,
                       SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
    ssize_t got = 0;
    while (got < n) {
        ssize_t m = read(t->through[0], buf + got, (size_t)(n - got));
        if (m > 0)
            got += m;
        else if (m == 0 || errno != EINTR)
            return -1;
    }
    return n;
}

static ssize_t splice_out(struct sb_transfer *t, int fd, const char *buf, size_t len)
{
    if (t->staged == 0) {
        ssize_t n = write(t->through[1], buf, len < THROUGH_MOST ? len : THROUGH_MOST);
        if (n < 0)
            return -1;
        t->staged = (size_t)n;
    }
    ssize_t n = splice(t->through[0], NULL, fd, NULL, t->staged, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
    if (n > 0)
        t->staged -= (size_t)n;
    return n;
}

void sb_transfer_discard(struct sb_transfer *t)
{
    char sink[4096];
    while (t->staged > 0) {
        ssize_t n = read(t->through[0], sink, t->staged < sizeof sink ? t->staged : sizeof sink);
        if (n > 0)
            t->staged -= (size_t)n;
        else if (n == 0 || errno != EINTR)
            break;
    }
    t->staged = 0;
}

static ssize_t read_once(struct sb_transfer *t, int fd, void *buf, size_t len)
{
    struct iovec iov = {buf, len};
    switch (t->how) {
    case SB_TRANSFER_SOCKET:
        return recv(fd, buf, len, MSG_DONTWAIT);
    case SB_TRANSFER_NOWAIT:
        return preadv2(fd, &iov, 1, -1, RWF_NOWAIT);
    case SB_TRANSFER_SPLICE:
        return splice_in(t, fd, buf, len);
    case SB_TRANSFER_PLAIN:
        if (is_ready(fd, POLLIN))
            return read(fd, buf, len);
        break;
    }
    errno = EAGAIN;
    return -1;
}

static ssize_t write_once(struct sb_transfer *t, int fd, const void *buf, size_t len)
{
    struct iovec iov = {(void *)buf, len};
    switch (t->how) {
    case SB_TRANSFER_SOCKET:
        return send(fd, buf, len, MSG_DONTWAIT | MSG_NOSIGNAL);
    case SB_TRANSFER_NOWAIT:
        return pwritev2(fd, &iov, 1, -1, RWF_NOWAIT);
    case SB_TRANSFER_SPLICE:
        return splice_out(t, fd, buf, len);
    case SB_TRANSFER_PLAIN:
        if (is_ready(fd, POLLOUT))
            return write(fd, buf, len);
        break;
    }
    errno = EAGAIN;
    return -1;
}

static int refused(const struct sb_transfer *t)
{
    return t->how == SB_TRANSFER_NOWAIT &&
           (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL);
}

ssize_t sb_transfer_read(struct sb_transfer *t, int fd, void *buf, size_t len)
{
    for (;;) {
        ssize_t n = read_once(t, fd, buf, len);
        if (n >= 0)
            return n;
        if (refused(t))
            fall_back(t, fd);
        else if (errno != EINTR)
            return -1;
    }
}

ssize_t sb_transfer_write(struct sb_transfer *t, int fd, const void *buf, size_t len)
{
    for (;;) {
        ssize_t n = write_once(t, fd, buf, len);
        if (n >= 0)
            return n;
        if (refused(t))
            fall_back(t, fd);
        else if (errno != EINTR)
            return -1;
    }
}
