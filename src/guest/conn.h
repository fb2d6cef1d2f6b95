/* Connections of callers: requests come in, answers and events go out. */
#ifndef GUEST_CONN_H
#define GUEST_CONN_H

#include "guest.h"

struct packet; /* an answer that waits for room in the socket */

/* Owned by the list in struct guest. `dead` connections are freed by the loop between two events, so
 * that handlers may go on using a pointer they hold. */
struct conn {
    struct watch watch;
    struct conn *next;
    struct packet *first, *last;
    size_t queued;  /* bytes in packets */
    uint64_t taken; /* requests received */
    int dead;
    int stalled;      /* the kernel had no room for an answer: no event tells when it has */
    unsigned workers; /* file operations under way or waiting */
};

/* One request as it was received. Descriptors still in fds[] are closed after the handler. */
struct request {
    struct conn *conn;
    struct sb_msg head;
    struct sb_reader fields;
    unsigned char *spill; /* mapping of a spilled request */
    size_t spill_len;
    int fds[SB_MSG_FDS];
    unsigned nfds;
};

void conn_add(int fd);
void conn_reap_dead(void);
/* Tries again what stalled. */
void conn_tick(void);

/* Receives one datagram into guest.in: its length, 0 at the end, or a negative errno. A datagram that
 * was cut short is -EPROTO, with its descriptors closed. */
long msg_receive(int fd, struct request *r);
/* Sends without waiting: 0 or a negative errno. */
int msg_send(int fd, const struct sb_packer *p, const int *fds, unsigned nfds, int flags);
/* Follows SB_MSG_SPILLED: 0, or a negative errno. */
int msg_unspill(struct request *r);
void request_end(struct request *r);

/* Starts an answer in guest.out. */
void answer_begin(struct sb_packer *p, uint16_t type, uint32_t req);
/* Sends or queues; a connection that takes nothing any more is closed. `conn` may be NULL. 0, or
 * -ETOOMANYREFS: not sent, as many descriptors are in flight already as our user may have. */
int conn_send(struct conn *c, const struct sb_packer *p, const int *fds, unsigned nfds);
void conn_reply(struct conn *c, uint32_t req);
void conn_no_room(struct conn *c, uint32_t req); /* the error that says so */
void conn_error(struct conn *c, uint32_t req, const char *kind, int err, const char *step,
                const char *message, const char *path);
/* Stops or resumes reading requests. */
void conn_update(struct conn *c);

/* Requests, one function each. */
void exec_request(struct request *r);
/* After that a command may still be in our memory, on its way to execve: nothing that needs guest.in,
 * guest.out or another command may happen before exec_settle, which waits for it. */
int exec_starting(void);
void exec_settle(void);
void proc_request(struct request *r);
void worker_request(struct request *r);

#endif
