/* One request of HTTP/1: read strictly, since what two readers understand differently is a way past rules. */
#ifndef SB_RELAY_HTTP_H
#define SB_RELAY_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SB_HEAD_MAX = 16384 };

/* The bytes of a request behind its head. */
struct sb_body {
    enum { SB_BODY_NONE, SB_BODY_LENGTH, SB_BODY_CHUNKED } kind;
    uint64_t left;     /* of the length, or of the chunk */
    int state;         /* of the chunked form */
    unsigned int line; /* bytes of the line, or of the trailer */
};

struct sb_head {
    char host[256];    /* as sb_name_read makes it; "" where it is no name */
    unsigned int port; /* 0: not said */
    bool upgrade;      /* to a WebSocket */
    struct sb_body body;
};

/* Reads the head at the start of `in`: its length; 0: more is needed; -1: it is refused. `out` (of SB_HEAD_MAX
 * + 64 bytes) gets the head to send instead, which asks for one request a connection. */
int sb_head_read(struct sb_head *h, const char *in, size_t n, char *out, size_t *out_len);
/* How many of these bytes belong to the body; -1: it is damaged. Fewer than `n`: the request ends there. */
long sb_body_eat(struct sb_body *b, const char *in, size_t n);
bool sb_body_done(const struct sb_body *b);

#endif
