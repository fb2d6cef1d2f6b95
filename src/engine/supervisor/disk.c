/* An image is an ext4 file system in <root>/v1/s/<id>/disk, exactly as long as the limit and with all of its room set
 * aside: what a program has written inside is never lost because others have filled the disk outside.
 *
 * It is mounted through a loop device, detached: mount and device end with the last descriptor or overlay that needs
 * them, whoever is killed. Two devices on one image would destroy it. Therefore whoever attaches one locks the image;
 * the kernel keeps the open file, and with it the lock, as long as the device. Who finds it locked looks for the device
 * and mounts that once more, which is the same file system. */
#include "disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "job.h"

#define MIB (1ULL << 20)

static const char image_name[] = "disk";

enum {
    TRIES = 100, /* others take free devices as well, and one that ends is neither there nor gone */
    WAIT_S = 5,  /* for the end of a mount, in a process of its own */
    TOOL_FAILED = 1, /* no errno that setting room aside has */
};

/* ---- what there is ---- */

static const char *const tools[] = {"/usr/sbin/mke2fs", "/sbin/mke2fs", "/usr/bin/mke2fs",
                                    "/bin/mke2fs", "/usr/local/sbin/mke2fs"};

static const char *tool(void)
{
    for (size_t i = 0; i < sizeof tools / sizeof *tools; i++)
        if (access(tools[i], X_OK) == 0)
            return tools[i];
    return NULL;
}

/* A device that nobody uses, for now. */
static int free_device(char *path, size_t size)
{
    sb_autofd int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    int n = control < 0 ? -1 : ioctl(control, LOOP_CTL_GET_FREE);
    if (n < 0)
        return -1;
    snprintf(path, size, "/dev/loop%d", n);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        errno = ENXIO; /* it is no file of anybody's that is not there */
    return fd;
}

static const char *lacking(void)
{
    char path[32];
    if (sup.mode != SB_MODE_ROOT)
        return "only root can mount an image";
    if (tool() == NULL)
        return "there is no mke2fs (package e2fsprogs)";
    sb_autofd int fs = fsopen("ext4", FSOPEN_CLOEXEC);
    if (fs < 0)
        return "the kernel has no ext4, or lets nobody mount it";
    sb_autofd int device = free_device(path, sizeof path);
    return device < 0 ? "there are no loop devices here" : NULL;
}

static const char *why_not(void)
{
    static bool known;
    static const char *why;
    if (!known)
        why = lacking();
    known = true;
    return why;
}

bool sb_disk_can(void)
{
    return why_not() == NULL;
}

int sb_disk_check(const struct sb_record *r, struct sb_failure *f)
{
    return r->limit_disk == 0 || sb_disk_can()
               ? 0
               : sb_failed(f, "Unsupported", 0, "limits.disk", "limits.disk: %s", why_not());
}

/* ---- mounting ---- */

static int mount_device(const char *path)
{
    sb_autofd int fs = fsopen("ext4", FSOPEN_CLOEXEC);
    if (fs < 0 || fsconfig(fs, FSCONFIG_SET_STRING, "source", path, 0) < 0 ||
        /* Else a thread of the kernel's would write the tables full, unused as they are. */
        fsconfig(fs, FSCONFIG_SET_FLAG, "noinit_itable", NULL, 0) < 0 ||
        fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return -1;
    return sb_lift(fsmount(fs, FSMOUNT_CLOEXEC, 0));
}

/* `image` is locked by us: no device has it. */
static int mount_new(int image)
{
    for (int i = 0; i < TRIES; i++) {
        char path[32];
        struct loop_config how = {.fd = (unsigned int)image, .info.lo_flags = LO_FLAGS_AUTOCLEAR};
        sb_autofd int device = free_device(path, sizeof path);
        if (device < 0)
            return -1;
        if (ioctl(device, LOOP_CONFIGURE, &how) == 0)
            return mount_device(path);
        if (errno != EBUSY)
            return -1;
    }
    errno = EBUSY;
    return -1;
}

/* The device that has this image. While it is open here it stays that. */
static int find_device(const struct stat *st, char *path, size_t size)
{
    DIR *d = opendir("/dev");
    int found = -1;
    for (struct dirent *e; d != NULL && found < 0 && (e = readdir(d)) != NULL;) {
        struct loop_info64 info;
        unsigned int n;
        if (sscanf(e->d_name, "loop%u", &n) != 1)
            continue;
        snprintf(path, size, "/dev/loop%u", n);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            continue;
        if (ioctl(fd, LOOP_GET_STATUS64, &info) == 0 && info.lo_device == st->st_dev &&
            info.lo_inode == st->st_ino)
            found = fd;
        else
            close(fd);
    }
    if (d != NULL)
        closedir(d);
    return found;
}

static int mount_image(int image)
{
    struct stat st;
    if (fstat(image, &st) < 0)
        return -1;
    for (int i = 0; i < TRIES; i++) {
        char path[32];
        if (flock(image, LOCK_EX | LOCK_NB) == 0)
            return mount_new(image);
        sb_autofd int device = find_device(&st, path, sizeof path);
        if (device >= 0)
            return mount_device(path);
        poll(NULL, 0, 1); /* it is ending */
    }
    errno = EBUSY;
    return -1;
}

static int open_image(int dir)
{
    return openat(dir, image_name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
}

int sb_disk_open(int dir)
{
    sb_autofd int image = open_image(dir);
    return image < 0 ? -1 : mount_image(image);
}

int sb_disk_mount(struct sb_box *b, int dir, struct sb_failure *f)
{
    if (b->rec.limit_disk == 0 || b->disk >= 0)
        return 0;
    if (sb_disk_check(&b->rec, f) < 0)
        return -1;
    b->disk = sb_disk_open(dir);
    return b->disk < 0 ? sb_failed_errno(f, "disk", "cannot mount the sandbox's disk") : 0;
}

/* In a process of its own, with the sandbox's directory at 3. */
static void wait_and_sync(void)
{
    const struct sigaction end = {.sa_handler = SIG_DFL};
    sb_autofd int image = open_image(3);
    sigaction(SIGALRM, &end, NULL);
    alarm(WAIT_S);
    if (image >= 0)
        flock(image, LOCK_EX); /* nobody has it mounted any more */
    alarm(0);
    syncfs(3);
}

int sb_disk_sync(int dir, struct sb_source *src, void (*ready)(struct sb_source *, uint32_t))
{
    pid_t pid = dir < 0 ? -1 : fork();
    if (pid == 0) {
        if (dup2(dir, 3) == 3 && close_range(4, ~0U, 0) == 0)
            wait_and_sync();
        _exit(0);
    }
    return sb_job_watch(src, pid, ready);
}

bool sb_disk_used(const struct sb_box *b, uint64_t *bytes)
{
    struct statfs st;
    sb_autofd int dir = sb_box_dir(b);
    sb_autofd int disk = dir < 0 ? -1 : sb_disk_open(dir);
    if (disk < 0 || fstatfs(disk, &st) < 0)
        return false;
    *bytes = (uint64_t)(st.f_blocks - st.f_bfree) * (uint64_t)st.f_bsize;
    return true;
}

/* ---- making one ---- */

/* In a process of its own, with the image at 3. Its status: 0, an errno, or the tool's. */
static void make(uint64_t bytes)
{
    char *journal = bytes < 256 * MIB ? "size=4" : bytes < 4096 * MIB ? "size=16" : "size=64";
    char *const argv[] = {"mke2fs",
                          "-q",
                          "-F",
                          "-t",
                          "ext4",
                          "-b",
                          "4096",
                          "-I",
                          "256",
                          "-i",
                          "16384",
                          "-m",
                          "0",
                          "-J",
                          journal,
                          "-e",
                          "remount-ro",
                          "-O",
                          "^resize_inode",
                          "-E",
                          "nodiscard,lazy_itable_init=1,lazy_journal_init=1",
                          "/proc/self/fd/3",
                          NULL};
    char *const none[] = {NULL};
    if (fallocate(3, 0, 0, (off_t)bytes) < 0)
        _exit(errno);
    setpriority(PRIO_PROCESS, 0, 5);
    execve(tool(), argv, none);
    _exit(errno);
}

static void made(struct sb_source *src, uint32_t events)
{
    struct sb_box *b = SB_OWNER(src, struct sb_box, proc);
    struct sb_failure f;
    (void)events;
    sb_box_stir(b);
    int err = sb_job_end(src, NULL), rc;
    b->dying = false;
    b->step_due_ms = 0;
    if (b->goal == SB_GOAL_DESTROY) {
        sb_life_destroy(b);
        return;
    }
    if (err == TOOL_FAILED)
        rc = sb_failed(&f, "Platform", 0, "disk", "mke2fs cannot make the sandbox's disk");
    else if (err != 0)
        rc = sb_failed(&f, NULL, err, "disk", "no room for limits.disk of %llu bytes",
                       (unsigned long long)b->rec.limit_disk);
    else
        rc = sb_boot_create(b, &f);
    if (rc < 0) {
        sb_box_settle(b, &f);
        sb_box_forget(b);
    }
}

int sb_disk_begin(struct sb_box *b, struct sb_failure *f)
{
    if (b->rec.limit_disk == 0)
        return 0;
    if (sb_box_dir_exists(b)) { /* found out now, not when all is made */
        errno = EEXIST;
        return sb_boot_taken(b, f);
    }
    b->image = sb_lift(openat(sup.boxes, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (b->image < 0)
        return sb_failed_errno(f, "disk", "cannot make the sandbox's disk");
    pid_t pid = fork();
    if (pid == 0) {
        /* Every other descriptor would keep sockets and locks alive. */
        if (dup2(b->image, 3) != 3 || close_range(4, ~0U, 0) < 0)
            _exit(errno);
        make(b->rec.limit_disk);
    }
    if (sb_job_watch(&b->proc, pid, made) < 0)
        return sb_failed_errno(f, "disk", "cannot start mke2fs");
    return 1;
}

int sb_disk_place(struct sb_box *b, int dir, struct sb_failure *f)
{
    if (b->image < 0)
        return 0;
    int rc = linkat(b->image, "", dir, image_name, AT_EMPTY_PATH) < 0
                 ? sb_failed_errno(f, "disk", "cannot name the sandbox's disk")
                 : 0;
    sb_close(&b->image);
    return rc;
}
