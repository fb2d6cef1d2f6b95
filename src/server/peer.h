/* Inside of a connection to a client, and of the exchange that is under way on it. Everything is [io] unless said; so
 * nothing has a lock.
 *
 *   SB_PEER_HEAD      the next request is awaited, or coming
 *   SB_PEER_EXCHANGE  it is being answered; its body may still be coming. `current` is it, NULL once the handler is
 *                     done with it and the rest of the body is only thrown away
 *   SB_PEER_LINGER    all is said: what the client still sends is thrown away for a moment, so that no reset
 *                     overtakes the answer
 *   SB_PEER_ENDED
 *
 * References of a peer: its own while it is open, one an exchange, one a call into it. */
#ifndef SB_SERVER_PEER_H
#define SB_SERVER_PEER_H

#include "http/core.h"
#include "runtime/buffer.h"
#include "server/answer.h"
#include "server/chunked.h"
#include "server/handshakes.h"
#include "server/server.h"
#include "server/wire.h"

#define SB_PEER_HIGH (256u << 10) /* so much is queued for a client before who writes has to wait */
#define SB_PEER_ROOM (64u << 10)  /* so much is read ahead for who reads a body */
#define SB_PEER_AHEAD 8192u       /* ... and while nobody does */
#define SB_PEER_REST \
    (256u << 10) /* so much of a body nobody read is thrown away before the next request */

enum sb_peer_phase { SB_PEER_HEAD, SB_PEER_EXCHANGE, SB_PEER_LINGER, SB_PEER_ENDED };

/* One call of Lua's that waits for something. Holds its exchange. */
struct sb_call {
    struct sb_call *next;
    struct sb_exchange *exchange; /* a reference */
    struct sb_op *op;
    void (*run)(struct sb_call *call);
    enum sb_read_mode mode;
    size_t n;
    struct sb_answer answer;
    int stream;
    struct sb_pump *pump; /* of a call for one; owned */
    size_t len;
    unsigned char data[];
};

/* How much of a request's body has come. It outlives the handler's interest in it. */
struct sb_intake {
    enum sb_framing framing;
    uint64_t left; /* SB_FRAMED_LENGTH */
    struct sb_chunked chunked;
    int complete;
    int expects;           /* 100-continue has not been sent yet */
    struct sb_error error; /* why there will not be more of it */
};

struct sb_peer {
    unsigned refs;
    struct sb_listener *listener; /* a reference */
    struct sb_peer *next, **link; /* of the listener's */
    struct sb_wire wire;
    struct sb_source source;
    int watched;
    enum sb_peer_phase phase;
    struct sb_buffer in, out;
    size_t scanned;  /* of `in`: known to hold no whole head */
    int begun;       /* a byte of the next head has come */
    int eof;         /* nothing more comes */
    int gone;        /* the client has closed its side, or the connection is broken */
    int last;        /* the connection ends with this exchange */
    int shut;        /* we have closed our side */
    unsigned served; /* requests */
    size_t rest;     /* of what nobody read: thrown away so far */
    struct sb_exchange *current;
    struct sb_intake intake;
    struct sb_call *writers, **writers_end; /* wait for `out` to be below the high mark */
    struct sb_timer in_timer, out_timer, again;
    struct sb_peer *queue_next; /* handshakes.c's */
    int queued;                 /* its handshake has to wait */
    uint64_t since;             /* the phase began, or the first byte of a head came */
    uint64_t in_at, out_at;     /* bytes last moved, or somebody began to wait for that */
    int stalled;                /* `out` is not empty since out_at */
    int streams;                /* something in it was written piece by piece */
    char name[64];
};

struct sb_exchange {
    struct sb_object object;
    struct sb_exchange *next; /* in the listener's queue, which holds a reference */
    struct sb_peer *peer;     /* a reference */
    struct sb_head head;      /* as is: any thread, never changed */
    int secure;
    /* [io] */
    struct sb_buffer body; /* read but not handed out: of a read to the end, or put back */
    struct sb_call *reader;
    struct sb_pump *pumps;
    struct sb_call *watchers; /* wait for the client to go away */
    enum { SB_ASKED, SB_ANSWERING, SB_ANSWERED, SB_TUNNELLED } answered;
    struct sb_answer_framing framing;
    uint64_t written;
    int lost;              /* the connection ended before it had been answered ... */
    struct sb_error ended; /* ... for this reason; or it was answered */
};

/* ---- peer.c ---- */

/* Takes over fd. */
void sb_peer_start(struct sb_listener *listener, int fd, const char *name);
struct sb_peer *sb_peer_ref(struct sb_peer *peer);
void sb_peer_unref(struct sb_peer *peer);
/* Does what can be done now, then waits for what is missing. May end it: hold a reference. */
void sb_peer_turn(struct sb_peer *peer);
/* Everything that waits for it is told; `reset`: the client is to see that something is missing. Idempotent. */
void sb_peer_end(struct sb_peer *peer, int reset, const struct sb_error *err);
/* Tells the client that its request is not served, and why, then closes. */
void sb_peer_refuse(struct sb_peer *peer, int status, const char *why);
/* Has nothing been asked of it for a moment? Those are the first to go when there is no room. */
int sb_peer_is_idle(const struct sb_peer *peer);

/* ---- intake.c ---- */

void sb_intake_begin(struct sb_peer *peer, const struct sb_head *head);
/* Moves decoded bytes of the body out of the peer's input, at most `room`, to `out` (NULL: nowhere). */
size_t sb_intake_read(struct sb_peer *peer, unsigned char *out, size_t room);
void sb_take_in(struct sb_peer *peer, size_t n); /* n bytes of the input are done with */

/* ---- output.c ---- */

/* Writes what the client takes; tells who waits for that. 1: it has taken something; -1: the peer has ended. */
int sb_peer_flush(struct sb_peer *peer);
/* Completes the call once what is queued is below the high mark. */
void sb_peer_wait_out(struct sb_peer *peer, struct sb_call *call);

/* ---- exchange.c ---- */

/* Makes one of the head; NULL: out of memory. Takes over the head in every case. */
struct sb_exchange *sb_exchange_new(struct sb_peer *peer, struct sb_head *head);
/* Gives the reader and the pumps what there is. 1: bytes have moved. A tunnel's end ends the peer. */
int sb_exchange_serve(struct sb_exchange *exchange);
/* The client has gone away, or the exchange is over (number). */
void sb_exchange_tell(struct sb_exchange *exchange, int number);
/* The peer has ended or goes on without it: whoever waits is told. */
void sb_exchange_over(struct sb_exchange *exchange, const struct sb_error *err);
int sb_exchange_is_over(const struct sb_exchange *exchange);
/* The body is wanted: a client that asked first is told. */
void sb_exchange_go_on(struct sb_exchange *exchange);
/* At most `room` bytes of the body: what was put back first. */
size_t sb_exchange_take_body(struct sb_exchange *exchange, unsigned char *to, size_t room);
/* They were read but are still the body's. -1: out of memory. */
int sb_exchange_put_back(struct sb_exchange *exchange, const void *data, size_t len);
/* A piece of the answer's body. -1: out of memory; -2: more than was announced. */
int sb_exchange_put(struct sb_exchange *exchange, const void *data, size_t len);

struct sb_call *sb_call_new(struct sb_exchange *exchange, void (*run)(struct sb_call *call),
                            size_t len); /* any thread */
struct sb_op *sb_call_submit(struct sb_call *call,
                             struct sb_mailbox *mailbox); /* any thread; takes over */
void sb_call_discard(struct sb_call *call);               /* of one that was not submitted */
/* These complete and free it. */
void sb_call_fail(struct sb_call *call, const struct sb_error *err);
void sb_call_fail_with(struct sb_call *call, enum sb_err kind, const char *why);
void sb_call_fail_over(struct sb_call *call); /* what became of its exchange */
void sb_call_done(struct sb_call *call);
/* Has its answer begun and not ended? Else the call has failed. */
int sb_call_is_answering(struct sb_call *call);

/* ---- listener.c ---- */

struct sb_listener_limits {
    size_t header_limit;
    uint64_t header_timeout, idle_timeout, body_timeout, write_timeout, stream_timeout,
        tunnel_timeout;
};
const struct sb_listener_limits *sb_listener_limits(const struct sb_listener *listener);
SSL_CTX *sb_listener_context(const struct sb_listener *listener); /* NULL: plain */
struct sb_handshakes *sb_listener_handshakes(struct sb_listener *listener);
int sb_listener_is_closed(const struct sb_listener *listener);
void sb_listener_joined(struct sb_listener *listener, struct sb_peer *peer);
void sb_listener_left(struct sb_listener *listener, struct sb_peer *peer);
/* Hands it to whoever accepts, or queues it. Takes over a reference. */
void sb_listener_deliver(struct sb_listener *listener, struct sb_exchange *exchange);

#endif
