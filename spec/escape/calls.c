/* Namespaces, capabilities and system calls. */
#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static void namespaces(const char *arg)
{
    static const struct {
        const char *name;
        unsigned long flag;
    } kinds[] = {{"user", CLONE_NEWUSER}, {"mnt", CLONE_NEWNS},       {"pid", CLONE_NEWPID},
                 {"net", CLONE_NEWNET},   {"ipc", CLONE_NEWIPC},      {"uts", CLONE_NEWUTS},
                 {"time", 0x80},          {"cgroup", CLONE_NEWCGROUP}};
    uint64_t clone3_args[11] = {0};
    char what[64], path[64];
    (void)arg;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        long pid = fork();
        if (pid == 0)
            _exit(syscall(SYS_unshare, kinds[i].flag) == 0 ? 0 : errno);
        int status = 0;
        waitpid((pid_t)pid, &status, 0);
        errno = WEXITSTATUS(status);
        snprintf(what, sizeof what, "unshare of %s", kinds[i].name);
        attack(PLAIN, what, status == 0 ? 0 : -1);
        if (kinds[i].flag != 0x80) { /* in clone, 0x80 is part of the exit signal */
            pid = syscall(SYS_clone, kinds[i].flag | SIGCHLD, 0, 0, 0, 0);
            if (pid == 0)
                _exit(0);
            if (pid > 0)
                waitpid((pid_t)pid, NULL, 0);
            snprintf(what, sizeof what, "clone of %s", kinds[i].name);
            attack(PLAIN, what, pid);
        }
        snprintf(path, sizeof path, "/proc/self/ns/%s", kinds[i].name);
        int fd = open(path, O_RDONLY);
        snprintf(what, sizeof what, "setns to our own %s", kinds[i].name);
        if (room == INSIDE && fd >= 0)
            attack(0, what, syscall(SYS_setns, fd, 0));
        snprintf(what, sizeof what, "the parent of %s", kinds[i].name);
        attack(0, what, ioctl(fd, NS_GET_PARENT));
        snprintf(what, sizeof what, "what is above the owner of %s", kinds[i].name);
        int owner = ioctl(fd, NS_GET_USERNS);
        attack(0, what, owner < 0 ? -1 : ioctl(owner, NS_GET_PARENT));
        snprintf(what, sizeof what, "the mounts beside %s", kinds[i].name);
        attack(0, what, ioctl(fd, _IOR(0xb7, 11, char[16]) /* NS_MNT_GET_NEXT */, what));
        close(owner);
        close(fd);
    }
    clone3_args[4] = SIGCHLD;
    long made = syscall(SYS_clone3, clone3_args, sizeof clone3_args);
    if (made == 0)
        _exit(0);
    attack(PLAIN, "clone3", made);
    /* As on a kernel without it, wherever its arguments are: only pid 1 knows the address that works. */
    for (size_t i = 0; room == INSIDE && i < 64; i++) {
        uintptr_t wish = i == 0 ? 0 : (0x7fULL << 40 | (uintptr_t)random() << 12) >> (i % 16);
        char *page = mmap((void *)(wish & ~(uintptr_t)4095), 4096, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        void *args = page != MAP_FAILED ? (void *)(page + i) : clone3_args;
        memcpy(args, clone3_args, sizeof clone3_args);
        errno = 0;
        if (syscall(SYS_clone3, args, sizeof clone3_args) != -1 || errno != ENOSYS)
            worked("clone3 with arguments at %p: errno %d", args, errno);
    }
}

/* argument: "setuid" where set-user-ID programs are allowed: no_new_privs is off then, and nothing else. */
static void capabilities(const char *arg)
{
    /* chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service sys_chroot setfcap */
    const uint64_t allowed = 1ull << 0 | 1ull << 1 | 1ull << 3 | 1ull << 4 | 1ull << 5 | 1ull << 6 |
                             1ull << 7 | 1ull << 8 | 1ull << 10 | 1ull << 18 | 1ull << 31;
    int may_setuid = arg != NULL && strcmp(arg, "setuid") == 0;
    char line[256];
    FILE *f = fopen("/proc/self/status", "r");
    if (f == NULL)
        cannot("/proc/self/status");
    while (fgets(line, sizeof line, f) != NULL) {
        char name[16];
        unsigned long long value;
        if (sscanf(line, "Cap%15[A-Za-z]: %llx", name, &value) == 2) {
            fputs(line, stdout);
            if ((value & ~allowed) != 0)
                worked("Cap%s holds %llx", name, value & ~allowed);
            if ((strcmp(name, "Inh") == 0 || strcmp(name, "Amb") == 0) && value != 0)
                worked("Cap%s is not empty", name);
            if (geteuid() != 0 && strcmp(name, "Bnd") != 0 && value != 0)
                worked("an ordinary user has Cap%s", name);
        }
        if (strncmp(line, "NoNewPrivs:", 11) == 0 && strchr(line, '1') == NULL && !may_setuid)
            worked("no_new_privs is off");
        if (strncmp(line, "Seccomp:", 8) == 0 && strchr(line, '2') == NULL)
            worked("there is no filter");
    }
    fclose(f);
    attack(PLAIN, "another host name", sethostname("taken", 5));
    attack(0, "another clock", syscall(SYS_settimeofday, &(struct timeval){1, 0}, NULL));
}

static void other_abis(const char *arg)
{
    (void)arg;
#ifdef __x86_64__
    for (int i = 0; i < 2; i++) {
        int status;
        pid_t pid = fork();
        if (pid == 0) {
            long result = 0;
            if (i == 0)
                __asm__ volatile("int $0x80" : "=a"(result) : "a"(20) : "memory");
            else
                result = syscall(0x40000000 + SYS_getpid);
            _exit(result > 0 ? 1 : 0);
        }
        waitpid(pid, &status, 0);
        printf("%s: status %x\n", i == 0 ? "int 0x80" : "x32", status);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 1)
            worked("%s system calls", i == 0 ? "32-bit" : "x32");
    }
#else
    cannot("another architecture");
#endif
}

/* `rooms`: where the kernel gets as far as to look at the arguments. */
#define CALL(rooms, name)        \
    {                            \
        rooms, #name, SYS_##name \
    }
static const struct {
    int rooms;
    const char *name;
    long number;
} forbidden[] = {CALL(PLAIN, io_uring_setup),
                 CALL(PLAIN, io_uring_enter),
                 CALL(PLAIN, io_uring_register),
                 CALL(0, bpf), /* of root alone, where the machine says so; so are some below */
                 CALL(PLAIN, perf_event_open),
                 CALL(0, userfaultfd),
                 CALL(PLAIN, keyctl),
                 CALL(PLAIN, add_key),
                 CALL(PLAIN, request_key),
                 CALL(0, kexec_load),
                 CALL(0, kexec_file_load),
                 CALL(0, init_module),
                 CALL(0, finit_module),
                 CALL(0, delete_module),
                 CALL(PLAIN, reboot), /* of one's own pid namespace */
                 CALL(0, swapon),
                 CALL(0, swapoff),
                 CALL(0, acct),
                 CALL(0, quotactl),
                 CALL(0, quotactl_fd),
                 CALL(0, settimeofday),
                 CALL(0, clock_settime),
                 CALL(PLAIN, adjtimex),
                 CALL(PLAIN, clock_adjtime),
#ifdef __x86_64__
                 CALL(0, iopl),
                 CALL(0, ioperm),
#endif
                 CALL(0, syslog),
                 CALL(0, vhangup),
                 CALL(0, fanotify_init),
                 CALL(PLAIN, fanotify_mark),
                 CALL(0, lookup_dcookie),
                 CALL(0, memfd_secret),
                 CALL(PLAIN, process_vm_writev),
                 CALL(PLAIN, pivot_root),
                 CALL(0, open_by_handle_at),
                 CALL(PLAIN, name_to_handle_at),
                 CALL(PLAIN, mount),
                 CALL(PLAIN, umount2),
                 CALL(PLAIN, fsopen),
                 CALL(PLAIN, fsconfig),
                 CALL(PLAIN, fsmount),
                 CALL(PLAIN, fspick),
                 CALL(PLAIN, open_tree),
                 CALL(PLAIN, move_mount),
                 CALL(PLAIN, mount_setattr),
                 CALL(PLAIN, unshare),
                 CALL(PLAIN, setns)};

/* With nothing but zeroes. EPERM and ENOSYS are refusals; the kernel's word on the arguments is none. */
static void forbidden_calls(const char *arg)
{
    (void)arg;
    for (size_t i = 0; i < sizeof forbidden / sizeof *forbidden; i++) {
        if (room != INSIDE && forbidden[i].rooms == 0)
            continue;
        long result = syscall(forbidden[i].number, 0, 0, 0, 0, 0, 0);
        attack(forbidden[i].rooms, forbidden[i].name,
               result < 0 && (errno == EPERM || errno == ENOSYS) ? -1 : 0);
    }
    for (int i = 463; room == INSIDE && i < 1400;
         i += i < 600 ? 1 : 50) { /* what the kernel may grow later */
        errno = 0;
        if (syscall(i, 0, 0, 0, 0, 0, 0) >= 0 || errno != ENOSYS)
            worked("unknown call %d: %s", i, strerror(errno));
    }
}

/* Some wait for ever: each has `ms`, and many run at once. */
static void call_all(long first, long end, int ms, int at_once)
{
    int running = 0;
    for (long n = first; n < end || running > 0; n++) {
        if (n < end) {
            pid_t pid = fork();
            if (pid == 0) {
                struct itimerval soon = {.it_value = {ms / 1000, ms % 1000 * 1000}};
                signal(SIGALRM, SIG_DFL);
                setitimer(ITIMER_REAL, &soon, NULL);
                syscall(n, 0, 0, 0, 0, 0, 0);
                _exit(0);
            }
            running += pid > 0;
            if (pid < 0)
                at_once = running > 1 ? running - 1 : 1;
        }
        while (running > 0 && (running >= at_once || n >= end)) {
            if (wait(NULL) < 0)
                running = 1;
            running--;
        }
    }
}

/* argument: milliseconds for each, all numbers then */
static void every_call(const char *arg)
{
    call_all(0, arg != NULL ? 1024 : 480, arg != NULL ? (int)strtol(arg, NULL, 10) : 100, 48);
    puts("all tried");
}

static void personalities(const char *arg)
{
    (void)arg;
    attack(PLAIN, "READ_IMPLIES_EXEC", syscall(SYS_personality, 0x0400000ul));
    attack(PLAIN, "no address randomisation", syscall(SYS_personality, 0x0040000ul));
    attack(PLAIN, "the same with high bits", syscall(SYS_personality, 0x500040000ul));
}

/* Of whom: the host's user, whose session this program descends from. */
static void keyrings(const char *arg)
{
    char what[64];
    (void)arg;
    for (int i = -1; i >= -8; i--) {
        snprintf(what, sizeof what, "keyring %d", i);
        attack(i == -3 || i == -4 ? HOST : 0, what,
               syscall(SYS_keyctl, 0 /* GET_KEYRING_ID */, i, 0));
    }
    attack(HOST, "a new key",
           syscall(SYS_add_key, "user", "sandbar-spec", "x", 1, -1 /* of this thread */));
    attack(HOST, "a keyring joined", syscall(SYS_keyctl, 1, NULL));
}

const struct probe call_probes[] = {{"namespaces", PLAIN, namespaces},
                                    {"capabilities", PLAIN, capabilities},
                                    {"other_abis", PLAIN, other_abis},
                                    {"forbidden_calls", PLAIN, forbidden_calls},
                                    {"every_call", 0, every_call}, /* to see who survives it */
                                    {"personalities", PLAIN, personalities},
                                    {"keyrings", HOST, keyrings},
                                    {NULL, 0, NULL}};
