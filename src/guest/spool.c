#include "spool.h"

#include "mem.h"
#include "pipes.h"
#include "sys.h"

enum {
    FRAMES_AT_ONCE = 16, /* frames for one reader before others get their turn */
    TAKE = 32768,        /* from the command at a time */
};

struct reader {
    struct watch out; /* the pipe's writing end */
    struct reader *next;
    struct spool *spool;
    uint64_t at;
};

/* Byte n of the stream lies at n % room of the file. */
struct spool {
    int fd;
    int ended, last;
    uint64_t room;       /* less than SB_SPOOL_BYTES where the disk was full before */
    uint64_t start, end; /* what is kept of the stream */
    struct reader *readers;
};

int spool_new(struct spool **made)
{
    struct spool *s = mem_alloc(sizeof *s);
    if (s == NULL)
        return -ENOMEM;
    s->fd = spool_file();
    if (s->fd < 0) {
        int err = s->fd;
        mem_free(s);
        return err;
    }
    s->room = SB_SPOOL_BYTES;
    *made = s;
    return 0;
}

static void reader_end(struct reader *r)
{
    struct spool *s = r->spool;
    struct reader **at = &s->readers;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    loop_unwatch(&r->out);
    sys_close(r->out.fd);
    mem_free(r);
    if (s->readers == NULL && s->last)
        loop_wake_at(sys_now_ms());
}

/* One frame: 1, 0 when there is nothing to tell, or a negative errno. Small enough for the kernel to write all of it or
 * nothing. */
static int frame_write(struct reader *r)
{
    struct spool *s = r->spool;
    struct {
        uint64_t head;
        unsigned char data[SB_FRAME_DATA];
    } frame;
    uint64_t at, left;
    long n = 0, sent;
    if (r->at < s->start)
        r->at = s->start;
    left = r->at < s->end ? s->end - r->at : 0;
    if (left == 0 && !s->ended)
        return 0;
    at = r->at % s->room;
    left = left < SB_FRAME_DATA ? left : SB_FRAME_DATA;
    left = left < s->room - at ? left : s->room - at;
    if (left > 0)
        n = SYS4(__NR_pread64, s->fd, frame.data, left, at);
    if (n < 0 || (n == 0 && left > 0))
        return -EIO;
    frame.head = SB_FRAME_HEAD(r->at, n);
    sent = sys_write(r->out.fd, &frame, sizeof frame.head + (size_t)n);
    if (sent < 0)
        return (int)sent;
    r->at += (uint64_t)n;
    return n > 0 ? 1 : -EPIPE; /* that was the end */
}

/* As much as its pipe takes. */
static void serve(struct reader *r)
{
    for (int i = 0; i < FRAMES_AT_ONCE; i++) {
        int n = frame_write(r);
        if (n == 0) {
            loop_change(&r->out, 0);
            return;
        }
        if (n == -EAGAIN)
            break;
        if (n < 0) {
            reader_end(r);
            return;
        }
    }
    loop_change(&r->out, EPOLLOUT);
}

static void reader_ready(struct watch *w, uint32_t events)
{
    struct reader *r = (struct reader *)w;
    if (events & EPOLLERR)
        reader_end(r);
    else
        serve(r);
}

/* Those who had everything. The others are served when their pipes have room. */
static void serve_idle(struct spool *s)
{
    for (struct reader *r = s->readers, *next; r != NULL; r = next) {
        next = r->next;
        if (r->out.events == 0)
            serve(r);
    }
}

/* A disk that is full before the first round is over: the round is as long as it is. */
static int shrink(struct spool *s)
{
    if (s->start > 0 || s->end == 0 || s->end >= s->room)
        return -1;
    s->room = s->end;
    return 0;
}

static void keep(struct spool *s, const unsigned char *data, uint64_t n)
{
    while (n > 0) {
        uint64_t at = s->end % s->room, size = n < s->room - at ? n : s->room - at;
        long m = SYS4(__NR_pwrite64, s->fd, data, size, at);
        if (m <= 0 && shrink(s) == 0)
            continue;
        if (m <= 0) { /* what there was before would have a hole behind it */
            s->end += n;
            s->start = s->end;
            return;
        }
        data += m;
        n -= (uint64_t)m;
        s->end += (uint64_t)m;
        if (s->end - s->start > s->room)
            s->start = s->end - s->room;
    }
}

long spool_take(struct spool *s, int fd)
{
    long n = sys_read(fd, guest.out, TAKE);
    if (n > 0) {
        keep(s, guest.out, (uint64_t)n);
        serve_idle(s);
    }
    return n;
}

void spool_end(struct spool *s)
{
    s->ended = 1;
    serve_idle(s);
}

int spool_read(struct spool *s, uint64_t from)
{
    struct reader *r = mem_alloc(sizeof *r);
    int pipe[2], err = r == NULL ? -ENOMEM : pipe_make(pipe, 1);
    if (err == 0 && (err = loop_watch(&r->out, pipe[1], EPOLLOUT, reader_ready)) != 0) {
        sys_close(pipe[0]);
        sys_close(pipe[1]);
    }
    if (err != 0) {
        mem_free(r);
        return err;
    }
    r->spool = s;
    r->at = from;
    r->next = s->readers;
    s->readers = r;
    pipe_enlarge(pipe[0]);
    return pipe[0];
}

uint64_t spool_dropped(const struct spool *s)
{
    return s->start;
}

int spool_has_readers(struct spool *s, int last)
{
    s->last = last;
    return s->readers != NULL;
}

void spool_free(struct spool *s)
{
    if (s == NULL)
        return;
    s->last = 0;
    while (s->readers != NULL)
        reader_end(s->readers);
    sys_close(s->fd);
    mem_free(s);
}
