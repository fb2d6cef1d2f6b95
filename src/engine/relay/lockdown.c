/* Gives up what a relay does not need: ids, capabilities, files, nearly all system calls. */
#include <errno.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lockdown.h"

#if defined(__x86_64__)
#define MACHINE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define MACHINE AUDIT_ARCH_AARCH64
#else
#error "not ported to this machine"
#endif

enum { MEMORY = 256 << 20 };

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define RETURN(what) BPF_STMT(BPF_RET | BPF_K, (what))
/* The next instruction is for this value only. */
#define IF(value) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), 0, 1)
#define MAY(name) IF(SYS_##name), RETURN(SECCOMP_RET_ALLOW)

/* Nothing that takes a path, a process or another kind of socket than internet ones. */
static const struct sock_filter calls[] = {
    LOAD(arch),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MACHINE, 1, 0),
    RETURN(SECCOMP_RET_KILL_PROCESS),
    LOAD(nr),
    MAY(read),
    MAY(write),
    MAY(recvfrom),
    MAY(sendto),
    MAY(recvmsg),
    MAY(sendmsg),
    MAY(epoll_pwait),
#ifdef SYS_epoll_wait
    MAY(epoll_wait),
#endif
    MAY(epoll_ctl),
    MAY(accept4),
    MAY(connect),
    MAY(bind),
    MAY(shutdown),
    MAY(close),
    MAY(getsockname),
    MAY(getsockopt),
    MAY(setsockopt),
    MAY(clock_gettime),
    MAY(getrandom),
    MAY(mmap),
    MAY(munmap),
    MAY(mremap),
    MAY(madvise),
    MAY(brk),
    MAY(restart_syscall),
    MAY(rt_sigreturn),
    MAY(exit_group),
#ifdef SB_TLSRELAY /* which opens nothing; its libraries try this and that (a time zone), and do without */
    MAY(futex),
    MAY(mprotect),
    MAY(getpid),
    MAY(gettid),
    RETURN(SECCOMP_RET_ERRNO | EPERM),
#endif
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 1, 0),
    RETURN(SECCOMP_RET_KILL_PROCESS),
    LOAD(args[0]),
    IF(AF_INET),
    RETURN(SECCOMP_RET_ALLOW),
    IF(AF_INET6),
    RETURN(SECCOMP_RET_ALLOW),
    RETURN(SECCOMP_RET_KILL_PROCESS),
};

static void must(long rc)
{
    if (rc < 0)
        _exit(4);
}

void sb_lock_down(const char *uid)
{
    const struct sock_fprog program = {sizeof calls / sizeof *calls,
                                       (struct sock_filter *)(void *)calls};
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
    struct rlimit limit;
    for (int cap = 0; cap < 64; cap++)
        if (prctl(PR_CAPBSET_DROP, cap) < 0 && errno != EINVAL)
            _exit(4);
    if (uid[0] != '-') { /* root: an id of the sandbox's range that is nobody inside */
        uid_t id = (uid_t)strtoul(uid, NULL, 10);
        must(setgroups(0, NULL));
        must(setresgid(id, id, id));
        must(setresuid(id, id, id));
    }
    must(syscall(SYS_capset, &head, none));
    limit.rlim_cur = limit.rlim_max = MEMORY;
    must(setrlimit(RLIMIT_DATA, &limit));
    /* After the ids, whose change sets the first back; 1 is no dump either where a program takes them (birth.c). */
    must(prctl(PR_SET_DUMPABLE, 0));
    limit.rlim_cur = limit.rlim_max = 1;
    must(setrlimit(RLIMIT_CORE, &limit));
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    must(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
}
