/* The connection to a sandbox's pid 1: requests, ends of processes, and what its loss means. */
#include "box.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATIENCE_NS 2000000000ull /* for the supervisor to say how a lost sandbox is */

static void box_free(void *arg)
{
    struct sb_box *box = arg;
    int forked = box->object.generation != sb_generation();
    if (!forked) {
        struct sb_error err = {SB_OK};
        sb_fail(&err, SB_ERR_CLOSED, "the sandbox handle is closed");
        sb_conn_close(&box->conn, &err);
        if (box->client != NULL)
            sb_client_unneed(box->client);
    }
    sb_conn_free(&box->conn, forked);
    sb_object_unref(box->engine);
    free(box->id);
    free(box->boot);
    free(box);
}

static void box_destroy(struct sb_object *object)
{
    if (object->generation != sb_generation())
        box_free(object);
    else
        sb_loop_post(box_free, object,
                     NULL); /* when it is too late for that, the process is ending */
}
const struct sb_object_type sb_box_type = {"box", box_destroy};

static char *copy_field(const struct sb_reader *fields, uint16_t tag)
{
    struct sb_field_view f;
    if (!sb_read_find(fields, tag, &f))
        f.len = 0;
    return strndup(f.len ? (const char *)f.data : "", f.len);
}

/* ---- ends of processes [io] ---- */

void sb_box_watch(struct sb_box *box, struct sb_watch *watch, uint64_t serial)
{
    struct sb_watch **bucket = &box->watches[serial % SB_BOX_BUCKETS];
    watch->serial = serial;
    watch->next = *bucket;
    watch->self = bucket;
    if (watch->next != NULL)
        watch->next->self = &watch->next;
    *bucket = watch;
    box->watching++;
}

void sb_box_unwatch(struct sb_box *box, struct sb_watch *watch)
{
    if (watch->self == NULL)
        return;
    *watch->self = watch->next;
    if (watch->next != NULL)
        watch->next->self = watch->self;
    watch->self = NULL;
    watch->next = NULL;
    box->watching--;
}

static void event(struct sb_conn *conn, const struct sb_answer *answer)
{
    struct sb_box *box = (struct sb_box *)((char *)conn - offsetof(struct sb_box, conn));
    uint64_t serial = sb_read_u64(&answer->fields, SB_F_SERIAL, 0);
    uint32_t epoch = (uint32_t)sb_read_u64(&answer->fields, SB_F_EPOCH, 0);
    struct sb_watch *watch = box->watches[serial % SB_BOX_BUCKETS], *next;
    if (answer->type == SB_FROZEN)
        sb_conn_freeze(conn, sb_read_u64(&answer->fields, SB_F_COUNT, 0), epoch);
    else if (answer->type == SB_THAWED)
        sb_conn_thaw(conn, epoch);
    if (answer->type != SB_EXITED)
        return;
    for (; watch != NULL; watch = next) {
        next = watch->next;
        if (watch->serial == serial) {
            sb_box_unwatch(box, watch);
            watch->exited(watch, answer);
            return; /* one watch a process */
        }
    }
}

/* ---- the loss of the connection [io] ---- */

static void fail_everything(struct sb_box *box, const struct sb_error *err)
{
    sb_conn_fail_all(&box->conn, err);
    for (unsigned i = 0; i < SB_BOX_BUCKETS; i++)
        while (box->watches[i] != NULL) {
            struct sb_watch *watch = box->watches[i];
            sb_box_unwatch(box, watch);
            watch->lost(watch, err);
        }
}

static int field_is(const struct sb_reader *fields, uint16_t tag, const char *text)
{
    struct sb_field_view f;
    return sb_read_find(fields, tag, &f) && f.len == strlen(text) &&
           memcmp(f.data, text, f.len) == 0;
}

/* The supervisor has said what became of the sandbox. */
static void explained(struct sb_client_call *call, const struct sb_answer *answer)
{
    struct sb_box *box = (struct sb_box *)((char *)call - offsetof(struct sb_box, why));
    struct sb_error err = {SB_OK};
    struct sb_field_view cause;
    if (answer->error != NULL && answer->error->kind != SB_ERR_NOT_FOUND)
        sb_fail(&err, SB_ERR_OUTCOME_UNKNOWN, "the connection to the sandbox was lost");
    else if (answer->error != NULL)
        sb_fail(&err, SB_ERR_NOT_RUNNING, "the sandbox was destroyed");
    else if (field_is(&answer->fields, SB_F_STATE, "paused"))
        sb_fail(&err, SB_ERR_NOT_RUNNING, "the sandbox is paused");
    else if (field_is(&answer->fields, SB_F_STATE, "running") &&
             field_is(&answer->fields, SB_F_BOOT, box->boot))
        sb_fail(&err, SB_ERR_OUTCOME_UNKNOWN, "the connection to the sandbox was lost");
    else if (sb_read_find(&answer->fields, SB_F_CAUSE, &cause))
        sb_fail(&err, SB_ERR_NOT_RUNNING, "the sandbox has ended (%.*s)",
                (int)(cause.len < 100 ? cause.len : 100), (const char *)cause.data);
    else
        sb_fail(&err, SB_ERR_NOT_RUNNING, "the sandbox has ended");
    sb_timer_clear(&box->patience);
    box->loss = err;
    fail_everything(box, &err);
    sb_object_unref(box);
}

/* Nobody says; whoever waits has waited long enough. */
static void unexplained(struct sb_timer *timer)
{
    struct sb_box *box = (struct sb_box *)((char *)timer - offsetof(struct sb_box, patience));
    sb_fail(&box->loss, SB_ERR_OUTCOME_UNKNOWN, "the connection to the sandbox was lost");
    fail_everything(box, &box->loss);
}

static void lost(struct sb_conn *conn, const struct sb_error *err)
{
    struct sb_box *box = (struct sb_box *)((char *)conn - offsetof(struct sb_box, conn));
    struct sb_client *client = box->client;
    unsigned char *msg = NULL;
    size_t len = 0, room = strlen(box->id) + 64;
    struct sb_packer p;
    box->client = NULL;
    box->loss = *err;
    if (conn->in_flight == 0 && box->watching == 0) {
        sb_client_unneed(client);
        return;
    }
    sb_object_ref(box); /* whoever waits holds one: it is alive */
    if (err->kind != SB_ERR_PROTOCOL && (msg = malloc(room)) != NULL) {
        sb_pack_begin(&p, msg, room, SB_S_INFO, 0, 0);
        sb_pack_str(&p, SB_F_ID, box->id);
        len = p.len;
    }
    if (msg != NULL) {
        box->why = (struct sb_client_call){.answer = explained, .msg = msg, .len = len, .again = 1};
        box->patience.fire = unexplained;
        sb_timer_set(&box->patience, sb_now() + PATIENCE_NS);
        sb_client_call(client, &box->why);
    } else {
        fail_everything(box, err);
        sb_object_unref(box);
    }
    sb_client_unneed(client);
}
static const struct sb_conn_type conn_type = {"pid 1", event, lost};

/* ---- making and closing ---- */

struct sb_box *sb_box_new(struct sb_engine *engine, const struct sb_reader *record, int fd,
                          struct sb_error *err)
{
    struct sb_box *box = calloc(1, sizeof *box);
    struct sb_client *client;
    if (box != NULL) {
        sb_object_init(&box->object, &sb_box_type);
        sb_object_ref(engine);
        box->engine = engine;
        box->id = copy_field(record, SB_F_ID);
        box->boot = copy_field(record, SB_F_BOOT);
    }
    if (box == NULL || box->id == NULL || box->boot == NULL ||
        (client = sb_client_get(engine)) == NULL) {
        close(fd);
        sb_fail_errno(err, ENOMEM, "connect", "no memory for a sandbox handle");
        goto failed;
    }
    box->client = client;
    sb_client_need(client);
    if (sb_conn_open(&box->conn, &conn_type, &box->object, fd,
                     (uint32_t)sb_read_u64(record, SB_F_EPOCH, 0), err) == 0)
        return box;
failed:
    sb_object_unref(box);
    return NULL;
}

int sb_box_is_open(const struct sb_box *box)
{
    return box->object.generation == sb_generation() && box->conn.state == SB_CONN_OPEN;
}

static void close_now(void *arg)
{
    struct sb_box *box = arg;
    struct sb_client *client = box->client;
    if (box->conn.state == SB_CONN_OPEN) {
        if (box->conn.in_flight > 0) { /* commands that nobody else knows of */
            unsigned char buf[64];
            struct sb_packer p;
            sb_pack_begin(&p, buf, sizeof buf, SB_C_KILL, 0, 0);
            sb_box_call(box, NULL, buf, p.len, NULL, 0, NULL);
        }
        sb_fail(&box->loss, SB_ERR_CLOSED, "the sandbox handle is closed");
        box->client = NULL;
        sb_conn_close(&box->conn, &box->loss);
        fail_everything(box, &box->loss);
        sb_client_unneed(client);
    }
    sb_object_unref(box);
}

void sb_box_close(struct sb_box *box)
{
    if (!sb_box_is_open(box))
        return;
    sb_object_ref(box);
    if (sb_loop_post(close_now, box, NULL) < 0)
        sb_object_unref(box);
}

int sb_box_call(struct sb_box *box, struct sb_call *call, unsigned char *msg, size_t len,
                const int *fds, unsigned nfds, struct sb_error *err)
{
    int rc = sb_conn_call(&box->conn, call, msg, len, fds, nfds, err);
    if (rc == -SB_ERR_NOT_RUNNING && err != NULL && err->step[0] == '\0')
        snprintf(err->message, sizeof err->message,
                 "the connection to the sandbox has ended: connect again");
    return rc;
}

/* ---- plain requests ---- */

/* Owned by the connection's table, then by itself. */
struct ask {
    struct sb_call call; /* first */
    struct sb_op *op;
    struct sb_box *box; /* a reference */
    struct sb_parts parts;
};

static void ask_free(struct ask *ask)
{
    free(ask->parts.data);
    sb_object_unref(ask->box);
    free(ask);
}

static void ask_fail(struct ask *ask, const struct sb_error *err)
{
    struct sb_op *op = ask->op;
    ask_free(ask);
    sb_op_fail(op, err);
}

static void ask_cancel(struct sb_op *op, void *owner)
{
    struct ask *ask = owner;
    struct sb_error err = {SB_OK};
    (void)op;
    sb_fail(&err, SB_ERR_CANCELLED, "cancelled");
    sb_conn_forget(&ask->box->conn, &ask->call);
    ask_fail(ask, &err);
}

static void ask_answer(struct sb_call *call, const struct sb_answer *answer)
{
    struct ask *ask = (struct ask *)call;
    struct sb_result *result = sb_op_result(ask->op);
    struct sb_error err = {SB_OK};
    uint32_t last = answer->type == SB_PART ? 0 : SB_PARTS_LAST;
    if (answer->error != NULL) {
        if (answer->type == SB_PART)
            sb_conn_forget(&ask->box->conn, call);
        ask_fail(ask, answer->error);
        return;
    }
    if (last == 0 || ask->parts.len > 0) {
        if (sb_parts_add(&ask->parts, answer->raw, answer->raw_len, last, &err) < 0) {
            if (last == 0)
                sb_conn_forget(&ask->box->conn, call);
            ask_fail(ask, &err);
            return;
        }
        if (last == 0)
            return;
        result->parts = 1;
        result->fields = ask->parts.data;
        result->fields_len = ask->parts.len;
        ask->parts.data = NULL;
    } else {
        result->fields = malloc(answer->raw_len ? answer->raw_len : 1);
        if (result->fields == NULL) {
            sb_fail_errno(&err, ENOMEM, "receive", "no memory for an answer");
            ask_fail(ask, &err);
            return;
        }
        memcpy(result->fields, answer->raw, answer->raw_len);
        result->fields_len = answer->raw_len;
    }
    sb_op_complete(ask->op);
    ask_free(ask);
}

struct sb_op *sb_box_request(struct sb_box *box, struct sb_mailbox *mailbox, unsigned char *msg,
                             size_t len, const int *fds, unsigned nfds)
{
    struct ask *ask = calloc(1, sizeof *ask);
    struct sb_error err = {SB_OK};
    struct sb_op *op;
    if (ask == NULL || (op = sb_op_new(mailbox, ask_cancel, ask)) == NULL) {
        free(ask);
        return NULL;
    }
    ask->call.answer = ask_answer;
    ask->op = op;
    ask->box = sb_object_ref(box);
    if (sb_box_call(box, &ask->call, msg, len, fds, nfds, &err) < 0)
        ask_fail(ask, &err);
    return op;
}
