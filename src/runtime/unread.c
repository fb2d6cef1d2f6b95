#include "unread.h"

#include <errno.h>
#include <stdint.h>

size_t sb_unread_limit(const struct sb_stream *s)
{
    size_t need = 0;
    if ((s->reader != NULL || s->tried) && s->mode != SB_READ_SOME)
        need = s->mode == SB_READ_EXACT || s->want == SIZE_MAX ? s->want : s->want + 1;
    return need > s->high ? need : s->high;
}

void sb_unread_fill(struct sb_stream *s)
{
    size_t most = sb_unread_limit(s), turn = 0;
    while (s->readable && !s->closed && !s->eof && s->read_error == 0 && s->unread.len < most &&
           turn < SB_STREAM_TURN) {
        size_t room = most - s->unread.len < s->room ? most - s->unread.len : s->room;
        unsigned char *end = sb_buffer_room(&s->unread, room);
        if (end == NULL) {
            s->read_error = ENOMEM;
            break;
        }
        ssize_t n = sb_transfer_read(&s->transfer, s->source.fd, end, room);
        if (n > 0) {
            s->unread.len += (size_t)n;
            turn += (size_t)n;
            if ((size_t)n == s->room && s->room < SB_STREAM_MOST)
                s->room *= 2;
            if ((size_t)n < room)
                break; /* likely all there was; the loop will tell when there is more */
        } else if (n == 0 || errno == EIO) { /* a terminal's end */
            s->eof = 1;
        } else if (errno == EAGAIN) {
            break;
        } else {
            s->read_error = errno;
        }
    }
    if (s->unread.len == 0 && (s->eof || s->read_error != 0))
        sb_buffer_drop(&s->unread);
}

/* Moves `n` bytes into the result. */
static void take(struct sb_stream *s, size_t n, struct sb_result *r)
{
    r->bytes = sb_buffer_take(&s->unread, n);
    if (r->bytes == NULL) {
        sb_fail_errno(&r->error, ENOMEM, "read", "cannot take what was read");
        return;
    }
    r->bytes_len = n;
    if (s->unread.len == 0 && s->eof)
        sb_buffer_drop(&s->unread);
}

static void too_long(struct sb_result *r, const char *what, size_t n)
{
    sb_fail(&r->error, SB_ERR_LIMIT_EXCEEDED, "%s is longer than %zu bytes", what, n);
}

/* What is left when no more will come. */
static int take_rest(struct sb_stream *s, struct sb_result *r)
{
    if (s->eof) {
        if (s->unread.len > 0)
            take(s, s->unread.len, r);
        return 1;
    }
    if (s->read_error == 0)
        return 0;
    sb_fail_errno(&r->error, s->read_error, "read", "cannot read");
    if (s->read_error == ENOMEM)
        s->read_error = 0; /* passes */
    return 1;
}

static int read_line(struct sb_stream *s, size_t n, struct sb_result *r)
{
    size_t len = sb_buffer_line(&s->unread);
    if (len > 0 && len <= n)
        take(s, len, r);
    else if (len > 0 || s->unread.len > n)
        too_long(r, "the line", n);
    else
        return take_rest(s, r);
    return 1;
}

int sb_unread_serve(struct sb_stream *s, enum sb_read_mode mode, size_t n, struct sb_result *r)
{
    if (s->closed)
        sb_fail(&r->error, SB_ERR_CLOSED, "the stream is closed");
    else if (!s->readable)
        sb_fail(&r->error, SB_ERR_INVALID_ARGUMENT, "the stream is not for reading");
    else if (mode == SB_READ_LINE)
        return read_line(s, n, r);
    else if (mode == SB_READ_SOME && (s->unread.len > 0 || n == 0))
        take(s, n < s->unread.len ? n : s->unread.len, r);
    else if (mode == SB_READ_EXACT && s->unread.len >= n)
        take(s, n, r);
    else if (mode == SB_READ_ALL && s->unread.len > n)
        too_long(r, "the rest", n);
    else
        return take_rest(s, r);
    return 1;
}
