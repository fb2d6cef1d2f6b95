/* The head of a request: what is let in, and what it says.
 *
 * A head is read twice: first byte by byte against a grammar without mercy (CRLF ends every line, no
 * control characters, no folded lines, no blanks around names), then by http-parser, which Debian builds
 * without its strict mode. What the two of them could understand differently is refused; so is what a
 * proxy in front could: two lengths, a length beside chunks, other codings than chunks. */
#ifndef SB_SERVER_HEAD_H
#define SB_SERVER_HEAD_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/slice.h"

#define SB_HEAD_FIELDS 256

struct sb_field {
    struct sb_slice name, value; /* the value without blanks around it */
};

enum sb_framing {
    SB_FRAMED_NONE,
    SB_FRAMED_LENGTH,
    SB_FRAMED_CHUNKED,
    SB_FRAMED_TUNNEL, /* no head says so: all that follows, once it has become a tunnel */
};

struct sb_head {
    char *text;
    struct sb_field *fields;
    size_t count;
    struct sb_slice method, target, host; /* host.data NULL: none */
    int minor;                            /* of HTTP/1.x: 0 or 1 */
    enum sb_framing framing;
    uint64_t length; /* SB_FRAMED_LENGTH: at least 1 */
    int keep_alive, expects, upgrade, is_head;
};

/* The length of the head that `data` begins with; 0: more of it has to come; -1: no more needs to, it is none.
 * *scanned: how far the last call has looked, 0 at first. */
long sb_head_find(const char *data, size_t len, size_t *scanned);

/* Reads one that was found. 0, or the status to refuse it with and *why in words; then *head holds nothing. */
int sb_head_read(struct sb_head *head, const char *data, size_t len, const char **why);
void sb_head_free(struct sb_head *head);

/* Is the name (of a header) this one, given in lower case? */
int sb_slice_is(const struct sb_slice *span, const char *name);
int sb_is_token(const char *data, size_t len);

#endif
