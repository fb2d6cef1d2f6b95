/* The two bounded byte queues of a transfer: the answer's body on its way to a Lua state, and a
 * streamed request body on its way out.
 *
 * A body reads like a stream of the runtime (same modes, same rules): the transfer stops taking
 * bytes from its socket at the high mark and goes on below the low mark. The transfer ends it
 * with an error or without; bytes that arrived before an error are readable, then the error
 * comes. One reader at a time. */
#ifndef SB_HTTP_BODY_H
#define SB_HTTP_BODY_H

#include "runtime/op.h"
#include "runtime/stream.h"

#define SB_BODY_HIGH (256u << 10)
#define SB_BODY_BEYOND (64u << 10) /* of what has been received by then, beyond the mark */

struct sb_body;
extern const struct sb_object_type sb_body_type;

/* The reader's side: any thread. Dropping the last reference of the object closes it. */
struct sb_op *sb_body_read(struct sb_body *body, struct sb_mailbox *mailbox, enum sb_read_mode mode,
                           size_t n);
/* 0: it would have to wait. `lent` not NULL: instead of a copy in the result, its bytes_len bytes may be
 * lent from the queue. They stay at *lent until they are given back; those who never do only cost
 * memory: meanwhile nothing else is lent. */
int sb_body_try_read(struct sb_body *body, enum sb_read_mode mode, size_t n,
                     struct sb_result *result, const void **lent);
void sb_body_give_back(struct sb_body *body);
int sb_body_has_lent(struct sb_body *body);
void sb_body_close(struct sb_body *body); /* the transfer is given up; idempotent */
/* What has come can still be read; whatever comes later is nobody's, and holds nothing up. */
void sb_body_end_reading(struct sb_body *body);
int sb_body_at_end(struct sb_body *body);

/* The transfer's side: [io]. The queue outlives the object: one reference each. `wake(arg)` is
 * called when the reader wants more or has gone away. */
struct sb_queue;
struct sb_body *sb_body_new(struct sb_queue **made, void (*wake)(void *arg), void *arg);
/* Holds that many bytes beyond the mark: there will be a wake. */
int sb_queue_full(struct sb_queue *queue, size_t beyond);
int sb_queue_gone(struct sb_queue *queue);                                 /* nobody will read it */
int sb_queue_append(struct sb_queue *queue, const void *data, size_t len); /* -1: out of memory */
/* No more bytes, no more wakes; drops the transfer's reference. err NULL: a complete body. */
void sb_queue_end(struct sb_queue *queue, const struct sb_error *err);

/* A request body written piece by piece. */
struct sb_upload;
extern const struct sb_object_type sb_upload_type;
struct sb_upload *sb_upload_new(struct sb_error *err);
/* Completes when the bytes (copied) have been queued below the high mark: number = how many.
 * Closed when the transfer takes no more. */
struct sb_op *sb_upload_write(struct sb_upload *upload, struct sb_mailbox *mailbox,
                              const void *data, size_t len);
void sb_upload_finish(struct sb_upload *upload); /* the body is complete */
void sb_upload_abort(struct sb_upload *upload);  /* it will never be: the transfer fails */

/* [io] The transfer's side. `fn` when there is something to take, or the end. */
void sb_upload_attach(struct sb_upload *upload, void (*fn)(void *arg), void *arg);
void sb_upload_detach(struct sb_upload *upload); /* nothing more is taken: waiting writes fail */
/* Up to `room` bytes: their number; 0 at the end; -1 nothing there yet; -2 aborted. */
long sb_upload_take(struct sb_upload *upload, void *data, size_t room);

#endif
