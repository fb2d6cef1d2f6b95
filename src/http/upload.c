/* A request body written piece by piece by a Lua state and taken by the transfer.
 *
 * All its state belongs to the I/O thread: the asking thread only copies and posts. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "http/body.h"
#include "http/core.h"

struct piece {
    struct piece *next;
    struct sb_upload *upload; /* a reference */
    struct sb_op *op;         /* completed once everything before it is taken or below the mark */
    size_t len, off;
    unsigned char data[];
};

struct sb_upload {
    struct sb_object object;
    /* [io] */
    struct piece *first, **last;
    size_t queued;
    int finished, aborted, detached;
    void (*wake)(void *arg);
    void *arg;
};

static void piece_answer(struct piece *piece, const struct sb_error *err)
{
    struct sb_op *op = piece->op;
    piece->op = NULL;
    if (op == NULL)
        return;
    if (err != NULL) {
        sb_op_fail(op, err);
        return;
    }
    struct sb_result *result = sb_op_result(op);
    result->number = (double)piece->len;
    result->has_number = 1;
    sb_op_complete(op);
}

static void piece_free(struct piece *piece)
{
    sb_object_unref(piece->upload);
    free(piece);
}

static void drop_all(struct sb_upload *upload)
{
    struct sb_error err = {0};
    sb_fail(&err, SB_ERR_CLOSED, "the request takes no more of its body");
    struct piece *piece = upload->first;
    upload->first = NULL;
    upload->last = &upload->first;
    upload->queued = 0;
    while (piece != NULL) {
        struct piece *next = piece->next;
        piece_answer(piece, &err);
        piece_free(piece);
        piece = next;
    }
}

/* Writers are answered in order, as long as what is queued up to them is below the mark. */
static void answer_writers(struct sb_upload *upload)
{
    size_t before = 0;
    for (struct piece *piece = upload->first; piece != NULL; piece = piece->next) {
        before += piece->len - piece->off;
        if (before > SB_BODY_HIGH && piece != upload->first)
            return;
        if (before > SB_BODY_HIGH && piece->off == 0)
            return; /* one large piece: answered once the transfer has begun to take it */
        piece_answer(piece, NULL);
    }
}

static void wake(struct sb_upload *upload)
{
    if (upload->wake != NULL)
        upload->wake(upload->arg);
}

static void on_piece(void *arg)
{
    struct piece *piece = arg;
    struct sb_upload *upload = piece->upload;
    piece->next = NULL;
    *upload->last = piece;
    upload->last = &piece->next;
    upload->queued += piece->len;
    if (upload->detached || upload->finished || upload->aborted) {
        drop_all(upload);
        return;
    }
    sb_object_ref(upload);
    answer_writers(upload);
    wake(upload);
    sb_object_unref(upload);
}

/* A writer gives up waiting. Bytes the transfer has not begun to take are withdrawn with it. */
static void on_cancel(struct sb_op *op, void *owner)
{
    struct piece *piece = owner;
    struct sb_upload *upload = piece->upload;
    if (piece->op != op)
        return;
    piece->op = NULL;
    struct sb_result *result = sb_op_result(op);
    result->has_number = 1;
    result->number = piece->off > 0 ? (double)piece->len : 0;
    if (piece->off == 0) {
        struct piece **link = &upload->first;
        while (*link != NULL && *link != piece)
            link = &(*link)->next;
        if (*link == piece) {
            *link = piece->next;
            if (piece->next == NULL)
                upload->last = link;
            upload->queued -= piece->len;
            piece_free(piece);
        }
    }
    sb_http_cancelled(op);
}

struct sb_op *sb_upload_write(struct sb_upload *upload, struct sb_mailbox *mailbox,
                              const void *data, size_t len)
{
    struct sb_error err = {0};
    struct piece *piece = malloc(sizeof *piece + len);
    struct sb_op *op = piece != NULL ? sb_op_new(mailbox, on_cancel, piece) : NULL;
    if (op == NULL) {
        free(piece);
        return NULL;
    }
    if (upload->object.generation != sb_generation() || len == 0) {
        free(piece);
        if (len == 0) {
            sb_op_result(op)->has_number = 1;
            sb_op_complete(op);
            return op;
        }
        sb_fail(&err, SB_ERR_FORKED, "the request belongs to the parent process");
        return sb_http_refuse(op, &err);
    }
    *piece = (struct piece){.upload = sb_object_ref(upload), .op = op, .len = len};
    memcpy(piece->data, data, len);
    if (sb_loop_post(on_piece, piece, NULL) < 0)
        piece_free(piece);
    return op;
}

static void on_finish(void *arg)
{
    struct sb_upload *upload = arg;
    upload->finished = 1;
    wake(upload);
    sb_object_unref(upload);
}

static void on_abort(void *arg)
{
    struct sb_upload *upload = arg;
    if (!upload->finished) {
        upload->aborted = 1;
        wake(upload);
    }
    sb_object_unref(upload);
}

static void post(struct sb_upload *upload, void (*fn)(void *arg))
{
    if (upload->object.generation != sb_generation())
        return;
    if (sb_loop_post(fn, sb_object_ref(upload), NULL) < 0)
        sb_object_unref(upload);
}

void sb_upload_finish(struct sb_upload *upload)
{
    post(upload, on_finish);
}

void sb_upload_abort(struct sb_upload *upload)
{
    post(upload, on_abort);
}

static void destroy(struct sb_object *object)
{
    free(object); /* pieces hold references: there are none */
}

const struct sb_object_type sb_upload_type = {"upload", destroy};

struct sb_upload *sb_upload_new(struct sb_error *err)
{
    struct sb_upload *upload = calloc(1, sizeof *upload);
    if (upload == NULL) {
        sb_fail(err, SB_ERR_INTERNAL, "out of memory");
        return NULL;
    }
    sb_object_init(&upload->object, &sb_upload_type);
    upload->last = &upload->first;
    return upload;
}

void sb_upload_attach(struct sb_upload *upload, void (*fn)(void *arg), void *arg)
{
    upload->wake = fn;
    upload->arg = arg;
}

void sb_upload_detach(struct sb_upload *upload)
{
    upload->wake = NULL;
    upload->detached = 1;
    drop_all(upload);
}

long sb_upload_take(struct sb_upload *upload, void *data, size_t room)
{
    size_t taken = 0;
    while (taken < room && upload->first != NULL) {
        struct piece *piece = upload->first;
        size_t n = piece->len - piece->off < room - taken ? piece->len - piece->off : room - taken;
        memcpy((unsigned char *)data + taken, piece->data + piece->off, n);
        piece->off += n;
        taken += n;
        upload->queued -= n;
        if (piece->off < piece->len)
            break;
        upload->first = piece->next;
        if (upload->first == NULL)
            upload->last = &upload->first;
        piece_answer(piece, NULL);
        piece_free(piece);
    }
    if (taken > 0) {
        answer_writers(upload);
        return (long)taken;
    }
    return upload->aborted ? -2 : upload->finished ? 0 : -1;
}
