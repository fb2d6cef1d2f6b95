/* An HTTP/1.1 server on the I/O thread: what the binding sees. No OpenSSL, no http-parser in here.
 *
 * A listener gives requests, one after another of each connection; each is an exchange until it has been answered.
 * Every call is an operation that is carried out on the I/O thread; all waits of the clients' making have bounds,
 * see struct sb_server_options. Handles belong to the process generation that made them. */
#ifndef SB_SERVER_SERVER_H
#define SB_SERVER_SERVER_H

#include "engine/filework.h"
#include "runtime/op.h"
#include "runtime/stream.h"
#include "server/head.h"

struct sb_server_options {
    const char *address; /* numbers, not a name */
    uint16_t port;       /* 0: any */
    const char *path;    /* instead: of a unix socket, which only this user may connect to */
    const char *tls_cert, *tls_key; /* PEM files; NULL: plain */
    unsigned max_connections;
    size_t header_limit; /* at most SB_SERVER_HEAD */
    uint64_t
        header_timeout; /* ns: for a whole head, from its first byte or the connection's beginning */
    uint64_t idle_timeout;   /* between two requests */
    uint64_t body_timeout;   /* without a byte of a body that somebody reads */
    uint64_t write_timeout;  /* without the client taking a byte of a whole answer */
    uint64_t stream_timeout; /* ... of one that is written piece by piece, or of a tunnel */
    uint64_t tunnel_timeout; /* of a tunnel, without a byte either way */
};
#define SB_SERVER_HEAD 65536u

struct sb_listener;
extern const struct sb_object_type sb_listener_type;
struct sb_listener *sb_listener_new(const struct sb_server_options *options, struct sb_error *err);
const char *sb_listener_address(const struct sb_listener *listener); /* or the path */
uint16_t sb_listener_port(const struct sb_listener *listener);       /* 0: a unix socket */
/* object = the next struct sb_exchange. Closed when the listener is. */
struct sb_op *sb_listener_accept(struct sb_listener *listener, struct sb_mailbox *mailbox);
/* No more connections, no more requests; what nobody has accepted is answered 503, idle connections are closed.
 * Exchanges go on. Idempotent, any thread. */
void sb_listener_close(struct sb_listener *listener);
/* Completes when no connection is left. */
struct sb_op *sb_listener_drain(struct sb_listener *listener, struct sb_mailbox *mailbox);
void sb_listener_cut(struct sb_listener *listener); /* closes it, and every connection at once */

struct sb_exchange;
extern const struct sb_object_type sb_exchange_type;
const struct sb_head *sb_exchange_head(const struct sb_exchange *exchange);
const char *sb_exchange_client(const struct sb_exchange *exchange); /* "127.0.0.1:4711", "unix" */
int sb_exchange_is_secure(const struct sb_exchange *exchange);

/* SOME: what is there, at most `n` bytes; ALL: to the end, LimitExceeded above `n`. bytes = NULL: the end. Closed when
 * the client went away inside of it, Protocol when it is none, Timeout after body_timeout. */
struct sb_op *sb_exchange_read(struct sb_exchange *exchange, struct sb_mailbox *mailbox,
                               enum sb_read_mode mode, size_t n);

/* "Name: value" lines; content_length, transfer-encoding and the like are the server's. */
struct sb_reply {
    int status;
    const struct sb_slice *lines;
    size_t count;
    struct sb_slice body;
    int stream; /* more than the body is written, then finished */
};
/* The following complete when what is queued for the client is below the high mark. NULL: out of memory. */
struct sb_op *sb_exchange_answer(struct sb_exchange *exchange, struct sb_mailbox *mailbox,
                                 const struct sb_reply *reply);
struct sb_op *sb_exchange_write(struct sb_exchange *exchange, struct sb_mailbox *mailbox,
                                const void *data, size_t len);
struct sb_op *sb_exchange_finish(struct sb_exchange *exchange, struct sb_mailbox *mailbox,
                                 const void *data, size_t len); /* the last piece, or none */

/* Bytes that no Lua state sees. The stream is the pump's until the operation ends: another one is Busy. number = how
 * many bytes. */
enum sb_pump_form {
    SB_PUMP_RAW,
    SB_PUMP_JSON,
    SB_PUMP_PROTO
}; /* the latter: envelopes with data events */
enum sb_pump_kind { SB_PUMP_STDOUT, SB_PUMP_STDERR, SB_PUMP_PTY };
/* All that comes out of the stream becomes body of the answer, which has begun. It is not finished by that. */
struct sb_op *sb_exchange_pump_out(struct sb_exchange *exchange, struct sb_mailbox *mailbox,
                                   struct sb_stream *stream, enum sb_pump_form form,
                                   enum sb_pump_kind kind);
/* The body goes into the stream, which is not closed by that. */
struct sb_op *sb_exchange_pump_in(struct sb_exchange *exchange, struct sb_mailbox *mailbox,
                                  struct sb_stream *stream);
/* The same of a file, from `offset` on: at most `count` bytes of it out, the whole body in. Ended early, the last piece
 * may still be written. Of a body in parts only what is before the next `delimiter`, which is read next. */
#define SB_FILE_REST UINT64_MAX
struct sb_part {
    struct sb_slice delimiter; /* at least a byte */
    struct sb_slice early;     /* what was read of the body, but not used */
};
struct sb_op *sb_exchange_send_file(struct sb_exchange *exchange, struct sb_mailbox *mailbox,
                                    struct sb_file *file, uint64_t offset, uint64_t count);
struct sb_op *sb_exchange_take_file(struct sb_exchange *exchange, struct sb_mailbox *mailbox,
                                    struct sb_file *file, uint64_t offset,
                                    const struct sb_part *part); /* NULL: all of it */
/* `head` is sent as it is, then the connection and the stream are each other's, until both have closed. What of the
 * request's body has not been read goes to the stream as it came. Ending the operation early cuts both. */
struct sb_op *sb_exchange_tunnel(struct sb_exchange *exchange, struct sb_mailbox *mailbox,
                                 struct sb_stream *stream, const struct sb_slice *head);

/* number = 1: the client has gone away; 0: the exchange is over. */
struct sb_op *sb_exchange_gone(struct sb_exchange *exchange, struct sb_mailbox *mailbox);
void sb_exchange_abort(struct sb_exchange *exchange); /* the connection is reset. Any thread */

#endif
