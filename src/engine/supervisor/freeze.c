/* First pid 1 is told, so that it begins nothing any more: what was sent before a pause never runs after it. Then the
 * group is frozen as a whole (without groups pid 1 has stopped everything by signals). The record says "paused" when
 * all stands, and "running" before anything moves again: a successor finds one or the other, and puts the processes
 * where the record says they are. */
#include "freeze.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "adopt.h"
#include "life.h"
#include "metrics.h"
#include "snaptake.h"
#include "wire.h"

enum { GRACE_MS = 500, PATIENCE_MS = 3000, HELLO_MS = 5000 };

static int send_epoch(struct sb_box *b, uint16_t type, uint32_t req)
{
    unsigned char buf[96];
    struct sb_packer p;
    sb_pack_begin(&p, buf, sizeof buf, type, req, 0);
    sb_pack_u64(&p, SB_F_EPOCH, b->rec.epoch);
    if (type == SB_G_FREEZE) {
        sb_pack_u64(&p, SB_F_GRACE_MS, GRACE_MS);
        sb_pack_u64(&p, SB_F_STOP, b->group.dir < 0);
    }
    return sb_wire_send(b->guest.fd, &p, NULL, 0);
}

int sb_freeze_begin(struct sb_box *b, struct sb_failure *f)
{
    if (b->rec.state != SB_BOX_RUNNING || b->dying)
        return sb_failed(f, "NotRunning", 0, "pause", "sandbox %s is ending", b->rec.id);
    if (b->guest.fd < 0)
        return sb_failed(f, "Busy", 0, "pause", "sandbox %s is starting", b->rec.id);
    /* Its hello or the answer to its set-up is to come within seconds, else it is killed. */
    if (!b->greeted || b->step_due_ms != 0) {
        b->freeze_asked = true;
        return 0;
    }
    b->rec.epoch++;
    if (send_epoch(b, SB_G_FREEZE, SB_REQ_FREEZE) < 0) {
        b->rec.epoch--;
        return sb_failed(f, "Busy", errno, "pause", "pid 1 of sandbox %s takes no messages",
                         b->rec.id);
    }
    sb_box_stir(b);
    b->rec.state = SB_BOX_FREEZING;
    b->step_due_ms = sb_real_ms() + PATIENCE_MS;
    return 0;
}

static void frozen(struct sb_box *b)
{
    struct sb_failure f;
    sb_loop_drop(&b->freezing);
    b->step_due_ms = 0;
    if (b->copied) {
        sb_snapshot_frozen(b);
        return;
    }
    b->rec.state = SB_BOX_PAUSED;
    b->rec.kept = SB_KEPT_MEMORY;
    const struct sb_record before = b->rec;
    sb_metrics_stop(b);
    sb_life_stands(b);
    b->rec.deadline_ms = b->rec.ends_ms = 0;
    if (!b->expired)
        sb_record_cause(&b->rec, NULL, NULL);
    if (sb_box_save_quickly(b) == 0) {
        b->expired = false;
        sb_life_paused(b);
        return;
    }
    sb_failed_errno(&f, "record", "cannot write the record");
    b->rec.kept = SB_KEPT_NOTHING;
    b->rec.deadline_ms = before.deadline_ms;
    b->rec.ends_ms = before.ends_ms;
    b->rec.run_at_ms = before.run_at_ms;
    b->rec.ran_ms = before.ran_ms;
    sb_freeze_undo(b, &f);
}

static void freezing_ready(struct sb_source *src, uint32_t events)
{
    struct sb_box *b = SB_OWNER(src, struct sb_box, freezing);
    (void)events;
    sb_box_stir(b);
    if (sb_cgroup_stands(src->fd) &&
        !b->dying) /* read in any case: else it would report again at once */
        frozen(b);
}

void sb_freeze_answered(struct sb_box *b)
{
    struct sb_failure f;
    if (b->group.dir < 0) {
        frozen(b);
        return;
    }
    int events = sb_cgroup_freeze(&b->group, true) < 0 ? -1 : sb_cgroup_events(&b->group);
    if (events < 0 || sb_loop_add(&b->freezing, events, EPOLLPRI, freezing_ready) < 0) {
        sb_failed_errno(&f, "freeze", "cannot freeze the sandbox's group");
        sb_freeze_undo(b, &f);
    } else if (sb_cgroup_stands(b->freezing.fd)) {
        frozen(b);
    }
}

void sb_freeze_loosen(struct sb_box *b)
{
    if (b->group.dir >= 0)
        sb_cgroup_freeze(&b->group, false);
}

void sb_freeze_go_on(struct sb_box *b)
{
    sb_loop_drop(&b->freezing);
    sb_box_stir(b);
    sb_freeze_loosen(b);
    if (b->guest.fd < 0)
        sb_adopt_reach(b);
    b->step_due_ms = b->greeted ? 0 : sb_real_ms() + HELLO_MS;
    if (b->guest.fd < 0 || send_epoch(b, SB_G_THAW, 0) < 0)
        sb_guest_kill(b, "it takes no messages");
    else
        sb_guest_tell_life(b);
}

void sb_freeze_undo(struct sb_box *b, const struct sb_failure *f)
{
    if (b->copied) {
        sb_snapshot_not_frozen(b, f);
        sb_freeze_copied(b);
        return;
    }
    b->rec.state = SB_BOX_RUNNING;
    sb_freeze_go_on(b);
    sb_life_not_paused(b, f);
}

void sb_freeze_copied(struct sb_box *b)
{
    struct sb_failure f;
    const enum sb_kept keep = b->pause_next;
    const bool ran = b->rec.state == SB_BOX_FREEZING;
    b->copied = false;
    b->pause_next = SB_KEPT_NOTHING;
    if (b->dying || b->goal == SB_GOAL_DESTROY)
        return;
    if (ran) {
        b->rec.state = SB_BOX_RUNNING;
        sb_freeze_go_on(b);
    }
    if (keep != SB_KEPT_NOTHING) {
        if ((keep == SB_KEPT_DISK ? sb_life_pause(b, &f) : sb_freeze_begin(b, &f)) == 0)
            return;
        sb_box_settle_type(b, SB_S_PAUSE, &f);
    }
    if (ran)
        sb_life_went_on(b);
    else
        sb_life_paused(b);
}

void sb_freeze_late(struct sb_box *b)
{
    struct sb_failure f;
    sb_failed(&f, "Busy", 0, "pause",
              "the processes of sandbox %s did not come to a stand in %d ms", b->rec.id,
              PATIENCE_MS);
    sb_freeze_undo(b, &f);
}

int sb_freeze_thaw(struct sb_box *b, struct sb_failure *f)
{
    b->rec.state = SB_BOX_RUNNING;
    b->rec.kept = SB_KEPT_NOTHING;
    sb_life_begin(b);
    sb_record_cause(&b->rec, NULL, NULL);
    if (sb_box_save_quickly(b) < 0) {
        sb_failed_errno(f, "record", "cannot write the record");
        b->rec.state = SB_BOX_PAUSED;
        b->rec.kept = SB_KEPT_MEMORY;
        sb_life_stands(b);
        b->rec.deadline_ms = b->rec.ends_ms = 0;
        return -1;
    }
    sb_freeze_go_on(b);
    sb_box_settle(b, NULL);
    return 0;
}
