/* The table of sources: what the loop watches, by descriptor, in one epoll.
 *
 * A source that rests is taken out of the epoll only when the kernel tells of it all the same: most are
 * watched for the same again before that, without a system call. */
#include "source.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EVENTS_PER_TURN 64
#define WAKE_KEY UINT64_MAX
#define SIGSET_SIZE 8 /* the kernel's */

/* `serial` tells an event of this source from one of an earlier source with the same descriptor that
 * the same epoll_wait has already returned. */
struct slot {
    struct sb_source *source;
    uint32_t serial;
    uint32_t events;
    uint32_t armed; /* what the kernel watches for: more than `events` while the source rests */
};

/* The driver's. A fork, which any thread may make, must find the slots whole. */
static struct {
    pthread_mutex_t lock; /* held while slots come, move and go */
    int epoll_fd;
    struct slot *slots; /* by descriptor */
    size_t slot_count;
    uint32_t serial;
} table = {.lock = PTHREAD_MUTEX_INITIALIZER, .epoll_fd = -1};

int sb_sources_open(int wake_fd)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = WAKE_KEY};
    table.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (table.epoll_fd < 0)
        return -1;
    return epoll_ctl(table.epoll_fd, EPOLL_CTL_ADD, wake_fd, &event);
}

void sb_sources_close(void)
{
    if (table.epoll_fd >= 0)
        close(table.epoll_fd);
    table.epoll_fd = -1;
}

/* Without EPOLLET an unwatched source would report EPOLLHUP and EPOLLERR for ever. */
static int control(int op, int fd, struct slot *slot)
{
    struct epoll_event event = {.events = slot->events != 0 ? slot->events : EPOLLET,
                                .data.u64 = (uint64_t)slot->serial << 32 | (uint32_t)fd};
    slot->armed = slot->events;
    return epoll_ctl(table.epoll_fd, op, fd, &event);
}

/* ---- turns ---- */

static int wait_for_events(struct epoll_event *events, uint64_t ns, const sigset_t *mask)
{
#ifdef SYS_epoll_pwait2
    static _Atomic int missing;
    if (!missing) {
        struct timespec ts = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
        long n = syscall(SYS_epoll_pwait2, table.epoll_fd, events, EVENTS_PER_TURN,
                         ns == SB_NEVER ? NULL : &ts, mask, SIGSET_SIZE);
        if (n >= 0 || (errno != ENOSYS && errno != EPERM)) /* EPERM: of a filter that is older */
            return (int)n;
        missing = 1;
    }
#endif
    uint64_t ms = ns / 1000000u + (ns % 1000000u != 0); /* never early */
    return epoll_pwait(table.epoll_fd, events, EVENTS_PER_TURN,
                       ns == SB_NEVER ? -1
                       : ms > INT_MAX ? INT_MAX
                                      : (int)ms,
                       mask);
}

static void dispatch(const struct epoll_event *event)
{
    uint64_t key = event->data.u64;
    if (key == WAKE_KEY)
        return;
    struct slot *slot = &table.slots[(uint32_t)key];
    uint32_t ready = event->events & (slot->events | EPOLLERR | EPOLLHUP);
    if (slot->source == NULL || slot->serial != (uint32_t)(key >> 32))
        return;
    if (slot->events != slot->armed) /* it rests, and would be told of again and again */
        control(EPOLL_CTL_MOD, slot->source->fd, slot);
    else if (slot->events != 0 && ready != 0)
        slot->source->ready(slot->source, ready);
}

enum sb_turn sb_sources_turn(uint64_t ns, const sigset_t *mask)
{
    struct epoll_event events[EVENTS_PER_TURN];
    int n = wait_for_events(events, ns, mask);
    if (n < 0)
        return errno == EINTR ? SB_TURN_SIGNAL : SB_TURN_WORK;
    int only_woken = n == 1 && events[0].data.u64 == WAKE_KEY;
    for (int i = 0; i < n; i++)
        dispatch(&events[i]);
    return only_woken ? SB_TURN_WOKEN : SB_TURN_WORK;
}

/* ---- what is watched ---- */

static int reserve_slot(int fd, struct sb_error *err)
{
    if ((size_t)fd < table.slot_count)
        return 0;
    size_t count = table.slot_count > 0 ? table.slot_count : 64;
    while (count <= (size_t)fd)
        count *= 2;
    struct slot *slots = realloc(table.slots, count * sizeof *slots);
    if (slots == NULL)
        return sb_fail_errno(err, ENOMEM, "watch", "cannot watch a descriptor");
    for (size_t i = table.slot_count; i < count; i++)
        slots[i] = (struct slot){0};
    table.slots = slots;
    table.slot_count = count;
    return 0;
}

int sb_source_add(struct sb_source *source, struct sb_error *err)
{
    int error = 0;
    pthread_mutex_lock(&table.lock);
    if (source->fd < 0)
        error = sb_fail_errno(err, EBADF, "watch", "cannot watch a descriptor");
    if (error == 0)
        error = reserve_slot(source->fd, err);
    if (error == 0) {
        struct slot slot = {source, ++table.serial, source->events, 0};
        if (control(EPOLL_CTL_ADD, source->fd, &slot) < 0)
            error = sb_fail_errno(err, errno, "watch", "cannot watch a descriptor");
        else
            table.slots[source->fd] = slot;
    }
    pthread_mutex_unlock(&table.lock);
    return error;
}

/* The slot of a source that is added, else NULL. */
static struct slot *find_slot(const struct sb_source *source)
{
    if (source->fd < 0 || (size_t)source->fd >= table.slot_count)
        return NULL;
    struct slot *slot = &table.slots[source->fd];
    return slot->source == source ? slot : NULL;
}

void sb_source_change(struct sb_source *source, uint32_t events)
{
    struct slot *slot = find_slot(source);
    source->events = events;
    if (slot == NULL || slot->events == events)
        return;
    slot->events = events;
    if (slot->armed != events)
        control(EPOLL_CTL_MOD, source->fd, slot);
}

void sb_source_rest(struct sb_source *source)
{
    struct slot *slot = find_slot(source);
    source->events = 0;
    if (slot != NULL)
        slot->events = 0;
}

void sb_source_remove(struct sb_source *source)
{
    struct slot *slot = find_slot(source);
    if (slot == NULL)
        return;
    epoll_ctl(table.epoll_fd, EPOLL_CTL_DEL, source->fd, NULL);
    pthread_mutex_lock(&table.lock);
    *slot = (struct slot){0};
    pthread_mutex_unlock(&table.lock);
}

/* ---- fork ---- */

void sb_sources_fork_lock(void)
{
    pthread_mutex_lock(&table.lock);
}

void sb_sources_fork_unlock(void)
{
    pthread_mutex_unlock(&table.lock);
}

void sb_sources_fork_child(void)
{
    for (size_t fd = 0; fd < table.slot_count; fd++)
        if (table.slots[fd].source != NULL) {
            close((int)fd);
            table.slots[fd].source->fd = -1;
            table.slots[fd] = (struct slot){0};
        }
}
