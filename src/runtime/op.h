/* Operations: the only way from a Lua state to the I/O thread and back.
 *
 * Made by the asking thread, completed exactly once on the I/O thread, then linked into the mailbox
 * it was made for. Reference-counted: one reference belongs to the asker (Lua's userdata), one to
 * whoever will complete it. After completion the result is the asker's alone; before it, nobody
 * reads it. */
#ifndef SB_OP_H
#define SB_OP_H

#include <stddef.h>
#include <stdint.h>

#include "error.h"

struct sb_mailbox;
struct sb_object;
struct sb_op;
struct sb_release;

/* A native object handed to Lua in a result (a sandbox connection, a process, a stream, a file):
 * reference-counted by its first member, told apart by its type's address. */
struct sb_object_type {
    const char *name;
    void (*destroy)(struct sb_object *object); /* the last reference is gone; any thread */
};
struct sb_object {
    const struct sb_object_type *type;
    _Atomic unsigned refs;
    uint64_t generation; /* of the process that made it */
};
void sb_object_init(struct sb_object *object, const struct sb_object_type *type); /* refs = 1 */
void *sb_object_ref(void *object);
void sb_object_unref(void *object); /* NULL is fine */

/* What an operation came to. `fields` is a malloc'ed run of proto.h fields (a reply
 * without its head); `parts` marks that it is a sequence of {u32 length, fields} records
 * from SB_PART answers, the last of which, with SB_PARTS_LAST in its length, is the answer
 * that followed the parts. `bytes` is malloc'ed data. Everything is freed with the
 * operation unless taken (and set to NULL). */
#define SB_PARTS_LAST 0x80000000u
struct sb_result {
    struct sb_error error; /* kind != SB_OK: the operation failed; the rest may hold partial data */
    unsigned char *fields;
    size_t fields_len;
    int parts;
    unsigned char *bytes;
    size_t bytes_len;
    unsigned char *bytes2; /* exec: stderr */
    size_t bytes2_len;
    double number;
    int has_number;
    struct sb_object *object;   /* one reference */
    struct sb_release *release; /* one reference; fired when the operation is freed with it */
    int fd;                     /* owned; -1 none */
};

/* A new operation with two references: the asker's and the completer's. NULL: out of memory, or the
 * mailbox is of another generation. `cancel` (may be NULL) runs on the I/O thread, at most once,
 * when the asker cancels an operation that is still open; it must lead to a completion soon. */
struct sb_op *sb_op_new(struct sb_mailbox *mailbox, void (*cancel)(struct sb_op *op, void *owner),
                        void *owner);
void sb_op_set_cancel(struct sb_op *op, void (*cancel)(struct sb_op *op, void *owner),
                      void *owner); /* [io] */
/* [io] SB_OK, or why an early end has been asked for: SB_ERR_CANCELLED or SB_ERR_TIMEOUT. */
enum sb_err sb_op_asked(const struct sb_op *op);
struct sb_op *sb_op_ref(struct sb_op *op);
void sb_op_unref(struct sb_op *op);
/* The asker's last act: cancels the operation if it is open, drops its reference and gives up the
 * result. What that holds is freed now or as soon as it is there, not when the mailbox is emptied:
 * a program that waits for nothing more would keep a descriptor open that it does not know of. */
void sb_op_abandon(struct sb_op *op);

uint64_t sb_op_id(const struct sb_op *op); /* below 2^53, never 0 */
uint64_t sb_op_generation(
    const struct sb_op *op);            /* of the process that made it; it ends in no other */
int sb_op_done(const struct sb_op *op); /* any thread */
struct sb_result *sb_op_result(
    struct sb_op *op); /* asker: after done; completer: before completing */

/* [io] Hands the operation over; drops the completer's reference. A second call is a bug
 * (asserted). An error of kind Cancelled becomes Timeout when it was the deadline that asked. An
 * operation that no other thread has seen yet (a submission that failed at once) may be completed
 * by its asker. */
void sb_op_complete(struct sb_op *op);
void sb_op_fail(struct sb_op *op,
                const struct sb_error *err); /* [io] sets the error and completes */

/* Asks for an early end: the operation completes with Cancelled unless it is done first. Any
 * thread. */
void sb_op_cancel(struct sb_op *op);

/* The same at a moment (sb_now clock), with Timeout instead of Cancelled. Any thread; once per
 * operation. */
void sb_op_deadline(struct sb_op *op, uint64_t at);

/* An operation that completes by itself after `ns` (0: at the next turn). */
struct sb_op *sb_op_timer(struct sb_mailbox *mailbox, uint64_t ns);

#endif
