/* What earlier supervisors left: living sandboxes are watched again, dead ones marked, half-made ones
 * removed. Sandboxes do not depend on a supervisor, so most of the time nothing has happened. */
#include "adopt.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "box.h"
#include "freeze.h"
#include "import.h"
#include "slot.h"
#include "snapshot.h"
#include "named.h"
#include "template.h"
#include "trash.h"

enum {
    HELLO_AGAIN_MS = 5000,
    ROOM = 32, /* descriptors that taking one sandbox over may take, all together */
};

/* pid 1 listens in the sandbox's directory; the socket was bound before its root changed. */
static int reach(int dir)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "/proc/self/fd/%d/sock", dir);
    int fd = sb_lift(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) < 0)
        sb_close_at(&fd);
    return fd;
}

/* Its lifetime ended while nobody watched: pid 1 ended by itself, or would have. */
static bool is_over(const struct sb_box *b)
{
    return b->rec.deadline_ms != 0 && b->rec.deadline_ms <= sb_now_ms();
}

static void died(struct sb_box *b, bool rebooted)
{
    bool over = !rebooted && is_over(b);
    sb_record_cause(&b->rec,
                    rebooted ? "host_restarted"
                    : over   ? "lifetime"
                             : "pid1",
                    rebooted ? "the machine was restarted"
                    : over   ? "its lifetime ended"
                             : "pid 1 ended unseen");
    bool paused = rebooted || over || b->rec.state == SB_BOX_PAUSED;
    b->rec.state = paused ? SB_BOX_PAUSED : SB_BOX_FAILED;
    b->rec.kept = SB_KEPT_DISK;
    if (rebooted)
        b->rec.run_at_ms = 0; /* of a clock that is no more */
    sb_life_stands(b);
    b->rec.deadline_ms = b->rec.ends_ms = 0;
    b->rec.range = -1;
    memset(&b->rec.pid1, 0, sizeof b->rec.pid1);
    sb_box_save(b);
}

/* A process of an earlier supervisor: from here on the sandbox ends when it does. Takes the pidfd. */
static bool hold(struct sb_box *b, int pidfd)
{
    sb_autofd int own = fcntl(pidfd, F_DUPFD_CLOEXEC, SB_FD_END);
    sb_slot_reserve(b->rec.range, true);
    sb_cgroup_open(&b->group, b->rec.group, sb_slot_root(b->rec.range));
    sb_limits_open(&b->limits, &b->rec, &b->group);
    if (sb_loop_add(&b->proc, pidfd, EPOLLIN, sb_boot_proc_ready) == 0)
        return true;
    /* What cannot be watched must not go on. */
    pidfd_send_signal(own, SIGKILL, NULL, 0);
    return false;
}

void sb_adopt_reach(struct sb_box *b)
{
    sb_autofd int dir = sb_box_dir(b);
    int control = dir < 0 ? -1 : reach(dir);
    if (control >= 0)
        sb_guest_attach(b, control);
}

/* A running one may have been frozen by a supervisor that did not get to say so. One whose group is frozen takes no
 * connections: each would fill its socket's queue a little more, until it is thawed. */
static void watch_again(struct sb_box *b)
{
    struct sb_failure f;
    if (sb_network_start(b, &f) < 0)
        b->net.retry_ms = sb_real_ms(); /* meanwhile everything is refused */
    bool paused = b->rec.state == SB_BOX_PAUSED;
    if (paused && b->group.dir >= 0)
        return;
    if (!paused)
        sb_freeze_loosen(b);
    sb_adopt_reach(b);
    if (b->guest.fd >= 0)
        b->step_due_ms = sb_real_ms() + HELLO_AGAIN_MS;
    else if (!is_over(b)) /* else the next tick ends it by its lifetime */
        sb_guest_kill(b, "it does not answer a new supervisor");
}

static void drop_dir(struct sb_box *b)
{
    sb_life_remove(b);
    sb_box_forget(b);
}

/* A pause or resume under way when its supervisor died ends as paused; a create as nothing. The pause may have been
 * answered: pid 1 counts as there until somebody has waited for it. But that is not known, so it is synced. */
static void finish(struct sb_box *b, bool creating)
{
    b->goal = creating ? SB_GOAL_DESTROY : SB_GOAL_PAUSE;
    b->rec.settled = !creating;
    b->rec.state = SB_BOX_STOPPING;
    sb_guest_kill(b, NULL);
}

/* It only waits for its parent to ask how. */
static bool has_ended(int pidfd)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

/* An errno: something could not be looked at, and is not judged by that; nor is anything else from then on. */
static int lack;

static void adopt(const char *id, int dir)
{
    struct sb_record rec;
    struct stat st;
    int rc = fstatat(dir, "record", &st, AT_SYMLINK_NOFOLLOW);
    bool none = rc < 0 ? errno == ENOENT : st.st_size == 0;
    int64_t noted_pid;
    if (!sb_id_valid(id, strlen(id)))
        return; /* none of ours */
    sb_autofd int noted = sb_note_open(dir, &noted_pid);
    if (none) {
        if (noted >= 0)
            pidfd_send_signal(noted, SIGKILL, NULL, 0);
        sb_trash_put(sup.boxes, id); /* a create or the end of a destruction */
        return;
    }
    struct sb_box *b = sb_box_new(id);
    if (b == NULL) {
        lack = ENOMEM;
        return;
    }
    bool whole = sb_record_read(&rec, dir, id) == 0;
    b->rec = rec;
    if (!whole) {
        /* Nobody could say any more when it shall end; but for one that a newer supervisor will find again. */
        if (noted >= 0 && !b->rec.newer)
            pidfd_send_signal(noted, SIGKILL, NULL, 0);
        return;
    }
    bool same_boot = strcmp(b->rec.host_boot, sup.host_boot) == 0;
    int pidfd = same_boot ? sb_ident_open(&b->rec.pid1) : -1;
    int owner = same_boot && b->rec.owned ? sb_ident_open(&b->rec.owner) : -1;
    enum sb_state state = b->rec.state;
    if (pidfd < 0) {
        b->rec.range = -1;
        b->rec.group[0] = '\0';
        /* Of a resume: the record does not know it yet. Or of what ended before one failed. */
        if (noted >= 0 && (state != SB_BOX_FAILED || !has_ended(noted)))
            pidfd = fcntl(noted, F_DUPFD_CLOEXEC, SB_FD_END);
    }
    bool live = pidfd >= 0 && hold(b, pidfd);
    bool frozen = state == SB_BOX_PAUSED && b->rec.kept == SB_KEPT_MEMORY;
    bool over = same_boot && b->rec.on_expiry == SB_EXPIRY_DESTROY && is_over(b);
    if (live && (state == SB_BOX_RUNNING || frozen)) {
        watch_again(b);
    } else if (live) {
        finish(b, state == SB_BOX_CREATING);
    } else if (state == SB_BOX_CREATING || (state == SB_BOX_RUNNING && over) ||
               (b->rec.owned && owner < 0)) {
        sb_close(&owner);
        drop_dir(b);
        return;
    } else if (state == SB_BOX_RUNNING || frozen) {
        died(b, !same_boot);
    } else if (state == SB_BOX_PAUSED && same_boot && b->rec.pid1.pid != 0) {
        sb_life_sync(
            b); /* of a pid 1 that has ended: the pause was under way, or is not written down */
    }
    /* Whatever state it is in: it goes with its owner. */
    if (b->rec.owned)
        sb_life_watch_owner(b, owner);
}

static const char *wanted_name;
static bool wanted_found;

static void match_base(struct sb_box *b, void *arg)
{
    (void)arg;
    wanted_found = wanted_found || b->rec.unread ||
                   (b->rec.base != NULL && strcmp(b->rec.base, wanted_name) == 0);
}

static void match_group(struct sb_box *b, void *arg)
{
    (void)arg;
    wanted_found = wanted_found || b->rec.newer ||
                   (b->group.dir >= 0 && strcmp(b->group.name, wanted_name) == 0);
}

static bool found(const char *name, void (*match)(struct sb_box *, void *))
{
    wanted_name = name;
    wanted_found = false;
    sb_box_each(match, NULL);
    return wanted_found;
}

static bool base_used(const char *name)
{
    return found(name, match_base) || sb_snapshot_base(name) || sb_named_base(name);
}

static bool group_used(const char *name)
{
    return found(name, match_group);
}

/* Taken and given back: a failure in the middle would look like a sandbox that has died. */
static bool has_room(void)
{
    int fd[ROOM], n = 0;
    while (n < ROOM && (fd[n] = fcntl(sup.null, F_DUPFD_CLOEXEC, 0)) >= 0)
        n++;
    for (int i = 0; i < n; i++)
        close(fd[i]);
    return n == ROOM;
}

static int open_entry(int dir, const char *name)
{
    if (lack == 0 && !has_room())
        lack = errno;
    if (lack != 0)
        return -1;
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && sb_lacking(errno))
        lack = errno;
    return fd;
}

static void throw_away(const char *name)
{
    int64_t pid;
    sb_autofd int fd = open_entry(sup.prepared, name);
    if (fd < 0)
        return;
    sb_autofd int spare = sb_note_open(fd, &pid);
    if (spare >= 0)
        pidfd_send_signal(spare, SIGKILL, NULL, 0);
    sb_trash_put(sup.prepared, name);
}

static void look_at(const char *id)
{
    sb_autofd int dir = open_entry(sup.boxes, id);
    if (dir >= 0)
        adopt(id, dir);
}

int sb_adopt_all(struct sb_failure *f)
{
    int err = sb_each_name(sup.boxes, look_at);
    if (err == 0 && lack == 0)
        err = sb_each_name(sup.prepared, throw_away);
    if (err != 0 || lack != 0)
        return sb_failed(f, NULL, lack != 0 ? lack : err, "adopt",
                         "cannot take over the sandboxes that are there");
    sb_named_start();
    sb_snapshot_start();
    sb_named_prune();
    sb_cgroup_sweep(group_used);
    sb_cgroup_sweep_deserted();
    sb_template_prune(base_used);
    sb_import_prune(base_used);
    return 0;
}
