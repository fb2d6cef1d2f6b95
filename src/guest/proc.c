#include "proc.h"

#include "mem.h"
#include "pipes.h"
#include "spool.h"
#include "term.h"
#include "worker.h"

enum {
    RECHECK_MS = 5, /* first look at a tree that should be dead; doubles ... */
    RECHECK_MAX_MS = 1000,
    DRAIN_MS = 1000, /* how long the end of a command waits for a reader of its terminal */
};

struct proc *procs; /* youngest first */
static struct proc *procs_oldest;
size_t procs_running;
static size_t procs_ended; /* attachable ones */

/* A number that is in use again says nothing about the old command any more. Numbers go up until they
 * start anew, so mostly there is nobody to look for. */
static void pids_taken(const struct proc *p)
{
    static int highest;
    int seen = 0;
    for (unsigned i = 0; i < p->nstages; i++) {
        seen |= p->stages[i] <= highest;
        if (p->stages[i] > highest)
            highest = p->stages[i];
    }
    for (struct proc *old = seen ? procs : NULL; old != NULL; old = old->next)
        for (unsigned i = 0; i < old->nstages; i++)
            for (unsigned j = 0; j < p->nstages; j++)
                if (old->stages[i] == -p->stages[j])
                    old->stages[i] = 0;
}

void proc_add(struct proc *p)
{
    pids_taken(p);
    p->running = 1;
    p->leafed = p->leaf.procs >= 0;
    p->next = procs;
    p->link = &procs;
    if (procs != NULL)
        procs->link = &p->next;
    else
        procs_oldest = p;
    procs = p;
    procs_running++;
    loop_wake_at(p->limit_at);
}

/* NULL: none is. `next` is a proc's first member. */
static struct proc *younger(const struct proc *p)
{
    return p->link == &procs ? NULL : (struct proc *)(void *)p->link;
}

void proc_free(struct proc *p)
{
    *p->link = p->next;
    if (p->next != NULL)
        p->next->link = p->link;
    else
        procs_oldest = younger(p);
    for (int i = 0; i < 2; i++)
        stream_free(&p->out[i]);
    if (p->stdin_fd >= 0)
        sys_close(p->stdin_fd);
    leaf_close(&p->leaf);
    term_free(p->term);
    mem_free(p);
}

void proc_pack_end(struct sb_packer *a, const struct proc *p)
{
    int sig = p->status & 127;
    sb_pack_u64(a, SB_F_STATUS, (uint64_t)(unsigned)p->status);
    sb_pack_str(a, SB_F_REASON,
                p->limited   ? "limit"
                : p->starved ? "memory"
                : sig != 0   ? "signal"
                             : "exit");
    if (sig != 0)
        sb_pack_u64(a, SB_F_SIGNAL, (uint64_t)sig);
    sb_pack_u64(a, SB_F_UTIME_US, (uint64_t)(p->usage.utime.sec * 1000000 + p->usage.utime.usec));
    sb_pack_u64(a, SB_F_STIME_US, (uint64_t)(p->usage.stime.sec * 1000000 + p->usage.stime.usec));
    sb_pack_u64(a, SB_F_MAXRSS, (uint64_t)p->usage.maxrss * 1024);
}

void proc_send_exited(struct conn *c, uint32_t req, const struct proc *p)
{
    struct sb_packer a;
    answer_begin(&a, SB_EXITED, req);
    sb_pack_u64(&a, SB_F_SERIAL, p->serial);
    sb_pack_u64(&a, SB_F_PID, (uint64_t)p->pid);
    proc_pack_end(&a, p);
    for (int i = 0; i < 2; i++)
        if (p->out[i].dropped > 0)
            sb_pack_u64(&a, i == 0 ? SB_F_DROPPED : SB_F_DROPPED_ERR, p->out[i].dropped);
    conn_send(c, &a, NULL, 0);
}

void proc_send_count(struct conn *c, uint32_t req, uint64_t count)
{
    struct sb_packer a;
    answer_begin(&a, SB_REPLY, req);
    sb_pack_u64(&a, SB_F_COUNT, count);
    conn_send(c, &a, NULL, 0);
}

/* Answers those who wait, as far as what they wait for has come. */
static void waiters_answer(struct proc *p, int tree_empty)
{
    struct waiter **at = &p->waiters;
    while (*at != NULL) {
        struct waiter *w = *at;
        if (p->running || (w->kill && !tree_empty)) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        if (w->kill)
            proc_send_count(w->conn, w->req, w->count);
        else
            proc_send_exited(w->conn, w->req, p);
        mem_free(w);
    }
}

static int kill_awaited(const struct proc *p)
{
    for (const struct waiter *w = p->waiters; w != NULL; w = w->next)
        if (w->kill)
            return 1;
    return 0;
}

void proc_settle(struct proc *p, uint64_t now)
{
    int again = 0;
    if (kill_awaited(p) || p->kill_at != 0) {
        int alive = tree_alive(p);
        if (!alive)
            p->kill_at = 0;
        if (!alive && !p->running)
            waiters_answer(p, 1);
        else
            again = 1;
    }
    if (p->running)
        goto out;
    if (p->leaf.procs >= 0 && leaf_give(&p->leaf) != 0)
        again = 1;
    for (int i = 0; i < 2; i++) {
        struct stream *s = &p->out[i];
        if (s->watch.fd >= 0 && !s->watched) {
            if (stream_at_end(s))
                stream_close(s);
            else
                again = 1;
        }
    }
out:
    p->recheck_at = 0;
    if (again) {
        p->recheck_step = p->recheck_step == 0 ? RECHECK_MS : p->recheck_step * 2;
        if (p->recheck_step > (kill_awaited(p) ? 40 : RECHECK_MAX_MS))
            p->recheck_step = kill_awaited(p) ? 40 : RECHECK_MAX_MS;
        p->recheck_at = now + p->recheck_step;
        loop_wake_at(p->recheck_at);
    }
}

static int proc_done_with(const struct proc *p)
{
    return p->hidden && p->out[0].watch.fd < 0 && p->out[1].watch.fd < 0 && p->waiters == NULL &&
           p->out[0].spool == NULL && p->out[1].spool == NULL;
}

static void proc_hide(struct proc *p)
{
    if (!p->hidden) {
        p->hidden = 1;
        p->expire_at = 0;
        procs_ended--;
    }
    /* Nobody can attach any more: what a background child still writes is thrown away, once nobody reads it. */
    for (int i = 0; i < 2; i++) {
        struct stream *s = &p->out[i];
        if (s->spool != NULL && !spool_has_readers(s->spool, 1)) {
            spool_free(s->spool);
            s->spool = NULL;
        }
        if (s->lease == NULL && s->watch.fd < 0 && s->spool == NULL)
            stream_free(s);
    }
}

/* The oldest ended record goes when there are too many. */
static void proc_limit_ended(void)
{
    struct proc *oldest = procs_oldest;
    if (procs_ended <= SB_KEEP_ENDED)
        return;
    while (oldest != NULL && (oldest->running || oldest->hidden))
        oldest = younger(oldest);
    if (oldest != NULL) {
        proc_hide(oldest);
        if (proc_done_with(oldest))
            proc_free(oldest);
    }
}

void proc_ended(struct proc *p)
{
    uint64_t now = sys_now_ms();
    p->running = 0;
    procs_running--;
    procs_ended++;
    p->limit_at = p->over_at = 0;
    p->expire_at = now + SB_KEEP_ENDED_MS;
    loop_wake_at(p->expire_at);
    if (p->stdin_fd >= 0)
        sys_close(p->stdin_fd);
    p->stdin_fd = -1;
    for (int i = 0; i < 2; i++)
        if (p->out[i].spool != NULL)
            stream_pump(&p->out[i]); /* how much was dropped is told with the end */
    if (p->held != 0)
        started_tell_end(p);
    else
        proc_send_exited(p->owner, 0, p);
    waiters_answer(p, 0);
    p->recheck_step = 0;
    proc_settle(p, now);
    proc_limit_ended();
    control_stop_check();
}

/* The kernel counts whom it kills for want of memory but does not say whom: a command that ended by a KILL that was not
 * ours, or whose shell says that a part of it did (128 + 9), while that number grew. */
static int starved(const struct proc *p)
{
    int kill = (p->status & 127) == SIGKILL || p->status == (128 + SIGKILL) << 8;
    return kill && !p->limited && !p->killed && memory_killed() > p->memory_before;
}

/* All stages are reaped. Its end is told when what it wrote can be read: a pipe has it then, but of a terminal we
 * pass it on. Not for ever: a reader who waits for the end before he reads gets it, too. */
static void proc_over(struct proc *p)
{
    p->limit_at = 0;
    p->starved = starved(p);
    if (p->term == NULL || term_over(p->term) || p->limited || kill_awaited(p) || guest.stopping) {
        proc_ended(p);
        return;
    }
    p->over_at = sys_now_ms() + DRAIN_MS;
    loop_wake_at(p->over_at);
}

void proc_drained(struct proc *p)
{
    if (p->over_at != 0)
        proc_ended(p);
}

static int reaped(int pid, int status, const struct sys_rusage *usage)
{
    for (struct proc *p = procs; p != NULL; p = p->next) {
        if (!p->running)
            continue;
        for (unsigned i = 0; i < p->nstages; i++) {
            if (p->stages[i] != pid)
                continue;
            p->stages[i] = -pid;
            p->usage.utime.sec += usage->utime.sec;
            p->usage.utime.usec += usage->utime.usec;
            p->usage.stime.sec += usage->stime.sec;
            p->usage.stime.usec += usage->stime.usec;
            if (usage->maxrss > p->usage.maxrss)
                p->usage.maxrss = usage->maxrss;
            if (i + 1 == p->nstages)
                p->status = status;
            if (--p->nalive == 0)
                proc_over(p);
            return 1;
        }
    }
    return 0;
}

void proc_reap(void)
{
    int strangers = 0;
    for (;;) {
        struct sys_rusage usage = {0};
        int status = 0;
        long pid = SYS4(__NR_wait4, -1, &status, WNOHANG | WSTOPPED | WALL, &usage);
        if (pid == -EINTR)
            continue;
        if (pid <= 0)
            break;
        if ((status & 0xff) == 0x7f) {
            if (guest.frozen == FREEZE_NOT) /* else it was us */
                worker_stopped((int)pid);
        } else if (!worker_reaped((int)pid, status) && !reaped((int)pid, status, &usage)) {
            strangers = 1;
        }
    }
    /* A tree that is being killed ends with its orphans, which come to us. */
    if (strangers) {
        uint64_t now = 0;
        for (struct proc *p = procs; p != NULL; p = p->next)
            if (kill_awaited(p) || p->kill_at != 0) {
                now = now != 0 ? now : sys_now_ms();
                proc_settle(p, now);
            }
    }
}

void proc_delay(uint64_t ms)
{
    for (struct proc *p = procs; p != NULL; p = p->next) {
        uint64_t *at[] = {&p->limit_at, &p->kill_at, &p->expire_at, &p->recheck_at, &p->over_at};
        for (int i = 0; i < 5; i++)
            if (*at[i] != 0)
                *at[i] += ms;
    }
}

/* One that ends may push any other out of the table. */
static void proc_tick_over(uint64_t now)
{
    for (struct proc *p = procs, *after; p != NULL; p = after) {
        after = p->next;
        if (p->over_at != 0 && p->over_at <= now) {
            proc_ended(p);
            after = procs;
        }
    }
}

void proc_tick(uint64_t now)
{
    uint64_t next = 0;
    if (guest.frozen != FREEZE_NOT) {
        uint64_t life = control_life_tick();
        freeze_check();
        if (guest.frozen == FREEZE_BEGUN)
            loop_wake_at(guest.freeze_due);
        loop_wake_at(life != 0 ? now + life : 0);
        return;
    }
    proc_tick_over(now);
    for (struct proc *p = procs, *after; p != NULL; p = after) {
        uint64_t times[5];
        after = p->next;
        if (p->limit_at != 0 && p->limit_at <= now) {
            p->limit_at = 0;
            p->limited = 1;
            tree_signal(p, SIGKILL);
        }
        if (p->kill_at != 0 && p->kill_at <= now) {
            p->kill_at = 0;
            tree_signal(p, SIGKILL);
            p->recheck_at = now;
        }
        if (p->recheck_at != 0 && p->recheck_at <= now)
            proc_settle(p, now);
        if (p->hidden || (p->expire_at != 0 && p->expire_at <= now))
            proc_hide(p);
        if (proc_done_with(p)) {
            proc_free(p);
            continue;
        }
        times[0] = p->limit_at;
        times[1] = p->kill_at;
        times[2] = p->recheck_at;
        times[3] = p->expire_at;
        times[4] = p->over_at;
        for (int i = 0; i < 5; i++)
            if (times[i] != 0 && (next == 0 || times[i] < next))
                next = times[i];
    }
    if (procs == NULL)
        pipes_drop(); /* no command for a minute */
    if (guest.stop_kill_ms != 0 && guest.stop_kill_ms <= now) {
        guest.stop_kill_ms = 0;
        sys_kill(-1, SIGKILL);
    }
    if (guest.stop_kill_ms != 0 && (next == 0 || guest.stop_kill_ms < next))
        next = guest.stop_kill_ms;
    uint64_t life = control_life_tick();
    if (life != 0 && (next == 0 || now + life < next))
        next = now + life;
    loop_wake_at(next);
}

void proc_forget(struct conn *c)
{
    for (struct proc *p = procs; p != NULL; p = p->next) {
        struct waiter **at = &p->waiters;
        while (*at != NULL) {
            struct waiter *w = *at;
            if (w->conn == c) {
                *at = w->next;
                mem_free(w);
            } else {
                at = &w->next;
            }
        }
        if (p->owner == c) {
            started_drop(p);
            p->owner = NULL; /* it goes on: its output is drained, its exit status kept */
        }
        for (int i = 0; i < 2; i++)
            if (p->out[i].lease == c)
                stream_drain(&p->out[i]);
    }
}
