/* Pieces of work on a file that C code asks for, told of their end on the I/O thread: whole files (transfer.c), and
 * pieces for who moves a file between it and something else (the server's pumps). */
#include "file.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "../runtime/large.h"

#define SMALL_READ 65536 /* allocated even where the file seems shorter */
#define SHORT 1048576    /* what a waiting program may move itself */

static void ended(void *arg)
{
    struct sb_file_work *w = arg;
    struct sb_file *file = w->file;
    w->ended(w); /* may free it */
    sb_file_leave(file);
    sb_object_unref(file);
}

static void whole_read(void *arg)
{
    struct sb_file_work *w = arg;
    size_t max = w->len, room = SMALL_READ, len = 0;
    struct stat st;
    if (fstat(w->file->fd, &st) == 0 && st.st_size > 0) {
        if ((uint64_t)st.st_size > max)
            goto too_long;
        room = (size_t)st.st_size + 1; /* so that the end shows without growing */
    }
    for (;;) {
        unsigned char *bytes = len == 0 ? sb_large_alloc(room) : sb_large_realloc(w->bytes, room);
        int sys;
        if (bytes == NULL) {
            sb_fail_errno(&w->error, ENOMEM, "read", "no memory for the file");
            return;
        }
        w->bytes = bytes;
        len += sb_file_read_at(w->file->fd, bytes + len, room - len, len, &w->stop, &sys);
        if (sys != 0) {
            sb_file_fail_read(&w->error, sys);
            return;
        }
        if (len > max)
            goto too_long;
        if (len < room || w->stop)
            break;
        room = len * 2 + SMALL_READ;
    }
    w->len = len;
    return;
too_long:
    sb_fail(&w->error, SB_ERR_LIMIT_EXCEEDED, "the file is longer than %zu bytes", max);
}

static void write_piece(void *arg)
{
    struct sb_file_work *w = arg;
    int sys;
    w->done = sb_file_write_at(w->file->fd, w->data, w->len, w->offset, &w->stop, &sys);
    if (sys != 0)
        sb_file_fail_write(&w->error, sys, w->done, w->len);
}

static int run(struct sb_file_work *w, void (*what)(void *arg), int is_short, struct sb_error *err)
{
    int rc;
    if (!sb_file_enter(w->file))
        return sb_fail(err, SB_ERR_CLOSED, "the file is closed");
    sb_object_ref(w->file);
    rc = is_short ? sb_pool_run_short(what, ended, w, err) : sb_pool_run(what, ended, w, err);
    if (rc < 0) {
        sb_file_leave(w->file);
        sb_object_unref(w->file);
    }
    return rc;
}

int sb_file_read_whole(struct sb_file_work *w, struct sb_error *err)
{
    struct stat st;
    size_t len = fstat(w->file->fd, &st) == 0 && st.st_size > 0 ? (size_t)st.st_size : 0;
    return run(w, whole_read, (len < w->len ? len : w->len) <= SHORT, err);
}

int sb_file_write_whole(struct sb_file_work *w, struct sb_error *err)
{
    return run(w, write_piece, w->len <= SHORT, err);
}

static void read_piece(void *arg)
{
    struct sb_file_work *w = arg;
    int sys;
    w->done = sb_file_read_at(w->file->fd, w->bytes, w->len, w->offset, &w->stop, &sys);
    if (sys != 0 && w->done == 0)
        sb_file_fail_read(&w->error, sys);
}

int sb_file_read_piece(struct sb_file_work *w, struct sb_error *err)
{
    return run(w, read_piece, 0, err);
}

int sb_file_write_piece(struct sb_file_work *w, struct sb_error *err)
{
    return run(w, write_piece, 0, err);
}
