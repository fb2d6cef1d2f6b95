/* Commands inside a sandbox: run and captured (exec), or started and held (NativeProcess). */
#ifndef SB_PROC_H
#define SB_PROC_H

#include "../runtime/stream.h"
#include "box.h"

/* Takes the descriptors of a start's or attach's answer, in out[0..2] = stdin, stdout, stderr
 * (-1: none). They come from the sandbox: anything but a pipe is refused. NULL, or what is wrong
 * (nothing taken). */
const char *sb_proc_take_streams(const struct sb_answer *answer, int out[3]);

/* Ends the whole tree of a command, without waiting for it. [io] */
void sb_proc_kill(struct sb_box *box, uint64_t serial);
/* Also when the connection it was started on has been closed. [io] */
void sb_proc_kill_anyway(struct sb_box *box, uint64_t serial, uint64_t pid);

/* ---- exec ---- */

struct sb_exec_options {
    const void *input; /* stdin, copied; NULL: none */
    size_t input_len;
    size_t max_output;   /* bytes kept of each stream: the head of stdout, the tail of stderr */
    uint64_t grace_ns;   /* how long to wait for the end of the output after the command's */
    uint64_t timeout_ns; /* SB_NEVER: none */
};
/* `msg` is a packed SB_C_EXEC. Result: fields of the start and the end, with `dropped` and
 * `dropped_err`; bytes = stdout, bytes2 = stderr; on failure as far as it got. A deadline or
 * timeout kills the tree and is ExecTimedOut; a cancel kills it too. */
struct sb_op *sb_exec(struct sb_box *box, struct sb_mailbox *mailbox, unsigned char *msg,
                      size_t len, const struct sb_exec_options *options);

/* ---- processes ---- */

extern const struct sb_object_type sb_process_type;

/* The end of a process: the fields of its SB_EXITED, written once. */
struct sb_exit {
    size_t len;
    unsigned char fields[];
};

/* Counted. Freed on the I/O thread. */
struct sb_process {
    struct sb_object object;
    struct sb_box *box; /* a reference */
    uint64_t serial, pid, start_ns;
    struct sb_stream *streams[3];     /* references; NULL: none */
    _Atomic int leased;               /* its output is read here until the lease is given back */
    struct sb_watch watch;            /* [io] started here: told by an event */
    struct sb_call wait;              /* [io] attached: told by the answer to a request */
    int waiting;                      /* [io] `wait` is in flight */
    _Atomic(struct sb_exit *) exited; /* NULL until it has ended */
    struct sb_error loss;             /* [io] it will not be told any more */
    struct sb_waiter *waiters;        /* [io] */
};

struct sb_op *sb_process_start(struct sb_box *box, struct sb_mailbox *mailbox, unsigned char *msg,
                               size_t len);
struct sb_op *sb_process_attach(struct sb_box *box, struct sb_mailbox *mailbox, unsigned char *msg,
                                size_t len);
struct sb_op *sb_process_wait(struct sb_process *process, struct sb_mailbox *mailbox);
/* The lease on its output ends. Any thread, never waits. */
void sb_process_lease_release(struct sb_process *process);
/* A release that kills the tree. NULL: out of memory. */
struct sb_release *sb_process_release(struct sb_process *process);

#endif
