/* What goes out on a connection: at once, or when the kernel has room for it again. */
#include "sending.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define RETRY_NS 10000000ull /* where nothing tells when sending would succeed */

/* A datagram the kernel did not take yet. Its descriptors are duplicates, owned here. */
struct sb_conn_out {
    struct sb_conn_out *next;
    size_t len;
    unsigned nfds;
    int fds[SB_MSG_FDS];
    unsigned char data[];
};

/* 0 sent, or the errno. */
static int send_now(int fd, const void *data, size_t len, const int *fds, unsigned nfds)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(SB_MSG_FDS * sizeof(int))];
    } control;
    struct iovec iov = {.iov_len = len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    memcpy(&iov.iov_base, &data, sizeof data); /* sendmsg does not write; the field is not const */
    if (nfds > 0) {
        struct cmsghdr *c;
        memset(&control, 0, sizeof control);
        msg.msg_control = &control;
        msg.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
        c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(nfds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, nfds * sizeof(int));
    }
    for (;;) {
        if (sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
            return 0;
        if (errno != EINTR)
            return errno;
    }
}

/* The socket takes no more now; it becomes writable when it does. */
static int is_full(int sys)
{
    return sys == EAGAIN || sys == EWOULDBLOCK;
}

/* The machine has no room now, although the socket may look writable. */
static int is_short(int sys)
{
    return sys == ENOBUFS || sys == ENOMEM || sys == ETOOMANYREFS;
}

static void out_free(struct sb_conn_out *out)
{
    sb_fds_close(out->fds, out->nfds);
    explicit_bzero(out->data, out->len);
    free(out);
}

void sb_sending_drop(struct sb_conn *conn)
{
    while (conn->out_first != NULL) {
        struct sb_conn_out *out = conn->out_first;
        conn->out_first = out->next;
        out_free(out);
    }
    conn->out_last = &conn->out_first;
    conn->out_bytes = 0;
}

/* Lock held. What the peer does not take now waits here, bounded. */
static int queue_add(struct sb_conn *conn, const void *data, size_t len, const int *fds,
                     unsigned nfds, struct sb_error *err)
{
    struct sb_conn_out *out;
    if (conn->out_bytes + len > SB_CONN_QUEUE_MAX)
        return sb_fail(err, SB_ERR_BUSY, "too many requests are waiting to be taken");
    out = malloc(sizeof *out + len);
    if (out == NULL)
        return sb_fail_errno(err, ENOMEM, "send", "a request could not be queued");
    out->next = NULL;
    out->len = len;
    memcpy(out->data, data, len);
    for (out->nfds = 0; out->nfds < nfds; out->nfds++) {
        out->fds[out->nfds] = fcntl(fds[out->nfds], F_DUPFD_CLOEXEC, 3);
        if (out->fds[out->nfds] < 0) {
            int sys = errno;
            out_free(out);
            return sb_fail_errno(err, sys, "send", "a request could not be queued");
        }
    }
    *conn->out_last = out;
    conn->out_last = &out->next;
    conn->out_bytes += len;
    return 0;
}

/* [io] Sends what waits, and watches for room while something does; or tries again in a moment. */
void sb_sending_flush(struct sb_conn *conn)
{
    int sys = 0;
    pthread_mutex_lock(&conn->lock);
    while (conn->state == SB_CONN_OPEN && conn->out_first != NULL) {
        struct sb_conn_out *out = conn->out_first;
        sys = send_now(conn->source.fd, out->data, out->len, out->fds, out->nfds);
        if (is_full(sys) || is_short(sys))
            break;
        /* Sent, or the connection is ending, which the receiving side reports. */
        conn->out_first = out->next;
        if (conn->out_first == NULL)
            conn->out_last = &conn->out_first;
        conn->out_bytes -= out->len;
        out_free(out);
    }
    if (conn->state == SB_CONN_OPEN) {
        int later = conn->out_first != NULL && is_short(sys);
        int room = conn->out_first != NULL && !later;
        sb_source_change(&conn->source, room ? EPOLLIN | EPOLLOUT : EPOLLIN);
        sb_timer_set(&conn->retry, later ? sb_now() + RETRY_NS : SB_NEVER);
    }
    pthread_mutex_unlock(&conn->lock);
}

void sb_sending_retry(struct sb_timer *timer)
{
    sb_sending_flush((struct sb_conn *)((char *)timer - offsetof(struct sb_conn, retry)));
}

static void flush_posted(void *arg)
{
    struct sb_conn *conn = arg;
    struct sb_object *owner = conn->owner;
    pthread_mutex_lock(&conn->lock);
    conn->flush_posted = 0;
    pthread_mutex_unlock(&conn->lock);
    sb_sending_flush(conn);
    sb_object_unref(owner);
}

/* The fields of a long message, in a sealed memfd. */
int sb_sending_spill(const unsigned char *fields, size_t len, struct sb_error *err)
{
    int fd = memfd_create("sandbar-request", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return sb_fail_errno(err, errno, "memfd", "a long request could not be stored");
    while (len > 0) {
        ssize_t n = write(fd, fields, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            goto failed;
        fields += n;
        len -= (size_t)n;
    }
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) == 0)
        return fd;
failed:
    sb_fail_errno(err, errno, "memfd", "a long request could not be stored");
    close(fd);
    return -1;
}

/* Lock held. */
int sb_sending_add(struct sb_conn *conn, const unsigned char *msg, size_t len, const int *fds,
                   unsigned nfds, struct sb_error *err)
{
    int sys = conn->out_first != NULL ? EAGAIN : send_now(conn->source.fd, msg, len, fds, nfds);
    int rc;
    if (sys == EMSGSIZE || sys == EMFILE || sys == EBADF)
        return sb_fail_errno(err, sys, "send", "a request could not be sent");
    if (!is_full(sys) && !is_short(sys))
        return 0; /* sent; or the connection is ending, and then the loss answers it */
    if ((rc = queue_add(conn, msg, len, fds, nfds, err)) < 0)
        return rc;
    if (!conn->flush_posted) {
        if (conn->owner != NULL)
            sb_object_ref(conn->owner);
        if ((rc = sb_loop_post(flush_posted, conn, err)) < 0) {
            sb_object_unref(conn->owner);
            return rc;
        }
        conn->flush_posted = 1;
    }
    return 0;
}
