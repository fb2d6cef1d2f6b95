/* Processes that are started, attached to, waited for and killed. */
#include "proc.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define STREAM_HIGH \
    262144 /* bytes buffered here before the pipe, and then the process, has to wait */

static int is_pipe(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode);
}

const char *sb_proc_take_streams(const struct sb_answer *answer, int out[3])
{
    uint64_t streams = sb_read_u64(&answer->fields, SB_F_STREAMS, 0);
    unsigned at = 0;
    out[0] = out[1] = out[2] = -1;
    if (streams > 7 || (unsigned)__builtin_popcount((unsigned)streams) != answer->nfds)
        return "streams and descriptors that do not match";
    for (unsigned i = 0; i < answer->nfds; i++)
        if (!is_pipe(answer->fds[i]))
            return "a stream that is no pipe";
    for (unsigned i = 0; i < 3; i++)
        if (streams & (1u << i)) {
            out[i] = answer->fds[at];
            answer->fds[at++] = -1;
        }
    return NULL;
}

static size_t pack_serial(unsigned char *buf, size_t room, uint16_t type, uint64_t serial)
{
    const uint64_t values[] = {serial, 9, 0};
    const uint16_t tags[] = {SB_F_SERIAL, SB_F_SIGNAL, SB_F_GRACE_MS};
    struct sb_packer p;
    sb_pack_begin(&p, buf, room, type, 0, 0);
    for (int i = 0; i < (type == SB_C_KILL ? 3 : 1); i++)
        sb_pack_u64(&p, tags[i], values[i]);
    return p.len;
}

static void tell(struct sb_box *box, uint16_t type, uint64_t serial)
{
    unsigned char buf[128];
    size_t len = pack_serial(buf, sizeof buf, type, serial);
    sb_box_call(box, NULL, buf, len, NULL, 0, NULL);
}

void sb_proc_kill(struct sb_box *box, uint64_t serial)
{
    tell(box, SB_C_KILL, serial);
}

/* ---- the object ---- */

struct sb_waiter {
    struct sb_waiter *next, **self; /* self NULL: not linked */
    struct sb_op *op;
    struct sb_process *process; /* a reference */
};

static void process_free(void *arg)
{
    struct sb_process *process = arg;
    if (process->object.generation == sb_generation()) {
        sb_box_unwatch(process->box, &process->watch);
        if (process->waiting)
            sb_conn_forget(&process->box->conn, &process->wait);
        sb_process_lease_release(process); /* nobody is left to read: pid 1 drains from now on */
    }
    for (int i = 0; i < 3; i++)
        sb_object_unref((struct sb_object *)process->streams[i]);
    free(process->exited);
    sb_object_unref(process->box);
    free(process);
}

static void process_destroy(struct sb_object *object)
{
    if (object->generation != sb_generation())
        process_free(object);
    else
        sb_loop_post(process_free, object, NULL);
}
const struct sb_object_type sb_process_type = {"process", process_destroy};

/* Its end becomes known [io]: err NULL, or why it never will be. */
static void settle(struct sb_process *process, const struct sb_answer *end,
                   const struct sb_error *err)
{
    struct sb_exit *record;
    if (err == NULL && end != NULL && process->exited == NULL) {
        record = malloc(sizeof *record + end->raw_len);
        if (record != NULL) {
            record->len = end->raw_len;
            if (end->raw_len > 0)
                memcpy(record->fields, end->raw, end->raw_len);
            process->exited = record;
        } else {
            sb_fail_errno(&process->loss, ENOMEM, "wait", "the end of a process could not be kept");
        }
    } else if (err != NULL) {
        process->loss = *err;
    }
    while (process->waiters != NULL) {
        struct sb_waiter *waiter = process->waiters;
        process->waiters = waiter->next;
        waiter->self = NULL;
        /* completes at once, since the end or the loss is known */
        struct sb_result *result = sb_op_result(waiter->op);
        record = process->exited;
        if (record != NULL && (result->fields = malloc(record->len + 1)) != NULL) {
            memcpy(result->fields, record->fields, record->len);
            result->fields_len = record->len;
            sb_op_complete(waiter->op);
        } else {
            if (record != NULL)
                sb_fail_errno(&process->loss, ENOMEM, "wait", "no memory for the end of a process");
            sb_op_fail(waiter->op, &process->loss);
        }
        sb_object_unref(process);
        free(waiter);
    }
}

static void exited(struct sb_watch *watch, const struct sb_answer *event)
{
    settle((struct sb_process *)((char *)watch - offsetof(struct sb_process, watch)), event, NULL);
}

static void watch_lost(struct sb_watch *watch, const struct sb_error *err)
{
    settle((struct sb_process *)((char *)watch - offsetof(struct sb_process, watch)), NULL, err);
}

static void wait_answered(struct sb_call *call, const struct sb_answer *answer)
{
    struct sb_process *process =
        (struct sb_process *)((char *)call - offsetof(struct sb_process, wait));
    if (answer->type == SB_PART)
        return;
    process->waiting = 0;
    settle(process, answer, answer->error);
}

/* [io] Made of an answer whose streams have been taken in fds; takes them over in every case. */
static struct sb_process *process_new(struct sb_box *box, const struct sb_answer *answer,
                                      int fds[3], struct sb_error *err)
{
    struct sb_process *process = calloc(1, sizeof *process);
    if (process == NULL) {
        sb_fds_close(fds, 3);
        sb_fail_errno(err, ENOMEM, "start", "no memory for a process handle");
        return NULL;
    }
    sb_object_init(&process->object, &sb_process_type);
    process->box = sb_object_ref(box);
    process->serial = sb_read_u64(&answer->fields, SB_F_SERIAL, 0);
    process->pid = sb_read_u64(&answer->fields, SB_F_PID, 0);
    process->start_ns = sb_read_u64(&answer->fields, SB_F_START_NS, 0);
    process->watch.exited = exited;
    process->watch.lost = watch_lost;
    process->wait.answer = wait_answered;
    for (int i = 0; i < 3; i++) {
        int fd = fds[i];
        if (fd < 0)
            continue;
        fds[i] = -1;
        if (i != 0)
            process->leased = 1;
        process->streams[i] = sb_stream_new(fd, i != 0, i == 0, STREAM_HIGH, err);
        if (process->streams[i] == NULL) {
            sb_fds_close(fds, 3);
            sb_object_unref(process);
            return NULL;
        }
    }
    return process;
}

/* ---- start and attach ---- */

struct starting {
    struct sb_call call;
    struct sb_op *op;
    struct sb_box *box; /* a reference */
    struct sb_parts parts;
    int attach, orphan;
};

static void starting_free(struct starting *s)
{
    free(s->parts.data);
    sb_object_unref(s->box);
    free(s);
}

static void starting_fail(struct starting *s, const struct sb_error *err)
{
    struct sb_op *op = s->op;
    starting_free(s);
    if (op != NULL)
        sb_op_fail(op, err);
}

/* The command may start all the same: the answer is still waited for, to undo it. */
static void starting_cancel(struct sb_op *op, void *owner)
{
    struct starting *s = owner;
    struct sb_error err = {SB_OK};
    sb_fail(&err, SB_ERR_CANCELLED, "cancelled");
    s->op = NULL;
    sb_op_fail(op, &err);
}

static void starting_undo(struct starting *s, const struct sb_answer *answer)
{
    uint64_t serial = sb_read_u64(&answer->fields, SB_F_SERIAL, 0);
    tell(s->box, s->attach ? SB_C_RELEASE : SB_C_KILL, serial);
}

static struct sb_release *release_new(struct sb_box *box, uint64_t serial, uint64_t pid);

/* [io] Everything about the process that Lua is handed. */
static int starting_result(struct starting *s, const struct sb_answer *answer,
                           struct sb_result *result, struct sb_error *err)
{
    int fds[3], running;
    struct sb_process *process;
    const char *wrong = sb_proc_take_streams(answer, fds);
    if (wrong != NULL) {
        sb_conn_break(&s->box->conn, wrong);
        return sb_fail(err, SB_ERR_PROTOCOL, "the sandbox broke the protocol: %s", wrong);
    }
    process = process_new(s->box, answer, fds, err);
    if (process == NULL)
        return -1;
    result->object = &process->object;
    if (!s->attach) {
        sb_box_watch(s->box, &process->watch, process->serial);
        result->release = release_new(s->box, process->serial, process->pid);
        if (result->release == NULL)
            return sb_fail_errno(err, ENOMEM, "start", "no memory for a process handle");
    } else {
        unsigned char buf[64];
        size_t len = pack_serial(buf, sizeof buf, SB_C_WAIT, process->serial);
        process->waiting = 1;
        if (sb_box_call(s->box, &process->wait, buf, len, NULL, 0, &process->loss) < 0)
            process->waiting = 0;
    }
    running = s->parts.len > 0;
    if (running) {
        if (sb_parts_add(&s->parts, answer->raw, answer->raw_len, SB_PARTS_LAST, err) < 0)
            return -1;
        result->parts = 1;
        result->fields = s->parts.data;
        result->fields_len = s->parts.len;
        s->parts.data = NULL;
        return 0;
    }
    result->fields = malloc(answer->raw_len + 1);
    if (result->fields == NULL)
        return sb_fail_errno(err, ENOMEM, "start", "no memory for a process handle");
    memcpy(result->fields, answer->raw, answer->raw_len);
    result->fields_len = answer->raw_len;
    return 0;
}

static void starting_answer(struct sb_call *call, const struct sb_answer *answer)
{
    struct starting *s = (struct starting *)call;
    struct sb_error err = {SB_OK};
    struct sb_op *op = s->op;
    if (answer->type == SB_PART && answer->error == NULL) {
        if (op != NULL && sb_parts_add(&s->parts, answer->raw, answer->raw_len, 0, &err) < 0) {
            s->op = NULL;
            sb_op_fail(op, &err);
        }
        return;
    }
    if (answer->type == SB_PART)
        sb_conn_forget(&s->box->conn, call);
    if (answer->error != NULL || op == NULL) {
        if (answer->starved || answer->error == NULL)
            starting_undo(s, answer);
        starting_fail(s, answer->error);
        return;
    }
    if (starting_result(s, answer, sb_op_result(op), &err) < 0) {
        if (sb_op_result(op)->release != NULL)
            sb_release_cancel(sb_op_result(op)->release);
        starting_undo(s, answer);
        starting_fail(s, &err);
        return;
    }
    starting_free(s);
    sb_op_complete(op);
}

static struct sb_op *begin(struct sb_box *box, struct sb_mailbox *mailbox, unsigned char *msg,
                           size_t len, int attach)
{
    struct starting *s = calloc(1, sizeof *s);
    struct sb_error err = {SB_OK};
    struct sb_op *op;
    if (s == NULL || (op = sb_op_new(mailbox, starting_cancel, s)) == NULL) {
        free(s);
        return NULL;
    }
    s->call.answer = starting_answer;
    s->op = op;
    s->box = sb_object_ref(box);
    s->attach = attach;
    if (sb_box_call(box, &s->call, msg, len, NULL, 0, &err) < 0)
        starting_fail(s, &err);
    return op;
}

struct sb_op *sb_process_start(struct sb_box *box, struct sb_mailbox *mailbox, unsigned char *msg,
                               size_t len)
{
    return begin(box, mailbox, msg, len, 0);
}

struct sb_op *sb_process_attach(struct sb_box *box, struct sb_mailbox *mailbox, unsigned char *msg,
                                size_t len)
{
    return begin(box, mailbox, msg, len, 1);
}

void sb_process_lease_release(struct sb_process *process)
{
    if (atomic_exchange(&process->leased, 0))
        tell(process->box, SB_C_RELEASE, process->serial);
}

/* ---- waiting ---- */

static void waiter_cancel(struct sb_op *op, void *owner)
{
    struct sb_waiter *waiter = owner;
    struct sb_error err = {SB_OK};
    sb_fail(&err, SB_ERR_CANCELLED, "cancelled");
    waiter->op = NULL;
    if (waiter->self != NULL) {
        *waiter->self = waiter->next;
        if (waiter->next != NULL)
            waiter->next->self = waiter->self;
        sb_object_unref(waiter->process);
        free(waiter);
    } /* else it has been posted and finds out when it arrives */
    sb_op_fail(op, &err);
}

static void waiter_arrives(void *arg)
{
    struct sb_waiter *waiter = arg;
    struct sb_process *process = waiter->process;
    if (waiter->op == NULL) {
        sb_object_unref(process);
        free(waiter);
        return;
    }
    waiter->next = process->waiters;
    waiter->self = &process->waiters;
    if (waiter->next != NULL)
        waiter->next->self = &waiter->next;
    process->waiters = waiter;
    if (process->exited != NULL)
        settle(process, NULL, NULL);
    else if (process->watch.self == NULL && !process->waiting)
        settle(process, NULL, &process->loss);
}

struct sb_op *sb_process_wait(struct sb_process *process, struct sb_mailbox *mailbox)
{
    struct sb_waiter *waiter = calloc(1, sizeof *waiter);
    struct sb_error err = {SB_OK};
    if (waiter == NULL || (waiter->op = sb_op_new(mailbox, waiter_cancel, waiter)) == NULL) {
        free(waiter);
        return NULL;
    }
    struct sb_op *op = waiter->op;
    waiter->process = sb_object_ref(process);
    if (sb_loop_post(waiter_arrives, waiter, &err) < 0) {
        sb_object_unref(process);
        free(waiter);
        sb_op_fail(op, &err);
    }
    return op;
}

/* ---- the release: its tree is killed ---- */

/* First through the connection it was started on; when that is gone but the sandbox is not,
 * through a new one, asked of the supervisor. A sandbox of another boot has no such process any
 * more. */
struct killing {
    struct sb_call call;
    struct sb_client_call connect;
    struct sb_box *box;   /* a reference */
    struct sb_box *again; /* the new connection, a reference; NULL */
    uint64_t serial;
    struct sb_release *release; /* the one being run */
};
#define KILLING_OF(pointer, member) \
    ((struct killing *)(void *)((char *)(pointer)-offsetof(struct killing, member)))

static void killing_end(struct killing *k, const struct sb_error *err)
{
    if (k->again != NULL) {
        sb_box_close(k->again);
        sb_object_unref(k->again);
        k->again = NULL;
    }
    sb_release_finish(k->release, err);
}

static void killing_connected(struct sb_client_call *call, const struct sb_answer *answer);

static void killing_reconnect(struct killing *k)
{
    struct sb_client *client = sb_client_get(k->box->engine);
    size_t room = strlen(k->box->id) + 64;
    unsigned char *msg = malloc(room);
    struct sb_error err = {SB_OK};
    struct sb_packer p;
    if (client == NULL || msg == NULL) {
        free(msg);
        sb_fail_errno(&err, ENOMEM, "kill", "no memory to kill a process");
        killing_end(k, &err);
        return;
    }
    sb_pack_begin(&p, msg, room, SB_S_CONNECT, 0, 0);
    sb_pack_str(&p, SB_F_ID, k->box->id);
    k->connect =
        (struct sb_client_call){.answer = killing_connected, .msg = msg, .len = p.len, .again = 1};
    sb_client_call(client, &k->connect);
}

static void killing_answer(struct sb_call *call, const struct sb_answer *answer)
{
    struct killing *k = KILLING_OF(call, call);
    if (answer->type == SB_PART)
        return;
    if (answer->lost && k->again == NULL)
        killing_reconnect(k);
    else if (answer->error != NULL && answer->error->kind != SB_ERR_NOT_FOUND && !answer->lost)
        killing_end(k, answer->error);
    else
        killing_end(k, NULL);
}

static void killing_send(struct killing *k, struct sb_box *box)
{
    struct sb_error err = {SB_OK};
    unsigned char buf[128];
    size_t len = pack_serial(buf, sizeof buf, SB_C_KILL, k->serial);
    k->call.answer = killing_answer;
    if (sb_box_call(box, &k->call, buf, len, NULL, 0, &err) == 0) {
        /* Of a paused sandbox it is the first thing that is done when it goes on: nobody waits for that. */
        if (sb_conn_frozen(&box->conn)) {
            sb_conn_forget(&box->conn, &k->call);
            killing_end(k, NULL);
        }
        return;
    }
    if (err.kind == SB_ERR_NOT_RUNNING && k->again == NULL)
        killing_reconnect(k);
    else
        killing_end(k, &err);
}

static void killing_connected(struct sb_client_call *call, const struct sb_answer *answer)
{
    struct killing *k = KILLING_OF(call, connect);
    struct sb_error err = {SB_OK};
    struct sb_field_view boot;
    if (answer->error != NULL) {
        int gone =
            answer->error->kind == SB_ERR_NOT_FOUND || answer->error->kind == SB_ERR_NOT_RUNNING;
        killing_end(k, gone ? NULL : answer->error);
        return;
    }
    if (answer->nfds == 0 || !sb_read_find(&answer->fields, SB_F_BOOT, &boot) ||
        boot.len != strlen(k->box->boot) || memcmp(boot.data, k->box->boot, boot.len) != 0) {
        killing_end(k, NULL);
        return;
    }
    k->again = sb_box_new(k->box->engine, &answer->fields, answer->fds[0], &err);
    answer->fds[0] = -1;
    if (k->again == NULL)
        killing_end(k, &err);
    else
        killing_send(k, k->again);
}

static void killing_run(struct sb_release *release, void *data)
{
    struct killing *k = data;
    k->release = release;
    killing_send(k, k->box);
}

static void killing_free(void *data)
{
    struct killing *k = data;
    sb_object_unref(k->box);
    free(k);
}
static const struct sb_release_type killing_type = {"process", killing_run, killing_free};

static struct sb_release *release_new(struct sb_box *box, uint64_t serial, uint64_t pid)
{
    struct killing *k = calloc(1, sizeof *k);
    struct sb_release *release;
    char id[256];
    if (k == NULL)
        return NULL;
    k->box = sb_object_ref(box);
    k->serial = serial;
    snprintf(id, sizeof id, "%llu in %.200s", (unsigned long long)pid, box->id);
    release = sb_release_new(&killing_type, k, id);
    if (release == NULL)
        killing_free(k);
    return release;
}

void sb_proc_kill_anyway(struct sb_box *box, uint64_t serial, uint64_t pid)
{
    struct sb_release *release = release_new(box, serial, pid);
    if (release == NULL)
        return;
    sb_release_fire(release, NULL);
    sb_release_unref(release);
}

struct sb_release *sb_process_release(struct sb_process *process)
{
    return release_new(process->box, process->serial, process->pid);
}
