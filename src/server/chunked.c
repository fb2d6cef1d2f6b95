/* Bodies in chunks. */
#include "server/chunked.h"

#include <string.h>

#define DIGITS 15
#define EXTENSION 1024
#define TRAILER 8192

enum {
    AT_SIZE,
    IN_EXTENSION,
    AFTER_SIZE, /* its CR was there */
    IN_DATA,
    AFTER_DATA,
    AFTER_DATA_CR,
    IN_TRAILER,
    AFTER_TRAILER_CR,
    ENDED,
};

static int digit(unsigned char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int is_text(unsigned char c)
{
    return (c >= ' ' && c != 0x7f) || c == '\t';
}

static int at_size(struct sb_chunked *c, unsigned char byte)
{
    int value = digit(byte);
    if (value >= 0) {
        c->left = c->left * 16 + (unsigned)value;
        return c->seen++ < DIGITS ? 0 : -1;
    }
    if (c->seen == 0)
        return -1;
    if (byte != '\r' && byte != ';' && byte != ' ' && byte != '\t')
        return -1;
    c->seen = 0;
    c->state = byte == '\r' ? AFTER_SIZE : IN_EXTENSION;
    return 0;
}

/* A trailer's line, up to its CR. An empty one ends the body. */
static int in_trailer(struct sb_chunked *c, unsigned char byte)
{
    if (++c->rest > TRAILER)
        return -1;
    if (byte == '\r') {
        c->state = AFTER_TRAILER_CR;
        return 0;
    }
    if (!is_text(byte) || (c->line == 0 && (byte == ' ' || byte == '\t' || byte == ':')))
        return -1;
    c->line++;
    return 0;
}

/* One byte that is not data. */
static int step(struct sb_chunked *c, unsigned char byte)
{
    switch (c->state) {
    case AT_SIZE:
        return at_size(c, byte);
    case IN_EXTENSION:
        if (byte == '\r')
            c->state = AFTER_SIZE;
        else if (!is_text(byte) || c->seen++ == EXTENSION)
            return -1;
        return 0;
    case AFTER_SIZE:
        c->seen = 0;
        c->state = c->left > 0 ? IN_DATA : IN_TRAILER;
        return byte == '\n' ? 0 : -1;
    case AFTER_DATA:
        c->state = AFTER_DATA_CR;
        return byte == '\r' ? 0 : -1;
    case AFTER_DATA_CR:
        c->state = AT_SIZE;
        return byte == '\n' ? 0 : -1;
    case IN_TRAILER:
        return in_trailer(c, byte);
    default: /* AFTER_TRAILER_CR */
        c->state = c->line > 0 ? IN_TRAILER : ENDED;
        c->line = 0;
        return byte == '\n' ? 0 : -1;
    }
}

int sb_chunked_read(struct sb_chunked *c, const unsigned char *data, size_t len, unsigned char *out,
                    size_t room, size_t *used, size_t *made)
{
    size_t at = 0, done = 0;
    int rc = 0;
    while (rc == 0 && c->state != ENDED && at < len) {
        if (c->state != IN_DATA) {
            rc = step(c, data[at++]);
            continue;
        }
        size_t n = len - at < room - done ? len - at : room - done;
        if (n > c->left)
            n = (size_t)c->left;
        if (n == 0)
            break;
        if (out != NULL)
            memcpy(out + done, data + at, n);
        at += n;
        done += n;
        c->left -= n;
        if (c->left == 0)
            c->state = AFTER_DATA;
    }
    *used = at;
    *made = done;
    return rc < 0 ? -1 : c->state == ENDED;
}
