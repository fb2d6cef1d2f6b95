/* The event loop. One event per wait: handlers may close and free what they like, there is no batch of
 * stale events behind them. Level-triggered events rotate in the kernel's list, so this is fair. */
#include "conn.h"
#include "proc.h"
#include "sys.h"

static uint64_t wake_at; /* what the timer is armed for; 0 = not armed */

static void timer_ready(struct watch *w, uint32_t events)
{
    uint64_t ticks;
    (void)events;
    sys_read(w->fd, &ticks, sizeof ticks);
    wake_at = 0;
    conn_tick();
    proc_tick(sys_now_ms());
}

static void children_ready(struct watch *w, uint32_t events)
{
    char info[128];
    (void)events;
    sys_read(w->fd, info, sizeof info);
    proc_reap();
}

int loop_start(void)
{
    uint64_t mask = 1u << (SIGCHLD - 1);
    int fd;
    guest.epoll = (int)SYS1(__NR_epoll_create1, O_CLOEXEC);
    if (guest.epoll < 0)
        return guest.epoll;
    SYS4(__NR_rt_sigprocmask, 2 /* SIG_SETMASK */, &mask, 0, sizeof mask);
    fd = (int)SYS4(__NR_signalfd4, -1, &mask, sizeof mask, O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return fd;
    return loop_watch(&guest.children, fd, EPOLLIN, children_ready);
}

int loop_watch(struct watch *w, int fd, uint32_t events,
               void (*ready)(struct watch *, uint32_t events))
{
    struct sys_epoll_event e = {events, w};
    long r = SYS4(__NR_epoll_ctl, guest.epoll, EPOLL_CTL_ADD, fd, &e);
    if (r < 0)
        return (int)r;
    w->fd = fd;
    w->events = events;
    w->ready = ready;
    return 0;
}

void loop_change(struct watch *w, uint32_t events)
{
    struct sys_epoll_event e = {events, w};
    if (w->events == events)
        return;
    w->events = events;
    SYS4(__NR_epoll_ctl, guest.epoll, EPOLL_CTL_MOD, w->fd, &e);
}

void loop_unwatch(struct watch *w)
{
    struct sys_epoll_event none = {0, NULL};
    SYS4(__NR_epoll_ctl, guest.epoll, EPOLL_CTL_DEL, w->fd, &none);
}

void loop_wake_at(uint64_t ms)
{
    struct {
        struct sys_timespec interval, value;
    } when = {{0, 0}, {(int64_t)(ms / 1000), (int64_t)(ms % 1000) * 1000000 + 1}};
    if (ms == 0 || (wake_at != 0 && wake_at <= ms))
        return;
    if (guest.timer.fd < 0) {
        int fd = (int)SYS2(__NR_timerfd_create, CLOCK_MONOTONIC, O_CLOEXEC | O_NONBLOCK);
        if (fd < 0 || loop_watch(&guest.timer, fd, EPOLLIN, timer_ready) != 0)
            return;
    }
    wake_at = ms;
    SYS4(__NR_timerfd_settime, guest.timer.fd, 1 /* absolute */, &when, NULL);
}

_Noreturn void loop_run(void)
{
    for (;;) {
        struct sys_epoll_event e = {0, NULL};
        long n = SYS6(__NR_epoll_pwait, guest.epoll, &e, 1, started_patience(), NULL, 8);
        struct watch *w = e.data;
        exec_settle();
        if (n == 1 && w != NULL)
            w->ready(w, e.events);
        started_look(n == 0);
        conn_reap_dead();
    }
}
