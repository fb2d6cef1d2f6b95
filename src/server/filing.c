/* Pumps of files. A file blocks who reads or writes it, so a file thread does, one piece at a time; while it does, the
 * piece before is sent, or the one behind is received. */
#include <errno.h>
#include <stdlib.h>

#include "server/pump.h"

#define PIECE (256u << 10)

struct sb_filing {
    struct sb_file_work work;
    struct sb_pump *pump; /* NULL: it is no more, and what is here goes with the work */
    int busy;             /* `work` is with a file thread */
    int over;             /* the pump has ended meanwhile ... */
    struct sb_error why;  /* ... for this reason, if any */
    uint64_t left;        /* out: to be read */
    int end;              /* out: the file's was seen */
    /* Out: piece[0], of which `have` bytes wait for the client. In: piece[filling] has `have` bytes that wait for the
     * file, the other one is being written. Memory while there is something. */
    unsigned char *piece[2];
    int filling;
    size_t have;
};

static void ended(struct sb_file_work *work);

struct sb_filing *sb_filing_new(struct sb_pump *pump, struct sb_file *file, uint64_t offset,
                                uint64_t count)
{
    struct sb_filing *f = calloc(1, sizeof *f);
    if (f == NULL)
        return NULL;
    f->pump = pump;
    f->work.file = sb_object_ref(file);
    f->work.offset = offset;
    f->work.ended = ended;
    f->left = count;
    return f;
}

static void free_pieces(struct sb_filing *f)
{
    for (int i = 0; i < 2; i++) {
        free(f->piece[i]);
        f->piece[i] = NULL;
    }
}

void sb_filing_free(struct sb_filing *f)
{
    if (f == NULL)
        return;
    f->pump = NULL;
    f->work.stop = 1;
    if (f->busy)
        return;
    free_pieces(f);
    sb_object_unref(f->work.file);
    free(f);
}

int sb_filing_lasts(struct sb_filing *f, const struct sb_error *err)
{
    if (!f->busy || f->pump->out)
        return 0;
    f->over = 1;
    f->why = err != NULL ? *err : (struct sb_error){0};
    return 1;
}

static unsigned char *memory(struct sb_filing *f, int i, struct sb_error *err)
{
    if (f->piece[i] == NULL && (f->piece[i] = malloc(PIECE)) == NULL)
        sb_fail_errno(err, ENOMEM, "memory", "out of memory");
    return f->piece[i];
}

/* ---- out ---- */

static void read_next(struct sb_filing *f, struct sb_error *err)
{
    f->work.bytes = memory(f, 0, err);
    f->work.len = f->left < PIECE ? (size_t)f->left : PIECE;
    if (f->work.bytes != NULL)
        f->busy = sb_file_read_piece(&f->work, err) == 0;
}

static int send_piece(struct sb_filing *f, struct sb_error *err)
{
    struct sb_pump *pump = f->pump;
    int rc = sb_exchange_put(pump->call->exchange, f->piece[0], f->have);
    if (rc == -2)
        sb_fail(err, SB_ERR_INVALID_ARGUMENT, "more than Content-Length announced");
    else if (rc < 0)
        sb_fail_errno(err, ENOMEM, "memory", "out of memory");
    pump->bytes += f->have;
    f->have = 0;
    return 1;
}

int sb_filing_out(struct sb_pump *pump)
{
    struct sb_filing *f = pump->filing;
    const struct sb_peer *peer = pump->call->exchange->peer;
    struct sb_error err = f->work.error;
    int moved = 0;
    if (f->busy)
        return 0;
    if (err.kind == SB_OK && f->have > 0 && peer->out.len < SB_PEER_HIGH)
        moved = send_piece(f, &err);
    if (err.kind == SB_OK && f->have == 0 && (f->end || f->left == 0)) {
        pump->out = 0;
        moved = 1;
    } else if (err.kind == SB_OK && f->have == 0) {
        read_next(f, &err);
    }
    if (err.kind == SB_OK)
        return moved;
    sb_pump_finish(pump, &err);
    return -1;
}

/* ---- in ---- */

/* What has come, as far as there is room. 1: something was there. */
static int receive(struct sb_filing *f, struct sb_error *err)
{
    struct sb_peer *peer = f->pump->call->exchange->peer;
    size_t before = peer->in.len;
    if ((before == 0 && !peer->eof) || f->have == PIECE)
        return 0;
    unsigned char *at = memory(f, f->filling, err);
    if (at == NULL)
        return 0;
    f->have += sb_intake_read(peer, at + f->have, PIECE - f->have);
    return peer->in.len != before;
}

static int write_piece(struct sb_filing *f, struct sb_error *err)
{
    if (f->busy || f->have == 0)
        return 0;
    f->work.data = f->piece[f->filling];
    f->work.len = f->have;
    f->busy = sb_file_write_piece(&f->work, err) == 0;
    f->filling = !f->filling;
    f->have = 0;
    return f->busy;
}

int sb_filing_in(struct sb_pump *pump)
{
    struct sb_filing *f = pump->filing;
    struct sb_peer *peer = pump->call->exchange->peer;
    struct sb_error err = f->work.error;
    int moved = 0, more = err.kind == SB_OK;
    while (more) {
        more = receive(f, &err);
        moved |= more;
        more |= err.kind == SB_OK && write_piece(f, &err);
        more &= err.kind == SB_OK;
    }
    if (moved)
        peer->in_at = sb_now();
    if (err.kind == SB_OK)
        err = peer->intake.error;
    if (err.kind != SB_OK) {
        sb_pump_finish(pump, &err);
        return -1;
    }
    pump->blocked =
        f->have == PIECE || peer->intake.complete; /* of the client nothing is awaited */
    if (f->have == 0 && !f->busy) {
        free_pieces(f);
        if (peer->intake.complete) {
            pump->in = 0;
            moved = 1;
        }
    }
    return moved;
}

/* ---- together ---- */

static void ended(struct sb_file_work *work)
{
    struct sb_filing *f = SB_OF(work, struct sb_filing, work);
    struct sb_pump *pump = f->pump;
    f->busy = 0;
    if (pump == NULL) {
        sb_filing_free(f);
        return;
    }
    work->offset += work->done;
    if (pump->out) {
        f->have = work->done;
        f->left -= work->done;
        f->end = work->done == 0;
    } else {
        pump->bytes += work->done;
    }
    if (f->over) {
        sb_pump_tell(pump, f->why.kind != SB_OK ? &f->why : NULL);
        return;
    }
    struct sb_peer *peer = sb_peer_ref(pump->call->exchange->peer);
    sb_peer_turn(peer);
    sb_peer_unref(peer);
}
