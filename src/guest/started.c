/* The answer to SB_C_EXEC. It tells that the command runs, and hands out its pipes.
 *
 * An asker who waits for the end anyway (`whole`) has no use for that: two messages, descriptors that
 * travel, and a wake-up for the end of each pipe, of a command that lives for a millisecond. So the
 * answer is held back until the command has ended, and then tells everything. It goes out before, as to
 * anybody else, when much lies in a pipe, when somebody asks for it or about the command, and when a
 * command that has written something has run for a while: how full a pipe is cannot be seen (one byte
 * that was spliced takes the place of a page), so its writer may be waiting for a reader.
 * At first nobody watches the pipes: their end, which mostly comes first, would wake us up for nothing. */
#include "pipes.h"
#include "proc.h"

enum {
    WATCH_MS = 2,      /* then the pipes are watched */
    HAND_OUT_MS = 100, /* then whatever was written goes out, and what will be */
    ROUNDS = 8,        /* a loop that never comes to rest looks all the same */
};

static unsigned fresh, kept; /* commands with a held answer: not watched yet; not handed out yet */
static int flood; /* the last one wrote more than fits: the next is watched from its start */

static const unsigned bit_of[2] = {SB_STREAM_STDOUT, SB_STREAM_STDERR};

static void answer_to(struct sb_packer *a, const struct proc *p, uint32_t req, unsigned streams)
{
    answer_begin(a, SB_REPLY, req);
    sb_pack_u64(a, SB_F_SERIAL, p->serial);
    sb_pack_u64(a, SB_F_PID, (uint64_t)p->pid);
    sb_pack_u64(a, SB_F_START_NS, p->start_ns);
    sb_pack_u64(a, SB_F_STREAMS, streams);
}

void started_tell(struct proc *p, uint32_t req, int in)
{
    struct sb_packer a;
    unsigned nfds = 0, streams = 0;
    int fds[3];
    if (in >= 0) {
        streams |= SB_STREAM_STDIN;
        fds[nfds++] = in;
    }
    for (int i = 0; i < 2; i++)
        if (p->out[i].lease != NULL) {
            streams |= bit_of[i];
            fds[nfds++] = p->out[i].watch.fd;
            pipe_enlarge(p->out[i].watch.fd);
        }
    answer_to(&a, p, req, streams);
    if (conn_send(p->owner, &a, fds, nfds) == 0)
        return;
    conn_no_room(p->owner, req); /* and what it would have written nobody would have read */
    tree_signal(p, SIGKILL);
}

static void set_stage(struct proc *p, enum held_stage stage)
{
    fresh += (stage == HELD_FRESH) - (p->stage == HELD_FRESH);
    kept += (stage == HELD_KEPT) - (p->stage == HELD_KEPT);
    p->stage = stage;
}

void started_drop(struct proc *p)
{
    p->held = 0;
    set_stage(p, HELD_NOT);
    for (int i = 0; i < 2; i++) {
        struct stream *s = &p->out[i];
        if (s->held != NULL)
            loop_unwatch(&s->watch);
        s->held = NULL;
    }
}

void started_tell_held(struct proc *p)
{
    uint32_t req = p->held;
    started_drop(p);
    started_tell(p, req, -1);
}

/* Once for each time that something is written. */
static void held_ready(struct watch *w, uint32_t events)
{
    struct stream *s = (struct stream *)w;
    int much = (events & EPOLLIN) && stream_filled(s) > SB_WHOLE_BYTES;
    flood |= much;
    if (much || ((events & EPOLLIN) && s->held->stage == HELD_NOT))
        started_tell_held(s->held);
}

/* Where that cannot be the answer goes out. */
static void held_watch(struct proc *p)
{
    for (int i = 0; i < 2; i++) {
        struct stream *s = &p->out[i];
        if (s->watch.fd < 0 || s->held != NULL)
            continue;
        if (loop_watch(&s->watch, s->watch.fd, EPOLLIN | EPOLLET, held_ready) != 0) {
            started_tell_held(p);
            return;
        }
        s->held = p;
    }
}

void started_hold(struct proc *p, uint32_t req)
{
    p->held = req;
    set_stage(p, HELD_FRESH);
    if (flood)
        held_watch(p);
}

static void held_look(struct proc *p, uint64_t now)
{
    if (p->stage == HELD_FRESH) {
        set_stage(p, HELD_KEPT);
        held_watch(p);
    } else if (p->stage == HELD_KEPT && now - p->start_ns >= HAND_OUT_MS * UINT64_C(1000000)) {
        set_stage(p, HELD_NOT);
        for (int i = 0; i < 2; i++)
            if (p->held != 0 && p->out[i].watch.fd >= 0 && stream_filled(&p->out[i]) > 0)
                started_tell_held(p);
    }
}

int started_idle(void)
{
    return fresh + kept == 0 && !flood;
}

int started_patience(void)
{
    return fresh > 0 || exec_starting() ? WATCH_MS : kept > 0 ? HAND_OUT_MS : -1;
}

void started_look(int rested)
{
    static unsigned rounds;
    uint64_t now;
    if (fresh + kept > 0 && !rested && ++rounds < ROUNDS)
        return;
    rounds = 0;
    if (fresh + kept == 0)
        return;
    now = sys_clock_ns(CLOCK_BOOTTIME);
    for (struct proc *p = procs; p != NULL; p = p->next)
        held_look(p, now);
}

static void pack_output(struct sb_packer *a, uint16_t tag, struct stream *s, size_t len)
{
    long n = len > 0 ? sys_read(s->watch.fd, guest.in, len) : 0;
    if (s->watch.fd >= 0)
        sb_pack_bytes(a, tag, guest.in, n > 0 ? (size_t)n : 0);
}

/* What others still write to, or what is too long, is given to the asker as a pipe after all. */
void started_tell_end(struct proc *p)
{
    struct sb_packer a;
    size_t len[2];
    for (int i = 0; i < 2; i++)
        if (!stream_no_writer(&p->out[i], &len[i]) || len[i] > SB_WHOLE_BYTES) {
            started_tell_held(p);
            proc_send_exited(p->owner, 0, p);
            return;
        }
    answer_to(&a, p, p->held, 0);
    proc_pack_end(&a, p);
    pack_output(&a, SB_F_DATA, &p->out[0], len[0]);
    pack_output(&a, SB_F_DATA_ERR, &p->out[1], len[1]);
    conn_send(p->owner, &a, NULL, 0);
    flood = 0;
    started_drop(p);
    for (int i = 0; i < 2; i++)
        stream_close(&p->out[i]);
    pipes_prepare();
}
