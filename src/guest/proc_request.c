/* Requests about commands that were started: looked up in the table, told about, attached to, signalled. */
#include "mem.h"
#include "pipes.h"
#include "proc.h"
#include "spool.h"
#include "term.h"

static struct proc *proc_find(const struct request *r)
{
    struct sb_field_view tag;
    uint64_t serial = sb_read_u64(&r->fields, SB_F_SERIAL, 0);
    uint64_t pid = sb_read_u64(&r->fields, SB_F_PID, 0);
    uint64_t start = sb_read_u64(&r->fields, SB_F_START_NS, 0);
    int by_tag = sb_read_find(&r->fields, SB_F_TAG, &tag) && tag.len > 0;
    struct proc *ended = NULL;
    for (struct proc *p = procs; p != NULL; p = p->next) {
        if (p->hidden || (start != 0 && p->start_ns != start))
            continue;
        if (serial != 0) {
            if (p->serial != serial)
                continue;
        } else if (pid != 0) {
            if ((uint64_t)p->pid != pid)
                continue;
        } else if (by_tag) {
            struct sb_reader own = {p->record, p->record + p->record_len};
            struct sb_field_view f;
            if (!sb_read_find(&own, SB_F_TAG, &f) || f.len != tag.len ||
                memcmp(f.data, tag.data, tag.len) != 0)
                continue;
        } else {
            return NULL;
        }
        if (p->running)
            return p;
        if (ended == NULL)
            ended = p;
    }
    return ended;
}

static int names_one(const struct request *r)
{
    struct sb_field_view tag;
    return sb_read_u64(&r->fields, SB_F_SERIAL, 0) != 0 ||
           sb_read_u64(&r->fields, SB_F_PID, 0) != 0 || sb_read_find(&r->fields, SB_F_TAG, &tag);
}

static void pack_record(struct sb_packer *a, const struct proc *p)
{
    sb_pack_u64(a, SB_F_SERIAL, p->serial);
    sb_pack_u64(a, SB_F_PID, (uint64_t)p->pid);
    sb_pack_u64(a, SB_F_START_NS, p->start_ns);
    sb_pack_u64(a, SB_F_DETACHED, (uint64_t)p->detached);
    sb_pack_u64(a, SB_F_RUNNING, (uint64_t)p->running);
    sb_pack_u64(a, SB_F_DROPPED, p->out[0].dropped);
    sb_pack_u64(a, SB_F_DROPPED_ERR, p->out[1].dropped);
    if (p->term != NULL)
        term_pack(p->term, a);
    if (p->out[0].spool != NULL)
        sb_pack_u64(a, SB_F_OUT_MODE, SB_IO_SPOOL);
    if (p->out[1].spool != NULL)
        sb_pack_u64(a, SB_F_ERR_MODE, SB_IO_SPOOL);
    if (!p->running)
        proc_pack_end(a, p);
    if (a->cap - a->len < p->record_len) {
        a->overflow = 1;
        return;
    }
    memcpy(a->buf + a->len, p->record, p->record_len);
    a->len += p->record_len;
}

static void add_waiter(struct request *r, struct proc *p, int kill, uint64_t count)
{
    struct waiter *w = mem_alloc(sizeof *w);
    if (w == NULL) {
        conn_error(r->conn, r->head.req, "LimitExceeded", ENOMEM, NULL, "no memory", NULL);
        return;
    }
    w->conn = r->conn;
    w->req = r->head.req;
    w->kill = kill;
    w->count = count;
    w->next = p->waiters;
    p->waiters = w;
}

static void request_kill(struct request *r, struct proc *p)
{
    uint64_t sig = sb_read_u64(&r->fields, SB_F_SIGNAL, SIGKILL);
    uint64_t grace = sb_read_u64(&r->fields, SB_F_GRACE_MS, 0), now = sys_now_ms(), count;
    if (sig == 0)
        sig = SIGKILL;
    if (grace != 0)
        grace++; /* now is rounded down: never early */
    count = tree_signal(p, (int)sig);
    p->killed = 1;
    if (sig != SIGKILL && grace == 0)
        tree_signal(p, SIGKILL);
    else if (sig != SIGKILL && (p->kill_at == 0 || now + grace < p->kill_at))
        p->kill_at = now + grace;
    loop_wake_at(p->kill_at);
    add_waiter(r, p, 1, count);
    if (p->over_at != 0)
        proc_ended(p);
    p->recheck_step = 0;
    proc_settle(p, now);
}

/* Of those whom the asker does not know yet: the one with this request, or all. */
static void request_kill_held(struct request *r)
{
    uint64_t req = sb_read_u64(&r->fields, SB_F_REQ, 0);
    struct proc *next;
    for (struct proc *p = procs; p != NULL; p = next) {
        next = p->next;
        if (p->held == 0 || p->owner != r->conn || (req != 0 && p->held != req))
            continue;
        started_tell_held(p);
        tree_signal(p, SIGKILL);
        p->killed = 1;
        p->recheck_step = 0;
        proc_settle(p, sys_now_ms());
    }
    conn_reply(r->conn, r->head.req);
}

static void request_attach(struct request *r, struct proc *p)
{
    struct sb_packer a;
    int fds[3];
    unsigned nfds = 0, streams = 0;
    int lease = sb_read_u64(&r->fields, SB_F_LEASE, 0) != 0;
    for (int i = 0; lease && i < 2; i++)
        if (p->out[i].lease != NULL && p->out[i].lease != r->conn)
            lease = 0;
    for (int i = 0; i < 2; i++) {
        struct sys_iov piece[2];
        unsigned n;
        stream_pump(&p->out[i]);
        n = stream_tail(&p->out[i], piece);
        for (unsigned j = 0; j < n; j++)
            for (size_t at = 0, size; at < piece[j].len; at += size) {
                size = piece[j].len - at < 32768 ? piece[j].len - at : 32768;
                answer_begin(&a, SB_PART, r->head.req);
                sb_pack_u64(&a, SB_F_STREAM, i == 0 ? SB_STREAM_STDOUT : SB_STREAM_STDERR);
                sb_pack_bytes(&a, SB_F_DATA, (char *)piece[j].base + at, size);
                conn_send(r->conn, &a, NULL, 0);
            }
    }
    if (lease) {
        if (p->stdin_fd >= 0) {
            streams |= SB_STREAM_STDIN;
            fds[nfds++] = p->stdin_fd;
        }
        for (int i = 0; i < 2; i++) {
            struct stream *s = &p->out[i];
            stream_forget_tail(s);
            if (s->watch.fd < 0 || s->spool != NULL)
                continue;
            if (s->watched)
                loop_unwatch(&s->watch);
            s->watched = 0;
            s->lease = r->conn;
            streams |= i == 0 ? SB_STREAM_STDOUT : SB_STREAM_STDERR;
            fds[nfds++] = s->watch.fd;
            pipe_enlarge(s->watch.fd);
        }
    }
    answer_begin(&a, SB_REPLY, r->head.req);
    sb_pack_u64(&a, SB_F_STREAMS, streams);
    sb_pack_u64(&a, SB_F_LEASE, (uint64_t)lease);
    pack_record(&a, p);
    if (conn_send(r->conn, &a, fds, nfds) != 0) {
        conn_no_room(r->conn, r->head.req);
        for (int i = 0; i < 2; i++)
            stream_drain(&p->out[i]);
    }
    if (!p->running) {
        p->recheck_step = 0;
        proc_settle(p, sys_now_ms());
    }
}

static void request_spool(struct request *r, struct proc *p)
{
    int second = sb_read_u64(&r->fields, SB_F_STREAM, SB_STREAM_STDOUT) == SB_STREAM_STDERR;
    struct spool *s = p->out[second].spool;
    struct sb_packer a;
    int fd;
    if (s == NULL) {
        conn_error(r->conn, r->head.req, "InvalidArgument", 0, NULL,
                   "this output of the process is not kept", NULL);
        return;
    }
    fd = spool_read(s, sb_read_u64(&r->fields, SB_F_FROM, 0));
    if (fd < 0) {
        conn_error(r->conn, r->head.req, kind_of_errno(-fd), -fd, "pipe",
                   "no memory or descriptors for a reader", NULL);
        return;
    }
    answer_begin(&a, SB_REPLY, r->head.req);
    if (conn_send(r->conn, &a, &fd, 1) != 0)
        conn_no_room(r->conn, r->head.req);
    sys_close(fd);
}

/* With `streams` only those: for stdin it closes the copy kept for those who attach. */
static void request_release(struct request *r, struct proc *p)
{
    uint64_t which = sb_read_u64(&r->fields, SB_F_STREAMS, SB_STREAM_STDOUT | SB_STREAM_STDERR);
    if ((which & SB_STREAM_STDIN) && p->stdin_fd >= 0) {
        sys_close(p->stdin_fd);
        p->stdin_fd = -1;
    }
    for (int i = 0; i < 2; i++)
        if ((which & (i == 0 ? SB_STREAM_STDOUT : SB_STREAM_STDERR)) && p->out[i].lease == r->conn)
            stream_drain(&p->out[i]);
    conn_reply(r->conn, r->head.req);
}

static void request_list(struct request *r)
{
    struct sb_packer a;
    for (struct proc *p = procs; p != NULL; p = p->next) {
        if (p->hidden)
            continue;
        answer_begin(&a, SB_PART, r->head.req);
        pack_record(&a, p);
        conn_send(r->conn, &a, NULL, 0);
    }
    conn_reply(r->conn, r->head.req);
}

static void request_tell(struct request *r)
{
    uint64_t req = sb_read_u64(&r->fields, SB_F_REQ, 0);
    for (struct proc *p = procs; p != NULL; p = p->next)
        if (p->held != 0 && p->held == req && p->owner == r->conn)
            started_tell_held(p);
    conn_reply(r->conn, r->head.req);
}

void proc_request(struct request *r)
{
    struct proc *p;
    uint64_t sig = sb_read_u64(&r->fields, SB_F_SIGNAL, SIGTERM);
    if (r->head.type == SB_C_LIST) {
        request_list(r);
        return;
    }
    if (r->head.type == SB_C_TELL) {
        request_tell(r);
        return;
    }
    p = proc_find(r);
    if (p == NULL && r->head.type == SB_C_KILL && !names_one(r)) {
        request_kill_held(r);
        return;
    }
    if (p == NULL) {
        conn_error(r->conn, r->head.req, "NotFound", 0, NULL, "no such process", NULL);
        return;
    }
    if ((r->head.type == SB_C_SIGNAL || r->head.type == SB_C_KILL) && sig > 64) {
        conn_error(r->conn, r->head.req, "InvalidArgument", 0, NULL, "no such signal", NULL);
        return;
    }
    if (p->held != 0)
        started_tell_held(p);
    switch (r->head.type) {
    case SB_C_SIGNAL:
        p->killed |= sig == SIGKILL;
        proc_send_count(
            r->conn, r->head.req,
            tree_signal_stages(p, (int)sig, sb_read_u64(&r->fields, SB_F_GROUP, 0) != 0));
        break;
    case SB_C_KILL:
        request_kill(r, p);
        break;
    case SB_C_WAIT:
        if (p->running)
            add_waiter(r, p, 0, 0);
        else
            proc_send_exited(r->conn, r->head.req, p);
        break;
    case SB_C_ATTACH:
        request_attach(r, p);
        break;
    case SB_C_RELEASE:
        request_release(r, p);
        break;
    case SB_C_RESIZE:
        term_resize(r, p);
        break;
    case SB_C_SPOOL:
        request_spool(r, p);
        break;
    default:
        p->detached = 1;
        conn_reply(r->conn, r->head.req);
    }
}
