/* Files of a sandbox: opened inside by pid 1, read and written here through the descriptor. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "file.h"

#define INLINE_MAX 49152 /* bytes of a file that travel in the request itself */
#define FIELD_ROOM 256   /* for what is added to the asker's fields */

/* ---- messages ---- */

/* The asker's fields but those in `skip` (zero-terminated), behind file_op and, unless -1,
 * oflags. */
static void pack_from(struct sb_packer *p, int file_op, int oflags, const void *fields, size_t len,
                      const uint16_t *skip)
{
    const uint64_t values[] = {(uint64_t)file_op, (uint64_t)oflags};
    const uint16_t tags[] = {SB_F_FILE_OP, SB_F_OFLAGS};
    struct sb_reader r = {fields, (const unsigned char *)fields + len};
    struct sb_field_view f;
    for (int i = 0; i < (oflags < 0 ? 1 : 2); i++)
        sb_pack_u64(p, tags[i], values[i]);
    while (sb_read_field(&r, &f) == 1) {
        const uint16_t *s = skip;
        while (*s != 0 && *s != f.tag)
            s++;
        if (*s == 0 && f.tag != SB_F_FILE_OP)
            sb_pack_bytes(p, f.tag, f.data, f.len);
    }
}

static unsigned char *message(struct sb_packer *p, size_t room)
{
    unsigned char *buf = malloc(room);
    sb_pack_begin(p, buf, buf ? room : 0, SB_C_FILE, 0, 0);
    return buf;
}

static const uint16_t skip_nothing[] = {0};

/* ---- one transfer ---- */

enum step {
    OPENING, /* SB_FILE_OPEN or BEGIN; the descriptor comes back */
    MOVING,  /* a file thread reads or writes */
    COMMITTING,
    OWNING,  /* SB_FILE_CHOWN, after a write in place */
    MODING,  /* SB_FILE_CHMOD, after a write in place */
    LOOKING, /* SB_FILE_STAT, after a write in place */
};

/* The I/O thread's once the first request is sent. */
struct transfer {
    struct sb_call call; /* first */
    struct sb_file_work work;
    struct sb_op *op;   /* NULL: nobody waits any more */
    struct sb_box *box; /* a reference */
    enum step step;
    enum { GIVE_FILE, READ_ALL, WRITE_ALL } what;
    int atomic;
    unsigned char *answer; /* fields of the opening */
    size_t answer_len;
    size_t fields_len, data_len;
    unsigned char bytes[]; /* the asker's fields, then its data */
};

static void transfer_free(struct transfer *t)
{
    if (t->work.file != NULL)
        sb_object_unref(t->work.file);
    free(t->work.bytes);
    free(t->answer);
    sb_object_unref(t->box);
    free(t);
}

static void transfer_fail(struct transfer *t, const struct sb_error *err)
{
    struct sb_op *op = t->op;
    if (op != NULL)
        sb_op_result(op)->error = *err; /* which may be in what is freed now */
    transfer_free(t);
    if (op != NULL)
        sb_op_complete(op);
}

/* token, path and user of a file begun but not committed. */
static void pack_token(struct transfer *t, struct sb_packer *p, int file_op, const uint16_t *tags)
{
    struct sb_reader given = {t->bytes, t->bytes + t->fields_len};
    struct sb_reader got = {t->answer, t->answer + t->answer_len};
    struct sb_field_view f;
    sb_pack_u64(p, SB_F_FILE_OP, (uint64_t)file_op);
    if (sb_read_find(&got, SB_F_TOKEN, &f))
        sb_pack_bytes(p, SB_F_TOKEN, f.data, f.len);
    if (sb_read_find(&got, SB_F_PATH, &f) || sb_read_find(&given, SB_F_PATH, &f))
        sb_pack_bytes(p, SB_F_PATH, f.data, f.len);
    for (; *tags != 0; tags++)
        if (sb_read_find(&given, *tags, &f))
            sb_pack_bytes(p, *tags, f.data, f.len);
}

/* Nothing of an unfinished file stays behind. */
static void undo(struct transfer *t)
{
    static const uint16_t tags[] = {SB_F_USER, 0};
    size_t room = t->fields_len + t->answer_len + FIELD_ROOM;
    struct sb_packer p;
    unsigned char *msg;
    if (!t->atomic || t->answer == NULL || (msg = message(&p, room)) == NULL)
        return;
    pack_token(t, &p, SB_FILE_ABORT, tags);
    if (!p.overflow)
        sb_box_call(t->box, NULL, msg, p.len, NULL, 0, NULL);
    free(msg);
}

static void cancelled(struct sb_op *op, void *owner)
{
    struct transfer *t = owner;
    struct sb_error err = {SB_OK};
    sb_fail(&err, SB_ERR_CANCELLED, "cancelled");
    t->work.stop = 1;
    t->op = NULL; /* whatever comes next finds out, and undoes */
    sb_op_fail(op, &err);
}

static int send_step(struct transfer *t, enum step step, struct sb_packer *p, unsigned char *msg,
                     int fd)
{
    struct sb_error err = {SB_OK};
    int rc;
    if (p->overflow)
        rc = sb_fail(&err, SB_ERR_INTERNAL, "a file request does not fit");
    else {
        t->step = step;
        rc = sb_box_call(t->box, &t->call, msg, p->len, &fd, fd >= 0, &err);
    }
    free(msg);
    if (rc < 0) {
        undo(t);
        transfer_fail(t, &err);
    }
    return rc;
}

static void no_memory(struct transfer *t)
{
    struct sb_error err = {SB_OK};
    sb_fail_errno(&err, ENOMEM, "file", "no memory for a file request");
    undo(t);
    transfer_fail(t, &err);
}

static void complete(struct transfer *t, const unsigned char *fields, size_t len)
{
    struct sb_op *op = t->op;
    struct sb_result *result = sb_op_result(op);
    if (fields != NULL) {
        result->fields = malloc(len + 1);
        if (result->fields == NULL)
            sb_fail_errno(&result->error, ENOMEM, "receive", "no memory for an answer");
        else
            memcpy(result->fields, fields, result->fields_len = len);
    }
    if (t->what == READ_ALL) {
        result->bytes = t->work.bytes;
        result->bytes_len = t->work.len;
        t->work.bytes = NULL;
    }
    transfer_free(t);
    sb_op_complete(op);
}

/* One of the steps after a write in place, with the asker's fields but those in `skip`. */
static void step_after(struct transfer *t, enum step step, int file_op, const uint16_t *skip)
{
    struct sb_packer p;
    unsigned char *msg = message(&p, t->fields_len + FIELD_ROOM);
    if (msg == NULL) {
        no_memory(t);
        return;
    }
    pack_from(&p, file_op, -1, t->bytes, t->fields_len, skip);
    send_step(t, step, &p, msg, -1);
}

/* A file written in place gets the owner and the mode that were asked for, as a small one does. */
static void dress(struct transfer *t)
{
    static const uint16_t own[] = {
        SB_F_MODE, SB_F_EXCLUSIVE, SB_F_APPEND, SB_F_ATOMIC, SB_F_PARENTS, SB_F_OFLAGS, 0};
    static const uint16_t mode[] = {
        SB_F_OWNER, SB_F_EXCLUSIVE, SB_F_APPEND, SB_F_ATOMIC, SB_F_PARENTS, SB_F_OFLAGS, 0};
    static const uint16_t look[] = {SB_F_MODE,   SB_F_OWNER,   SB_F_EXCLUSIVE, SB_F_APPEND,
                                    SB_F_ATOMIC, SB_F_PARENTS, SB_F_OFLAGS,    0};
    struct sb_reader given = {t->bytes, t->bytes + t->fields_len};
    struct sb_field_view f;
    if (t->step < OWNING && sb_read_find(&given, SB_F_OWNER, &f))
        step_after(t, OWNING, SB_FILE_CHOWN, own);
    else if (t->step < MODING && sb_read_find(&given, SB_F_MODE, &f))
        step_after(t, MODING, SB_FILE_CHMOD, mode);
    else
        step_after(t, LOOKING, SB_FILE_STAT, look);
}

/* All bytes are in the file. */
static void written(struct transfer *t)
{
    static const uint16_t commit[] = {SB_F_USER, SB_F_EXCLUSIVE, SB_F_MODE, SB_F_OWNER, 0};
    struct sb_packer p;
    unsigned char *msg;
    if (!t->atomic) {
        dress(t);
        return;
    }
    msg = message(&p, t->fields_len + t->answer_len + FIELD_ROOM);
    if (msg == NULL) {
        no_memory(t);
        return;
    }
    pack_token(t, &p, SB_FILE_COMMIT, commit);
    send_step(t, COMMITTING, &p, msg, t->work.file->fd);
}

static void moved(struct sb_file_work *work)
{
    struct transfer *t = (struct transfer *)((char *)work - offsetof(struct transfer, work));
    if (t->op == NULL || work->error.kind != SB_OK) {
        undo(t);
        transfer_fail(t, &work->error);
    } else if (t->what == READ_ALL) {
        complete(t, t->answer, t->answer_len);
    } else {
        written(t);
    }
}

/* The descriptor has come. */
static void opened(struct transfer *t, const struct sb_answer *answer)
{
    struct sb_error err = {SB_OK};
    t->answer = malloc(answer->raw_len + 1);
    if (t->answer == NULL) {
        no_memory(t);
        return;
    }
    memcpy(t->answer, answer->raw, answer->raw_len);
    t->answer_len = answer->raw_len;
    if (answer->nfds != 1) {
        sb_fail(&err, SB_ERR_PROTOCOL, "the sandbox opened a file and gave none");
    } else {
        t->work.file = sb_file_of_sandbox(answer->fds[0], &err);
        answer->fds[0] = -1;
    }
    if (t->op == NULL || t->work.file == NULL) {
        undo(t);
        transfer_fail(t, &err);
        return;
    }
    if (t->what == GIVE_FILE) {
        struct sb_result *result = sb_op_result(t->op);
        result->object = sb_object_ref(&t->work.file->object);
        complete(t, t->answer, t->answer_len);
        return;
    }
    t->step = MOVING;
    t->work.ended = moved;
    t->work.data = t->bytes + t->fields_len;
    if (t->what == READ_ALL ? sb_file_read_whole(&t->work, &err)
                            : sb_file_write_whole(&t->work, &err)) {
        undo(t);
        transfer_fail(t, &err);
    }
}

static void answered(struct sb_call *call, const struct sb_answer *answer)
{
    struct transfer *t = (struct transfer *)call;
    if (answer->type == SB_PART && answer->error == NULL)
        return;
    if (answer->type == SB_PART)
        sb_conn_forget(&t->box->conn, call);
    if (answer->error != NULL) {
        if (t->step == COMMITTING && !answer->lost)
            undo(t);
        transfer_fail(t, answer->error);
        return;
    }
    if (t->step == OPENING)
        opened(t, answer);
    else if (t->op == NULL)
        transfer_free(t); /* done, and nobody asks */
    else if (t->step == OWNING || t->step == MODING)
        dress(t);
    else
        complete(t, answer->raw, answer->raw_len);
}

static struct transfer *transfer_new(struct sb_box *box, struct sb_mailbox *mailbox,
                                     const void *fields, size_t len, const void *data,
                                     size_t data_len)
{
    struct transfer *t = malloc(sizeof *t + len + data_len);
    if (t == NULL)
        return NULL;
    memset(t, 0, sizeof *t);
    t->op = sb_op_new(mailbox, cancelled, t);
    if (t->op == NULL) {
        free(t);
        return NULL;
    }
    if (len > 0)
        memcpy(t->bytes, fields, len);
    if (data_len > 0)
        memcpy(t->bytes + len, data, data_len);
    t->fields_len = len;
    t->data_len = data_len;
    t->call.answer = answered;
    t->box = sb_object_ref(box);
    return t;
}

/* The first request of a transfer. `oflags` -1: none. */
static struct sb_op *transfer_begin(struct transfer *t, int file_op, int oflags,
                                    const uint16_t *skip)
{
    struct sb_packer p;
    struct sb_op *op = t->op;
    unsigned char *msg = message(&p, t->fields_len + FIELD_ROOM);
    if (msg == NULL) {
        no_memory(t);
        return op;
    }
    pack_from(&p, file_op, oflags, t->bytes, t->fields_len, skip);
    send_step(t, OPENING, &p, msg, -1);
    return op;
}

struct sb_op *sb_box_open_file(struct sb_box *box, struct sb_mailbox *mailbox, int file_op,
                               const void *fields, size_t len)
{
    struct transfer *t = transfer_new(box, mailbox, fields, len, NULL, 0);
    if (t == NULL)
        return NULL;
    t->what = GIVE_FILE;
    t->atomic = file_op == SB_FILE_BEGIN;
    return transfer_begin(t, file_op, -1, skip_nothing);
}

struct sb_op *sb_box_read_all(struct sb_box *box, struct sb_mailbox *mailbox, const void *fields,
                              size_t len, size_t max)
{
    static const uint16_t skip[] = {SB_F_OFLAGS, 0};
    struct transfer *t = transfer_new(box, mailbox, fields, len, NULL, 0);
    if (t == NULL)
        return NULL;
    t->what = READ_ALL;
    t->work.len = max;
    return transfer_begin(t, SB_FILE_OPEN, O_RDONLY, skip);
}

struct sb_op *sb_box_commit(struct sb_box *box, struct sb_mailbox *mailbox, struct sb_file *file,
                            const void *fields, size_t len)
{
    struct sb_packer p;
    unsigned char *msg = message(&p, len + FIELD_ROOM);
    struct sb_op *op;
    if (msg == NULL)
        return NULL;
    pack_from(&p, SB_FILE_COMMIT, -1, fields, len, skip_nothing);
    op = sb_box_request(box, mailbox, msg, p.len, &file->fd, 1);
    free(msg);
    return op;
}

struct sb_op *sb_box_write_all(struct sb_box *box, struct sb_mailbox *mailbox, const void *fields,
                               size_t len, const void *data, size_t data_len)
{
    static const uint16_t skip_begin[] = {SB_F_DATA, SB_F_APPEND, SB_F_ATOMIC, SB_F_OFLAGS, 0};
    static const uint16_t skip_open[] = {
        SB_F_DATA, SB_F_APPEND, SB_F_ATOMIC, SB_F_OFLAGS, SB_F_EXCLUSIVE, SB_F_OWNER, 0};
    struct sb_reader given = {fields, (const unsigned char *)fields + len};
    int append = sb_read_u64(&given, SB_F_APPEND, 0) != 0;
    int exclusive = sb_read_u64(&given, SB_F_EXCLUSIVE, 0) != 0;
    struct transfer *t;
    if (data_len <= INLINE_MAX) {
        struct sb_packer p;
        unsigned char *msg = message(&p, len + data_len + FIELD_ROOM);
        struct sb_op *op;
        if (msg == NULL)
            return NULL;
        pack_from(&p, SB_FILE_WRITE, -1, fields, len, skip_nothing);
        sb_pack_bytes(&p, SB_F_DATA, data, data_len);
        op = sb_box_request(box, mailbox, msg, p.len, NULL, 0);
        free(msg);
        return op;
    }
    t = transfer_new(box, mailbox, fields, len, data, data_len);
    if (t == NULL)
        return NULL;
    t->what = WRITE_ALL;
    t->work.len = data_len;
    t->atomic = !append && sb_read_u64(&given, SB_F_ATOMIC, 1) != 0;
    if (t->atomic)
        return transfer_begin(t, SB_FILE_BEGIN, -1, skip_begin);
    return transfer_begin(
        t, SB_FILE_OPEN,
        O_WRONLY | O_CREAT | (append ? O_APPEND : O_TRUNC) | (exclusive ? O_EXCL : 0), skip_open);
}
