/* How sandboxes end: destruction, pause, expiry, owner's death, failure; and when the supervisor
 * itself has nothing left to do. */
#include "life.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <unistd.h>

#include "box.h"
#include "conn.h"
#include "disk.h"
#include "dissolve.h"
#include "freeze.h"
#include "handover.h"
#include "metrics.h"
#include "slot.h"
#include "snapshot.h"
#include "snaptake.h"
#include "spare.h"
#include "sync.h"
#include "trash.h"

enum { STOP_GRACE_MS = 1000, STOP_PATIENCE_MS = 10000, SWEEP_MS = 500 };

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

void sb_life_begin(struct sb_box *b)
{
    struct sb_record *r = &b->rec;
    int64_t life = r->lifetime_ms > 0 ? r->lifetime_ms : INT64_MAX;
    b->renewed = false;
    sb_box_stir(b);
    if (r->limit_wall_ms != 0 && r->run_at_ms == 0)
        r->run_at_ms = sb_now_ms();
    life = earlier(life, sb_life_wall_left(b));
    r->deadline_ms = life != INT64_MAX ? sb_now_ms() + life : 0;
    r->ends_ms = life != INT64_MAX ? sb_wall_ms() + life : 0;
}

static int64_t ran(const struct sb_record *r)
{
    return r->ran_ms + (r->run_at_ms != 0 ? sb_now_ms() - r->run_at_ms : 0);
}

int64_t sb_life_wall_left(const struct sb_box *b)
{
    if (b->rec.limit_wall_ms == 0)
        return INT64_MAX;
    int64_t left = b->rec.limit_wall_ms - ran(&b->rec);
    return left > 0 ? left : 0;
}

bool sb_life_over(const struct sb_box *b, struct sb_failure *f)
{
    if (sb_life_wall_left(b) > 0)
        return false;
    sb_failed(f, "LimitExceeded", 0, "wall_time",
              "sandbox %s has run for all of its limits.wall_time = %g s", b->rec.id,
              (double)b->rec.limit_wall_ms / 1000);
    return true;
}

void sb_life_stands(struct sb_box *b)
{
    b->rec.ran_ms = ran(&b->rec);
    b->rec.run_at_ms = 0;
}

int sb_life_set(struct sb_box *b, int64_t lifetime_ms, struct sb_failure *f)
{
    const int64_t before[3] = {b->rec.lifetime_ms, b->rec.deadline_ms, b->rec.ends_ms};
    b->rec.lifetime_ms = lifetime_ms;
    sb_life_begin(b);
    if (sb_box_save(b) == 0) {
        sb_guest_tell_life(b);
        return 0;
    }
    sb_failed_errno(f, "record", "cannot write the record");
    b->rec.lifetime_ms = before[0];
    b->rec.deadline_ms = before[1];
    b->rec.ends_ms = before[2];
    return -1;
}

/* The directory goes to the trash: from here on the id is free. */
void sb_life_remove(struct sb_box *b)
{
    if (sb_trash_put(sup.boxes, b->rec.id) < 0 && errno != ENOENT) {
        struct sb_failure f;
        sb_failed_errno(&f, "trash", "cannot remove the sandbox's directory");
        b->rec.state = SB_BOX_FAILED;
        sb_record_cause(&b->rec, "remove", f.message);
        sb_box_settle(b, &f);
    }
}

static void remove_and_forget(struct sb_box *b)
{
    sb_life_remove(b);
    if (b->rec.state == SB_BOX_FAILED && sb_box_dir_exists(b))
        return;
    /* Who waited for something else than its end learns that there is no such sandbox. */
    sb_box_settle_type(b, SB_S_DESTROY, NULL);
    struct sb_failure f;
    sb_failed(&f, "NotFound", 0, "destroyed", "sandbox %s was destroyed", b->rec.id);
    sb_box_settle(b, &f);
    bool layered = b->rec.layers.len != 0;
    sb_box_forget(b);
    if (layered)
        sb_snapshot_prune();
}

/* Not with layers of the user's: whoever is told that it is gone may take them away. */
static void hold_mounts(struct sb_box *b)
{
    if (b->mounts < 0 && b->rec.rootfs == NULL && b->rec.pid1.pid != 0)
        b->mounts = sb_dissolve_hold(b->proc.fd);
}

void sb_life_destroy(struct sb_box *b)
{
    bool again = b->goal == SB_GOAL_DESTROY;
    b->goal = SB_GOAL_DESTROY;
    if (b->proc.fd < 0) {
        remove_and_forget(b);
        return;
    }
    /* Without a record it is a leftover for a successor, should this supervisor end now. */
    char path[SB_ID_MAX + 16];
    snprintf(path, sizeof path, "%s/record", b->rec.id);
    if (!again)
        unlinkat(sup.boxes, path, 0);
    hold_mounts(b);
    sb_guest_kill(b, NULL);
}

static void stop(struct sb_box *b)
{
    b->goal = SB_GOAL_PAUSE;
    b->rec.state = SB_BOX_STOPPING;
    b->step_due_ms = sb_real_ms() + STOP_PATIENCE_MS;
    if (b->rec.limit_disk == 0) /* that has to be dissolved before it can be synced */
        hold_mounts(b);
    if (sb_guest_stop(b, STOP_GRACE_MS) < 0)
        sb_guest_kill(b, NULL);
}

int sb_life_pause(struct sb_box *b, struct sb_failure *f)
{
    if (b->rec.state != SB_BOX_RUNNING || b->dying)
        return sb_failed(f, "NotRunning", 0, "pause", "sandbox %s is ending", b->rec.id);
    /* The disk says paused before anything ends: what cannot be noted is not begun. */
    b->rec.state = SB_BOX_STOPPING;
    if (sb_box_save_quickly(b) < 0) {
        b->rec.state = SB_BOX_RUNNING;
        return sb_failed_errno(f, "record", "cannot write the record");
    }
    stop(b);
    return 0;
}

int sb_life_resume(struct sb_box *b, struct sb_failure *f)
{
    if (sb_life_over(b, f))
        return -1;
    return b->rec.kept == SB_KEPT_MEMORY ? sb_freeze_thaw(b, f) : sb_boot_resume(b, f);
}

void sb_life_paused(struct sb_box *b)
{
    struct sb_failure f;
    sb_box_settle_others(b, SB_S_RESUME, NULL);
    if (b->waiters != NULL && sb_life_resume(b, &f) < 0)
        sb_box_settle(b, &f);
}

void sb_life_not_paused(struct sb_box *b, const struct sb_failure *f)
{
    sb_box_settle_type(b, SB_S_PAUSE, f);
    if (b->expired) {
        b->expired = false;
        stop(b);
        sb_box_save(b);
    } else {
        sb_life_went_on(b);
    }
}

void sb_life_went_on(struct sb_box *b)
{
    struct sb_failure f;
    if (b->renewed && sb_life_set(b, b->rec.lifetime_ms, &f) < 0)
        sb_box_settle_type(b, SB_S_RESUME, &f);
    sb_box_settle_others(b, SB_S_NETWORK, NULL); /* that is for its relay to say */
}

static void paused(struct sb_box *b)
{
    b->goal = SB_GOAL_NONE;
    b->step_due_ms = 0;
    b->rec.state = SB_BOX_PAUSED;
    b->rec.kept = SB_KEPT_DISK;
    b->rec.settled = false;
    sb_box_save_quickly(b);
    sb_life_paused(b);
}

/* The syncing process takes pid 1's place as what the sandbox waits for. */
static void synced(struct sb_source *src, uint32_t events)
{
    struct sb_box *b = SB_OWNER(src, struct sb_box, proc);
    (void)events;
    sb_box_stir(b);
    b->on_disk = sb_sync_end(&b->sync, src) == 0;
    b->dying = false;
    if (b->goal == SB_GOAL_DESTROY)
        remove_and_forget(b);
    else
        paused(b);
}

/* Takes `mounts`. Once it is answered its files may be mounted again. */
static void sync_and_pause(struct sb_box *b, int mounts)
{
    sb_autofd int dir = sb_box_dir(b);
    bool begun;
    if (b->rec.limit_disk != 0) {
        sb_dissolve(mounts, true);
        begun = sb_disk_sync(dir, &b->proc, synced) == 0;
    } else {
        sb_dissolve_gave(mounts);
        b->sync = sb_sync_start(dir, true, mounts, &b->proc, synced);
        begun = b->sync != NULL;
    }
    if (!begun) {
        paused(b);
        return;
    }
    b->goal = SB_GOAL_PAUSE;
    b->rec.state = SB_BOX_STOPPING;
}

void sb_life_sync(struct sb_box *b)
{
    memset(&b->rec.pid1, 0, sizeof b->rec.pid1);
    sb_life_stands(b);
    b->rec.deadline_ms = b->rec.ends_ms = 0;
    b->rec.settled = true;
    sync_and_pause(b, -1);
}

/* A create or resume that did not come to be. */
static void settle_failed_start(struct sb_box *b, const struct sb_failure *why, bool resumed)
{
    struct sb_failure f = *why;
    if (f.kind == NULL || strcmp(f.kind, "NotRunning") == 0)
        f.kind = "Platform";
    if (!resumed) {
        sb_life_remove(b);
        sb_box_settle(b, &f);
        sb_box_forget(b);
        return;
    }
    b->rec.state = SB_BOX_PAUSED;
    b->rec.kept = SB_KEPT_DISK;
    sb_record_cause(&b->rec, "start", f.message);
    sb_box_save(b);
    sb_box_settle(b, &f);
}

void sb_life_ended(struct sb_box *b)
{
    struct sb_failure why = b->why;
    enum sb_state was = b->rec.state;
    bool booting = was == SB_BOX_CREATING, fresh = b->fresh;
    enum sb_goal goal = b->goal;

    sb_box_stir(b);
    sb_loop_drop(&b->proc);
    sb_loop_drop(&b->guest);
    sb_loop_drop(&b->freezing);
    sb_metrics_stop(b);
    sb_network_end(b);
    /* Everything in it has ended with pid 1. Removed last: its lock may be held for long by others. */
    bool oom = was == SB_BOX_RUNNING && goal == SB_GOAL_NONE && (!b->dying || b->hung_up) &&
               sb_limits_killed(&b->limits) > 0;
    struct sb_cgroup group = b->group;
    struct sb_limits limits = b->limits;
    int mounts = b->mounts;
    const bool slow = b->rec.limit_disk != 0;
    b->group = (struct sb_cgroup){.dir = -1};
    b->limits = (struct sb_limits){.dir = {-1, -1}};
    b->mounts = -1;
    sb_slot_reserve(b->rec.range, false);
    if (b->birth != NULL)
        sb_slot_booted(b->rec.boot);
    sb_birth_give(b->birth);
    b->birth = NULL;
    sb_close(&b->record);
    sb_close(&b->user);
    sb_close(&b->disk);
    b->unrooted = false;
    b->rec.range = -1;
    b->rec.group[0] = '\0';
    memset(&b->rec.pid1, 0, sizeof b->rec.pid1);
    memset(&b->why, 0, sizeof b->why);
    b->goal = SB_GOAL_NONE;
    b->step_due_ms = 0;
    b->dying = b->fresh = b->expired = b->freeze_asked = b->stop_asked = false;
    b->hung_up = false;
    b->pause_next = SB_KEPT_NOTHING;
    sb_life_stands(b);
    b->rec.deadline_ms = b->rec.ends_ms = 0;
    if (why.kind == NULL)
        sb_failed(&why, "NotRunning", 0, "pid 1", "pid 1 ended");

    if (b->copied)
        sb_snapshot_not_frozen(b, &why);
    if (b->spare) {
        sb_spare_ended(b);
    } else if (goal == SB_GOAL_DESTROY) {
        remove_and_forget(b);
    } else if (goal == SB_GOAL_PAUSE &&
               !booting) { /* also one that was paused before it said that it is set up */
        sync_and_pause(b, mounts);
        mounts = -1;
    } else if (fresh || booting) {
        settle_failed_start(b, &why, !fresh);
    } else {
        /* What a pause kept of its memory is lost then, but it is paused as before. */
        b->rec.state = was == SB_BOX_PAUSED ? SB_BOX_PAUSED : SB_BOX_FAILED;
        b->rec.kept = SB_KEPT_DISK;
        sb_record_cause(&b->rec, oom ? "memory" : "pid1",
                        oom ? "it ran out of its limits.memory, and pid 1 was killed"
                            : why.message);
        sb_box_save(b);
        sb_box_settle(b, &why);
    }
    sb_cgroup_remove(&group);
    sb_limits_drop(&limits);
    sb_dissolve(mounts, slow);
}

static void owner_ready(struct sb_source *src, uint32_t events)
{
    (void)events;
    struct sb_box *b = SB_OWNER(src, struct sb_box, owner);
    sb_box_stir(b);
    sb_loop_drop(src);
    sb_life_destroy(b);
}

void sb_life_watch_owner(struct sb_box *b, int pidfd)
{
    /* One that cannot be watched counts as gone: what it owns must not outlive it. */
    if (pidfd < 0 || sb_loop_add(&b->owner, pidfd, EPOLLIN, owner_ready) < 0)
        sb_life_destroy(b);
}

struct tick {
    int64_t now, due; /* real time */
    bool needed, answering;
};

/* No deadline of a box at rest is before it. */
static int64_t rest_due_ms = INT64_MAX;

static void expire(struct sb_box *b)
{
    bool wall = sb_life_wall_left(b) == 0;
    sb_record_cause(&b->rec, wall ? "wall_time" : "lifetime",
                    wall ? "it has run for all of its limits.wall_time" : "its lifetime ended");
    struct sb_failure f;
    if (b->rec.on_expiry == SB_EXPIRY_DESTROY) {
        sb_life_destroy(b);
    } else if (b->rec.on_expiry == SB_EXPIRY_PAUSE && sb_freeze_begin(b, &f) == 0) {
        b->expired = true;
    } else {
        stop(b);
        sb_box_save(b); /* on a full disk the next supervisor finds it ended all the same */
    }
}

static void patience_ended(struct sb_box *b)
{
    b->step_due_ms = 0;
    if (b->rec.state == SB_BOX_FREEZING && !b->dying) {
        sb_freeze_late(b);
        return;
    }
    if (!b->dying) {
        sb_guest_kill(b, b->goal == SB_GOAL_NONE ? "it did not start in time" : NULL);
        return;
    }
    /* SIGKILL does not reach it: it hangs in the kernel. The id stays taken until it ends. */
    struct sb_failure f;
    sb_failed(&f, "Busy", 0, "kill", "sandbox %s is stuck in the kernel", b->rec.id);
    sb_box_settle(b, &f);
}

/* By its deadline. One that is to be frozen then waits until it can be: if it stands for a snapshot first, it goes on
 * after that, and ends then. */
static bool ends(const struct sb_box *b)
{
    const bool later =
        b->rec.on_expiry == SB_EXPIRY_PAUSE && b->guest.fd >= 0 && b->step_due_ms != 0;
    return b->proc.fd >= 0 && b->rec.state == SB_BOX_RUNNING && b->rec.deadline_ms != 0 &&
           !b->dying && !later;
}

static void tick_box(struct sb_box *b, void *arg)
{
    struct tick *t = arg;
    bool live = b->proc.fd >= 0;
    if (live && b->step_due_ms != 0 && b->step_due_ms <= t->now)
        patience_ended(b);
    int64_t end = ends(b) ? b->rec.deadline_ms - sup.clock_offset_ms : INT64_MAX;
    t->answering = t->answering || (live && b->fresh && b->rec.state == SB_BOX_RUNNING);
    if (end <= t->now) {
        expire(b);
        t->needed = true;
        t->due = t->now; /* the box may be gone: look again at once */
        return;
    }
    if (live && b->net.retry_ms != 0) {
        if (b->net.retry_ms <= t->now)
            sb_network_again(b);
        if (b->net.retry_ms != 0)
            t->due = earlier(t->due, b->net.retry_ms);
    }
    bool keeps_us = b->owner.fd >= 0 ||
                    (live && !b->spare && b->rec.state != SB_BOX_PAUSED &&
                     (b->rec.state != SB_BOX_RUNNING || b->rec.deadline_ms != 0 || b->dying));
    if (!live || (b->step_due_ms == 0 && !b->fresh && !b->dying && b->net.retry_ms == 0)) {
        rest_due_ms = earlier(rest_due_ms, end);
        sb_box_rest(b, keeps_us);
        return;
    }
    t->due = earlier(t->due, end);
    if (b->step_due_ms != 0)
        t->due = earlier(t->due, b->step_due_ms);
    t->needed = t->needed || keeps_us;
}

static void stir(struct sb_box *b, void *arg)
{
    (void)arg;
    sb_box_stir(b);
}

void sb_life_clock_moved(void)
{
    rest_due_ms = 0;
}

/* Without a linger we would be gone before the caller that started us has connected. */
#define FIRST_CALLER_MS 5000

static bool answering;

bool sb_life_answering(void)
{
    return answering;
}

int64_t sb_life_tick(void)
{
    static int64_t idle_since = -1, swept;
    static bool served; /* whoever started us has come */
    struct tick t = {sb_real_ms(), INT64_MAX, false, false};
    if (rest_due_ms <= t.now) {
        rest_due_ms = INT64_MAX;
        sb_box_each(stir, NULL);
    }
    sb_box_each_stirred(tick_box, &t);
    answering = t.answering;
    t.due = earlier(t.due, rest_due_ms);
    t.needed = t.needed || sb_box_keeping() > 0;
    bool unswept = sb_cgroup_unswept() || sb_limits_unswept();
    if (unswept && t.now - swept >= SWEEP_MS) {
        if (sb_cgroup_unswept())
            sb_cgroup_sweep(NULL);
        sb_limits_sweep();
        swept = t.now;
        unswept = sb_cgroup_unswept() || sb_limits_unswept();
    }
    if (unswept)
        t.due = earlier(t.due, swept + SWEEP_MS);
    t.due = earlier(t.due, earlier(sb_trash_due_ms(), sb_slot_due_ms()));
    t.due = earlier(t.due, earlier(sb_spare_due_ms(), sb_metrics_tick(t.now)));
    t.due = earlier(t.due, earlier(sb_handover_due_ms(), sb_conn_tick(t.now)));
    sup.leaving = sup.leaving || sb_handover_due_ms() <= t.now;

    int64_t now = sb_now_ms();
    if (t.needed || sb_conn_count() > 0 || sb_trash_busy() || unswept) {
        idle_since = -1;
        served |= sb_conn_count() > 0;
    } else {
        int64_t linger = (int64_t)sup.linger_ms;
        if (!served && linger < FIRST_CALLER_MS)
            linger = FIRST_CALLER_MS;
        if (idle_since < 0)
            idle_since = now;
        if (now - idle_since >= linger)
            sup.leaving = true;
        t.due = earlier(t.due, idle_since + linger - sup.clock_offset_ms);
    }
    return t.due;
}
