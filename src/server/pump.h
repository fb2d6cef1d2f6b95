/* Bytes between an exchange and a stream of the runtime or a file, without a Lua state in between. Everything is [io].
 *
 * Out: what the stream has becomes the answer's body, as it is or in envelopes of Connect; the stream is read only
 * while less than the high mark is queued for the client. In: the request's body goes to the stream, and is read off
 * the socket only as far as the stream takes it. Both, as a tunnel: what follows the head, either way, until both
 * sides have closed. A pump holds its exchange (by its call) and its stream, and ends with the first of them.
 *
 * Of a file a piece is with a file thread while the one before (out) or behind it (in) is with the client. */
#ifndef SB_SERVER_PUMP_H
#define SB_SERVER_PUMP_H

#include "server/peer.h"

struct sb_pump {
    struct sb_pump *next;
    struct sb_call *call;
    struct sb_stream *stream; /* a reference; NULL: */
    struct sb_filing *filing; /* owned, filing.c's */
    int tapped;               /* the stream is its own */
    int in, out;              /* the ways that are still open */
    int tunnel;
    int blocked; /* the stream takes no more ... */
    int asked;   /* ... and will tell when it does */
    enum sb_pump_form form;
    enum sb_pump_kind kind;
    uint64_t bytes;
    unsigned char *piece; /* read, on its way into the stream */
    size_t at, len;
};

/* Moves what can be moved: 1 if anything was. May end pumps; a tunnel's end is the peer's. */
int sb_pumps_move(struct sb_exchange *exchange);
/* Is one of them waiting for bytes of the client? */
int sb_pumps_hungry(const struct sb_exchange *exchange);
int sb_pumps_read(const struct sb_exchange *exchange); /* has one of them the body? */
/* Ends the pump of this call without completing it: 1, or 0 when it has none. */
int sb_pump_drop(struct sb_exchange *exchange, struct sb_call *call);
/* Ends all with this error. */
void sb_pumps_fail(struct sb_exchange *exchange, const struct sb_error *err);
void sb_pump_free(struct sb_pump *pump);
/* Its call completes, now or when its file thread has let go of it. */
void sb_pump_finish(struct sb_pump *pump, const struct sb_error *err);
void sb_pump_tell(struct sb_pump *pump,
                  const struct sb_error *err); /* ... now, of one that is unlinked */

/* ---- filing.c ---- */

/* From `offset` on; out: `count` bytes at most. NULL: out of memory. */
struct sb_filing *sb_filing_new(struct sb_pump *pump, struct sb_file *file, uint64_t offset,
                                uint64_t count);
/* In: only to where these bytes begin, which stay in the body. -1: out of memory. */
int sb_filing_until(struct sb_filing *filing, const struct sb_slice *delimiter);
void sb_filing_free(struct sb_filing *filing);
/* As sb_pumps_move of one pump; -1: it has ended. */
int sb_filing_out(struct sb_pump *pump);
int sb_filing_in(struct sb_pump *pump);
/* The pump is over for this reason (NULL: none), but a piece is still being written: 1, the call is completed after it. */
int sb_filing_lasts(struct sb_filing *filing, const struct sb_error *err);

#endif
