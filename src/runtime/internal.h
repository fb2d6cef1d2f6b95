/* Seams between the runtime's own files. Nobody else includes this. */
#ifndef SB_INTERNAL_H
#define SB_INTERNAL_H

#include <pthread.h>

#include "loop.h"
#include "mailbox.h"
#include "op.h"
#include "release.h"

/* Work handed to the I/O thread in memory that its owner already has, so that handing it over
 * cannot fail for want of memory. The node is free again when fn is called. Returns as
 * sb_loop_post. */
struct sb_post {
    struct sb_post *next;
    void (*fn)(struct sb_post *post);
};
int sb_loop_post_node(struct sb_post *post, struct sb_error *err);

#define sb_container(pointer, type, member) \
    ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

/* Starts a thread with every signal blocked. Returns an errno. */
int sb_thread_start(pthread_t *thread, void *(*run)(void *));
/* Waits at most `seconds` for its end. */
void sb_thread_join(pthread_t thread, int seconds);

/* For a thread that blocks until its mailbox has something. 1: it ran the loop itself until over(arg)
 * (*result 1), the deadline or the loop's end (0), or a signal (-1); what came into the mailbox
 * meanwhile has not been signalled. 0: another thread runs it; the caller waits for the mailbox's
 * descriptor and then calls sb_loop_waited. */
int sb_loop_wait(struct sb_mailbox *mailbox, int (*over)(void *arg), void *arg, uint64_t deadline,
                 int *result);
void sb_loop_waited(struct sb_mailbox *mailbox);
int sb_loop_unattended(void); /* our own thread stands by: a waiter has the loop or will soon */
int sb_loop_by_waiter(void);  /* [io] a waiter has it */
/* The same at exit: runs the loop if nobody does, else returns at once. */
void sb_loop_drive(int (*over)(void *arg), void *arg, uint64_t deadline);

/* [io] Signals the mailbox when the current turn of the loop is over. */
void sb_loop_touch(struct sb_mailbox *mailbox);

/* The parts of exit, in this order: sb_release_drain, sb_pool_stop, sb_loop_stop. Idempotent. */
void sb_loop_stop(void);
void sb_pool_stop(void);
void sb_release_drain(void);

/* Fork: every lock that is not inside an object is held across it. `child` resets the module. */
void sb_loop_fork_lock(void);
void sb_loop_fork_unlock(void);
void sb_loop_fork_child(void);
void sb_pool_fork_lock(void);
void sb_pool_fork_unlock(void);
void sb_pool_fork_child(void);
void sb_release_fork_lock(void);
void sb_release_fork_unlock(void);
void sb_release_fork_child(void);
void sb_audit_fork_lock(void);
void sb_audit_fork_unlock(void);
void sb_audit_fork_child(void);
void sb_secret_fork_lock(void);
void sb_secret_fork_unlock(void);

/* ---- the insides of operations and mailboxes that both need ---- */

struct sb_op {
    _Atomic unsigned refs;
    _Atomic int done; /* set with release order once `result` is the asker's */
    _Atomic int fate; /* who comes second, of completion and sb_op_abandon, frees the result */
    uint64_t id;
    uint64_t generation;        /* of the process that made it */
    struct sb_mailbox *mailbox; /* one reference; NULL once completed */
    struct sb_op *next;         /* in the mailbox's queue, or a release's waiters before */
    struct sb_result result;

    /* the I/O thread's */
    void (*cancel)(struct sb_op *op, void *owner);
    void *owner;
    enum sb_err asked; /* why an early end was asked for */
    struct sb_timer deadline;
    struct sb_timer wake; /* sb_op_timer's */

    /* hand-over; each holds a reference while posted */
    uint64_t deadline_at;
    uint64_t wake_after;
    _Atomic int cancel_posted;
    struct sb_post cancel_post, deadline_post, wake_post;
};

struct sb_mailbox {
    _Atomic unsigned refs;
    _Atomic size_t open; /* operations made for it and not completed */
    _Atomic int armed;   /* a wake is outstanding */
    uint64_t generation;
    int fd; /* eventfd */

    pthread_mutex_t lock;       /* guards: */
    struct sb_op *head, **tail; /* completed, not drained */
    int wake_fd;                /* second channel, -1 none */

    struct sb_op *left; /* the consumer's: detached by a bounded drain, not handed out yet */

    struct sb_mailbox *touched_next; /* the I/O thread's */
    int touched;
};

/* Links a completed operation. `sb_mailbox_wake` follows, now or at the end of the turn. */
void sb_mailbox_put(struct sb_mailbox *mailbox, struct sb_op *op);
void sb_mailbox_wake(struct sb_mailbox *mailbox);

/* Completes an operation with Forked. */
void sb_op_fail_forked(struct sb_op *op);

/* The directory for the wake socket, read from the environment once at load. */
extern char sb_tmpdir[];

#endif
