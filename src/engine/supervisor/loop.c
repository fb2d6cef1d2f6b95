/* The event loop: waits for descriptors and for the next deadline, does idle work in between. */
#include "loop.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mount.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "handover.h"
#include "life.h"
#include "slot.h"
#include "spare.h"
#include "sup.h"
#include "trash.h"

/* Work for idle moments starts after SILENCE_MS without an event: whoever has just got a sandbox wants
 * the processors himself. Stocks that run low are filled all the same, one short step after each look for
 * events; only while pid 1 of a create has its set-up before it, not for ANSWER_MS. */
enum { BATCH = 32, GRAVES = 256, LATES = 128, ANSWER_MS = 1, SILENCE_MS = 5 };

static struct {
    int epoll;
    struct sb_source timer;
    void *grave[GRAVES];
    int graves;
    int late[LATES];
    int lates;
} loop = {.epoll = -1, .timer = {.fd = -1}};

static void timer_ready(struct sb_source *src, uint32_t events)
{
    uint64_t times;
    (void)events;
    (void)!read(src->fd, &times, sizeof times);
}

int sb_loop_open(void)
{
    loop.epoll = sb_lift(epoll_create1(EPOLL_CLOEXEC));
    if (loop.epoll < 0)
        return -1;
    int fd = sb_lift(timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK));
    return fd < 0 ? -1 : sb_loop_add(&loop.timer, fd, EPOLLIN, timer_ready);
}

int sb_loop_add(struct sb_source *src, int fd, uint32_t events,
                void (*ready)(struct sb_source *, uint32_t))
{
    struct epoll_event ev = {.events = events, .data.ptr = src};
    src->fd = -1;
    src->ready = ready;
    if (epoll_ctl(loop.epoll, EPOLL_CTL_ADD, fd, &ev) < 0) {
        sb_close_at(&fd);
        return -1;
    }
    src->fd = fd;
    return 0;
}

void sb_loop_want(struct sb_source *src, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.ptr = src};
    epoll_ctl(loop.epoll, EPOLL_CTL_MOD, src->fd, &ev);
}

void sb_loop_move(struct sb_source *to, struct sb_source *from)
{
    *to = *from;
    from->fd = -1;
    if (to->fd >= 0)
        sb_loop_want(to, EPOLLIN);
}

void sb_loop_drop(struct sb_source *src)
{
    if (src->fd < 0)
        return;
    /* Explicitly: a copy of the descriptor in a cloned process would keep the registration. */
    epoll_ctl(loop.epoll, EPOLL_CTL_DEL, src->fd, NULL);
    sb_close(&src->fd);
}

void sb_loop_bury(void *memory)
{
    if (loop.graves < GRAVES)
        loop.grave[loop.graves++] = memory; /* a batch of 32 events cannot fill it: else it leaks */
}

/* Detached mounts, dissolved as one: for each dissolution the kernel waits for all processors. Where one
 * cannot be put onto another (before Linux 6.15) each is its own. */
static void close_lates(void)
{
    for (int i = 1; i < loop.lates; i++) {
        move_mount(loop.late[i], "", loop.late[0], "",
                   MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
        close(loop.late[i]);
    }
    if (loop.lates > 0)
        close(loop.late[0]);
    loop.lates = 0;
}

void sb_loop_close_later(int *fd)
{
    int keep = errno;
    if (loop.lates == LATES)
        close_lates();
    if (*fd >= 0)
        loop.late[loop.lates++] = *fd;
    *fd = -1;
    errno = keep;
}

static void arm_timer(int64_t due_ms)
{
    struct itimerspec t = {{0, 0}, {0, 0}};
    static int64_t armed = -1;
    if (due_ms == armed)
        return;
    armed = due_ms;
    if (due_ms != INT64_MAX) {
        if (due_ms < 1)
            due_ms = 1;
        t.it_value.tv_sec = due_ms / 1000;
        t.it_value.tv_nsec = due_ms % 1000 * 1000000;
    }
    timerfd_settime(loop.timer.fd, TFD_TIMER_ABSTIME, &t, NULL);
}

static void fill_stocks(void)
{
    if (sb_spare_wanted())
        sb_spare_make();
    else if (sb_slot_wanted())
        sb_slot_refill();
    else if (sb_spare_surplus())
        sb_spare_shed();
}

void sb_loop_run(void)
{
    struct epoll_event ev[BATCH];
    bool silent = false;
    while (!sup.leaving) {
        arm_timer(sb_life_tick());
        if (sup.leaving)
            break;
        bool fill = sb_slot_wanted() || sb_spare_wanted() || sb_spare_surplus(),
             low = fill && sb_spare_low();
        bool work = fill || sb_trash_wanted() || loop.lates > 0;
        int wait_ms = SILENCE_MS;
        if (!work)
            wait_ms = -1;
        else if (low && !silent)
            wait_ms = sb_life_answering() ? ANSWER_MS : 0;
        else if (silent)
            wait_ms = 0;
        bool may_leave = sb_handover_ready();
        if (sb_handover_begun())
            wait_ms = may_leave ? 0 : SILENCE_MS;
        int n = epoll_wait(loop.epoll, ev, BATCH, wait_ms);
        if (may_leave && n == 0)
            break;
        silent = n == 0 && (silent || wait_ms == SILENCE_MS);
        for (int i = 0; i < n; i++) {
            struct sb_source *src = ev[i].data.ptr;
            if (src->fd >= 0)
                src->ready(src, ev[i].events);
        }
        while (loop.graves > 0)
            free(loop.grave[--loop.graves]);
        if (fill && (n == 0 || (low && wait_ms == 0))) {
            fill_stocks();
        } else if (n == 0 && work) {
            close_lates();
            if (sb_trash_wanted())
                sb_trash_start();
        }
    }
}
