/* Inside of one request to a port: what its two halves share. fetch.c has its life (sockets,
 * retries, endings), exchange.c what happens in libcurl's hands. [io] all of it. */
#ifndef SB_HTTP_FETCH_H
#define SB_HTTP_FETCH_H

#include "http/port.h"
#include "http/request.h"

/* What a request of the I/O thread's own came to: an answer, or an error. Valid during the call. */
struct sb_answered {
    const struct sb_error *error; /* NULL: there is an answer */
    long status;
    const unsigned char *head; /* its lines, as they came */
    size_t head_len;
    const unsigned char *body;
    size_t body_len;
};
typedef void sb_told_fn(void *arg, const struct sb_answered *answer);

struct sb_fetch {
    struct sb_transfer transfer; /* easy: NULL when not in libcurl's hands */
    struct sb_port_user user;
    struct sb_port *port; /* the starter's reference, until it has joined */
    struct sb_op *op;     /* NULL once completed */
    sb_told_fn *told;     /* instead of `op`, with told_arg */
    void *told_arg;
    long status;
    int given_up;
    struct sb_prepared request;
    size_t sent; /* of request.body */
    struct sb_upload *upload;
    int stream;
    size_t max_body;
    uint64_t wait_until;

    int asking;      /* answers the place owes: the memory must stay */
    int dead;        /* ... although all else is over */
    int new_sockets; /* the pair was asked for by this attempt: a refusal is final */
    struct sb_pair pair;
    uint64_t pair_since;
    struct sb_dial *dial;
    int dialled;   /* libcurl gets a connected descriptor ... */
    int connected; /* ... this one; -1 */
    struct sb_timer probe;
    uint64_t probe_after;

    int plain;    /* the easy handle's options fit other requests */
    int requests; /* how often libcurl was about to send it */
    int pause;    /* CURLPAUSE_* in force */
    unsigned char *head;
    size_t head_len, head_cap;
    int head_done;
    size_t trailers_len;
    unsigned char *body;
    size_t body_len, body_cap;
    struct sb_queue *queue; /* the streamed body's */
    enum sb_err refused;    /* what one of our callbacks stopped the transfer for ... */
    const char *why;        /* ... in words */
};

/* exchange.c */

/* An easy handle that carries the request over the sockets of `fetch`; NULL: out of memory. */
CURL *sb_exchange_new(struct sb_fetch *fetch);
/* Gives it back, out of the multi handle; `whole`: the answer was. */
void sb_exchange_leave(struct sb_fetch *fetch, int whole);
/* What it means that libcurl ended with `code`, which is not CURLE_OK. */
void sb_exchange_broken(struct sb_fetch *fetch, CURLcode code, struct sb_error *err);
/* The request body has more; called by its queue. */
void sb_exchange_writable(void *arg); /* the fetch */

/* Whether libcurl may send it again by itself. */
static inline int sb_fetch_repeatable(const struct sb_fetch *fetch)
{
    return fetch->request.idempotent && fetch->upload == NULL;
}
/* fetch.c */

/* sb_fetch for the I/O thread itself: `told` runs once, later, and the fetch is gone then. NULL: it does not begin. */
struct sb_fetch *sb_fetch_told(struct sb_port *port, const struct sb_request *request,
                               sb_told_fn *told, void *arg, struct sb_error *err);
/* Before `told` has run: it runs now or soon, with Timeout. */
void sb_fetch_give_up(struct sb_fetch *fetch);
/* Ends it with an error, its connection closed. Not from inside one of libcurl's
 * callbacks. */
void sb_fetch_fail(struct sb_fetch *fetch, enum sb_err kind, const char *message);

#endif
