/* Connections of callers: who they are, what they asked, what they have not read yet. */
#ifndef SB_CONN_H
#define SB_CONN_H

#include "loop.h"
#include "wire.h"

struct sb_box;
struct sb_waiter;

/* An answer that did not fit into the socket. Owns its descriptors. */
struct sb_queued {
    struct sb_queued *next;
    int fd[SB_MSG_FDS];
    int nfd;
    size_t len;
    unsigned char data[];
};

/* One connection of a caller with the supervisor's own user id. Owned by the list of connections,
 * freed by sb_conn_drop. */
struct sb_conn {
    struct sb_conn *next, **link;
    struct sb_source src;
    pid_t pid; /* of the process that connected */
    int pidfd; /* the same; -1 if it is gone already */
    bool greeted;
    struct sb_queued *first, **last;
    size_t queued;
};

int sb_conn_listen(int fd); /* takes the listening socket */
void sb_conn_deafen(void);  /* stops listening */
int sb_conn_count(void);
/* Tries again what the machine had no room for; when it is due again, or INT64_MAX. */
int64_t sb_conn_tick(int64_t now);
void sb_conn_drop(struct sb_conn *c);

/* Answers. Descriptors stay the caller's. A peer that does not read is dropped at a bound. */
void sb_conn_send(struct sb_conn *c, const struct sb_packer *p, const int *fds, int nfd);
void sb_conn_fail(struct sb_conn *c, uint32_t req, const struct sb_failure *f);
void sb_conn_done(struct sb_conn *c, uint32_t req); /* and there is no more to say */
/* Packs the head of an answer into the one shared answer buffer. */
void sb_conn_begin(struct sb_packer *p, uint16_t type, uint32_t req);

/* requests.c */
void sb_request_handle(struct sb_conn *c, struct sb_wire_in *in);
void sb_request_done(struct sb_box *b, const struct sb_waiter *w);

#endif
