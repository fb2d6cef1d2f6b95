/* One seqpacket connection of the caller: to the supervisor, or to the pid 1 of a sandbox.
 *
 * Requests may be sent from any thread: the datagram goes out at once, by the asking thread, so
 * that a request costs one system call and no hand-over. Answers are matched by `req` and
 * delivered on the I/O thread. The peer is hostile: what it sends is bounded and checked here,
 * and a peer that sends rubbish loses the connection (Protocol). Descriptors it sends are
 * close-on-exec and closed unless taken. */
#ifndef SB_CONN_H
#define SB_CONN_H

#include <pthread.h>

#include "../runtime/error.h"
#include "../runtime/loop.h"
#include "../runtime/op.h"
#include "proto.h"

#define SB_SPILL_FROM 60000u         /* longer datagrams travel in a memfd */
#define SB_CONN_QUEUE_MAX (4u << 20) /* bytes waiting for a peer that does not read; then Busy */

/* One answer, valid during the call that delivers it. */
struct sb_answer {
    uint16_t type;            /* SB_REPLY, SB_PART, SB_EXITED, SB_ERROR */
    struct sb_reader fields;  /* checked: reading it to its end does not fail */
    const unsigned char *raw; /* the same fields as bytes */
    size_t raw_len;
    int *fds; /* a handler takes one by replacing it with -1 */
    unsigned nfds;
    const struct sb_error *error; /* the request failed; for SB_ERROR, a loss, and starvation */
    int lost;                     /* no answer will come: the connection has ended */
    int starved; /* descriptors were sent, but this process had no room for them; error is set */
};

/* A request in flight: embedded in its owner, which keeps it alive until its last answer. */
struct sb_call {
    /* [io] For every SB_PART, and once for the last answer, an error, or the loss. */
    void (*answer)(struct sb_call *call, const struct sb_answer *answer);
    uint32_t req;
};

struct sb_conn;
struct sb_conn_type {
    const char *peer; /* "supervisor", "pid 1": for the trace */
    /* [io] A message nobody asked for (req 0). */
    void (*event)(struct sb_conn *conn, const struct sb_answer *event);
    /* [io] The connection has ended, once. Calls in flight stay until sb_conn_fail_all. */
    void (*lost)(struct sb_conn *conn, const struct sb_error *err);
};

enum sb_conn_state { SB_CONN_NEW, SB_CONN_OPEN, SB_CONN_LOST };

struct sb_conn_slot;
struct sb_conn_out;

/* Embedded in an owner that outlives it: whose destroy hands the freeing over to the I/O thread. */
struct sb_conn {
    struct sb_source source; /* [io]; the descriptor is also used under the lock */
    struct sb_timer retry;   /* [io] what the machine had no room for is sent again */
    const struct sb_conn_type *type;
    struct sb_object *owner; /* not counted: whatever is posted for it is. May be NULL */

    pthread_mutex_t lock; /* guards all below, and sending */
    _Atomic int state;    /* enum sb_conn_state; written under the lock, read anywhere */
    uint32_t epoch;       /* put into every request */
    uint32_t frozen;      /* the epoch from which on the peer serves requests; 0: it does */
    uint64_t sent;        /* requests */
    struct sb_conn_slot *slots;
    uint32_t room, free_slot, turn;
    uint32_t in_flight; /* calls somebody waits for */
    struct sb_conn_out *out_first, **out_last;
    size_t out_bytes;
    int flush_posted;
};

/* [io] Takes over fd in every case and starts watching it. */
int sb_conn_open(struct sb_conn *conn, const struct sb_conn_type *type, struct sb_object *owner,
                 int fd, uint32_t epoch, struct sb_error *err);

/* Sends a message made with sb_pack_begin (its req and epoch are filled in here; `msg` is
 * written to). Any thread, never waits. `fds` stay the caller's. call = NULL: the answers are of
 * no interest. On success the call may have been answered before this returns. -NotRunning: the
 * connection has ended. */
int sb_conn_call(struct sb_conn *conn, struct sb_call *call, unsigned char *msg, size_t len,
                 const int *fds, unsigned nfds, struct sb_error *err);

/* [io] The peer has taken `taken` requests and takes no more before `epoch`: the others of earlier epochs fail
 * (NotRunning, step "epoch"), and so does every later one until the thaw, but for those that let go of something:
 * these it reads then. */
void sb_conn_freeze(struct sb_conn *conn, uint64_t taken, uint32_t epoch);
/* It serves requests of this epoch. Any thread; one that is out of date changes nothing. */
void sb_conn_thaw(struct sb_conn *conn, uint32_t epoch);
int sb_conn_frozen(struct sb_conn *conn); /* any thread */

/* [io] Nobody waits for the call any more; its late answers are dropped. */
void sb_conn_forget(struct sb_conn *conn, struct sb_call *call);

/* [io] Answers every call in flight with a loss. Only after the connection has ended. */
void sb_conn_fail_all(struct sb_conn *conn, const struct sb_error *err);

/* [io] The peer has broken the protocol (found by a handler): ends the connection. */
void sb_conn_break(struct sb_conn *conn, const char *what);

/* [io] Ends the connection from our side; `lost` is not called, calls in flight are answered
 * with err. */
void sb_conn_close(struct sb_conn *conn, const struct sb_error *err);

/* Frees what the connection holds. Any thread, only when it is not open and nothing is in
 * flight, or when it belongs to another process generation: `forked`. */
void sb_conn_free(struct sb_conn *conn, int forked);

/* Fills *err from the fields of an SB_ERROR. The text comes from the peer: made harmless. */
void sb_error_from_fields(struct sb_error *err, const struct sb_reader *fields);

/* SB_PART answers, collected as an operation's result has them; mark: 0, or SB_PARTS_LAST. */
#define SB_PARTS_MAX (64u << 20)
struct sb_parts {
    unsigned char *data;
    size_t len, room;
};
int sb_parts_add(struct sb_parts *parts, const void *fields, size_t len, uint32_t mark,
                 struct sb_error *err);

/* Closes what a handler has left in an array of descriptors. */
void sb_fds_close(int *fds, unsigned count);

#endif
