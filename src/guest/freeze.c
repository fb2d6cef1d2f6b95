/* A pause that keeps memory. From SB_G_FREEZE on nothing new is begun: what is accepted before a pause never runs
 * after it. What runs goes on until the supervisor freezes the sandbox's group, and us with it; where there is none
 * we stop everything else by signals and stay awake. A command's remaining time is what it was. */
#include "conn.h"
#include "proc.h"
#include "worker.h"

static void tell_all(uint16_t type)
{
    for (struct conn *c = guest.conns; c != NULL; c = c->next) {
        struct sb_packer p;
        answer_begin(&p, type, 0);
        if (type == SB_FROZEN)
            sb_pack_u64(&p, SB_F_COUNT, c->taken);
        sb_pack_u64(&p, SB_F_EPOCH, guest.epoch);
        conn_send(c, &p, NULL, 0);
    }
}

void freeze_begin(uint32_t req, uint32_t epoch, uint64_t grace_ms, int stops)
{
    uint64_t now = sys_now_ms();
    guest.freeze_req = req;
    if (guest.frozen == FREEZE_DONE)
        control_reply(req);
    if (guest.frozen != FREEZE_NOT)
        return;
    guest.epoch = epoch;
    guest.frozen = FREEZE_BEGUN;
    guest.frozen_at = now;
    guest.freeze_due = now + grace_ms;
    guest.freeze_stops = stops;
    for (struct proc *p = procs; p != NULL; p = p->next)
        if (p->held != 0)
            started_tell_held(p);
    if (worker_refuse_waiting() > 0)
        loop_wake_at(guest.freeze_due);
    freeze_check();
}

void freeze_check(void)
{
    if (guest.frozen != FREEZE_BEGUN)
        return;
    if (worker_running() > 0 && sys_now_ms() < guest.freeze_due)
        return;
    guest.frozen = FREEZE_DONE;
    if (guest.freeze_stops)
        tree_stop_all();
    tell_all(SB_FROZEN);
    control_reply(guest.freeze_req);
}

void freeze_end(uint32_t epoch)
{
    uint64_t now = sys_now_ms();
    int stopped = guest.frozen == FREEZE_DONE && guest.freeze_stops;
    guest.epoch = epoch;
    if (guest.frozen == FREEZE_NOT)
        return;
    proc_reap(); /* who is reported as stopped was stopped by us */
    guest.frozen = FREEZE_NOT;
    proc_delay(now - guest.frozen_at);
    if (stopped)
        tree_continue_all();
    tell_all(SB_THAWED);
    proc_tick(now);
}
