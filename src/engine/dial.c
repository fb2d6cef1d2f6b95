/* A TCP connection to a port inside a sandbox, on sockets that live in its network. */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../runtime/stream.h"
#include "box.h"
#include "sockets.h"

#define STREAM_HIGH 262144

struct dial {
    struct sb_op *op;        /* NULL: nobody waits any more */
    struct sb_box *box;      /* a reference */
    struct sb_source source; /* the socket being connected; fd -1: none */
    int sixth;               /* the IPv6 socket, kept for the second try; -1: none */
    unsigned port;
    int first; /* errno of the first try */
};

static void dial_free(struct dial *d)
{
    if (d->source.fd >= 0) {
        sb_source_remove(&d->source);
        close(d->source.fd);
    }
    if (d->sixth >= 0)
        close(d->sixth);
    sb_object_unref(d->box);
    free(d);
}

static void dial_fail(struct dial *d, const struct sb_error *err)
{
    struct sb_op *op = d->op;
    dial_free(d);
    if (op != NULL)
        sb_op_fail(op, err);
}

static void cancelled(struct sb_op *op, void *owner)
{
    struct dial *d = owner;
    struct sb_error err = {SB_OK};
    sb_fail(&err, SB_ERR_CANCELLED, "cancelled");
    d->op = NULL;
    if (d->source.fd >= 0)
        dial_free(d); /* connecting: nothing else knows of it */
    sb_op_fail(op, &err);
}

static void connected(struct dial *d)
{
    struct sb_error err = {SB_OK};
    struct sb_stream *stream;
    struct sb_op *op = d->op;
    int fd = d->source.fd;
    sb_source_remove(&d->source);
    d->source.fd = -1;
    stream = sb_stream_new(fd, 1, 1, STREAM_HIGH, &err);
    if (stream == NULL) {
        dial_fail(d, &err);
        return;
    }
    sb_op_result(op)->object = (struct sb_object *)stream;
    dial_free(d);
    sb_op_complete(op);
}

static void refused(struct dial *d, int sys)
{
    struct sb_error err = {SB_OK};
    sb_fail_errno(&err, sys, "connect", "port %u of the sandbox", d->port);
    if (sys == ECONNREFUSED || sys == ECONNRESET)
        err.kind = SB_ERR_UNAVAILABLE;
    dial_fail(d, &err);
}

static void next_try(struct dial *d, int sys);

static void writable(struct sb_source *source, uint32_t events)
{
    struct dial *d = (struct dial *)((char *)source - offsetof(struct dial, source));
    int sys = 0;
    socklen_t len = sizeof sys;
    (void)events;
    if (getsockopt(source->fd, SOL_SOCKET, SO_ERROR, &sys, &len) < 0)
        sys = errno;
    if (sys == 0)
        connected(d);
    else
        next_try(d, sys);
}

static void try_socket(struct dial *d, int fd, const struct sockaddr *to, socklen_t len)
{
    struct sb_error err = {SB_OK};
    d->source = (struct sb_source){.fd = fd, .events = EPOLLOUT, .ready = writable};
    if (sb_source_add(&d->source, &err) < 0) {
        close(fd);
        d->source.fd = -1;
        dial_fail(d, &err);
        return;
    }
    if (connect(fd, to, len) == 0)
        connected(d);
    else if (errno != EINPROGRESS)
        next_try(d, errno);
}

/* The first address has failed: an application may listen on the other loopback only. */
static void next_try(struct dial *d, int sys)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6,
                               .sin6_port = htons((uint16_t)d->port),
                               .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = d->sixth;
    if (fd < 0) {
        refused(d, d->first != 0 && sys != ECONNREFUSED ? d->first : sys);
        return;
    }
    d->first = sys;
    if (d->source.fd >= 0) {
        sb_source_remove(&d->source);
        close(d->source.fd);
        d->source.fd = -1;
    }
    d->sixth = -1;
    try_socket(d, fd, (struct sockaddr *)&six, sizeof six);
}

static void given(void *arg, int v4, int v6, const struct sb_error *err)
{
    struct dial *d = arg;
    struct sockaddr_in four = {.sin_family = AF_INET,
                               .sin_port = htons((uint16_t)d->port),
                               .sin_addr = {htonl(INADDR_LOOPBACK)}};
    d->sixth = v6;
    if (err != NULL || d->op == NULL) {
        sb_fds_close(&v4, 1);
        dial_fail(d, err);
    } else if (v4 >= 0) {
        try_socket(d, v4, (struct sockaddr *)&four, sizeof four);
    } else {
        next_try(d, EAFNOSUPPORT);
    }
}

static void begin(void *arg)
{
    struct dial *d = arg;
    sb_client_sockets((const struct sb_object *)d->box->engine, d->box->id, given, d);
}

struct sb_op *sb_box_dial(struct sb_box *box, struct sb_mailbox *mailbox, unsigned port)
{
    struct dial *d = calloc(1, sizeof *d);
    struct sb_error err = {SB_OK};
    struct sb_op *op;
    if (d == NULL || (op = sb_op_new(mailbox, cancelled, d)) == NULL) {
        free(d);
        return NULL;
    }
    d->op = op;
    d->box = sb_object_ref(box);
    d->source.fd = d->sixth = -1;
    d->port = port;
    if (sb_loop_post(begin, d, &err) < 0)
        dial_fail(d, &err);
    return op;
}
