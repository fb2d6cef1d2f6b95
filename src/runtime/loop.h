/* The I/O thread: epoll, timers, work handed over from other threads.
 *
 * One per process generation, started by the first sb_loop_post, never by loading the library.
 * Every function marked [io] may be called on that thread only; the others from any thread. It
 * runs with all signals blocked, never touches a Lua state, never blocks on anything but epoll. A
 * thread that blocks in sb_mailbox_poll or _await may be it for that long, see loop.c: what is told one
 * I/O thread from another by, thread-local variables among them, must not matter to [io] code. A
 * forked child has no thread: sb_generation() differs there, the first post starts a new one,
 * whatever the parent's thread owned is forgotten (its descriptors are closed, nothing is
 * released). */
#ifndef SB_LOOP_H
#define SB_LOOP_H

#include <stddef.h>
#include <stdint.h>

#include "error.h"

/* Bumped in every forked child (pthread_atfork). Costs a load. */
uint64_t sb_generation(void);

/* CLOCK_MONOTONIC in ns, plus what tests have advanced it by (sb_clock_advance). All deadlines and
 * timers here use this clock. SB_NEVER: no deadline. */
#define SB_NEVER UINT64_MAX
uint64_t sb_now(void);
void sb_clock_advance(uint64_t ns);

/* Runs fn(arg) on the I/O thread, in order of posting. Starts the thread if needed. Fails only when
 * the thread cannot be started or is shutting down; then fn will not run. Called on the I/O thread
 * itself it only queues. */
int sb_loop_post(void (*fn)(void *arg), void *arg, struct sb_error *err);
int sb_loop_is_io_thread(void);

/* A descriptor watched by the loop. Embedded in its owner, which keeps it alive while it is added
 * and owns the descriptor; events 0 keeps it added but unwatched. `ready` gets EPOLL* bits; it may
 * remove its own or any other source. Remove it before closing the descriptor. In a forked child
 * the descriptors of all sources that were added are closed and `fd` is -1: an owner that keeps no
 * second copy of the number closes nothing twice. */
struct sb_source {
    int fd;
    uint32_t events;
    void (*ready)(struct sb_source *source, uint32_t events);
};
int sb_source_add(struct sb_source *source, struct sb_error *err); /* [io] */
void sb_source_change(struct sb_source *source, uint32_t events);  /* [io] */
/* [io] Events 0 for now: the kernel is told when something happens meanwhile, and not at all when it is
 * watched for the same again before that. */
void sb_source_rest(struct sb_source *source);
void sb_source_remove(struct sb_source *source); /* [io] idempotent */

/* A timer, embedded in its owner. Zeroed = unset. Setting a set one moves it. The heap is made of
 * the timers themselves, so setting one cannot fail. */
struct sb_timer {
    uint64_t at;
    void (*fire)(struct sb_timer *timer);
    struct sb_timer *child, *next, *prev; /* the heap's */
    int set;
};
void sb_timer_set(struct sb_timer *timer, uint64_t at); /* [io] SB_NEVER clears */
void sb_timer_clear(struct sb_timer *timer);            /* [io] idempotent */

/* Blocking work on one of the two file threads (regular files only: nothing that may hang), then
 * done(arg) on the I/O thread. */
int sb_pool_run(void (*work)(void *arg), void (*done)(void *arg), void *arg, struct sb_error *err);

/* The same for work that a blocking program may as well do itself: short, and of that program's own
 * asking. Whoever runs the loop while it waits does it there, without a change of threads. */
int sb_pool_run_short(void (*work)(void *arg), void (*done)(void *arg), void *arg,
                      struct sb_error *err);

/* Keeps this shared object mapped for the life of the process and registers the exit handler: drain
 * releases within the configured seconds, stop the threads, join them. Called by luaopen;
 * idempotent. Modules that initialise libraries with exit handlers of their own call
 * sb_loop_rearm_exit after it. */
void sb_loop_pin(void);
void sb_loop_rearm_exit(void);

#endif
