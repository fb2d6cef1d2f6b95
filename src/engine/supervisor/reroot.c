/* A spare stands on the usual root. For a sandbox with layers or a template of its own, or one that comes back from a
 * pause, a process in our memory enters the spare's namespaces, where nothing but pid 1 lives yet and none of its
 * sandbox's code has run, mounts the sandbox's own overlays on top, moves devices and proc over, and turns the two
 * roots around. pivot_root changes root and directory of whoever has the old ones, so pid 1 notices nothing. */
#include "reroot.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include "raw.h"
#include "slot.h"

struct move {
    int pidfd, root, tree[SB_TREES_MAX];
    int trees;
    const char *name[SB_TREES_MAX];
    const char *step;
    int err;
};

/* Entries of the new root are what the sandbox's user made of them: no links. */
static long place(int root, const char *name)
{
    return sb_sys(openat, root, name, O_PATH | O_NOFOLLOW | O_DIRECTORY | O_CLOEXEC);
}

static long attach(int mount, int root, const char *name)
{
    long at = place(root, name);
    if (at < 0)
        return at;
    long rc =
        sb_sys(move_mount, mount, "", at, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
    sb_sys(close, at);
    return rc;
}

/* Raw; with the supervisor's descriptors. Those it opens are its own to close, whatever happens. */
static int turn(struct move *m, int dev, int proc)
{
    TRY(m, "mount root", sb_sys(move_mount, m->root, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH));
    for (int i = 0; i < m->trees; i++)
        TRY(m, "mount tree", attach(m->tree[i], m->root, m->name[i]));
    TRY(m, "mount dev", attach(dev, m->root, "dev"));
    TRY(m, "mount proc", attach(proc, m->root, "proc"));
    TRY(m, "pivot", sb_sys(fchdir, m->root));
    TRY(m, "pivot", sb_sys(pivot_root, ".", "."));
    TRY(m, "drop old root", sb_sys(umount2, ".", MNT_DETACH));
    return 0;
}

static int enter(void *arg)
{
    struct move *m = arg;
    TRY(m, "enter", sb_sys(setns, m->pidfd, CLONE_NEWUSER | CLONE_NEWNS));
    long dev = place(AT_FDCWD, "/dev"), proc = place(AT_FDCWD, "/proc");
    int rc = 1;
    if (dev >= 0 && proc >= 0)
        rc = turn(m, (int)dev, (int)proc);
    else
        m->err = (int)-(dev < 0 ? dev : proc);
    if (dev >= 0)
        sb_sys(close, dev);
    if (proc >= 0)
        sb_sys(close, proc);
    return rc;
}

static int run(struct move *m, struct sb_failure *f)
{
    static char stack[SB_STACK] __attribute__((aligned(16)));
    siginfo_t info = {0};
    struct clone_args args = {
        .flags = CLONE_VM | CLONE_VFORK | CLONE_FILES | CLONE_CLEAR_SIGHAND,
        .stack = (uint64_t)(uintptr_t)stack,
        .stack_size = sizeof stack,
    };
    long pid = sb_raw_clone3(&args, sizeof args, enter, m);
    if (pid < 0)
        return sb_failed(f, NULL, (int)-pid, "root", "cannot start a process");
    while (waitid(P_PID, (id_t)pid, &info, WEXITED | __WALL) < 0 && errno == EINTR)
        ;
    if (info.si_code == CLD_EXITED && info.si_status == 0)
        return 0;
    return sb_failed(f, NULL, m->err != 0 ? m->err : EINTR, m->step,
                     "cannot mount the sandbox's files");
}

int sb_reroot(struct sb_box *b, struct sb_failure *f)
{
    struct sb_template t;
    struct sb_layers l;
    const struct sb_slot of = {.user = b->user, .range = b->rec.range};
    sb_autofd int dir = sb_box_dir(b);
    if (dir < 0)
        return sb_failed_errno(f, "directory", "open");
    if (sb_template_open(&t, b->rec.base != NULL ? b->rec.base : "", b->rec.rootfs, f) < 0)
        return -1;
    int rc = sb_boot_layers(b, &of, dir, &t, &l, f);
    if (rc == 0) {
        struct move m = {.pidfd = b->proc.fd, .root = l.root, .trees = l.trees, .step = "start"};
        for (int i = 0; i < l.trees; i++) {
            m.tree[i] = l.tree[i];
            m.name[i] = sb_base_tree[i];
        }
        rc = run(&m, f);
        sb_layers_close(&l);
    }
    sb_template_close(&t);
    return rc;
}
