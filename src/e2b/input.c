/* A queue of input. All its state belongs to the I/O thread: the asking thread only copies and posts. */
#include "e2b/input.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "e2b/run.h"
#include "e2b/wire.h"
#include "http/core.h"
#include "http/port.h"
#include "http/post.h"

#define PIECE 262144u   /* bytes of one call */
#define WAITING 262144u /* what try_write lets wait here */
/* It is not there any more, or its input is closed. */
#define ENDED(status) ((status) == 404 || (status) == 500)
#define SILENCE 60000000000ull /* ns until a call that is not answered counts as cut */

struct piece {
    struct piece *next;
    struct sb_input *input; /* a reference */
    struct sb_op *op;       /* NULL: nobody waits for it */
    size_t len, off;
    unsigned char data[];
};

struct sb_input {
    struct sb_object object;
    struct sb_port *port;
    struct sb_run *run; /* a reference, or NULL */
    char *send, *close;
    struct sb_slice *headers;
    size_t header_count;
    uint32_t pid;
    int terminal;
    _Atomic size_t waiting; /* bytes that were not acknowledged */
    /* [io] */
    struct piece *first, **last;
    size_t sent; /* of the first piece: on their way */
    int calling; /* a call is under way; it references the input */
    int finished, over;
    long status;
    struct sb_error broken; /* nothing more is taken */
};

static void free_memory(struct sb_input *input)
{
    for (size_t i = 0; input->headers != NULL && i < input->header_count; i++) {
        char *line = (char *)(uintptr_t)input->headers[i].data; /* ours */
        if (line != NULL)
            explicit_bzero(line, input->headers[i].len);
        free(line);
    }
    free(input->headers);
    free(input->send);
    free(input->close);
    sb_object_unref(input->port);
    sb_object_unref(input->run);
    free(input);
}

static void destroy(struct sb_object *object)
{
    free_memory((struct sb_input *)object); /* pieces hold references: there are none */
}

const struct sb_object_type sb_input_type = {"input", destroy};

/* ---- [io] ---- */

static void next_call(struct sb_input *input);

static void piece_answer(struct piece *piece, size_t taken, const struct sb_error *err)
{
    struct sb_op *op = piece->op;
    piece->op = NULL;
    if (op == NULL)
        return;
    struct sb_result *result = sb_op_result(op);
    result->number = (double)taken;
    result->has_number = 1;
    if (err != NULL)
        sb_op_fail(op, err);
    else
        sb_op_complete(op);
}

/* The caller holds a reference of the input. */
static void drop_first(struct sb_input *input)
{
    struct piece *piece = input->first;
    input->first = piece->next;
    if (input->first == NULL)
        input->last = &input->first;
    atomic_fetch_sub_explicit(&input->waiting, piece->len - piece->off, memory_order_relaxed);
    explicit_bzero(piece->data, piece->len);
    free(piece);
    sb_object_unref(input);
}

static void drop_all(struct sb_input *input, const struct sb_error *err)
{
    while (input->first != NULL) {
        piece_answer(input->first, input->first->off, err);
        drop_first(input);
    }
}

static void on_head(void *arg, long status, const char *type)
{
    (void)type;
    ((struct sb_input *)arg)->status = status;
}

static int on_data(void *arg, const unsigned char *data, size_t len, struct sb_error *err)
{
    (void)arg, (void)data, (void)len, (void)err;
    return 0;
}

/* Why a call failed; 0: it did not. */
static int failed(const struct sb_input *input, const struct sb_error *err, struct sb_error *why)
{
    *why = (struct sb_error){0};
    if (err != NULL)
        *why = *err;
    else if (input->status != 0 && input->status != 200)
        sb_fail(why, ENDED(input->status) ? SB_ERR_CLOSED : SB_ERR_UNAVAILABLE,
                "the command reads no more of its input (HTTP %ld)", input->status);
    return why->kind != SB_OK;
}

static void on_sent(void *arg, const struct sb_error *err)
{
    struct sb_input *input = arg;
    struct sb_error why;
    struct piece *piece = input->first;
    input->calling = 0;
    if (failed(input, err, &why)) {
        if (input->broken.kind == SB_OK)
            input->broken = why;
        drop_all(input, &input->broken);
    } else if (piece != NULL) {
        piece->off += input->sent;
        atomic_fetch_sub_explicit(&input->waiting, input->sent, memory_order_relaxed);
        if (piece->off >= piece->len) {
            piece_answer(piece, piece->len, NULL);
            drop_first(input);
        }
    }
    input->sent = 0;
    next_call(input);
    sb_object_unref(input);
}

static void on_closed(void *arg, const struct sb_error *err)
{
    struct sb_input *input = arg;
    (void)err; /* a command that has ended needs no end of its input */
    input->calling = 0;
    sb_object_unref(input);
}

/* 1 pid, 2 stdin or pty */
static int pack(const struct sb_input *input, const unsigned char *data, size_t len,
                struct sb_packed *out)
{
    if (sb_packed_key(out, 1, SB_WIRE_BYTES) < 0)
        return -1;
    size_t from = out->len;
    if (sb_packed_key(out, 1, SB_WIRE_VARINT) < 0 || sb_packed_varint(out, input->pid) < 0 ||
        sb_packed_nest(out, from) < 0)
        return -1;
    if (data == NULL)
        return 0;
    if (sb_packed_key(out, 2, SB_WIRE_BYTES) < 0)
        return -1;
    from = out->len;
    return sb_packed_key(out, input->terminal ? 2 : 1, SB_WIRE_BYTES) < 0 ||
                   sb_packed_bytes(out, data, len) < 0
               ? -1
               : sb_packed_nest(out, from);
}

static int call(struct sb_input *input, const char *target, const unsigned char *data, size_t len,
                const struct sb_post_sink *sink, struct sb_error *err)
{
    struct sb_packed message = {0};
    if (input->run != NULL && sb_run_lost(input->run))
        return sb_fail(err, SB_ERR_CLOSED,
                       "the command's stream is over: its number may be another's by now");
    if (pack(input, data, len, &message) < 0) {
        sb_packed_free(&message);
        return sb_fail(err, SB_ERR_INTERNAL, "out of memory");
    }
    struct sb_request request = {
        .method = {"POST", 4},
        .target = {target, strlen(target)},
        .headers = input->headers,
        .header_count = input->header_count,
        .body = {(char *)message.data, message.len},
        .has_body = 1,
    };
    struct sb_post *post = sb_post_new(input->port, &request, err);
    sb_packed_free(&message);
    if (post == NULL)
        return -1;
    input->calling = 1;
    input->status = 0;
    sb_object_ref(input);
    sb_post_begin(post, sink, input, SILENCE);
    return 0;
}

static void next_call(struct sb_input *input)
{
    static const struct sb_post_sink sending = {on_head, on_data, on_sent};
    static const struct sb_post_sink closing = {on_head, on_data, on_closed};
    struct piece *piece = input->first;
    struct sb_error err = {0};
    if (input->calling || input->over)
        return;
    if (piece != NULL) {
        size_t left = piece->len - piece->off;
        input->sent = left < PIECE ? left : PIECE;
        if (call(input, input->send, piece->data + piece->off, input->sent, &sending, &err) < 0) {
            input->broken = err;
            drop_all(input, &err);
        }
    } else if (input->finished && input->broken.kind == SB_OK) {
        input->over = 1;
        call(input, input->close, NULL, 0, &closing, NULL);
    }
}

static void on_piece(void *arg)
{
    struct piece *piece = arg;
    struct sb_input *input = sb_object_ref(piece->input);
    struct sb_error closed = {.kind = SB_ERR_CLOSED, .message = "the input is closed"};
    piece->next = NULL;
    *input->last = piece;
    input->last = &piece->next;
    if (input->broken.kind != SB_OK)
        drop_all(input, &input->broken);
    else if (input->finished)
        drop_all(input, &closed);
    else
        next_call(input);
    sb_object_unref(input);
}

static void on_cancel(struct sb_op *op, void *owner)
{
    struct sb_input *input = owner;
    struct piece **link = &input->first, *piece;
    while ((piece = *link) != NULL && piece->op != op)
        link = &piece->next;
    if (piece == NULL)
        return;
    struct sb_error err = {.kind = SB_ERR_CANCELLED, .message = "cancelled"};
    if (piece == input->first && input->calling) { /* what is on its way stays */
        size_t kept = piece->off + input->sent;
        atomic_fetch_sub_explicit(&input->waiting, piece->len - kept, memory_order_relaxed);
        piece->len = kept;
        piece_answer(piece, kept, &err);
        return;
    }
    size_t taken = piece->off;
    piece_answer(piece, taken, &err);
    atomic_fetch_sub_explicit(&input->waiting, piece->len - piece->off, memory_order_relaxed);
    *link = piece->next;
    if (piece->next == NULL)
        input->last = link;
    free(piece);
    sb_object_unref(input);
}

static void on_finish(void *arg)
{
    struct sb_input *input = arg;
    if (!input->finished) {
        input->finished = 1;
        next_call(input);
    }
    sb_object_unref(input);
}

static void on_abort(void *arg)
{
    struct sb_input *input = arg;
    if (input->broken.kind == SB_OK)
        sb_fail(&input->broken, SB_ERR_CLOSED, "the input is closed");
    if (!input->calling)
        drop_all(input, &input->broken);
    sb_object_unref(input);
}

/* ---- any thread ---- */

static struct piece *new_piece(struct sb_input *input, const void *data, size_t len)
{
    struct piece *piece = malloc(sizeof *piece + len);
    if (piece == NULL)
        return NULL;
    *piece = (struct piece){.input = sb_object_ref(input), .len = len};
    memcpy(piece->data, data, len);
    atomic_fetch_add_explicit(&input->waiting, len, memory_order_relaxed);
    return piece;
}

static void give_up(struct piece *piece)
{
    atomic_fetch_sub_explicit(&piece->input->waiting, piece->len, memory_order_relaxed);
    sb_object_unref(piece->input);
    free(piece);
}

struct sb_op *sb_input_write(struct sb_input *input, struct sb_mailbox *mailbox, const void *data,
                             size_t len)
{
    struct sb_error err = {0};
    struct sb_op *op = sb_op_new(mailbox, on_cancel, input);
    if (op == NULL)
        return NULL;
    if (len == 0) {
        sb_op_result(op)->has_number = 1;
        sb_op_complete(op);
        return op;
    }
    if (input->object.generation != sb_generation()) {
        sb_fail(&err, SB_ERR_FORKED, "the input belongs to the parent process");
        return sb_http_refuse(op, &err);
    }
    struct piece *piece = new_piece(input, data, len);
    if (piece == NULL) {
        sb_fail(&err, SB_ERR_INTERNAL, "out of memory");
        return sb_http_refuse(op, &err);
    }
    piece->op = op;
    if (sb_loop_post(on_piece, piece, &err) < 0) {
        give_up(piece);
        return sb_http_refuse(op, &err);
    }
    return op;
}

int sb_input_try_write(struct sb_input *input, const void *data, size_t len, size_t *taken,
                       struct sb_error *err)
{
    *taken = 0;
    if (input->object.generation != sb_generation())
        return sb_fail(err, SB_ERR_FORKED, "the input belongs to the parent process");
    size_t waiting = atomic_load_explicit(&input->waiting, memory_order_relaxed);
    size_t room = waiting < WAITING ? WAITING - waiting : 0, n = len < room ? len : room;
    if (n == 0)
        return 0;
    struct piece *piece = new_piece(input, data, n);
    if (piece == NULL)
        return sb_fail(err, SB_ERR_INTERNAL, "out of memory");
    int rc = sb_loop_post(on_piece, piece, err);
    if (rc < 0) {
        give_up(piece);
        return rc;
    }
    *taken = n;
    return 0;
}

static void post(struct sb_input *input, void (*fn)(void *arg))
{
    if (input->object.generation != sb_generation())
        return;
    if (sb_loop_post(fn, sb_object_ref(input), NULL) < 0)
        sb_object_unref(input);
}

void sb_input_finish(struct sb_input *input)
{
    size_t taken;
    if (input->terminal)
        sb_input_try_write(input, "\4", 1, &taken, NULL);
    else
        post(input, on_finish);
}

void sb_input_abort(struct sb_input *input)
{
    post(input, on_abort);
}

struct sb_input *sb_input_new(struct sb_port *origin, const struct sb_input_options *options,
                              struct sb_error *err)
{
    struct sb_input *input = calloc(1, sizeof *input);
    if (input == NULL)
        goto no_memory;
    sb_object_init(&input->object, &sb_input_type);
    input->last = &input->first;
    input->port = sb_object_ref(origin);
    input->run = options->run != NULL ? sb_object_ref(options->run) : NULL;
    input->pid = options->pid;
    input->terminal = options->terminal;
    input->send = strndup(options->send.data, options->send.len);
    input->close = strndup(options->close.data, options->close.len);
    input->headers = calloc(options->header_count + 1, sizeof *input->headers);
    if (input->send == NULL || input->close == NULL || input->headers == NULL)
        goto no_memory;
    for (size_t i = 0; i < options->header_count; i++) {
        char *line = malloc(options->headers[i].len + 1);
        if (line == NULL)
            goto no_memory;
        memcpy(line, options->headers[i].data, options->headers[i].len);
        input->headers[i] = (struct sb_slice){line, options->headers[i].len};
        input->header_count++;
    }
    return input;
no_memory:
    if (input != NULL)
        free_memory(input);
    sb_fail(err, SB_ERR_INTERNAL, "out of memory");
    return NULL;
}
