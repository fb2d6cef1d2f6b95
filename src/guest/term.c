/* Terminals: between the pipes of a caller and the master.
 *
 * Nothing here waits. One piece at a time is on its way in each direction; while it cannot go on, nothing
 * more is taken, so a caller that does not read holds up its own terminal and the programs on it only.
 * As long as the command runs we have its side open as well: a read that fails with EIO then is the end,
 * and not a moment in which nobody had it open. */
#include "term.h"

#include "conn.h"
#include "mem.h"
#include "proc.h"
#include "sys.h"

enum {
    PIECE = 4096, /* what a pipe takes whole or not at all, and a terminal gives at once */
    TURNS = 32,   /* pieces before others get their turn */
    MAX_SIDE = 65535,
    IUTF8 = 040000, /* c_iflag: what is erased is a character */
    ICANON = 2,     /* c_lflag: input comes by lines */
    VEOF = 4,       /* in c_cc */
};

struct termios {
    uint32_t iflag, oflag, cflag, lflag;
    unsigned char line, cc[19];
};

struct winsize {
    uint16_t rows, cols, xpixel, ypixel;
};

/* One direction: the piece on its way. */
struct piece {
    uint32_t at, len;
    char bytes[PIECE];
};

struct term {
    struct watch master, in, out; /* fd -1: not any more. events 0: not watched now */
    int peer;                     /* the command's side, open as long as it runs */
    struct proc *proc;
    int over;  /* the command has ended */
    int empty; /* the master had no more when it was read last */
    char last; /* what was typed last */
    struct piece typed, shown;
};

#define TERM_OF(pointer, member) ((struct term *)((char *)(pointer)-offsetof(struct term, member)))

static void shut(int *fd)
{
    if (*fd >= 0)
        sys_close(*fd);
    *fd = -1;
}

static void drop(struct watch *w)
{
    if (w->fd >= 0 && w->events != 0)
        loop_unwatch(w);
    w->events = 0;
    shut(&w->fd);
}

/* Watched for these and nothing else: what is not asked for must not wake us either, as a hang-up would. */
static int want(struct watch *w, uint32_t events, void (*ready)(struct watch *, uint32_t))
{
    if (w->fd < 0 || events == w->events)
        return 0;
    if (events != 0 && w->events != 0) {
        loop_change(w, events);
        return 0;
    }
    if (events != 0)
        return loop_watch(w, w->fd, events, ready);
    loop_unwatch(w);
    w->events = 0;
    return 0;
}

/* No more output will come: what is still to be passed on goes first. */
static void shown_end(struct term *t)
{
    drop(&t->master);
    drop(&t->in);
    t->typed.len = 0;
    t->empty = 1;
    if (t->shown.len == 0)
        drop(&t->out);
}

static void hang_up(struct term *t)
{
    t->shown.len = 0;
    shown_end(t);
}

/* 1: there may be more; 0: not now. */
static int show(struct term *t)
{
    struct piece *p = &t->shown;
    long n;
    if (p->len == 0 && t->master.fd >= 0) {
        n = sys_read(t->master.fd, p->bytes, PIECE);
        t->empty = n == -EAGAIN;
        if (t->empty)
            return 0;
        p->at = 0;
        p->len = n > 0 ? (uint32_t)n : 0;
        if (n <= 0)
            shown_end(t); /* EIO: its last user has closed it */
    }
    if (p->len == 0)
        return 0;
    n = sys_write(t->out.fd, p->bytes + p->at, p->len);
    if (n == -EAGAIN)
        return 0;
    if (n < 0) {
        hang_up(t); /* the pipe cannot be read any more, not even by us */
        return 0;
    }
    p->at += (uint32_t)n;
    p->len -= (uint32_t)n;
    if (p->len == 0 && t->master.fd < 0)
        drop(&t->out);
    return 1;
}

/* What the command's side is set to, asked at either. */
static int get(int fd, struct termios *io)
{
    memset(io, 0, sizeof *io); /* checkers do not know that the kernel fills it in */
    return (int)SYS3(__NR_ioctl, fd, TCGETS, io);
}

/* The input has ended. Where it comes by lines, the end is a character; one more, if the line before it is
 * not complete. To a program that takes every byte as it is no end can be told. */
static void type_end(struct term *t)
{
    struct termios io;
    struct piece *p = &t->typed;
    drop(&t->in);
    if (get(t->master.fd, &io) != 0 || !(io.lflag & ICANON))
        return;
    p->at = 0;
    p->bytes[0] = p->bytes[1] = (char)io.cc[VEOF];
    p->len = t->last == '\n' || t->last == '\r' || t->last == (char)io.cc[VEOF] ? 1 : 2;
}

static int type(struct term *t)
{
    struct piece *p = &t->typed;
    long n;
    if (t->master.fd < 0)
        return 0;
    if (p->len == 0) {
        if (t->in.fd < 0)
            return 0;
        n = sys_read(t->in.fd, p->bytes, PIECE);
        if (n == -EAGAIN)
            return 0;
        if (n > 0) {
            p->at = 0;
            p->len = (uint32_t)n;
        } else {
            type_end(t);
        }
    }
    if (p->len == 0)
        return 0;
    n = sys_write(t->master.fd, p->bytes + p->at, p->len);
    if (n == -EAGAIN)
        return 0;
    if (n <= 0) { /* nobody has the other side open */
        p->len = 0;
        drop(&t->in);
        return 0;
    }
    p->at += (uint32_t)n;
    p->len -= (uint32_t)n;
    t->last = p->bytes[p->at - 1];
    return 1;
}

static void master_ready(struct watch *w, uint32_t events);
static void in_ready(struct watch *w, uint32_t events);
static void out_ready(struct watch *w, uint32_t events);

/* Carries what can be carried, and waits for the rest. */
static void carry(struct term *t)
{
    uint32_t events = 0;
    for (int i = 0; i < TURNS && show(t); i++)
        ;
    for (int i = 0; i < TURNS && type(t); i++)
        ;
    if (t->shown.len == 0)
        events |= EPOLLIN;
    if (t->typed.len != 0)
        events |= EPOLLOUT;
    if (want(&t->master, events, master_ready) != 0 ||
        want(&t->out, t->shown.len != 0 ? EPOLLOUT : 0, out_ready) != 0 ||
        want(&t->in, t->typed.len == 0 ? EPOLLIN : 0, in_ready) != 0)
        hang_up(t);
}

/* Is what the command wrote in the pipe? */
static int is_drained(const struct term *t)
{
    return t->shown.len == 0 && t->empty;
}

static void step(struct term *t)
{
    carry(t);
    if (t->over && is_drained(t))
        proc_drained(t->proc); /* may free it */
}

static void master_ready(struct watch *w, uint32_t events)
{
    struct term *t = TERM_OF(w, master);
    /* Hung up while the piece before is not passed on: nothing typed will be read any more. */
    if ((events & (EPOLLHUP | EPOLLERR)) && t->shown.len != 0) {
        t->typed.len = 0;
        drop(&t->in);
    }
    step(t);
}

static void in_ready(struct watch *w, uint32_t events)
{
    (void)events;
    step(TERM_OF(w, in));
}

static void out_ready(struct watch *w, uint32_t events)
{
    (void)events;
    step(TERM_OF(w, out));
}

static int set_size(const struct term *t, uint64_t cols, uint64_t rows)
{
    struct winsize size = {(uint16_t)rows, (uint16_t)cols, 0, 0};
    return (int)SYS3(__NR_ioctl, t->master.fd, TIOCSWINSZ, &size);
}

static int is_size(uint64_t cols, uint64_t rows)
{
    return cols >= 1 && cols <= MAX_SIDE && rows >= 1 && rows <= MAX_SIDE;
}

/* Both sides of a new terminal. */
static int make(struct term *t, uint64_t cols, uint64_t rows)
{
    struct termios io;
    int unlocked = 0, r;
    if (!is_size(cols, rows))
        return -EINVAL;
    r = sys_openat(AT_FDCWD, "/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK, 0);
    if (r < 0)
        return r;
    t->master.fd = r;
    r = (int)SYS3(__NR_ioctl, t->master.fd, TIOCSPTLCK, &unlocked);
    if (r == 0)
        r = (int)SYS3(__NR_ioctl, t->master.fd, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (r < 0)
        return r;
    t->peer = r;
    r = get(t->peer, &io);
    if (r == 0) {
        io.iflag |= IUTF8;
        r = (int)SYS3(__NR_ioctl, t->peer, TCSETS, &io);
    }
    if (r == 0)
        r = set_size(t, cols, rows);
    if (r == 0 && t->in.fd < 0) {
        /* The poll has the kernel pass it on, before the command can change what becomes of it. */
        struct {
            int fd;
            short events, revents;
        } poll = {t->peer, POLLIN, 0};
        struct sys_timespec zero = {0, 0};
        sys_write(t->master.fd, &io.cc[VEOF], 1);
        SYS5(__NR_ppoll, &poll, 1, &zero, NULL, 8);
    }
    return r;
}

int term_open(struct term **made, int *peer, uint64_t cols, uint64_t rows, int in, int out)
{
    struct term *t = mem_alloc(sizeof *t);
    int r;
    *made = NULL;
    if (t == NULL) {
        shut(&in);
        shut(&out);
        return -ENOMEM;
    }
    t->master.fd = t->peer = -1;
    t->in.fd = in;
    t->out.fd = out;
    sys_fcntl(out, F_SETFL, O_WRONLY | O_NONBLOCK);
    if (in >= 0)
        sys_fcntl(in, F_SETFL, O_RDONLY | O_NONBLOCK);
    r = make(t, cols, rows);
    if (r < 0) {
        term_free(t);
        return r;
    }
    t->last = '\n';
    *peer = t->peer;
    *made = t;
    return 0;
}

void term_start(struct term *t, struct proc *p)
{
    t->proc = p;
    carry(t);
}

int term_over(struct term *t)
{
    t->over = 1;
    shut(&t->peer);
    carry(t);
    return is_drained(t);
}

void term_free(struct term *t)
{
    if (t == NULL)
        return;
    drop(&t->in);
    drop(&t->out);
    drop(&t->master);
    shut(&t->peer);
    mem_free(t);
}

void term_pack(const struct term *t, struct sb_packer *a)
{
    struct winsize size = {0, 0, 0, 0};
    if (t->master.fd >= 0)
        SYS3(__NR_ioctl, t->master.fd, TIOCGWINSZ, &size);
    sb_pack_u64(a, SB_F_COLS, size.cols);
    sb_pack_u64(a, SB_F_ROWS, size.rows);
}

void term_resize(struct request *r, const struct proc *p)
{
    uint64_t cols = sb_read_u64(&r->fields, SB_F_COLS, 0);
    uint64_t rows = sb_read_u64(&r->fields, SB_F_ROWS, 0);
    const char *kind = "InvalidArgument", *why = NULL;
    if (p->term == NULL)
        why = "the process has no terminal";
    else if (!is_size(cols, rows))
        why = "a terminal has 1 to 65535 columns and rows";
    else if (!p->running || p->term->master.fd < 0 || set_size(p->term, cols, rows) != 0) {
        kind = "NotFound";
        why = "the process has ended, and its terminal is gone";
    }
    if (why != NULL)
        conn_error(r->conn, r->head.req, kind, 0, NULL, why, NULL);
    else
        conn_reply(r->conn, r->head.req);
}
