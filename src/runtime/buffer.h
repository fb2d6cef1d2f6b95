/* Bytes that have come and were not taken yet. Grows at its end, is taken from its front; knows no limit
 * and no lock. Zeroed = empty. */
#ifndef SB_BUFFER_H
#define SB_BUFFER_H

#include <stddef.h>

struct sb_buffer {
    unsigned char *data; /* data[start .. start + len) is there */
    size_t cap, start, len;
    size_t scanned; /* so many of these bytes hold no newline */
};

/* Where `room` > 0 bytes may be written, behind what is there; the writer adds to `len` how many it wrote.
 * NULL: no memory, and nothing has changed. */
unsigned char *sb_buffer_room(struct sb_buffer *buffer, size_t room);

/* The first n <= len bytes, in memory that becomes the caller's. NULL: as above. */
unsigned char *sb_buffer_take(struct sb_buffer *buffer, size_t n);

/* The length of the first line with its newline, 0: there is no newline. Looks at each byte once. */
size_t sb_buffer_line(struct sb_buffer *buffer);

void sb_buffer_drop(struct sb_buffer *buffer); /* empties it and frees its memory */

#endif
