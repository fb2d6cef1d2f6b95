/* The answer to SB_C_EXEC. It tells that the command runs, and hands out its pipes.
 *
 * An asker who waits for the end anyway (`whole`) has no use for that: two messages, descriptors that
 * travel, and a wake-up for the end of each pipe, of a command that lives for a millisecond. So the
 * answer is held back until the command has ended, and then tells everything. It goes out before, as to
 * anybody else, when the pipes fill up, or when somebody asks for it or about the command. */
#include "proc.h"

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
        }
    answer_to(&a, p, req, streams);
    conn_send(p->owner, &a, fds, nfds);
}

void started_drop(struct proc *p)
{
    p->held = 0;
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
    if ((events & EPOLLIN) && stream_filled(s) > SB_WHOLE_BYTES)
        started_tell_held(s->held);
}

void started_hold(struct proc *p, uint32_t req)
{
    p->held = req;
    for (int i = 0; i < 2; i++) {
        struct stream *s = &p->out[i];
        if (s->watch.fd < 0)
            continue;
        if (loop_watch(&s->watch, s->watch.fd, EPOLLIN | EPOLLET, held_ready) != 0) {
            started_tell_held(p);
            return;
        }
        s->held = p;
    }
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
    started_drop(p);
    for (int i = 0; i < 2; i++)
        stream_close(&p->out[i]);
}
