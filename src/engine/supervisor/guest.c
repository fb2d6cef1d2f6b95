/* The control channel to a sandbox's pid 1. What comes from there is hostile: anything out of order
 * kills the sandbox, and nothing is ever waited for. */
#include "box.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <signal.h>
#include <unistd.h>

#include "freeze.h"
#include "metrics.h"
#include "reroot.h"
#include "slot.h"
#include "spare.h"
#include "wire.h"

enum { PER_TURN = 8, KILL_PATIENCE_MS = 10000 };

void sb_guest_kill(struct sb_box *b, const char *cause)
{
    if (cause != NULL && b->why.kind == NULL)
        sb_failed(&b->why, "NotRunning", 0, "pid 1", "%s", cause);
    if (b->proc.fd < 0)
        return;
    sb_box_stir(b);
    b->dying = true;
    b->step_due_ms = sb_real_ms() + KILL_PATIENCE_MS;
    if (b->sync == NULL) /* that would not be ended sooner */
        pidfd_send_signal(b->proc.fd, SIGKILL, NULL, 0);
    sb_loop_drop(&b->guest); /* after: it would wake pid 1 for nothing */
}

static void pack_leaves(struct sb_packer *p, const struct sb_cgroup *g)
{
    sb_pack_u64(p, SB_F_LEAF_FDS, (uint64_t)g->each);
    for (int i = 0; i < g->nfds; i += g->each)
        sb_pack_u64(p, SB_F_LEAF, (uint64_t)g->number[i / g->each]);
}

static void pack_life(const struct sb_box *b, struct sb_packer *p, int64_t deadline_ms)
{
    sb_pack_u64(p, SB_F_ENDS_MS,
                deadline_ms == 0 ? 0 : (uint64_t)(deadline_ms - sup.clock_offset_ms));
    sb_pack_u64(p, SB_F_OWNED, b->rec.owned);
    sb_pack_u64(p, SB_F_GRACE_MS, (uint64_t)sup.grace_ms);
}

void sb_guest_tell_life(struct sb_box *b)
{
    unsigned char buf[96];
    struct sb_packer p;
    if (b->guest.fd < 0)
        return;
    sb_pack_begin(&p, buf, sizeof buf, SB_G_LIFE, 0, 0);
    pack_life(b, &p, b->rec.deadline_ms);
    sb_wire_send(b->guest.fd, &p, NULL, 0);
}

static int send_init(struct sb_box *b)
{
    struct sb_wire_big big;
    if (sb_wire_big_begin(&big, b->env.len * 9 + 16384, SB_G_INIT, SB_REQ_INIT) < 0)
        return -1;
    struct sb_packer *p = &big.p;
    sb_pack_u64(p, SB_F_VERSION, SB_PROTO_VERSION);
    sb_pack_str(p, SB_F_BOOT, b->rec.boot);
    if (b->rec.user != NULL)
        sb_pack_str(p, SB_F_USER, b->rec.user);
    if (b->rec.cwd != NULL)
        sb_pack_str(p, SB_F_CWD, b->rec.cwd);
    sb_pack_u64(p, SB_F_EPOCH, b->rec.epoch);
    if (b->rec.limit_commands != 0)
        sb_pack_u64(p, SB_F_LIMIT_COMMANDS, b->rec.limit_commands);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files); /* pid 1 has ours: its children cannot have more */
    sb_pack_u64(p, SB_F_LIMIT_FILES,
                b->rec.limit_files < files.rlim_max ? b->rec.limit_files : files.rlim_max);
    sb_pack_u64(p, SB_F_ALLOW_SETUID, b->rec.allow_setuid);
    const int64_t left = sb_life_wall_left(b), life = b->rec.lifetime_ms;
    pack_life(b, p,
              life > 0 || left != INT64_MAX ? sb_now_ms() + (life > 0 && life < left ? life : left)
                                            : 0);
    for (const char *e = NULL; (e = sb_list_next(&b->env, e)) != NULL;)
        sb_pack_str(p, SB_F_ENV, e);
    sb_pack_u64(p, SB_F_CLONE_AT, b->clone_at);
    b->clone_at = 0;
    int fd[SB_MSG_FDS], joins, oom, n = sb_limits_hand(&b->limits, fd, &joins, &oom), rc = -1;
    if (n > 0) {
        sb_pack_u64(p, SB_F_JOIN, (uint64_t)joins);
        sb_pack_u64(p, SB_F_OOM, (uint64_t)oom);
    }
    if (b->rec.limit_started != 0) {
        sb_pack_u64(p, SB_F_LIMIT_STARTED, b->rec.limit_started);
        sb_pack_u64(p, SB_F_STARTED, b->rec.started);
    }
    pack_leaves(p, &b->group);
    if (n >= 0) {
        memcpy(fd + n, b->group.fd, (size_t)b->group.nfds * sizeof *fd);
        rc = sb_wire_big_send(b->guest.fd, &big, fd, n + b->group.nfds);
    }
    sb_wire_big_free(&big);
    while (n > 0)
        close(fd[--n]);
    sb_cgroup_handed(&b->group);
    free(b->env.data);
    b->env = (struct sb_list){NULL, 0};
    return rc;
}

/* The record is written once INIT is on its way, before it is answered: a supervisor that dies here
 * leaves either nothing or a sandbox that its successor can use. */
void sb_guest_set_up(struct sb_box *b)
{
    sb_birth_give(b->birth);
    b->birth = NULL;
    sb_slot_booted(b->rec.boot);
    if ((b->unrooted && sb_reroot(b, &b->why) < 0) ||
        sb_limits_make(&b->limits, &b->rec, &b->group, &b->why) < 0 ||
        sb_network_start(b, &b->why) < 0) {
        sb_guest_kill(b, NULL);
        return;
    }
    b->unrooted = false;
    sb_close(&b->user);
    if (send_init(b) < 0) {
        sb_guest_kill(b, "it does not read its set-up");
        return;
    }
    b->rec.state = SB_BOX_RUNNING;
    b->rec.kept = SB_KEPT_NOTHING;
    b->rec.started_ms = sb_wall_ms();
    sb_record_cause(&b->rec, NULL, NULL);
    sb_life_begin(b);
    if ((b->fresh ? sb_box_save(b) : sb_box_save_quickly(b)) < 0) {
        sb_failed_errno(&b->why, "record", "cannot write the record");
        b->rec.state = SB_BOX_CREATING;
        sb_guest_kill(b, NULL);
    }
    sb_close(&b->record);
}

static void initialised(struct sb_box *b)
{
    struct sb_failure f;
    bool freeze = b->freeze_asked, stop = b->stop_asked;
    b->step_due_ms = 0;
    b->fresh = b->freeze_asked = b->stop_asked = false;
    if (!freeze && !stop) {
        sb_box_settle(b, NULL);
        return;
    }
    sb_box_settle_others(b, SB_S_PAUSE, NULL);
    if ((stop ? sb_life_pause(b, &f) : sb_freeze_begin(b, &f)) < 0)
        sb_life_not_paused(b, &f);
}

static void give_leaves(struct sb_box *b, const struct sb_wire_in *in)
{
    unsigned char buf[256];
    struct sb_packer p;
    struct sb_reader walk = in->fields;
    struct sb_field_view v;
    int back[SB_LEAVES_MORE], n = 0;
    while (sb_read_field(&walk, &v) == 1 && n < SB_LEAVES_MORE)
        if (v.tag == SB_F_LEAF && sb_field_u64(&v, SB_LEAVES_MAX) < SB_LEAVES_MAX)
            back[n++] = (int)sb_field_u64(&v, 0);
    int rc = sb_cgroup_more(&b->group, back, n);
    sb_pack_begin(&p, buf, sizeof buf, SB_G_LEAVES, 0, 0);
    pack_leaves(&p, &b->group);
    if (rc == 0)
        rc = sb_wire_send(b->guest.fd, &p, b->group.fd, b->group.nfds);
    sb_cgroup_handed(&b->group);
    if (rc < 0) { /* none: the command shares a group, and the next one asks again */
        sb_pack_begin(&p, buf, sizeof buf, SB_G_LEAVES, 0, 0);
        sb_wire_send(b->guest.fd, &p, NULL, 0);
    }
}

/* By one that an earlier supervisor started, which may have died while it froze it. */
static void greeted_again(struct sb_box *b, const struct sb_wire_in *in)
{
    b->step_due_ms = 0;
    b->rec.epoch = (uint32_t)sb_read_u64(&in->fields, SB_F_EPOCH, b->rec.epoch);
    b->rec.started = sb_read_u64(&in->fields, SB_F_STARTED, b->rec.started);
    if (sb_read_u64(&in->fields, SB_F_STOP, 0) != 0)
        sb_freeze_go_on(b);
    else
        sb_guest_tell_life(b);
    struct sb_failure f;
    bool asked = b->freeze_asked;
    b->freeze_asked = false;
    if (asked && sb_freeze_begin(b, &f) < 0)
        sb_life_not_paused(b, &f);
}

static void handle(struct sb_box *b, const struct sb_wire_in *in)
{
    switch (in->head.type) {
    case SB_G_HELLO:
        if (b->greeted) {
            sb_guest_kill(b, "it said hello twice");
            return;
        }
        if (sb_read_u64(&in->fields, SB_F_VERSION, 0) == 0) {
            sb_guest_kill(b, "its hello names no version");
            return;
        }
        b->greeted = true;
        if (b->spare)
            sb_spare_ready(b);
        else if (b->rec.state == SB_BOX_CREATING)
            sb_guest_set_up(b);
        else if (b->rec.state == SB_BOX_RUNNING)
            greeted_again(b, in);
        else
            b->step_due_ms = 0; /* paused, and awake */
        return;
    case SB_G_NEED_LEAVES:
        if (b->greeted)
            give_leaves(b, in);
        return;
    case SB_REPLY:
    case SB_ERROR:
        if (in->head.req == SB_REQ_INIT && b->rec.state == SB_BOX_RUNNING && b->greeted) {
            if (in->head.type == SB_ERROR)
                sb_guest_kill(b, "it refused its set-up");
            else
                initialised(b);
        } else if (in->head.req == SB_REQ_STOP && b->rec.state == SB_BOX_STOPPING) {
            b->rec.started = sb_read_u64(&in->fields, SB_F_STARTED, b->rec.started);
            sb_guest_kill(b, NULL);
        } else if (in->head.req == SB_REQ_USAGE) {
            sb_metrics_answered(b, in);
        } else if (in->head.req == SB_REQ_FREEZE && b->rec.state == SB_BOX_FREEZING &&
                   b->freezing.fd < 0) {
            sb_freeze_answered(b);
        }
        return;
    default:
        sb_guest_kill(b, "it sent a message of an unknown type");
    }
}

static void guest_ready(struct sb_source *src, uint32_t events)
{
    struct sb_box *b = SB_OWNER(src, struct sb_box, guest);
    struct sb_wire_in in;
    (void)events;
    sb_box_stir(b);
    for (int i = 0; i < PER_TURN && b->guest.fd >= 0; i++) {
        int rc = sb_wire_receive(b->guest.fd, &in, 0);
        if (rc == 0)
            return;
        if (rc == -2) {
            sb_guest_kill(b, "it sent something that is no message");
            return;
        }
        if (rc < 0) {
            /* It closed its end, or it ended: the pidfd tells, or the kill makes it tell. */
            b->hung_up = !b->dying;
            sb_guest_kill(b, b->birth != NULL ? NULL : "it closed its control channel");
            return;
        }
        handle(b, &in);
        sb_wire_done(&in);
    }
}

int sb_guest_attach(struct sb_box *b, int fd)
{
    b->greeted = false;
    return sb_loop_add(&b->guest, fd, EPOLLIN, guest_ready);
}

int sb_guest_connect(struct sb_box *b, struct sb_failure *f)
{
    unsigned char buf[64];
    struct sb_packer p;
    int pair[2];
    if (b->guest.fd < 0)
        return sb_failed(f, "NotRunning", 0, "connect", "sandbox %s is ending", b->rec.id);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return sb_failed_errno(f, "connect", "socketpair");
    sb_pack_begin(&p, buf, sizeof buf, SB_G_CONN, 0, 0);
    sb_pack_u64(&p, SB_F_EPOCH, b->rec.epoch);
    int rc = sb_wire_send(b->guest.fd, &p, &pair[1], 1);
    int err = errno;
    close(pair[1]);
    if (rc == 0)
        return pair[0];
    close(pair[0]);
    const char *kind = err == EAGAIN                       ? "Busy"
                       : err == EPIPE || err == ECONNRESET ? "NotRunning"
                                                           : NULL;
    return sb_failed(f, kind, err, "connect", "pid 1 of sandbox %s takes no connections",
                     b->rec.id);
}

int sb_guest_stop(struct sb_box *b, uint32_t grace_ms)
{
    unsigned char buf[64];
    struct sb_packer p;
    if (b->guest.fd < 0)
        return -1;
    sb_pack_begin(&p, buf, sizeof buf, SB_G_STOP, SB_REQ_STOP, 0);
    sb_pack_u64(&p, SB_F_GRACE_MS, grace_ms);
    return sb_wire_send(b->guest.fd, &p, NULL, 0);
}
