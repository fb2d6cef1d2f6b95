/* HTTP into a port of a sandbox: what the binding sees. No libcurl in here.
 *
 * A port object stands for (sandbox, boot, port): its connections are never shared with another
 * one's. It owns the place its sockets come from; transfers in flight hold it. Handles belong to
 * the process generation that made them; in a forked child every call fails with Forked. */
#ifndef SB_HTTP_HTTP_H
#define SB_HTTP_HTTP_H

#include "http/body.h"
#include "http/sockets.h"
#include "runtime/op.h"
#include "runtime/slice.h"

struct sb_port;
extern const struct sb_object_type sb_port_type;

/* Takes over `place` in every case. No I/O. */
struct sb_port *sb_port_new(struct sb_place *place, uint16_t number, struct sb_error *err);
/* An origin reached by its name ("https://api.example.com"), through the host's resolver and
 * network. */
struct sb_origin_options {
    const char *url;
    struct sb_slice proxy;    /* "http://[user:password@]host:port", https, socks5h; empty: none */
    const char *ca_file;      /* the certificates trusted, in PEM; NULL: the machine's */
    uint64_t connect_timeout; /* ns, name, proxy and TLS included; 0: five minutes */
    int http2;                /* over TLS, where it is offered */
};
struct sb_port *sb_origin_new(const struct sb_origin_options *options, struct sb_error *err);
/* Transfers and relays in flight end with Closed. Any thread. */
void sb_port_close(struct sb_port *port);

/* Everything is copied, except `upload`, which is referenced. */
struct sb_request {
    struct sb_slice method;
    struct sb_slice target;         /* the raw path and query, sent as it is */
    const struct sb_slice *headers; /* "Name: value" lines, in order */
    size_t header_count;
    struct sb_slice body;
    int has_body;
    struct sb_upload
        *upload;     /* instead of `body`; its length from a Content-Length line, else chunked */
    int stream;      /* complete at the head of the answer, with a body to read */
    size_t max_body; /* else: a longer body is LimitExceeded */
    uint64_t wait;   /* ns during which a refused connection is tried again */
    int repeatable;  /* it may be sent twice whatever its method */
};

/* One request and its answer: number = status, bytes2 = the answer's head as it came ("HTTP/1.1
 * 200 OK" and header lines, each with its line end), bytes = the body or object = sb_body. Any
 * status is an answer, redirects included. A request that is not idempotent is never sent twice.
 *
 * Errors: InvalidArgument before anything is sent; Unavailable with ECONNREFUSED when nothing
 * listens; what the place says (NotRunning, NotFound); when the connection breaks before an
 * answer: Unavailable with ECONNRESET for idempotent methods, OutcomeUnknown for the others;
 * when it breaks inside the answer: Protocol, OutcomeUnknown for the others; not HTTP: Protocol. */
struct sb_op *sb_fetch(struct sb_port *port, struct sb_mailbox *mailbox,
                       const struct sb_request *request);

/* Completes when a connection to the port succeeds (it is closed again), for `wait` ns. */
struct sb_op *sb_port_wait(struct sb_port *port, struct sb_mailbox *mailbox, uint64_t wait);

/* A connection to an origin that carries bytes as they are, TLS and proxy included: object = sb_stream of both
 * directions. Over TLS the end of writing is the end of it. */
struct sb_op *sb_tunnel_open(struct sb_port *port, struct sb_mailbox *mailbox);

/* A listening unix socket in a private directory of the host whose connections are relayed to
 * the port, or an origin. The directory goes with it; at process exit too. */
struct sb_upstream;
extern const struct sb_object_type sb_upstream_type;
struct sb_upstream *sb_upstream_new(struct sb_port *port, struct sb_error *err);
const char *sb_upstream_path(const struct sb_upstream *upstream);
void sb_upstream_close(struct sb_upstream *upstream); /* any thread, idempotent */

/* libcurl's and OpenSSL's global set-up, once per process. */
int sb_http_init(struct sb_error *err);
/* A certificate authority of its own: certificate and key in PEM, and by what OpenSSL finds it in a directory. The
 * caller wipes the key. */
struct sb_authority {
    char cert[2048], key[1024], hash[16];
};
int sb_authority_make(struct sb_authority *a); /* 0 or -1 */

/* Of the parts, one behind the other. 0 or -1 */
int sb_sha256(const struct sb_slice *parts, size_t n, unsigned char out[32]);

#endif
