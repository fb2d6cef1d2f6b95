/* Connections of callers: accepting, reading requests, sending answers without ever waiting. */
#include "conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "box.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

enum { CONNS_MAX = 4096, QUEUE_MAX = 8 << 20, REQUESTS_PER_TURN = 16, RETRY_MS = 20 };

static struct {
    struct sb_conn *first;
    int count;
    int64_t retry_ms; /* something waits for the machine, not for its reader; 0: nothing does */
    struct sb_source listener;
} conns = {.listener = {.fd = -1}};

static unsigned char outbox[SB_MSG_MAX];

void sb_conn_begin(struct sb_packer *p, uint16_t type, uint32_t req)
{
    sb_pack_begin(p, outbox, sizeof outbox, type, req, 0);
}

int sb_conn_count(void)
{
    return conns.count;
}

static void free_queued(struct sb_queued *q)
{
    for (int i = 0; i < q->nfd; i++)
        sb_close(&q->fd[i]);
    free(q);
}

void sb_conn_drop(struct sb_conn *c)
{
    if (c->src.fd < 0)
        return;
    sb_loop_drop(&c->src);
    sb_close(&c->pidfd);
    while (c->first != NULL) {
        struct sb_queued *q = c->first;
        c->first = q->next;
        free_queued(q);
    }
    *c->link = c->next;
    if (c->next != NULL)
        c->next->link = c->link;
    conns.count--;
    sb_box_conn_gone(c);
    sb_loop_bury(c);
}

/* The machine has no room now, although the socket may look writable. */
static bool is_short(int err)
{
    return err == ENOBUFS || err == ENOMEM || err == ETOOMANYREFS;
}

/* What could not be sent, for this reason, is sent later. */
static void wait_for_room(struct sb_conn *c, int err)
{
    bool shortage = is_short(err);
    if (shortage)
        conns.retry_ms = sb_real_ms() + RETRY_MS;
    sb_loop_want(&c->src, shortage ? EPOLLIN : EPOLLIN | EPOLLOUT);
}

static void enqueue(struct sb_conn *c, const struct sb_packer *p, const int *fds, int nfd)
{
    struct sb_queued *q = c->queued + p->len <= QUEUE_MAX ? malloc(sizeof *q + p->len) : NULL;
    if (q == NULL) {
        sb_conn_drop(c);
        return;
    }
    q->next = NULL;
    q->len = p->len;
    q->nfd = 0;
    memcpy(q->data, p->buf, p->len);
    for (int i = 0; i < nfd; i++) {
        q->fd[i] = sb_lift(dup(fds[i]));
        q->nfd++;
        if (q->fd[i] < 0) {
            free_queued(q);
            sb_conn_drop(c);
            return;
        }
    }
    *c->last = q;
    c->last = &q->next;
    c->queued += q->len;
}

void sb_conn_send(struct sb_conn *c, const struct sb_packer *p, const int *fds, int nfd)
{
    if (c->src.fd < 0)
        return;
    if (p->overflow) { /* ours, not the peer's: it is told, and stays */
        struct sb_msg head;
        struct sb_failure f;
        memcpy(&head, p->buf, sizeof head);
        sb_failed(&f, "LimitExceeded", EMSGSIZE, "answer", "the answer does not fit a message");
        sb_conn_fail(c, head.req, &f);
        return;
    }
    if (c->first == NULL) {
        if (sb_wire_send(c->src.fd, p, fds, nfd) == 0)
            return;
        if (errno != EAGAIN && !is_short(errno)) {
            sb_conn_drop(c);
            return;
        }
        wait_for_room(c, errno);
    }
    enqueue(c, p, fds, nfd);
}

void sb_conn_fail(struct sb_conn *c, uint32_t req, const struct sb_failure *f)
{
    struct sb_packer p;
    sb_conn_begin(&p, SB_ERROR, req);
    sb_pack_str(&p, SB_F_KIND, f->kind);
    if (f->err != 0)
        sb_pack_u64(&p, SB_F_ERRNO, (uint64_t)f->err);
    sb_pack_str(&p, SB_F_STEP, f->step);
    sb_pack_str(&p, SB_F_MESSAGE, f->message);
    sb_conn_send(c, &p, NULL, 0);
}

void sb_conn_done(struct sb_conn *c, uint32_t req)
{
    struct sb_packer p;
    sb_conn_begin(&p, SB_REPLY, req);
    sb_conn_send(c, &p, NULL, 0);
}

static void flush(struct sb_conn *c)
{
    while (c->first != NULL) {
        struct sb_queued *q = c->first;
        struct sb_packer p = {q->data, q->len, q->len, 0};
        if (sb_wire_send(c->src.fd, &p, q->fd, q->nfd) < 0) {
            if (errno == EAGAIN || is_short(errno))
                wait_for_room(c, errno);
            else
                sb_conn_drop(c);
            return;
        }
        c->first = q->next;
        c->queued -= q->len;
        free_queued(q);
    }
    c->last = &c->first;
    sb_loop_want(&c->src, EPOLLIN);
}

int64_t sb_conn_tick(int64_t now)
{
    if (conns.retry_ms != 0 && conns.retry_ms <= now) {
        conns.retry_ms = 0;
        for (struct sb_conn *c = conns.first, *next; c != NULL; c = next) {
            next = c->next;
            if (c->first != NULL)
                flush(c);
        }
    }
    return conns.retry_ms != 0 ? conns.retry_ms : INT64_MAX;
}

static void conn_ready(struct sb_source *src, uint32_t events)
{
    struct sb_conn *c = SB_OWNER(src, struct sb_conn, src);
    struct sb_wire_in in;
    if ((events & EPOLLOUT) != 0)
        flush(c);
    for (int i = 0; i < REQUESTS_PER_TURN && c->src.fd >= 0; i++) {
        int rc = sb_wire_receive(c->src.fd, &in, SB_MSG_FDS);
        if (rc == 0)
            return;
        if (rc < 0) {
            sb_conn_drop(c);
            return;
        }
        sb_request_handle(c, &in);
        sb_wire_done(&in);
    }
}

static void listener_ready(struct sb_source *src, uint32_t events)
{
    (void)events;
    int fd = sb_lift(accept4(src->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd < 0)
        return;
    struct ucred peer;
    socklen_t len = sizeof peer;
    struct sb_conn *c = NULL;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && peer.uid == sup.owner &&
        conns.count < CONNS_MAX)
        c = calloc(1, sizeof *c);
    if (c == NULL || sb_loop_add(&c->src, fd, EPOLLIN, conn_ready) < 0) {
        if (c == NULL)
            close(fd);
        free(c);
        return;
    }
    c->pid = peer.pid;
    len = sizeof c->pidfd;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &c->pidfd, &len) < 0)
        c->pidfd = errno == ENOPROTOOPT ? sb_lift(pidfd_open(peer.pid, 0)) : -1;
    c->last = &c->first;
    c->next = conns.first;
    c->link = &conns.first;
    if (c->next != NULL)
        c->next->link = &c->next;
    conns.first = c;
    conns.count++;
}

int sb_conn_listen(int fd)
{
    return sb_loop_add(&conns.listener, fd, EPOLLIN, listener_ready);
}

void sb_conn_deafen(void)
{
    sb_loop_drop(&conns.listener);
}
