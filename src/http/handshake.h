/* The opening of a websocket (RFC 6455, 4): the request, and what its answer means. No I/O. */
#ifndef SB_HTTP_HANDSHAKE_H
#define SB_HTTP_HANDSHAKE_H

#include "http/websocket.h"

#define SB_HANDSHAKE_HEAD (256u << 10) /* a longer head is none */

struct sb_handshake {
    char *request; /* malloc'ed; may hold secrets: wiped by sb_handshake_free */
    size_t len;
    char accept[32]; /* what the answer must prove */
};

/* 0, or a negative code with nothing held. */
int sb_handshake_make(struct sb_handshake *out, const struct sb_websocket_request *request,
                      uint16_t port, struct sb_error *err);
void sb_handshake_free(struct sb_handshake *handshake);

/* The length of a whole head at the beginning of `data`, 0 if there is none yet. */
size_t sb_handshake_head(const char *data, size_t len);
/* The status of a whole head, or a negative code: it is not HTTP, or says 101 without meaning it. */
int sb_handshake_judge(const struct sb_handshake *handshake, const char *head, size_t len,
                       struct sb_error *err);
/* Whether something of the body behind a head is still to come: until it is all there, or, where the head does not
 * say, until the connection ends. */
int sb_handshake_lacks(const char *head, size_t head_len, const char *body, size_t body_len);

#endif
