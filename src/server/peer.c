/* A client's connection: its bytes, its phases, its clocks. */
#include "server/pump.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define TURNS 8            /* of moving bytes before other connections get theirs */
#define LINGER 2000000000u /* ns */

struct sb_peer *sb_peer_ref(struct sb_peer *peer)
{
    peer->refs++;
    return peer;
}

void sb_peer_unref(struct sb_peer *peer)
{
    if (--peer->refs > 0)
        return;
    sb_object_unref(peer->listener);
    free(peer);
}

int sb_peer_is_idle(const struct sb_peer *peer)
{
    return peer->phase == SB_PEER_HEAD && peer->in.len == 0 && peer->out.len == 0;
}

static const struct sb_listener_limits *limits(const struct sb_peer *peer)
{
    return sb_listener_limits(peer->listener);
}

static void enter(struct sb_peer *peer, enum sb_peer_phase phase)
{
    peer->phase = phase;
    peer->since = sb_now();
    peer->rest = 0;
    peer->scanned = 0;
    peer->begun = peer->in.len > 0;
}

/* ---- ending ---- */

void sb_peer_end(struct sb_peer *peer, int reset, const struct sb_error *err)
{
    struct sb_error closed = {0};
    if (peer->phase == SB_PEER_ENDED)
        return;
    if (err == NULL) {
        sb_fail(&closed, SB_ERR_CLOSED, "the connection is closed");
        err = &closed;
    }
    peer->phase = SB_PEER_ENDED;
    peer->gone = 1;
    if (peer->watched)
        sb_source_remove(&peer->source);
    peer->watched = 0;
    sb_handshakes_leave(sb_listener_handshakes(peer->listener), peer);
    sb_timer_clear(&peer->in_timer);
    sb_timer_clear(&peer->out_timer);
    sb_timer_clear(&peer->again);
    sb_wire_close(&peer->wire, reset);
    sb_buffer_drop(&peer->in);
    sb_buffer_drop(&peer->out);
    struct sb_exchange *exchange = peer->current;
    peer->current = NULL;
    if (exchange != NULL) {
        exchange->lost = 1;
        sb_exchange_tell(exchange, 1);
        sb_exchange_over(exchange, err);
    }
    while (peer->writers != NULL) {
        struct sb_call *call = peer->writers;
        peer->writers = call->next;
        sb_call_fail(call, err);
    }
    sb_listener_left(peer->listener, peer);
    sb_peer_unref(peer);
}

static void no_memory(struct sb_peer *peer)
{
    struct sb_error err = {0};
    sb_fail_errno(&err, ENOMEM, "memory", "out of memory");
    sb_peer_end(peer, 1, &err);
}

void sb_peer_refuse(struct sb_peer *peer, int status, const char *why)
{
    static const struct sb_slice type = {"Content-Type: text/plain", 24};
    char body[160];
    int len = snprintf(body, sizeof body, "%s\n", why);
    struct sb_reply reply = {.status = status, .lines = &type, .count = 1};
    struct sb_answer answer;
    struct sb_answer_framing framing = {
        .has_length = 1, .length = (uint64_t)len, .last = 1, .minor = 1};
    if (sb_answer_make(&answer, &reply, NULL) < 0) {
        no_memory(peer);
        return;
    }
    int rc = sb_answer_put(&answer, &framing, &peer->out);
    sb_answer_free(&answer);
    if (rc < 0 || sb_put(&peer->out, body, (size_t)len) < 0) {
        no_memory(peer);
        return;
    }
    peer->last = 1;
    enter(peer, SB_PEER_LINGER);
}

/* ---- receiving ---- */

static size_t room(const struct sb_peer *peer)
{
    switch (peer->phase) {
    case SB_PEER_HEAD:
        return limits(peer)->header_limit;
    case SB_PEER_EXCHANGE:
        return peer->current != NULL && peer->current->reader == NULL &&
                       !sb_pumps_hungry(peer->current)
                   ? SB_PEER_AHEAD
                   : SB_PEER_ROOM;
    case SB_PEER_LINGER:
        return SB_PEER_ROOM;
    default:
        return 0;
    }
}

static int wants_input(const struct sb_peer *peer)
{
    return !peer->eof && peer->in.len < room(peer);
}

/* Where the next bytes go. A head comes by way of a buffer that all share, so that an idle connection needs no
 * memory of its own. */
static unsigned char shared[16384];

static unsigned char *receive_at(struct sb_peer *peer, size_t *most)
{
    *most = room(peer) - peer->in.len;
    if (*most <= sizeof shared || peer->phase == SB_PEER_HEAD) {
        if (*most > sizeof shared)
            *most = sizeof shared;
        return shared;
    }
    return sb_buffer_room(&peer->in, *most);
}

/* 1: something came, if only the end. */
static int receive(struct sb_peer *peer)
{
    size_t most;
    struct sb_handshakes *handshakes =
        sb_wire_is_shaking(&peer->wire) ? sb_listener_handshakes(peer->listener) : NULL;
    if (!wants_input(peer) || (handshakes != NULL && !sb_handshakes_enter(handshakes, peer)))
        return 0;
    unsigned char *at = receive_at(peer, &most);
    if (at == NULL) {
        no_memory(peer);
        return 0;
    }
    uint64_t began = handshakes != NULL ? sb_now() : 0;
    ssize_t n = sb_wire_read(&peer->wire, at, most);
    int sys = errno;
    if (handshakes != NULL)
        sb_handshakes_took(handshakes, began);
    errno = sys;
    if (n < 0 && errno == EAGAIN) {
        if (peer->in.len == 0)
            sb_buffer_drop(&peer->in);
        return 0;
    }
    if (n < 0) {
        struct sb_error err = {0};
        sb_fail(&err, SB_ERR_CLOSED, "the client has reset the connection");
        err.sys = errno;
        sb_peer_end(peer, 0, &err);
        return 0;
    }
    peer->in_at = sb_now();
    if (n == 0) {
        peer->eof = 1;
        return 1;
    }
    if (peer->phase == SB_PEER_HEAD && !peer->begun) {
        peer->begun = 1;
        peer->since = peer->in_at;
    }
    if (at != shared) {
        peer->in.len += (size_t)n;
    } else if (sb_put(&peer->in, at, (size_t)n) < 0) {
        no_memory(peer);
        return 0;
    }
    return 1;
}

/* ---- the phases; each returns whether anything has changed ---- */

static void begin(struct sb_peer *peer, struct sb_head *head)
{
    peer->last = !head->keep_alive || sb_listener_is_closed(peer->listener);
    peer->served++;
    sb_intake_begin(peer, head);
    if (sb_listener_is_closed(peer->listener)) {
        sb_head_free(head);
        sb_peer_refuse(peer, 503, "the server is closing");
        return;
    }
    struct sb_exchange *exchange = sb_exchange_new(peer, head);
    if (exchange == NULL) {
        sb_peer_refuse(peer, 503, "out of memory");
        return;
    }
    enter(peer, SB_PEER_EXCHANGE);
    peer->current = exchange;
    sb_listener_deliver(peer->listener, exchange);
}

static int step_head(struct sb_peer *peer)
{
    struct sb_buffer *in = &peer->in;
    /* An empty line after a body is an old habit of some clients. */
    while (in->len >= 2 && memcmp(in->data + in->start, "\r\n", 2) == 0) {
        peer->scanned = 0;
        sb_take_in(peer, 2);
    }
    if (peer->out.len > SB_PEER_HIGH)
        return 0; /* who does not take answers gets no more of them */
    size_t most = limits(peer)->header_limit;
    const char *data = in->len > 0 ? (const char *)in->data + in->start : "", *why;
    long len = sb_head_find(data, in->len, &peer->scanned);
    if (len < 0) {
        sb_peer_refuse(peer, 400,
                       "a byte that a head may not have, or a line that ends without CRLF");
        return 1;
    }
    if ((size_t)len > most || (len == 0 && in->len >= most)) {
        sb_peer_refuse(peer, 431, "the head is too long");
        return 1;
    }
    if (len == 0) {
        if (peer->eof && peer->out.len == 0)
            sb_peer_end(peer, 0, NULL);
        return 0;
    }
    struct sb_head head;
    int status = sb_head_read(&head, data, (size_t)len, &why);
    if (status != 0) {
        sb_peer_refuse(peer, status, why);
        return 1;
    }
    sb_take_in(peer, (size_t)len);
    begin(peer, &head);
    return 1;
}

/* The handler is done; what is left of the body is thrown away, if it is not too much. */
static int step_rest(struct sb_peer *peer)
{
    size_t before = peer->in.len;
    peer->last |= sb_listener_is_closed(peer->listener);
    if (!peer->last)
        peer->rest += sb_intake_read(peer, NULL, SB_PEER_ROOM);
    if (peer->last || peer->rest > SB_PEER_REST) {
        peer->last = 1;
        enter(peer, SB_PEER_LINGER);
        return 1;
    }
    if (!peer->intake.complete)
        return peer->in.len != before;
    enter(peer, SB_PEER_HEAD);
    return 1;
}

/* Is some of the body not read yet? Then a client that sends no more has gone, although what it sent is still there.
 * Behind a body that was read there may be the next request. */
static int owes_body(const struct sb_peer *peer)
{
    return peer->phase == SB_PEER_EXCHANGE && peer->current != NULL && !peer->intake.complete &&
           peer->intake.framing != SB_FRAMED_TUNNEL;
}

static int step_exchange(struct sb_peer *peer)
{
    struct sb_exchange *exchange = peer->current;
    if (exchange == NULL)
        return step_rest(peer);
    int moved = sb_exchange_serve(exchange);
    if (peer->phase == SB_PEER_ENDED)
        return 1;
    if (peer->eof && (peer->in.len == 0 || owes_body(peer)) && !peer->gone) {
        peer->gone = 1;
        sb_exchange_tell(exchange, 1);
    }
    return moved;
}

static int step_linger(struct sb_peer *peer)
{
    peer->rest += peer->in.len;
    sb_buffer_drop(&peer->in);
    if (peer->out.len > 0)
        return 0;
    if (!peer->shut) {
        peer->shut = 1;
        peer->since = sb_now();
        sb_wire_shut(&peer->wire);
    }
    if (peer->eof)
        sb_peer_end(peer, 0, NULL);
    else if (peer->rest > SB_PEER_REST)
        sb_peer_end(peer, 1, NULL);
    return 0;
}

static int step(struct sb_peer *peer)
{
    switch (peer->phase) {
    case SB_PEER_HEAD:
        return step_head(peer);
    case SB_PEER_EXCHANGE:
        return step_exchange(peer);
    case SB_PEER_LINGER:
        return step_linger(peer);
    default:
        return 0;
    }
}

/* ---- clocks: set once and looked at when they go off, since most of what they wait for comes ---- */

static uint64_t after(uint64_t from, uint64_t ns)
{
    return ns < SB_NEVER - from ? from + ns : SB_NEVER;
}

/* The time for the next head begins with the end of the answer before it. */
static uint64_t head_due(const struct sb_peer *peer)
{
    if (peer->out.len > 0)
        return SB_NEVER; /* the writing has a clock */
    uint64_t from = peer->since > peer->out_at ? peer->since : peer->out_at;
    return after(from, peer->begun || peer->served == 0 ? limits(peer)->header_timeout
                                                        : limits(peer)->idle_timeout);
}

static uint64_t input_due(const struct sb_peer *peer)
{
    switch (peer->phase) {
    case SB_PEER_HEAD:
        return head_due(peer);
    case SB_PEER_EXCHANGE:
        if (peer->current == NULL)
            return after(peer->since, limits(peer)->body_timeout);
        if (peer->intake.framing == SB_FRAMED_TUNNEL)
            return after(peer->in_at > peer->out_at ? peer->in_at : peer->out_at,
                         limits(peer)->tunnel_timeout);
        return peer->current->reader != NULL || sb_pumps_hungry(peer->current)
                   ? after(peer->in_at, limits(peer)->body_timeout)
                   : SB_NEVER;
    case SB_PEER_LINGER:
        return peer->shut ? after(peer->since, LINGER) : SB_NEVER; /* before: the writing has one */
    default:
        return SB_NEVER;
    }
}

/* Who reads a stream may have it wait; of a whole answer nothing is gained by waiting. */
static uint64_t output_limit(const struct sb_peer *peer)
{
    return peer->streams ? limits(peer)->stream_timeout : limits(peer)->write_timeout;
}

static void set_clock(struct sb_timer *timer, uint64_t due)
{
    if (due != SB_NEVER && (!timer->set || timer->at > due))
        sb_timer_set(timer, due);
}

static void silent(struct sb_peer *peer)
{
    struct sb_error err = {0};
    sb_fail(&err, SB_ERR_TIMEOUT, "nothing has come either way for %g s",
            (double)limits(peer)->tunnel_timeout / 1e9);
    sb_peer_end(peer, 1, &err);
}

static void input_is_late(struct sb_peer *peer)
{
    switch (peer->phase) {
    case SB_PEER_HEAD:
        if (peer->in.len > 0)
            sb_peer_refuse(peer, 408, "the request took too long");
        else
            sb_peer_end(peer, 0, NULL);
        break;
    case SB_PEER_EXCHANGE:
        if (peer->intake.framing == SB_FRAMED_TUNNEL) {
            silent(peer);
            break;
        }
        peer->last = 1;
        if (peer->current != NULL)
            sb_fail(&peer->intake.error, SB_ERR_TIMEOUT, "nothing of the body came for %g s",
                    (double)limits(peer)->body_timeout / 1e9);
        break;
    default:
        sb_peer_end(peer, 1, NULL);
    }
}

static void on_input_clock(struct sb_timer *timer)
{
    struct sb_peer *peer = sb_peer_ref(SB_OF(timer, struct sb_peer, in_timer));
    uint64_t due = input_due(peer);
    if (due != SB_NEVER && sb_now() >= due)
        input_is_late(peer);
    sb_peer_turn(peer);
    sb_peer_unref(peer);
}

static void on_output_clock(struct sb_timer *timer)
{
    struct sb_peer *peer = sb_peer_ref(SB_OF(timer, struct sb_peer, out_timer));
    uint64_t most = output_limit(peer);
    if (peer->stalled && sb_now() >= after(peer->out_at, most)) {
        struct sb_error err = {0};
        sb_fail(&err, SB_ERR_TIMEOUT, "the client took nothing for %g s", (double)most / 1e9);
        sb_peer_end(peer, 1, &err);
    }
    sb_peer_turn(peer);
    sb_peer_unref(peer);
}

static void on_again(struct sb_timer *timer)
{
    struct sb_peer *peer = sb_peer_ref(SB_OF(timer, struct sb_peer, again));
    sb_peer_turn(peer);
    sb_peer_unref(peer);
}

/* ---- turns ---- */

/* Nothing is wanted from a client that may send no more for now: only its end is told then, once. */
static int watch(struct sb_peer *peer)
{
    uint32_t want = 0;
    if (wants_input(peer) && !peer->queued)
        want |= EPOLLIN;
    if (peer->out.len > 0 || (peer->wire.reading_wants_room && !peer->queued))
        want |= EPOLLOUT;
    if (peer->wire.writing_wants_input)
        want |= EPOLLIN;
    if (want == 0)
        want = EPOLLET | (owes_body(peer) && !peer->gone ? EPOLLRDHUP : 0);
    set_clock(&peer->in_timer, input_due(peer));
    if (peer->stalled)
        set_clock(&peer->out_timer, after(peer->out_at, output_limit(peer)));
    if (!peer->watched) {
        peer->source.events = want;
        peer->watched = sb_source_add(&peer->source, NULL) == 0;
        return peer->watched ? 0 : -1;
    }
    if (peer->source.events != want)
        sb_source_change(&peer->source, want);
    return 0;
}

void sb_peer_turn(struct sb_peer *peer)
{
    int moved = 1;
    for (int i = 0; moved && i < TURNS && peer->phase != SB_PEER_ENDED; i++) {
        moved = receive(peer);
        if (peer->phase != SB_PEER_ENDED)
            moved |= step(peer);
        if (peer->phase != SB_PEER_ENDED)
            moved |= sb_peer_flush(peer);
    }
    if (peer->phase == SB_PEER_ENDED)
        return;
    if (moved)
        sb_timer_set(&peer->again, sb_now());
    if (watch(peer) < 0)
        no_memory(peer);
}

static void on_ready(struct sb_source *source, uint32_t events)
{
    struct sb_peer *peer = sb_peer_ref(SB_OF(source, struct sb_peer, source));
    uint32_t end = EPOLLHUP | EPOLLERR | (owes_body(peer) ? EPOLLRDHUP : 0);
    if ((events & end) != 0 && !peer->gone) {
        peer->gone = 1;
        if (peer->current != NULL)
            sb_exchange_tell(peer->current, 1);
    }
    sb_peer_turn(peer);
    sb_peer_unref(peer);
}

void sb_peer_start(struct sb_listener *listener, int fd, const char *name)
{
    struct sb_peer *peer = calloc(1, sizeof *peer);
    if (peer == NULL || sb_wire_open(&peer->wire, fd, sb_listener_context(listener)) < 0) {
        free(peer);
        close(fd);
        return;
    }
    peer->refs = 1;
    peer->listener = sb_object_ref(listener);
    peer->source = (struct sb_source){fd, 0, on_ready};
    peer->in_timer.fire = on_input_clock;
    peer->out_timer.fire = on_output_clock;
    peer->again.fire = on_again;
    peer->writers_end = &peer->writers;
    snprintf(peer->name, sizeof peer->name, "%s", name);
    enter(peer, SB_PEER_HEAD);
    sb_listener_joined(listener, peer);
    sb_peer_ref(peer);
    sb_peer_turn(peer);
    sb_peer_unref(peer);
}
