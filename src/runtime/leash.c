/* A connection of this process to itself that nobody writes to. Its end is the message. */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "internal.h"
#include "leash.h"
#include "listen.h"

/* The I/O thread's once sb_leash has returned. Freed by whoever comes last: `accepted` and
 * the end. */
struct leash {
    struct sb_source source; /* fd -1: not connected yet */
    struct sb_op *op;        /* NULL: completed */
};

/* The operation is answered; what is left is the connection, made or still to come. */
static struct sb_op *finish(struct leash *l)
{
    struct sb_op *op = l->op;
    l->op = NULL;
    if (l->source.fd >= 0) {
        sb_source_remove(&l->source);
        close(l->source.fd);
        free(l);
    }
    return op;
}

static void cancel(struct sb_op *op, void *owner)
{
    struct sb_error err;
    sb_fail(&err, SB_ERR_CANCELLED, "cancelled");
    finish(owner);
    sb_op_fail(op, &err);
}

static void ready(struct sb_source *source, uint32_t events)
{
    struct leash *l = sb_container(source, struct leash, source);
    char scratch[64];
    ssize_t got = recv(source->fd, scratch, sizeof scratch, MSG_DONTWAIT);
    (void)events;
    if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR)))
        return;
    sb_op_complete(finish(l));
}

static void accepted(void *arg, int fd)
{
    struct leash *l = arg;
    struct sb_error err;
    if (l->op != NULL && fd >= 0) {
        l->source.fd = fd;
        if (sb_source_add(&l->source, &err) == 0)
            return;
        l->source.fd = -1;
    } else {
        sb_fail(&err, SB_ERR_UNAVAILABLE, "nobody connected to the leash");
    }
    if (fd >= 0)
        close(fd);
    if (l->op != NULL)
        sb_op_fail(l->op, &err);
    free(l);
}

struct sb_op *sb_leash(struct sb_mailbox *mailbox, char **path, struct sb_error *err)
{
    struct leash *l = calloc(1, sizeof *l);
    struct sb_op *op = l != NULL ? sb_op_new(mailbox, cancel, l) : NULL;
    if (op == NULL) {
        free(l);
        sb_fail_errno(err, ENOMEM, "leash", "cannot make a leash");
        return NULL;
    }
    l->source = (struct sb_source){-1, EPOLLIN | EPOLLRDHUP, ready};
    l->op = op;
    *path = sb_listen(accepted, l, err);
    if (*path == NULL) {
        sb_op_set_cancel(op, NULL, NULL);
        free(l);
        sb_op_fail(op, err);
        sb_op_unref(op);
        return NULL;
    }
    return op;
}
