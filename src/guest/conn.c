#include "conn.h"

#include "mem.h"
#include "proc.h"
#include "sys.h"
#include "worker.h"

enum {
    QUEUE_BYTES = 1 << 20, /* answers a caller may leave unread beyond its socket */
    QUEUE_WORK = 64,       /* file operations of one caller that may wait */
    STALL_MS = 10,         /* until an answer is tried again for which the kernel had no room */
};

struct packet {
    struct packet *next;
    size_t len;
    unsigned nfds;
    int fds[SB_MSG_FDS];
    unsigned char data[];
};

static int any_dead;

long msg_receive(int fd, struct request *r)
{
    struct {
        struct sys_cmsg head;
        int fds[SB_MSG_FDS];
    } control;
    struct sys_iov iov = {guest.in, sizeof guest.in};
    struct sys_msghdr msg = {NULL, 0, &iov, 1, &control, sizeof control, 0};
    long n;
    memset(&control, 0, sizeof control);
    memset(r, 0, sizeof *r);
    do
        n = SYS3(__NR_recvmsg, fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (n == -EINTR);
    if (n < 0)
        return n;
    if (msg.controllen >= sizeof control.head && control.head.level == SOL_SOCKET &&
        control.head.type == SCM_RIGHTS) {
        r->nfds = (unsigned)((control.head.len - sizeof control.head) / sizeof(int));
        if (r->nfds > SB_MSG_FDS)
            r->nfds = SB_MSG_FDS;
        memcpy(r->fds, control.fds, r->nfds * sizeof(int));
    }
    if (msg.flags & (MSG_TRUNC | MSG_CTRUNC)) {
        request_end(r);
        return -EPROTO;
    }
    return n;
}

int msg_send(int fd, const struct sb_packer *p, const int *fds, unsigned nfds, int flags)
{
    struct {
        struct sys_cmsg head;
        int fds[SB_MSG_FDS];
    } control;
    struct sys_iov iov = {p->buf, p->len};
    struct sys_msghdr msg = {NULL, 0, &iov, 1, NULL, 0, 0};
    long n;
    if (nfds > 0) {
        control.head.len = sizeof control.head + nfds * sizeof(int);
        control.head.level = SOL_SOCKET;
        control.head.type = SCM_RIGHTS;
        memcpy(control.fds, fds, nfds * sizeof(int));
        msg.control = &control;
        msg.controllen = (sizeof control.head + nfds * sizeof(int) + 7) & ~(size_t)7;
    }
    do
        n = SYS3(__NR_sendmsg, fd, &msg, flags | MSG_NOSIGNAL);
    while (n == -EINTR);
    return n < 0 ? (int)n : 0;
}

int msg_unspill(struct request *r)
{
    struct statx st;
    uint64_t len = sb_read_u64(&r->fields, SB_F_SPILL, 0);
    int seals;
    if (!(r->head.flags & SB_MSG_SPILLED))
        return 0;
    if (r->nfds == 0 || len == 0 || len > SB_SPILL_MAX || sys_fstat(r->fds[0], &st) != 0 ||
        st.stx_size < len)
        return -EPROTO;
    /* Sealed, so that the mapping can neither change under our hands nor end early. */
    seals = sys_fcntl(r->fds[0], F_GET_SEALS, 0);
    if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_WRITE)) != (F_SEAL_SHRINK | F_SEAL_WRITE))
        return -EPROTO;
    r->spill = sys_mmap(len, PROT_READ | PROT_WRITE, MAP_PRIVATE, r->fds[0]);
    if (r->spill == NULL)
        return -ENOMEM;
    r->spill_len = len;
    r->fields.at = r->spill;
    r->fields.end = r->spill + len;
    sys_close(r->fds[0]);
    r->nfds--;
    memmove(r->fds, r->fds + 1, r->nfds * sizeof(int));
    return 0;
}

void request_end(struct request *r)
{
    for (unsigned i = 0; i < r->nfds; i++)
        if (r->fds[i] >= 0)
            sys_close(r->fds[i]);
    r->nfds = 0;
    if (r->spill != NULL)
        sys_munmap(r->spill, r->spill_len);
    r->spill = NULL;
}

void answer_begin(struct sb_packer *p, uint16_t type, uint32_t req)
{
    sb_pack_begin(p, guest.out, sizeof guest.out, type, req, guest.epoch);
}

static void packet_free(struct packet *q)
{
    for (unsigned i = 0; i < q->nfds; i++)
        sys_close(q->fds[i]);
    mem_free(q);
}

static void conn_kill(struct conn *c)
{
    c->dead = any_dead = 1;
}

static void conn_queue(struct conn *c, const struct sb_packer *p, const int *fds, unsigned nfds)
{
    struct packet *q;
    if (c->queued + p->len > QUEUE_BYTES || (q = mem_alloc(sizeof *q + p->len)) == NULL) {
        conn_kill(c);
        return;
    }
    memcpy(q->data, p->buf, p->len);
    q->len = p->len;
    for (unsigned i = 0; i < nfds; i++) {
        int fd = sys_fcntl(fds[i], F_DUPFD_CLOEXEC, 5);
        if (fd < 0) {
            packet_free(q);
            conn_kill(c);
            return;
        }
        q->fds[q->nfds++] = fd;
    }
    if (c->last != NULL)
        c->last->next = q;
    else
        c->first = q;
    c->last = q;
    c->queued += q->len;
    conn_update(c);
}

int conn_send(struct conn *c, const struct sb_packer *p, const int *fds, unsigned nfds)
{
    int err;
    if (c == NULL || c->dead)
        return 0;
    if (p->overflow) {
        conn_kill(c);
        return 0;
    }
    if (c->first == NULL) {
        err = msg_send(c->watch.fd, p, fds, nfds, MSG_DONTWAIT);
        if (err == 0 || err == -ETOOMANYREFS)
            return err;
        if (err != -EAGAIN && err != -ENOBUFS && err != -ENOMEM) {
            conn_kill(c);
            return 0;
        }
    }
    conn_queue(c, p, fds, nfds);
    return 0;
}

static void conn_flush(struct conn *c)
{
    while (c->first != NULL) {
        struct packet *q = c->first;
        struct sb_packer p = {q->data, q->len, q->len, 0};
        int err = msg_send(c->watch.fd, &p, q->fds, q->nfds, MSG_DONTWAIT);
        if (err == -EAGAIN)
            return;
        if (err == -ENOBUFS || err == -ENOMEM || err == -ETOOMANYREFS) {
            c->stalled = 1;
            conn_update(c);
            loop_wake_at(sys_now_ms() + STALL_MS);
            return;
        }
        if (err != 0) {
            conn_kill(c);
            return;
        }
        c->first = q->next;
        if (c->first == NULL)
            c->last = NULL;
        c->queued -= q->len;
        packet_free(q);
    }
    conn_update(c);
}

void conn_tick(void)
{
    for (struct conn *c = guest.conns; c != NULL; c = c->next)
        if (c->stalled && !c->dead) {
            c->stalled = 0;
            conn_flush(c);
        }
}

void conn_update(struct conn *c)
{
    uint32_t events = 0;
    if (c->dead)
        return;
    if (c->stalled)
        events = 0;
    else if (c->first != NULL)
        events = EPOLLOUT;
    else if (c->workers < QUEUE_WORK)
        events = EPOLLIN;
    loop_change(&c->watch, events);
}

void conn_reply(struct conn *c, uint32_t req)
{
    struct sb_packer p;
    answer_begin(&p, SB_REPLY, req);
    conn_send(c, &p, NULL, 0);
}

void conn_error(struct conn *c, uint32_t req, const char *kind, int err, const char *step,
                const char *message, const char *path)
{
    struct sb_packer p;
    answer_begin(&p, SB_ERROR, req);
    sb_pack_str(&p, SB_F_KIND, kind);
    if (err > 0)
        sb_pack_u64(&p, SB_F_ERRNO, (uint64_t)err);
    if (step != NULL)
        sb_pack_str(&p, SB_F_STEP, step);
    if (message != NULL)
        sb_pack_str(&p, SB_F_MESSAGE, message);
    if (path != NULL && strlen(path) < PATH_MAX)
        sb_pack_str(&p, SB_F_PATH, path);
    conn_send(c, &p, NULL, 0);
}

void conn_no_room(struct conn *c, uint32_t req)
{
    conn_error(c, req, "LimitExceeded", 0, "send",
               "as many descriptors are in flight as root of this sandbox may have", NULL);
}

static void dispatch(struct request *r)
{
    struct conn *c = r->conn;
    struct sb_reader check;
    struct sb_field_view f;
    int err, more;
    int stale = r->head.epoch != guest.epoch || guest.frozen != FREEZE_NOT;
    if (!guest.ready || (stale && !sb_msg_lets_go(r->head.type))) {
        conn_error(c, r->head.req, "NotRunning", 0, "epoch",
                   "the sandbox has been paused or stopped since this connection was made", NULL);
        return;
    }
    err = msg_unspill(r);
    if (err == -EPROTO) {
        conn_kill(c);
        return;
    }
    if (err != 0) {
        conn_error(c, r->head.req, kind_of_errno(-err), -err, "spill", "no memory for the request",
                   NULL);
        return;
    }
    check = r->fields;
    while ((more = sb_read_field(&check, &f)) == 1)
        ;
    if (more < 0) {
        conn_kill(c);
        return;
    }
    switch (r->head.type) {
    case SB_C_PING:
        conn_reply(c, r->head.req);
        break;
    case SB_C_EXEC:
        exec_request(r);
        break;
    case SB_C_FILE:
        worker_request(r);
        break;
    case SB_C_SIGNAL:
    case SB_C_KILL:
    case SB_C_WAIT:
    case SB_C_ATTACH:
    case SB_C_RELEASE:
    case SB_C_DETACH:
    case SB_C_LIST:
    case SB_C_TELL:
    case SB_C_RESIZE:
    case SB_C_SPOOL:
        proc_request(r);
        break;
    default: /* from a newer caller */
        conn_error(c, r->head.req, "Unsupported", 0, NULL, "pid 1 does not know this request",
                   NULL);
    }
}

/* Is the next message one? Seen before it is taken: while leaves are awaited the buffer is the supervisor's. */
static int begins_command(int fd)
{
    struct sb_msg head = {0};
    return SYS6(__NR_recvfrom, fd, &head, sizeof head, MSG_PEEK | MSG_DONTWAIT, NULL, NULL) ==
               sizeof head &&
           head.type == SB_C_EXEC;
}

static void conn_ready(struct watch *w, uint32_t events)
{
    struct conn *c = (struct conn *)w;
    struct request r;
    long n;
    if (events & EPOLLOUT)
        conn_flush(c);
    if (!(events & EPOLLIN)) {
        if (events & (EPOLLHUP | EPOLLERR))
            conn_kill(c);
        return;
    }
    /* Whoever knows of a thaw was told by the supervisor, which has told us before. */
    if (guest.frozen != FREEZE_NOT)
        control_catch_up();
    if (guest.nleaves == 0 && guest.leaves_used && guest.leaves_asked != LEAVES_AWAITED &&
        begins_command(w->fd))
        control_await_leaves();
    n = msg_receive(w->fd, &r);
    if (n == -EAGAIN || n == -ECONNRESET) /* what it has sent before it went comes next */
        return;
    r.conn = c;
    c->taken++;
    if (n <= 0 || sb_read_begin(&r.fields, &r.head, guest.in, (size_t)n) != 0 || r.head.req == 0) {
        request_end(&r);
        conn_kill(c);
        return;
    }
    dispatch(&r);
    request_end(&r);
}

void conn_add(int fd)
{
    struct conn *c;
    struct sys_timespec patience = {60, 0}; /* of a worker with a caller that reads nothing */
    int flags;
    if (guest.nconns >= MAX_CONNS || (c = mem_alloc(sizeof *c)) == NULL) {
        sys_close(fd);
        return;
    }
    /* Workers answer on this descriptor too, and they may wait for the caller. */
    flags = sys_fcntl(fd, F_GETFL, 0);
    if (flags & O_NONBLOCK)
        sys_fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
    SYS5(__NR_setsockopt, fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (loop_watch(&c->watch, fd, EPOLLIN, conn_ready) != 0) {
        sys_close(fd);
        mem_free(c);
        return;
    }
    c->next = guest.conns;
    guest.conns = c;
    guest.nconns++;
}

void conn_reap_dead(void)
{
    if (any_dead)
        exec_settle(); /* its asker may be one of them */
    /* Closing one kills commands, which may send to others: their death is found in the next round. */
    while (any_dead) {
        struct conn **at = &guest.conns;
        any_dead = 0;
        while (*at != NULL && !(*at)->dead)
            at = &(*at)->next;
        if (*at != NULL) {
            struct conn *c = *at;
            *at = c->next;
            guest.nconns--;
            any_dead = 1;
            worker_forget(c);
            proc_forget(c);
            loop_unwatch(&c->watch);
            SYS2(__NR_shutdown, c->watch.fd, 2); /* a worker may hold a copy */
            sys_close(c->watch.fd);
            while (c->first != NULL) {
                struct packet *q = c->first;
                c->first = q->next;
                packet_free(q);
            }
            mem_free(c);
        }
    }
}
