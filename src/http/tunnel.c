/* A connection to an origin that carries bytes as they are.
 *
 * libcurl makes it and, where it is encrypted, keeps it: its handle has to stay in the multi handle as long as bytes
 * go through it. So each tunnel has a multi handle of its own; in a shared one the connection would be looked at, and
 * perhaps closed, whenever another transfer is looking for one. What libcurl tells is acted upon one turn later, when
 * none of its calls is under way. */
#include "http/tunnel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http/core.h"
#include "http/origin.h"
#include "http/relay.h"

#define STREAM_HIGH (256u << 10)

struct sb_tunnel {
    struct sb_port_user user;
    struct sb_port *port; /* the starter's reference, until it has begun */
    struct sb_transfer transfer;
    struct sb_multi *multi;
    struct sb_timer timer; /* what is next: to begin, or to settle what libcurl has said */
    struct sb_relay *relay;
    CURLcode code;
    sb_dial_fn *done; /* NULL: it has been told */
    void *arg;
};

static void dispose(struct sb_tunnel *tunnel)
{
    sb_timer_clear(&tunnel->timer);
    if (tunnel->relay != NULL)
        sb_relay_stop(tunnel->relay);
    if (tunnel->transfer.easy != NULL) {
        sb_multi_remove(tunnel->multi, &tunnel->transfer); /* closes the connection */
        curl_easy_cleanup(tunnel->transfer.easy);
    }
    sb_multi_free(tunnel->multi);
    sb_port_leave(&tunnel->user);
    sb_object_unref(tunnel->port);
    free(tunnel);
}

static void fail(struct sb_tunnel *tunnel, const struct sb_error *err)
{
    sb_dial_fn *done = tunnel->done;
    void *arg = tunnel->arg;
    dispose(tunnel);
    if (done != NULL)
        done(arg, -1, err);
}

static void on_closed(struct sb_port_user *user)
{
    struct sb_error err = {0};
    sb_fail(&err, SB_ERR_CLOSED, "the port is closed");
    fail(SB_OF(user, struct sb_tunnel, user), &err);
}

/* ---- connected ---- */

static void on_relayed(void *arg)
{
    struct sb_tunnel *tunnel = arg;
    tunnel->relay = NULL;
    dispose(tunnel);
}

static void hand_over(struct sb_tunnel *tunnel, int fd)
{
    sb_dial_fn *done = tunnel->done;
    tunnel->done = NULL;
    done(tunnel->arg, fd, NULL);
}

/* What libcurl holds is the whole of it: it keeps a copy of a descriptor that goes with it. */
static void give_plain(struct sb_tunnel *tunnel, curl_socket_t at)
{
    struct sb_error err = {0};
    sb_dial_fn *done = tunnel->done;
    void *arg = tunnel->arg;
    int fd = fcntl(at, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        sb_fail_errno(&err, errno, "fcntl", "cannot copy a descriptor");
        fail(tunnel, &err);
        return;
    }
    dispose(tunnel);
    done(arg, fd, NULL);
}

static void give_pumped(struct sb_tunnel *tunnel, curl_socket_t at)
{
    struct sb_error err = {0};
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0) {
        sb_fail_errno(&err, errno, "socketpair", "cannot make a socket");
        fail(tunnel, &err);
        return;
    }
    struct sb_wire wire = {tunnel->transfer.easy, at};
    tunnel->relay = sb_relay_start_wire(pair[0], &wire, on_relayed, tunnel, &err);
    if (tunnel->relay == NULL) {
        close(pair[1]);
        fail(tunnel, &err);
        return;
    }
    hand_over(tunnel, pair[1]);
}

static void on_settle(struct sb_timer *timer)
{
    struct sb_tunnel *tunnel = SB_OF(timer, struct sb_tunnel, timer);
    struct sb_port *port = tunnel->user.port;
    struct sb_error err = {0};
    curl_socket_t at = CURL_SOCKET_BAD;
    if (tunnel->code == CURLE_OK)
        curl_easy_getinfo(tunnel->transfer.easy, CURLINFO_ACTIVESOCKET, &at);
    if (tunnel->code != CURLE_OK) {
        sb_origin_failed(port->url, tunnel->transfer.easy, tunnel->code, &err);
        fail(tunnel, &err);
    } else if (at == CURL_SOCKET_BAD) {
        sb_fail(&err, SB_ERR_UNAVAILABLE, "%s: the connection ended at once", port->url);
        fail(tunnel, &err);
    } else if (sb_origin_is_plain(port->origin, port->url)) {
        give_plain(tunnel, at);
    } else {
        give_pumped(tunnel, at);
    }
}

static void on_connected(struct sb_transfer *transfer, CURLcode code)
{
    struct sb_tunnel *tunnel = SB_OF(transfer, struct sb_tunnel, transfer);
    tunnel->code = code;
    tunnel->timer.fire = on_settle;
    sb_timer_set(&tunnel->timer, sb_now());
}

/* ---- beginning ---- */

static CURL *new_easy(const struct sb_port *port)
{
    CURL *easy = curl_easy_init();
    CURLcode rc = CURLE_OK;
    if (easy == NULL)
        return NULL;
    curl_easy_setopt(easy, CURLOPT_CURLU, port->address);
    rc |= curl_easy_setopt(easy, CURLOPT_PROXY, "");
    rc |= curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_CONNECT_ONLY, 1L);
    if (rc != CURLE_OK || sb_origin_set(easy, port->origin) < 0) {
        curl_easy_cleanup(easy);
        return NULL;
    }
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1); /* in TLS's offer */
    return easy;
}

static void on_begin(struct sb_timer *timer)
{
    struct sb_tunnel *tunnel = SB_OF(timer, struct sb_tunnel, timer);
    struct sb_port *port = tunnel->port;
    struct sb_error err = {0};
    int joined = sb_port_join(port, &tunnel->user, on_closed) == 0;
    sb_object_unref(port);
    tunnel->port = NULL;
    if (!joined) {
        sb_fail(&err, SB_ERR_CLOSED, "the port is closed");
        fail(tunnel, &err);
        return;
    }
    tunnel->multi = sb_multi_new(0, 16, &err);
    CURL *easy = tunnel->multi != NULL ? new_easy(port) : NULL;
    if (easy == NULL) {
        sb_fail_errno(&err, ENOMEM, "memory", "out of memory");
        fail(tunnel, &err);
        return;
    }
    tunnel->transfer = (struct sb_transfer){.easy = easy, .done = on_connected, .stays = 1};
    if (sb_multi_add(tunnel->multi, &tunnel->transfer, &err) < 0)
        fail(tunnel, &err);
}

struct sb_tunnel *sb_tunnel_start(struct sb_port *port, sb_dial_fn *done, void *arg)
{
    struct sb_tunnel *tunnel = calloc(1, sizeof *tunnel);
    if (tunnel == NULL)
        return NULL;
    tunnel->port = sb_object_ref(port);
    tunnel->done = done;
    tunnel->arg = arg;
    tunnel->timer.fire = on_begin;
    sb_timer_set(&tunnel->timer, sb_now());
    return tunnel;
}

void sb_tunnel_cancel(struct sb_tunnel *tunnel)
{
    dispose(tunnel);
}

/* ---- as a stream ---- */

struct opening {
    struct sb_op *op;
    struct sb_port *port; /* a reference, until it has begun */
    struct sb_tunnel *tunnel;
};

static void on_open(void *arg, int fd, const struct sb_error *told)
{
    struct opening *opening = arg;
    struct sb_op *op = opening->op;
    struct sb_error err = told != NULL ? *told : (struct sb_error){0};
    struct sb_stream *stream = fd >= 0 ? sb_stream_new(fd, 1, 1, STREAM_HIGH, &err) : NULL;
    free(opening);
    if (stream == NULL) {
        sb_op_fail(op, &err);
        return;
    }
    sb_op_result(op)->object = (struct sb_object *)stream;
    sb_op_complete(op);
}

static void on_cancel(struct sb_op *op, void *owner)
{
    struct opening *opening = owner;
    sb_tunnel_cancel(opening->tunnel);
    free(opening);
    sb_http_cancelled(op);
}

static void on_start(void *arg)
{
    struct opening *opening = arg;
    struct sb_op *op = opening->op;
    struct sb_port *port = opening->port;
    if (sb_op_asked(op) != SB_OK) {
        free(opening);
        sb_http_cancelled(op);
    } else if ((opening->tunnel = sb_tunnel_start(port, on_open, opening)) == NULL) {
        struct sb_error err = {0};
        sb_fail_errno(&err, ENOMEM, "memory", "out of memory");
        free(opening);
        sb_op_fail(op, &err);
    } else {
        sb_op_set_cancel(op, on_cancel, opening);
    }
    sb_object_unref(port);
}

struct sb_op *sb_tunnel_open(struct sb_port *port, struct sb_mailbox *mailbox)
{
    struct sb_error err = {0};
    struct sb_op *op = sb_op_new(mailbox, NULL, NULL);
    struct opening *opening = op != NULL ? calloc(1, sizeof *opening) : NULL;
    if (op == NULL)
        return NULL;
    if (opening == NULL) {
        sb_fail_errno(&err, ENOMEM, "memory", "out of memory");
        return sb_http_refuse(op, &err);
    }
    if (port->origin == NULL || port->object.generation != sb_generation()) {
        sb_fail(&err, port->origin == NULL ? SB_ERR_UNSUPPORTED : SB_ERR_FORKED,
                port->origin == NULL ? "there is no tunnel to a port"
                                     : "the port belongs to the parent process");
        free(opening);
        return sb_http_refuse(op, &err);
    }
    opening->op = op;
    opening->port = sb_object_ref(port);
    if (sb_loop_post(on_start, opening, &err) < 0) {
        sb_object_unref(port);
        free(opening);
        return sb_http_refuse(op, &err);
    }
    return op;
}
