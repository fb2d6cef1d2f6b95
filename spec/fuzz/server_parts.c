/* A part of a form on its way into a file (filing.c): the file gets what stands before the delimiter, byte for byte, the
 * rest is the body's again, however the body is cut into pieces and however long the file takes with each.
 *
 * Bytes 0 to 3 are: where the body is cut, how many pieces come while one is being written, how long the delimiter is,
 * how much the body has before the rest, to bring it to where the memory for a piece ends. Then the delimiter. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "server/filing.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = (3 << 18) + (1 << 16) };

static unsigned char body[MOST], written[MOST];
static size_t body_len, arrived, taken, written_len, back_at, back_len;
static struct sb_file_work *writing;
static int over;
static struct sb_peer peer;
static struct sb_exchange exchange = {.peer = &peer};

/* ---- what filing.c works with ---- */

size_t sb_exchange_take_body(struct sb_exchange *e, unsigned char *to, size_t room)
{
    size_t n = arrived - taken < room ? arrived - taken : room;
    memcpy(to, body + taken, n);
    taken += n;
    e->peer->in.len = arrived - taken;
    return n;
}

int sb_exchange_put_back(struct sb_exchange *e, const void *bytes, size_t len)
{
    assert(back_len == 0 && len <= taken && e == &exchange);
    back_at = taken - len;
    back_len = len;
    assert(memcmp(body + back_at, bytes, len) == 0);
    return 0;
}

static int the_file_write_piece(struct sb_file_work *work, struct sb_error *err)
{
    (void)err;
    assert(writing == NULL && work->len > 0);
    writing = work;
    return 0;
}

void sb_pump_finish(struct sb_pump *pump, const struct sb_error *err)
{
    (void)pump;
    (void)err;
    abort(); /* nothing fails here */
}

void sb_pump_tell(struct sb_pump *pump, const struct sb_error *err)
{
    sb_pump_finish(pump, err);
}

static int no_file_read_piece(struct sb_file_work *work, struct sb_error *err)
{
    (void)work;
    (void)err;
    abort();
}

int sb_exchange_put(struct sb_exchange *e, const void *bytes, size_t len)
{
    (void)e;
    (void)bytes;
    (void)len;
    abort();
}

static int no_fail(struct sb_error *err, enum sb_err kind, const char *fmt, ...)
{
    (void)err;
    (void)kind;
    (void)fmt;
    abort();
}

static int no_fail_errno(struct sb_error *err, int sys, const char *step, const char *fmt, ...)
{
    (void)err;
    (void)sys;
    (void)step;
    (void)fmt;
    abort();
}

static uint64_t the_now(void)
{
    return 0;
}

static void *the_object_ref(void *object)
{
    return object;
}

static void the_object_unref(void *object)
{
    (void)object;
}

struct sb_peer *sb_peer_ref(struct sb_peer *p)
{
    return p;
}

void sb_peer_unref(struct sb_peer *p)
{
    (void)p;
}

void sb_peer_turn(struct sb_peer *p)
{
    (void)p;
}

/* Members from here on, no calls. */
#undef sb_file_write_piece
#undef sb_file_read_piece
#undef sb_fail
#undef sb_fail_errno
#undef sb_now
#undef sb_object_ref
#undef sb_object_unref
static const struct sb_core_api core = {
    .sb_file_write_piece = the_file_write_piece,
    .sb_file_read_piece = no_file_read_piece,
    .sb_fail = no_fail,
    .sb_fail_errno = no_fail_errno,
    .sb_now = the_now,
    .sb_object_ref = the_object_ref,
    .sb_object_unref = the_object_unref,
};
const struct sb_core_api *sb_api = &core;

/* ---- one part ---- */

/* The file thread is done: it has read what it was given until now. */
static void write_out(void)
{
    struct sb_file_work *work = writing;
    assert(work->offset == written_len && written_len + work->len <= MOST);
    memcpy(written + written_len, work->data, work->len);
    written_len += work->len;
    work->done = work->len;
    writing = NULL;
    work->ended(work);
}

static void turn(struct sb_pump *pump)
{
    while (pump->in && sb_filing_in(pump) == 1)
        continue;
    over = !pump->in;
}

static void run(struct sb_pump *pump, size_t cut, size_t slow)
{
    size_t pieces = 0;
    while (!over && arrived < body_len) {
        arrived += body_len - arrived < cut ? body_len - arrived : cut;
        peer.in.len = arrived - taken;
        turn(pump);
        if (writing != NULL && ++pieces >= slow) {
            pieces = 0;
            write_out();
            turn(pump);
        }
    }
    peer.intake.complete = 1;
    peer.eof = 1;
    turn(pump);
    while (writing != NULL) {
        write_out();
        turn(pump);
    }
    assert(over);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t len = size > 4 ? data[2] % 80 + 1u : 0;
    if (size <= 4 + len || size > 1 << 16)
        return 0;
    const uint8_t *delimiter = data + 4, *rest = delimiter + len;
    size_t rest_len = size - 4 - len;
    size_t before = data[3] == 0 ? 0 : (1 + data[3] % 3) * (size_t)PIECE - data[3];
    memset(body, delimiter[0], before);
    memcpy(body + before, rest, rest_len);
    body_len = before + rest_len;
    arrived = taken = written_len = back_at = back_len = 0;
    over = 0;
    peer = (struct sb_peer){.eof = 0};

    struct sb_call call = {.exchange = &exchange};
    struct sb_pump pump = {.call = &call, .in = 1};
    struct sb_slice end = {(const char *)delimiter, len};
    pump.filing = sb_filing_new(&pump, NULL, 0, 0);
    assert(pump.filing != NULL && sb_filing_until(pump.filing, &end) == 0);
    size_t cut = before > 0 ? 4096u + data[0] * 1024u : data[0] % 64 + 1u;
    run(&pump, cut, data[1] % 8);

    const unsigned char *at = memmem(body, body_len, delimiter, len);
    assert(pump.bytes == written_len && memcmp(written, body, written_len) == 0);
    if (at != NULL) {
        assert(written_len == (size_t)(at - body) && back_at == written_len);
        assert(back_len >= len && back_at + back_len == taken);
    } else { /* the form is broken: what may be the beginning of one is nobody's */
        assert(back_len == 0 && taken == body_len);
        assert(written_len <= body_len && written_len + len > body_len);
    }
    sb_filing_free(pump.filing);
    return 0;
}
