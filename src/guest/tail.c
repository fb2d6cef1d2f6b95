/* Output pipes: leases and tails. */
#include "mem.h"
#include "pipes.h"
#include "proc.h"
#include "spool.h"

/* One read into the ring: what it gave. */
static long stream_take(struct stream *s)
{
    const struct watch *w = &s->watch;
    struct sys_iov iov[2];
    uint32_t at;
    long n;
    if (s->spool != NULL) {
        n = spool_take(s->spool, w->fd);
        s->dropped = spool_dropped(s->spool);
        goto out;
    }
    if (s->ring == NULL)
        s->ring = sys_mmap(SB_TAIL_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (s->ring == NULL) {
        /* No memory for a tail: throw away through a part of the message buffer. */
        n = sys_read(w->fd, guest.out, 4096);
        if (n > 0)
            s->dropped += (uint64_t)n;
    } else {
        at = (s->head + s->len) % SB_TAIL_BYTES;
        iov[0].base = s->ring + at;
        iov[0].len = SB_TAIL_BYTES - at;
        iov[1].base = s->ring;
        iov[1].len = at;
        n = SYS3(__NR_readv, w->fd, iov, 2);
        if (n > 0) {
            uint64_t over =
                s->len + (uint64_t)n > SB_TAIL_BYTES ? s->len + (uint64_t)n - SB_TAIL_BYTES : 0;
            s->head = (uint32_t)((s->head + over) % SB_TAIL_BYTES);
            s->len += (uint32_t)((uint64_t)n - over);
            s->dropped += over;
        }
    }
out:
    if (n == 0 || (n < 0 && n != -EAGAIN && n != -EINTR))
        stream_close(s);
    return n;
}

static void stream_ready(struct watch *w, uint32_t events)
{
    (void)events;
    stream_take((struct stream *)w);
}

void stream_pump(struct stream *s)
{
    for (int i = 0; i < 16 && s->watched && stream_take(s) > 0; i++)
        ;
}

void stream_open(struct stream *s, int fd, struct conn *lease)
{
    s->watch.fd = fd;
    s->lease = lease;
    if (lease == NULL)
        stream_drain(s);
}

void stream_drain(struct stream *s)
{
    s->lease = NULL;
    if (s->watch.fd < 0 || s->watched)
        return;
    pipe_enlarge(s->watch.fd);
    if (loop_watch(&s->watch, s->watch.fd, EPOLLIN, stream_ready) == 0)
        s->watched = 1;
    else
        stream_close(s); /* better a writer with EPIPE than one that hangs for ever */
}

static void stream_unwatch(struct stream *s)
{
    if (s->watched)
        loop_unwatch(&s->watch);
    s->watched = 0;
}

void stream_close(struct stream *s)
{
    if (s->watch.fd < 0)
        return;
    stream_unwatch(s);
    sys_close(s->watch.fd);
    s->watch.fd = -1;
    s->lease = NULL;
    if (s->spool != NULL)
        spool_end(s->spool);
}

void stream_free(struct stream *s)
{
    stream_close(s);
    if (s->ring != NULL)
        sys_munmap(s->ring, SB_TAIL_BYTES);
    s->ring = NULL;
    s->head = s->len = 0;
    spool_free(s->spool);
    s->spool = NULL;
}

int stream_no_writer(const struct stream *s, size_t *left)
{
    struct {
        int fd;
        short events, revents;
    } poll = {s->watch.fd, POLLIN, 0};
    struct sys_timespec zero = {0, 0};
    *left = 0;
    if (s->watch.fd < 0)
        return 1;
    if (SYS5(__NR_ppoll, &poll, 1, &zero, NULL, 8) != 1 || !(poll.revents & POLLHUP))
        return 0;
    if (poll.revents & POLLIN)
        *left = stream_filled(s);
    return 1;
}

size_t stream_filled(const struct stream *s)
{
    int n = 0;
    return SYS3(__NR_ioctl, s->watch.fd, FIONREAD, &n) == 0 ? (size_t)n : SIZE_MAX;
}

int stream_at_end(const struct stream *s)
{
    size_t left;
    return stream_no_writer(s, &left) && left == 0;
}

unsigned stream_tail(const struct stream *s, struct sys_iov piece[2])
{
    uint32_t first = SB_TAIL_BYTES - s->head;
    if (s->len == 0)
        return 0;
    piece[0].base = s->ring + s->head;
    piece[0].len = s->len < first ? s->len : first;
    piece[1].base = s->ring;
    piece[1].len = s->len - piece[0].len;
    return piece[1].len > 0 ? 2 : 1;
}

void stream_forget_tail(struct stream *s)
{
    s->head = s->len = 0;
}
