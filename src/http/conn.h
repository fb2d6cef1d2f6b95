/* Inside of a websocket: its connection, which lives on the I/O thread alone and so has no lock. Everything is [io]
 * unless said. References: the object's, the connection's own while it is open, one a call. */
#ifndef SB_HTTP_CONN_H
#define SB_HTTP_CONN_H

#include <wslay/wslay.h>

#include "http/handshake.h"
#include "http/port.h"

enum sb_conn_phase { SB_CONN_DIALLING, SB_CONN_ASKING, SB_CONN_OPEN, SB_CONN_ENDED };

struct sb_ws_message {
    struct sb_ws_message *next;
    int binary;
    unsigned char *data;
    size_t len;
};

struct sb_ws_sending {
    struct sb_ws_sending *next;
    struct sb_op *op; /* NULL: nobody waits for it any more */
    int binary, begun;
    size_t len;
    unsigned char data[];
};

struct sb_conn {
    _Atomic unsigned refs;
    struct sb_port *port;
    struct sb_port_user user;
    struct sb_handshake handshake;
    size_t max_message;
    uint64_t until; /* of dialling */
    enum sb_conn_phase phase;
    struct sb_dial *dial;     /* of a port ... */
    struct sb_tunnel *tunnel; /* ... or an origin */
    struct sb_source source;
    struct sb_op *opening;
    size_t asked; /* of the request, sent */
    char *head;   /* what was received before the frames begin; then what of them came with it */
    size_t head_at, head_len, head_cap;
    wslay_event_context_ptr ctx;
    size_t in, out; /* left of this turn */
    int watched;
    int eof, sys; /* the connection ended, or failed */
    int no_memory;
    struct sb_ws_message *first, **last;
    size_t queued; /* bytes in them */
    struct sb_ws_sending *sends;
    struct sb_op *receiving, *closing;
    struct sb_timer patience;
    int deaf; /* we have closed: nobody wants what still comes */
    uint16_t code;
    char reason[SB_WEBSOCKET_REASON];
    size_t reason_len;
    struct sb_error error; /* why it ended, SB_OK: in order */
};

struct sb_websocket {
    struct sb_object object;
    struct sb_conn *conn;
};

struct sb_conn *sb_conn_ref(struct sb_conn *conn); /* any thread, as is: */
void sb_conn_unref(struct sb_conn *conn);

/* Dials and asks; `arg` is the connection, with its port, handshake and `opening`. */
void sb_conn_open(void *arg);
/* Hands the next message, or the end, to whoever waits for it. */
void sb_conn_serve(struct sb_conn *conn);
/* Gives wslay the next message to send. 1: there was one. */
int sb_conn_feed(struct sb_conn *conn);
/* Moves frames both ways, as far as that goes now. May end it: hold a reference. */
void sb_conn_pump(struct sb_conn *conn);
/* All that waits for it is told; err NULL: it was closed in order. Drops its own reference. Idempotent. */
void sb_conn_end(struct sb_conn *conn, const struct sb_error *err);
void sb_conn_end_with(struct sb_conn *conn, enum sb_err kind, const char *why);
/* Tells who sends, and frees it. */
void sb_conn_fail_send(struct sb_conn *conn, struct sb_ws_sending *sending);

#endif
