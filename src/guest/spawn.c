#include "spawn.h"

#include "guest.h"
#include "mem.h"
#include "str.h"
#include "sys.h"
#include "users.h"

#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define DEFAULT_TERM "xterm-256color"

static _Noreturn void fail(struct launch *l, enum spawn_step step, long err)
{
    l->error = (int)-err;
    l->step = step;
    sys_exit(127);
}

const char *env_value(char *const *env, const char *name)
{
    size_t n = strlen(name);
    for (; *env != NULL; env++)
        if (strlen(*env) > n && (*env)[n] == '=' && memcmp(*env, name, n) == 0)
            return *env + n + 1;
    return NULL;
}

/* `end` is where the environment's NULL is. */
static void put_default(char *const *env, char ***end, const char *name, const char *value,
                        char **room)
{
    size_t n = strlen(name), m = strlen(value);
    if (env_value(env, name) != NULL)
        return;
    memcpy(*room, name, n);
    (*room)[n] = '=';
    memcpy(*room + n + 1, value, m + 1);
    *(*end)++ = *room;
    **end = NULL;
    *room += n + m + 2;
}

static void take_fd(struct launch *l, int fd, int at, const struct account *a)
{
    long r;
    if (fd < 0)
        return;
    /* Theirs, so that they may open /dev/stdout again. */
    if (a->uid != guest.uid && !guest.single)
        SYS3(__NR_fchown, fd, a->uid, a->gid);
    r = SYS3(__NR_dup3, fd, at, 0);
    if (r < 0)
        fail(l, STEP_STDIO, r);
}

/* The terminal it is started on: its user's alone, and of the session that begins here. */
static void take_terminal(struct launch *l, const struct account *a)
{
    long r = 0;
    if (a->uid != guest.uid && !guest.single)
        r = SYS3(__NR_fchown, l->terminal, a->uid, -1);
    if (r == 0)
        r = SYS2(__NR_fchmod, l->terminal, 0600);
    for (int fd = 0; fd < 3 && r >= 0; fd++)
        r = SYS3(__NR_dup3, l->terminal, fd, 0);
    if (r >= 0)
        r = SYS3(__NR_ioctl, 0, TIOCSCTTY, 0);
    if (r < 0)
        fail(l, STEP_TERMINAL, r);
}

/* chdir as the user; the result must lie inside the sandbox's root. */
static void take_cwd(struct launch *l, const struct account *a)
{
    char *buf = (char *)guest.out;
    const char *rest = l->cwd;
    long r;
    if (l->cwd == NULL) {
        if (SYS1(__NR_chdir, a->home) < 0)
            SYS1(__NR_chdir, "/");
    } else {
        if (l->cwd[0] != '/') {
            r = SYS1(__NR_chdir, a->home);
            if (l->cwd[0] == '~' && (l->cwd[1] == '/' || l->cwd[1] == '\0'))
                rest = l->cwd[1] == '\0' ? "." : l->cwd + 2;
            else if (l->cwd[0] == '~')
                fail(l, STEP_CWD, -EINVAL);
            while (*rest == '/')
                rest++;
            if (*rest == '\0')
                rest = ".";
            if (r < 0)
                fail(l, STEP_CWD, r);
        }
        r = SYS1(__NR_chdir, rest);
        if (r < 0)
            fail(l, STEP_CWD, r);
    }
    r = SYS2(__NR_getcwd, buf, PATH_MAX);
    if (r < 0 || buf[0] != '/')
        fail(l, STEP_CWD, r < 0 ? r : -ENOENT);
}

/* A file that has just been written may still be open for a moment: in the worker that answered
 * for it, or at the caller. Tried again for 63 ms at most, which is time of this sandbox only. */
static long execute(const char *path, struct launch *l)
{
    for (long ms = 1;; ms *= 2) {
        long r = SYS3(__NR_execve, path, l->argv, l->env);
        long pause[2] = {0, ms * 1000000};
        if (r != -ETXTBSY || ms > 32)
            return r;
        SYS2(__NR_nanosleep, pause, NULL);
    }
}

/* execvp's search, with the command's own PATH. A candidate that is there but may not be run is
 * remembered; anything but "not here" ends the search. */
static _Noreturn void take_image(struct launch *l)
{
    const char *name = l->argv[0], *path;
    size_t len = strlen(name);
    long denied = 0, r;
    if (str_find(name, len, '/') != NULL)
        fail(l, STEP_EXECVE, execute(name, l));
    path = env_value(l->env, "PATH");
    if (path == NULL)
        path = DEFAULT_PATH;
    if (len > NAME_MAX)
        fail(l, STEP_EXECVE, -ENAMETOOLONG);
    for (;;) {
        char *buf = (char *)guest.out;
        size_t n = 0;
        while (path[n] != '\0' && path[n] != ':')
            n++;
        if (n + len + 2 <= PATH_MAX) {
            memcpy(buf, path, n);
            if (n > 0)
                buf[n] = '/';
            memcpy(buf + n + (n > 0), name, len + 1);
            r = execute(buf, l);
            if (r == -EACCES)
                denied = r;
            else if (r != -ENOENT && r != -ENOTDIR && r != -ENAMETOOLONG && r != -ELOOP)
                fail(l, STEP_EXECVE, r);
        }
        if (path[n] == '\0')
            fail(l, STEP_EXECVE, denied != 0 ? denied : -ENOENT);
        path += n + 1;
    }
}

/* Open files. The soft limit is the usual one where that is lower: programs close or poll up to it. */
static long limit_files(void)
{
    uint64_t limit[2] = {guest.limit_files < 1024 ? guest.limit_files : 1024, guest.limit_files};
    return guest.limit_files == 0 ? 0 : SYS4(__NR_prlimit64, 0, 7 /* RLIMIT_NOFILE */, limit, NULL);
}

/* A command may have fewer processes than pid 1, so that with all of them taken another one can still be started. Once
 * it has its user: the kernel would remember then that there are too many, and refuse the execve. */
static long limit_processes(void)
{
    uint64_t limit[2] = {0};
    long r = SYS4(__NR_prlimit64, 0, 6 /* RLIMIT_NPROC */, NULL, limit);
    if (r < 0 || limit[1] <= SB_PROCESSES_SPARE)
        return r;
    limit[0] = limit[1] -= SB_PROCESSES_SPARE;
    return SYS4(__NR_prlimit64, 0, 6, limit, NULL);
}

static void child(void *arg)
{
    struct launch *l = arg;
    struct account a;
    char room[sizeof a.home + 2 * sizeof a.name + sizeof a.shell + sizeof DEFAULT_PATH +
              sizeof DEFAULT_TERM + 64];
    char *at = room, **end = l->env + l->nenv;
    uint64_t none = 0, marks[2] = {l->mark, l->mark};
    long r;

    if (!l->inside && l->leaf->procs >= 0 && sys_write(l->leaf->procs, "0", 1) < 0)
        fail(l, STEP_CGROUP, -EIO);
    if (l->mark != 0)
        SYS4(__NR_prlimit64, 0, 15 /* RLIMIT_RTTIME */, marks, NULL);
    SYS0(__NR_setsid);
    SYS4(__NR_rt_sigprocmask, 2, &none, 0, sizeof none);
    r = users_find(l->user, &a, (char *)guest.out);
    if (r < 0)
        fail(l, STEP_USER, r);
    take_fd(l, l->in, 0, &a);
    take_fd(l, l->out, 1, &a);
    take_fd(l, l->err, 2, &a);
    if (l->terminal >= 0)
        take_terminal(l, &a);
    SYS3(__NR_close_range, 3, ~0u, 0);
    r = limit_files();
    if (r < 0)
        fail(l, STEP_LIMIT, r);
    r = users_become(&a);
    if (r < 0)
        fail(l, STEP_IDS, r);
    r = limit_processes();
    if (r < 0)
        fail(l, STEP_LIMIT, r);
    take_cwd(l, &a);
    if (!l->clean) {
        put_default(l->env, &end, "HOME", a.home, &at);
        put_default(l->env, &end, "USER", a.name, &at);
        put_default(l->env, &end, "LOGNAME", a.name, &at);
        put_default(l->env, &end, "PATH", DEFAULT_PATH, &at);
        put_default(l->env, &end, "SHELL", a.shell, &at);
        if (l->terminal >= 0)
            put_default(l->env, &end, "TERM", DEFAULT_TERM, &at);
    }
    take_image(l);
}

/* The child borrows our memory until its execve, so we stand still; but not for ever, which vfork would:
 * others of its user may stop it on its way, and one who holds a lease on the program delays the open. */
enum { START_LIMIT_MS = 5000, START_LOOK_MS = 100 };

static unsigned char stack[65536] __attribute__((aligned(16)));
static int starting; /* the kernel makes it 0 when the child has left our memory */

/* Only looked at: its end is waited for elsewhere. */
static int stopped(long pid)
{
    int info[32] = {0};
    return SYS5(__NR_waitid, P_PID, pid, info, WSTOPPED | WNOHANG | WNOWAIT | WALL, NULL) == 0 &&
           info[0] == SIGCHLD;
}

/* Until the child lives in memory of its own or is gone. 0, or ETIMEDOUT: it was ended. */
static int await_start(long pid)
{
    long look[2] = {0, START_LOOK_MS * 1000000L};
    int late = 0;
    for (int ms = 0; __atomic_load_n(&starting, __ATOMIC_ACQUIRE) != 0;) {
        if (SYS4(__NR_futex, &starting, FUTEX_WAIT, 1, late ? NULL : look) != -ETIMEDOUT)
            continue;
        ms += START_LOOK_MS;
        if (ms < START_LIMIT_MS && !stopped(pid))
            continue;
        late = ETIMEDOUT;
        sys_kill((int)pid, SIGKILL);
    }
    return late;
}

/* clone3's arguments, as far as cgroup, at the one address where the filter accepts them. That page
 * is mapped at the first use: most of its cost is page tables. */
static struct clone_args *clone_arguments(void)
{
    enum { PAGE = 4096 };
    static struct clone_args *args;
    uint64_t at = guest.clone_at, page = at & ~(uint64_t)(PAGE - 1);
    if (args != NULL || at == 0)
        return args;
    if (SYS6(__NR_mmap, page, PAGE, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == (long)page)
        args = (struct clone_args *)(uintptr_t)at;
    else
        guest.clone_at = 0;
    return args;
}

/* A child that is in its leaf from the first moment on. A child that moved there would wait for a
 * grace period of the whole machine (5-15 ms). 0 or less: not this way. */
static long spawn_inside(struct launch *l)
{
    struct clone_args *args;
    long pid;
    if (l->leaf->dir < 0 || guest.clone_at == 0 || (args = clone_arguments()) == NULL)
        return 0;
    *args = (struct clone_args){
        .flags = CLONE_VM | CLONE_CHILD_CLEARTID | CLONE_INTO_CGROUP,
        .child_tid = (uint64_t)(uintptr_t)&starting,
        .exit_signal = SIGCHLD,
        .stack = (uint64_t)(uintptr_t)stack,
        .stack_size = sizeof stack,
        .cgroup = (uint64_t)l->leaf->dir,
    };
    l->inside = 1;
    starting = 1;
    pid = sys_spawn3(args, sizeof *args, child, l);
    if (pid > 0)
        return pid;
    l->inside = 0;
    /* Short of processes or memory: it is worth another try. All else is this kernel's last word. */
    if (pid != -EAGAIN && pid != -ENOMEM)
        guest.clone_at = 0;
    return pid;
}

int spawn_begin(struct launch *l)
{
    long pid;
    l->step = STEP_NONE;
    l->error = 0;
    l->inside = 0;
    memory_expose(1);
    pid = spawn_inside(l);
    if (pid <= 0) {
        starting = 1;
        pid = sys_spawn(CLONE_VM | CLONE_CHILD_CLEARTID | SIGCHLD, stack + sizeof stack, &starting,
                        child, l);
    }
    return (int)pid;
}

void spawn_end(struct launch *l, int pid)
{
    int late = await_start(pid), status;
    memory_expose(0);
    if (late != 0 && l->step == STEP_NONE) {
        l->step = STEP_EXECVE;
        l->error = late;
    }
    l->env[l->nenv] = NULL;
    if (l->step != STEP_NONE)
        while (SYS4(__NR_wait4, pid, &status, WALL, NULL) == -EINTR)
            ;
}

const char *spawn_step_name(enum spawn_step step)
{
    switch (step) {
    case STEP_CGROUP:
        return "cgroup";
    case STEP_USER:
        return "user";
    case STEP_STDIO:
        return "stdio";
    case STEP_TERMINAL:
        return "terminal";
    case STEP_LIMIT:
        return "limits";
    case STEP_IDS:
        return "ids";
    case STEP_CWD:
        return "cwd";
    case STEP_EXECVE:
        return "execve";
    default:
        return "spawn";
    }
}
