/* The bytes of a client's connection, and whether they are inside TLS. Everything is [io]; nothing waits. */
#ifndef SB_SERVER_WIRE_H
#define SB_SERVER_WIRE_H

#include <stddef.h>
#include <sys/types.h>

struct sb_wire {
    int fd; /* owned by the peer's source */
};

/* As recv and send: 0 is the end; -1 and errno, EAGAIN when it would wait; never EINTR. */
ssize_t sb_wire_read(struct sb_wire *wire, void *buf, size_t len);
ssize_t sb_wire_write(struct sb_wire *wire, const void *buf, size_t len);
/* Nothing more is written; what is under way still arrives. */
void sb_wire_shut(struct sb_wire *wire);

#endif
