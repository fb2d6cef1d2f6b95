/* Taking a stream apart: whole envelopes where they lie, cut ones put together. */
#include "e2b/envelope.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static size_t payload_of(const unsigned char *head)
{
    return (size_t)head[1] << 24 | (size_t)head[2] << 16 | (size_t)head[3] << 8 | head[4];
}

/* Room for one of `need` bytes. */
static int room_for(struct sb_envelopes *e, size_t need)
{
    if (need <= e->cap)
        return 0;
    unsigned char *buf = realloc(e->buf, need);
    if (buf == NULL)
        return -1;
    e->buf = buf;
    e->cap = need;
    return 0;
}

/* Adds to the one that is cut until it has `need` bytes; how many it took, or -1. */
static long complete(struct sb_envelopes *e, const unsigned char *data, size_t len, size_t need)
{
    size_t n = need - e->len < len ? need - e->len : len;
    if (room_for(e, need) < 0)
        return -1;
    memcpy(e->buf + e->len, data, n);
    e->len += n;
    return (long)n;
}

enum sb_envelopes_end sb_envelopes_feed(
    struct sb_envelopes *e, const unsigned char *data, size_t len,
    int (*take)(void *arg, unsigned flags, const unsigned char *payload, size_t len), void *arg)
{
    while (len > 0) {
        if (e->len == 0 && len >= SB_ENVELOPE_HEAD && payload_of(data) <= len - SB_ENVELOPE_HEAD) {
            size_t n = payload_of(data);
            if (take(arg, data[0], data + SB_ENVELOPE_HEAD, n) != 0)
                return SB_ENVELOPES_STOPPED;
            data += SB_ENVELOPE_HEAD + n;
            len -= SB_ENVELOPE_HEAD + n;
            continue;
        }
        size_t need = SB_ENVELOPE_HEAD + (e->len >= SB_ENVELOPE_HEAD ? payload_of(e->buf) : 0);
        long n = complete(e, data, len, need);
        if (n < 0)
            return SB_ENVELOPES_MEMORY;
        data += n;
        len -= (size_t)n;
        if (e->len < SB_ENVELOPE_HEAD)
            continue;
        if (payload_of(e->buf) > SB_ENVELOPE_MOST)
            return SB_ENVELOPES_LONG;
        if (e->len < SB_ENVELOPE_HEAD + payload_of(e->buf))
            continue;
        size_t whole = e->len - SB_ENVELOPE_HEAD;
        e->len = 0;
        if (take(arg, e->buf[0], e->buf + SB_ENVELOPE_HEAD, whole) != 0)
            return SB_ENVELOPES_STOPPED;
    }
    return SB_ENVELOPES_FED;
}

void sb_envelopes_free(struct sb_envelopes *e)
{
    free(e->buf);
    *e = (struct sb_envelopes){0};
}
