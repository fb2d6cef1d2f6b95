/* Datagrams: receiving them with every check that hostile peers make necessary, and sending. */
#ifndef SB_WIRE_H
#define SB_WIRE_H

#include "../proto.h"
#include "sup.h"

/* One received message. Valid until the next sb_wire_receive (the datagram's buffer is shared);
 * sb_wire_done closes the descriptors that nobody took (taken ones are set to -1). */
struct sb_wire_in {
    struct sb_msg head;
    struct sb_reader fields;
    int fd[SB_MSG_FDS];
    int nfd;
    char *spill; /* fields that came in a memfd */
};

/* 1: a message; 0: nothing there now; -1: the peer is gone; -2: what came is not a message.
 * `max_fds` 0 refuses descriptors. */
int sb_wire_receive(int fd, struct sb_wire_in *in, int max_fds);
void sb_wire_done(struct sb_wire_in *in);

/* Sends without waiting: 0, or -1 and errno (EAGAIN: the peer does not read). */
int sb_wire_send(int fd, const struct sb_packer *p, const int *fds, int nfd);

/* Packing for messages that may be larger than a datagram. Begin, pack fields, then send: what does
 * not fit travels in a sealed memfd. Memory belongs to it until sb_wire_big_free. */
struct sb_wire_big {
    struct sb_packer p;
    unsigned char *memory;
};
int sb_wire_big_begin(struct sb_wire_big *b, size_t room, uint16_t type, uint32_t req);
int sb_wire_big_send(int fd, struct sb_wire_big *b, const int *fds, int nfd);
void sb_wire_big_free(struct sb_wire_big *b);

/* A bytes field as an allocated string: 1; absent: 0 (*out NULL); -1: holds a zero byte, is longer
 * than `max`, or no memory. */
int sb_wire_string(const struct sb_reader *r, uint16_t tag, size_t max, char **out);

#endif
