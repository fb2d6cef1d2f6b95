/* Pumps of files, and of parts of a body that end where a delimiter begins. A file blocks who reads or writes it, so a file thread does, one piece at a time; while it does, the
 * piece before is sent, or the one behind is received. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

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
    /* In: where the body's part ends; what may be its beginning is held back. */
    unsigned char *delimiter;
    size_t delimiter_len;
    size_t looked; /* of `have`: no delimiter ends in there */
    int found;
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

int sb_filing_until(struct sb_filing *f, const struct sb_slice *delimiter)
{
    f->delimiter = malloc(delimiter->len);
    if (f->delimiter == NULL)
        return -1;
    memcpy(f->delimiter, delimiter->data, delimiter->len);
    f->delimiter_len = delimiter->len;
    return 0;
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
    free(f->delimiter);
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

/* Puts what begins with the delimiter back, for who reads the body next. */
static void look_for_end(struct sb_filing *f, struct sb_error *err)
{
    unsigned char *piece = f->piece[f->filling];
    size_t from = f->looked < f->delimiter_len ? 0 : f->looked - (f->delimiter_len - 1);
    unsigned char *at = memmem(piece + from, f->have - from, f->delimiter, f->delimiter_len);
    f->looked = f->have;
    if (at == NULL)
        return;
    f->found = 1;
    if (sb_exchange_put_back(f->pump->call->exchange, at, f->have - (size_t)(at - piece)) < 0)
        sb_fail_errno(err, ENOMEM, "memory", "out of memory");
    f->have = (size_t)(at - piece);
}

/* What has come, as far as there is room. 1: something was there. */
static int receive(struct sb_filing *f, struct sb_error *err)
{
    struct sb_exchange *exchange = f->pump->call->exchange;
    struct sb_peer *peer = exchange->peer;
    size_t before = peer->in.len + exchange->body.len;
    if ((before == 0 && !peer->eof) || f->have == PIECE || f->found)
        return 0;
    unsigned char *at = memory(f, f->filling, err);
    if (at == NULL)
        return 0;
    f->have += sb_exchange_take_body(exchange, at + f->have, PIECE - f->have);
    int moved = peer->in.len + exchange->body.len != before;
    if (f->delimiter_len > 0)
        look_for_end(f, err);
    return moved;
}

/* How many of the bytes at hand may be the beginning of a delimiter. */
static size_t held_back(const struct sb_filing *f)
{
    size_t most = f->delimiter_len > 0 && !f->found ? f->delimiter_len - 1 : 0;
    return f->have < most ? f->have : most;
}

static int write_piece(struct sb_filing *f, struct sb_error *err)
{
    size_t held = held_back(f);
    if (f->busy || f->have == held)
        return 0;
    unsigned char *piece = f->piece[f->filling];
    unsigned char *next = held > 0 ? memory(f, !f->filling, err) : NULL;
    if (held > 0 && next == NULL)
        return 0;
    f->work.data = piece;
    f->work.len = f->have - held;
    f->busy = sb_file_write_piece(&f->work, err) == 0;
    if (held > 0)
        memcpy(next, piece + f->work.len, held);
    f->filling = !f->filling;
    f->have = f->looked = held;
    return f->busy;
}

int sb_filing_in(struct sb_pump *pump)
{
    struct sb_filing *f = pump->filing;
    const struct sb_exchange *exchange = pump->call->exchange;
    struct sb_peer *peer = exchange->peer;
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
    int over = f->found || (peer->intake.complete && exchange->body.len == 0);
    if (err.kind == SB_OK && !f->found)
        err = peer->intake.error;
    if (err.kind != SB_OK) {
        sb_pump_finish(pump, &err);
        return -1;
    }
    pump->blocked = f->have == PIECE || over; /* of the client nothing is awaited */
    if (f->have == held_back(f) && !f->busy) {
        if (f->have == 0)
            free_pieces(f);
        if (over) {
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
