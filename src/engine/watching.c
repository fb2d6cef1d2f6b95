/* A watch of a sandbox's directory: a worker inside writes what changes into a pipe; here it is a stream of lines. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../runtime/stream.h"
#include "file.h"

#define AHEAD 262144 /* bytes of lines that are read before somebody asks for them */

/* The I/O thread's once the request is sent. */
struct watching {
    struct sb_call call; /* first */
    struct sb_op *op;
    struct sb_box *box; /* a reference */
};

static void end(struct watching *w, const struct sb_error *err)
{
    struct sb_op *op = w->op;
    sb_object_unref(w->box);
    free(w);
    if (err != NULL)
        sb_op_fail(op, err);
    else
        sb_op_complete(op);
}

/* The answer is not wanted any more: its pipe is closed unread, and that ends the worker. */
static void cancelled(struct sb_op *op, void *owner)
{
    struct watching *w = owner;
    struct sb_error err = {SB_OK};
    (void)op;
    sb_fail(&err, SB_ERR_CANCELLED, "cancelled");
    sb_conn_forget(&w->box->conn, &w->call);
    end(w, &err);
}

static int take(struct watching *w, const struct sb_answer *answer, struct sb_error *err)
{
    struct sb_result *result = sb_op_result(w->op);
    struct sb_stream *stream;
    struct stat st;
    if (answer->nfds != 1 || fstat(answer->fds[0], &st) < 0 || !S_ISFIFO(st.st_mode))
        return sb_fail(err, SB_ERR_PROTOCOL, "the sandbox gave no pipe for a watch");
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
    struct watching *w = (struct watching *)call;
    struct sb_error err = {SB_OK};
    if (answer->type == SB_PART) {
        if (answer->error == NULL)
            return;
        sb_conn_forget(&w->box->conn, call);
    }
    if (answer->error != NULL)
        end(w, answer->error);
    else
        end(w, take(w, answer, &err) < 0 ? &err : NULL);
}

struct sb_op *sb_box_watch_files(struct sb_box *box, struct sb_mailbox *mailbox, unsigned char *msg,
                                 size_t len)
{
    struct watching *w = calloc(1, sizeof *w);
    struct sb_error err = {SB_OK};
    struct sb_op *op;
    if (w == NULL || (op = sb_op_new(mailbox, cancelled, w)) == NULL) {
        free(w);
        return NULL;
    }
    w->call.answer = answered;
    w->op = op;
    w->box = sb_object_ref(box);
    if (sb_box_call(box, &w->call, msg, len, NULL, 0, &err) < 0)
        end(w, &err);
    return op;
}
