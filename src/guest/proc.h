/* Commands: the table of running and lately ended ones. */
#ifndef GUEST_PROC_H
#define GUEST_PROC_H

#include "conn.h"
#include "sys.h"

/* Our copy of the read end of an output pipe. Leased: the holder reads, we only keep it open. Not
 * leased: watched, and drained into its spool or a ring of the last SB_TAIL_BYTES. */
struct stream {
    struct watch watch; /* fd = -1: at its end, or never was one. First: the loop hands it back */
    struct conn *lease;
    int watched;
    struct proc *held; /* watched only for the sake of the answer that is held back */
    char *ring;        /* NULL until the first byte */
    uint32_t head, len;
    uint64_t dropped;
    struct spool *spool; /* NULL: it is not kept. Else never leased, and no ring */
};

/* Somebody waits for the end of a command (kill: and of its tree). */
struct waiter {
    struct waiter *next;
    struct conn *conn;
    uint32_t req;
    int kill;
    uint64_t count;
};

/* One command: one or more stages. In the list from its start until its record has expired and no
 * output pipe of it is open any more. */
struct proc {
    struct proc *next, **link;
    uint64_t serial, start_ns;
    struct conn *owner; /* gets SB_EXITED; NULL once gone */
    uint32_t held;      /* the request whose answer is held back, 0: none */
    enum held_stage { HELD_NOT, HELD_FRESH, HELD_KEPT } stage; /* see started.c */
    int detached, running, limited, hidden;
    int killed;             /* somebody has asked for it */
    uint64_t memory_before; /* memory_killed() when it began */
    int starved;            /* it ended because the kernel killed for want of memory */
    struct leaf leaf;       /* given back once empty */
    int leafed;             /* had one: its tree is what was in it */
    uint64_t mark;          /* what tells its tree without one; 0: there is one */
    int stdin_fd;           /* kept for those who attach, else -1 */
    struct stream out[2];
    struct term *term; /* NULL: it has none */
    struct waiter *waiters;
    uint64_t limit_at, kill_at, expire_at; /* sys_now_ms; 0 = not set */
    uint64_t over_at; /* all stages have ended, what its terminal shows is waited for until then */
    uint64_t recheck_at, recheck_step; /* next look at a dying tree or a leased pipe */
    int status;
    struct sys_rusage usage;
    unsigned nstages, nalive;
    int *stages;           /* pids, negative once reaped, 0 once the number is another's */
    int pid;               /* of the last stage: the command's */
    unsigned char *record; /* fields tag, arg*, cwd, user, as they are sent */
    size_t record_len;
};

extern struct proc *procs;
extern size_t procs_running;

/* Into the table; the caller has filled in the rest. */
void proc_add(struct proc *p);
void proc_free(struct proc *p);
void proc_reap(void);
/* What an ended command has written to its terminal is in the pipe. */
void proc_drained(struct proc *p);
void proc_tick(uint64_t now);
/* Nothing is due until this much later than it was. */
void proc_delay(uint64_t ms);
/* A connection is gone: its leases, its waiters, its commands that are not detached. */
void proc_forget(struct conn *c);
/* status, reason, signal, utime, stime, maxrss of an ended one. */
void proc_pack_end(struct sb_packer *a, const struct proc *p);
void proc_send_exited(struct conn *c, uint32_t req, const struct proc *p);
void proc_send_count(struct conn *c, uint32_t req, uint64_t count);
/* It has ended for those who ask, although its terminal may still show something. */
void proc_ended(struct proc *p);
/* What an ended command still holds: its tree, its leaf, pipes that a caller reads to their end. Looked at again
 * and again, ever less often (from p->recheck_step on), since no event tells. */
void proc_settle(struct proc *p, uint64_t now);

/* started.c: the answer to SB_C_EXEC, for p->owner */
void started_tell(struct proc *p, uint32_t req, int in);
void started_hold(struct proc *p, uint32_t req);
void started_tell_held(struct proc *p); /* now, although it has not ended */
void started_tell_end(struct proc *p);
void started_drop(struct proc *p); /* to nobody */
/* No answer is held back, and the next one may be without anybody looking at its pipes. */
int started_idle(void);
/* How long (ms) the loop may rest before started_look; -1: for ever. */
int started_patience(void);
/* After each round of the loop; `rested`: nothing had happened for that long. */
void started_look(int rested);

/* tail.c */
void stream_open(struct stream *s, int fd, struct conn *lease);
void stream_drain(struct stream *s); /* nobody reads any more */
void stream_pump(struct stream *s);  /* takes in what lies in the pipe, if we are the reader */
void stream_close(struct stream *s);
void stream_free(struct stream *s);
int stream_at_end(const struct stream *s); /* no writer, nothing left in the pipe */
int stream_no_writer(const struct stream *s, size_t *left);
size_t stream_filled(const struct stream *s); /* bytes in the pipe */
/* The tail in one or two pieces. */
unsigned stream_tail(const struct stream *s, struct sys_iov piece[2]);
void stream_forget_tail(struct stream *s);

/* tree.c */
/* Marks the processes of one command. */
uint64_t tree_mark(void);
struct leaf leaf_take(void);
int leaf_fresh(const struct leaf *leaf); /* a command can be started in it */
/* Back into the stock when it is empty. */
int leaf_give(struct leaf *leaf);
/* The same, once what is in it has died; it is nobody's any more. */
void leaf_park(struct leaf *leaf);
void leaf_close(const struct leaf *leaf);
/* To the whole tree; how many processes got it. */
uint64_t tree_signal(struct proc *p, int sig);
int tree_alive(struct proc *p);
/* Everything but ourselves is stopped; and goes on, but for what had been stopped before. */
void tree_stop_all(void);
void tree_continue_all(void);
/* To the stages, with group to their process groups. */
uint64_t tree_signal_stages(struct proc *p, int sig, int group);

#endif
