/* Requests to the supervisor as operations, and the release of a sandbox. */
#include "lifecycle.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* Made by the asking thread, then the I/O thread's. The request is not called back by a cancel:
 * it is finished for nobody. */
struct request {
    struct sb_client_call call; /* first */
    struct sb_op *op;           /* NULL: nobody waits any more */
    struct sb_engine *engine;   /* a reference */
    struct sb_parts parts;
    struct sb_release *release; /* create: registered before the request is sent */
    uint16_t type;
    int open;  /* the answer may carry a connection */
    int owned; /* create: of a scoped sandbox */
};

/* What does no harm when it is done twice: all but the test clock, and a snapshot, whose name would be taken. A create
 * finds what it has made. */
static int may_repeat(uint16_t type)
{
    return type != SB_S_ADVANCE && type != SB_S_SNAPSHOT;
}

/* The records that a list may come in, by what was asked; of other lists only the bytes are bounded. */
static size_t most_parts(uint16_t type, const void *fields, size_t len)
{
    struct sb_reader all = {fields, (const unsigned char *)fields + len};
    uint64_t limit;
    switch (type) {
    case SB_S_LIST:
        limit = sb_read_u64(&all, SB_F_LIMIT, SB_LIST_DEFAULT);
        return limit == 0 || limit > SB_LIST_MAX ? SB_LIST_MAX : (size_t)limit;
    case SB_S_SNAPSHOTS:
    case SB_S_TEMPLATES:
    case SB_S_METRICS:
        return SIZE_MAX;
    default:
        return 0;
    }
}

static void request_free(struct request *r)
{
    if (r->release != NULL) { /* nothing was created, as far as is known */
        sb_release_cancel(r->release);
        sb_release_unref(r->release);
    }
    free(r->parts.data);
    sb_object_unref(r->engine);
    free(r);
}

static void request_fail(struct request *r, const struct sb_error *err)
{
    struct sb_op *op = r->op;
    request_free(r);
    if (op != NULL)
        sb_op_fail(op, err);
}

static void gave_up(struct sb_client_call *call, const struct sb_answer *answer)
{
    (void)answer; /* if it cannot be told, the snapshot will be there */
    free(call);
}

/* A sandbox stands still while a snapshot is taken of it: not for one that nobody waits for. */
static void give_up(const struct request *r)
{
    struct sb_reader fields;
    struct sb_msg head;
    struct sb_field_view name;
    struct sb_packer p;
    if (sb_read_begin(&fields, &head, r->call.msg, r->call.len) < 0 ||
        !sb_read_find(&fields, SB_F_SNAPSHOT, &name))
        return;
    size_t room = sizeof(struct sb_msg) + 16 + name.len;
    struct sb_client_call *call = calloc(1, sizeof *call);
    unsigned char *msg = malloc(room);
    if (call == NULL || msg == NULL) {
        free(call);
        free(msg);
        return;
    }
    sb_pack_begin(&p, msg, room, SB_S_GIVE_UP, 0, 0);
    sb_pack_bytes(&p, SB_F_SNAPSHOT, name.data, name.len);
    *call = (struct sb_client_call){.answer = gave_up, .msg = msg, .len = p.len, .again = 1};
    sb_client_call(r->call.client, call);
}

static void cancelled(struct sb_op *op, void *owner)
{
    struct request *r = owner;
    struct sb_error err = {SB_OK};
    sb_fail(&err, SB_ERR_CANCELLED, "cancelled");
    r->op = NULL;
    if (r->type == SB_S_CREATE)
        r->call.again = 0; /* no second one is made for nobody; of the first see unsettled() */
    else if (r->type == SB_S_SNAPSHOT && r->call.client != NULL)
        give_up(r);
    sb_op_fail(op, &err);
}

/* A sandbox was made and cannot be handed over. */
static void let_go(struct request *r)
{
    if (r->release == NULL)
        return;
    sb_release_fire(r->release, NULL);
    sb_release_unref(r->release);
    r->release = NULL;
}

/* A create that may have happened, and no supervisor to ask. What nobody would look for is destroyed
 * once there is one. */
static void unsettled(struct request *r, const struct sb_error *why)
{
    struct sb_error err = {SB_OK};
    sb_fail(&err, SB_ERR_OUTCOME_UNKNOWN, "the answer was lost (%.150s)", why->message);
    if (r->owned || r->op == NULL)
        let_go(r);
    request_fail(r, &err);
}

static int store(struct request *r, const struct sb_answer *answer, struct sb_result *result,
                 struct sb_error *err)
{
    if (r->parts.len > 0) {
        if (sb_parts_add(&r->parts, answer->raw, answer->raw_len, SB_PARTS_LAST, err) < 0)
            return -1;
        result->parts = 1;
        result->fields = r->parts.data;
        result->fields_len = r->parts.len;
        r->parts.data = NULL;
        return 0;
    }
    result->fields = malloc(answer->raw_len + 1);
    if (result->fields == NULL)
        return sb_fail_errno(err, ENOMEM, "receive", "no memory for an answer");
    memcpy(result->fields, answer->raw, answer->raw_len);
    result->fields_len = answer->raw_len;
    return 0;
}

static void answered(struct sb_client_call *call, const struct sb_answer *answer)
{
    struct request *r = (struct request *)call;
    struct sb_op *op = r->op;
    struct sb_error err = {SB_OK};
    struct sb_result *result;
    if (answer->type == SB_PART && answer->error == NULL) {
        if (op != NULL && sb_parts_add(&r->parts, answer->raw, answer->raw_len, 0, &err) < 0) {
            r->op = NULL;
            sb_op_fail(op, &err);
        }
        return;
    }
    if (answer->error != NULL) {
        if (answer->lost && r->type == SB_S_CREATE && call->tries > 0) {
            unsettled(r, answer->error);
            return;
        }
        if (answer->starved)
            let_go(r);
        request_fail(r, answer->error);
        return;
    }
    if (op == NULL) {
        let_go(r);
        request_free(r);
        return;
    }
    result = sb_op_result(op);
    if (store(r, answer, result, &err) < 0) {
        let_go(r);
        request_fail(r, &err);
        return;
    }
    if (r->open && answer->nfds > 0) {
        struct sb_box *box = sb_box_new(r->engine, &answer->fields, answer->fds[0], &err);
        answer->fds[0] = -1;
        if (box == NULL) {
            let_go(r);
            request_fail(r, &err);
            return;
        }
        result->object = &box->object;
    }
    result->release = r->release;
    r->release = NULL;
    request_free(r);
    sb_op_complete(op);
}

static void begin(void *arg)
{
    struct request *r = arg;
    struct sb_client *client = sb_client_get(r->engine);
    struct sb_error err = {SB_OK};
    if (client != NULL && r->op != NULL) {
        sb_client_call(client, &r->call);
        return;
    }
    explicit_bzero(r->call.msg, r->call.len);
    free(r->call.msg);
    sb_fail_errno(&err, ENOMEM, "request", "no memory for a request");
    request_fail(r, &err);
}

/* ---- the release of a sandbox ---- */

enum { TOKEN_BYTES = 16, TOKEN_MAX = 64 };

/* A random name for one create, which only its sender and the sandbox's record know. */
struct token {
    size_t len;
    unsigned char data[TOKEN_MAX];
};

struct destroying {
    struct sb_client_call call; /* first */
    struct sb_engine *engine;   /* a reference */
    struct sb_release *release; /* the one being run */
    struct token token;
    size_t id_len;
    char id[];
};

static void destroyed(struct sb_client_call *call, const struct sb_answer *answer)
{
    struct destroying *d = (struct destroying *)call;
    if (answer->error != NULL && answer->error->kind == SB_ERR_NOT_FOUND)
        sb_release_finish(d->release, NULL);
    else
        sb_release_finish(d->release, answer->error);
}

static void destroying_run(struct sb_release *release, void *data)
{
    struct destroying *d = data;
    struct sb_client *client = sb_client_get(d->engine);
    size_t room = sizeof(struct sb_msg) + 16 + d->id_len + d->token.len;
    unsigned char *msg = malloc(room);
    struct sb_packer p;
    d->release = release;
    if (client == NULL || msg == NULL) {
        struct sb_error err = {SB_OK};
        free(msg);
        sb_fail(&err, SB_ERR_UNAVAILABLE, "no memory to destroy a sandbox");
        sb_release_finish(release, &err);
        return;
    }
    sb_pack_begin(&p, msg, room, SB_S_DESTROY, 0, 0);
    sb_pack_bytes(&p, SB_F_ID, d->id, d->id_len);
    sb_pack_bytes(&p, SB_F_TOKEN, d->token.data, d->token.len);
    d->call = (struct sb_client_call){.answer = destroyed, .msg = msg, .len = p.len, .again = 1};
    sb_client_call(client, &d->call);
}

static void destroying_free(void *data)
{
    struct destroying *d = data;
    sb_object_unref(d->engine);
    free(d);
}
static const struct sb_release_type destroying_type = {"sandbox", destroying_run, destroying_free};

/* Destroys the sandbox of this id that was made with this token. NULL: out of memory. */
static struct sb_release *release_of(struct sb_engine *engine, const struct sb_field_view *id,
                                     const struct token *token)
{
    struct destroying *d = calloc(1, sizeof *d + id->len + 1);
    struct sb_release *release;
    if (d == NULL)
        return NULL;
    d->engine = sb_object_ref(engine);
    d->token = *token;
    d->id_len = id->len;
    memcpy(d->id, id->data, id->len);
    release = sb_release_new(&destroying_type, d, d->id);
    if (release == NULL)
        destroying_free(d);
    return release;
}

/* ---- asking ---- */

/* `token` is added to the fields unless it is empty. The release becomes the request's. */
static struct sb_op *submit(struct sb_engine *engine, struct sb_mailbox *mailbox, uint16_t type,
                            const void *fields, size_t len, struct sb_release *release,
                            const struct token *token)
{
    struct request *r = calloc(1, sizeof *r);
    struct sb_error err = {SB_OK};
    struct sb_op *op = NULL;
    size_t room = sizeof(struct sb_msg) + len + 32 + TOKEN_MAX;
    if (r != NULL)
        r->call.msg = malloc(room);
    if (r == NULL || r->call.msg == NULL || (op = sb_op_new(mailbox, cancelled, r)) == NULL) {
        if (r != NULL)
            free(r->call.msg);
        free(r);
        if (release != NULL) {
            sb_release_cancel(release);
            sb_release_unref(release);
        }
        return NULL;
    }
    struct sb_packer p;
    sb_pack_begin(&p, r->call.msg, room, type, 0, 0);
    if (len > 0)
        memcpy(p.buf + p.len, fields, len);
    p.len += len;
    if (type == SB_S_HELLO) {
        sb_pack_u64(&p, SB_F_VERSION, SB_PROTO_VERSION);
        sb_pack_u64(&p, SB_F_LINGER_MS, engine->linger_ms);
    }
    if (token->len > 0)
        sb_pack_bytes(&p, SB_F_TOKEN, token->data, token->len);
    r->call.len = p.len;
    r->call.again = may_repeat(type);
    r->call.parts = most_parts(type, fields, len);
    r->call.parts_room = SB_PARTS_MAX - (1u << 20); /* the last answer is stored behind them */
    r->call.answer = answered;
    r->op = op;
    r->engine = sb_object_ref(engine);
    r->type = type;
    r->open = type == SB_S_CREATE || type == SB_S_CONNECT || type == SB_S_RESUME;
    r->release = release;
    if (release != NULL) {
        struct sb_reader all = {fields, (const unsigned char *)fields + len};
        r->owned = sb_read_u64(&all, SB_F_OWNED, 0) != 0;
    }
    if (sb_loop_post(begin, r, &err) < 0) {
        free(r->call.msg);
        request_fail(r, &err);
    }
    return op;
}

struct sb_op *sb_engine_request(struct sb_engine *engine, struct sb_mailbox *mailbox, uint16_t type,
                                const void *fields, size_t len)
{
    return submit(engine, mailbox, type, fields, len, NULL, &(struct token){0});
}

/* An operation that has failed already. NULL: out of memory. */
static struct sb_op *failed(struct sb_mailbox *mailbox, const struct sb_error *err)
{
    struct sb_op *op = sb_op_new(mailbox, NULL, NULL);
    if (op != NULL)
        sb_op_fail(op, err);
    return op;
}

static struct sb_op *create(struct sb_engine *engine, struct sb_mailbox *mailbox,
                            const void *fields, size_t len)
{
    struct sb_reader all = {fields, (const unsigned char *)fields + len};
    struct sb_field_view id, given;
    struct sb_error err = {SB_OK};
    struct token token = {.len = TOKEN_BYTES};
    if (!sb_read_find(&all, SB_F_ID, &id) || id.len == 0) {
        sb_fail(&err, SB_ERR_INVALID_ARGUMENT, "create: the sandbox needs an id");
        return failed(mailbox, &err);
    }
    int has = sb_read_find(&all, SB_F_TOKEN, &given) && given.len > 0;
    if (has && given.len > TOKEN_MAX) {
        sb_fail(&err, SB_ERR_INVALID_ARGUMENT, "create: the token is too long");
        return failed(mailbox, &err);
    } else if (has) {
        token.len = given.len;
        memcpy(token.data, given.data, given.len);
    } else if (getrandom(token.data, token.len, 0) != TOKEN_BYTES) {
        sb_fail_errno(&err, errno, "token", "create: no random numbers");
        return failed(mailbox, &err);
    }
    struct sb_release *release = release_of(engine, &id, &token);
    if (release == NULL)
        return NULL;
    if (has)
        token.len = 0; /* it is among the fields */
    return submit(engine, mailbox, SB_S_CREATE, fields, len, release, &token);
}

struct sb_op *sb_engine_open(struct sb_engine *engine, struct sb_mailbox *mailbox, uint16_t type,
                             const void *fields, size_t len)
{
    if (type == SB_S_CREATE)
        return create(engine, mailbox, fields, len);
    return submit(engine, mailbox, type, fields, len, NULL, &(struct token){0});
}
