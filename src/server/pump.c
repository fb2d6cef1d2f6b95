/* Pumps. */
#include "server/pump.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE (64u << 10)

void sb_pump_free(struct sb_pump *pump)
{
    if (pump == NULL)
        return;
    sb_object_unref(pump->stream);
    sb_filing_free(pump->filing);
    free(pump->piece);
    free(pump);
}

static int unlink_pump(struct sb_exchange *exchange, struct sb_pump *pump)
{
    struct sb_pump **at = &exchange->pumps;
    while (*at != NULL && *at != pump)
        at = &(*at)->next;
    if (*at == NULL)
        return 0;
    *at = pump->next;
    if (pump->tapped)
        sb_stream_tap(pump->stream, NULL, NULL, NULL);
    pump->tapped = 0;
    return 1;
}

void sb_pump_finish(struct sb_pump *pump, const struct sb_error *err)
{
    unlink_pump(pump->call->exchange, pump);
    if (pump->filing == NULL || !sb_filing_lasts(pump->filing, err))
        sb_pump_tell(pump, err);
}

void sb_pump_tell(struct sb_pump *pump, const struct sb_error *err)
{
    struct sb_call *call = pump->call;
    struct sb_result *result = sb_op_result(call->op);
    result->number = (double)pump->bytes;
    result->has_number = 1;
    if (err != NULL)
        sb_call_fail(call, err);
    else
        sb_call_done(call);
}

/* ---- out ---- */

/* Where the bytes of a data event go in its message: {event: {data: {stdout: bytes}}}. */
static size_t varint(unsigned char *to, size_t n)
{
    size_t len = 0;
    for (; n >= 128; n >>= 7)
        to[len++] = (unsigned char)(n | 128);
    to[len++] = (unsigned char)n;
    return len;
}

static size_t varint_len(size_t n)
{
    unsigned char drop[10];
    return varint(drop, n);
}

/* Three messages, one in the other: event = 1, data = 2, and the field of the kind. */
static size_t proto_head(unsigned char *to, enum sb_pump_kind kind, size_t n)
{
    size_t output = 1 + varint_len(n) + n, data = 1 + varint_len(output) + output, at = 0;
    to[at++] = 1 << 3 | 2;
    at += varint(to + at, data);
    to[at++] = 2 << 3 | 2;
    at += varint(to + at, output);
    to[at++] = (unsigned char)(((int)kind + 1) << 3 | 2);
    return at + varint(to + at, n);
}

static size_t json_head(unsigned char *to, enum sb_pump_kind kind)
{
    static const char *const names[] = {"stdout", "stderr", "pty"};
    return (size_t)snprintf((char *)to, 48, "{\"event\":{\"data\":{\"%s\":\"", names[kind]);
}

static const char json_tail[] = "\"}}}";

/* Appends the piece in its form, in one chunk where there are chunks. -1: out of memory. */
static int put_out(struct sb_pump *pump, const unsigned char *data, size_t n)
{
    struct sb_exchange *exchange = pump->call->exchange;
    struct sb_buffer *out = &exchange->peer->out;
    unsigned char head[64] = {0};
    size_t before = 5, whole;
    if (exchange->framing.none)
        return 0;
    if (pump->tunnel)
        return sb_put(out, data, n);
    if (pump->form == SB_PUMP_RAW)
        return sb_exchange_put(exchange, data, n);
    if (pump->form == SB_PUMP_PROTO) {
        before += proto_head(head + 5, pump->kind, n);
        whole = before + n;
    } else {
        before += json_head(head + 5, pump->kind);
        whole = before + (n + 2) / 3 * 4 + sizeof json_tail - 1;
    }
    size_t message = whole - 5;
    for (int i = 0; i < 4; i++)
        head[1 + i] = (unsigned char)(message >> (24 - 8 * i));
    char size[24] = "";
    int len = exchange->framing.chunked ? snprintf(size, sizeof size, "%zx\r\n", whole) : 0;
    unsigned char *to = sb_buffer_room(out, (size_t)len + whole + 3), *at = to;
    if (to == NULL)
        return -1;
    at = mempcpy(at, size, (size_t)len);
    at = mempcpy(at, head, before);
    if (pump->form == SB_PUMP_PROTO) {
        at = mempcpy(at, data, n);
    } else {
        at += EVP_EncodeBlock(at, data, (int)n); /* and a zero behind, for which there is room */
        at = mempcpy(at, json_tail, sizeof json_tail - 1);
    }
    if (exchange->framing.chunked)
        at = mempcpy(at, "\r\n", 2);
    exchange->written += whole;
    out->len += (size_t)(at - to);
    return 0;
}

/* 1: something has moved; -1: the pump has ended. */
static int move_out(struct sb_pump *pump)
{
    static unsigned char piece[PIECE];
    struct sb_exchange *exchange = pump->call->exchange;
    int moved = 0;
    while (pump->out && exchange->peer->out.len < SB_PEER_HIGH) {
        struct sb_error err = {0};
        size_t n;
        if (!sb_stream_take(pump->stream, piece, sizeof piece, &n, &err))
            break;
        moved = 1;
        int rc = n > 0 ? put_out(pump, piece, n) : 0;
        if (rc == -2)
            sb_fail(&err, SB_ERR_INVALID_ARGUMENT, "more than Content-Length announced");
        else if (rc < 0)
            sb_fail_errno(&err, ENOMEM, "memory", "out of memory");
        pump->bytes += n;
        if (err.kind != SB_OK) {
            sb_pump_finish(pump, &err);
            return -1;
        }
        pump->out = n > 0;
    }
    return moved;
}

/* ---- in ---- */

static int fetch(struct sb_pump *pump)
{
    struct sb_peer *peer = pump->call->exchange->peer;
    if (peer->in.len == 0 && !peer->eof)
        return 0;
    if (pump->piece == NULL)
        pump->piece = malloc(PIECE);
    if (pump->piece == NULL)
        return -1;
    pump->at = 0;
    pump->len = sb_intake_read(peer, pump->piece, PIECE);
    return pump->len > 0;
}

static int move_in(struct sb_pump *pump)
{
    struct sb_peer *peer = pump->call->exchange->peer;
    struct sb_error err = {0};
    int moved = 0, rc = 1;
    pump->blocked = 0;
    while (pump->in && rc > 0) {
        size_t taken = 0, before = peer->in.len;
        if (pump->at == pump->len)
            rc = fetch(pump);
        moved |= peer->in.len != before;
        if (rc < 0)
            sb_fail_errno(&err, ENOMEM, "memory", "out of memory");
        else if (pump->at < pump->len)
            (void)sb_stream_try_write(pump->stream, pump->piece + pump->at, pump->len - pump->at,
                                      &taken, &err);
        else if (peer->intake.error.kind != SB_OK)
            err = peer->intake.error;
        if (err.kind != SB_OK) {
            sb_pump_finish(pump, &err);
            return -1;
        }
        pump->at += taken;
        pump->bytes += pump->tunnel ? 0 : taken;
        moved |= taken > 0;
        pump->blocked = pump->at < pump->len;
        rc = pump->at == pump->len && pump->len > 0;
        if (pump->at == pump->len && peer->intake.complete) {
            pump->in = 0;
            moved = 1;
            if (pump->tunnel)
                sb_stream_close_write(pump->stream);
        }
        if (pump->at == pump->len)
            pump->at = pump->len = 0;
    }
    if (moved)
        peer->in_at = sb_now();
    if (pump->at == pump->len) { /* an idle tunnel keeps no memory */
        free(pump->piece);
        pump->piece = NULL;
    }
    return moved;
}

/* ---- together ---- */

/* The stream has something, or room. */
static int on_tap(void *arg)
{
    struct sb_pump *pump = arg;
    struct sb_exchange *exchange = sb_object_ref(pump->call->exchange);
    struct sb_call *call = pump->call;
    struct sb_peer *peer = sb_peer_ref(exchange->peer);
    int blocked = 0;
    sb_peer_turn(peer);
    for (struct sb_pump *at = exchange->pumps; at != NULL; at = at->next)
        if (at == pump && at->call == call)
            blocked = at->asked = at->blocked;
    sb_peer_unref(peer);
    sb_object_unref(exchange);
    return blocked;
}

/* Of a tunnel's two ends the one that has closed is passed on, behind its last byte. */
static int move_tunnel_ends(struct sb_pump *pump)
{
    struct sb_peer *peer = pump->call->exchange->peer;
    if (!pump->out && peer->out.len == 0 && !peer->shut) {
        peer->shut = 1;
        sb_wire_shut(&peer->wire);
    }
    return !pump->out && !pump->in && peer->out.len == 0;
}

/* Who is asked first: each in turn, since the first one may take all the room there is. */
static void take_turns(struct sb_exchange *exchange)
{
    struct sb_pump *first = exchange->pumps, **last = &exchange->pumps;
    if (first == NULL || first->next == NULL)
        return;
    while (*last != NULL)
        last = &(*last)->next;
    exchange->pumps = first->next;
    first->next = NULL;
    *last = first;
}

static int move_either(struct sb_pump *pump)
{
    if (pump->filing != NULL)
        return pump->in ? sb_filing_in(pump) : sb_filing_out(pump);
    int rc = pump->in ? move_in(pump) : 0;
    if (rc >= 0 && pump->blocked && !pump->asked) {
        pump->asked = 1;
        sb_stream_tap(pump->stream, on_tap, pump, NULL);
    }
    if (rc < 0)
        return rc;
    int out = move_out(pump);
    return out < 0 ? out : rc | out;
}

int sb_pumps_move(struct sb_exchange *exchange)
{
    struct sb_pump *next;
    int moved = 0;
    take_turns(exchange);
    for (struct sb_pump *pump = exchange->pumps; pump != NULL; pump = next) {
        next = pump->next;
        int tunnel = pump->tunnel;
        int rc = move_either(pump);
        moved |= rc != 0;
        if (rc < 0 && tunnel) {
            sb_peer_end(exchange->peer, 1, NULL);
            return 1;
        }
        if (rc < 0)
            continue;
        if (!tunnel && !pump->in && !pump->out) {
            sb_pump_finish(pump, NULL);
        } else if (tunnel && move_tunnel_ends(pump)) {
            sb_pump_finish(pump, NULL);
            sb_peer_end(exchange->peer, 0, NULL);
            return 1;
        }
    }
    return moved;
}

int sb_pumps_hungry(const struct sb_exchange *exchange)
{
    for (const struct sb_pump *pump = exchange->pumps; pump != NULL; pump = pump->next)
        if (pump->in && !pump->blocked)
            return 1;
    return 0;
}

int sb_pump_drop(struct sb_exchange *exchange, struct sb_call *call)
{
    return call->pump != NULL && unlink_pump(exchange, call->pump);
}

void sb_pumps_fail(struct sb_exchange *exchange, const struct sb_error *err)
{
    while (exchange->pumps != NULL)
        sb_pump_finish(exchange->pumps, err);
}

int sb_pumps_read(const struct sb_exchange *exchange)
{
    for (const struct sb_pump *pump = exchange->pumps; pump != NULL; pump = pump->next)
        if (pump->in)
            return 1;
    return 0;
}

/* ---- calls ---- */

/* Takes over the call. 0: it has failed, since the stream is another pump's. */
static int start(struct sb_call *call)
{
    struct sb_pump *pump = call->pump;
    struct sb_error err = {0};
    if (pump->stream != NULL && sb_stream_tap(pump->stream, on_tap, pump, &err) < 0) {
        sb_call_fail(call, &err);
        return 0;
    }
    pump->tapped = pump->stream != NULL;
    pump->call = call;
    pump->next = call->exchange->pumps;
    call->exchange->pumps = pump;
    return 1;
}

static void run_out(struct sb_call *call)
{
    if (sb_call_is_answering(call))
        (void)start(call);
}

static void run_in(struct sb_call *call)
{
    struct sb_exchange *exchange = call->exchange;
    if (sb_exchange_is_over(exchange)) {
        sb_call_fail_over(call);
    } else if (exchange->reader != NULL || sb_pumps_read(exchange)) {
        sb_call_fail_with(call, SB_ERR_BUSY, "somebody else is reading the body");
    } else if (sb_exchange_put_back(exchange, call->data, call->len) < 0) {
        struct sb_error err = {0};
        sb_fail_errno(&err, ENOMEM, "memory", "out of memory");
        sb_call_fail(call, &err);
    } else {
        sb_exchange_go_on(exchange);
        (void)start(call);
    }
}

/* From here on the connection is no HTTP. */
static void run_tunnel(struct sb_call *call)
{
    struct sb_exchange *exchange = call->exchange;
    struct sb_peer *peer = exchange->peer;
    if (sb_exchange_is_over(exchange)) {
        sb_call_fail_over(call);
        return;
    }
    if (exchange->answered != SB_ASKED || exchange->reader != NULL || exchange->pumps != NULL) {
        sb_call_fail_with(call, SB_ERR_INVALID_ARGUMENT,
                          "the answer has begun, or the body is read");
        return;
    }
    if (!start(call))
        return;
    exchange->answered = SB_TUNNELLED;
    peer->last = 1;
    peer->streams = 1;
    peer->intake = (struct sb_intake){.framing = SB_FRAMED_TUNNEL};
    if (sb_put(&peer->out, call->data, call->len) < 0) {
        struct sb_error err = {0};
        sb_fail_errno(&err, ENOMEM, "memory", "out of memory");
        sb_peer_end(peer, 1, &err);
    }
}

static struct sb_call *call_of(struct sb_exchange *exchange, struct sb_stream *stream,
                               void (*run)(struct sb_call *call), size_t len)
{
    struct sb_call *call = sb_call_new(exchange, run, len);
    struct sb_pump *pump = calloc(1, sizeof *pump);
    if (call == NULL || pump == NULL) {
        free(pump);
        if (call != NULL)
            sb_object_unref(exchange);
        free(call);
        return NULL;
    }
    pump->stream = stream != NULL ? sb_object_ref(stream) : NULL;
    call->pump = pump;
    return call;
}

/* The other end is a file. Takes over the call. */
static struct sb_op *submit_file(struct sb_call *call, struct sb_mailbox *mailbox,
                                 struct sb_file *file, uint64_t offset, uint64_t count,
                                 const struct sb_slice *delimiter)
{
    if (call == NULL)
        return NULL;
    call->pump->filing = sb_filing_new(call->pump, file, offset, count);
    if (call->pump->filing != NULL &&
        (delimiter == NULL || sb_filing_until(call->pump->filing, delimiter) == 0))
        return sb_call_submit(call, mailbox);
    sb_call_discard(call);
    return NULL;
}

struct sb_op *sb_exchange_pump_out(struct sb_exchange *exchange, struct sb_mailbox *mailbox,
                                   struct sb_stream *stream, enum sb_pump_form form,
                                   enum sb_pump_kind kind)
{
    struct sb_call *call = call_of(exchange, stream, run_out, 0);
    if (call != NULL) {
        call->pump->out = 1;
        call->pump->form = form;
        call->pump->kind = kind;
    }
    return sb_call_submit(call, mailbox);
}

struct sb_op *sb_exchange_pump_in(struct sb_exchange *exchange, struct sb_mailbox *mailbox,
                                  struct sb_stream *stream)
{
    struct sb_call *call = call_of(exchange, stream, run_in, 0);
    if (call != NULL)
        call->pump->in = 1;
    return sb_call_submit(call, mailbox);
}

struct sb_op *sb_exchange_tunnel(struct sb_exchange *exchange, struct sb_mailbox *mailbox,
                                 struct sb_stream *stream, const struct sb_slice *head)
{
    struct sb_call *call = call_of(exchange, stream, run_tunnel, head->len);
    if (call != NULL) {
        call->pump->in = call->pump->out = call->pump->tunnel = 1;
        if (head->len > 0)
            memcpy(call->data, head->data, head->len);
    }
    return sb_call_submit(call, mailbox);
}

struct sb_op *sb_exchange_send_file(struct sb_exchange *exchange, struct sb_mailbox *mailbox,
                                    struct sb_file *file, uint64_t offset, uint64_t count)
{
    struct sb_call *call = call_of(exchange, NULL, run_out, 0);
    if (call != NULL)
        call->pump->out = 1;
    return submit_file(call, mailbox, file, offset, count, NULL);
}

struct sb_op *sb_exchange_take_file(struct sb_exchange *exchange, struct sb_mailbox *mailbox,
                                    struct sb_file *file, uint64_t offset,
                                    const struct sb_part *part)
{
    struct sb_call *call = call_of(exchange, NULL, run_in, part != NULL ? part->early.len : 0);
    if (call != NULL)
        call->pump->in = 1;
    if (call != NULL && part != NULL && call->len > 0)
        memcpy(call->data, part->early.data, call->len);
    return submit_file(call, mailbox, file, offset, SB_FILE_REST,
                       part != NULL ? &part->delimiter : NULL);
}
