/* The settings of new namespaces: through a proc file system of our own.
 *
 * What is looked up below /proc/sys stays in the kernel's memory of names for as long as the namespace
 * that it led to lives, and all namespaces' entries of one name lie in one chain: through the machine's
 * /proc each new sandbox would walk past those of every living one, a dozen times. Ours forgets them. */
#include "settings.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "birth.h"
#include "raw.h"

enum { FORGET_EACH = 8 };

static struct {
    int dir;
    bool own;
    int users; /* since it forgot */
} proc = {.dir = -1};

static char stack[SB_STACK] __attribute__((aligned(16)));

/* A proc file system belongs to whom its pid namespace belongs to: an ordinary user has to make one,
 * and whoever has made it ends at once. What is below sys does not depend on it. */
static int make(void *arg)
{
    long fs = sb_sys(fsopen, "proc", FSOPEN_CLOEXEC);
    long rc = fs < 0 ? fs : sb_sys(fsconfig, fs, FSCONFIG_CMD_CREATE, 0, 0, 0);
    if (rc >= 0)
        rc = sb_sys(fsmount, fs, FSMOUNT_CLOEXEC,
                    MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC | MOUNT_ATTR_NODEV);
    if (fs >= 0)
        sb_sys(close, fs);
    *(int *)arg = (int)rc;
    return 0;
}

int sb_settings_start(struct sb_failure *f)
{
    int made = -1;
    struct clone_args args = {
        .flags = CLONE_VM | CLONE_VFORK | CLONE_FILES | CLONE_CLEAR_SIGHAND | CLONE_NEWPID,
        .stack = (uint64_t)(uintptr_t)stack,
        .stack_size = sizeof stack,
    };
    long pid = sb_raw_clone3(&args, sizeof args, make, &made);
    siginfo_t info;
    while (pid > 0 && waitid(P_PID, (id_t)pid, &info, WEXITED | __WALL) < 0 && errno == EINTR)
        ;
    proc.own = made >= 0;
    proc.dir = sb_lift(proc.own ? made : open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC));
    return proc.dir < 0 ? sb_failed_errno(f, "settings", "cannot open proc") : 0;
}

int sb_settings_dir(void)
{
    return proc.dir;
}

void sb_settings_used(void)
{
    if (!proc.own || ++proc.users < FORGET_EACH)
        return;
    proc.users = 0;
    /* To be configured anew, with nothing changed, is what makes a file system do it. */
    sb_autofd int fs = fspick(proc.dir, "", FSPICK_CLOEXEC | FSPICK_EMPTY_PATH);
    if (fs >= 0)
        fsconfig(fs, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0);
}
