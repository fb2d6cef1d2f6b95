/* Overlays, clones and the device tree, all through the new mount API: layers are descriptors, so
 * no path of the host shows inside, and nothing here walks a tree that a sandbox controls. */
#include "mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#ifndef OPEN_TREE_CLOEXEC
#define OPEN_TREE_CLOEXEC O_CLOEXEC
#endif

struct sb_mask sb_mask[SB_MASKS_MAX];
int sb_masks;

static int device_tree = -1;

static const struct {
    const char *name;
    unsigned int minor_of_1, minor_of_5;
} node[] = {
    {"null", 3, 0},   {"zero", 5, 0},    {"full", 7, 0},
    {"random", 8, 0}, {"urandom", 9, 0}, {"tty", 0, 1},
};

static const struct {
    const char *name, *target;
} link_of[] = {
    {"fd", "/proc/self/fd"},       {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"},
    {"stderr", "/proc/self/fd/2"}, {"ptmx", "pts/ptmx"},
};

static int set_attr(int fd, unsigned int flags, uint64_t set, uint64_t propagation, int user)
{
    struct mount_attr a = {.attr_set = set, .propagation = propagation};
    if (user >= 0) {
        a.attr_set |= MOUNT_ATTR_IDMAP;
        a.userns_fd = (uint64_t)user;
    }
    return mount_setattr(fd, "", AT_EMPTY_PATH | flags, &a, sizeof a);
}

int sb_mounts_clone(int dir, int user)
{
    int fd = open_tree(dir, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
    if (fd >= 0 && set_attr(fd, 0, 0, MS_PRIVATE, user) < 0)
        sb_close_at(&fd), fd = -1;
    return fd;
}

int sb_mounts_own(int mount, int user)
{
    return set_attr(mount, 0, 0, MS_PRIVATE, user);
}

int sb_mounts_clone_readonly(int dir, const char *path, int user)
{
    int fd = open_tree(dir, path,
                       OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE | AT_SYMLINK_NOFOLLOW);
    if (fd < 0)
        return -1;
    if (set_attr(fd, AT_RECURSIVE, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV,
                 MS_PRIVATE, -1) < 0 ||
        (user >= 0 && set_attr(fd, 0, 0, 0, user) < 0))
        sb_close_at(&fd), fd = -1;
    return fd;
}

/* Layers by descriptor came with Linux 6.13; before, a /proc path of the same descriptor serves. */
static int set_layer(int fs, const char *key, int fd)
{
    if (fsconfig(fs, FSCONFIG_SET_FD, key, NULL, fd) == 0)
        return 0;
    char path[40];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (fsconfig(fs, FSCONFIG_SET_STRING, key, path, 0) == 0)
        return 0;
    /* Several lowers came with Linux 6.5. */
    return strcmp(key, "lowerdir+") == 0 ? fsconfig(fs, FSCONFIG_SET_STRING, "lowerdir", path, 0)
                                         : -1;
}

int sb_mounts_overlay(const int *lower, int n, int upper, int work, int64_t id, bool allow_setuid)
{
    static const char *const off[] = {"index", "metacopy"};
    sb_autofd int fs = fsopen("overlay", FSOPEN_CLOEXEC);
    if (fs < 0)
        return -1;
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (fsconfig(fs, FSCONFIG_SET_STRING, off[i], "off", 0) < 0)
            return -1;
    /* The kernel refuses it beside userxattr, which by itself means "nofollow". */
    if (sup.mode == SB_MODE_ROOT && fsconfig(fs, FSCONFIG_SET_STRING, "redirect_dir", "off", 0) < 0)
        return -1;
    if (sup.mode != SB_MODE_ROOT && fsconfig(fs, FSCONFIG_SET_FLAG, "userxattr", NULL, 0) < 0)
        return -1;
    /* Without it the end of every sandbox would wait for a sync of the whole file system below. What
     * must reach the disk (a pause) is synced by the supervisor. */
    if (fsconfig(fs, FSCONFIG_SET_FLAG, "volatile", NULL, 0) < 0)
        return -1;
    for (int i = 0; i < n; i++)
        if (set_layer(fs, "lowerdir+", lower[i]) < 0)
            return -1;
    if (fsconfig(fs, FSCONFIG_SET_STRING, "source", "sandbar", 0) < 0 ||
        set_layer(fs, "upperdir", upper) < 0 || set_layer(fs, "workdir", work) < 0)
        return -1;
    if (id >= 0) {
        /* NO_SETUID_FIXUP is set (main.c): the capabilities stay. */
        syscall(SYS_setfsgid, (gid_t)id);
        syscall(SYS_setfsuid, (uid_t)id);
    }
    int rc = fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0);
    int err = errno;
    if (id >= 0) {
        syscall(SYS_setfsuid, 0);
        syscall(SYS_setfsgid, 0);
    }
    errno = err;
    if (rc < 0)
        return -1;
    unsigned int attr = MOUNT_ATTR_NODEV | (allow_setuid ? 0 : MOUNT_ATTR_NOSUID);
    return fsmount(fs, FSMOUNT_CLOEXEC, attr);
}

/* Root makes real nodes. Anybody else cannot: the host's are cloned onto empty files. */
static int add_node(int tree, size_t i)
{
    const char *name = node[i].name;
    if (sup.mode == SB_MODE_ROOT) {
        dev_t dev = node[i].minor_of_5 != 0 ? makedev(5, 0) : makedev(1, node[i].minor_of_1);
        if (mknodat(tree, name, S_IFCHR | 0666, dev) == 0)
            return 0;
    }
    char path[32];
    snprintf(path, sizeof path, "/dev/%s", name);
    sb_autofd int file = openat(tree, name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    sb_autofd int host = open_tree(AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (file < 0 || host < 0 ||
        set_attr(host, 0, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, MS_PRIVATE, -1) < 0)
        return -1;
    return move_mount(host, "", tree, name, MOVE_MOUNT_F_EMPTY_PATH);
}

static int build_devices(void)
{
    sb_autofd int fs = fsopen("tmpfs", FSOPEN_CLOEXEC);
    if (fs < 0 || fsconfig(fs, FSCONFIG_SET_STRING, "source", "sandbar", 0) < 0 ||
        fsconfig(fs, FSCONFIG_SET_STRING, "mode", "0755", 0) < 0 ||
        fsconfig(fs, FSCONFIG_SET_STRING, "size", "64k", 0) < 0 ||
        fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return -1;
    int tree = fsmount(fs, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
    if (tree < 0)
        return -1;
    if (mkdirat(tree, "pts", 0755) < 0 || mkdirat(tree, "shm", 01777) < 0 ||
        mkdirat(tree, ".none", 0555) < 0)
        goto fail;
    for (size_t i = 0; i < sizeof link_of / sizeof *link_of; i++)
        if (symlinkat(link_of[i].target, tree, link_of[i].name) < 0)
            goto fail;
    for (size_t i = 0; i < sizeof node / sizeof *node; i++)
        if (add_node(tree, i) < 0)
            goto fail;
    if (set_attr(tree, 0, MOUNT_ATTR_RDONLY, MS_PRIVATE, -1) < 0)
        goto fail;
    return tree;
fail:
    sb_close_at(&tree);
    return -1;
}

int sb_mounts_device(void)
{
    return open_tree(device_tree, "",
                     OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | AT_RECURSIVE);
}

/* What nobody but the host's root may open needs no mask: no id of a sandbox is the host's root, and
 * its capabilities do not reach there. The masks are for what everybody could read. */
static void choose_masks(void)
{
    static const struct sb_mask wanted[] = {
        {"sys", SB_READ_ONLY},           {"irq", SB_READ_ONLY},
        {"bus", SB_READ_ONLY},           {"fs", SB_READ_ONLY},
        {"sysrq-trigger", SB_HIDE_FILE}, {"kcore", SB_HIDE_FILE},
        {"keys", SB_HIDE_FILE},          {"key-users", SB_HIDE_FILE},
        {"timer_list", SB_HIDE_FILE},    {"sched_debug", SB_HIDE_FILE},
        {"latency_stats", SB_HIDE_FILE}, {"kallsyms", SB_HIDE_FILE},
        {"kpagecount", SB_HIDE_FILE},    {"kpageflags", SB_HIDE_FILE},
        {"kpagecgroup", SB_HIDE_FILE},   {"config.gz", SB_HIDE_FILE},
        {"cmdline", SB_HIDE_FILE},       {"interrupts", SB_HIDE_FILE},
        {"diskstats", SB_HIDE_FILE},     {"timer_stats", SB_HIDE_FILE},
        {"acpi", SB_HIDE_DIR},           {"scsi", SB_HIDE_DIR},
        {"asound", SB_HIDE_DIR},         {"pressure", SB_HIDE_DIR},
        {"mtrr", SB_HIDE_FILE},          {"iomem", SB_HIDE_FILE},
        {"ioports", SB_HIDE_FILE},
    };
    sb_autofd int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        struct stat st;
        if (fstatat(proc, wanted[i].path, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        if ((st.st_mode & 0006) != 0)
            sb_mask[sb_masks++] = wanted[i];
    }
}

int sb_mounts_start(struct sb_failure *f)
{
    choose_masks();
    device_tree = sb_lift(build_devices());
    return device_tree < 0 ? sb_failed_errno(f, "devices", "cannot build the device tree") : 0;
}
