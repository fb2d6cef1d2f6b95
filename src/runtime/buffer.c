/* The buffer of a stream. */
#include "buffer.h"

#include <stdlib.h>
#include <string.h>

/* Moves what is there only when that frees more than it moves. */
unsigned char *sb_buffer_room(struct sb_buffer *b, size_t room)
{
    if (b->cap - b->start - b->len >= room)
        return b->data + b->start + b->len;
    if (b->start >= b->len && b->cap - b->len >= room) {
        memmove(b->data, b->data + b->start, b->len);
        b->start = 0;
        return b->data + b->len;
    }
    size_t cap = b->len + room > b->cap * 2 ? b->len + room : b->cap * 2;
    unsigned char *data = malloc(cap);
    if (data == NULL)
        return NULL;
    if (b->len > 0)
        memcpy(data, b->data + b->start, b->len);
    free(b->data);
    b->data = data;
    b->cap = cap;
    b->start = 0;
    return data + b->len;
}

/* All of it is handed over as it is, unless half the memory would go with it for nothing. */
unsigned char *sb_buffer_take(struct sb_buffer *b, size_t n)
{
    unsigned char *bytes;
    if (b->start == 0 && n == b->len && n > 0 && n >= b->cap / 2) {
        bytes = b->data;
        b->data = NULL;
        b->cap = b->len = b->scanned = 0;
        return bytes;
    }
    bytes = malloc(n > 0 ? n : 1);
    if (bytes == NULL)
        return NULL;
    if (n > 0)
        memcpy(bytes, b->data + b->start, n);
    b->start = n < b->len ? b->start + n : 0;
    b->len -= n;
    b->scanned -= b->scanned < n ? b->scanned : n;
    return bytes;
}

size_t sb_buffer_line(struct sb_buffer *b)
{
    const unsigned char *newline = NULL;
    if (b->len > b->scanned)
        newline = memchr(b->data + b->start + b->scanned, '\n', b->len - b->scanned);
    b->scanned = newline != NULL ? (size_t)(newline - (b->data + b->start)) : b->len;
    return newline != NULL ? b->scanned + 1 : 0;
}

void sb_buffer_drop(struct sb_buffer *b)
{
    free(b->data);
    *b = (struct sb_buffer){0};
}
