/* From _start to the loop. */
#include "conn.h"
#include "mem.h"
#include "proc.h"
#include "sys.h"

SYS_START;

struct guest guest; /* all zero: none of its pages is in the file */

/* Only a process that is not ours may become our supervisor: its pid has no number in here. */
static void listener_ready(struct watch *w, uint32_t events)
{
    struct {
        int pid;
        uint32_t uid, gid;
    } peer = {-1, 0, 0};
    uint32_t len = sizeof peer;
    long fd = SYS4(__NR_accept4, w->fd, NULL, NULL, O_CLOEXEC);
    (void)events;
    if (fd < 0)
        return;
    if (SYS5(__NR_getsockopt, fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) != 0 || peer.pid != 0)
        sys_close((int)fd);
    else
        control_adopt((int)fd);
}

/* What pid 1 itself may still do: take on users, give pipes and files away, signal commands, and act
 * for root in file operations. Commands of root get the rest back from the bounding set. */
static void drop_capabilities(void)
{
    enum {
        CHOWN = 0,
        DAC_OVERRIDE = 1,
        FOWNER = 3,
        FSETID = 4,
        KILL = 5,
        SETGID = 6,
        SETUID = 7,
        SETFCAP = 31
    };
    struct {
        uint32_t version;
        int pid;
    } head = {0x20080522, 0};
    struct {
        uint32_t effective, permitted, inheritable;
    } data[2] = {{0}};
    uint32_t keep = 1u << CHOWN | 1u << DAC_OVERRIDE | 1u << FOWNER | 1u << FSETID | 1u << KILL |
                    1u << SETGID | 1u << SETUID | 1u << SETFCAP;
    if (SYS2(__NR_capget, &head, data) != 0)
        return;
    data[0].permitted &= keep;
    data[0].effective = data[0].permitted;
    data[1].permitted = data[1].effective = 0;
    data[0].inheritable = data[1].inheritable = 0;
    SYS2(__NR_capset, &head, data);
    SYS5(__NR_prctl, 47 /* PR_CAP_AMBIENT */, 4 /* CLEAR_ALL */, 0, 0, 0);
}

/* Whatever the supervisor ignored would be ignored by every command. */
static void default_signals(void)
{
    struct {
        void *handler;
        unsigned long flags;
        void *restorer;
        uint64_t mask;
    } action = {0};
    for (int sig = 1; sig < 32; sig++)
        if (sig != SIGKILL && sig != SIGSTOP)
            SYS4(__NR_rt_sigaction, sig, &action, NULL, 8);
}

_Noreturn void guest_main(const unsigned long *stack);
__attribute__((used)) _Noreturn void guest_main(const unsigned long *stack)
{
    SYS5(__NR_prctl, 4 /* PR_SET_DUMPABLE */, 0, 0, 0, 0);
    guest.control.fd = guest.listener.fd = guest.children.fd = guest.timer.fd = -1;
    guest.oom = guest.oom_score = -1;
    sys_fcntl(FD_CONTROL, F_SETFD, 1);
    if (loop_start() != 0)
        sys_exit(101);
    guest.uid = (uint32_t)SYS0(__NR_geteuid);
    guest.gid = (uint32_t)SYS0(__NR_getegid);
    guest.single = SYS2(__NR_setgroups, 0, NULL) != 0;
    control_adopt(FD_CONTROL);
    /* The hello is out: the rest is done while the supervisor works on it. */
    sys_fcntl(FD_LISTEN, F_SETFD, 1);
    sys_fcntl(FD_LISTEN, F_SETFL, O_NONBLOCK);
    loop_watch(&guest.listener, FD_LISTEN, EPOLLIN, listener_ready);
    stack_leave(stack);
    drop_capabilities();
    default_signals();
    SYS1(__NR_umask, 022);
    SYS1(__NR_chdir, "/");
    loop_run();
}
