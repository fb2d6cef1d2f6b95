/* Websockets to a port: messages both ways. The frames are wslay's, the connection lives on the I/O
 * thread.
 *
 * Pings are answered and closes are settled by themselves, as long as bytes are taken off the
 * connection: that stops when received messages that nobody has asked for yet hold SB_WEBSOCKET_HIGH
 * bytes, so that a slow reader stops the program in the sandbox. */
#ifndef SB_HTTP_WEBSOCKET_H
#define SB_HTTP_WEBSOCKET_H

#include "http/http.h"

#define SB_WEBSOCKET_HIGH (256u << 10)

struct sb_websocket;
extern const struct sb_object_type sb_websocket_type;

struct sb_websocket_request {
    struct sb_slice target;         /* the raw path and query */
    const struct sb_slice *headers; /* "Name: value" lines, in order */
    size_t header_count;
    size_t max_message; /* a longer one is LimitExceeded and ends the connection */
    uint64_t wait;      /* ns during which a refused connection is tried again; not of an origin */
};

/* Everything is copied. Completes with number = status and bytes2 = the answer's head; object = the
 * websocket if the status is 101, else bytes = what has come of the body, of an origin all of it up to
 * 64 KiB, as it is on the wire. To an origin the request needs a Host line of the caller's. Errors: as those of sb_fetch; Protocol for a handshake that is none. */
struct sb_op *sb_websocket_open(struct sb_port *port, struct sb_mailbox *mailbox,
                                const struct sb_websocket_request *request);

/* The next message: bytes, number = 1 for text, 2 for binary. Or no bytes, when it was closed in order: number = the
 * code the other side gave, bytes2 = its reason. A connection that ends without a close is OutcomeUnknown.
 * Messages that arrived before come first. One receiver at a time. */
struct sb_op *sb_websocket_receive(struct sb_websocket *ws, struct sb_mailbox *mailbox);

/* One message (copied); completes when the kernel has it. One that was cancelled may still be sent, as a whole. */
struct sb_op *sb_websocket_send(struct sb_websocket *ws, struct sb_mailbox *mailbox, int binary,
                                const void *data, size_t len);

/* Closes in order: completes when the other side has answered, or after `patience` ns without it. What arrives
 * meanwhile is thrown away. `reason`: at most SB_WEBSOCKET_REASON bytes. */
#define SB_WEBSOCKET_REASON 123
struct sb_op *sb_websocket_close(struct sb_websocket *ws, struct sb_mailbox *mailbox, uint16_t code,
                                 const void *reason, size_t len, uint64_t patience);

/* At once, telling the other side that we went away. Idempotent, any thread. */
void sb_websocket_drop(struct sb_websocket *ws);

int sb_utf8_valid(const void *data, size_t len);

#endif
