/* A running sandbox as this process sees it: the connection to its pid 1 (native object
 * NativeBox). */
#ifndef SB_BOX_H
#define SB_BOX_H

#include "client.h"

extern const struct sb_object_type sb_box_type;

/* Somebody who wants to know when a process ends: by the event, or by the loss of the
 * connection. */
struct sb_watch {
    uint64_t serial;
    void (*exited)(struct sb_watch *watch,
                   const struct sb_answer *event); /* [io] once; unlinked before */
    void (*lost)(struct sb_watch *watch, const struct sb_error *err); /* [io] instead of exited */
    struct sb_watch *next, **self;
};

#define SB_BOX_BUCKETS 32

/* Counted; whoever has a request in flight or a watch holds a reference. Freed on the I/O
 * thread. */
struct sb_box {
    struct sb_object object;
    struct sb_conn conn;
    struct sb_engine *engine;  /* a reference */
    char *id, *boot;           /* fixed */
    struct sb_client *client;  /* [io] needed while the connection is open, else NULL */
    struct sb_client_call why; /* [io] asks the supervisor how a lost sandbox is ... */
    struct sb_timer patience;  /* [io] ... but not for ever */
    struct sb_error loss;
    struct sb_watch *watches[SB_BOX_BUCKETS]; /* [io] by serial */
    unsigned watching;
};

/* [io] Takes over fd in every case. `record` is the reply to create, connect or resume. */
struct sb_box *sb_box_new(struct sb_engine *engine, const struct sb_reader *record, int fd,
                          struct sb_error *err);

int sb_box_is_open(const struct sb_box *box); /* any thread */
void sb_box_close(
    struct sb_box *box); /* any thread, never waits; requests in flight fail (Closed) */

/* Sends to pid 1; as sb_conn_call, with an error that speaks of the sandbox. */
int sb_box_call(struct sb_box *box, struct sb_call *call, unsigned char *msg, size_t len,
                const int *fds, unsigned nfds, struct sb_error *err);

void sb_box_watch(struct sb_box *box, struct sb_watch *watch, uint64_t serial); /* [io] */
void sb_box_unwatch(struct sb_box *box, struct sb_watch *watch); /* [io] idempotent */

/* A request whose answer is the whole story: fields, or parts and fields. Any thread; NULL: out
 * of memory. */
struct sb_op *sb_box_request(struct sb_box *box, struct sb_mailbox *mailbox, unsigned char *msg,
                             size_t len, const int *fds, unsigned nfds);

/* A request whose answer brings a pipe: an sb_stream of what comes out of it, and the fields (piped.c). */
struct sb_op *sb_box_pipe(struct sb_box *box, struct sb_mailbox *mailbox, unsigned char *msg,
                          size_t len);

/* A TCP connection to a port inside, on 127.0.0.1 or ::1: an sb_stream as the result's object. */
struct sb_op *sb_box_dial(struct sb_box *box, struct sb_mailbox *mailbox, unsigned port);

#endif
