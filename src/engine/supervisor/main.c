/* The supervisor of one state directory and user: start-up and end. It is started on demand by a
 * caller, with 3 = where to report, 4 = pid 1's program, 5 = the state directory. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/fs.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "../relay/relay.h"
#include "adopt.h"
#include "box.h"
#include "cgroup.h"
#include "limits.h"
#include "conn.h"
#include "loop.h"
#include "mounts.h"
#include "rootless.h"
#include "settings.h"
#include "slot.h"
#include "spare.h"
#include "sup.h"
#include "template.h"
#include "trash.h"

enum {
    LOCK_SECONDS = 10,
    FD_PROGRAM = 4,
    FD_STATE = 5,
    LINGER_DEFAULT_MS = 60000,
    GRACE_MS = 600000
};

struct sb_sup sup;

static void report(const char *line)
{
    (void)!write(SB_FD_STATUS, line, strlen(line));
    close(SB_FD_STATUS);
}

static _Noreturn void give_up(const struct sb_failure *f)
{
    char line[400], step[40];
    snprintf(step, sizeof step, "%s", f->step);
    for (char *p = step; *p != '\0'; p++)
        if (*p == ' ')
            *p = '-';
    snprintf(line, sizeof line, "error %s %d %s %s\n", f->kind, f->err, step, f->message);
    report(line);
    exit(1);
}

static void on_alarm(int sig)
{
    (void)sig;
}

/* A lock that is not given within its time makes flock return EINTR. */
static int lock(const char *name, struct sb_failure *f)
{
    int fd = openat(sup.v1, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return sb_failed(f, NULL, errno, name, "cannot open");
    alarm(LOCK_SECONDS);
    int rc = flock(fd, LOCK_EX);
    int err = errno;
    alarm(0);
    if (rc == 0)
        return fd;
    close(fd);
    return sb_failed(f, err == EINTR ? "Timeout" : NULL, err, name,
                     "another supervisor holds the lock");
}

static void socket_name(struct sockaddr_un *a)
{
    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX;
    snprintf(a->sun_path, sizeof a->sun_path, "/proc/self/fd/%d/sock", sup.v1);
}

static bool somebody_listens(void)
{
    struct sockaddr_un a;
    socket_name(&a);
    sb_autofd int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return fd >= 0 && (connect(fd, (struct sockaddr *)&a, sizeof a) == 0 || errno == EAGAIN);
}

static int bind_socket(struct sb_failure *f)
{
    struct sockaddr_un a;
    socket_name(&a);
    unlinkat(sup.v1, "sock", 0);
    int fd = sb_lift(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, 128) < 0 ||
        sb_conn_listen(fd) < 0)
        return sb_failed_errno(f, "listen", "cannot listen for callers");
    return 0;
}

/* Says that what is made in this directory has nothing to do with each other: ext4 then spreads it over
 * the disk. Otherwise all sandboxes share one group of inodes, and an ext4 without a journal looks at
 * every inode of the group that was freed in the last minute before it gives one out: with many short
 * lives that was 10 ms and more for each. A wish: other file systems do not know it. */
static void spread(int dir)
{
    int flags = 0;
    if (ioctl(dir, FS_IOC_GETFLAGS, &flags) < 0 || (flags & FS_TOPDIR_FL) != 0)
        return;
    flags |= FS_TOPDIR_FL;
    ioctl(dir, FS_IOC_SETFLAGS, &flags);
}

static int subdirectory(const char *name, int *fd, struct sb_failure *f)
{
    if (mkdirat(sup.v1, name, 0700) < 0 && errno != EEXIST)
        return sb_failed(f, NULL, errno, "state", "cannot make %s", name);
    *fd = sb_lift(openat(sup.v1, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (*fd < 0)
        return sb_failed(f, NULL, errno, "state", "cannot open %s", name);
    spread(*fd);
    return 0;
}

/* pid 1's program must not change under a running sandbox: sealed, and opened anew for reading. */
static int take_program(struct sb_failure *f)
{
    char path[40];
    const int seals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;
    int have = fcntl(FD_PROGRAM, F_GET_SEALS);
    if (have < 0 || ((have & seals) != seals && fcntl(FD_PROGRAM, F_ADD_SEALS, seals) < 0))
        return sb_failed_errno(f, "program", "cannot seal pid 1's program");
    snprintf(path, sizeof path, "/proc/self/fd/%d", FD_PROGRAM);
    sup.image = sb_lift(open(path, O_RDONLY | O_CLOEXEC));
    if (sup.image < 0)
        return sb_failed_errno(f, "program", "cannot open pid 1's program");
    sup.self = sb_lift(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    return sup.self < 0 ? sb_failed_errno(f, "program", "cannot open our own program") : 0;
}

/* Keeps every number below SB_FD_END busy (birth.h); 3 stays the status pipe until it is closed. */
static int take_descriptors(struct sb_failure *f)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    sup.null = null < 0 ? -1 : fcntl(null, F_DUPFD_CLOEXEC, SB_FD_END);
    sup.root = fcntl(FD_STATE, F_DUPFD_CLOEXEC, SB_FD_END);
    if (sup.null < 0 || sup.root < 0 || fcntl(SB_FD_STATUS, F_SETFD, FD_CLOEXEC) < 0)
        return sb_failed_errno(f, "descriptors", "not started by a caller");
    if (take_program(f) < 0)
        return -1;
    for (int fd = 0; fd < SB_FD_END; fd++)
        if (fd != SB_FD_STATUS && dup3(sup.null, fd, fd < 3 ? 0 : O_CLOEXEC) < 0)
            return sb_failed_errno(f, "descriptors", "dup");
    return 0;
}

/* What a shell has set for the first program here is not meant for the sandboxes of all. */
static void raise_soft_limits(void)
{
    static const int which[] = {RLIMIT_NOFILE, RLIMIT_NPROC, RLIMIT_SIGPENDING, RLIMIT_MEMLOCK,
                                RLIMIT_CPU,    RLIMIT_FSIZE, RLIMIT_DATA,       RLIMIT_AS};
    for (size_t i = 0; i < sizeof which / sizeof *which; i++) {
        struct rlimit r;
        if (getrlimit(which[i], &r) == 0) {
            r.rlim_cur = r.rlim_max;
            setrlimit(which[i], &r);
        }
    }
}

static int enter_root(struct sb_failure *f)
{
    sup.mode = SB_MODE_ROOT;
    if (setgroups(0, NULL) < 0)
        return sb_failed_errno(f, "root groups", "cannot drop supplementary groups");
    /* File system ids change without losing capabilities (mounts.c). */
    if (prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0) < 0)
        return sb_failed_errno(f, "securebits", "prctl");
    /* Slave, not private: file systems mounted later can be a rootfs, unmounted ones let go. */
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_SLAVE | MS_REC, NULL) < 0)
        return sb_failed_errno(f, "mounts", "cannot make a mount namespace");
    return 0;
}

static int name_root(struct sb_failure *f)
{
    struct stat st;
    if (fstat(sup.root, &st) < 0)
        return sb_failed_errno(f, "state", "stat");
    uint64_t what[2] = {st.st_dev, st.st_ino};
    sup.root_hash = sb_hash(what, sizeof what, 0);
    snprintf(sup.top_name, sizeof sup.top_name, "sandbar-%016llx",
             (unsigned long long)sup.root_hash);
    size_t n;
    sb_autofree char *boot = sb_read_at(AT_FDCWD, "/proc/sys/kernel/random/boot_id", 256, &n);
    if (boot == NULL || n < 36)
        return sb_failed_errno(f, "boot id", "cannot read the machine's boot id");
    memcpy(sup.host_boot, boot, 36);
    sup.grace_ms = GRACE_MS;
    sb_autofree char *test = sb_read_at(sup.v1, "test-clock", 256, NULL);
    if (test != NULL) { /* "offset", or "offset grace" */
        char *rest = test;
        sup.clock_offset_ms = strtoll(test, &rest, 10);
        long long grace = strtoll(rest, NULL, 10);
        if (grace > 0)
            sup.grace_ms = grace;
    }
    return 0;
}

static int open_state(struct sb_failure *f)
{
    if (mkdirat(sup.root, "v1", 0700) < 0 && errno != EEXIST)
        return sb_failed_errno(f, "state", "cannot make v1");
    sup.v1 = sb_lift(openat(sup.root, "v1", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    return sup.v1 < 0 ? sb_failed_errno(f, "state", "cannot open v1") : 0;
}

static int open_directories(struct sb_failure *f)
{
    return subdirectory("s", &sup.boxes, f) < 0 || subdirectory("t", &sup.templates, f) < 0 ||
                   subdirectory("p", &sup.prepared, f) < 0 ||
                   subdirectory("l", &sup.layers, f) < 0 ||
                   subdirectory("n", &sup.snapshots, f) < 0 ||
                   subdirectory("m", &sup.named, f) < 0 || subdirectory("trash", &sup.trash, f) < 0
               ? -1
               : 0;
}

/* Directories opened before belong to the mounts of the old namespace, which cannot be cloned here.
 * The working directory follows its process into the new one. */
static int reopen_state(struct sb_failure *f)
{
    int *const old[] = {&sup.root,   &sup.v1,        &sup.boxes, &sup.templates, &sup.prepared,
                        &sup.layers, &sup.snapshots, &sup.named, &sup.trash};
    for (size_t i = 0; i < sizeof old / sizeof *old; i++)
        sb_close(old[i]);
    sup.root = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (sup.root < 0 || chdir("/") < 0)
        return sb_failed_errno(f, "state", "cannot open the state directory again");
    return open_state(f) < 0 ? -1 : open_directories(f);
}

static int begin(struct sb_failure *f)
{
    if (open_directories(f) < 0 || name_root(f) < 0)
        return -1;
    if (fchdir(sup.root) < 0)
        return sb_failed_errno(f, "state", "cannot enter the state directory");
    /* A session keyring of our own, empty: what runs below us does not possess our starter's. */
    syscall(SYS_keyctl, 1 /* KEYCTL_JOIN_SESSION_KEYRING */, NULL);
    if ((geteuid() == 0 ? enter_root(f) : sb_rootless_enter(f)) < 0 || reopen_state(f) < 0)
        return -1;
    if (sb_loop_open() < 0)
        return sb_failed_errno(f, "loop", "epoll");
    sb_cgroup_start();
    if (sb_settings_start(f) < 0 || sb_mounts_start(f) < 0 || sb_template_start(f) < 0)
        return -1;
    /* Whatever this machine refuses shall be said now, once. */
    return sb_adopt_all(f) < 0 || sb_slot_first(f) < 0 ? -1 : bind_socket(f);
}

int main(int argc, char **argv)
{
    if (argc > 0 && strcmp(argv[0], SB_RELAY_NAME) == 0)
        return sb_relay_main(argc, argv);
    struct sb_failure f;
    struct sigaction alarm_action = {.sa_handler = on_alarm};
    prctl(PR_SET_DUMPABLE, 0);
    umask(0);
    sigaction(SIGALRM, &alarm_action, NULL); /* without SA_RESTART */
    raise_soft_limits();
    sup.linger_ms = argc > 1 ? strtoull(argv[1], NULL, 10) : LINGER_DEFAULT_MS;
    if (take_descriptors(&f) < 0 || open_state(&f) < 0)
        give_up(&f);
    int boot = lock("boot.lock", &f);
    if (boot < 0)
        give_up(&f);
    if (somebody_listens()) {
        report("ready\n");
        return 0;
    }
    if (lock("life.lock", &f) < 0 || begin(&f) < 0)
        give_up(&f);
    close(boot);
    report("ready\n");
    dup3(sup.null, SB_FD_STATUS, O_CLOEXEC);

    sb_loop_run();

    /* First out of callers' sight: who comes now starts the next one. */
    unlinkat(sup.v1, "sock", 0);
    sb_conn_deafen();
    sb_spare_drain();
    sb_slot_drain();
    sb_limits_leave();
    sb_cgroup_leave();
    sb_trash_finish();
    return 0;
}
