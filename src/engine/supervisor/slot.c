/* The pool of slots: outer user namespaces with their networks, and prepared directories. */
#include "slot.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "birth.h"
#include "loop.h"
#include "range.h"
#include "raw.h"
#include "settings.h"
#include "trash.h"

static struct {
    struct sb_slot *first;
    int count;
    int64_t retry_ms; /* a refill failed: not before */
    unsigned char used[SB_RANGES / 8];
    int boot_dir; /* a tmpfs of our own for the boot_id files */
} pool = {.boot_dir = -1};

/* Shared with the maker, from start_maker to end_maker. */
static struct maker {
    int settings, user, net;
    int pidfd; /* -1: there is none */
    bool single;
    volatile int go;
    const char *volatile step;
    volatile int err;
    char stack[SB_STACK] __attribute__((aligned(16)));
} maker = {.pidfd = -1};

/* The slot that is being made, in steps: none takes longer than a request may wait for it. */
static struct {
    struct sb_slot *slot; /* NULL: none */
    int step;
    struct sb_source ended; /* the maker, while nothing is left to do but wait for it */
} under = {.ended = {.fd = -1}};

void sb_slot_map(int range, struct sb_idmap *map)
{
    memset(map, 0, sizeof *map);
    switch (sup.mode) {
    case SB_MODE_ROOT:
        map->n = 1;
        map->line[0] =
            (struct sb_idline){0, SB_RANGE_BASE + (uint32_t)range * SB_RANGE_SIZE, SB_RANGE_SIZE};
        return;
    case SB_MODE_SINGLE:
        map->n = 1;
        map->line[0] = (struct sb_idline){1000, 0, 1};
        return;
    case SB_MODE_SUBIDS:
        /* Every sandbox of the base template is of one lineage: the same ids of S. */
        if (sup.sub_count >= 2001) {
            map->n = 2;
            map->line[0] = (struct sb_idline){0, 1, 2000};
            map->line[1] = (struct sb_idline){65534, 2001, 1};
        } else {
            map->n = 3;
            map->line[0] = (struct sb_idline){0, 1, 1};
            map->line[1] = (struct sb_idline){1000, 2, 1};
            map->line[2] = (struct sb_idline){65534, 3, 1};
        }
    }
}

uint32_t sb_slot_disk_id(uint32_t inside)
{
    struct sb_idmap map;
    if (sup.mode == SB_MODE_ROOT)
        return inside;
    sb_slot_map(0, &map);
    for (int i = 0; i < map.n; i++)
        if (inside - map.line[i].inside < map.line[i].count)
            return map.line[i].outside + (inside - map.line[i].inside);
    return 0;
}

uid_t sb_slot_root(int range)
{
    return SB_RANGE_BASE + (uint32_t)range * SB_RANGE_SIZE;
}

void sb_slot_reserve(int range, bool used)
{
    if (range < 0 || range >= SB_RANGES)
        return;
    unsigned char bit = (unsigned char)(1u << (range % 8));
    if (used) {
        pool.used[range / 8] |= bit;
        sb_range_keep(range);
    } else {
        pool.used[range / 8] &= (unsigned char)~bit;
        sb_range_give(range);
    }
}

/* Supervisors of other state roots take from the same ranges: each starts at its own place. */
static int take_range(void)
{
    if (sup.mode != SB_MODE_ROOT)
        return -1;
    int start = (int)(sup.root_hash % SB_RANGES);
    for (int i = 0; i < SB_RANGES; i++) {
        int r = (start + i) % SB_RANGES;
        if ((pool.used[r / 8] & (1u << (r % 8))) == 0 && sb_range_take(r)) {
            pool.used[r / 8] |= (unsigned char)(1u << (r % 8));
            return r;
        }
    }
    return -1;
}

static long put(int dir, const char *path, const char *text)
{
    size_t n = 0;
    while (text[n] != '\0')
        n++;
    long fd = sb_sys(openat, dir, path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return fd;
    long rc = sb_sys(write, fd, text, n);
    sb_sys(close, fd);
    return rc;
}

/* Budgets of A: what a sandbox may use of things that are otherwise counted for the supervisor's user
 * as a whole. B itself is the one user namespace; each detached mount counts as a mount namespace.
 * What the kernel does not know (ENOENT) needs no budget. */
static const struct {
    const char *path, *text;
} budget[] = {
    {"sys/user/max_user_namespaces", "1"},    {"sys/user/max_mnt_namespaces", "2"},
    {"sys/user/max_pid_namespaces", "1"},     {"sys/user/max_ipc_namespaces", "1"},
    {"sys/user/max_uts_namespaces", "1"},     {"sys/user/max_cgroup_namespaces", "1"},
    {"sys/user/max_time_namespaces", "0"},    {"sys/user/max_net_namespaces", "1"},
    {"sys/user/max_inotify_instances", "16"}, {"sys/user/max_inotify_watches", "16384"},
    {"sys/user/max_fanotify_groups", "0"},    {"sys/user/max_fanotify_marks", "0"},
};

static int make_inside(void *arg)
{
    struct maker *m = arg;
    struct timespec limit = {5, 0};
    while (m->go == 0)
        if (sb_sys(futex, &m->go, FUTEX_WAIT_PRIVATE, 0, &limit) == -ETIMEDOUT)
            return 1;
    if (m->go < 0)
        return 1;
    if (!m->single) {
        TRY(m, "ids", sb_sys(setresgid, 0, 0, 0));
        TRY(m, "ids", sb_sys(setresuid, 0, 0, 0));
        TRY(m, "dumpable", sb_sys(prctl, PR_SET_DUMPABLE, 1, 0, 0, 0));
    }
    TRY(m, "network namespace", sb_sys(unshare, CLONE_NEWNET));
    for (size_t i = 0; i < sizeof budget / sizeof *budget; i++) {
        long rc = put(m->settings, budget[i].path, budget[i].text);
        TRY(m, budget[i].path, rc == -ENOENT ? 0 : rc);
    }
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    long fd;
    TRY(m, "loopback", fd = sb_sys(socket, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    TRY(m, "loopback", sb_sys(ioctl, fd, SIOCSIFFLAGS, &lo));
    TRY(m, "loopback", sb_sys(close, fd));
    TRY(m, "low ports", put(m->settings, "sys/net/ipv4/ip_unprivileged_port_start", "0"));
    TRY(m, "ping",
        put(m->settings, "sys/net/ipv4/ping_group_range", m->single ? "1000 1000" : "0 1000"));
    TRY(m, "user namespace",
        m->user = (int)sb_sys(openat, AT_FDCWD, "/proc/self/ns/user", O_RDONLY | O_CLOEXEC));
    TRY(m, "network namespace",
        m->net = (int)sb_sys(openat, AT_FDCWD, "/proc/self/ns/net", O_RDONLY | O_CLOEXEC));
    return 0;
}

static int write_maps(pid_t pid, const struct sb_idmap *map)
{
    static const char *const file[2] = {"gid_map", "uid_map"};
    char path[48], text[160];
    int n = 0;
    for (int i = 0; i < map->n; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%u %u %u\n", map->line[i].inside,
                      map->line[i].outside, map->line[i].count);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, file[i]);
        int rc = sb_put(path, text);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Starts the process that makes A and its network; end_maker waits for it. Meanwhile the shared memory
 * is dumpable on and off, hence no stage may run (sb_slot_settle). */
static int start_maker(struct sb_slot *s, struct sb_failure *f)
{
    int pidfd = -1;
    struct clone_args args = {
        .flags = CLONE_VM | CLONE_FILES | CLONE_CLEAR_SIGHAND | CLONE_PIDFD | CLONE_NEWUSER,
        .pidfd = (uint64_t)(uintptr_t)&pidfd,
        .stack = (uint64_t)(uintptr_t)maker.stack,
        .stack_size = SB_STACK,
    };
    struct sb_idmap map;
    sb_slot_map(s->range, &map);
    maker.settings = sb_settings_dir();
    maker.user = maker.net = -1;
    maker.single = sup.mode == SB_MODE_SINGLE;
    maker.go = maker.err = 0;
    maker.step = "clone";
    /* The files of its /proc directory belong to nobody we are while the memory is undumpable. */
    prctl(PR_SET_DUMPABLE, 1);
    long pid = sb_raw_clone3(&args, sizeof args, make_inside, &maker);
    if (pid < 0) {
        prctl(PR_SET_DUMPABLE, 0);
        return sb_failed(f, NULL, (int)-pid, "slot", "cannot make a user namespace");
    }
    int rc = write_maps((pid_t)pid, &map);
    maker.go = rc < 0 ? -1 : 1;
    sb_sys(futex, &maker.go, FUTEX_WAKE_PRIVATE, 1);
    maker.pidfd = pidfd;
    return rc < 0 ? sb_failed(f, NULL, -rc, "slot maps", "cannot make a user namespace") : 0;
}

static int end_maker(struct sb_slot *s, struct sb_failure *f)
{
    siginfo_t info = {0};
    sb_loop_drop(&under.ended);
    while (waitid(P_PIDFD, (id_t)maker.pidfd, &info, WEXITED | __WALL) < 0 && errno == EINTR)
        ;
    sb_close(&maker.pidfd);
    prctl(PR_SET_DUMPABLE, 0);
    sb_settings_used();
    s->user = maker.user;
    s->net = maker.net;
    if (info.si_code != CLD_EXITED || info.si_status != 0)
        return sb_failed(f, NULL, maker.err, "slot", "%s", maker.step);
    return 0;
}

/* A file of ours behind the sandbox's boot_id, on a tmpfs of the supervisor, so that the sandbox's
 * mount table names nothing of the host. Mounting needs its name; then it is unlinked. */
static int make_boot_id(struct sb_slot *s)
{
    if (pool.boot_dir < 0) {
        sb_autofd int fs = fsopen("tmpfs", FSOPEN_CLOEXEC);
        if (fs < 0 || fsconfig(fs, FSCONFIG_SET_STRING, "source", "sandbar", 0) < 0 ||
            fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
            return -1;
        pool.boot_dir =
            fsmount(fs, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC | MOUNT_ATTR_NODEV);
        if (pool.boot_dir < 0)
            return -1;
    }
    char text[40];
    sb_uuid(s->boot);
    int n = snprintf(text, sizeof text, "%s\n", s->boot);
    if (sb_write_at(pool.boot_dir, s->boot, text, (size_t)n, 0444) < 0)
        return -1;
    s->boot_id = open_tree(pool.boot_dir, s->boot, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (s->boot_id < 0)
        return -1;
    struct mount_attr ro = {.attr_set = MOUNT_ATTR_RDONLY};
    return mount_setattr(s->boot_id, "", AT_EMPTY_PATH, &ro, sizeof ro);
}

void sb_slot_booted(const char *boot)
{
    if (pool.boot_dir >= 0 && *boot != '\0')
        unlinkat(pool.boot_dir, boot, 0);
}

int sb_slot_listen(int dir)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "/proc/self/fd/%d/sock", dir);
    unlinkat(dir, "sock", 0);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && (bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, 4) < 0))
        sb_close(&fd);
    return fd;
}

int sb_slot_note(int dir)
{
    return openat(dir, "birth", O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
}

/* Names carry the supervisor's random part: a directory of a killed one is never taken for ours. */
static int make_directory(struct sb_slot *s, struct sb_failure *f)
{
    uint64_t r;
    sb_random(&r, sizeof r);
    snprintf(s->dir_name, sizeof s->dir_name, "%016llx", (unsigned long long)r);
    if (mkdirat(sup.prepared, s->dir_name, 0700) < 0) {
        s->dir_name[0] = '\0';
        return sb_failed_errno(f, "directory", "mkdir");
    }
    s->dir = openat(sup.prepared, s->dir_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->dir < 0)
        return sb_failed_errno(f, "directory", "open");
    if (sb_slot_make_dirs(s->dir, &sb_base, f) < 0)
        return -1;
    s->listener = sb_slot_listen(s->dir);
    if (s->listener < 0)
        return sb_failed_errno(f, "listener", "bind");
    s->record = openat(s->dir, "record", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    s->note = sb_slot_note(s->dir);
    return s->record < 0 || s->note < 0 ? sb_failed_errno(f, "record", "create") : 0;
}

static int make_group(struct sb_slot *s, struct sb_failure *f)
{
    return sb_cgroup_make(&s->group, sb_slot_root(s->range)) < 0
               ? sb_failed_errno(f, "cgroup", "cannot make a control group")
               : 0;
}

static int make_leaves(struct sb_slot *s, struct sb_failure *f)
{
    return sb_cgroup_have() && sb_cgroup_more(&s->group, NULL, 0) < 0
               ? sb_failed_errno(f, "cgroup", "cannot make a control group")
               : 0;
}

static int make_devices(struct sb_slot *s, struct sb_failure *f)
{
    s->device = sb_mounts_device();
    return s->device < 0 || make_boot_id(s) < 0
               ? sb_failed_errno(f, "devices", s->device < 0 ? "clone" : "boot id")
               : 0;
}

static int make_layers(struct sb_slot *s, struct sb_failure *f)
{
    return sb_layers_make(&s->layers, s, s->dir, -1, &sb_base, NULL, false, f);
}

/* The maker's time is used for all that does not need its namespaces. */
static int (*const step[])(struct sb_slot *, struct sb_failure *) = {
    start_maker, make_group, make_leaves, make_devices, make_directory, end_maker, make_layers,
};
enum { STEPS = sizeof step / sizeof *step, WAIT_STEP = 5 };

static struct sb_slot *begin(struct sb_failure *f)
{
    struct sb_slot *s = calloc(1, sizeof *s);
    if (s == NULL) {
        sb_failed(f, NULL, ENOMEM, "slot", "memory");
        return NULL;
    }
    s->user = s->net = s->device = s->boot_id = s->dir = s->listener = s->record = s->note =
        s->layers.root = -1;
    s->group.dir = -1;
    s->range = take_range();
    if (s->range < 0 && sup.mode == SB_MODE_ROOT) {
        sb_failed(f, "LimitExceeded", EUSERS, "slot", "all %d id ranges are in use", SB_RANGES);
        free(s);
        return NULL;
    }
    under.step = 0;
    return s;
}

/* One step of the slot under way: 1 more to come, 0 it is whole, -1 it is no more. */
static int go_on(struct sb_failure *f)
{
    struct sb_slot *s = under.slot;
    if (step[under.step](s, f) == 0) {
        if (++under.step < STEPS)
            return 1;
        under.slot = NULL;
        return 0;
    }
    struct sb_failure ignored;
    if (maker.pidfd >= 0)
        end_maker(s, &ignored);
    under.slot = NULL;
    sb_slot_drop(s);
    return -1;
}

struct sb_slot *sb_slot_take(struct sb_failure *f)
{
    struct sb_slot *s = pool.first;
    if (s != NULL) {
        pool.first = s->next;
        pool.count--;
        return s;
    }
    if (under.slot == NULL)
        under.slot = begin(f);
    s = under.slot;
    int rc = s != NULL ? 1 : -1;
    while (rc > 0)
        rc = go_on(f);
    return rc == 0 ? s : NULL;
}

int sb_slot_first(struct sb_failure *f)
{
    struct sb_slot *s = sb_slot_take(f);
    if (s == NULL)
        return -1;
    pool.first = s;
    pool.count = 1;
    return 0;
}

void sb_slot_settle(void)
{
    struct sb_failure f;
    while (maker.pidfd >= 0)
        go_on(&f);
}

void sb_slot_drop(struct sb_slot *s)
{
    if (s == NULL)
        return;
    sb_close(&s->user);
    sb_close(&s->net);
    sb_close(&s->device);
    sb_close(&s->boot_id);
    sb_close(&s->dir);
    sb_close(&s->listener);
    sb_close(&s->record);
    sb_close(&s->note);
    sb_layers_close(&s->layers);
    sb_cgroup_remove(&s->group);
    if (s->dir_name[0] != '\0')
        sb_trash_put(sup.prepared, s->dir_name);
    sb_slot_booted(s->boot);
    sb_slot_reserve(s->range, false);
    free(s);
}

static void maker_ended(struct sb_source *src, uint32_t events)
{
    (void)events;
    sb_loop_drop(src);
}

bool sb_slot_wanted(void)
{
    if (under.slot != NULL)
        return under.ended.fd < 0;
    return pool.count < SB_POOL && !sup.leaving && sb_real_ms() >= pool.retry_ms;
}

bool sb_slot_settled(void)
{
    return maker.pidfd < 0;
}

int64_t sb_slot_due_ms(void)
{
    return pool.count < SB_POOL && pool.retry_ms > sb_real_ms() ? pool.retry_ms : INT64_MAX;
}

/* Whether it pays to come back: the step that waits for the maker is put off until it has ended. */
static bool maker_done(void)
{
    struct pollfd p = {maker.pidfd, POLLIN, 0};
    if (poll(&p, 1, 0) != 0)
        return true;
    int fd = fcntl(maker.pidfd, F_DUPFD_CLOEXEC, SB_FD_END);
    return fd < 0 || sb_loop_add(&under.ended, fd, EPOLLIN, maker_ended) < 0;
}

void sb_slot_refill(void)
{
    struct sb_failure f;
    if (under.slot == NULL)
        under.slot = begin(&f);
    struct sb_slot *s = under.slot;
    if (s != NULL && under.step == WAIT_STEP && !maker_done())
        return;
    int rc = s != NULL ? go_on(&f) : -1;
    if (rc < 0)
        pool.retry_ms = sb_real_ms() + 1000;
    if (rc != 0)
        return;
    s->next = pool.first;
    pool.first = s;
    pool.count++;
}

void sb_slot_drain(void)
{
    struct sb_failure f;
    while (under.slot != NULL) {
        struct sb_slot *s = under.slot;
        if (go_on(&f) == 0)
            sb_slot_drop(s);
    }
    while (pool.first != NULL) {
        struct sb_slot *s = pool.first;
        pool.first = s->next;
        pool.count--;
        sb_slot_drop(s);
    }
}

int sb_slot_pooled(void)
{
    return pool.count;
}
