/* The answer's body on its way to a Lua state. */
#include "http/body.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "http/core.h"
#include "runtime/large.h"

/* What a queue that fills is given. */
#define BUFFER (SB_BODY_HIGH + SB_BODY_BEYOND)
/* So little left of it is moved to its beginning at once: waiting makes it more. */
#define LITTLE 16384u

/* Shared by the object Lua holds and the transfer. */
struct sb_queue {
    _Atomic unsigned refs;
    pthread_mutex_t lock;
    /* under the lock: the bytes are buf[off .. off+len) */
    unsigned char *buf;
    size_t off, len, cap;
    int lent;           /* what the reader looks at lies in buf, or ... */
    unsigned char *old; /* ... here, since buf had to be replaced meanwhile */
    size_t scanned;     /* of len: known to hold no newline */
    size_t wanted;      /* what the waiting reader needs to go on, above the high mark if need be */
    int ended;          /* nothing more comes, or is taken */
    int gone, full;
    struct sb_error error;
    struct sb_op *waiting; /* holds a reference of the queue */
    enum sb_read_mode mode;
    size_t n;
    /* [io] */
    void (*wake)(void *arg);
    void *arg;
};

struct sb_body {
    struct sb_object object;
    struct sb_queue *queue;
};

static struct sb_queue *ref(struct sb_queue *queue)
{
    atomic_fetch_add_explicit(&queue->refs, 1, memory_order_relaxed);
    return queue;
}

static void unref(void *arg)
{
    struct sb_queue *queue = arg;
    if (atomic_fetch_sub_explicit(&queue->refs, 1, memory_order_acq_rel) != 1)
        return;
    pthread_mutex_destroy(&queue->lock);
    free(queue->buf);
    free(queue->old);
    free(queue);
}

/* Lock held. The buffer may be neither moved nor freed. */
static int pinned(const struct sb_queue *queue)
{
    return queue->lent && queue->old == NULL;
}

/* Lock held. Nothing in it is wanted any more. */
static void drop_buffer(struct sb_queue *queue)
{
    if (pinned(queue))
        queue->old = queue->buf;
    else
        free(queue->buf);
    queue->buf = NULL;
    queue->off = queue->len = queue->cap = 0;
}

/* Most of the buffer is asked for: it is given away, and what stays behind is copied. */
static int give_away(struct sb_queue *queue, size_t n, size_t rest, struct sb_result *result)
{
    unsigned char *fresh = NULL;
    size_t cap = rest > BUFFER || (queue->ended && rest > 0) ? rest : BUFFER;
    if (rest > 0) {
        fresh = malloc(cap);
        if (fresh == NULL)
            return -1;
        sb_large_copy(fresh, queue->buf + n, rest);
    }
    result->bytes = queue->buf;
    queue->buf = fresh;
    queue->cap = fresh != NULL ? cap : 0;
    return 0;
}

static int copy_out(struct sb_queue *queue, size_t n, size_t rest, struct sb_result *result)
{
    result->bytes = malloc(n + (n == 0));
    if (result->bytes == NULL)
        return -1;
    sb_large_copy(result->bytes, queue->buf + queue->off, n);
    queue->off += n;
    if (rest == 0)
        drop_buffer(queue);
    return 0;
}

/* Lock held. Moves `n` of the bytes into the result, or lends them: where they lie goes to *lent, and
 * their number into the result. */
static void consume(struct sb_queue *queue, size_t n, struct sb_result *result, const void **lent)
{
    size_t rest = queue->len - n;
    if (lent != NULL && n == 0) {
        *lent = "";
        return;
    }
    if (lent != NULL && !queue->lent) {
        *lent = queue->buf + queue->off;
        queue->lent = 1;
        queue->off += n;
        queue->len = rest;
        queue->scanned = 0;
        result->bytes_len = n;
        return;
    }
    int most = n > 0 && queue->off == 0 && n >= queue->cap / 2 && n >= rest && !pinned(queue);
    int rc = most ? give_away(queue, n, rest, result) : copy_out(queue, n, rest, result);
    if (rc < 0) {
        sb_fail_errno(&result->error, ENOMEM, "memory", "out of memory");
        return;
    }
    result->bytes_len = n;
    queue->len = rest;
    queue->scanned = 0;
}

/* Lock held. Answers a read from what is there: 1, or 0 when it has to wait. */
static int take(struct sb_queue *queue, enum sb_read_mode mode, size_t n, struct sb_result *result,
                const void **lent)
{
    size_t have = queue->len;
    if (queue->gone) {
        sb_fail(&result->error, SB_ERR_CLOSED, "the body is closed");
        return 1;
    }
    switch (mode) {
    case SB_READ_SOME:
        if (have > 0) {
            consume(queue, have < n ? have : n, result, lent);
            return 1;
        }
        break;
    case SB_READ_EXACT:
        if (have >= n) {
            consume(queue, n, result, lent);
            return 1;
        }
        break;
    case SB_READ_LINE: {
        size_t from = queue->scanned, to = have < n ? have : n;
        const unsigned char *base = queue->buf + queue->off;
        const unsigned char *at = to > from ? memchr(base + from, '\n', to - from) : NULL;
        if (at != NULL) {
            consume(queue, (size_t)(at - base) + 1, result, lent);
            return 1;
        }
        queue->scanned = to;
    } /* fall through */
    case SB_READ_ALL:
        if (have > n) {
            sb_fail(&result->error, SB_ERR_LIMIT_EXCEEDED,
                    "a %s of the body is longer than %zu bytes",
                    mode == SB_READ_LINE ? "line" : "read", n);
            return 1;
        }
        break;
    }
    if (!queue->ended)
        return 0;
    if (queue->error.kind != SB_OK)
        result->error = queue->error;
    else if (have > 0)
        consume(queue, have, result, lent);
    return 1;
}

/* [io] Tells the transfer, if it has not ended. */
static void on_wake(void *arg)
{
    struct sb_queue *queue = arg;
    if (queue->wake != NULL)
        queue->wake(queue->arg);
    unref(queue);
}

/* Lock held. Whether the transfer stands still and may go on. */
static int thirsty(struct sb_queue *queue)
{
    size_t low = queue->wanted > SB_BODY_HIGH / 2 ? queue->wanted : SB_BODY_HIGH / 2;
    if (!queue->full || queue->ended || (queue->len >= low && !queue->gone))
        return 0;
    queue->full = 0;
    return 1;
}

static void post_wake(struct sb_queue *queue)
{
    if (sb_loop_post(on_wake, ref(queue), NULL) < 0)
        unref(queue);
}

/* What has to be there for a read that got nothing. */
static size_t needed(enum sb_read_mode mode, size_t n)
{
    int more = mode != SB_READ_EXACT && n < SIZE_MAX; /* it is too long then */
    return mode == SB_READ_SOME ? 0 : n + (size_t)more;
}

/* [io] Answers the waiting reader if it can be. */
static void serve(struct sb_queue *queue)
{
    struct sb_op *op = NULL;
    pthread_mutex_lock(&queue->lock);
    if (queue->waiting != NULL) {
        struct sb_result *result = sb_op_result(queue->waiting);
        if (take(queue, queue->mode, queue->n, result, NULL)) {
            op = queue->waiting;
            queue->waiting = NULL;
            queue->wanted = 0;
        } else {
            queue->wanted = needed(queue->mode, queue->n);
        }
    }
    int wake = thirsty(queue);
    pthread_mutex_unlock(&queue->lock);
    if (wake)
        post_wake(queue);
    if (op != NULL) {
        sb_op_complete(op);
        unref(queue);
    }
}

static void on_serve(void *arg)
{
    serve(arg);
    unref(arg);
}

static void on_cancel(struct sb_op *op, void *owner)
{
    struct sb_queue *queue = owner;
    pthread_mutex_lock(&queue->lock);
    int mine = queue->waiting == op;
    if (mine) {
        queue->waiting = NULL;
        queue->wanted = 0;
    }
    pthread_mutex_unlock(&queue->lock);
    if (mine) {
        sb_http_cancelled(op);
        unref(queue);
    }
}

struct sb_op *sb_body_read(struct sb_body *body, struct sb_mailbox *mailbox, enum sb_read_mode mode,
                           size_t n)
{
    struct sb_queue *queue = body->queue;
    struct sb_op *op = sb_op_new(mailbox, on_cancel, queue);
    if (op == NULL)
        return NULL;
    struct sb_error err = {0};
    if (body->object.generation != sb_generation()) {
        sb_fail(&err, SB_ERR_FORKED, "the body belongs to the parent process");
        return sb_http_refuse(op, &err);
    }
    pthread_mutex_lock(&queue->lock);
    int busy = queue->waiting != NULL;
    if (!busy) {
        queue->waiting = op;
        queue->mode = mode;
        queue->n = n;
        ref(queue);
    }
    pthread_mutex_unlock(&queue->lock);
    if (busy) {
        sb_fail(&err, SB_ERR_BUSY, "somebody else is reading the body");
        return sb_http_refuse(op, &err);
    }
    /* A loop that does not start any more completes nothing: the process is ending. */
    if (sb_loop_post(on_serve, ref(queue), NULL) < 0)
        unref(queue);
    return op;
}

int sb_body_try_read(struct sb_body *body, enum sb_read_mode mode, size_t n,
                     struct sb_result *result, const void **lent)
{
    struct sb_queue *queue = body->queue;
    if (body->object.generation != sb_generation()) {
        sb_fail(&result->error, SB_ERR_FORKED, "the body belongs to the parent process");
        return 1;
    }
    pthread_mutex_lock(&queue->lock);
    int done = 1;
    if (queue->waiting != NULL)
        sb_fail(&result->error, SB_ERR_BUSY, "somebody else is reading the body");
    else {
        done = take(queue, mode, n, result, lent);
        queue->wanted = done ? 0 : needed(mode, n);
    }
    int wake = thirsty(queue);
    pthread_mutex_unlock(&queue->lock);
    if (wake)
        post_wake(queue);
    return done;
}

void sb_body_give_back(struct sb_body *body)
{
    struct sb_queue *queue = body->queue;
    pthread_mutex_lock(&queue->lock);
    unsigned char *old = queue->old;
    queue->old = NULL;
    queue->lent = 0;
    if (queue->len == 0)
        drop_buffer(queue);
    pthread_mutex_unlock(&queue->lock);
    free(old);
}

int sb_body_has_lent(struct sb_body *body)
{
    pthread_mutex_lock(&body->queue->lock);
    int lent = body->queue->lent;
    pthread_mutex_unlock(&body->queue->lock);
    return lent;
}

static void on_gone(void *arg)
{
    struct sb_queue *queue = arg;
    serve(queue); /* a reader that waits learns that it is closed */
    on_wake(queue);
}

void sb_body_close(struct sb_body *body)
{
    struct sb_queue *queue = body->queue;
    if (body->object.generation != sb_generation())
        return;
    pthread_mutex_lock(&queue->lock);
    int first = !queue->gone;
    queue->gone = 1;
    drop_buffer(queue);
    pthread_mutex_unlock(&queue->lock);
    if (first && sb_loop_post(on_gone, ref(queue), NULL) < 0)
        unref(queue);
}

void sb_body_end_reading(struct sb_body *body)
{
    struct sb_queue *queue = body->queue;
    if (body->object.generation != sb_generation())
        return;
    pthread_mutex_lock(&queue->lock);
    int first = !queue->ended && !queue->gone;
    queue->ended = 1;
    queue->full = 0;
    pthread_mutex_unlock(&queue->lock);
    if (first && sb_loop_post(on_gone, ref(queue), NULL) < 0)
        unref(queue);
}

int sb_body_at_end(struct sb_body *body)
{
    pthread_mutex_lock(&body->queue->lock);
    int end = body->queue->ended && body->queue->len == 0;
    pthread_mutex_unlock(&body->queue->lock);
    return end;
}

static void destroy(struct sb_object *object)
{
    struct sb_body *body = (struct sb_body *)object;
    sb_body_close(body);
    if (object->generation == sb_generation())
        unref(body->queue);
    free(body);
}

const struct sb_object_type sb_body_type = {"body", destroy};

/* ---- the transfer's side ---- */

struct sb_body *sb_body_new(struct sb_queue **made, void (*wake)(void *arg), void *arg)
{
    struct sb_body *body = calloc(1, sizeof *body);
    struct sb_queue *queue = calloc(1, sizeof *queue);
    if (body == NULL || queue == NULL || pthread_mutex_init(&queue->lock, NULL) != 0) {
        free(body);
        free(queue);
        return NULL;
    }
    atomic_init(&queue->refs, 2);
    queue->wake = wake;
    queue->arg = arg;
    sb_object_init(&body->object, &sb_body_type);
    body->queue = queue;
    *made = queue;
    return body;
}

int sb_queue_full(struct sb_queue *queue, size_t beyond)
{
    pthread_mutex_lock(&queue->lock);
    size_t high = queue->wanted > SB_BODY_HIGH ? queue->wanted : SB_BODY_HIGH;
    int full = !queue->ended && queue->len >= high && queue->len - high >= beyond;
    if (full)
        queue->full = 1; /* until it is thirsty */
    pthread_mutex_unlock(&queue->lock);
    return full;
}

int sb_queue_gone(struct sb_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    int gone = queue->gone;
    pthread_mutex_unlock(&queue->lock);
    return gone;
}

/* Lock held. Room for `len` more bytes behind what is there. */
static int reserve(struct sb_queue *queue, size_t len)
{
    int stay = pinned(queue);
    int early = queue->off > 0 && queue->len <= queue->off && queue->len <= LITTLE;
    if (queue->cap - queue->off - queue->len >= len && (stay || !early))
        return 0;
    if (queue->off > 0 && !stay) {
        if (queue->len > 0)
            memmove(queue->buf, queue->buf + queue->off, queue->len);
        queue->off = 0;
        if (queue->cap - queue->len >= len)
            return 0;
    }
    size_t cap = queue->cap < 4096 ? 4096 : queue->cap;
    if (queue->len + len > BUFFER / 8 && queue->len + len <= BUFFER)
        cap = BUFFER;
    while (cap - queue->len < len)
        cap *= 2;
    unsigned char *buf = stay ? malloc(cap) : realloc(queue->buf, cap);
    if (buf == NULL)
        return -1;
    if (stay) {
        sb_large_copy(buf, queue->buf + queue->off, queue->len);
        queue->old = queue->buf;
        queue->off = 0;
    }
    queue->buf = buf;
    queue->cap = cap;
    return 0;
}

int sb_queue_append(struct sb_queue *queue, const void *data, size_t len)
{
    pthread_mutex_lock(&queue->lock);
    int rc = 0;
    if (!queue->gone && !queue->ended) {
        rc = reserve(queue, len);
        if (rc == 0) {
            sb_large_copy(queue->buf + queue->off + queue->len, data, len);
            queue->len += len;
        }
    }
    int waiting = queue->waiting != NULL;
    pthread_mutex_unlock(&queue->lock);
    if (waiting)
        serve(queue);
    return rc;
}

void sb_queue_end(struct sb_queue *queue, const struct sb_error *err)
{
    queue->wake = NULL;
    pthread_mutex_lock(&queue->lock);
    if (err != NULL && !queue->ended)
        queue->error = *err;
    queue->ended = 1;
    pthread_mutex_unlock(&queue->lock);
    serve(queue);
    unref(queue);
}
