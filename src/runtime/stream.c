/* Streams. A reader is served from the buffer by whichever thread fills it: the asker when it asks,
 * the I/O thread when the descriptor becomes readable. What is to be written is written by the I/O
 * thread, where SIGPIPE is blocked, and by who only tries, who blocks it for that.
 *
 * References: the holders', and one for each open operation and for the post while it is queued.
 * The loop holds none: when the last reference goes, `destroy` sends the stream to the I/O thread
 * to be unwatched and freed. Operations to be completed are collected under the lock and completed
 * after it. */
#include "stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "internal.h"
#include "sigpipe.h"
#include "unread.h"

#define HIGH_DEFAULT 262144u

/* ---- turns of the I/O thread; lock held, finished operations go to *finished ---- */

static void finish(struct sb_op *op, struct sb_op **finished)
{
    op->next = *finished;
    *finished = op;
}

static void finish_chunk(struct sb_stream *s, int error, struct sb_op **finished)
{
    struct sb_chunk *chunk = s->head;
    struct sb_result *r = sb_op_result(chunk->op);
    r->number = (double)chunk->done;
    r->has_number = 1;
    if (error == EPIPE || error == ECONNRESET)
        sb_fail_errno(&r->error, error, "write", "nobody reads the other end");
    else if (error != 0)
        sb_fail_errno(&r->error, error, "write", "cannot write");
    s->head = chunk->next;
    if (s->head == NULL)
        s->tail = &s->head;
    finish(chunk->op, finished);
    explicit_bzero(chunk->data, chunk->len); /* what goes to a program's stdin may be secret */
    free(chunk);
}

static void flush(struct sb_stream *s, struct sb_op **finished)
{
    size_t turn = 0;
    while (s->head != NULL && turn < SB_STREAM_TURN) {
        struct sb_chunk *chunk = s->head;
        ssize_t n = -1;
        int error = s->write_error;
        if (error == 0) {
            n = sb_transfer_write(&s->transfer, s->source.fd, chunk->data + chunk->done,
                                  chunk->len - chunk->done);
            error = n < 0 ? errno : 0;
        }
        if (n >= 0) {
            chunk->done += (size_t)n;
            turn += (size_t)n;
            if (chunk->done == chunk->len)
                finish_chunk(s, 0, finished);
        } else if (error == EAGAIN) {
            break;
        } else {
            s->write_error = error;
            finish_chunk(s, error, finished);
        }
    }
}

static void close_fd(struct sb_stream *s)
{
    if (s->added)
        sb_source_remove(&s->source);
    s->added = 0;
    if (s->source.fd >= 0)
        close(s->source.fd);
    s->source.fd = -1;
    sb_transfer_close(&s->transfer);
}

static void shut(struct sb_stream *s, struct sb_op **finished)
{
    if (s->reader != NULL) {
        sb_fail(&sb_op_result(s->reader)->error, SB_ERR_CLOSED, "the stream was closed");
        finish(s->reader, finished);
        s->reader = NULL;
    }
    while (s->head != NULL)
        finish_chunk(s, EPIPE, finished);
    close_fd(s);
    sb_buffer_drop(&s->unread);
}

static void watch(struct sb_stream *s)
{
    uint32_t events = 0;
    size_t most = sb_unread_limit(s);
    /* below half before it goes on, unless somebody waits for what is still to come */
    s->paused = s->paused && s->reader == NULL && !s->tried ? s->unread.len > most / 2
                                                            : s->unread.len >= most;
    if (s->readable && !s->eof && s->read_error == 0 && !s->paused)
        events |= EPOLLIN;
    if (s->head != NULL || s->tap_blocked)
        events |= EPOLLOUT;
    if (s->added) {
        sb_source_change(&s->source, events);
    } else if (events != 0) {
        struct sb_error err;
        s->source.events = events;
        if (sb_source_add(&s->source, &err) == 0)
            s->added = 1;
        else
            s->read_error = s->write_error = err.sys;
    }
}

static void advance(struct sb_stream *s, struct sb_op **finished)
{
    if (s->closed) {
        shut(s, finished);
        return;
    }
    sb_unread_fill(s);
    flush(s, finished);
    watch(s);
    if (s->write_error != 0 && s->head != NULL) /* could not be watched */
        flush(s, finished);
    if (s->reader != NULL && sb_unread_serve(s, s->mode, s->want, sb_op_result(s->reader))) {
        finish(s->reader, finished);
        s->reader = NULL;
        watch(s);
    }
    if (s->half_close && !s->half_closed && s->head == NULL) {
        s->half_closed = 1;
        if (!s->readable)
            close_fd(s);
        else
            shutdown(s->source.fd, SHUT_WR);
    }
}

/* Completes what was finished and drops the operations' references to the stream. Lock not held. */
static void complete_all(struct sb_stream *s, struct sb_op *finished)
{
    while (finished != NULL) {
        struct sb_op *next = finished->next;
        sb_op_complete(finished);
        sb_object_unref(s);
        finished = next;
    }
}

/* Lock not held. */
static void tell_tap(struct sb_stream *s)
{
    if (s->tap == NULL)
        return;
    sb_object_ref(s); /* it may end the tapping */
    int blocked = s->tap(s->tap_arg);
    pthread_mutex_lock(&s->lock);
    if (s->tap_blocked != (s->tap != NULL && blocked)) {
        s->tap_blocked = !s->tap_blocked;
        if (!s->closed)
            watch(s);
    }
    pthread_mutex_unlock(&s->lock);
    sb_object_unref(s);
}

static void ready(struct sb_source *source, uint32_t events)
{
    struct sb_stream *s = sb_container(source, struct sb_stream, source);
    struct sb_op *finished = NULL;
    (void)events;
    pthread_mutex_lock(&s->lock);
    advance(s, &finished);
    pthread_mutex_unlock(&s->lock);
    tell_tap(s);
    complete_all(s, finished); /* may have been the last references: hands off */
}

static void turn(struct sb_post *post)
{
    struct sb_stream *s = sb_container(post, struct sb_stream, post);
    struct sb_op *finished = NULL;
    pthread_mutex_lock(&s->lock);
    s->posted = 0;
    advance(s, &finished);
    pthread_mutex_unlock(&s->lock);
    complete_all(s, finished);
    tell_tap(s);
    sb_object_unref(s);
}

/* Lock held: has `turn` run on the I/O thread. */
static int kick(struct sb_stream *s, struct sb_error *err)
{
    if (s->posted)
        return 0;
    s->post.fn = turn;
    sb_object_ref(s);
    int error = sb_loop_post_node(&s->post, err);
    if (error != 0) {
        s->object.refs--; /* the caller has one, so not the last */
        return error;
    }
    s->posted = s->started = 1;
    return 0;
}

/* ---- life ---- */

static void free_stream(struct sb_stream *s)
{
    close_fd(s);
    sb_buffer_drop(&s->unread);
    if (s->object.generation == sb_generation())
        pthread_mutex_destroy(&s->lock);
    free(s);
}

static void free_on_loop(struct sb_post *post)
{
    free_stream(sb_container(post, struct sb_stream, post));
}

static void destroy(struct sb_object *object)
{
    struct sb_stream *s = (struct sb_stream *)object;
    if (s->object.generation != sb_generation()) {
        s->added = 0; /* to the parent's loop; if it was, the descriptor is closed and -1 */
        free_stream(s);
    } else if (!s->started) {
        free_stream(s);
    } else {
        s->post.fn = free_on_loop;
        sb_loop_post_node(&s->post,
                          NULL); /* refused when the process exits: then it may as well stay */
    }
}

const struct sb_object_type sb_stream_type = {"stream", destroy};

struct sb_stream *sb_stream_new(int fd, int readable, int writable, size_t high,
                                struct sb_error *err)
{
    struct sb_stream *s = calloc(1, sizeof *s);
    if (s == NULL) {
        close(fd);
        sb_fail_errno(err, ENOMEM, "stream", "cannot make a stream");
        return NULL;
    }
    sb_object_init(&s->object, &sb_stream_type);
    pthread_mutex_init(&s->lock, NULL);
    s->source.fd = fd;
    s->source.ready = ready;
    sb_transfer_init(&s->transfer, fd);
    s->readable = readable;
    s->writable = writable;
    s->high = high > 0 ? high : HIGH_DEFAULT;
    s->room = SB_STREAM_FIRST;
    s->tail = &s->head;
    return s;
}

static int is_forked(const struct sb_stream *s)
{
    return s->object.generation != sb_generation();
}

/* ---- reading ---- */

static void cancel_read(struct sb_op *op, void *owner)
{
    struct sb_stream *s = owner;
    struct sb_error err;
    pthread_mutex_lock(&s->lock);
    int mine = s->reader == op;
    if (mine)
        s->reader = NULL;
    pthread_mutex_unlock(&s->lock);
    if (!mine)
        return; /* served already, about to complete */
    sb_fail(&err, SB_ERR_CANCELLED, "the read was cancelled");
    sb_op_fail(op, &err);
    sb_object_unref(s);
}

struct sb_op *sb_stream_read(struct sb_stream *s, struct sb_mailbox *mailbox,
                             enum sb_read_mode mode, size_t n)
{
    struct sb_op *op = sb_op_new(mailbox, cancel_read, s);
    int done = 1;
    if (op == NULL)
        return NULL;
    struct sb_result *r = sb_op_result(op);
    if (is_forked(s)) {
        sb_op_fail_forked(op);
        return op;
    }
    pthread_mutex_lock(&s->lock);
    if (s->reader != NULL) {
        sb_fail(&r->error, SB_ERR_BUSY, "another read of this stream has not ended");
    } else {
        s->reader = op;
        s->tried = 0;
        s->mode = mode;
        s->want = n;
        if (!sb_unread_serve(s, mode, n, r)) {
            sb_unread_fill(s);
            done = sb_unread_serve(s, mode, n, r) || kick(s, &r->error) != 0;
        }
        if (done)
            s->reader = NULL;
        else
            sb_object_ref(s);
        if (done && s->paused && s->unread.len <= s->high / 2)
            kick(s, NULL);
    }
    pthread_mutex_unlock(&s->lock);
    if (done)
        sb_op_complete(op);
    return op;
}

int sb_stream_try_read(struct sb_stream *s, enum sb_read_mode mode, size_t n,
                       struct sb_result *result)
{
    if (is_forked(s)) {
        sb_fail(&result->error, SB_ERR_FORKED, "made before this process was forked");
        return 1;
    }
    pthread_mutex_lock(&s->lock);
    int done = 1;
    if (s->reader != NULL) {
        sb_fail(&result->error, SB_ERR_BUSY, "another read of this stream has not ended");
    } else {
        s->tried = 0;
        done = sb_unread_serve(s, mode, n, result);
        if (!done) {
            s->tried = 1;
            s->mode = mode;
            s->want = n;
            sb_unread_fill(s);
            done = sb_unread_serve(s, mode, n, result);
            s->tried = !done;
        }
        if (done ? s->paused && s->unread.len <= s->high / 2 : !s->started || s->paused)
            kick(s, NULL);
    }
    pthread_mutex_unlock(&s->lock);
    return done;
}

/* Lock held: into the caller's memory, what is buffered first. 1, or 0: would wait. */
static int take_some(struct sb_stream *s, void *to, size_t room, size_t *taken)
{
    size_t n = s->unread.len < room ? s->unread.len : room;
    if (n > 0) {
        memcpy(to, s->unread.data + s->unread.start, n);
        s->unread.start += n;
        s->unread.len -= n;
        s->unread.scanned = 0;
        if (s->unread.len == 0)
            s->unread.start = 0;
    } else if (!s->closed && s->readable && !s->eof && s->read_error == 0) {
        ssize_t got = sb_transfer_read(&s->transfer, s->source.fd, to, room);
        if (got < 0 && errno == EAGAIN)
            return 0;
        s->eof = got == 0 || (got < 0 && errno == EIO);
        s->read_error = got < 0 && !s->eof ? errno : 0;
        n = got > 0 ? (size_t)got : 0;
    }
    *taken = n;
    return 1;
}

int sb_stream_take(struct sb_stream *s, void *to, size_t room, size_t *taken, struct sb_error *err)
{
    struct sb_result r = {.fd = -1};
    *taken = 0;
    if (is_forked(s))
        return sb_fail(err, SB_ERR_FORKED, "made before this process was forked") < 0;
    pthread_mutex_lock(&s->lock);
    int done = 1;
    s->tried = 0;
    if (s->reader != NULL) {
        sb_fail(&r.error, SB_ERR_BUSY, "another read of this stream has not ended");
    } else {
        done = take_some(s, to, room, taken);
        if (done && *taken == 0)
            sb_unread_serve(s, SB_READ_SOME, room, &r);
        if (done ? s->paused && s->unread.len <= s->high / 2 : !s->started || s->paused)
            kick(s, NULL);
    }
    pthread_mutex_unlock(&s->lock);
    *err = r.error;
    return done;
}

int sb_stream_at_end(const struct sb_stream *stream)
{
    struct sb_stream *s = (struct sb_stream *)stream;
    if (is_forked(s))
        return 0;
    pthread_mutex_lock(&s->lock);
    int end = s->eof && s->unread.len == 0;
    pthread_mutex_unlock(&s->lock);
    return end;
}

/* ---- writing ---- */

static void cancel_write(struct sb_op *op, void *owner)
{
    struct sb_chunk *chunk = owner;
    struct sb_stream *s = chunk->stream;
    struct sb_result *r = sb_op_result(op);
    pthread_mutex_lock(&s->lock);
    struct sb_chunk **at = &s->head;
    while (*at != chunk)
        at = &(*at)->next;
    if (at == &s->head)
        sb_transfer_discard(&s->transfer);
    *at = chunk->next;
    if (chunk->next == NULL)
        s->tail = at;
    r->number = (double)chunk->done;
    r->has_number = 1;
    kick(s, NULL); /* the next one may go, or the half-close */
    pthread_mutex_unlock(&s->lock);
    explicit_bzero(chunk->data, chunk->len);
    free(chunk);
    sb_fail(&r->error, SB_ERR_CANCELLED, "the write was cancelled");
    sb_op_complete(op);
    sb_object_unref(s);
}

/* Lock held. Why nothing can be written, or 0. */
static int refuse_write(const struct sb_stream *s, struct sb_error *err)
{
    if (!s->writable)
        return sb_fail(err, SB_ERR_INVALID_ARGUMENT, "the stream is not for writing");
    if (s->closed || s->half_close)
        return sb_fail(err, SB_ERR_CLOSED, "the stream is closed");
    if (s->write_error != 0)
        return sb_fail_errno(err, s->write_error, "write", "an earlier write failed");
    return 0;
}

struct sb_op *sb_stream_write(struct sb_stream *s, struct sb_mailbox *mailbox, const void *data,
                              size_t len)
{
    struct sb_chunk *chunk = len < SIZE_MAX - sizeof *chunk ? malloc(sizeof *chunk + len) : NULL;
    struct sb_op *op = chunk != NULL ? sb_op_new(mailbox, cancel_write, chunk) : NULL;
    if (op == NULL) {
        free(chunk);
        return NULL;
    }
    *chunk = (struct sb_chunk){.stream = s, .op = op, .len = len};
    if (len > 0)
        memcpy(chunk->data, data, len);
    struct sb_result *r = sb_op_result(op);
    r->has_number = 1;
    if (is_forked(s)) {
        free(chunk);
        sb_op_fail_forked(op);
        return op;
    }
    pthread_mutex_lock(&s->lock);
    int queued = refuse_write(s, &r->error) == 0 && len > 0 && kick(s, &r->error) == 0;
    if (queued) {
        *s->tail = chunk;
        s->tail = &chunk->next;
        sb_object_ref(s);
    }
    pthread_mutex_unlock(&s->lock);
    if (!queued) {
        explicit_bzero(chunk->data, len);
        free(chunk);
        sb_op_complete(op);
    }
    return op;
}

int sb_stream_try_write(struct sb_stream *s, const void *data, size_t len, size_t *taken,
                        struct sb_error *err)
{
    const unsigned char *at = data;
    sigset_t old;
    *taken = 0;
    if (is_forked(s))
        return sb_fail(err, SB_ERR_FORKED, "made before this process was forked");
    sb_sigpipe_hold(&old);
    pthread_mutex_lock(&s->lock);
    int rc = refuse_write(s, err);
    while (rc == 0 && s->head == NULL && *taken < len) { /* what is queued comes first */
        ssize_t n = sb_transfer_write(&s->transfer, s->source.fd, at + *taken, len - *taken);
        if (n >= 0) {
            *taken += (size_t)n;
        } else if (errno == EAGAIN) {
            break;
        } else {
            s->write_error = errno;
            rc = errno == EPIPE || errno == ECONNRESET
                     ? sb_fail_errno(err, errno, "write", "nobody reads the other end")
                     : sb_fail_errno(err, errno, "write", "cannot write");
        }
    }
    pthread_mutex_unlock(&s->lock);
    if (rc != 0)
        sb_sigpipe_swallow(&old);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

int sb_stream_tap(struct sb_stream *s, sb_stream_tap_fn *tap, void *arg, struct sb_error *err)
{
    if (is_forked(s))
        return sb_fail(err, SB_ERR_FORKED, "made before this process was forked");
    if (tap != NULL && s->tap != NULL && s->tap_arg != arg)
        return sb_fail(err, SB_ERR_BUSY, "the stream is somebody else's at the moment");
    s->tap = tap;
    s->tap_arg = arg;
    pthread_mutex_lock(&s->lock);
    if (tap != NULL) {
        kick(s, NULL);
    } else if (s->tap_blocked) {
        s->tap_blocked = 0;
        if (!s->closed)
            watch(s);
    }
    pthread_mutex_unlock(&s->lock);
    return 0;
}

/* ---- closing ---- */

void sb_stream_close_write(struct sb_stream *s)
{
    if (is_forked(s))
        return;
    pthread_mutex_lock(&s->lock);
    if (s->writable && !s->half_close && !s->closed) {
        s->half_close = 1;
        kick(s, NULL);
    }
    pthread_mutex_unlock(&s->lock);
}

void sb_stream_end_reading(struct sb_stream *s)
{
    if (is_forked(s))
        return;
    pthread_mutex_lock(&s->lock);
    if (s->readable && !s->eof && !s->closed) {
        s->eof = 1;
        kick(s, NULL);
    }
    pthread_mutex_unlock(&s->lock);
}

void sb_stream_close(struct sb_stream *s)
{
    if (is_forked(s))
        return;
    pthread_mutex_lock(&s->lock);
    if (!s->closed) {
        s->closed = 1;
        kick(s, NULL);
    }
    pthread_mutex_unlock(&s->lock);
}
