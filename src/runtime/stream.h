/* A bounded byte queue between a descriptor and a Lua state.
 *
 * Reading: the I/O thread fills the buffer up to its high mark and stops watching the descriptor
 * until the reader has taken it below the low mark; so a slow reader stops the writing process
 * through the kernel's pipe. Writing: chunks queue here and drain as the descriptor takes them. The
 * descriptor comes from a sandbox: its O_NONBLOCK flag may be cleared by the other side at any
 * time, so all transfers use RWF_NOWAIT (pipes) or MSG_DONTWAIT (sockets). A stream is an
 * sb_object; one lock guards its buffer. */
#ifndef SB_STREAM_H
#define SB_STREAM_H

#include "op.h"

struct sb_stream;
extern const struct sb_object_type sb_stream_type;

/* Takes over fd in every case. `readable`/`writable` tell the directions it will be used in.
 * Started (watched) by the first operation or try. */
struct sb_stream *sb_stream_new(int fd, int readable, int writable, size_t high,
                                struct sb_error *err);

enum sb_read_mode {
    SB_READ_SOME,  /* what is there, at least one byte, at most `n` */
    SB_READ_EXACT, /* `n` bytes, fewer only at the end */
    SB_READ_LINE,  /* through a newline (included), or the rest at the end */
    SB_READ_ALL,   /* to the end */
};

/* Completes with bytes, or with bytes = NULL and no error when there are none before the end, in
 * any mode. Lines and ALL above `n` bytes: LimitExceeded. A cancelled or failed read has consumed
 * nothing. One reader at a time: a second gets Busy. `try` answers at once: 1 done
 * (result filled), 0 would wait. */
struct sb_op *sb_stream_read(struct sb_stream *stream, struct sb_mailbox *mailbox,
                             enum sb_read_mode mode, size_t n);
int sb_stream_try_read(struct sb_stream *stream, enum sb_read_mode mode, size_t n,
                       struct sb_result *result);
/* The same as a try of SOME, into `room` > 0 bytes of the caller's: 1 and *taken (0: the end) or the error, 0 would
 * wait. */
int sb_stream_take(struct sb_stream *stream, void *to, size_t room, size_t *taken,
                   struct sb_error *err);

/* Completes when all bytes were taken by the kernel (number = how many, also on failure or cancel).
 * The data is copied before the call returns. EPIPE is Closed. */
struct sb_op *sb_stream_write(struct sb_stream *stream, struct sb_mailbox *mailbox,
                              const void *data, size_t len);

/* What the kernel takes at once, nothing while something is queued: 0 and *taken, or a negative code. */
int sb_stream_try_write(struct sb_stream *stream, const void *data, size_t len, size_t *taken,
                        struct sb_error *err);

/* Tells C code on the I/O thread when it is worth trying again: tap(arg) [io] once soon and then after each change, with
 * no lock held; it says whether it also waits for room to write. NULL: none. 0, or Busy when somebody else taps it
 * already (the same arg: asks again). [io]; whoever taps holds a reference until then. */
typedef int sb_stream_tap_fn(void *arg);
int sb_stream_tap(struct sb_stream *stream, sb_stream_tap_fn *tap, void *arg, struct sb_error *err);

/* Half-close after what is queued has been written; for read ends: stop and close. Idempotent, any
 * thread, never waits. */
void sb_stream_close_write(struct sb_stream *stream);
/* Nothing more is taken off the descriptor: what is buffered can still be read, then comes the end. Idempotent,
 * any thread, never waits. */
void sb_stream_end_reading(struct sb_stream *stream);
void sb_stream_close(struct sb_stream *stream);
int sb_stream_at_end(const struct sb_stream *stream); /* end of file seen and buffer empty */

#endif
