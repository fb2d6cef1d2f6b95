/* Processes, descriptors and terminals. */
#include "probe.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* All that gives power over a process which is not ours. */
static void take_over(int rooms, const char *who, pid_t pid)
{
    static const char *const link[] = {"fd/0", "root", "cwd", "exe", "ns/mnt"};
    static const char *const text[] = {"environ", "auxv", "maps", "syscall", "io", "personality"};
    char what[96], path[64], buf[16];
    struct iovec local = {buf, sizeof buf}, remote = {(void *)0x400000, sizeof buf};
    int fd;
    for (size_t i = 0; i < sizeof link / sizeof *link; i++) {
        snprintf(path, sizeof path, "/proc/%d/%s", pid, link[i]);
        snprintf(what, sizeof what, "%s: %s", who, link[i]);
        attack(rooms, what, readlink(path, buf, sizeof buf));
    }
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        snprintf(path, sizeof path, "/proc/%d/%s", pid, text[i]);
        snprintf(what, sizeof what, "%s: %s", who, text[i]);
        fd = open(path, O_RDONLY);
        attack(rooms, what, fd < 0 ? -1 : read(fd, buf, sizeof buf));
        close(fd);
    }
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    snprintf(what, sizeof what, "%s: mem", who);
    fd = open(path, O_RDWR);
    attack(rooms, what, fd);
    close(fd);
    snprintf(what, sizeof what, "%s: process_vm_readv", who);
    attack(0, what, process_vm_readv(pid, &local, 1, &remote, 1, 0));
    snprintf(what, sizeof what, "%s: process_vm_writev", who);
    attack(0, what, process_vm_writev(pid, &local, 1, &remote, 1, 0));
    snprintf(what, sizeof what, "%s: kcmp", who);
    attack(rooms, what, syscall(SYS_kcmp, getpid(), pid, 1 /* KCMP_VM */, 0, 0));
    snprintf(what, sizeof what, "%s: pidfd_getfd", who);
    fd = (int)syscall(SYS_pidfd_open, pid, 0);
    for (int i = 0; i < 64; i++) {
        int taken = (int)syscall(SYS_pidfd_getfd, fd, i, 0);
        if (i == 0 || taken >= 0)
            attack(rooms, what, taken);
    }
    snprintf(what, sizeof what, "%s: ptrace", who);
    attack(rooms, what, ptrace(PTRACE_SEIZE, pid, NULL, NULL));
    ptrace(PTRACE_DETACH, pid, NULL, NULL);
}

/* In a room pid 1 is the program that entered it. */
static void init_memory(const char *arg)
{
    (void)arg;
    attack(0, "pid 1's program for writing", open("/proc/1/exe", O_WRONLY));
    attack(0, "pid 1's program for both", open("/proc/1/exe", O_RDWR));
    attack(0, "our own pid 1's image through /proc/self", open("/proc/self/map_files", O_RDWR));
    take_over(PLAIN, "pid 1", 1);
}

static void kill_init(const char *arg)
{
    static const int each[] = {SIGKILL, SIGSTOP, SIGTERM, SIGSEGV, SIGSYS, SIGHUP, SIGPIPE};
    (void)arg;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        kill(1, each[i]);
    int fd = (int)syscall(SYS_pidfd_open, 1, 0);
    syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0);
    if (kill(1, 0) != 0 && errno == ESRCH)
        worked("pid 1 is gone");
}

/* Processes that pid 1 runs for itself under a command's user: they hold a connection to a caller.
 * argument: how many of them the spec has there. */
static void workers(const char *arg)
{
    long expected = arg != NULL ? strtol(arg, NULL, 10) : 0, seen = 0;
    struct dirent *e;
    DIR *d = opendir("/proc");
    while (d != NULL && (e = readdir(d)) != NULL) {
        char path[300], line[256] = "";
        int pid = (int)strtol(e->d_name, NULL, 10), parent = 0, fd;
        if (pid < 2 || pid == getpid())
            continue;
        snprintf(path, sizeof path, "/proc/%d/stat", pid);
        fd = open(path, O_RDONLY);
        if (fd < 0 || read(fd, line, sizeof line - 1) <= 0)
            continue;
        close(fd);
        char *end = strrchr(line, ')');
        if (end == NULL || sscanf(end, ") %*c %d", &parent) != 1 || parent != 1)
            continue;
        snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
        fd = open(path, O_RDONLY);
        ssize_t n = fd < 0 ? -1 : read(fd, line, sizeof line - 1);
        close(fd);
        if (n != 5 || memcmp(line, "init", 5) != 0)
            continue;
        seen++;
        take_over(0, "a worker", pid);
    }
    if (d != NULL)
        closedir(d);
    printf("%ld workers were attacked\n", seen);
    if (seen < expected)
        worked("the worker was not found");
}

static void strangers(const char *arg)
{
    struct dirent *e;
    DIR *d = opendir("/proc");
    int seen = 0;
    (void)arg;
    while (d != NULL && (e = readdir(d)) != NULL)
        seen += e->d_name[0] >= '1' && e->d_name[0] <= '9';
    if (d != NULL)
        closedir(d);
    printf("%d processes seen\n", seen);
    if (seen > 24)
        worked("%d processes are visible", seen);
    for (int pid = 2; pid < (room == INSIDE ? 70000 : 2); pid++) {
        if (pid == getpid() || pid == getppid() || kill(pid, 0) != 0)
            continue;
        if (getpgid(pid) != getpgid(0) && getsid(pid) == 0)
            worked("pid %d of nobody here can be signalled", pid);
    }
    /* The parents of ours are pid 1's, not the host's. */
    int fd = (int)syscall(SYS_pidfd_open, getppid(), 0);
    if (fd < 0)
        worked("our parent is a stranger");
    close(fd);
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
            worked("descriptor %d is open: %s", fd, target);
        if (arg != NULL && strstr(target, arg) != NULL)
            worked("descriptor %d names a host path: %s", fd, target);
    }
}

/* argument: the name of an abstract socket on which somebody outside gives away a descriptor. Also by pid 1's listener,
 * and the sockets of everybody as /proc tells them. */
static void sockets_of_others(const char *arg)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char line[512];
    int fd = socket(AF_UNIX, SOCK_STREAM, 0), seen = 0;
    size_t len = strlen(arg != NULL ? arg : "x");
    memcpy(at.sun_path + 1, arg != NULL ? arg : "x", len);
    attack(HOST, "an abstract socket of the host",
           connect(fd, (struct sockaddr *)&at,
                   (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len)));
    FILE *f = fopen("/proc/net/unix", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        seen += strstr(line, "/v1/") != NULL || strstr(line, "/dev/log") != NULL ||
                (arg != NULL && strstr(line, arg) != NULL);
    if (f != NULL)
        fclose(f);
    if (seen > 0)
        worked("%d sockets of the host are listed", seen);
}

static void terminals(const char *arg)
{
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY), unlock = 0, slave, gsm = 21 /* N_GSM0710 */,
        ppp = 3;
    char c = 'x', name[32];
    unsigned int n;
    (void)arg;
    if (master < 0 || ioctl(master, TIOCSPTLCK, &unlock) != 0 || ioctl(master, TIOCGPTN, &n) != 0)
        cannot("no terminal");
    snprintf(name, sizeof name, "/dev/pts/%u", n);
    setsid();
    slave = open(name, O_RDWR);
    if (slave < 0)
        cannot(name);
    attack(HOST, "TIOCSTI", syscall(SYS_ioctl, slave, (unsigned long)TIOCSTI, &c));
    attack(HOST, "TIOCSTI with high bits", syscall(SYS_ioctl, slave, 0x500000000ul | TIOCSTI, &c));
    attack(0, "TIOCLINUX", syscall(SYS_ioctl, slave, (unsigned long)TIOCLINUX, &c));
    attack(0, "TIOCLINUX with high bits", syscall(SYS_ioctl, slave, 0x500000000ul | TIOCLINUX, &c));
    attack(0, "TIOCCONS", room == INSIDE ? ioctl(slave, TIOCCONS, 0) : -1);
    attack(0, "a line discipline of modems", ioctl(slave, TIOCSETD, &gsm));
    attack(0, "a line discipline of networks", ioctl(slave, TIOCSETD, &ppp));
    gsm = 0;
    attack(HOST, "any line discipline", syscall(SYS_ioctl, slave, 0x500000000ul | TIOCSETD, &gsm));
}

const struct probe process_probes[] = {
    {"init_memory", PLAIN, init_memory},
    {"kill_init", 0, kill_init}, /* the kernel's own rule of pid namespaces */
    {"workers", 0, workers},     /* there are none in a room */
    {"strangers", HOST, strangers},
    {"descriptors", HOST, descriptors},
    {"sockets_of_others", HOST, sockets_of_others},
    {"terminals", HOST, terminals},
    {NULL, 0, NULL}};
