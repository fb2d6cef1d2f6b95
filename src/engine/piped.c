/* Requests whose answers bring a pipe that somebody inside writes into, for as long as its other end is read: the lines
 * of a watch, the frames of a spool. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../runtime/stream.h"
#include "box.h"

#define AHEAD 262144 /* bytes that are read before somebody asks for them */

/* The I/O thread's once the request is sent. */
struct piped {
    struct sb_call call; /* first */
    struct sb_op *op;
    struct sb_box *box; /* a reference */
};

static void end(struct piped *p, const struct sb_error *err)
{
    struct sb_op *op = p->op;
    sb_object_unref(p->box);
    free(p);
    if (err != NULL)
        sb_op_fail(op, err);
    else
        sb_op_complete(op);
}

/* The answer is not wanted any more: its pipe is closed unread, and that ends its writer. */
static void cancelled(struct sb_op *op, void *owner)
{
    struct piped *p = owner;
    struct sb_error err = {SB_OK};
    (void)op;
    sb_fail(&err, SB_ERR_CANCELLED, "cancelled");
    sb_conn_forget(&p->box->conn, &p->call);
    end(p, &err);
}

static int take(struct piped *p, const struct sb_answer *answer, struct sb_error *err)
{
    struct sb_result *result = sb_op_result(p->op);
    struct sb_stream *stream;
    struct stat st;
    if (answer->nfds != 1 || fstat(answer->fds[0], &st) < 0 || !S_ISFIFO(st.st_mode))
        return sb_fail(err, SB_ERR_PROTOCOL, "the sandbox gave no pipe");
    stream = sb_stream_new(answer->fds[0], 1, 0, AHEAD, err);
    answer->fds[0] = -1;
    if (stream == NULL)
        return -1;
    result->object = (struct sb_object *)stream;
    result->fields = malloc(answer->raw_len + 1);
    if (result->fields == NULL)
        return sb_fail_errno(err, ENOMEM, "receive", "no memory for an answer");
    memcpy(result->fields, answer->raw, result->fields_len = answer->raw_len);
    return 0;
}

static void answered(struct sb_call *call, const struct sb_answer *answer)
{
    struct piped *p = (struct piped *)call;
    struct sb_error err = {SB_OK};
    if (answer->type == SB_PART) {
        if (answer->error == NULL)
            return;
        sb_conn_forget(&p->box->conn, call);
    }
    if (answer->error != NULL)
        end(p, answer->error);
    else
        end(p, take(p, answer, &err) < 0 ? &err : NULL);
}

struct sb_op *sb_box_pipe(struct sb_box *box, struct sb_mailbox *mailbox, unsigned char *msg,
                          size_t len)
{
    struct piped *p = calloc(1, sizeof *p);
    struct sb_error err = {SB_OK};
    struct sb_op *op;
    if (p == NULL || (op = sb_op_new(mailbox, cancelled, p)) == NULL) {
        free(p);
        return NULL;
    }
    p->call.answer = answered;
    p->op = op;
    p->box = sb_object_ref(box);
    if (sb_box_call(box, &p->call, msg, len, NULL, 0, &err) < 0)
        end(p, &err);
    return op;
}
