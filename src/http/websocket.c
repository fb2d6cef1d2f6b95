/* What a Lua state asks of a websocket: each is a call that is posted to the I/O thread. */
#include "http/websocket.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "http/conn.h"
#include "http/core.h"

struct sb_op *sb_websocket_open(struct sb_port *port, struct sb_mailbox *mailbox,
                                const struct sb_websocket_request *request)
{
    struct sb_error err = {0};
    struct sb_op *op = sb_op_new(mailbox, NULL, NULL);
    if (op == NULL)
        return NULL;
    if (port->object.generation != sb_generation()) {
        sb_fail(&err, SB_ERR_FORKED, "the port belongs to the parent process");
        return sb_http_refuse(op, &err);
    }
    struct sb_conn *conn = calloc(1, sizeof *conn);
    if (conn == NULL) {
        sb_fail_errno(&err, ENOMEM, "memory", "out of memory");
        return sb_http_refuse(op, &err);
    }
    atomic_init(&conn->refs, 1);
    conn->port = sb_object_ref(port);
    conn->source.fd = -1;
    conn->last = &conn->first;
    conn->max_message = request->max_message;
    uint64_t now = sb_now();
    conn->until = request->wait == 0               ? 0
                  : request->wait < SB_NEVER - now ? now + request->wait
                                                   : SB_NEVER;
    conn->opening = op;
    if (sb_handshake_make(&conn->handshake, request, port->number, &err) < 0 ||
        sb_loop_post(sb_conn_open, conn, &err) < 0) {
        sb_conn_unref(conn);
        return sb_http_refuse(op, &err);
    }
    return op;
}

/* ---- calls on an open one ---- */

struct call {
    struct sb_conn *conn;
    struct sb_op *op;
    struct sb_ws_sending *sending; /* of a send */
    uint16_t code;
    char reason[SB_WEBSOCKET_REASON];
    size_t len;
    uint64_t patience;
};

/* Takes over `op`, which nobody has seen yet, and `sending`. */
static struct sb_op *post(struct sb_websocket *ws, struct sb_op *op, struct sb_ws_sending *sending,
                          const struct call *with, void (*fn)(void *arg))
{
    struct sb_error err = {0};
    struct call *call = malloc(sizeof *call);
    if (call == NULL) {
        sb_fail_errno(&err, ENOMEM, "memory", "out of memory");
        free(sending);
        return sb_http_refuse(op, &err);
    }
    if (with != NULL)
        *call = *with;
    call->conn = sb_conn_ref(ws->conn);
    call->op = op;
    call->sending = sending;
    if (sb_loop_post(fn, call, &err) < 0) {
        sb_conn_unref(call->conn);
        free(call);
        free(sending);
        return sb_http_refuse(op, &err);
    }
    return op;
}

/* An operation on a websocket of this generation, or one that has been refused (*refused). */
static struct sb_op *begin(struct sb_websocket *ws, struct sb_mailbox *mailbox, int *refused)
{
    struct sb_op *op = sb_op_new(mailbox, NULL, NULL);
    *refused = op == NULL;
    if (op != NULL && ws->object.generation != sb_generation()) {
        struct sb_error err = {0};
        sb_fail(&err, SB_ERR_FORKED, "the websocket belongs to the parent process");
        *refused = 1;
        return sb_http_refuse(op, &err);
    }
    return op;
}

static void finish(struct call *call)
{
    sb_conn_unref(call->conn);
    free(call);
}

/* ---- receive ---- */

static void on_receive_cancel(struct sb_op *op, void *owner)
{
    struct sb_conn *conn = owner;
    if (conn->receiving == op) {
        conn->receiving = NULL;
        sb_http_cancelled(op);
    }
}

static void on_receive(void *arg)
{
    struct call *call = arg;
    struct sb_conn *conn = call->conn;
    if (sb_op_asked(call->op) != SB_OK) {
        sb_http_cancelled(call->op);
    } else if (conn->receiving != NULL) {
        struct sb_error err = {0};
        sb_fail(&err, SB_ERR_BUSY, "somebody else is receiving from the websocket");
        sb_op_fail(call->op, &err);
    } else {
        int full = conn->queued >= SB_WEBSOCKET_HIGH;
        sb_op_set_cancel(call->op, on_receive_cancel, conn);
        conn->receiving = call->op;
        sb_conn_serve(conn);
        if (full && conn->queued < SB_WEBSOCKET_HIGH && conn->phase == SB_CONN_OPEN)
            sb_conn_pump(conn);
    }
    finish(call);
}

struct sb_op *sb_websocket_receive(struct sb_websocket *ws, struct sb_mailbox *mailbox)
{
    int refused;
    struct sb_op *op = begin(ws, mailbox, &refused);
    return refused ? op : post(ws, op, NULL, NULL, on_receive);
}

/* ---- send ---- */

static void on_send_cancel(struct sb_op *op, void *owner)
{
    struct sb_conn *conn = owner;
    for (struct sb_ws_sending **at = &conn->sends; *at != NULL; at = &(*at)->next) {
        struct sb_ws_sending *sending = *at;
        if (sending->op != op)
            continue;
        sending->op = NULL;
        if (!sending->begun) {
            *at = sending->next;
            free(sending);
        }
        sb_http_cancelled(op);
        return;
    }
}

static void on_send_call(void *arg)
{
    struct call *call = arg;
    struct sb_conn *conn = call->conn;
    struct sb_ws_sending *sending = call->sending, **at = &conn->sends;
    sending->op = call->op;
    if (sb_op_asked(call->op) != SB_OK) {
        sb_http_cancelled(call->op);
        free(sending);
    } else if (conn->phase != SB_CONN_OPEN || conn->deaf ||
               wslay_event_get_close_received(conn->ctx)) {
        sb_conn_fail_send(conn, sending);
    } else {
        sb_op_set_cancel(call->op, on_send_cancel, conn);
        while (*at != NULL)
            at = &(*at)->next;
        *at = sending;
        sb_conn_feed(conn);
        sb_conn_pump(conn);
    }
    finish(call);
}

struct sb_op *sb_websocket_send(struct sb_websocket *ws, struct sb_mailbox *mailbox, int binary,
                                const void *data, size_t len)
{
    struct sb_error err = {0};
    int refused;
    struct sb_op *op = begin(ws, mailbox, &refused);
    if (refused)
        return op;
    struct sb_ws_sending *sending = malloc(sizeof *sending + len);
    if (sending == NULL) {
        sb_fail_errno(&err, ENOMEM, "memory", "out of memory");
        return sb_http_refuse(op, &err);
    }
    *sending = (struct sb_ws_sending){.binary = binary, .len = len};
    memcpy(sending->data, data, len);
    return post(ws, op, sending, NULL, on_send_call);
}

/* ---- close ---- */

static void on_patience(struct sb_timer *timer)
{
    sb_conn_end_with(SB_OF(timer, struct sb_conn, patience), SB_ERR_CLOSED,
                     "the websocket is closed");
}

static void on_close_cancel(struct sb_op *op, void *owner)
{
    struct sb_conn *conn = owner;
    if (conn->closing != op)
        return;
    conn->closing = NULL;
    sb_http_cancelled(op);
    sb_conn_end_with(conn, SB_ERR_CLOSED, "the websocket is closed");
}

static void on_close(void *arg)
{
    struct call *call = arg;
    struct sb_conn *conn = call->conn;
    if (conn->phase == SB_CONN_ENDED) {
        sb_op_complete(call->op);
    } else if (conn->closing != NULL) {
        struct sb_error err = {0};
        sb_fail(&err, SB_ERR_BUSY, "somebody else is closing the websocket");
        sb_op_fail(call->op, &err);
    } else {
        sb_op_set_cancel(call->op, on_close_cancel, conn);
        conn->closing = call->op;
        conn->deaf = 1;
        wslay_event_queue_close(conn->ctx, call->code, (const uint8_t *)call->reason, call->len);
        conn->patience.fire = on_patience;
        sb_timer_set(&conn->patience, sb_now() + call->patience);
        sb_conn_pump(conn);
    }
    finish(call);
}

struct sb_op *sb_websocket_close(struct sb_websocket *ws, struct sb_mailbox *mailbox, uint16_t code,
                                 const void *reason, size_t len, uint64_t patience)
{
    int refused;
    struct sb_op *op = begin(ws, mailbox, &refused);
    if (refused)
        return op;
    struct call call = {.code = code, .len = len, .patience = patience};
    memcpy(call.reason, reason, len);
    return post(ws, op, NULL, &call, on_close);
}

static void on_drop(void *arg)
{
    struct sb_conn *conn = arg;
    if (conn->phase == SB_CONN_OPEN) {
        conn->out = SIZE_MAX;
        wslay_event_queue_close(conn->ctx, WSLAY_CODE_GOING_AWAY, NULL, 0);
        wslay_event_send(conn->ctx); /* what the kernel takes at once */
    }
    sb_conn_end_with(conn, SB_ERR_CLOSED, "the websocket is closed");
    sb_conn_unref(conn);
}

void sb_websocket_drop(struct sb_websocket *ws)
{
    if (ws->object.generation != sb_generation())
        return;
    if (sb_loop_post(on_drop, sb_conn_ref(ws->conn), NULL) < 0)
        sb_conn_unref(ws->conn);
}

static void destroy(struct sb_object *object)
{
    struct sb_websocket *ws = (struct sb_websocket *)object;
    sb_websocket_drop(ws);
    if (object->generation == sb_generation())
        sb_conn_unref(ws->conn);
    free(ws);
}

const struct sb_object_type sb_websocket_type = {"websocket", destroy};
