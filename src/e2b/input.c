/* A queue of input. All its state belongs to the I/O thread: the asking thread only copies and posts. */
#include "e2b/input.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#include "e2b/run.h"
#include "e2b/wire.h"
#include "http/core.h"
#include "http/peek.h"
#include "http/port.h"
#include "http/post.h"

#define PIECE 262144u        /* bytes of one call */
#define WAITING 262144u      /* what try_write lets wait here */
#define TOLD_MOST 512u       /* bytes of an answer that are looked at */
#define SECOND 1000000000ull /* ns */
#define PAUSE_FIRST (SECOND / 10)
#define PAUSE_MOST (5 * SECOND)
#define PATIENCE (60 * SECOND) /* how long bytes that are not taken are offered again */
/* How long the end of the input is told again, and until a call that tells it counts as cut. After as long a silence the
 * command's own stream counts as cut. */
#define END_PATIENCE (120 * SECOND)
#define END_SILENCE (30 * SECOND)

/* What became of a call. */
enum fate {
    TAKEN,
    NOT_TAKEN, /* and may be later */
    REFUSED,   /* nothing was taken, and nothing will be */
    ENDED,     /* the command has ended, or reads no more */
    UNKNOWN,
};

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
    size_t sent;            /* of the first piece: on their way */
    struct sb_post *post;   /* a call is under way; it references the input */
    int finished, over;     /* its end was asked for; it was told, or never will be */
    struct sb_error broken; /* nothing more is taken */
    /* of the call's answer */
    long status, retry_after;
    int is_proto, is_json;
    char told[TOLD_MOST];
    size_t told_len;
    /* between two calls of which the first was not taken; references the input */
    int resting;
    struct sb_timer rest;
    struct sb_port_user user;
    uint64_t since, pause; /* 0: the last call was taken */
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

/* Another one is offered at once, or when the pause is over; with new patience. The caller holds a reference of the
 * input. */
static void drop_first(struct sb_input *input)
{
    struct piece *piece = input->first;
    input->first = piece->next;
    if (input->first == NULL)
        input->last = &input->first;
    atomic_fetch_sub_explicit(&input->waiting, piece->len - piece->off, memory_order_relaxed);
    input->since = 0;
    explicit_bzero(piece->data, piece->len);
    free(piece);
    sb_object_unref(input);
}

/* Bytes that count as taken and never will be are the end of it: what came after them would close the gap. */
static void drop_all(struct sb_input *input, const struct sb_error *err)
{
    while (input->first != NULL) {
        if (input->first->op == NULL && input->broken.kind == SB_OK)
            input->broken = *err;
        piece_answer(input->first, input->first->off, err);
        drop_first(input);
    }
}

/* ---- [io] answers ---- */

static int is_type(const char *type, const char *expected)
{
    size_t n = strlen(expected);
    return type != NULL && strncasecmp(type, expected, n) == 0 &&
           (type[n] == '\0' || type[n] == ';' || type[n] == ' ');
}

static void on_head(void *arg, long status, const char *type)
{
    struct sb_input *input = arg;
    input->status = status;
    input->is_proto = is_type(type, "application/proto");
    input->is_json = is_type(type, "application/json");
    input->retry_after = sb_post_retry_after(input->post);
}

static int on_data(void *arg, const unsigned char *data, size_t len, struct sb_error *err)
{
    struct sb_input *input = arg;
    (void)err;
    size_t room = sizeof input->told - input->told_len;
    if (len > room)
        len = room;
    memcpy(input->told + input->told_len, data, len);
    input->told_len += len;
    return 0;
}

static int says(const struct sb_input *input, const char *words)
{
    return input->is_json && memmem(input->told, input->told_len, words, strlen(words)) != NULL;
}

/* Of an answer that is whole. The daemon's own errors, and those of the proxy in front of it, are JSON. */
static enum fate judge_status(const struct sb_input *input, struct sb_error *why)
{
    long status = input->status;
    char word[32]; /* the daemon's errors have one as their code */
    if (status == 200 && input->is_proto)
        return TAKEN;
    if (status == 429) {
        sb_fail(why, SB_ERR_RATE_LIMITED, "the sandbox takes no input now (HTTP 429)");
        return NOT_TAKEN;
    }
    if (status == 502 && says(input, "port is not open")) {
        sb_fail(why, SB_ERR_UNAVAILABLE, "the sandbox's daemon does not answer");
        return NOT_TAKEN;
    }
    if (status == 502 && says(input, "sandbox was not found")) {
        sb_fail(why, SB_ERR_NOT_RUNNING, "the sandbox does not run");
        return REFUSED;
    }
    if ((status == 404 || status == 500) && input->is_json &&
        sb_peek_name("code", input->told, input->told_len, word, sizeof word - 1) > 0) {
        sb_fail(why, SB_ERR_CLOSED, "the command reads no more of its input (HTTP %ld)", status);
        return ENDED;
    }
    if (status / 100 == 4 && status != 404 && status != 408) {
        sb_fail(why,
                status == 401   ? SB_ERR_UNAUTHENTICATED
                : status == 403 ? SB_ERR_PERMISSION_DENIED
                                : SB_ERR_PROTOCOL,
                "the input was refused (HTTP %ld)", status);
        return REFUSED;
    }
    sb_fail(why, SB_ERR_OUTCOME_UNKNOWN,
            "the answer does not say whether the input was taken (HTTP %ld)", status);
    return UNKNOWN;
}

static enum fate judge(const struct sb_input *input, const struct sb_error *err,
                       struct sb_error *why)
{
    *why = (struct sb_error){0};
    if (err == NULL)
        return judge_status(input, why);
    *why = *err;
    return err->kind == SB_ERR_UNAVAILABLE ? NOT_TAKEN
           : err->kind == SB_ERR_CLOSED    ? ENDED
                                           : UNKNOWN;
}

/* ---- [io] pauses ---- */

static void stop_resting(struct sb_input *input)
{
    sb_timer_clear(&input->rest);
    sb_port_leave(&input->user);
    input->resting = 0;
    sb_object_unref(input);
}

static void on_rest(struct sb_timer *timer)
{
    struct sb_input *input = sb_object_ref(SB_OF(timer, struct sb_input, rest));
    stop_resting(input);
    next_call(input);
    sb_object_unref(input);
}

static void on_port_closed(struct sb_port_user *user)
{
    struct sb_input *input = sb_object_ref(SB_OF(user, struct sb_input, user));
    stop_resting(input);
    if (input->broken.kind == SB_OK)
        sb_fail(&input->broken, SB_ERR_CLOSED, "the connection was closed");
    input->over = 1;
    drop_all(input, &input->broken);
    sb_object_unref(input);
}

/* Between half and all of the pause: who began together does not go on together. */
static uint64_t some_of(uint64_t pause)
{
    uint32_t chance = 0;
    if (getrandom(&chance, sizeof chance, GRND_NONBLOCK) < 0)
        chance = 0;
    return pause / 2 + pause / 2 * chance / UINT32_MAX;
}

/* What was not taken is offered again after a while: 0; -1: not any more. */
static int rest(struct sb_input *input, uint64_t patience)
{
    uint64_t now = sb_now();
    if (input->since == 0) {
        input->since = now;
        input->pause = PAUSE_FIRST;
    }
    uint64_t at = now + (input->retry_after > 0 ? (uint64_t)input->retry_after * SECOND
                                                : some_of(input->pause));
    input->pause = input->pause * 2 < PAUSE_MOST ? input->pause * 2 : PAUSE_MOST;
    if (at > input->since + patience || sb_port_join(input->port, &input->user, on_port_closed) < 0)
        return -1;
    input->resting = 1;
    input->rest.fire = on_rest;
    sb_object_ref(input);
    sb_timer_set(&input->rest, at);
    return 0;
}

/* ---- [io] calls ---- */

static void take_sent(struct sb_input *input)
{
    struct piece *piece = input->first;
    input->since = 0;
    if (piece == NULL)
        return;
    piece->off += input->sent;
    atomic_fetch_sub_explicit(&input->waiting, input->sent, memory_order_relaxed);
    if (piece->off >= piece->len) {
        piece_answer(piece, piece->len, NULL);
        drop_first(input);
    }
}

static void on_sent(void *arg, const struct sb_error *err)
{
    struct sb_input *input = arg;
    struct sb_error why;
    enum fate fate = judge(input, err, &why);
    input->post = NULL;
    if (fate == TAKEN)
        take_sent(input);
    if (input->broken.kind != SB_OK) { /* given up meanwhile */
        drop_all(input, &input->broken);
    } else if (fate != TAKEN && (fate != NOT_TAKEN || rest(input, PATIENCE) < 0)) {
        if (fate == ENDED || fate == UNKNOWN)
            input->broken = why;
        drop_all(input, &why);
    }
    input->sent = 0;
    next_call(input);
    sb_object_unref(input);
}

/* The end of an input may be told twice, but not typed twice. */
static void on_closed(void *arg, const struct sb_error *err)
{
    struct sb_input *input = arg;
    struct sb_error why;
    enum fate fate = judge(input, err, &why);
    input->post = NULL;
    int again = fate == NOT_TAKEN || (fate == UNKNOWN && !input->terminal);
    input->over = !again || rest(input, END_PATIENCE) < 0;
    sb_object_unref(input);
}

/* 1 pid, 2 stdin or pty */
static int pack(const struct sb_input *input, const void *data, size_t len, struct sb_packed *out)
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

static int call(struct sb_input *input, const char *target, const void *data, size_t len,
                const struct sb_post_sink *sink, uint64_t silence, struct sb_error *err)
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
    input->post = post;
    input->status = input->retry_after = 0;
    input->told_len = 0;
    sb_object_ref(input);
    sb_post_begin(post, sink, input, silence);
    return 0;
}

static void tell_end(struct sb_input *input)
{
    static const struct sb_post_sink closing = {on_head, on_data, on_closed};
    int rc = input->terminal ? call(input, input->send, "\4", 1, &closing, END_SILENCE, NULL)
                             : call(input, input->close, NULL, 0, &closing, END_SILENCE, NULL);
    if (rc < 0)
        input->over = 1;
}

/* A command may take as long as it likes to read, so no clock is set for that. What it was sent before may have been
 * lost: it is told of the end all the same, or it would wait for ever. */
static void next_call(struct sb_input *input)
{
    static const struct sb_post_sink sending = {on_head, on_data, on_sent};
    struct piece *piece = input->first;
    struct sb_error err = {0};
    if (input->post != NULL || input->resting || input->over)
        return;
    if (piece != NULL) {
        size_t left = piece->len - piece->off;
        input->sent = left < PIECE ? left : PIECE;
        if (call(input, input->send, piece->data + piece->off, input->sent, &sending, SB_NEVER,
                 &err) < 0) {
            input->broken = err;
            drop_all(input, &err);
        }
    } else if (input->finished) {
        if (input->broken.kind == SB_ERR_CLOSED)
            input->over = 1;
        else
            tell_end(input);
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
    if (piece == input->first && input->post != NULL) { /* what is on its way stays */
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
    explicit_bzero(piece->data, piece->len);
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
    if (input->resting)
        stop_resting(input);
    if (input->post == NULL)
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
