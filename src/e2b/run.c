/* A command over a stream: what comes is put where it belongs, and what the end means is judged here. */
#include "e2b/run.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "e2b/envelope.h"
#include "e2b/event.h"
#include "e2b/kept.h"
#include "e2b/killer.h"
#include "engine/proto.h"
#include "http/core.h"
#include "http/port.h"
#include "http/post.h"

#define TOLD_MOST 65536u /* kept of what a refusal says */
#define TAIL_MOST 65536u
#define KILLED_MOST (64u << 20)

struct waiter {
    struct waiter *next;
    struct sb_run *run; /* a reference */
    struct sb_op *op;
};

/* How it ended: written once, on the I/O thread. */
struct outcome {
    struct sb_error error;
    size_t len;
    unsigned char fields[];
};

struct sb_run {
    struct sb_object object;
    _Atomic uint32_t pid;
    struct sb_body *bodies[2]; /* references; NULL when it is captured, or only its tail is kept */
    _Atomic(struct outcome *) outcome;
    /* [io] */
    struct sb_release
        *release; /* of the command, until somebody else has it; NULL: there is none */
    struct sb_doomed *doomed;
    struct sb_post *post; /* until it has ended; the run is referenced as long */
    struct sb_queue *queues[2];
    int capture;
    size_t max_output;
    uint64_t silence;
    struct sb_kept kept[2]; /* tails: everybody's once there is an outcome */
    struct sb_op *op;       /* of the start, or of a captured run */
    struct waiter *waiters;
    struct sb_envelopes envelopes;
    long status; /* HTTP's, of an answer that is no stream */
    struct sb_kept told;
    int started, ended, over; /* the events start and end, the end of the stream */
    int killed;
    int wait_status;
    char words[64];
};

/* ---- results ---- */

static size_t fields_most(const struct sb_run *run)
{
    return sizeof(struct sb_msg) + 8 * 16 + sizeof run->words + run->told.len;
}

/* What is known, without a message's head. */
static size_t pack_fields(const struct sb_run *run, unsigned char *buf, size_t cap)
{
    struct sb_packer p;
    sb_pack_begin(&p, buf, cap, SB_REPLY, 0, 0);
    if (run->started)
        sb_pack_u64(&p, SB_F_PID, atomic_load_explicit(&run->pid, memory_order_relaxed));
    if (run->ended) {
        sb_pack_u64(&p, SB_F_STATUS, (uint64_t)run->wait_status);
        sb_pack_str(&p, SB_F_MESSAGE, run->words);
    }
    if (run->kept[0].dropped > 0)
        sb_pack_u64(&p, SB_F_DROPPED, run->kept[0].dropped);
    if (run->kept[1].dropped > 0)
        sb_pack_u64(&p, SB_F_DROPPED_ERR, run->kept[1].dropped);
    if (run->status != 0)
        sb_pack_u64(&p, SB_F_COUNT, (uint64_t)run->status);
    if (run->told.len > 0)
        sb_pack_bytes(&p, SB_F_DATA, run->told.data, run->told.len);
    memmove(buf, buf + sizeof(struct sb_msg), p.len - sizeof(struct sb_msg));
    return p.len - sizeof(struct sb_msg);
}

static void give_fields(const struct sb_run *run, struct sb_result *result)
{
    size_t cap = fields_most(run);
    result->fields = malloc(cap);
    if (result->fields != NULL)
        result->fields_len = pack_fields(run, result->fields, cap);
}

static void give_outcome(struct sb_op *op, const struct outcome *outcome)
{
    struct sb_result *result = sb_op_result(op);
    if (outcome->len > 0) {
        result->fields = malloc(outcome->len);
        if (result->fields != NULL) {
            memcpy(result->fields, outcome->fields, outcome->len);
            result->fields_len = outcome->len;
        }
    }
    if (outcome->error.kind != SB_OK)
        sb_op_fail(op, &outcome->error);
    else
        sb_op_complete(op);
}

/* ---- the end ---- */

static struct outcome *judge(struct sb_run *run, const struct sb_error *err)
{
    size_t cap = fields_most(run);
    struct outcome *outcome = calloc(1, sizeof *outcome + cap);
    if (outcome == NULL)
        return NULL;
    outcome->len = pack_fields(run, outcome->fields, cap);
    int clean = run->over && sb_end_failed(run->told.data, run->told.len) == 0;
    if (run->ended && clean) /* whatever happened to the connection after that */
        return outcome;
    if (run->status !=
        0) /* one that says it has succeeded may have been a stream before it was cut */
        sb_fail(&outcome->error, run->status / 100 == 2 ? SB_ERR_OUTCOME_UNKNOWN : SB_ERR_PROTOCOL,
                "the answer is not a stream of events (HTTP %ld)", run->status);
    else if (run->over && !clean)
        sb_fail(&outcome->error, SB_ERR_OUTCOME_UNKNOWN, "the stream ended with an error");
    else if (err != NULL)
        outcome->error = *err;
    else if (run->over)
        sb_fail(&outcome->error, SB_ERR_OUTCOME_UNKNOWN,
                "the stream ended without the end of the command");
    else
        sb_fail(&outcome->error, SB_ERR_OUTCOME_UNKNOWN, "the stream was cut before its end");
    return outcome;
}

static void drop_waiter(struct waiter *waiter)
{
    struct waiter **link = &waiter->run->waiters;
    while (*link != NULL && *link != waiter)
        link = &(*link)->next;
    if (*link != NULL)
        *link = waiter->next;
    sb_object_unref(waiter->run);
    free(waiter);
}

static void answer_waiters(struct sb_run *run, const struct outcome *outcome)
{
    while (run->waiters != NULL) {
        struct waiter *waiter = run->waiters;
        struct sb_op *op = waiter->op;
        drop_waiter(waiter);
        give_outcome(op, outcome);
    }
}

/* Of a command that nobody has got. One whose handle was closed meanwhile is killed. */
static void drop_release(struct sb_run *run, int fire)
{
    if (run->release == NULL)
        return;
    if (fire)
        sb_release_fire(run->release, NULL);
    else
        sb_release_cancel(run->release);
    sb_release_unref(run->release);
    run->release = NULL;
}

static struct outcome no_memory = {{.kind = SB_ERR_INTERNAL, .message = "out of memory"}, 0};

static void on_end(void *arg, const struct sb_error *err)
{
    struct sb_run *run = arg;
    struct sb_op *op = run->op;
    run->post = NULL;
    run->op = NULL;
    drop_release(run, err != NULL && err->kind == SB_ERR_CLOSED && !run->ended);
    for (int i = 0; i < 2 && !run->capture; i++)
        sb_kept_trim(&run->kept[i], TAIL_MOST);
    struct outcome *outcome = judge(run, err);
    if (outcome == NULL)
        outcome = &no_memory;
    atomic_store_explicit(&run->outcome, outcome, memory_order_release);
    for (int i = 0; i < 2; i++) {
        if (run->queues[i] != NULL)
            sb_queue_end(run->queues[i], outcome->error.kind != SB_OK ? &outcome->error : NULL);
        run->queues[i] = NULL;
    }
    if (op != NULL) {
        struct sb_result *result = sb_op_result(op);
        if (run->capture) {
            sb_kept_give(&run->kept[0], run->max_output, &result->bytes, &result->bytes_len);
            sb_kept_give(&run->kept[1], run->max_output, &result->bytes2, &result->bytes2_len);
            give_fields(run, result); /* dropped has grown, perhaps */
            if (outcome->error.kind != SB_OK)
                sb_op_fail(op, &outcome->error);
            else
                sb_op_complete(op);
        } else if (outcome->error.kind != SB_OK) {
            give_outcome(op, outcome);
        } else { /* an end without a start */
            struct sb_error wrong = {0};
            sb_fail(&wrong, SB_ERR_PROTOCOL,
                    "the stream did not begin with the start of the command");
            sb_op_fail(op, &wrong);
        }
    }
    answer_waiters(run, outcome);
    sb_envelopes_free(&run->envelopes);
    sb_object_unref(run);
}

/* ---- what comes ---- */

static void on_head(void *arg, long status, const char *type)
{
    static const char stream[] = "application/connect+proto";
    struct sb_run *run = arg;
    size_t n = sizeof stream - 1;
    if (status != 200 || type == NULL || strncasecmp(type, stream, n) != 0 ||
        (type[n] != '\0' && type[n] != ';' && type[n] != ' '))
        run->status = status;
}

/* Of one that was killed what it wrote is on its way, and no more is made: its end comes behind it. */
static size_t beyond(const struct sb_run *run)
{
    return run->killed ? KILLED_MOST : 0;
}

/* Output, in order; the connection is held when the reader does not follow. */
static int take_output(struct sb_run *run, int at, const struct sb_wire *data)
{
    size_t len = (size_t)(data->end - data->at);
    if (len == 0)
        return 0;
    if (run->capture)
        return at == 0 ? sb_keep_head(&run->kept[0], data->at, len, run->max_output)
                       : sb_keep_tail(&run->kept[1], data->at, len, run->max_output);
    if (run->queues[at] == NULL)
        return sb_keep_tail(&run->kept[at], data->at, len, TAIL_MOST);
    if (sb_queue_append(run->queues[at], data->at, len) < 0)
        return -1;
    if (sb_queue_full(run->queues[at], beyond(run)))
        sb_post_hold(run->post);
    return 0;
}

static void take_start(struct sb_run *run, const struct sb_event *event)
{
    struct sb_op *op = run->op;
    run->started = 1;
    atomic_store_explicit(&run->pid, event->pid, memory_order_relaxed);
    if (run->release != NULL)
        sb_doomed_tell(run->doomed, event->pid);
    if (run->capture || op == NULL)
        return;
    run->op = NULL;
    struct sb_result *result = sb_op_result(op);
    give_fields(run, result);
    result->object = sb_object_ref(run);
    result->release = run->release;
    run->release = NULL;
    sb_op_complete(op);
}

static int take_event(struct sb_run *run, const unsigned char *payload, size_t len)
{
    struct sb_event event;
    if (sb_event_read((struct sb_wire){payload, payload + len}, &event) < 0)
        return -1;
    if (event.type == SB_EVENT_OTHER)
        return 0;
    if (run->ended || (event.type == SB_EVENT_START) == run->started)
        return -1; /* the first, and only the first, is the start */
    switch (event.type) {
    case SB_EVENT_START:
        take_start(run, &event);
        return 0;
    case SB_EVENT_STDOUT:
        return take_output(run, 0, &event.data);
    case SB_EVENT_STDERR:
        return take_output(run, 1, &event.data);
    default: {
        size_t n = (size_t)(event.status.end - event.status.at);
        n = n < sizeof run->words - 1 ? n : sizeof run->words - 1;
        if (n > 0)
            memcpy(run->words, event.status.at, n);
        run->ended = 1;
        run->wait_status = sb_event_status(&event);
        return 0;
    }
    }
}

static int take_envelope(void *arg, unsigned flags, const unsigned char *payload, size_t len)
{
    struct sb_run *run = arg;
    if (run->over || (flags & SB_ENVELOPE_COMPRESSED)) /* which was not asked for */
        return -1;
    if ((flags & SB_ENVELOPE_END) == 0)
        return take_event(run, payload, len);
    run->over = 1;
    return sb_keep_head(&run->told, payload, len, TOLD_MOST);
}

static int on_data(void *arg, const unsigned char *data, size_t len, struct sb_error *err)
{
    struct sb_run *run = arg;
    if (run->status != 0) { /* why not, in its words */
        if (sb_keep_head(&run->told, data, len, TOLD_MOST) == 0)
            return 0;
        return sb_fail(err, SB_ERR_INTERNAL, "out of memory");
    }
    switch (sb_envelopes_feed(&run->envelopes, data, len, take_envelope, run)) {
    case SB_ENVELOPES_FED:
        return 0;
    case SB_ENVELOPES_MEMORY:
        return sb_fail(err, SB_ERR_INTERNAL, "out of memory");
    case SB_ENVELOPES_LONG:
        return sb_fail(err, SB_ERR_PROTOCOL, "a message of the stream is too long");
    default:
        return sb_fail(err, SB_ERR_PROTOCOL, "the stream does not keep to the protocol");
    }
}

static const struct sb_post_sink sink = {on_head, on_data, on_end};

/* ---- asking ---- */

static void let_go(struct sb_run *run, enum sb_err kind, const char *why)
{
    struct sb_error err = {0};
    sb_fail(&err, kind, "%s", why);
    if (run->post != NULL)
        sb_post_abort(run->post, &err);
}

/* [io] A reader has made room, or has gone away. */
static void on_reader(void *arg)
{
    struct sb_run *run = arg;
    for (int i = 0; i < 2; i++)
        if (run->queues[i] != NULL && sb_queue_full(run->queues[i], beyond(run)))
            return;
    if (run->post != NULL)
        sb_post_go_on(run->post);
}

/* Nobody waits for it any more: what was begun there is killed, and the result has the release that does it. */
static void on_cancel(struct sb_op *op, void *owner)
{
    struct sb_run *run = owner;
    if (run->release != NULL && !run->ended && run->post != NULL && sb_post_sent(run->post)) {
        sb_release_fire(run->release, NULL);
        sb_op_result(op)->release = run->release;
        run->release = NULL;
    }
    let_go(run, SB_ERR_CANCELLED, "cancelled");
}

static void on_begin(void *arg)
{
    struct sb_run *run = arg;
    sb_op_set_cancel(run->op, on_cancel, run);
    struct sb_post *post = run->post;
    if (sb_op_asked(run->op) != SB_OK) {
        struct sb_error err = {.kind = SB_ERR_CANCELLED, .message = "cancelled"};
        sb_post_free(post);
        on_end(run, &err);
        return;
    }
    sb_post_begin(post, &sink, run, run->silence);
}

static struct sb_run *new_run(const struct sb_run_options *options)
{
    struct sb_run *run = calloc(1, sizeof *run);
    if (run == NULL)
        return NULL;
    sb_object_init(&run->object, &sb_run_type);
    run->capture = options->capture;
    run->max_output = options->max_output;
    run->silence = options->silence;
    if (options->killer != NULL) {
        run->release = sb_killer_release(options->killer, options->token, 0, &run->doomed);
        if (run->release == NULL)
            goto no_memory;
    }
    for (int i = 0; i < 2 && !run->capture; i++) {
        if (options->tails & (1u << i))
            continue;
        run->bodies[i] = sb_body_new(&run->queues[i], on_reader, run);
        if (run->bodies[i] == NULL)
            goto no_memory;
    }
    return run;
no_memory:
    sb_object_unref(run);
    return NULL;
}

/* The request's one message in its envelope: memory of its own. */
static unsigned char *in_envelope(const struct sb_slice *message)
{
    size_t len = message->len;
    unsigned char *body = malloc(SB_ENVELOPE_HEAD + len);
    if (body == NULL)
        return NULL;
    body[0] = 0;
    for (int i = 0; i < 4; i++)
        body[1 + i] = (unsigned char)(len >> (24 - 8 * i));
    if (len > 0)
        memcpy(body + SB_ENVELOPE_HEAD, message->data, len);
    return body;
}

static int start(struct sb_run *run, struct sb_port *origin, const struct sb_run_options *options,
                 struct sb_error *err)
{
    size_t len = options->message.len;
    if (origin->object.generation != sb_generation())
        return sb_fail(err, SB_ERR_FORKED, "the connection belongs to the parent process");
    if (len > SB_ENVELOPE_MOST)
        return sb_fail(err, SB_ERR_LIMIT_EXCEEDED, "the request is longer than 16 MiB");
    unsigned char *body = in_envelope(&options->message);
    if (body == NULL)
        return sb_fail(err, SB_ERR_INTERNAL, "out of memory");
    struct sb_request request = {
        .method = {"POST", 4},
        .target = options->target,
        .headers = options->headers,
        .header_count = options->header_count,
        .body = {(char *)body, SB_ENVELOPE_HEAD + len},
        .has_body = 1,
    };
    run->post = sb_post_new(origin, &request, err);
    explicit_bzero(body, SB_ENVELOPE_HEAD + len);
    free(body);
    if (run->post == NULL)
        return -(int)err->kind;
    sb_object_ref(run); /* until on_end */
    if (sb_loop_post(on_begin, run, err) < 0) {
        sb_post_free(run->post);
        run->post = NULL;
        sb_object_unref(run);
        return -(int)err->kind;
    }
    return 0;
}

struct sb_op *sb_run_start(struct sb_port *origin, struct sb_mailbox *mailbox,
                           const struct sb_run_options *options)
{
    struct sb_error err = {0};
    struct sb_op *op = sb_op_new(mailbox, NULL, NULL);
    if (op == NULL)
        return NULL;
    struct sb_run *run = new_run(options);
    if (run == NULL) {
        sb_fail(&err, SB_ERR_INTERNAL, "out of memory");
        return sb_http_refuse(op, &err);
    }
    run->op = op;
    int rc = start(run, origin, options, &err);
    if (rc < 0) {
        run->op = NULL;
        sb_http_refuse(op, &err);
    }
    sb_object_unref(run); /* the asker gets one with the result */
    return op;
}

uint32_t sb_run_pid(const struct sb_run *run)
{
    return atomic_load_explicit(&run->pid, memory_order_relaxed);
}

struct sb_body *sb_run_output(const struct sb_run *run, int fd)
{
    return run->bodies[fd - 1];
}

int sb_run_lost(const struct sb_run *run)
{
    const struct outcome *outcome = atomic_load_explicit(&run->outcome, memory_order_acquire);
    return outcome != NULL && outcome->error.kind != SB_ERR_CLOSED &&
           outcome->error.kind != SB_ERR_CANCELLED;
}

const unsigned char *sb_run_exited(const struct sb_run *run, size_t *len)
{
    const struct outcome *outcome = atomic_load_explicit(&run->outcome, memory_order_acquire);
    if (outcome == NULL || outcome->error.kind != SB_OK)
        return NULL;
    *len = outcome->len;
    return outcome->fields;
}

const unsigned char *sb_run_tail(const struct sb_run *run, int fd, size_t *len)
{
    const struct sb_kept *kept = &run->kept[fd - 1];
    *len = 0;
    if (run->capture || atomic_load_explicit(&run->outcome, memory_order_acquire) == NULL)
        return NULL;
    *len = kept->len;
    return kept->data;
}

static void on_wait_cancel(struct sb_op *op, void *owner)
{
    drop_waiter(owner);
    sb_http_cancelled(op);
}

static void on_wait(void *arg)
{
    struct waiter *waiter = arg;
    struct sb_run *run = waiter->run;
    struct sb_op *op = waiter->op;
    const struct outcome *outcome = atomic_load_explicit(&run->outcome, memory_order_relaxed);
    sb_op_set_cancel(op, on_wait_cancel, waiter);
    if (outcome != NULL || sb_op_asked(op) != SB_OK) {
        if (outcome != NULL)
            give_outcome(op, outcome);
        else
            sb_http_cancelled(op);
        sb_object_unref(run);
        free(waiter);
        return;
    }
    waiter->next = run->waiters;
    run->waiters = waiter;
}

struct sb_op *sb_run_wait(struct sb_run *run, struct sb_mailbox *mailbox)
{
    struct waiter *waiter = calloc(1, sizeof *waiter);
    struct sb_op *op = waiter != NULL ? sb_op_new(mailbox, NULL, NULL) : NULL;
    if (op == NULL) {
        free(waiter);
        return NULL;
    }
    waiter->run = sb_object_ref(run);
    waiter->op = op;
    struct sb_error err = {0};
    if (sb_loop_post(on_wait, waiter, &err) < 0) {
        sb_object_unref(run);
        free(waiter);
        return sb_http_refuse(op, &err);
    }
    return op;
}

static void on_close(void *arg)
{
    struct sb_run *run = arg;
    let_go(run, SB_ERR_CLOSED, "the process handle is closed");
    sb_object_unref(run);
}

static void on_killed(void *arg)
{
    struct sb_run *run = arg;
    run->killed = 1;
    on_reader(run);
    sb_object_unref(run);
}

static void tell(struct sb_run *run, void (*fn)(void *arg))
{
    if (run->object.generation != sb_generation() ||
        atomic_load_explicit(&run->outcome, memory_order_acquire) != NULL)
        return;
    if (sb_loop_post(fn, sb_object_ref(run), NULL) < 0)
        sb_object_unref(run);
}

void sb_run_close(struct sb_run *run)
{
    tell(run, on_close);
}

void sb_run_killed(struct sb_run *run)
{
    tell(run, on_killed);
}

static void free_queue(struct sb_queue **queue)
{
    if (*queue != NULL)
        sb_queue_end(*queue, NULL);
    *queue = NULL;
}

/* The last reference: the stream has ended, or never began. */
static void destroy(struct sb_object *object)
{
    struct sb_run *run = (struct sb_run *)object;
    struct outcome *outcome = atomic_load_explicit(&run->outcome, memory_order_acquire);
    if (object->generation == sb_generation())
        for (int i = 0; i < 2; i++)
            free_queue(&run->queues[i]);
    for (int i = 0; i < 2; i++) {
        sb_object_unref(run->bodies[i]);
        free(run->kept[i].data);
    }
    free(run->told.data);
    drop_release(run, 0);
    sb_envelopes_free(&run->envelopes);
    if (outcome != &no_memory)
        free(outcome);
    free(run);
}

const struct sb_object_type sb_run_type = {"run", destroy};
