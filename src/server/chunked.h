/* Bodies in chunks, with the same grammar without mercy as heads: CRLF and nothing else, sizes of at most 15
 * digits. Extensions and trailers are looked over and thrown away; both have a limit. */
#ifndef SB_SERVER_CHUNKED_H
#define SB_SERVER_CHUNKED_H

#include <stddef.h>
#include <stdint.h>

struct sb_chunked { /* zeroed = at the beginning */
    int state;
    uint64_t left;     /* of the chunk */
    unsigned seen;     /* digits of the size, or bytes of the extension */
    size_t line, rest; /* of the trailer: this line, all of them */
};

/* Reads framing and at most `room` bytes of data: *used of `data` is done with, *made bytes went to `out` (NULL:
 * nowhere). 1: the body is complete; 0: not yet; -1: it is none. */
int sb_chunked_read(struct sb_chunked *chunked, const unsigned char *data, size_t len,
                    unsigned char *out, size_t room, size_t *used, size_t *made);

#endif
