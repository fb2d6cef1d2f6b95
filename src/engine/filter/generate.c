/* Build-time generator of the sandbox's system call filter: prints build/filter/filter.h.
 *
 * The list of refused calls is made by libseccomp, as a balanced tree (installing a filter costs by
 * its length). What libseccomp cannot say - "any newer number", comparisons on exactly 32 bits -
 * stands in front of it as hand-written instructions: the kernel reads int arguments from the low
 * half of a register, so a comparison on 64 bits could be dodged with garbage in the high half. */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sched.h>
#include <seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* The newest number that has been looked at (mseal). Numbers above answer ENOSYS, as an older
 * kernel would, so that programs take their fallbacks. */
#define NEWEST_KNOWN 462

#if defined(__x86_64__)
#define NATIVE_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define NATIVE_ARCH AUDIT_ARCH_AARCH64
#else
#error "the filter is written for x86-64 and arm64"
#endif

#define CLONE_NEW_ANY 0x7E020000u /* every CLONE_NEW* that clone(2) knows */
#define TIOCSTI_NR 0x5412u
#define TIOCLINUX_NR 0x541Cu
#define TIOCSETD_NR 0x5423u
#define PERSONALITY_QUERY 0xffffffffu
#define UNAME26 0x0020000u

/* An address no program can have: left in place, they allow nothing. */
#define MARK_LOW 0x5b5b0001u
#define MARK_HIGH 0xfbfb0002u

/* Refused with EPERM, by name; a name this machine does not have is left out. */
static const char *const refused[] = {
    "mount",
    "umount",
    "umount2",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "open_tree",
    "move_mount",
    "mount_setattr",
    "pivot_root",
    "unshare",
    "setns",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "add_key",
    "request_key",
    "keyctl",
    "kexec_load",
    "kexec_file_load",
    "init_module",
    "finit_module",
    "delete_module",
    "create_module",
    "get_kernel_syms",
    "query_module",
    "reboot",
    "swapon",
    "swapoff",
    "acct",
    "quotactl",
    "quotactl_fd",
    "settimeofday",
    "stime",
    "clock_settime",
    "clock_settime64",
    "adjtimex",
    "clock_adjtime",
    "clock_adjtime64",
    "open_by_handle_at",
    "name_to_handle_at",
    "lookup_dcookie",
    "iopl",
    "ioperm",
    "syslog",
    "vhangup",
    "fanotify_init",
    "fanotify_mark",
    "nfsservctl",
    "uselib",
    "_sysctl",
    "sysfs",
    "ustat",
    "vserver",
    "memfd_secret",
    "process_vm_writev",
};

#define LD(off) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (off))
#define JEQ(k, t, f) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (k), (t), (f))
#define JGT(k, t, f) BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, (k), (t), (f))
#define JGE(k, t, f) BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, (k), (t), (f))
#define JSET(k, t, f) BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, (k), (t), (f))
#define RET(k) BPF_STMT(BPF_RET | BPF_K, (k))
#define NR offsetof(struct seccomp_data, nr)
#define ARCH offsetof(struct seccomp_data, arch)
#define LOW(n) \
    (offsetof(struct seccomp_data, args) + 8 * (n)) /* little endian: the low half first */
#define HIGH(n) (LOW(n) + 4)
#define REFUSE(e) RET(SECCOMP_RET_ERRNO | (e))
#define ALLOW RET(SECCOMP_RET_ALLOW)

/* Each block of a special call starts with its number and jumps over itself if it is another. */
static const struct sock_filter front[] = {
    LD(ARCH),
    JEQ(NATIVE_ARCH, 1, 0),
    RET(SECCOMP_RET_KILL_PROCESS),
    LD(NR),
#if defined(__x86_64__)
    JGE(0x40000000u, 0, 1), /* x32 numbers, and -1 */
    RET(SECCOMP_RET_KILL_PROCESS),
#endif
    JGT(NEWEST_KNOWN, 0, 1),
    REFUSE(ENOSYS),
    /* clone3: flags in memory cannot be looked at. Pid 1 alone has a use for it, with its arguments at
     * an address that the supervisor chooses for each sandbox and puts in place of the marks. */
    JEQ(435, 0, 6),
    LD(LOW(0)),
    JEQ(MARK_LOW, 0, 3),
    LD(HIGH(0)),
    JEQ(MARK_HIGH, 0, 1),
    ALLOW,
    REFUSE(ENOSYS),

    JEQ(__SNR_clone, 0, 4),
    LD(LOW(0)),
    JSET(CLONE_NEW_ANY, 0, 1),
    REFUSE(EPERM),
    ALLOW,

    /* A protocol that is not the usual ones would have the kernel load its module. */
    JEQ(__SNR_socket, 1, 0),
    JEQ(__SNR_socketpair, 0, 16),
    LD(LOW(0)),
    JEQ(AF_UNIX, 13, 0),
    JEQ(AF_INET, 5, 0),
    JEQ(AF_INET6, 4, 0),
    JEQ(AF_NETLINK, 0, 2),
    LD(LOW(2)),
    JEQ(0 /* NETLINK_ROUTE */, 8, 0),
    REFUSE(EAFNOSUPPORT),
    LD(LOW(2)),
    JEQ(IPPROTO_IP, 5, 0),
    JEQ(IPPROTO_ICMP, 4, 0),
    JEQ(IPPROTO_TCP, 3, 0),
    JEQ(IPPROTO_UDP, 2, 0),
    JEQ(IPPROTO_ICMPV6, 1, 0),
    REFUSE(EPROTONOSUPPORT),
    ALLOW,

    /* Line disciplines are modules as well, loaded by whoever names one. */
    JEQ(__SNR_ioctl, 0, 6),
    LD(LOW(1)),
    JEQ(TIOCSTI_NR, 2, 0),
    JEQ(TIOCLINUX_NR, 1, 0),
    JEQ(TIOCSETD_NR, 0, 1),
    REFUSE(EPERM),
    ALLOW,

    /* The limit on core dumps stays what it was at birth (birth.c). Programs that set it want no dump or do
     * without one: they are told that it is done. */
    JEQ(__SNR_setrlimit, 0, 4),
    LD(LOW(0)),
    JEQ(RLIMIT_CORE, 0, 1),
    REFUSE(0),
    ALLOW,
    JEQ(__SNR_prlimit64, 0, 8),
    LD(LOW(1)),
    JEQ(RLIMIT_CORE, 0, 5),
    LD(LOW(2)),
    JEQ(0, 0, 2),
    LD(HIGH(2)),
    JEQ(0, 1, 0),
    REFUSE(0),
    ALLOW,

    JEQ(__SNR_personality, 0, 7),
    LD(LOW(0)),
    JEQ(0, 4, 0),
    JEQ(8 /* PER_LINUX32 */, 3, 0),
    JEQ(UNAME26, 2, 0),
    JEQ(PERSONALITY_QUERY, 1, 0),
    REFUSE(EPERM),
    ALLOW,
};

static void check(int rc, const char *what)
{
    if (rc == 0)
        return;
    fprintf(stderr, "filter: %s: error %d\n", what, -rc);
    exit(1);
}

/* Where the program compares with this mark: exactly once. */
static size_t place_of(const struct sock_filter *f, size_t n, unsigned int mark)
{
    size_t found = n;
    for (size_t i = 0; i < n; i++)
        if (f[i].code == (BPF_JMP | BPF_JEQ | BPF_K) && f[i].k == mark) {
            check(found == n ? 0 : -EEXIST, "a mark stands twice");
            found = i;
        }
    check(found < n ? 0 : -ENOENT, "a mark is missing");
    return found;
}

static void print(const struct sock_filter *f, size_t n)
{
    for (size_t i = 0; i < n; i++)
        printf("    {0x%04x, %u, %u, 0x%08xu},\n", f[i].code, f[i].jt, f[i].jf, f[i].k);
}

int main(void)
{
    scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ALLOW);
    if (ctx == NULL)
        check(-ENOMEM, "seccomp_init");
    check(seccomp_attr_set(ctx, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS),
          "bad architecture");
    check(seccomp_attr_set(ctx, SCMP_FLTATR_CTL_OPTIMIZE, 2), "tree");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        int nr = seccomp_syscall_resolve_name(refused[i]);
        if (nr >= 0)
            check(seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), nr, 0), refused[i]);
    }

    int fd = memfd_create("filter", MFD_CLOEXEC);
    if (fd < 0)
        check(-errno, "memfd_create");
    check(seccomp_export_bpf(ctx, fd), "export");
    struct sock_filter tree[1024];
    ssize_t got = pread(fd, tree, sizeof tree, 0);
    if (got <= 0 || got % (ssize_t)sizeof *tree != 0)
        check(-EIO, "read");
    seccomp_release(ctx);
    close(fd);

    printf("/* Generated by src/engine/filter/generate.c. */\n"
           "static const struct sock_filter sb_filter[] = {\n");
    print(front, sizeof front / sizeof *front);
    print(tree, (size_t)got / sizeof *tree);
    printf("};\n");
    size_t n = sizeof front / sizeof *front;
    printf(
        "/* Where the two halves of the address belong at which clone3 may find its arguments. */\n"
        "enum { SB_FILTER_LOW = %zu, SB_FILTER_HIGH = %zu };\n",
        place_of(front, n, MARK_LOW), place_of(front, n, MARK_HIGH));
    return 0;
}
