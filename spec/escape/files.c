/* Files, mounts and devices. */
#include "probe.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

static void write_tree(const char *dir)
{
    struct dirent *e;
    DIR *d = opendir(dir);
    while (d != NULL && (e = readdir(d)) != NULL) {
        char path[512];
        int fd;
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (e->d_type == DT_DIR) {
            write_tree(path);
            continue;
        }
        fd = open(path, O_WRONLY | O_NONBLOCK);
        if (fd >= 0) {
            worked("%s opens for writing", path);
            close(fd);
        }
    }
    if (d != NULL)
        closedir(d);
}

/* Opens only: in a room it is the machine's own. */
static void sysctls(const char *arg)
{
    (void)arg;
    write_tree("/proc/sys/kernel");
    write_tree("/proc/sys/fs");
    write_tree("/proc/sys/vm");
    write_tree("/proc/sys/net/core");
    write_tree("/proc/sys/user");
    attack(0, "sysrq-trigger", open("/proc/sysrq-trigger", O_WRONLY));
    attack(ROOT, "core_pattern", open("/proc/sys/kernel/core_pattern", O_WRONLY));
    attack(0, "irq affinity", open("/proc/irq/default_smp_affinity", O_WRONLY));
}

static void mounts_old(const char *arg)
{
    (void)arg;
    mkdir("/tmp/m", 0755);
    if (room != INSIDE && unshare(CLONE_NEWNS) != 0)
        cannot("unshare");
    attack(PLAIN, "tmpfs", mount("none", "/tmp/m", "tmpfs", 0, NULL));
    attack(PLAIN, "a second proc", mount("none", "/tmp/m", "proc", 0, NULL));
    attack(0, "overlay",
           mount("none", "/tmp/m", "overlay", 0, "lowerdir=/usr,upperdir=/tmp,workdir=/tmp"));
    attack(PLAIN, "bind", mount("/usr", "/tmp/m", NULL, MS_BIND | MS_REC, NULL));
    attack(0, "cgroup2", mount("none", "/tmp/m", "cgroup2", 0, NULL));
    attack(0, "cgroup with a release agent", mount("none", "/tmp/m", "cgroup", 0, "memory"));
    attack(PLAIN, "remount /tmp", mount(NULL, "/tmp", NULL, MS_REMOUNT | MS_BIND, NULL));
    attack(0, "remount / with set-id and devices",
           mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND, NULL));
    attack(0, "remount /dev", mount(NULL, "/dev", NULL, MS_REMOUNT | MS_BIND, NULL));
    attack(0, "shared propagation",
           room == INSIDE ? mount(NULL, "/", NULL, MS_SHARED | MS_REC, NULL) : -1);
    attack(0, "unmount /proc/sys", umount2("/proc/sys", MNT_DETACH));
    attack(0, "unmount /proc/kcore", umount2("/proc/kcore", MNT_DETACH));
    attack(PLAIN, "unmount /proc", umount2("/proc", MNT_DETACH));
    attack(PLAIN, "pivot_root",
           mkdir("/tmp/old", 0700) == 0 ? syscall(SYS_pivot_root, "/tmp", "/tmp/old") : -1);
}

static void mounts_new(const char *arg)
{
    char attr[32] = {0};
    int fs, tree;
    (void)arg;
    if (room != INSIDE && unshare(CLONE_NEWNS) != 0)
        cannot("unshare");
    attack(PLAIN, "fsopen tmpfs", fs = (int)syscall(SYS_fsopen, "tmpfs", 0));
    attack(PLAIN, "fsconfig", syscall(SYS_fsconfig, fs, 6, NULL, NULL, 0));
    attack(PLAIN, "fsmount", syscall(SYS_fsmount, fs, 0, 0));
    attack(PLAIN, "fsopen proc", syscall(SYS_fsopen, "proc", 0));
    attack(PLAIN, "open_tree clone", tree = (int)syscall(SYS_open_tree, AT_FDCWD, "/proc", 1));
    attack(PLAIN, "move_mount", syscall(SYS_move_mount, tree, "", AT_FDCWD, "/tmp", 4));
    attack(0, "fspick", syscall(SYS_fspick, AT_FDCWD, "/", 0));
    attack(PLAIN, "mount_setattr",
           syscall(SYS_mount_setattr, AT_FDCWD, "/tmp", 0, attr, sizeof attr));
    attack(0, "open_tree_attr", syscall(467, AT_FDCWD, "/usr", 1, attr, sizeof attr));
}

static void devices(const char *arg)
{
    const struct {
        int rooms;
        const char *what;
        mode_t type;
        dev_t number;
    } each[] = {{ROOT, "a made device", S_IFCHR, makedev(1, 9)},
                {0, "a made disk", S_IFBLK, makedev(254, 0)}, /* not every machine's root may */
                {0, "a made /dev/mem", S_IFCHR, makedev(1, 1)}};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        unlink("made");
        attack(each[i].rooms, each[i].what,
               mknod("made", each[i].type | 0600, each[i].number) == 0 ? open("made", O_RDONLY)
                                                                       : -1);
        unlink("made");
    }
    if (room != INSIDE)
        return;
    attack(0, "an entry in /dev itself", open("/dev/new", O_CREAT | O_WRONLY, 0600));
    attack(0, "another name for a device", link("/dev/null", "/dev/shm/null"));
    attack(0, "/dev/null with another mode", chmod("/dev/null", 0600));
    /* argument: a device that came with the template */
    if (arg != NULL)
        attack(0, "a shipped device", open(arg, O_RDONLY));
}

/* The host's root must not be above ours: in a room it is, where chroot alone made the new root. */
static void chroot_out(const char *arg)
{
    struct stat before, after;
    int fd;
    (void)arg;
    if (room != INSIDE && chroot("/usr") != 0)
        cannot("chroot");
    if (stat("/", &before) != 0 || (fd = open("/", O_RDONLY | O_DIRECTORY)) < 0)
        cannot("/");
    mkdir("/tmp/jail", 0755);
    if (chroot(room == INSIDE ? "/tmp/jail" : "/bin") != 0) {
        attack(PLAIN, "chroot", -1);
        return;
    }
    if (fchdir(fd) != 0)
        return;
    for (int i = 0; i < 200; i++)
        if (chdir("..") != 0)
            break;
    errno = EXDEV;
    attack(PLAIN, "what is above the root",
           chroot(".") == 0 && stat("/", &after) == 0 &&
                   (after.st_ino != before.st_ino || after.st_dev != before.st_dev)
               ? 0
               : -1);
}

static void handles(const char *arg)
{
    struct {
        struct file_handle h;
        unsigned char data[128];
    } f = {.h = {.handle_bytes = 8, .handle_type = 1}};
    int mount_id, dir = open("/", O_RDONLY | O_DIRECTORY);
    (void)arg;
    for (uint32_t inode = 2; inode < 64; inode++) {
        memset(f.data, 0, sizeof f.data);
        memcpy(f.h.f_handle, &inode, sizeof inode);
        int fd = (int)syscall(SYS_open_by_handle_at, dir, &f.h, O_RDONLY | O_PATH);
        if (inode == 2 || fd >= 0)
            attack(ROOT, "a file by its number", fd);
    }
    f.h.handle_bytes = 128;
    attack(PLAIN | ROOT, "the number of a file",
           syscall(SYS_name_to_handle_at, AT_FDCWD, "/usr/bin", &f.h, &mount_id, 0));
}

static void secrets(const char *arg)
{
    static const char *const masked[] = {"/proc/kcore",
                                         "/proc/keys",
                                         "/proc/key-users",
                                         "/proc/timer_list",
                                         "/proc/sched_debug",
                                         "/proc/latency_stats",
                                         "/proc/kallsyms",
                                         "/proc/kpagecount",
                                         "/proc/kpageflags",
                                         "/proc/config.gz",
                                         "/proc/cmdline",
                                         "/proc/interrupts",
                                         "/proc/diskstats",
                                         "/proc/kmsg",
                                         "/proc/scsi/scsi",
                                         "/proc/acpi/wakeup",
                                         "/proc/iomem",
                                         "/proc/ioports",
                                         "/proc/pressure/cpu",
                                         "/sys/kernel/uevent_seqnum",
                                         "/sys/firmware",
                                         "/sys/class/net/lo/address",
                                         "/dev/mem",
                                         "/dev/kmsg",
                                         "/dev/port",
                                         "/dev/fuse",
                                         "/dev/kvm",
                                         "/dev/vsock",
                                         "/dev/userfaultfd",
                                         "/etc/shadow",
                                         "/etc/machine-id",
                                         "/root/.bashrc",
                                         "/boot",
                                         "/var/lib/dpkg/status"};
    (void)arg;
    for (size_t i = 0; i < sizeof masked / sizeof *masked; i++) {
        char buf[256];
        if (room != INSIDE && strstr(masked[i], "kmsg") != NULL)
            continue; /* what is read there is lost for its reader */
        int fd = open(masked[i], O_RDONLY | O_NONBLOCK);
        ssize_t n = fd < 0 ? -1 : read(fd, buf, sizeof buf);
        if (n > 0)
            worked("%s can be read (%zd bytes)", masked[i], n);
        if (fd >= 0)
            close(fd);
    }
}

/* argument: the host's state directory */
static void upper(const char *arg)
{
    static const char *const tables[] = {
        "/proc/self/mountinfo", "/proc/1/mountinfo", "/proc/self/mounts", "/proc/self/maps",
        "/proc/self/cgroup",    "/proc/net/unix",    "/proc/locks"};
    char line[4096];
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        FILE *f = fopen(tables[i], "r");
        while (f != NULL && fgets(line, sizeof line, f) != NULL)
            if (arg != NULL && strstr(line, arg) != NULL)
                worked("%s shows the host's state directory: %s", tables[i], line);
        if (f != NULL)
            fclose(f);
    }
    attack(arg != NULL ? HOST : 0, "the state directory", arg != NULL ? open(arg, O_RDONLY) : -1);
    attack(0, "/upper", open("/upper", O_RDONLY));
    attack(0, "/work", open("/work", O_RDONLY));
    snprintf(line, sizeof line, "/proc/1/root%s", arg != NULL ? arg : "/upper");
    attack(0, "the same by pid 1's root", open(line, O_RDONLY));
}

/* What an overlay keeps its own notes in. Those of `trusted` are out of reach; those of `user` may be set, and the
 * spec looks that they mean nothing. */
static void overlay_notes(const char *arg)
{
    (void)arg;
    mkdir("noted", 0755);
    attack(ROOT, "trusted.overlay.opaque", setxattr("noted", "trusted.overlay.opaque", "y", 1, 0));
    attack(0, "trusted.overlay.redirect",
           setxattr("noted", "trusted.overlay.redirect", "/etc", 4, 0));
    attack(PLAIN | ROOT, "an entry that hides what is below",
           mknod("noted/hidden", S_IFCHR | 0600, 0));
    for (size_t i = 0; i < 4; i++) {
        static const char *const name[] = {"opaque", "redirect", "metacopy", "origin"};
        char full[64];
        snprintf(full, sizeof full, "user.overlay.%s", name[i]);
        setxattr("noted", full, i == 1 ? "/etc" : "y", i == 1 ? 4 : 1, 0);
    }
    attack(0, "an immutable file",
           ioctl(open("noted", O_RDONLY), 0x40086602 /* FS_IOC_SETFLAGS */, &(long){0x10}));
}

/* argument: how many writes. Tries to change what the template brought, in all ways: the spec compares on the host.
 * Root inside gets copies of its own. */
static void template_writes(const char *arg)
{
    long count = arg != NULL ? strtol(arg, NULL, 10) : 100, done = 0;
    struct dirent *e;
    DIR *d = opendir("/usr/bin");
    while (d != NULL && done < count && (e = readdir(d)) != NULL) {
        char path[300], other[310];
        struct stat st;
        int fd;
        snprintf(path, sizeof path, "/usr/bin/%s", e->d_name);
        snprintf(other, sizeof other, "%s.new", path);
        if (lstat(path, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size > 60000)
            continue;
        fd = open(path, done % 3 == 0 ? O_WRONLY | O_TRUNC : O_RDWR);
        if (fd >= 0) {
            (void)!write(fd, "hostile", 7);
            (void)!ftruncate(fd, 3);
            close(fd);
        }
        (void)!chmod(path, 06777);
        (void)!chown(path, 1000, 1000);
        (void)!setxattr(path, "user.hostile", "1", 1, 0);
        (void)!link(path, other);
        if (done % 2 == 0)
            (void)!rename(other, path);
        else
            (void)!unlink(path);
        done++;
    }
    if (d != NULL)
        closedir(d);
    printf("%ld files were attacked\n", done);
    if (done == 0)
        worked("nothing was tried");
}

const struct probe file_probes[] = {
    {"sysctls", ROOT, sysctls},
    {"mounts_old", PLAIN, mounts_old},
    {"mounts_new", PLAIN, mounts_new},
    {"devices", ROOT, devices},
    {"chroot_out", PLAIN, chroot_out},
    {"handles", PLAIN | ROOT, handles},
    {"secrets", HOST, secrets},
    {"upper", HOST, upper},
    {"overlay_notes", ROOT, overlay_notes},
    {"template_writes", 0, template_writes}, /* the spec looks on the host */
    {NULL, 0, NULL}};
