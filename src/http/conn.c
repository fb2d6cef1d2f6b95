/* A websocket's connection: dialled, opened, then frames in and out until both sides have closed. The frames are
 * wslay's. */
#include "http/conn.h"

#include <errno.h>
#include <openssl/rand.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http/core.h"
#include "http/tunnel.h"

#define REFUSAL (64u << 10) /* of the body of an answer that opens nothing */

/* What one turn of the loop moves in each direction before the other sources get theirs. */
#define TURN (256u << 10)

struct sb_conn *sb_conn_ref(struct sb_conn *conn)
{
    atomic_fetch_add_explicit(&conn->refs, 1, memory_order_relaxed);
    return conn;
}

void sb_conn_unref(struct sb_conn *conn)
{
    if (atomic_fetch_sub_explicit(&conn->refs, 1, memory_order_acq_rel) != 1)
        return;
    while (conn->first != NULL) {
        struct sb_ws_message *message = conn->first;
        conn->first = message->next;
        free(message->data);
        free(message);
    }
    sb_handshake_free(&conn->handshake);
    sb_object_unref(conn->port);
    free(conn->head);
    free(conn);
}

/* ---- receiving ---- */

void sb_conn_serve(struct sb_conn *conn)
{
    struct sb_op *op = conn->receiving;
    struct sb_ws_message *message = conn->first;
    if (op == NULL || (message == NULL && conn->phase != SB_CONN_ENDED))
        return;
    conn->receiving = NULL;
    struct sb_result *result = sb_op_result(op);
    result->has_number = 1;
    if (message != NULL) {
        conn->first = message->next;
        if (conn->first == NULL)
            conn->last = &conn->first;
        conn->queued -= message->len + 1;
        result->number = message->binary ? 2 : 1;
        result->bytes = message->data;
        result->bytes_len = message->len;
        free(message);
    } else if (conn->error.kind != SB_OK) {
        result->error = conn->error;
    } else {
        result->number = conn->code;
        result->bytes2 = malloc(conn->reason_len + 1);
        if (result->bytes2 != NULL) {
            memcpy(result->bytes2, conn->reason, conn->reason_len);
            result->bytes2_len = conn->reason_len;
        }
    }
    sb_op_complete(op);
}

/* ---- the end ---- */

void sb_conn_fail_send(struct sb_conn *conn, struct sb_ws_sending *sending)
{
    struct sb_error err = conn->error;
    if (err.kind == SB_OK)
        sb_fail(&err, SB_ERR_CLOSED, "the websocket is closed");
    if (sending->op != NULL)
        sb_op_fail(sending->op, &err);
    free(sending);
}

void sb_conn_end(struct sb_conn *conn, const struct sb_error *err)
{
    if (conn->phase == SB_CONN_ENDED)
        return;
    conn->phase = SB_CONN_ENDED;
    if (err != NULL)
        conn->error = *err;
    if (conn->dial != NULL)
        sb_dial_cancel(conn->dial);
    if (conn->tunnel != NULL)
        sb_tunnel_cancel(conn->tunnel);
    conn->dial = NULL;
    conn->tunnel = NULL;
    if (conn->source.fd >= 0) {
        sb_source_remove(&conn->source);
        close(conn->source.fd);
        conn->source.fd = -1;
    }
    sb_timer_clear(&conn->patience);
    sb_port_leave(&conn->user);
    if (conn->ctx != NULL)
        wslay_event_context_free(conn->ctx);
    conn->ctx = NULL;
    while (conn->sends != NULL) {
        struct sb_ws_sending *sending = conn->sends;
        conn->sends = sending->next;
        sb_conn_fail_send(conn, sending);
    }
    struct sb_op *opening = conn->opening, *closing = conn->closing;
    conn->opening = conn->closing = NULL;
    if (opening != NULL)
        sb_op_fail(opening, &conn->error);
    if (closing != NULL)
        sb_op_complete(closing);
    sb_conn_serve(conn);
    sb_conn_unref(conn);
}

void sb_conn_end_with(struct sb_conn *conn, enum sb_err kind, const char *why)
{
    struct sb_error err = {0};
    sb_fail(&err, kind, "%s", why);
    sb_conn_end(conn, &err);
}

static void on_port_closed(struct sb_port_user *user)
{
    sb_conn_end_with(SB_OF(user, struct sb_conn, user), SB_ERR_CLOSED, "the port is closed");
}

/* ---- what wslay asks for ---- */

static ssize_t would_block(wslay_event_context_ptr ctx)
{
    wslay_event_set_error(ctx, WSLAY_ERR_WOULDBLOCK);
    return -1;
}

static ssize_t on_recv(wslay_event_context_ptr ctx, uint8_t *buf, size_t len, int flags, void *arg)
{
    struct sb_conn *conn = arg;
    (void)flags;
    if (conn->head_at < conn->head_len) {
        size_t n = conn->head_len - conn->head_at < len ? conn->head_len - conn->head_at : len;
        memcpy(buf, conn->head + conn->head_at, n);
        conn->head_at += n;
        return (ssize_t)n;
    }
    if (conn->in == 0 || (conn->queued >= SB_WEBSOCKET_HIGH && !conn->deaf))
        return would_block(ctx);
    ssize_t n = recv(conn->source.fd, buf, len, MSG_DONTWAIT);
    if (n > 0) {
        conn->in -= (size_t)n < conn->in ? (size_t)n : conn->in;
        return n;
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return would_block(ctx);
    conn->eof = 1;
    conn->sys = n < 0 ? errno : 0;
    wslay_event_set_error(ctx, WSLAY_ERR_CALLBACK_FAILURE);
    return -1;
}

static ssize_t on_send(wslay_event_context_ptr ctx, const uint8_t *data, size_t len, int flags,
                       void *arg)
{
    struct sb_conn *conn = arg;
    if (conn->out == 0)
        return would_block(ctx);
    ssize_t n = send(conn->source.fd, data, len,
                     MSG_DONTWAIT | MSG_NOSIGNAL | ((flags & WSLAY_MSG_MORE) != 0 ? MSG_MORE : 0));
    if (n >= 0) {
        conn->out -= (size_t)n < conn->out ? (size_t)n : conn->out;
        return n;
    }
    if (errno == EAGAIN || errno == EINTR)
        return would_block(ctx);
    conn->eof = 1;
    conn->sys = errno;
    wslay_event_set_error(ctx, WSLAY_ERR_CALLBACK_FAILURE);
    return -1;
}

static int on_mask(wslay_event_context_ptr ctx, uint8_t *buf, size_t len, void *arg)
{
    (void)arg;
    if (RAND_bytes(buf, (int)len) == 1)
        return 0;
    wslay_event_set_error(ctx, WSLAY_ERR_CALLBACK_FAILURE);
    return -1;
}

static void on_message(wslay_event_context_ptr ctx, const struct wslay_event_on_msg_recv_arg *got,
                       void *arg)
{
    struct sb_conn *conn = arg;
    (void)ctx;
    if (got->opcode == WSLAY_CONNECTION_CLOSE) {
        conn->code = got->status_code != 0 ? got->status_code : WSLAY_CODE_NO_STATUS_RCVD;
        conn->reason_len = got->msg_length > 2 ? got->msg_length - 2 : 0;
        if (conn->reason_len > 0)
            memcpy(conn->reason, got->msg + 2, conn->reason_len);
    }
    if (wslay_is_ctrl_frame(got->opcode) || conn->deaf)
        return;
    struct sb_ws_message *message = malloc(sizeof *message);
    unsigned char *data = malloc(got->msg_length + 1);
    if (message == NULL || data == NULL) {
        free(message);
        free(data);
        conn->no_memory = 1;
        return;
    }
    if (got->msg_length > 0)
        memcpy(data, got->msg, got->msg_length);
    message->next = NULL;
    message->binary = got->opcode == WSLAY_BINARY_FRAME;
    message->data = data;
    message->len = got->msg_length;
    *conn->last = message;
    conn->last = &message->next;
    conn->queued += message->len + 1; /* empty ones count as well */
}

/* ---- frames in and out ---- */

/* The one it has is out when its queue is empty. */
int sb_conn_feed(struct sb_conn *conn)
{
    struct sb_ws_sending *sending = conn->sends;
    if (sending != NULL && sending->begun && wslay_event_get_queued_msg_count(conn->ctx) == 0) {
        conn->sends = sending->next;
        if (sending->op != NULL)
            sb_op_complete(sending->op);
        free(sending);
        sending = conn->sends;
    }
    if (sending == NULL || sending->begun || conn->deaf)
        return 0;
    struct wslay_event_msg msg = {sending->binary ? WSLAY_BINARY_FRAME : WSLAY_TEXT_FRAME,
                                  sending->data, sending->len};
    int rc = wslay_event_queue_msg(conn->ctx, &msg);
    if (rc == WSLAY_ERR_NOMEM)
        conn->no_memory = 1;
    sending->begun = rc == 0;
    return rc == 0;
}

/* What wslay found wrong with what came, and has told the other side. */
static void judge(struct sb_conn *conn)
{
    switch (wslay_event_get_status_code_sent(conn->ctx)) {
    case WSLAY_CODE_MESSAGE_TOO_BIG: {
        struct sb_error err = {0};
        sb_fail(&err, SB_ERR_LIMIT_EXCEEDED, "a message is longer than %zu bytes",
                conn->max_message);
        sb_conn_end(conn, &err);
        break;
    }
    case WSLAY_CODE_INVALID_FRAME_PAYLOAD_DATA:
        sb_conn_end_with(conn, SB_ERR_PROTOCOL, "a message of text is not UTF-8");
        break;
    default:
        sb_conn_end_with(conn, SB_ERR_PROTOCOL, "the other side breaks the protocol of websockets");
    }
}

static int ended(struct sb_conn *conn, int rc)
{
    int received = wslay_event_get_close_received(conn->ctx);
    int sent = wslay_event_get_close_sent(conn->ctx);
    if (conn->no_memory || rc == WSLAY_ERR_NOMEM) {
        sb_conn_end_with(conn, SB_ERR_INTERNAL, "out of memory");
    } else if (received && (sent || conn->eof)) {
        sb_conn_end(conn, NULL);
    } else if (conn->eof && conn->deaf) {
        sb_conn_end_with(conn, SB_ERR_CLOSED, "the websocket is closed");
    } else if (conn->eof) {
        struct sb_error err = {0};
        if (conn->sys != 0)
            sb_fail_errno(&err, conn->sys, "websocket", "the connection broke without a close");
        else
            sb_fail(&err, SB_ERR_OUTCOME_UNKNOWN, "the connection ended without a close");
        err.kind = SB_ERR_OUTCOME_UNKNOWN;
        sb_conn_end(conn, &err);
    } else if (sent && !received && !conn->deaf) {
        judge(conn);
    } else if (rc != 0) {
        sb_conn_end_with(conn, SB_ERR_INTERNAL, "the frames cannot be made");
    }
    return conn->phase == SB_CONN_ENDED;
}

/* A hang-up is told without asking, and would be again and again to one who is full. */
static void watch(struct sb_conn *conn, uint32_t want)
{
    struct sb_error err = {0};
    if (conn->watched) {
        sb_source_change(&conn->source, want);
    } else if (want != 0) {
        conn->source.events = want;
        if (sb_source_add(&conn->source, &err) < 0)
            sb_conn_end(conn, &err);
        else
            conn->watched = 1;
    }
}

void sb_conn_pump(struct sb_conn *conn)
{
    int rc = 0;
    conn->in = conn->out = TURN;
    if (wslay_event_want_read(conn->ctx))
        rc = wslay_event_recv(conn->ctx);
    do {
        if (rc == 0 && wslay_event_want_write(conn->ctx))
            rc = wslay_event_send(conn->ctx);
    } while (rc == 0 && sb_conn_feed(conn));
    sb_conn_serve(conn);
    if (ended(conn, rc))
        return;
    if (conn->head != NULL && conn->head_at == conn->head_len) {
        free(conn->head);
        conn->head = NULL;
        conn->head_at = conn->head_len = conn->head_cap = 0;
    }
    int full = conn->queued >= SB_WEBSOCKET_HIGH && !conn->deaf;
    watch(conn, (wslay_event_want_read(conn->ctx) && !full ? (uint32_t)EPOLLIN : 0) |
                    (wslay_event_want_write(conn->ctx) ? (uint32_t)EPOLLOUT : 0));
}

/* ---- opening ---- */

static int begin_frames(struct sb_conn *conn)
{
    static const struct wslay_event_callbacks callbacks = {
        .recv_callback = on_recv,
        .send_callback = on_send,
        .genmask_callback = on_mask,
        .on_msg_recv_callback = on_message,
    };
    if (wslay_event_context_client_init(&conn->ctx, &callbacks, conn) != 0) {
        conn->ctx = NULL;
        return -1;
    }
    wslay_event_config_set_max_recv_msg_length(conn->ctx, conn->max_message);
    return 0;
}

/* A whole head is there, `len` bytes of it. */
static void answered(struct sb_conn *conn, size_t len, int status)
{
    struct sb_op *op = conn->opening;
    struct sb_result *result = sb_op_result(op);
    struct sb_websocket *ws = status == 101 ? calloc(1, sizeof *ws) : NULL;
    unsigned char *head = malloc(len);
    if (head == NULL || (status == 101 && (ws == NULL || begin_frames(conn) < 0))) {
        free(ws);
        free(head);
        sb_conn_end_with(conn, SB_ERR_INTERNAL, "out of memory");
        return;
    }
    memcpy(head, conn->head, len);
    conn->head_at = len;
    if (ws == NULL && conn->head_len > len &&
        (result->bytes = malloc(conn->head_len - len)) != NULL) {
        result->bytes_len = conn->head_len - len;
        memcpy(result->bytes, conn->head + len, result->bytes_len);
    }
    result->bytes2 = head;
    result->bytes2_len = len;
    result->number = status;
    result->has_number = 1;
    conn->opening = NULL;
    sb_handshake_free(&conn->handshake);
    if (ws == NULL) {
        sb_op_complete(op);
        sb_conn_end_with(conn, SB_ERR_CLOSED, "it was never open");
        return;
    }
    sb_object_init(&ws->object, &sb_websocket_type);
    ws->conn = sb_conn_ref(conn);
    result->object = &ws->object;
    conn->phase = SB_CONN_OPEN;
    sb_op_complete(op);
    sb_conn_pump(conn);
}

/* Of an origin, what opens nothing may be the word of a proxy on the way, and its body says which: waits for that as
 * far as it is known how long it is. */
static int wants_more(const struct sb_conn *conn, size_t len, int status)
{
    return status != 101 && conn->port->origin != NULL && !conn->eof &&
           conn->head_len - len < REFUSAL &&
           sb_handshake_lacks(conn->head, len, conn->head + len, conn->head_len - len);
}

/* Looks for the head in what is there; those of answers before the answer are left out. */
static void look(struct sb_conn *conn)
{
    size_t len;
    while (conn->phase == SB_CONN_ASKING &&
           (len = sb_handshake_head(conn->head, conn->head_len)) > 0) {
        struct sb_error err = {0};
        int status = sb_handshake_judge(&conn->handshake, conn->head, len, &err);
        if (status < 0) {
            sb_conn_end(conn, &err);
        } else if (status < 200 && status != 101) {
            memmove(conn->head, conn->head + len, conn->head_len - len);
            conn->head_len -= len;
        } else if (wants_more(conn, len, status)) {
            return;
        } else {
            answered(conn, len, status);
        }
    }
}

static void read_head(struct sb_conn *conn)
{
    if (conn->head_cap == conn->head_len) {
        size_t cap = conn->head_cap != 0 ? conn->head_cap * 2 : 4096;
        char *head = cap <= SB_HANDSHAKE_HEAD * 2 ? realloc(conn->head, cap) : NULL;
        if (head == NULL) {
            sb_conn_end_with(conn, cap <= SB_HANDSHAKE_HEAD * 2 ? SB_ERR_INTERNAL : SB_ERR_PROTOCOL,
                             "the head of the answer is too long");
            return;
        }
        conn->head = head;
        conn->head_cap = cap;
    }
    ssize_t n = recv(conn->source.fd, conn->head + conn->head_len, conn->head_cap - conn->head_len,
                     MSG_DONTWAIT);
    if (n > 0) {
        conn->head_len += (size_t)n;
        look(conn);
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
        struct sb_error err = {0};
        conn->eof = 1;
        look(conn); /* a body that was being waited for */
        if (conn->phase == SB_CONN_ENDED)
            return;
        if (conn->head_len > 0)
            sb_fail(&err, SB_ERR_PROTOCOL, "the connection ended inside the head of the answer");
        else
            sb_fail_errno(&err, ECONNRESET, "websocket", "the connection ended without an answer");
        if (conn->head_len == 0)
            err.kind = SB_ERR_UNAVAILABLE;
        sb_conn_end(conn, &err);
    }
}

/* Writes what is left of the request; an error shows in the answer. */
static void ask(struct sb_conn *conn)
{
    size_t left = conn->handshake.len - conn->asked;
    if (left == 0)
        return;
    ssize_t n = send(conn->source.fd, conn->handshake.request + conn->asked, left,
                     MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0)
        conn->asked += (size_t)n;
    else if (n < 0 && errno != EAGAIN && errno != EINTR)
        conn->asked = conn->handshake.len;
    sb_source_change(&conn->source,
                     EPOLLIN | (conn->asked < conn->handshake.len ? (uint32_t)EPOLLOUT : 0));
}

static void on_ready(struct sb_source *source, uint32_t events)
{
    struct sb_conn *conn =
        sb_conn_ref(SB_OF(source, struct sb_conn, source)); /* what follows may end it */
    if (conn->phase == SB_CONN_OPEN && source->events == 0) {
        sb_source_remove(source);
        conn->watched = 0;
    } else if (conn->phase == SB_CONN_OPEN) {
        sb_conn_pump(conn);
    } else {
        ask(conn);
        if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0)
            read_head(conn);
    }
    sb_conn_unref(conn);
}

static void on_dialled(void *arg, int fd, const struct sb_error *err)
{
    struct sb_conn *conn = arg;
    conn->dial = NULL;
    conn->tunnel = NULL;
    if (fd < 0) {
        sb_conn_end(conn, err);
        return;
    }
    conn->phase = SB_CONN_ASKING;
    conn->source = (struct sb_source){fd, 0, on_ready};
    watch(conn, EPOLLIN | EPOLLOUT);
}

static void on_open_cancel(struct sb_op *op, void *owner)
{
    (void)op;
    sb_conn_end_with(owner, SB_ERR_CANCELLED, "cancelled");
}

void sb_conn_open(void *arg)
{
    struct sb_conn *conn = arg;
    struct sb_error err = {0};
    sb_op_set_cancel(conn->opening, on_open_cancel, conn);
    if (sb_op_asked(conn->opening) != SB_OK) {
        sb_conn_end_with(conn, SB_ERR_CANCELLED, "cancelled");
    } else if (sb_port_join(conn->port, &conn->user, on_port_closed) < 0) {
        sb_conn_end_with(conn, SB_ERR_CLOSED, "the port is closed");
    } else {
        struct sb_port *port = conn->port;
        if (port->place != NULL)
            conn->dial = sb_dial_start(port->place, port->number, conn->until, on_dialled, conn);
        else
            conn->tunnel = sb_tunnel_start(port, on_dialled, conn);
        if (conn->dial == NULL && conn->tunnel == NULL) {
            sb_fail_errno(&err, ENOMEM, "memory", "out of memory");
            sb_conn_end(conn, &err);
        }
    }
}
