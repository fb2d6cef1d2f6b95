/* Attacks tried from inside a sandbox, one per name. Exit 0: it failed, as it must. Exit 1: it worked.
 * Exit 2: it could not be tried. Each prints what it saw. usage: probe NAME [ARGUMENT] */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static int worked; /* how many attacks succeeded */

static void hit(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void hit(const char *fmt, ...)
{
    va_list ap;
    worked++;
    fputs("WORKED: ", stdout);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
}

/* A system call that must be refused: with which errno is printed, any other result is a hit. */
static void refused(const char *what, long result)
{
    if (result < 0)
        printf("%s: %s\n", what, strerror(errno));
    else
        hit("%s gave %ld", what, result);
}

/* ---- files and mounts ---- */

static void write_tree(const char *dir)
{
    struct dirent *e;
    DIR *d = opendir(dir);
    if (d == NULL)
        return;
    while ((e = readdir(d)) != NULL) {
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
            hit("opened %s for writing", path);
            close(fd);
        }
    }
    closedir(d);
}

static void sysctls(const char *arg)
{
    (void)arg;
    write_tree("/proc/sys/kernel");
    write_tree("/proc/sys/fs");
    write_tree("/proc/sys/vm");
    refused("sysrq-trigger", open("/proc/sysrq-trigger", O_WRONLY));
}

static void mounts_old(const char *arg)
{
    (void)arg;
    mkdir("/tmp/m", 0755);
    refused("tmpfs", mount("none", "/tmp/m", "tmpfs", 0, NULL));
    refused("proc", mount("none", "/tmp/m", "proc", 0, NULL));
    refused("overlay",
            mount("none", "/tmp/m", "overlay", 0, "lowerdir=/usr,upperdir=/tmp,workdir=/tmp"));
    refused("bind", mount("/usr", "/tmp/m", NULL, MS_BIND, NULL));
    refused("cgroup2", mount("none", "/tmp/m", "cgroup2", 0, NULL));
    refused("remount /", mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND, NULL));
    refused("remount /dev", mount(NULL, "/dev", NULL, MS_REMOUNT | MS_BIND, NULL));
    refused("unmount /proc/sys", umount2("/proc/sys", MNT_DETACH));
    refused("unmount /proc/kcore", umount2("/proc/kcore", MNT_DETACH));
    refused("unmount /proc", umount2("/proc", MNT_DETACH));
    refused("pivot_root", syscall(SYS_pivot_root, "/tmp", "/tmp/m"));
}

static void mounts_new(const char *arg)
{
    char attr[32] = {0};
    (void)arg;
    refused("fsopen tmpfs", syscall(SYS_fsopen, "tmpfs", 0));
    refused("fsopen proc", syscall(SYS_fsopen, "proc", 0));
    refused("open_tree clone", syscall(SYS_open_tree, AT_FDCWD, "/usr", 1));
    refused("fspick", syscall(SYS_fspick, AT_FDCWD, "/", 0));
    refused("move_mount", syscall(SYS_move_mount, AT_FDCWD, "/proc", AT_FDCWD, "/tmp", 0));
    refused("mount_setattr", syscall(SYS_mount_setattr, AT_FDCWD, "/", 0, attr, sizeof attr));
    refused("fsmount", syscall(SYS_fsmount, 0, 0, 0));
}

static void devices(const char *arg)
{
    (void)arg;
    if (mknod("/tmp/vda", S_IFBLK | 0600, 254 << 8) == 0)
        refused("open of a made block device", open("/tmp/vda", O_RDONLY));
    else
        refused("mknod", -1);
    if (mknod("/tmp/mem", S_IFCHR | 0600, (1 << 8) | 1) == 0)
        refused("open of a made /dev/mem", open("/tmp/mem", O_RDONLY));
    refused("write to /dev itself", open("/dev/new", O_CREAT | O_WRONLY, 0600));
}

static void chroot_out(const char *arg)
{
    struct stat before, after;
    int fd = open("/", O_RDONLY | O_DIRECTORY);
    (void)arg;
    stat("/", &before);
    mkdir("/tmp/jail", 0755);
    if (chroot("/tmp/jail") != 0) {
        refused("chroot", -1);
        return;
    }
    if (fchdir(fd) != 0)
        return;
    for (int i = 0; i < 200; i++)
        if (chdir("..") != 0)
            break;
    if (chroot(".") == 0 && stat("/", &after) == 0 &&
        (after.st_ino != before.st_ino || after.st_dev != before.st_dev))
        hit("left through a kept directory");
}

static void handles(const char *arg)
{
    struct {
        struct file_handle h;
        unsigned char data[128];
    } f = {.h = {.handle_bytes = 8, .handle_type = 1}};
    uint32_t inode = 2;
    int mount_id;
    (void)arg;
    memcpy(f.h.f_handle, &inode, sizeof inode);
    refused("open_by_handle_at", syscall(SYS_open_by_handle_at, AT_FDCWD, &f.h, O_RDONLY));
    f.h.handle_bytes = 128;
    refused("name_to_handle_at",
            syscall(SYS_name_to_handle_at, AT_FDCWD, "/usr", &f.h, &mount_id, 0));
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
                                         "/sys/kernel/uevent_seqnum",
                                         "/sys/firmware"};
    (void)arg;
    for (size_t i = 0; i < sizeof masked / sizeof *masked; i++) {
        char buf[256];
        int fd = open(masked[i], O_RDONLY | O_NONBLOCK);
        ssize_t n = fd < 0 ? -1 : read(fd, buf, sizeof buf);
        if (n > 0)
            hit("%s can be read (%zd bytes)", masked[i], n);
        if (fd >= 0)
            close(fd);
    }
}

static void upper(const char *arg)
{
    char line[4096];
    FILE *f = fopen("/proc/self/mountinfo", "r");
    if (f == NULL)
        exit(2);
    while (fgets(line, sizeof line, f) != NULL) {
        fputs(line, stdout);
        if (arg != NULL && strstr(line, arg) != NULL)
            hit("the host's state directory shows: %s", line);
    }
    fclose(f);
    refused("open /upper", open("/upper", O_RDONLY));
    refused("open /boot", open("/boot", O_RDONLY));
}

/* ---- processes ---- */

static void strangers(const char *arg)
{
    struct dirent *e;
    DIR *d = opendir("/proc");
    int seen = 0;
    (void)arg;
    while (d != NULL && (e = readdir(d)) != NULL)
        if (e->d_name[0] >= '1' && e->d_name[0] <= '9')
            seen++;
    printf("%d processes seen\n", seen);
    if (seen > 16)
        hit("%d processes are visible", seen);
    for (int pid = 2; pid < 70000; pid++) {
        if (pid == getpid() || pid == getppid())
            continue;
        if (kill(pid, 0) == 0 && getpgid(pid) != getpgid(0) && getsid(pid) == 0)
            hit("can signal pid %d of nobody here", pid);
    }
}

static void kill_init(const char *arg)
{
    (void)arg;
    kill(1, SIGKILL);
    kill(1, SIGSTOP);
    kill(1, SIGTERM);
    kill(1, SIGSEGV);
    usleep(100000);
    if (kill(1, 0) != 0 && errno == ESRCH)
        hit("pid 1 is gone");
}

static void init_memory(const char *arg)
{
    char buf[16];
    struct iovec local = {buf, sizeof buf}, remote = {(void *)0x400000, sizeof buf};
    int fd;
    (void)arg;
    refused("pid 1's exe for writing", open("/proc/1/exe", O_WRONLY));
    refused("pid 1's exe for both", open("/proc/1/exe", O_RDWR));
    fd = open("/proc/1/mem", O_RDWR);
    if (fd >= 0 && pread(fd, buf, sizeof buf, 0x400000) > 0)
        hit("pid 1's memory can be read");
    if (fd >= 0 && pwrite(fd, buf, sizeof buf, 0x400000) > 0)
        hit("pid 1's memory can be written");
    refused("ptrace of pid 1", ptrace(PTRACE_SEIZE, 1, NULL, NULL));
    refused("process_vm_readv of pid 1", process_vm_readv(1, &local, 1, &remote, 1, 0));
    refused("process_vm_writev of pid 1", process_vm_writev(1, &local, 1, &remote, 1, 0));
    fd = (int)syscall(SYS_pidfd_open, 1, 0);
    if (fd >= 0)
        for (int i = 0; i < 64; i++)
            if (syscall(SYS_pidfd_getfd, fd, i, 0) >= 0)
                hit("descriptor %d of pid 1 was taken", i);
}

static void descriptors(const char *arg)
{
    for (int fd = 0; fd < 1024; fd++) {
        char path[64], target[256];
        ssize_t n;
        if (fcntl(fd, F_GETFD) < 0)
            continue;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        n = readlink(path, target, sizeof target - 1);
        target[n > 0 ? n : 0] = '\0';
        printf("%d -> %s\n", fd, target);
        if (fd > 2)
            hit("descriptor %d is open: %s", fd, target);
        if (arg != NULL && strstr(target, arg) != NULL)
            hit("descriptor %d names a host path: %s", fd, target);
    }
}

static void fork_bomb(const char *arg)
{
    long limit = arg != NULL ? strtol(arg, NULL, 10) : 1024, made = 0;
    int gate[2];
    if (pipe(gate) != 0)
        exit(2);
    while (made < limit + 100) {
        pid_t pid = fork();
        if (pid < 0)
            break;
        if (pid == 0) {
            char c;
            close(gate[1]);
            (void)!read(gate[0], &c, 1);
            _exit(0);
        }
        made++;
    }
    printf("%ld processes were made, then %s\n", made, strerror(errno));
    if (made > limit)
        hit("no bound at %ld", limit);
    close(gate[1]);
    while (wait(NULL) > 0)
        continue;
}

static void *idle_thread(void *arg)
{
    char c;
    (void)!read(*(int *)arg, &c, 1);
    return NULL;
}

static void thread_bomb(const char *arg)
{
    long limit = arg != NULL ? strtol(arg, NULL, 10) : 1024, made = 0;
    pthread_attr_t small;
    int gate[2];
    if (pipe(gate) != 0)
        exit(2);
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 16384);
    while (made < limit + 100) {
        pthread_t t;
        if (pthread_create(&t, &small, idle_thread, &gate[0]) != 0)
            break;
        made++;
    }
    printf("%ld threads were made\n", made);
    if (made > limit)
        hit("no bound at %ld", limit);
    exit(worked > 0);
}

static void terminals(const char *arg)
{
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY), unlock = 0, slave;
    char c = 'x', name[32];
    unsigned int n;
    (void)arg;
    if (master < 0 || ioctl(master, TIOCSPTLCK, &unlock) != 0 || ioctl(master, TIOCGPTN, &n) != 0) {
        printf("no terminal: %s\n", strerror(errno));
        exit(2);
    }
    snprintf(name, sizeof name, "/dev/pts/%u", n);
    setsid();
    slave = open(name, O_RDWR);
    if (slave < 0)
        exit(2);
    refused("TIOCSTI", syscall(SYS_ioctl, slave, (unsigned long)TIOCSTI, &c));
    refused("TIOCSTI with high bits", syscall(SYS_ioctl, slave, 0x500000000ul | TIOCSTI, &c));
    refused("TIOCLINUX", syscall(SYS_ioctl, slave, (unsigned long)TIOCLINUX, &c));
    refused("TIOCLINUX with high bits", syscall(SYS_ioctl, slave, 0x500000000ul | TIOCLINUX, &c));
}

/* ---- namespaces, capabilities, system calls ---- */

static void namespaces(const char *arg)
{
    static const struct {
        const char *name;
        unsigned long flag;
        const char *file;
    } kinds[] = {{"user", CLONE_NEWUSER, "user"},       {"mnt", CLONE_NEWNS, "mnt"},
                 {"pid", CLONE_NEWPID, "pid"},          {"net", CLONE_NEWNET, "net"},
                 {"ipc", CLONE_NEWIPC, "ipc"},          {"uts", CLONE_NEWUTS, "uts"},
                 {"cgroup", CLONE_NEWCGROUP, "cgroup"}, {"time", 0x80, "time"}};
    uint64_t clone3_args[11] = {0};
    (void)arg;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char path[64];
        long pid;
        int fd;
        refused(kinds[i].name, syscall(SYS_unshare, kinds[i].flag));
        if (kinds[i].flag != 0x80) { /* in clone, 0x80 is part of the exit signal */
            pid = syscall(SYS_clone, kinds[i].flag | SIGCHLD, 0, 0, 0, 0);
            if (pid == 0)
                _exit(0);
            if (pid > 0)
                waitpid((pid_t)pid, NULL, 0);
            refused("clone of it", pid);
        }
        snprintf(path, sizeof path, "/proc/self/ns/%s", kinds[i].file);
        fd = open(path, O_RDONLY);
        if (fd >= 0)
            refused("setns to our own", syscall(SYS_setns, fd, 0));
        close(fd);
    }
    clone3_args[4] = SIGCHLD;
    /* As on a kernel without it, wherever its arguments are: only pid 1 knows the address that works. */
    for (size_t i = 0; i < 64; i++) {
        uintptr_t wish = i == 0 ? 0 : (0x7fULL << 40 | (uintptr_t)random() << 12) >> (i % 16);
        char *page = mmap((void *)(wish & ~(uintptr_t)4095), 4096, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        void *args = page != MAP_FAILED ? (void *)(page + i) : clone3_args;
        memcpy(args, clone3_args, sizeof clone3_args);
        errno = 0;
        if (syscall(SYS_clone3, args, sizeof clone3_args) != -1 || errno != ENOSYS)
            hit("clone3 with arguments at %p: errno %d", args, errno);
    }
}

static void capabilities(const char *arg)
{
    /* chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service sys_chroot setfcap */
    const uint64_t allowed = 1ull << 0 | 1ull << 1 | 1ull << 3 | 1ull << 4 | 1ull << 5 | 1ull << 6 |
                             1ull << 7 | 1ull << 8 | 1ull << 10 | 1ull << 18 | 1ull << 31;
    char line[256];
    FILE *f = fopen("/proc/self/status", "r");
    (void)arg;
    if (f == NULL)
        exit(2);
    while (fgets(line, sizeof line, f) != NULL) {
        char name[16];
        unsigned long long value;
        if (sscanf(line, "Cap%15[A-Za-z]: %llx", name, &value) == 2) {
            fputs(line, stdout);
            if ((value & ~allowed) != 0)
                hit("Cap%s holds %llx", name, value & ~allowed);
            if ((strcmp(name, "Inh") == 0 || strcmp(name, "Amb") == 0) && value != 0)
                hit("Cap%s is not empty", name);
            if (geteuid() != 0 && strcmp(name, "Bnd") != 0 && value != 0)
                hit("an ordinary user has Cap%s", name);
        }
        if (strncmp(line, "NoNewPrivs:", 11) == 0 && strchr(line, '1') == NULL)
            hit("no_new_privs is off");
        if (strncmp(line, "Seccomp:", 8) == 0 && strchr(line, '2') == NULL)
            hit("there is no filter");
    }
    fclose(f);
}

static void other_abis(const char *arg)
{
    int status;
    pid_t pid;
    (void)arg;
#ifdef __x86_64__
    pid = fork();
    if (pid == 0) {
        long result;
        __asm__ volatile("int $0x80" : "=a"(result) : "a"(20) : "memory");
        _exit(result > 0 ? 1 : 0);
    }
    waitpid(pid, &status, 0);
    printf("int 0x80: status %x\n", status);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 1)
        hit("32-bit system calls work");
    pid = fork();
    if (pid == 0)
        _exit(syscall(0x40000000 + SYS_getpid) > 0 ? 1 : 0);
    waitpid(pid, &status, 0);
    printf("x32: status %x\n", status);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 1)
        hit("x32 system calls work");
#endif
}

#define CALL(name)        \
    {                     \
#name, SYS_##name \
    }
static const struct {
    const char *name;
    long number;
} forbidden[] = {CALL(io_uring_setup),
                 CALL(io_uring_enter),
                 CALL(io_uring_register),
                 CALL(bpf),
                 CALL(perf_event_open),
                 CALL(userfaultfd),
                 CALL(keyctl),
                 CALL(add_key),
                 CALL(request_key),
                 CALL(kexec_load),
                 CALL(kexec_file_load),
                 CALL(init_module),
                 CALL(finit_module),
                 CALL(delete_module),
                 CALL(swapon),
                 CALL(swapoff),
                 CALL(reboot),
                 CALL(acct),
                 CALL(quotactl),
                 CALL(settimeofday),
                 CALL(clock_settime),
                 CALL(adjtimex),
                 CALL(clock_adjtime),
                 CALL(iopl),
                 CALL(ioperm),
                 CALL(syslog),
                 CALL(vhangup),
                 CALL(fanotify_init),
                 CALL(lookup_dcookie),
                 CALL(pivot_root),
                 CALL(open_by_handle_at),
                 CALL(name_to_handle_at),
                 CALL(mount),
                 CALL(umount2),
                 CALL(fsopen),
                 CALL(fsconfig),
                 CALL(fsmount),
                 CALL(fspick),
                 CALL(open_tree),
                 CALL(move_mount),
                 CALL(mount_setattr),
                 CALL(setns)};

static int is_refusal(int err)
{
    return err == EPERM || err == ENOSYS;
}

static void forbidden_calls(const char *arg)
{
    (void)arg;
    for (size_t i = 0; i < sizeof forbidden / sizeof *forbidden; i++) {
        long result = syscall(forbidden[i].number, 0, 0, 0, 0, 0, 0);
        if (result >= 0 || !is_refusal(errno))
            hit("%s: %ld, %s", forbidden[i].name, result, strerror(errno));
    }
    for (int i = 0; i < 16; i++) { /* every number the kernel may grow later */
        errno = 0;
        if (syscall(600 + i * 50, 0, 0, 0, 0, 0, 0) >= 0 || errno != ENOSYS)
            hit("unknown call %d: %s", 600 + i * 50, strerror(errno));
    }
}

static void every_call(const char *arg)
{
    (void)arg;
    for (long n = 0; n < 1024; n++) {
        pid_t pid = fork();
        int status;
        if (pid < 0)
            continue;
        if (pid == 0) {
            alarm(1);
            syscall(n, 0, 0, 0, 0, 0, 0);
            _exit(0);
        }
        waitpid(pid, &status, 0);
    }
    puts("all tried");
}

static void personalities(const char *arg)
{
    (void)arg;
    refused("ADDR_NO_RANDOMIZE", syscall(SYS_personality, 0x0040000ul));
    refused("READ_IMPLIES_EXEC", syscall(SYS_personality, 0x0400000ul));
}

/* ---- network ---- */

static void families(const char *arg)
{
    static const int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_RAW, SOCK_SEQPACKET};
    (void)arg;
    for (int family = 0; family < 46; family++) {
        if (family == AF_UNIX || family == AF_INET || family == AF_INET6 || family == AF_NETLINK)
            continue;
        for (size_t i = 0; i < sizeof types / sizeof *types; i++)
            if (socket(family, types[i], 0) >= 0)
                hit("family %d, type %d", family, types[i]);
    }
    for (int protocol = 1; protocol < 23; protocol++)
        if (socket(AF_NETLINK, SOCK_RAW, protocol) >= 0)
            hit("netlink protocol %d", protocol);
    refused("raw IPv4", socket(AF_INET, SOCK_RAW, IPPROTO_TCP));
    refused("raw IPv6", socket(AF_INET6, SOCK_RAW, IPPROTO_TCP));
}

static int route_request(int type, const void *body, size_t len)
{
    struct {
        struct nlmsghdr h;
        char body[64];
    } req = {.h = {.nlmsg_type = (uint16_t)type,
                   .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE}};
    struct {
        struct nlmsghdr h;
        struct nlmsgerr e;
        char rest[256];
    } ans;
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    memcpy(req.body, body, len);
    req.h.nlmsg_len = (uint32_t)(NLMSG_HDRLEN + len);
    if (fd < 0 || send(fd, &req, req.h.nlmsg_len, 0) < 0 || recv(fd, &ans, sizeof ans, 0) < 0) {
        close(fd);
        return -1;
    }
    close(fd);
    errno = -ans.e.error;
    return ans.e.error == 0 ? 0 : -1;
}

static void routes(const char *arg)
{
    struct ifinfomsg down = {.ifi_index = 1, .ifi_change = IFF_UP};
    struct {
        struct ifaddrmsg a;
        struct rtattr h;
        uint32_t ip;
    } address = {{AF_INET, 32, 0, 0, 1}, {8, IFA_LOCAL}, htonl(0x0a000001)};
    struct {
        struct rtmsg r;
        struct rtattr h;
        uint32_t oif;
    } route = {{.rtm_family = AF_INET,
                .rtm_table = RT_TABLE_MAIN,
                .rtm_protocol = RTPROT_BOOT,
                .rtm_scope = RT_SCOPE_LINK,
                .rtm_type = RTN_UNICAST},
               {8, RTA_OIF},
               1};
    (void)arg;
    refused("lo down", route_request(RTM_SETLINK, &down, sizeof down));
    refused("address", route_request(RTM_NEWADDR, &address, sizeof address));
    refused("route", route_request(RTM_NEWROUTE, &route, sizeof route));
}

static int try_connect(int type, const char *ip, int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0), result;
    inet_pton(AF_INET, ip, &at.sin_addr);
    alarm(5);
    result = connect(fd, (struct sockaddr *)&at, sizeof at);
    if (result == 0 && type == SOCK_DGRAM)
        result = (int)send(fd, "x", 1, 0);
    alarm(0);
    close(fd);
    return result;
}

/* argument: a port somebody listens on on the host's loopback */
static void outside(const char *arg)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(80)};
    int port = arg != NULL ? (int)strtol(arg, NULL, 10) : 22;
    refused("the host's loopback", try_connect(SOCK_STREAM, "127.0.0.1", port));
    refused("the metadata address", try_connect(SOCK_STREAM, "169.254.169.254", 80));
    refused("a public address", try_connect(SOCK_STREAM, "8.8.8.8", 53));
    refused("UDP", try_connect(SOCK_DGRAM, "8.8.8.8", 53));
    refused("a private address", try_connect(SOCK_STREAM, "10.0.0.1", 80));
    inet_pton(AF_INET6, "2001:4860:4860::8888", &six.sin6_addr);
    refused("IPv6", connect(socket(AF_INET6, SOCK_STREAM, 0), (struct sockaddr *)&six, sizeof six));
    inet_pton(AF_INET6, "::ffff:8.8.8.8", &six.sin6_addr);
    refused("a mapped address",
            connect(socket(AF_INET6, SOCK_STREAM, 0), (struct sockaddr *)&six, sizeof six));
}

/* argument: the name of an abstract socket somebody outside listens on */
static void abstract_socket(const char *arg)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    size_t len = strlen(arg != NULL ? arg : "x");
    memcpy(at.sun_path + 1, arg != NULL ? arg : "x", len);
    refused("abstract socket",
            connect(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&at,
                    (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len)));
}

/* ---- shared budgets ---- */

static void inotify_hoard(const char *arg)
{
    long budget = arg != NULL ? strtol(arg, NULL, 10) : 64, made = 0;
    while (made < 1000 && inotify_init1(IN_CLOEXEC) >= 0)
        made++;
    printf("%ld inotify instances, then %s\n", made, strerror(errno));
    if (made > budget)
        hit("more than %ld inotify instances", budget);
}

static const struct {
    const char *name;
    void (*run)(const char *arg);
} probes[] = {{"sysctls", sysctls},
              {"mounts_old", mounts_old},
              {"mounts_new", mounts_new},
              {"devices", devices},
              {"chroot_out", chroot_out},
              {"handles", handles},
              {"secrets", secrets},
              {"upper", upper},
              {"strangers", strangers},
              {"kill_init", kill_init},
              {"init_memory", init_memory},
              {"descriptors", descriptors},
              {"fork_bomb", fork_bomb},
              {"thread_bomb", thread_bomb},
              {"terminals", terminals},
              {"namespaces", namespaces},
              {"capabilities", capabilities},
              {"other_abis", other_abis},
              {"forbidden_calls", forbidden_calls},
              {"every_call", every_call},
              {"personalities", personalities},
              {"families", families},
              {"routes", routes},
              {"outside", outside},
              {"abstract_socket", abstract_socket},
              {"inotify_hoard", inotify_hoard}};

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; argc > 1 && i < sizeof probes / sizeof *probes; i++)
        if (strcmp(probes[i].name, argv[1]) == 0) {
            probes[i].run(argc > 2 ? argv[2] : NULL);
            return worked > 0;
        }
    return 2;
}
