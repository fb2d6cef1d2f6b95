/* Operations: one completion, raced for by the work itself, a cancel and a deadline, all decided on
 * the I/O thread and therefore without a lock.
 *
 * References: the asker's; the completer's, which moves into the mailbox's queue on completion; one
 * for each of the three embedded posts while it is queued. A set timer needs none: completing
 * clears it. */
#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

static _Atomic uint64_t last_id;

enum { COMPLETED = 1, ABANDONED = 2 }; /* bits of `fate` */

/* The first reason stands. A cancel function that is set later is still called, see
 * sb_op_set_cancel. */
static void ask(struct sb_op *op, enum sb_err why)
{
    if (op->done)
        return;
    if (op->asked == SB_OK)
        op->asked = why;
    if (op->cancel != NULL) {
        void (*cancel)(struct sb_op *, void *) = op->cancel;
        op->cancel = NULL;
        cancel(op, op->owner);
    }
}

static void deadline_reached(struct sb_timer *timer)
{
    ask(sb_container(timer, struct sb_op, deadline), SB_ERR_TIMEOUT);
}

struct sb_op *sb_op_new(struct sb_mailbox *mailbox, void (*cancel)(struct sb_op *op, void *owner),
                        void *owner)
{
    if (mailbox->generation != sb_generation())
        return NULL;
    struct sb_op *op = malloc(sizeof *op);
    if (op == NULL)
        return NULL;
    memset(op, 0, offsetof(struct sb_op, result));
    memset((char *)op + offsetof(struct sb_op, cancel), 0,
           sizeof *op - offsetof(struct sb_op, cancel));
    /* of the result everything but the text of an error, which is most of it */
    struct sb_result *r = &op->result;
    r->error.kind = SB_OK;
    r->error.sys = 0;
    r->error.step[0] = r->error.path[0] = r->error.message[0] = '\0';
    memset((char *)r + sizeof r->error, 0, sizeof *r - sizeof r->error);
    r->fd = -1;
    op->refs = 2;
    op->id = ++last_id;
    op->generation = mailbox->generation;
    op->mailbox = sb_mailbox_ref(mailbox);
    op->cancel = cancel;
    op->owner = owner;
    op->deadline.fire = deadline_reached;
    mailbox->open++;
    return op;
}

struct sb_op *sb_op_ref(struct sb_op *op)
{
    op->refs++;
    return op;
}

static void free_result(struct sb_result *r)
{
    free(r->fields);
    free(r->bytes);
    free(r->bytes2);
    sb_object_unref(r->object);
    if (r->release != NULL) {
        sb_release_fire(r->release, NULL);
        sb_release_unref(r->release);
    }
    if (r->fd >= 0)
        close(r->fd);
    r->fields = r->bytes = r->bytes2 = NULL;
    r->object = NULL;
    r->release = NULL;
    r->fd = -1;
}

void sb_op_unref(struct sb_op *op)
{
    if (op == NULL || --op->refs != 0)
        return;
    free_result(&op->result);
    sb_mailbox_unref(op->mailbox);
    free(op);
}

uint64_t sb_op_id(const struct sb_op *op)
{
    return op->id;
}

uint64_t sb_op_generation(const struct sb_op *op)
{
    return op->generation;
}

int sb_op_done(const struct sb_op *op)
{
    return atomic_load_explicit(&op->done, memory_order_acquire);
}

struct sb_result *sb_op_result(struct sb_op *op)
{
    return &op->result;
}

enum sb_err sb_op_asked(const struct sb_op *op)
{
    return op->asked;
}

void sb_op_complete(struct sb_op *op)
{
    struct sb_mailbox *mailbox = op->mailbox;
    struct sb_error *error = &op->result.error;
    assert(!op->done);
    if (error->kind == SB_ERR_CANCELLED && op->asked == SB_ERR_TIMEOUT) {
        error->kind = SB_ERR_TIMEOUT;
        snprintf(error->message, sizeof error->message, "timed out");
    }
    sb_timer_clear(&op->deadline);
    sb_timer_clear(&op->wake);
    op->cancel = NULL;
    if (atomic_fetch_or(&op->fate, COMPLETED) & ABANDONED)
        free_result(&op->result);
    op->mailbox = NULL; /* from here on the mailbox holds the operation, not the other way round */
    sb_mailbox_put(mailbox, op);
    if (sb_loop_is_io_thread())
        sb_loop_touch(mailbox);
    else
        sb_mailbox_wake(mailbox);
    sb_mailbox_unref(mailbox);
}

void sb_op_fail(struct sb_op *op, const struct sb_error *err)
{
    op->result.error = *err;
    sb_op_complete(op);
}

void sb_op_fail_forked(struct sb_op *op)
{
    sb_fail(&op->result.error, SB_ERR_FORKED, "made before this process was forked");
    sb_op_complete(op);
}

static void run_cancel(struct sb_post *post)
{
    struct sb_op *op = sb_container(post, struct sb_op, cancel_post);
    op->cancel_posted = 0;
    ask(op, SB_ERR_CANCELLED);
    sb_op_unref(op);
}

static void post_cancel(struct sb_op *op)
{
    if (atomic_exchange(&op->cancel_posted, 1))
        return;
    op->cancel_post.fn = run_cancel;
    sb_op_ref(op);
    if (sb_loop_post_node(&op->cancel_post, NULL) != 0)
        sb_op_unref(op);
}

/* When the early end has been asked for before there was anything to cancel, it is told at the next
 * turn. */
void sb_op_set_cancel(struct sb_op *op, void (*cancel)(struct sb_op *op, void *owner), void *owner)
{
    op->cancel = cancel;
    op->owner = owner;
    if (op->asked != SB_OK && cancel != NULL)
        post_cancel(op);
}

void sb_op_cancel(struct sb_op *op)
{
    if (op->generation == sb_generation() && !sb_op_done(op))
        post_cancel(op);
}

void sb_op_abandon(struct sb_op *op)
{
    sb_op_cancel(op);
    /* In a forked child the result is the parent's. */
    if (op->generation == sb_generation() &&
        (atomic_fetch_or(&op->fate, ABANDONED) & COMPLETED) != 0)
        free_result(&op->result);
    sb_op_unref(op);
}

static void run_deadline(struct sb_post *post)
{
    struct sb_op *op = sb_container(post, struct sb_op, deadline_post);
    if (!op->done)
        sb_timer_set(&op->deadline, op->deadline_at);
    sb_op_unref(op);
}

void sb_op_deadline(struct sb_op *op, uint64_t at)
{
    if (op->generation != sb_generation() || sb_op_done(op) || at == SB_NEVER ||
        op->deadline_at != 0)
        return;
    op->deadline_at = at > 0 ? at : 1;
    op->deadline_post.fn = run_deadline;
    sb_op_ref(op);
    if (sb_loop_post_node(&op->deadline_post, NULL) != 0)
        sb_op_unref(op);
}

/* ---- timers ---- */

static void wake_reached(struct sb_timer *timer)
{
    sb_op_complete(sb_container(timer, struct sb_op, wake));
}

static void cancel_wake(struct sb_op *op, void *owner)
{
    struct sb_error err;
    (void)owner;
    sb_fail(&err, SB_ERR_CANCELLED, "cancelled");
    sb_op_fail(op, &err);
}

static void run_wake(struct sb_post *post)
{
    struct sb_op *op = sb_container(post, struct sb_op, wake_post);
    if (!op->done)
        sb_timer_set(&op->wake, op->wake_after);
    sb_op_unref(op);
}

struct sb_op *sb_op_timer(struct sb_mailbox *mailbox, uint64_t ns)
{
    struct sb_op *op = sb_op_new(mailbox, cancel_wake, NULL);
    struct sb_error err;
    if (op == NULL)
        return NULL;
    uint64_t now = sb_now();
    op->wake_after = ns < SB_NEVER - 1 - now ? now + ns : SB_NEVER - 1;
    op->wake.fire = wake_reached;
    op->wake_post.fn = run_wake;
    sb_op_ref(op);
    if (sb_loop_post_node(&op->wake_post, &err) != 0) {
        sb_op_unref(op);
        sb_op_fail(op, &err);
    }
    return op;
}
