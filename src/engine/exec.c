/* exec: a command's whole life in one operation, carried on the I/O thread.
 *
 * The end is the end of the command and of what it wrote: both streams at their end, or a grace
 * after the exit when background children still hold the pipes. stdout keeps its head, stderr
 * its tail (the last lines say why it failed). All of it belongs to the I/O thread once the
 * request is sent. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "../runtime/large.h"
#include "../runtime/transfer.h"
#include "proc.h"

#define SCRATCH 65536
#define DIRECT_MAX 262144           /* bytes read straight into the result in one call */
#define TURN_MAX (1u << 20)         /* bytes taken from one pipe before others get their turn */
#define KILL_LIMIT_NS 1000000000ull /* how long the end of a killed command is waited for */

/* Where output is read when the result has no room for it yet. [io] */
static unsigned char scratch[SCRATCH];

struct exec;

struct capture {
    struct sb_source source; /* fd -1: at its end, or never there */
    struct exec *exec;
    unsigned char *data; /* once full, a ring starting at `head` if the tail is kept */
    size_t len, room, head;
    uint64_t dropped;
    int keep_tail, used;
    struct sb_transfer transfer;
};

struct exec {
    struct sb_call call;
    struct sb_watch watch;
    struct sb_op *op;
    struct sb_box *box; /* a reference */
    struct capture out, err;
    struct sb_source input; /* fd -1: none, or done */
    struct sb_transfer input_transfer;
    size_t input_len, input_at;
    size_t max_output;
    uint64_t grace_ns;
    struct sb_timer timer; /* the grace after the exit, or the bound of a kill */
    uint64_t serial, pid;
    enum { ASKED, RUNNING, ENDED } state;
    enum sb_err why; /* SB_OK, or why it is being killed: Cancelled, ExecTimedOut */
    unsigned char *fields;
    size_t fields_len;
    int fields_lost; /* for want of memory */
    unsigned char input_data[];
};

#define EXEC_OF(pointer, member) \
    ((struct exec *)(void *)((char *)(pointer)-offsetof(struct exec, member)))

/* ---- capturing ---- */

static void capture_init(struct capture *c, struct exec *exec, int keep_tail)
{
    c->source.fd = -1;
    c->exec = exec;
    c->keep_tail = keep_tail;
}

static void capture_stop(struct capture *c)
{
    if (c->source.fd < 0)
        return;
    sb_source_remove(&c->source);
    sb_transfer_close(&c->transfer);
    close(c->source.fd);
    c->source.fd = -1;
}

/* Room for `more` bytes, within the cap; 0: there is no memory, the bytes count as dropped. */
static int capture_grow(struct capture *c, size_t more)
{
    size_t cap = c->exec->max_output, room = c->room * 2;
    unsigned char *data;
    if (room < c->len + more)
        room = c->len + more;
    if (room > cap)
        room = cap;
    data = sb_large_realloc(c->data, room);
    if (data == NULL)
        return 0;
    c->data = data;
    c->room = room;
    return 1;
}

static void capture_add(struct capture *c, const unsigned char *bytes, size_t n)
{
    size_t cap = c->exec->max_output;
    size_t fits = cap - c->len < n ? cap - c->len : n;
    if (fits > 0 && c->room - c->len < fits && !capture_grow(c, fits)) {
        c->dropped += n;
        return;
    }
    if (fits > 0) {
        memcpy(c->data + c->len, bytes, fits);
        c->len += fits;
        bytes += fits;
        n -= fits;
    }
    if (n == 0)
        return;
    c->dropped += n;
    if (!c->keep_tail || cap == 0)
        return;
    if (n > cap) {
        bytes += n - cap;
        n = cap;
    }
    while (n > 0) {
        size_t part = cap - c->head < n ? cap - c->head : n;
        memcpy(c->data + c->head, bytes, part);
        c->head = (c->head + part) % cap;
        bytes += part;
        n -= part;
    }
}

static void reverse(unsigned char *a, size_t n)
{
    for (size_t i = 0; i < n / 2; i++) {
        unsigned char t = a[i];
        a[i] = a[n - 1 - i];
        a[n - 1 - i] = t;
    }
}

/* The bytes in their order, malloc'ed; NULL when the stream was never captured. */
static unsigned char *capture_take(struct capture *c, size_t *len)
{
    unsigned char *data = c->data;
    if (!c->used)
        return NULL;
    if (c->head > 0) {
        reverse(data, c->head);
        reverse(data + c->head, c->len - c->head);
        reverse(data, c->len);
    }
    if (data == NULL)
        data = malloc(1); /* "" and not nothing */
    *len = c->len;
    c->data = NULL;
    return data;
}

/* Reads at most `most` bytes; `lazy`: a short read is taken for the last, without asking once
 * more only to hear so. 1: it is empty for now or had its turn; 0: it has ended. */
static int capture_read(struct capture *c, size_t most, int lazy)
{
    while (most > 0) {
        size_t free_room = c->room - c->len;
        int direct = free_room >= SCRATCH;
        size_t want = direct ? (free_room < DIRECT_MAX ? free_room : DIRECT_MAX) : SCRATCH;
        ssize_t n;
        if (want > most)
            want = most;
        n = sb_transfer_read(&c->transfer, c->source.fd, direct ? c->data + c->len : scratch, want);
        if (n < 0 && errno == EAGAIN)
            return 1;
        if (n <= 0)
            return 0;
        if (direct)
            c->len += (size_t)n;
        else
            capture_add(c, scratch, (size_t)n);
        if (lazy && (size_t)n < want)
            return 1;
        most -= (size_t)n;
    }
    return 1;
}

/* What is in the pipe at this moment, and no more. */
static void capture_drain(struct capture *c)
{
    int there = 0;
    if (c->source.fd < 0 || ioctl(c->source.fd, FIONREAD, &there) < 0)
        return;
    if (there > 0 && !capture_read(c, (size_t)there, 0))
        capture_stop(c);
}

/* ---- the end ---- */

static void feed_stop(struct exec *exec)
{
    if (exec->input.fd < 0)
        return;
    sb_source_remove(&exec->input);
    sb_transfer_close(&exec->input_transfer);
    close(exec->input.fd);
    exec->input.fd = -1;
}

static void fields_add(struct exec *exec, const void *raw, size_t len)
{
    unsigned char *fields = realloc(exec->fields, exec->fields_len + len + 1);
    if (fields == NULL) {
        exec->fields_lost = 1;
        return;
    }
    if (len > 0)
        memcpy(fields + exec->fields_len, raw, len);
    exec->fields = fields;
    exec->fields_len += len;
}

static void exec_free(struct exec *exec)
{
    free(exec->out.data);
    free(exec->err.data);
    free(exec->fields);
    explicit_bzero(exec->input_data, exec->input_len);
    sb_object_unref(exec->box);
    free(exec);
}

static void send_release(struct exec *exec)
{
    unsigned char buf[64];
    struct sb_packer p;
    sb_pack_begin(&p, buf, sizeof buf, SB_C_RELEASE, 0, 0);
    sb_pack_u64(&p, SB_F_SERIAL, exec->serial);
    sb_box_call(exec->box, NULL, buf, p.len, NULL, 0, NULL);
}

/* Its start has not been answered for: by the request that it was. A pid 1 that does not know that yet is made to tell
 * who it is. */
static void kill_asked(struct exec *exec)
{
    static const uint16_t types[] = {SB_C_KILL, SB_C_TELL};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        unsigned char buf[64];
        struct sb_packer p;
        sb_pack_begin(&p, buf, sizeof buf, types[i], 0, 0);
        sb_pack_u64(&p, SB_F_REQ, exec->call.req);
        sb_box_call(exec->box, NULL, buf, p.len, NULL, 0, NULL);
    }
}

/* Completes with what there is; err NULL: success, if it is known how the command ended. */
static void finish(struct exec *exec, const struct sb_error *err)
{
    struct sb_error lost = {SB_OK};
    if (err == NULL && exec->fields_lost) {
        sb_fail_errno(&lost, ENOMEM, "exec", "how the command ended could not be kept");
        err = &lost;
    }
    struct sb_op *op = exec->op;
    struct sb_result *result = sb_op_result(op);
    int held = exec->out.source.fd >= 0 || exec->err.source.fd >= 0;
    if (exec->timer.set)
        sb_timer_clear(&exec->timer);
    sb_box_unwatch(exec->box, &exec->watch);
    capture_stop(&exec->out);
    capture_stop(&exec->err);
    feed_stop(exec);
    if (held) /* somebody in the background has the pipes: pid 1 reads them from now on */
        send_release(exec);
    if (exec->out.dropped > 0 || exec->err.dropped > 0) {
        unsigned char buf[64];
        struct sb_packer p;
        sb_pack_begin(&p, buf, sizeof buf, SB_REPLY, 0, 0);
        sb_pack_u64(&p, SB_F_DROPPED, exec->out.dropped);
        sb_pack_u64(&p, SB_F_DROPPED_ERR, exec->err.dropped);
        fields_add(exec, buf + sizeof(struct sb_msg), p.len - sizeof(struct sb_msg));
    }
    result->fields = exec->fields;
    result->fields_len = exec->fields_len;
    exec->fields = NULL;
    result->bytes = capture_take(&exec->out, &result->bytes_len);
    result->bytes2 = capture_take(&exec->err, &result->bytes2_len);
    exec_free(exec);
    if (err != NULL)
        sb_op_fail(op, err);
    else
        sb_op_complete(op);
}

static void finish_ended(struct exec *exec)
{
    struct sb_error err = {SB_OK};
    if (exec->why == SB_OK) {
        finish(exec, NULL);
        return;
    }
    sb_fail(&err, exec->why, "%s; the command and its children %s",
            exec->why == SB_ERR_CANCELLED ? "cancelled" : "timed out",
            exec->state == ENDED ? "were killed" : "are to be killed; their end was not told yet");
    finish(exec, &err);
}

static int at_end(const struct exec *exec)
{
    return exec->out.source.fd < 0 && exec->err.source.fd < 0;
}

static void capture_ready(struct sb_source *source, uint32_t events)
{
    struct capture *c = (struct capture *)source; /* its first member */
    struct exec *exec = c->exec;
    (void)events;
    if (capture_read(c, TURN_MAX, 1))
        return;
    capture_stop(c);
    if (exec->state == ENDED && at_end(exec))
        finish_ended(exec);
}

static void timer_fired(struct sb_timer *timer)
{
    struct exec *exec = EXEC_OF(timer, timer);
    if (exec->state == ENDED) { /* the grace is over */
        capture_drain(&exec->out);
        capture_drain(&exec->err);
    } else if (exec->state ==
               ASKED) { /* its start may still be reported, and must be undone then */
        struct sb_op *op = exec->op;
        struct sb_error err = {SB_OK};
        exec->op = NULL;
        sb_fail(&err, exec->why,
                "the sandbox did not answer; the command is killed if it still starts");
        sb_op_fail(op, &err);
        return;
    }
    finish_ended(exec);
}

static void exec_exited(struct sb_watch *watch, const struct sb_answer *event)
{
    struct exec *exec = EXEC_OF(watch, watch);
    exec->state = ENDED;
    fields_add(exec, event->raw, event->raw_len);
    feed_stop(exec);
    /* Everything the command itself wrote is in the pipes by now. */
    if (exec->out.source.fd >= 0 && !capture_read(&exec->out, TURN_MAX, 0))
        capture_stop(&exec->out);
    if (exec->err.source.fd >= 0 && !capture_read(&exec->err, TURN_MAX, 0))
        capture_stop(&exec->err);
    if (at_end(exec)) {
        finish_ended(exec);
        return;
    }
    sb_timer_set(&exec->timer, sb_now() + exec->grace_ns);
}

static void exec_lost(struct sb_watch *watch, const struct sb_error *err)
{
    struct exec *exec = EXEC_OF(watch, watch);
    capture_drain(&exec->out);
    capture_drain(&exec->err);
    /* Closed by this program, which is told that it failed and holds the command no longer. */
    if (exec->state == RUNNING && err->kind == SB_ERR_CLOSED)
        sb_proc_kill_anyway(exec->box, exec->serial, exec->pid);
    finish(exec, err);
}

/* ---- feeding stdin ---- */

static void feed(struct exec *exec)
{
    size_t most = TURN_MAX;
    while (exec->input_at < exec->input_len && most > 0) {
        size_t left = exec->input_len - exec->input_at;
        ssize_t n = sb_transfer_write(&exec->input_transfer, exec->input.fd,
                                      exec->input_data + exec->input_at, left < most ? left : most);
        if (n < 0 && errno == EAGAIN)
            return;
        if (n < 0)
            break; /* EPIPE: it reads no further, which is its own business */
        exec->input_at += (size_t)n;
        most -= (size_t)n;
    }
    if (most > 0)
        feed_stop(exec);
}

static void input_ready(struct sb_source *source, uint32_t events)
{
    (void)events;
    feed(EXEC_OF(source, input));
}

/* ---- the beginning ---- */

static int capture_start(struct capture *c, int fd, struct sb_error *err)
{
    int rc;
    if (fd < 0)
        return 0;
    c->used = 1;
    sb_transfer_init_pipe(&c->transfer);
    c->source = (struct sb_source){.fd = fd, .events = EPOLLIN, .ready = capture_ready};
    if ((rc = sb_source_add(&c->source, err)) == 0)
        return 0;
    close(fd);
    c->source.fd = -1;
    return rc;
}

/* It had ended before it was answered for: the reply tells all, the output comes last. */
static void ended_already(struct exec *exec, const struct sb_answer *answer)
{
    struct sb_reader at = answer->fields;
    struct sb_field_view f;
    size_t told = answer->raw_len;
    while (sb_read_field(&at, &f) == 1) {
        struct capture *c = f.tag == SB_F_DATA ? &exec->out : &exec->err;
        if (f.tag != SB_F_DATA && f.tag != SB_F_DATA_ERR)
            continue;
        if (told == answer->raw_len)
            told = (size_t)(f.data - answer->raw) - 8;
        c->used = 1;
        capture_add(c, f.data, f.len);
    }
    exec->state = ENDED;
    fields_add(exec, answer->raw, told);
    finish_ended(exec);
}

static void answered(struct sb_call *call, const struct sb_answer *answer)
{
    struct exec *exec = EXEC_OF(call, call);
    struct sb_error err = {SB_OK};
    struct sb_field_view status;
    const char *wrong;
    int fds[3], rc;
    exec->serial = sb_read_u64(&answer->fields, SB_F_SERIAL, 0);
    exec->pid = sb_read_u64(&answer->fields, SB_F_PID, 0);
    if (exec->op == NULL) {
        if (answer->type == SB_REPLY)
            sb_proc_kill(exec->box, exec->serial);
        if (answer->type == SB_PART)
            sb_conn_forget(&exec->box->conn, call);
        exec_free(exec);
        return;
    }
    if (answer->error != NULL) {
        if (answer->starved)
            sb_proc_kill(exec->box, exec->serial);
        if (answer->type == SB_PART)
            sb_conn_forget(&exec->box->conn, call);
        finish(exec, answer->error);
        return;
    }
    wrong = answer->type == SB_REPLY ? sb_proc_take_streams(answer, fds)
                                     : "a start answered by something else";
    if (wrong != NULL) {
        sb_fail(&err, SB_ERR_PROTOCOL, "the sandbox broke the protocol: %s", wrong);
        if (answer->type == SB_PART)
            sb_conn_forget(&exec->box->conn, call);
        sb_conn_break(&exec->box->conn, wrong);
        finish(exec, &err);
        return;
    }
    if (answer->nfds == 0 && sb_read_find(&answer->fields, SB_F_STATUS, &status)) {
        ended_already(exec, answer);
        return;
    }
    exec->state = RUNNING;
    fields_add(exec, answer->raw, answer->raw_len);
    sb_box_watch(exec->box, &exec->watch, exec->serial);
    rc = capture_start(&exec->out, fds[1], &err);
    if (capture_start(&exec->err, fds[2], &err) < 0)
        rc = -1;
    exec->input.fd = fds[0];
    sb_transfer_init_pipe(&exec->input_transfer);
    if (fds[0] >= 0)
        feed(exec);
    if (exec->input.fd >= 0) {
        exec->input.ready = input_ready;
        exec->input.events = EPOLLOUT;
        if (sb_source_add(&exec->input, &err) < 0) {
            feed_stop(exec);
            rc = -1;
        }
    }
    if (rc < 0) {
        sb_proc_kill(exec->box, exec->serial);
        finish(exec, &err);
    } else if (exec->why != SB_OK) {
        sb_proc_kill(exec->box, exec->serial);
    }
}

static void cancelled(struct sb_op *op, void *owner)
{
    struct exec *exec = owner;
    exec->why = sb_op_asked(op) == SB_ERR_TIMEOUT ? SB_ERR_EXEC_TIMED_OUT : SB_ERR_CANCELLED;
    if (exec->state == ENDED) { /* nothing is left to kill; only the grace is cut short */
        if (exec->why == SB_ERR_EXEC_TIMED_OUT)
            exec->why = SB_OK;
        timer_fired(&exec->timer);
        return;
    }
    if (exec->state == RUNNING)
        sb_proc_kill(exec->box, exec->serial);
    else
        kill_asked(exec);
    sb_timer_set(&exec->timer, sb_now() + KILL_LIMIT_NS);
}

struct sb_op *sb_exec(struct sb_box *box, struct sb_mailbox *mailbox, unsigned char *msg,
                      size_t len, const struct sb_exec_options *options)
{
    struct exec *exec = malloc(sizeof *exec + options->input_len);
    struct sb_error err = {SB_OK};
    struct sb_op *op;
    if (exec == NULL || (op = sb_op_new(mailbox, cancelled, exec)) == NULL) {
        free(exec);
        return NULL;
    }
    memset(exec, 0, sizeof *exec);
    exec->call.answer = answered;
    exec->watch.exited = exec_exited;
    exec->watch.lost = exec_lost;
    exec->timer.fire = timer_fired;
    exec->op = op;
    exec->box = sb_object_ref(box);
    exec->input.fd = -1;
    exec->max_output = options->max_output;
    exec->grace_ns = options->grace_ns;
    exec->input_len = options->input_len;
    if (options->input_len > 0)
        memcpy(exec->input_data, options->input, options->input_len);
    capture_init(&exec->out, exec, 0);
    capture_init(&exec->err, exec, 1);
    if (sb_box_call(box, &exec->call, msg, len, NULL, 0, &err) < 0)
        finish(exec, &err);
    else if (options->timeout_ns != SB_NEVER)
        sb_op_deadline(op, sb_now() + options->timeout_ns);
    return op;
}
