/* A request and its answer, as the handler has them. Each call of a handler's becomes work on the I/O thread. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/pump.h"

const struct sb_head *sb_exchange_head(const struct sb_exchange *exchange)
{
    return &exchange->head;
}

const char *sb_exchange_client(const struct sb_exchange *exchange)
{
    return exchange->peer->name;
}

int sb_exchange_is_secure(const struct sb_exchange *exchange)
{
    return exchange->secure;
}

/* ---- calls ---- */

void sb_call_discard(struct sb_call *call)
{
    sb_object_unref(call->exchange);
    sb_answer_free(&call->answer);
    sb_pump_free(call->pump);
    free(call);
}

void sb_call_fail(struct sb_call *call, const struct sb_error *err)
{
    sb_op_fail(call->op, err);
    sb_call_discard(call);
}

void sb_call_done(struct sb_call *call)
{
    sb_op_complete(call->op);
    sb_call_discard(call);
}

void sb_call_fail_with(struct sb_call *call, enum sb_err kind, const char *why)
{
    struct sb_error err = {0};
    sb_fail(&err, kind, "%s", why);
    sb_call_fail(call, &err);
}

int sb_exchange_is_over(const struct sb_exchange *exchange)
{
    return exchange->peer->current != exchange;
}

void sb_call_fail_over(struct sb_call *call)
{
    struct sb_error err = call->exchange->ended;
    sb_call_fail(call, &err);
}

/* Takes the call out of a list. */
static int unlink_call(struct sb_call **at, struct sb_call *call)
{
    while (*at != NULL && *at != call)
        at = &(*at)->next;
    if (*at == NULL)
        return 0;
    *at = call->next;
    return 1;
}

static void on_cancel(struct sb_op *op, void *owner)
{
    struct sb_call *call = owner;
    struct sb_exchange *exchange = call->exchange;
    struct sb_peer *peer = exchange->peer;
    int tunnel = call->pump != NULL && call->pump->tunnel;
    if (exchange->reader == call) {
        exchange->reader = NULL;
    } else if (sb_pump_drop(exchange, call)) {
        if (tunnel)
            sb_peer_end(peer, 1, NULL);
    } else if (!unlink_call(&exchange->watchers, call) && unlink_call(&peer->writers, call)) {
        peer->writers_end = &peer->writers;
        while (*peer->writers_end != NULL)
            peer->writers_end = &(*peer->writers_end)->next;
    }
    sb_http_cancelled(op);
    sb_call_discard(call);
}

static void on_call(void *arg)
{
    struct sb_call *call = arg;
    struct sb_peer *peer = sb_peer_ref(call->exchange->peer);
    call->run(call);
    sb_peer_turn(peer);
    sb_peer_unref(peer);
}

struct sb_call *sb_call_new(struct sb_exchange *exchange, void (*run)(struct sb_call *call),
                            size_t len)
{
    struct sb_call *call = calloc(1, sizeof *call + len);
    if (call != NULL) {
        call->exchange = sb_object_ref(exchange);
        call->run = run;
        call->len = len;
    }
    return call;
}

/* Takes over the call. */
struct sb_op *sb_call_submit(struct sb_call *call, struct sb_mailbox *mailbox)
{
    if (call == NULL)
        return NULL;
    struct sb_error err = {0};
    struct sb_op *op = call->op = sb_op_new(mailbox, on_cancel, call);
    if (op == NULL) {
        sb_call_discard(call);
        return NULL;
    }
    if (call->exchange->object.generation != sb_generation())
        sb_fail(&err, SB_ERR_FORKED, "the request belongs to the parent process");
    else if (sb_loop_post(on_call, call, &err) == 0)
        return op;
    sb_call_discard(call);
    return sb_http_refuse(op, &err);
}

/* ---- the body ---- */

size_t sb_exchange_take_body(struct sb_exchange *exchange, unsigned char *to, size_t room)
{
    struct sb_buffer *body = &exchange->body;
    if (body->len == 0)
        return sb_intake_read(exchange->peer, to, room);
    size_t n = body->len < room ? body->len : room;
    if (n > 0)
        memcpy(to, body->data + body->start, n);
    body->start += n;
    body->len -= n;
    if (body->len == 0)
        sb_buffer_drop(body);
    return n;
}

int sb_exchange_put_back(struct sb_exchange *exchange, const void *data, size_t len)
{
    struct sb_buffer *body = &exchange->body, all = {0};
    if (len == 0)
        return 0;
    if (sb_put(&all, data, len) < 0 ||
        (body->len > 0 && sb_put(&all, body->data + body->start, body->len) < 0)) {
        sb_buffer_drop(&all);
        return -1;
    }
    sb_buffer_drop(body);
    *body = all;
    return 0;
}

/* To the end, or until it is too much: into the exchange's own buffer. */
static void gather(struct sb_exchange *exchange, size_t most)
{
    struct sb_buffer *body = &exchange->body;
    size_t made = 1;
    while (made > 0 && body->len <= most) {
        size_t n = most - body->len < SB_PEER_ROOM ? most - body->len + 1 : SB_PEER_ROOM;
        if (n > exchange->peer->in.len)
            n = exchange->peer->in.len;
        unsigned char *at = n > 0 ? sb_buffer_room(body, n) : NULL;
        if (n > 0 && at == NULL) {
            sb_fail_errno(&exchange->peer->intake.error, ENOMEM, "memory", "out of memory");
            return;
        }
        made = sb_intake_read(exchange->peer, at, n);
        body->len += made;
    }
}

static int serve_all(struct sb_exchange *exchange, struct sb_call *call)
{
    struct sb_intake *intake = &exchange->peer->intake;
    struct sb_result *result = sb_op_result(call->op);
    gather(exchange, call->n);
    if (exchange->body.len > call->n)
        sb_fail(&result->error, SB_ERR_LIMIT_EXCEEDED, "the body is longer than %zu bytes",
                call->n);
    else if (intake->error.kind != SB_OK)
        result->error = intake->error;
    else if (!intake->complete)
        return 0;
    else if (exchange->body.len > 0) {
        result->bytes_len = exchange->body.len;
        result->bytes = sb_buffer_take(&exchange->body, exchange->body.len);
        if (result->bytes == NULL)
            sb_fail_errno(&result->error, ENOMEM, "memory", "out of memory");
    }
    return 1;
}

static int serve_some(struct sb_exchange *exchange, struct sb_call *call)
{
    struct sb_peer *peer = exchange->peer;
    struct sb_result *result = sb_op_result(call->op);
    size_t n = exchange->body.len > 0 ? exchange->body.len : peer->in.len;
    if (n > call->n)
        n = call->n;
    if (exchange->body.len > 0) {
        result->bytes = sb_buffer_take(&exchange->body, n);
        result->bytes_len = n;
    } else {
        result->bytes = n > 0 ? malloc(n) : NULL;
        if (n == 0 || result->bytes != NULL)
            result->bytes_len = sb_intake_read(peer, result->bytes, n);
    }
    if (n > 0 && result->bytes == NULL) {
        sb_fail_errno(&result->error, ENOMEM, "memory", "out of memory");
        return 1;
    }
    if (result->bytes_len > 0)
        return 1;
    free(result->bytes);
    result->bytes = NULL;
    if (peer->intake.error.kind != SB_OK)
        result->error = peer->intake.error;
    return peer->intake.complete || peer->intake.error.kind != SB_OK;
}

int sb_exchange_serve(struct sb_exchange *exchange)
{
    struct sb_peer *peer = exchange->peer;
    size_t before = peer->in.len;
    int moved = sb_pumps_move(exchange);
    struct sb_call *call = exchange->reader;
    if (call == NULL || peer->phase == SB_PEER_ENDED)
        return moved;
    int done = call->mode == SB_READ_ALL ? serve_all(exchange, call) : serve_some(exchange, call);
    if (done) {
        exchange->reader = NULL;
        sb_call_done(call);
    }
    return moved || done || peer->in.len != before;
}

/* The body is wanted: a client that asked first is told. */
void sb_exchange_go_on(struct sb_exchange *exchange)
{
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    struct sb_peer *peer = exchange->peer;
    peer->in_at = sb_now();
    if (peer->intake.expects && exchange->answered == SB_ASKED && peer->in.len == 0 &&
        sb_put(&peer->out, go_on, sizeof go_on - 1) < 0)
        sb_fail_errno(&peer->intake.error, ENOMEM, "memory", "out of memory");
    peer->intake.expects = 0;
}

static void run_read(struct sb_call *call)
{
    struct sb_exchange *exchange = call->exchange;
    if (sb_exchange_is_over(exchange)) {
        sb_call_fail_over(call);
        return;
    }
    if (exchange->reader != NULL || sb_pumps_read(exchange)) {
        sb_call_fail_with(call, SB_ERR_BUSY, "somebody else is reading the body");
        return;
    }
    exchange->reader = call;
    sb_exchange_go_on(exchange);
}

struct sb_op *sb_exchange_read(struct sb_exchange *exchange, struct sb_mailbox *mailbox,
                               enum sb_read_mode mode, size_t n)
{
    struct sb_call *call = sb_call_new(exchange, run_read, 0);
    if (call != NULL) {
        call->mode = mode;
        call->n = n;
    }
    return sb_call_submit(call, mailbox);
}

/* ---- the answer ---- */

static void over(struct sb_exchange *exchange)
{
    struct sb_peer *peer = exchange->peer;
    struct sb_error err = {0};
    sb_fail(&err, SB_ERR_CLOSED, "this request has been answered");
    exchange->answered = SB_ANSWERED;
    peer->current = NULL;
    peer->since = sb_now();
    sb_exchange_tell(exchange, 0);
    sb_exchange_over(exchange, &err);
}

/* A client that was not told to go on with its body, or has too much of it left, is told that this was all. */
static int leaves_rest(const struct sb_exchange *exchange)
{
    const struct sb_intake *intake = &exchange->peer->intake;
    if (intake->complete)
        return 0;
    return intake->expects || intake->error.kind != SB_OK ||
           (intake->framing == SB_FRAMED_LENGTH && intake->left > SB_PEER_REST);
}

static struct sb_answer_framing framing_of(const struct sb_exchange *exchange,
                                           const struct sb_call *call)
{
    const struct sb_answer *answer = &call->answer;
    int empty = answer->status == 204 || answer->status == 304;
    struct sb_answer_framing f = {
        .minor = exchange->head.minor,
        .none = exchange->head.is_head || empty,
        .last = exchange->peer->last || answer->close ||
                sb_listener_is_closed(exchange->peer->listener) ||
                ((!call->stream || exchange->peer->intake.expects) && leaves_rest(exchange)),
    };
    if (answer->status == 204)
        return f;
    f.has_length = answer->has_length || (!call->stream && !empty);
    f.length = call->stream || empty ? answer->length : call->len;
    f.chunked = call->stream && !f.has_length && !f.none && f.minor == 1;
    f.last |= call->stream && !f.has_length && !f.none && !f.chunked;
    return f;
}

static void out_of_memory(struct sb_peer *peer)
{
    struct sb_error err = {0};
    sb_fail_errno(&err, ENOMEM, "memory", "out of memory");
    sb_peer_end(peer, 1, &err);
}

static void too_much(struct sb_call *call)
{
    sb_call_fail_with(call, SB_ERR_INVALID_ARGUMENT, "more than Content-Length announced");
}

static void run_answer(struct sb_call *call)
{
    struct sb_exchange *exchange = call->exchange;
    struct sb_peer *peer = exchange->peer;
    if (sb_exchange_is_over(exchange)) {
        sb_call_fail_over(call);
        return;
    }
    if (exchange->answered != SB_ASKED) {
        sb_call_fail_with(call, SB_ERR_INVALID_ARGUMENT, "the answer has begun already");
        return;
    }
    exchange->framing = framing_of(exchange, call);
    exchange->answered = SB_ANSWERING;
    peer->last = exchange->framing.last;
    peer->streams = call->stream || (peer->streams && peer->out.len > 0);
    int rc = sb_answer_put(&call->answer, &exchange->framing, &peer->out);
    if (rc == 0 && !call->stream && !exchange->framing.none)
        rc = sb_put(&peer->out, call->data, call->len);
    else if (rc == 0 && call->stream)
        rc = sb_exchange_put(exchange, call->data, call->len);
    if (rc == -2) {
        too_much(call);
        sb_peer_end(peer, 1, NULL);
        return;
    }
    sb_peer_wait_out(peer, call);
    if (rc < 0)
        out_of_memory(peer);
    else if (!call->stream)
        over(exchange);
}

struct sb_op *sb_exchange_answer(struct sb_exchange *exchange, struct sb_mailbox *mailbox,
                                 const struct sb_reply *reply)
{
    struct sb_error err = {0};
    struct sb_call *call = sb_call_new(exchange, run_answer, reply->body.len);
    if (call == NULL)
        return NULL;
    if (call->len > 0)
        memcpy(call->data, reply->body.data, call->len);
    call->stream = reply->stream;
    if (sb_answer_make(&call->answer, reply, &err) == 0)
        return sb_call_submit(call, mailbox);
    sb_call_discard(call);
    struct sb_op *op = sb_op_new(mailbox, NULL, NULL);
    return op != NULL ? sb_http_refuse(op, &err) : NULL;
}

int sb_exchange_put(struct sb_exchange *exchange, const void *data, size_t len)
{
    struct sb_buffer *out = &exchange->peer->out;
    char size[24];
    if (exchange->framing.has_length && len > exchange->framing.length - exchange->written)
        return -2;
    exchange->written += len;
    if (len == 0 || exchange->framing.none)
        return 0;
    if (!exchange->framing.chunked)
        return sb_put(out, data, len);
    int n = snprintf(size, sizeof size, "%zx\r\n", len);
    if (sb_buffer_room(out, len + (size_t)n + 2) == NULL)
        return -1;
    return sb_put(out, size, (size_t)n) + sb_put(out, data, len) + sb_put(out, "\r\n", 2);
}

/* Has it begun and not ended? Else the call has failed. */
int sb_call_is_answering(struct sb_call *call)
{
    if (sb_exchange_is_over(call->exchange)) {
        sb_call_fail_over(call);
        return 0;
    }
    if (call->exchange->answered == SB_ANSWERING)
        return 1;
    sb_call_fail_with(call, SB_ERR_INVALID_ARGUMENT, "the answer has not begun");
    return 0;
}

static void run_write(struct sb_call *call)
{
    struct sb_exchange *exchange = call->exchange;
    if (!sb_call_is_answering(call))
        return;
    int rc = sb_exchange_put(exchange, call->data, call->len);
    if (rc == -2) {
        too_much(call);
        return;
    }
    sb_peer_wait_out(exchange->peer, call);
    if (rc < 0)
        out_of_memory(exchange->peer);
}

struct sb_op *sb_exchange_write(struct sb_exchange *exchange, struct sb_mailbox *mailbox,
                                const void *data, size_t len)
{
    struct sb_call *call = sb_call_new(exchange, run_write, len);
    if (call != NULL && len > 0)
        memcpy(call->data, data, len);
    return sb_call_submit(call, mailbox);
}

static void run_finish(struct sb_call *call)
{
    struct sb_exchange *exchange = call->exchange;
    struct sb_peer *peer = exchange->peer;
    if (!sb_call_is_answering(call))
        return;
    const struct sb_answer_framing *framing = &exchange->framing;
    int rc = sb_exchange_put(exchange, call->data, call->len);
    if (rc == -2) {
        too_much(call);
        return;
    }
    if (framing->has_length && !framing->none && exchange->written < framing->length) {
        sb_call_fail_with(call, SB_ERR_INVALID_ARGUMENT, "less than Content-Length announced");
        sb_peer_end(peer, 1, NULL);
        return;
    }
    if (rc == 0 && framing->chunked)
        rc = sb_put(&peer->out, "0\r\n\r\n", 5);
    sb_peer_wait_out(peer, call);
    if (rc < 0)
        out_of_memory(peer);
    else
        over(exchange);
}

struct sb_op *sb_exchange_finish(struct sb_exchange *exchange, struct sb_mailbox *mailbox,
                                 const void *data, size_t len)
{
    struct sb_call *call = sb_call_new(exchange, run_finish, len);
    if (call != NULL && len > 0)
        memcpy(call->data, data, len);
    return sb_call_submit(call, mailbox);
}

/* ---- the client's end ---- */

void sb_exchange_tell(struct sb_exchange *exchange, int number)
{
    while (exchange->watchers != NULL) {
        struct sb_call *call = exchange->watchers;
        exchange->watchers = call->next;
        struct sb_result *result = sb_op_result(call->op);
        result->number = number;
        result->has_number = 1;
        sb_call_done(call);
    }
}

void sb_exchange_over(struct sb_exchange *exchange, const struct sb_error *err)
{
    struct sb_call *call = exchange->reader;
    exchange->reader = NULL;
    exchange->ended = *err;
    sb_buffer_drop(&exchange->body);
    sb_pumps_fail(exchange, err);
    if (call != NULL)
        sb_call_fail(call, err);
}

static void run_gone(struct sb_call *call)
{
    struct sb_exchange *exchange = call->exchange;
    call->next = exchange->watchers;
    exchange->watchers = call;
    if (sb_exchange_is_over(exchange))
        sb_exchange_tell(exchange, exchange->lost);
    else if (exchange->peer->gone)
        sb_exchange_tell(exchange, 1);
}

struct sb_op *sb_exchange_gone(struct sb_exchange *exchange, struct sb_mailbox *mailbox)
{
    return sb_call_submit(sb_call_new(exchange, run_gone, 0), mailbox);
}

static void on_abort(void *arg)
{
    struct sb_exchange *exchange = arg;
    if (!sb_exchange_is_over(exchange))
        sb_peer_end(exchange->peer, 1, NULL);
    sb_object_unref(exchange);
}

void sb_exchange_abort(struct sb_exchange *exchange)
{
    if (exchange->object.generation != sb_generation())
        return;
    if (sb_loop_post(on_abort, sb_object_ref(exchange), NULL) < 0)
        sb_object_unref(exchange);
}

/* ---- its life ---- */

static void free_memory(struct sb_exchange *exchange)
{
    sb_head_free(&exchange->head);
    sb_buffer_drop(&exchange->body);
    free(exchange);
}

/* Nobody has it any more. A client that waits for an answer is told that there is none. */
static void on_drop(void *arg)
{
    struct sb_exchange *exchange = arg;
    struct sb_peer *peer = exchange->peer;
    if (!sb_exchange_is_over(exchange)) {
        peer->current = NULL;
        if (exchange->answered == SB_ASKED)
            sb_peer_refuse(peer, 500, "the server gave no answer");
        else
            sb_peer_end(peer, 1, NULL);
        sb_peer_turn(peer);
    }
    free_memory(exchange);
    sb_peer_unref(peer);
}

static void destroy(struct sb_object *object)
{
    struct sb_exchange *exchange = (struct sb_exchange *)object;
    if (object->generation != sb_generation())
        free_memory(exchange); /* the peer is the parent's */
    else
        sb_loop_post(on_drop, exchange, NULL); /* refused: the process is ending */
}

const struct sb_object_type sb_exchange_type = {"request", destroy};

struct sb_exchange *sb_exchange_new(struct sb_peer *peer, struct sb_head *head)
{
    struct sb_exchange *exchange = calloc(1, sizeof *exchange);
    if (exchange == NULL) {
        sb_head_free(head);
        return NULL;
    }
    sb_object_init(&exchange->object, &sb_exchange_type);
    exchange->head = *head;
    exchange->peer = sb_peer_ref(peer);
    exchange->secure = peer->wire.tls != NULL;
    return exchange;
}
