/* The bytes of a client's connection, and whether they are inside TLS. Everything is [io]; nothing waits. A handshake is
 * part of the first reads. */
#ifndef SB_SERVER_WIRE_H
#define SB_SERVER_WIRE_H

#include <openssl/types.h>
#include <stddef.h>
#include <sys/types.h>

struct sb_wire {
    int fd;   /* owned */
    SSL *tls; /* NULL: plain */
    /* TLS answers by itself at times: what the other direction has to wait for before it can go on. */
    int reading_wants_room, writing_wants_input;
};

/* Takes over fd. -1: out of memory, and nothing is taken over. `context` NULL: plain. */
int sb_wire_open(struct sb_wire *wire, int fd, SSL_CTX *context);
/* As recv and send: 0 is the end; -1 and errno, EAGAIN when it would wait; never EINTR. */
ssize_t sb_wire_read(struct sb_wire *wire, void *buf, size_t len);
ssize_t sb_wire_write(struct sb_wire *wire, const void *buf, size_t len);
/* Nothing more is written; what is under way still arrives. */
int sb_wire_is_shaking(const struct sb_wire *wire); /* TLS has not agreed yet */
void sb_wire_shut(struct sb_wire *wire);
void sb_wire_close(struct sb_wire *wire, int reset);

#endif
