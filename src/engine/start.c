/* Finds the supervisor of a state directory or starts one, without ever waiting for it.
 *
 * The new process must not be a child of the host: the host may reap every child it has (nginx
 * does), and must not get a SIGCHLD it does not expect. So an intermediate without an exit
 * signal, which never executes anything, makes the real child and ends. Both share our memory
 * until the child executes the supervisor (vfork), so that the size of the host does not matter;
 * they touch nothing but their stacks, and make system calls only. */
#include "start.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conn.h"
#include "images.h"

#ifndef CLONE_PIDFD
#define CLONE_PIDFD 0x00001000
#endif
#ifndef P_PIDFD
#define P_PIDFD 3
#endif

#define START_LIMIT_NS (15ull * 1000000000)
#define STACK_SIZE 65536

#if defined(__SANITIZE_ADDRESS__)
#define NO_SANITIZE __attribute__((no_sanitize_address, no_sanitize_undefined, no_stack_protector))
#elif defined(__clang__)
#define NO_SANITIZE __attribute__((no_sanitize("address", "thread", "undefined")))
#else
#define NO_SANITIZE __attribute__((no_sanitize_thread))
#endif

/* ---- the state directory ---- */

/* Every directory of the path; those that are there already are left as they are. */
static int make_dirs(const char *path, struct sb_error *err)
{
    char part[4096];
    size_t len = strlen(path);
    if (len >= sizeof part)
        return sb_fail_errno(err, ENAMETOOLONG, "state root", "%.100s", path);
    for (size_t i = 1; i <= len; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0700) < 0 && errno != EEXIST &&
            (i == len || (errno != EROFS && errno != EACCES)))
            return sb_fail_errno(err, errno, "state root",
                                 "the state directory %.150s cannot be made", path);
    }
    return 0;
}

static int check_dir(int fd, const char *root, mode_t forbidden, struct sb_error *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return sb_fail_errno(err, errno, "state root", "%.150s", root);
    if (st.st_uid != geteuid())
        return sb_fail(err, SB_ERR_PERMISSION_DENIED,
                       "the state directory %.150s belongs to uid %u, not to %u", root,
                       (unsigned)st.st_uid, (unsigned)geteuid());
    if (st.st_mode & forbidden)
        return sb_fail(err, SB_ERR_PERMISSION_DENIED,
                       "the state directory %.150s is open to others (mode %o)", root,
                       (unsigned)(st.st_mode & 07777));
    return 0;
}

static int fail_step(struct sb_error *err, int rc, const char *path)
{
    if (err != NULL) {
        snprintf(err->step, sizeof err->step, "state root");
        snprintf(err->path, sizeof err->path, "%s", path);
    }
    return rc;
}

/* Links are not followed: what one leads to could be another's choice. */
static int fail_open(struct sb_error *err, int sys, const char *path)
{
    struct stat st;
    if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode))
        return sb_fail(err, SB_ERR_INVALID_ARGUMENT,
                       "the state directory %.150s is a symbolic link: give what it leads to",
                       path);
    return sb_fail_errno(err, sys, "state root", "the state directory %.150s", path);
}

int sb_root_open(const char *root, int *rootfd, int *v1fd, struct sb_error *err)
{
    int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW, rc;
    int dir = open(root, flags), v1 = -1;
    if (dir < 0 && errno == ENOENT) {
        if ((rc = make_dirs(root, err)) < 0)
            return fail_step(err, rc, root);
        dir = open(root, flags);
    }
    if (dir < 0)
        return fail_step(err, fail_open(err, errno, root), root);
    if ((rc = check_dir(dir, root, 022, err)) < 0)
        goto failed;
    v1 = openat(dir, "v1", flags);
    if (v1 < 0 && errno == ENOENT) {
        if (mkdirat(dir, "v1", 0700) < 0 && errno != EEXIST) {
            rc = sb_fail_errno(err, errno, "state root",
                               "the state directory %.150s/v1 cannot be made", root);
            goto failed;
        }
        v1 = openat(dir, "v1", flags);
    }
    if (v1 < 0) {
        rc = sb_fail_errno(err, errno, "state root", "the state directory %.150s/v1", root);
        goto failed;
    }
    if ((rc = check_dir(v1, root, 077, err)) < 0)
        goto failed;
    *rootfd = dir;
    *v1fd = v1;
    return 0;
failed:
    close(dir);
    if (v1 >= 0)
        close(v1);
    return fail_step(err, rc, root);
}

/* ---- connecting ---- */

int sb_root_connect(int v1fd, int *fd, struct sb_error *err)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    struct ucred peer;
    socklen_t len = sizeof peer;
    int made = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), sys;
    if (made < 0)
        return sb_fail_errno(err, errno, "connect", "no socket for the supervisor");
    /* Through the descriptor: the path may be longer than an address, and cannot be exchanged
     * this way. */
    snprintf(to.sun_path, sizeof to.sun_path, "/proc/self/fd/%d/sock", v1fd);
    if (connect(made, (struct sockaddr *)&to, sizeof to) < 0) {
        sys = errno;
        close(made);
        if (sys == ECONNREFUSED || sys == ENOENT || sys == ENOTCONN || sys == EPROTOTYPE)
            return SB_CONNECT_START;
        if (sys == EAGAIN || sys == EINTR)
            return SB_CONNECT_LATER;
        return sb_fail_errno(err, sys, "connect", "the supervisor cannot be reached");
    }
    if (getsockopt(made, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0 || peer.uid != geteuid()) {
        close(made);
        return sb_fail(err, SB_ERR_PERMISSION_DENIED,
                       "the supervisor's socket belongs to somebody else");
    }
    *fd = made;
    return SB_CONNECTED;
}

/* ---- starting ---- */

/* What the two processes in between know. Lives in the mapping with their stacks. */
struct plan {
    int null, status, pid1, root, image;
    char *argv[3], *envp[2];
    char *stack_end; /* of the child */
};

/* The kernel's own form: the C library refuses to touch the signals it keeps for itself. */
struct kernel_sigaction {
    unsigned long handler, flags, restorer, mask;
};

NO_SANITIZE static void complain(int fd, const char *step, int sys)
{
    char text[96], digits[12];
    size_t n = 0, d = 0;
    for (const char *s = "error StartFailed "; *s; s++)
        text[n++] = *s;
    do
        digits[d++] = (char)('0' + sys % 10);
    while ((sys /= 10) > 0);
    while (d > 0)
        text[n++] = digits[--d];
    text[n++] = ' ';
    for (const char *s = step; *s; s++)
        text[n++] = *s;
    for (const char *s = " the supervisor could not be started\n"; *s; s++)
        text[n++] = *s;
    syscall(SYS_write, fd, text, n);
}

NO_SANITIZE static int child(void *arg)
{
    struct plan *plan = arg;
    struct kernel_sigaction plain = {0};
    unsigned long none = 0;
    int from[5] = {plan->null, plan->status, plan->pid1, plan->root, plan->image};
    int high[5];
    /* First out of the way of 0 to 6, then to their places. */
    for (int i = 0; i < 5; i++) {
        high[i] = (int)syscall(SYS_fcntl, from[i], F_DUPFD_CLOEXEC, 7);
        if (high[i] < 0) {
            complain(plan->status, "descriptors", errno);
            return 127;
        }
    }
    for (int fd = 0; fd <= 2; fd++)
        syscall(SYS_dup3, high[0], fd, 0);
    syscall(SYS_dup3, high[1], 3, 0);
    syscall(SYS_dup3, high[2], 4, 0);
    syscall(SYS_dup3, high[3], 5, 0);
    syscall(SYS_dup3, high[4], 6, O_CLOEXEC);
    if (syscall(SYS_close_range, 7u, ~0u, 0u) < 0) {
        complain(3, "close_range", errno);
        return 127;
    }
    syscall(SYS_setsid);
    syscall(SYS_chdir, "/");
    syscall(SYS_umask, 077);
    for (int sig = 1; sig <= 64; sig++)
        if (sig != SIGKILL && sig != SIGSTOP)
            syscall(SYS_rt_sigaction, sig, &plain, NULL, sizeof none);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, sizeof none);
    syscall(SYS_execveat, 6, "", plan->argv, plan->envp, AT_EMPTY_PATH);
    complain(3, "execveat", errno);
    return 127;
}

NO_SANITIZE static int intermediate(void *arg)
{
    struct plan *plan = arg;
    if (clone(child, plan->stack_end, CLONE_VM | CLONE_VFORK | SIGCHLD, plan) < 0)
        complain(plan->status, "clone", errno);
    return 0;
}

/* Blocks until the child executes, whatever the host's size a short time. */
static int spawn(int rootfd, int status, uint64_t linger_ms, struct sb_error *err)
{
    struct plan plan = {.null = -1, .status = status, .pid1 = -1, .root = rootfd, .image = -1};
    char name[] = "sandbar-supervisor", path[] = "PATH=/usr/sbin:/usr/bin:/sbin:/bin", linger[24];
    int pidfd = -1, rc, sys;
    sigset_t all, old;
    siginfo_t info;
    char *stacks;
    pid_t pid;

    snprintf(linger, sizeof linger, "%llu", (unsigned long long)linger_ms);
    plan.argv[0] = name;
    plan.argv[1] = linger;
    plan.envp[0] = path;
    stacks = mmap(NULL, 2 * STACK_SIZE, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (stacks == MAP_FAILED)
        return sb_fail_errno(err, errno, "start", "no memory to start the supervisor");
    plan.stack_end = stacks + STACK_SIZE;
    if ((rc = plan.image = sb_image_supervisor(err)) < 0 ||
        (rc = plan.pid1 = sb_image_pid1(err)) < 0)
        goto out;
    plan.null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (plan.null < 0) {
        rc = sb_fail_errno(err, errno, "start", "/dev/null");
        goto out;
    }
    /* The children inherit the mask, so that no handler of the host's runs in them. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pid = clone(intermediate, stacks + 2 * STACK_SIZE, CLONE_VM | CLONE_VFORK | CLONE_PIDFD, &plan,
                &pidfd);
    sys = errno;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    rc = 0;
    if (pid < 0) {
        rc = sb_fail_errno(err, sys, "clone", "the supervisor could not be started");
        goto out;
    }
    /* It has ended already. Somebody else may have reaped it: the same to us. */
    while (waitid((idtype_t)P_PIDFD, (id_t)pidfd, &info, WEXITED | __WALL) < 0 && errno == EINTR)
        ;
    close(pidfd);
out:
    sb_fds_close((int[]){plan.null, plan.pid1, plan.image}, 3);
    munmap(stacks, 2 * STACK_SIZE);
    return rc;
}

static void finish(struct sb_start *start, const struct sb_error *err)
{
    sb_timer_clear(&start->timer);
    sb_source_remove(&start->status);
    close(start->status.fd);
    start->status.fd = -1;
    start->done(start, err);
}

static void too_late(struct sb_timer *timer)
{
    struct sb_start *start = (struct sb_start *)((char *)timer - offsetof(struct sb_start, timer));
    struct sb_error err = {SB_OK};
    sb_fail(&err, SB_ERR_UNAVAILABLE, "the supervisor did not get ready within 15 s");
    finish(start, &err);
}

/* The next word of `line`, at most room - 1 bytes of it; where the rest begins. */
static const char *word(const char *line, char *to, size_t room)
{
    size_t n = strcspn(line, " ");
    snprintf(to, room, "%.*s", (int)n, line);
    return line[n] == ' ' ? line + n + 1 : line + n;
}

/* "error <kind> <errno> <step> <message>" */
static void parse_failure(const char *line, struct sb_error *err)
{
    char label[8], kind[32], number[16], step[32];
    const char *message;
    long sys;
    sb_fail(err, SB_ERR_START_FAILED, "the supervisor ended before it was ready");
    snprintf(err->step, sizeof err->step, "supervisor");
    message =
        word(word(word(word(line, label, sizeof label), kind, sizeof kind), number, sizeof number),
             step, sizeof step);
    if (strcmp(label, "error") != 0 || step[0] == '\0')
        return;
    sys = strtol(number, NULL, 10);
    err->kind = sb_err_from_name(kind, strlen(kind));
    err->sys = sys > 0 && sys < 4096 ? (int)sys : 0;
    snprintf(err->step, sizeof err->step, "%s", step);
    if (message[0] != '\0')
        snprintf(err->message, sizeof err->message, "the supervisor could not start: %.200s",
                 message);
}

static void status_ready(struct sb_source *source, uint32_t events)
{
    struct sb_start *start =
        (struct sb_start *)((char *)source - offsetof(struct sb_start, status));
    struct sb_error err = {SB_OK};
    char *newline;
    ssize_t n = read(source->fd, start->line + start->len, sizeof start->line - 1 - start->len);
    (void)events;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n > 0)
        start->len += (size_t)n;
    start->line[start->len] = '\0';
    newline = memchr(start->line, '\n', start->len);
    if (newline == NULL && n > 0 && start->len < sizeof start->line - 1)
        return;
    if (newline != NULL)
        *newline = '\0';
    if (newline != NULL && strcmp(start->line, "ready") == 0) {
        finish(start, NULL);
        return;
    }
    parse_failure(start->line, &err);
    finish(start, &err);
}

/* In a file thread: writing the programs and waiting for the child's execve takes milliseconds, too
 * long for a thread that carries every stream. */
static void spawn_apart(void *arg)
{
    struct sb_start *start = arg;
    spawn(start->rootfd, start->status_end, start->linger_ms, &start->error);
}

static void spawned(void *arg)
{
    struct sb_start *start = arg;
    close(start->status_end);
    if (start->error.kind == SB_OK)
        sb_source_add(&start->status, &start->error);
    if (start->error.kind != SB_OK) {
        finish(start, &start->error);
        return;
    }
    sb_timer_set(&start->timer, sb_now() + START_LIMIT_NS);
}

int sb_start_run(struct sb_start *start, int rootfd, uint64_t linger_ms,
                 void (*done)(struct sb_start *start, const struct sb_error *err),
                 struct sb_error *err)
{
    int pipefd[2], rc;
    memset(start, 0, sizeof *start);
    if (pipe2(pipefd, O_CLOEXEC) < 0)
        return sb_fail_errno(err, errno, "start", "no pipe for the supervisor's status");
    fcntl(pipefd[0], F_SETFL, O_NONBLOCK);
    start->done = done;
    start->rootfd = rootfd;
    start->status_end = pipefd[1];
    start->linger_ms = linger_ms;
    start->status = (struct sb_source){.fd = pipefd[0], .events = EPOLLIN, .ready = status_ready};
    start->timer.fire = too_late;
    if ((rc = sb_pool_run(spawn_apart, spawned, start, err)) < 0)
        sb_fds_close(pipefd, 2);
    return rc;
}
