/* Stage and child: processes in the supervisor's memory that become a sandbox's pid 1.
 *
 * The stage enters the slot's outer user namespace A and its network, clones the child into an inner
 * user namespace B with every other namespace, writes B's maps (only a process inside A may) and
 * exits. The child, on a stack of its own, builds its root, gives up what it must not have, and
 * executes pid 1. Neither uses libc: see raw.h. */
#include "birth.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "filter.h"
#include "raw.h"
#include "slot.h"

/* Capabilities that root inside keeps (engine: nothing that reaches beyond files and ids). */
static const unsigned char kept_caps[] = {
    CAP_CHOWN,  CAP_DAC_OVERRIDE, CAP_FOWNER,  CAP_FSETID,           CAP_KILL,       CAP_SETGID,
    CAP_SETUID, CAP_SETPCAP,      CAP_SETFCAP, CAP_NET_BIND_SERVICE, CAP_SYS_CHROOT,
};

/* Of pid 1, which needs some for each command, file and connection. Commands get limits.files from it. */
enum { PID1_FILES = 65536 };

static struct sb_birth *free_births;
static char stage_stack[SB_STACK] __attribute__((aligned(16)));

struct sb_birth *sb_birth_take(void)
{
    struct sb_birth *b = free_births;
    if (b != NULL) {
        free_births = b->next;
        return b;
    }
    b = calloc(1, sizeof *b + sizeof sb_filter);
    if (b != NULL)
        b->filter = b + 1;
    return b;
}

/* A new address for each sandbox: 47 bits of which only those are fixed that a page of pid 1's own
 * needs. Nobody inside is told but pid 1, and whoever guesses it gains a clone3 that may do nothing
 * that clone may not (docs/internals/pid1.md). */
static void choose_clone_at(struct sb_birth *b)
{
    enum { PAGE = 4096, ARGS = 128 };
    const uint64_t low = 1ull << 32, high = (1ull << 47) - 2 * PAGE;
    do
        sb_random(&b->clone_at, sizeof b->clone_at);
    while ((b->clone_at %= 1ull << 47) < low || b->clone_at > high ||
           b->clone_at % PAGE > PAGE - ARGS);
    struct sock_filter *f = b->filter;
    memcpy(f, sb_filter, sizeof sb_filter);
    f[SB_FILTER_LOW].k = (uint32_t)b->clone_at;
    f[SB_FILTER_HIGH].k = (uint32_t)(b->clone_at >> 32);
}

void sb_birth_give(struct sb_birth *b)
{
    if (b == NULL)
        return;
    b->next = free_births;
    free_births = b;
}

/* In stage and child: every step is `TRY(b, "step", call)`. */
static size_t text_u32(char *out, uint32_t v)
{
    char rev[10];
    size_t n = 0, i = 0;
    do
        rev[n++] = (char)('0' + v % 10);
    while ((v /= 10) != 0);
    while (n > 0)
        out[i++] = rev[--n];
    return i;
}

/* Writes B's map: the identity on A's ids. */
static long write_map(pid_t pid, const char *file, const struct sb_idmap *map)
{
    char path[48] = "/proc/", text[160];
    size_t n = 6, t = 0;
    n += text_u32(path + n, (uint32_t)pid);
    for (; *file != '\0'; file++)
        path[n++] = *file;
    path[n] = '\0';
    for (int i = 0; i < map->n; i++) {
        t += text_u32(text + t, map->line[i].inside);
        text[t++] = ' ';
        t += text_u32(text + t, map->line[i].inside);
        text[t++] = ' ';
        t += text_u32(text + t, map->line[i].count);
        text[t++] = '\n';
    }
    long fd = sb_sys(openat, AT_FDCWD, path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return fd;
    long rc = sb_sys(write, fd, text, t);
    sb_sys(close, fd);
    return rc;
}

static long attach(long mount, int dir, const char *name)
{
    long at = sb_sys(openat, dir, name, O_PATH | O_NOFOLLOW | O_DIRECTORY | O_CLOEXEC);
    if (at < 0)
        return at;
    long rc =
        sb_sys(move_mount, mount, "", at, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
    sb_sys(close, at);
    return rc;
}

struct option {
    const char *key, *value;
};

/* A fresh file system of our own, detached. */
static long make_mount(const char *type, const struct option *opt, unsigned int attr)
{
    long fs = sb_sys(fsopen, type, FSOPEN_CLOEXEC);
    if (fs < 0)
        return fs;
    long rc = 0;
    for (; rc >= 0 && opt->key != NULL; opt++)
        rc = sb_sys(fsconfig, fs, FSCONFIG_SET_STRING, opt->key, opt->value, 0);
    if (rc >= 0)
        rc = sb_sys(fsconfig, fs, FSCONFIG_CMD_CREATE, 0, 0, 0);
    if (rc >= 0)
        rc = sb_sys(fsmount, fs, FSMOUNT_CLOEXEC, attr);
    sb_sys(close, fs);
    return rc;
}

/* Covers one entry of the fresh proc. Source and target are descriptors: no path of a tree that a
 * template or a sandbox controls is walked. Only one detached mount may live at a time (A's budget
 * of mount namespaces), hence the clone is attached at once. */
static long cover(long proc, const struct sb_mask *m)
{
    long src;
    if (m->how == SB_READ_ONLY) {
        struct mount_attr a = {.attr_set = MOUNT_ATTR_RDONLY};
        src = sb_sys(open_tree, proc, m->path, OPEN_TREE_CLONE | O_CLOEXEC);
        if (src >= 0 && sb_sys(mount_setattr, src, "", AT_EMPTY_PATH, &a, sizeof a) < 0) {
            sb_sys(close, src);
            return -EIO;
        }
    } else {
        src = sb_sys(open_tree, SB_FD_DEV, m->how == SB_HIDE_DIR ? ".none" : "null",
                     OPEN_TREE_CLONE | O_CLOEXEC);
    }
    if (src < 0)
        return src;
    long at = sb_sys(openat, proc, m->path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    long rc = at;
    if (at >= 0) {
        rc = sb_sys(move_mount, src, "", at, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
        sb_sys(close, at);
    }
    sb_sys(close, src);
    return rc;
}

static long cover_boot_id(long proc)
{
    long at = sb_sys(openat, proc, "sys/kernel/random/boot_id", O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (at < 0)
        return at;
    long rc = sb_sys(move_mount, SB_FD_BOOT_ID, "", at, "",
                     MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
    sb_sys(close, at);
    return rc;
}

static int build_root(struct sb_birth *b)
{
    static const struct option none[] = {{NULL, NULL}};
    /* The machine has 3072 terminals for all its sandboxes. */
    static const struct option pts[] = {
        {"gid", "5"}, {"ptmxmode", "0666"}, {"mode", "0620"}, {"max", "256"}, {NULL, NULL}};
    const struct option shm[] = {{"mode", "1777"}, {"size", b->shm}, {NULL, NULL}};
    const unsigned int quiet = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC;
    long m;

    /* On top of the old root: where it is does not matter, pivot_root turns them around. */
    TRY(b, "mount root",
        sb_sys(move_mount, SB_FD_ROOT, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH));
    for (int i = 0; i < b->trees; i++)
        TRY(b, "mount tree", attach(SB_FD_TREE + i, SB_FD_ROOT, b->tree[i]));
    TRY(b, "mount dev", attach(SB_FD_DEV, SB_FD_ROOT, "dev"));
    TRY(b, "devpts", m = make_mount("devpts", b->single ? pts + 1 : pts, quiet));
    TRY(b, "mount devpts", attach(m, SB_FD_DEV, "pts"));
    TRY(b, "close", sb_sys(close, m));
    TRY(b, "shm", m = make_mount("tmpfs", shm, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV));
    TRY(b, "mount shm", attach(m, SB_FD_DEV, "shm"));
    TRY(b, "close", sb_sys(close, m));
    TRY(b, "proc", m = make_mount("proc", none, quiet | MOUNT_ATTR_NODEV));
    TRY(b, "mount proc", attach(m, SB_FD_ROOT, "proc"));
    for (int i = 0; i < sb_masks; i++)
        TRY(b, sb_mask[i].path, cover(m, &sb_mask[i]));
    TRY(b, "boot id", cover_boot_id(m));

    TRY(b, "pivot", sb_sys(fchdir, SB_FD_ROOT));
    TRY(b, "pivot", sb_sys(pivot_root, ".", "."));
    TRY(b, "drop old root", sb_sys(umount2, ".", MNT_DETACH));
    TRY(b, "pivot", sb_sys(chdir, "/"));
    return 0;
}

static int drop_rights(struct sb_birth *b)
{
    const struct sock_fprog program = {sizeof sb_filter / sizeof *sb_filter, b->filter};
    for (unsigned int cap = 0; cap < 64; cap++) { /* also those that are younger than this */
        bool keep = false;
        for (size_t i = 0; i < sizeof kept_caps; i++)
            keep = keep || kept_caps[i] == cap;
        /* What this kernel does not know: EINVAL. */
        if (!keep) {
            long rc = sb_sys(prctl, PR_CAPBSET_DROP, cap);
            TRY(b, "capabilities", rc == -EINVAL ? 0 : rc);
        }
    }
    if (!b->allow_setuid)
        TRY(b, "no new privileges", sb_sys(prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    TRY(b, "seccomp", sb_sys(seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
    return 0;
}

/* pid 1's descriptors: 0-2 the sandbox's own /dev/null, 3 control, 4 listener, and until the exec 5,
 * the program. */
static int place_descriptors(struct sb_birth *b)
{
    long null;
    TRY(b, "null", null = sb_sys(openat, AT_FDCWD, "/dev/null", O_RDWR | O_NOFOLLOW | O_CLOEXEC));
    for (int fd = 0; fd < 3; fd++)
        TRY(b, "descriptors", sb_sys(dup3, null, fd, 0));
    TRY(b, "descriptors", sb_sys(dup3, SB_FD_CONTROL, 3, 0));
    TRY(b, "descriptors", sb_sys(dup3, SB_FD_LISTEN, 4, 0));
    TRY(b, "descriptors", sb_sys(dup3, SB_FD_IMAGE, 5, O_CLOEXEC));
    TRY(b, "descriptors", sb_sys(close_range, 6, ~0U, 0));
    return 0;
}

static int child(void *arg)
{
    struct sb_birth *b = arg;
    static const char *const argv[] = {"init", NULL};
    static const char *const envp[] = {NULL};
    struct timespec limit = {5, 0};

    while (b->go == 0)
        if (sb_sys(futex, &b->go, FUTEX_WAIT_PRIVATE, 0, &limit) == -ETIMEDOUT && b->go == 0) {
            b->step = "id maps";
            b->err = ETIMEDOUT; /* the supervisor and the stage were killed: leave nothing behind */
            return 1;
        }
    if (b->go < 0)
        return 1;
    TRY(b, "session", sb_sys(setsid, 0));
    sb_sys(umask, 022);
    if (build_root(b) != 0)
        return 1;
    size_t n = 0;
    while (b->hostname[n] != '\0')
        n++;
    TRY(b, "host name", sb_sys(sethostname, b->hostname, n));
    if (place_descriptors(b) != 0 || drop_rights(b) != 0)
        return 1;
    TRY(b, "exec", sb_sys(execveat, 5, "", argv, envp, AT_EMPTY_PATH));
    return 1;
}

static int set_limit(struct sb_birth *b, int what, uint64_t soft, uint64_t hard)
{
    struct rlimit64 now = {0}, want;
    TRY(b, "limits", sb_sys(prlimit64, 0, what, 0, &now));
    want.rlim_max = hard < now.rlim_max ? hard : now.rlim_max;
    want.rlim_cur = soft < want.rlim_max ? soft : want.rlim_max;
    TRY(b, "limits", sb_sys(prlimit64, 0, what, &want, 0));
    return 0;
}

static long write_note(struct sb_birth *b)
{
    struct stat st = {0};
    long fd = sb_sys(pidfd_open, b->pid, 0);
    if (fd < 0)
        return fd;
    long rc = sb_sys(fstat, fd, &st);
    sb_sys(close, fd);
    b->note.pid = b->pid;
    b->note.inode = st.st_ino;
    return rc < 0 ? rc : sb_sys(pwrite64, SB_FD_NOTE, &b->note, sizeof b->note, 0);
}

static int stage(void *arg)
{
    struct sb_birth *b = arg;
    struct clone_args args = {
        .flags = CLONE_VM | CLONE_PARENT | CLONE_CLEAR_SIGHAND | CLONE_NEWUSER | CLONE_NEWNS |
                 CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP,
        .stack = (uint64_t)(uintptr_t)b->stack,
        .stack_size = SB_STACK,
    };
    TRY(b, "enter outer namespace", sb_sys(setns, b->user, CLONE_NEWUSER));
    TRY(b, "enter network", sb_sys(setns, b->net, CLONE_NEWNET));
    /* From the shared table to one of our own with nothing but what the child takes along; the child
     * gets a copy. The supervisor goes on as soon as we end, and reuses the numbers. */
    TRY(b, "descriptors", sb_sys(close_range, SB_FD_END, ~0U, CLOSE_RANGE_UNSHARE));
    if (!b->single) {
        /* B may only be made, and its maps only be written, by an id that A knows. */
        TRY(b, "ids", sb_sys(setgroups, 0, 0));
        TRY(b, "ids", sb_sys(setresgid, 0, 0, 0));
        TRY(b, "ids", sb_sys(setresuid, 0, 0, 0));
    }
    TRY(b, "dumpable", sb_sys(prctl, PR_SET_DUMPABLE, 1, 0, 0, 0));
    /* Not 0: that keeps a dump from files only, and a host whose core_pattern is a program would run it as the
     * host's root on what a crash here wrote. The kernel takes 1 for a crash of that program itself: no dump. */
    uint64_t processes = b->processes + SB_PROCESSES_SPARE; /* a command has its share of it */
    if (set_limit(b, RLIMIT_CORE, 1, 1) || set_limit(b, RLIMIT_NPROC, processes, processes) ||
        set_limit(b, RLIMIT_NOFILE, PID1_FILES, RLIM64_INFINITY) ||
        set_limit(b, RLIMIT_MEMLOCK, 8 << 20, 8 << 20) ||
        set_limit(b, RLIMIT_MSGQUEUE, 819200, 819200) ||
        set_limit(b, RLIMIT_SIGPENDING, 4096, 4096) || set_limit(b, RLIMIT_RTPRIO, 0, 0) ||
        set_limit(b, RLIMIT_STACK, 8 << 20, RLIM64_INFINITY))
        return 1;
    long pid;
    TRY(b, "clone", pid = sb_raw_clone3(&args, sizeof args, child, b));
    b->pid = (pid_t)pid;
    long rc = write_note(b);
    if (rc >= 0)
        rc = write_map(b->pid, "/gid_map", b->map);
    if (rc >= 0)
        rc = write_map(b->pid, "/uid_map", b->map);
    if (rc < 0) {
        b->step = "birth note or id maps";
        b->err = (int)-rc;
    }
    b->go = rc >= 0 ? 1 : -1; /* from here on `step` and `err` are the child's */
    sb_sys(futex, &b->go, FUTEX_WAKE_PRIVATE, 1);
    return rc < 0;
}

static int wait_for(pid_t pid)
{
    siginfo_t info = {0};
    while (waitid(P_PID, (id_t)pid, &info, WEXITED | __WALL) < 0)
        if (errno != EINTR)
            return -1;
    return info.si_code == CLD_EXITED ? info.si_status : -1;
}

int sb_birth_start(struct sb_birth *b)
{
    struct clone_args args = {
        .flags = CLONE_VM | CLONE_VFORK | CLONE_FILES | CLONE_CLEAR_SIGHAND |
                 (b->cgroup >= 0 ? CLONE_INTO_CGROUP : 0),
        .stack = (uint64_t)(uintptr_t)stage_stack,
        .stack_size = sizeof stage_stack,
        .cgroup = b->cgroup >= 0 ? (uint64_t)b->cgroup : 0,
    };
    b->go = 0;
    b->err = 0;
    b->step = "stage";
    b->pid = 0;
    b->pidfd = -1;
    choose_clone_at(b);
    sb_slot_settle();
    long pid = sb_raw_clone3(&args, sizeof args, stage, b);
    if (pid < 0) {
        b->err = (int)-pid;
        return -1;
    }
    int status = wait_for((pid_t)pid);
    prctl(PR_SET_DUMPABLE, 0);
    if (status == 0) {
        /* It is our child and not reaped: the number is its own. */
        b->pidfd = pidfd_open(b->pid, 0);
        if (b->pidfd >= 0)
            return 0;
        b->err = errno;
    }
    if (b->err == 0)
        b->err = EINTR; /* the stage was killed */
    if (b->pid > 0) {
        kill(b->pid, SIGKILL); /* our own child, not reaped yet: the pid cannot be another's */
        wait_for(b->pid);
    }
    return -1;
}
