/* Waits for descriptors and ticks. */
#include "watch.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 64, GRAVES = 2048, TICK_MS = 500 };

static struct {
    int epoll, timed, graves;
    void *grave[GRAVES];
} loop;

int sb_watch_open(void)
{
    loop.epoll = epoll_create1(EPOLL_CLOEXEC);
    return loop.epoll < 0 ? -1 : 0;
}

int sb_watch_add(struct sb_watch *w, int fd, uint32_t events,
                 void (*ready)(struct sb_watch *, uint32_t))
{
    struct epoll_event ev = {.events = events, .data.ptr = w};
    *w = (struct sb_watch){-1, events, ready};
    if (epoll_ctl(loop.epoll, EPOLL_CTL_ADD, fd, &ev) < 0) {
        close(fd);
        return -1;
    }
    w->fd = fd;
    return 0;
}

void sb_watch_want(struct sb_watch *w, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.ptr = w};
    if (w->fd < 0 || w->events == events)
        return;
    w->events = events;
    epoll_ctl(loop.epoll, EPOLL_CTL_MOD, w->fd, &ev);
}

void sb_watch_mute(struct sb_watch *w)
{
    if (w->fd >= 0)
        epoll_ctl(loop.epoll, EPOLL_CTL_DEL, w->fd, NULL);
}

void sb_watch_drop(struct sb_watch *w)
{
    if (w->fd >= 0)
        close(w->fd);
    w->fd = -1;
}

void sb_watch_bury(void *memory)
{
    if (loop.graves < GRAVES)
        loop.grave[loop.graves++] =
            memory; /* emptied after each batch: more than there are connections */
}

void sb_watch_timed(int more)
{
    loop.timed += more;
}

int64_t sb_watch_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void fill_graves(void)
{
    while (loop.graves > 0)
        free(loop.grave[--loop.graves]);
}

void sb_watch_run(void (*tick)(int64_t))
{
    struct epoll_event ev[BATCH];
    int64_t next = 0;
    for (;;) {
        int wait = -1;
        if (loop.timed > 0) {
            int64_t now = sb_watch_now();
            if (next <= now) {
                next = now + TICK_MS;
                tick(now);
                fill_graves();
            }
            wait = (int)(next - now);
        }
        int n = epoll_wait(loop.epoll, ev, BATCH, wait);
        for (int i = 0; i < n; i++) {
            struct sb_watch *w = ev[i].data.ptr;
            if (w->fd >= 0)
                w->ready(w, ev[i].events);
        }
        fill_graves();
    }
}
