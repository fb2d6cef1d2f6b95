/* Reading and writing a descriptor that may not be trusted to be non-blocking: whoever has the
 * other copies can clear O_NONBLOCK at any time. Every call here returns at once whatever the flag
 * says. */
#ifndef SB_TRANSFER_H
#define SB_TRANSFER_H

#include <stddef.h>
#include <sys/types.h>

enum sb_transfer_how {
    SB_TRANSFER_SOCKET, /* MSG_DONTWAIT */
    SB_TRANSFER_NOWAIT, /* RWF_NOWAIT */
    SB_TRANSFER_SPLICE, /* pipes of kernels that refuse that: through a private pipe */
    SB_TRANSFER_PLAIN,  /* terminals and the like: poll first */
};

struct sb_transfer {
    enum sb_transfer_how how;
    int is_pipe;
    int through[2]; /* the private pipe, -1 until needed */
    size_t staged;  /* bytes of the current write in it */
};

void sb_transfer_init(struct sb_transfer *t, int fd);
void sb_transfer_init_pipe(struct sb_transfer *t); /* for what is known to be one */
void sb_transfer_close(struct sb_transfer *t);     /* not the descriptor */

/* As read and write: -1 with EAGAIN when it would wait; never EINTR. A write that got EAGAIN or
 * fewer bytes must go on with the same bytes, or be given up with sb_transfer_discard. */
ssize_t sb_transfer_read(struct sb_transfer *t, int fd, void *buf, size_t len);
ssize_t sb_transfer_write(struct sb_transfer *t, int fd, const void *buf, size_t len);
void sb_transfer_discard(struct sb_transfer *t);

#endif
