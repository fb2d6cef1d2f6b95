/* Drives pid 1 without a supervisor: starts build/guest/pid1 in namespaces of its own and speaks the
 * wire with it. Needs root. `guest_test [--userns] [--leaves] [--image=pid1] [name ...]`; without
 * arguments everything but "bench" runs, then the trees again with leaf groups, the rest in a user
 * namespace. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../src/engine/proto.h"

extern char **environ;

static int failures, checks;
static char start_dir[4096];

#define CHECK(cond, ...)                                             \
    do {                                                             \
        checks++;                                                    \
        if (!(cond)) {                                               \
            failures++;                                              \
            printf("  FAIL %s:%d: %s: ", __func__, __LINE__, #cond); \
            printf(__VA_ARGS__);                                     \
            printf("\n");                                            \
        }                                                            \
    } while (0)

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- messages ---- */

static unsigned char packed[SB_MSG_MAX];

struct answer {
    struct sb_msg head;
    struct sb_reader fields;
    int fds[SB_MSG_FDS];
    int nfds;
    long len;
    unsigned char buf[SB_MSG_MAX];
};

static uint32_t next_req = 1, the_epoch = 7;

static void begin(struct sb_packer *p, uint16_t type)
{
    sb_pack_begin(p, packed, sizeof packed, type, next_req++, the_epoch);
}

static int transmit(int fd, const void *buf, size_t len, const int *fds, int nfds)
{
    union {
        struct cmsghdr h;
        char b[CMSG_SPACE(SB_MSG_FDS * sizeof(int))];
    } c;
    struct iovec iov = {(void *)buf, len};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    memset(&c, 0, sizeof c);
    if (nfds > 0) {
        m.msg_control = c.b;
        m.msg_controllen = CMSG_SPACE((size_t)nfds * sizeof(int));
        c.h.cmsg_level = SOL_SOCKET;
        c.h.cmsg_type = SCM_RIGHTS;
        c.h.cmsg_len = CMSG_LEN((size_t)nfds * sizeof(int));
        memcpy(CMSG_DATA(&c.h), fds, (size_t)nfds * sizeof(int));
    }
    return sendmsg(fd, &m, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

static uint32_t post(int fd, struct sb_packer *p, const int *fds, int nfds)
{
    if (p->overflow) {
        printf("  request overflow\n");
        exit(1);
    }
    transmit(fd, p->buf, p->len, fds, nfds);
    return next_req - 1;
}

/* 1: a message, 0: end, -1: nothing within ms */
static int receive(int fd, struct answer *a, int ms)
{
    union {
        struct cmsghdr h;
        char b[CMSG_SPACE(SB_MSG_FDS * sizeof(int))];
    } c;
    struct iovec iov = {a->buf, sizeof a->buf};
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = c.b, .msg_controllen = sizeof c.b};
    struct pollfd p = {fd, POLLIN, 0};
    a->nfds = 0;
    memset(&a->head, 0, sizeof a->head);
    a->fields.at = a->fields.end = a->buf;
    if (poll(&p, 1, ms) <= 0)
        return -1;
    a->len = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
    if (a->len <= 0)
        return 0;
    if (m.msg_controllen >= sizeof c.h && c.h.cmsg_type == SCM_RIGHTS) {
        a->nfds = (int)((c.h.cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(a->fds, CMSG_DATA(&c.h), (size_t)a->nfds * sizeof(int));
    }
    return sb_read_begin(&a->fields, &a->head, a->buf, (size_t)a->len) == 0 ? 1 : 0;
}

static uint64_t num(const struct answer *a, uint16_t tag)
{
    return sb_read_u64(&a->fields, tag, 999999999);
}

static const char *text(const struct answer *a, uint16_t tag)
{
    static char ring[8][4200];
    static int at;
    struct sb_field_view f;
    char *out = ring[at++ & 7];
    if (!sb_read_find(&a->fields, tag, &f))
        return "";
    snprintf(out, sizeof ring[0], "%.*s", (int)f.len, (const char *)f.data);
    return out;
}

/* ---- a box ---- */

struct box {
    pid_t pid;
    int control, conn;
    char dir[64], sock[80];
};

static const char *image = "build/guest/pid1";
static int use_userns, use_leaves, use_single, leaf_fds = 2;
static int oom = -1; /* the file that counts whom the kernel has killed for memory */

struct birth {
    int control, listener, image, go[2];
};

static int born(void *arg)
{
    struct birth *b = arg;
    char *argv[] = {"init", NULL}, *envp[] = {NULL};
    char c;
    int null;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(b->go[1]);
    if (read(b->go[0], &c, 1) != 1)
        _exit(99);
    if (use_userns && !use_single && (setgid(0) || setuid(0)))
        _exit(98);
    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    if (mount("proc", "/proc", "proc", 0, NULL) != 0)
        _exit(97);
    null = open("/dev/null", O_RDWR);
    for (int i = 0; i < 3; i++)
        dup2(null, i);
    /* high copies first: the numbers may overlap */
    int a = fcntl(b->control, F_DUPFD, 200), l = fcntl(b->listener, F_DUPFD, 200),
        im = fcntl(b->image, F_DUPFD, 200);
    dup2(a, 3);
    dup2(l, 4);
    dup2(im, 5);
    fcntl(5, F_SETFD, FD_CLOEXEC);
    syscall(SYS_close_range, 6, ~0u, 0);
    signal(SIGPIPE, SIG_IGN); /* must not reach commands */
    syscall(SYS_execveat, 5, "", argv, envp, AT_EMPTY_PATH);
    _exit(96);
}

static void write_file(const char *path, const char *s)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, s, strlen(s)) < 0)
        printf("  cannot write %s: %s\n", path, strerror(errno));
    if (fd >= 0)
        close(fd);
}

static int new_conn(struct box *b)
{
    struct sb_packer p;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        abort();
    begin(&p, SB_G_CONN);
    sb_pack_u64(&p, SB_F_EPOCH, the_epoch);
    post(b->control, &p, &pair[1], 1);
    close(pair[1]);
    return pair[0];
}

static int leaf_serial;
static char cgroup2[256]; /* where version 2 groups are mounted; empty: nowhere */

static void find_cgroup2(void)
{
    FILE *f = fopen("/proc/mounts", "r");
    char line[1024], kind[64], path[256];
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "%*s %255s %63s", path, kind) == 2 && strcmp(kind, "cgroup2") == 0)
            memcpy(cgroup2, path, sizeof path);
    if (f != NULL)
        fclose(f);
}

/* `leaf_fds` descriptors each: with the third, pid 1 starts commands in the group. */
static int make_leaves(int *fds, int leaves)
{
    int n = 0;
    for (int i = 0; i < leaves; i++) {
        char path[400], file[420];
        snprintf(path, sizeof path, "%s/guest-test-%d-%d", cgroup2, getpid(), leaf_serial++);
        mkdir(path, 0755);
        snprintf(file, sizeof file, "%s/cgroup.procs", path);
        fds[n++] = open(file, O_RDWR | O_CLOEXEC);
        snprintf(file, sizeof file, "%s/cgroup.kill", path);
        fds[n++] = open(file, O_WRONLY | O_CLOEXEC);
        if (fds[n - 1] < 0 || fds[n - 2] < 0)
            printf("  no leaves: %s\n", strerror(errno));
        if (leaf_fds == 3)
            fds[n++] = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    }
    return n;
}

static void remove_leaves(void)
{
    char path[400];
    for (int i = 0; i < leaf_serial; i++) {
        snprintf(path, sizeof path, "%s/guest-test-%d-%d", cgroup2, getpid(), i);
        rmdir(path);
    }
}

static void box_start_with(struct box *b, uint64_t limit)
{
    static char stack[65536] __attribute__((aligned(16)));
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct birth birth;
    struct sb_packer p;
    struct answer *a = malloc(sizeof *a);
    int pair[2], fds[16], nfds = 0;
    char path[64];
    strcpy(b->dir, "/tmp/guest-test-XXXXXX");
    if (mkdtemp(b->dir) == NULL)
        abort();
    chmod(b->dir, 0755);
    snprintf(b->sock, sizeof b->sock, "%s/sock", b->dir);
    strcpy(un.sun_path, b->sock);
    birth.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (bind(birth.listener, (struct sockaddr *)&un, sizeof un) || listen(birth.listener, 4) ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) || pipe2(birth.go, O_CLOEXEC))
        abort();
    birth.control = pair[1];
    birth.image = open(image, O_RDONLY | O_CLOEXEC);
    if (birth.image < 0) {
        perror(image);
        exit(2);
    }
    b->control = pair[0];
    b->pid = clone(born, stack + sizeof stack,
                   SIGCHLD | CLONE_NEWPID | CLONE_NEWNS | (use_userns ? CLONE_NEWUSER : 0), &birth);
    if (b->pid < 0) {
        perror("clone");
        exit(2);
    }
    if (use_userns) {
        snprintf(path, sizeof path, "/proc/%d/uid_map", b->pid);
        write_file(path, use_single ? "1000 0 1\n" : "0 0 65536\n");
        snprintf(path, sizeof path, "/proc/%d/setgroups", b->pid);
        if (use_single)
            write_file(path, "deny");
        snprintf(path, sizeof path, "/proc/%d/gid_map", b->pid);
        write_file(path, use_single ? "1000 0 1\n" : "0 0 65536\n");
    }
    if (write(birth.go[1], "x", 1) != 1)
        abort();
    close(birth.go[0]);
    close(birth.go[1]);
    close(pair[1]);
    close(birth.listener);
    close(birth.image);
    if (receive(b->control, a, 3000) != 1 || a->head.type != SB_G_HELLO) {
        printf("  no hello\n");
        exit(1);
    }
    if (limit == 0) { /* as after some time as a spare */
        begin(&p, SB_G_SPARE);
        post(b->control, &p, NULL, 0);
    }
    begin(&p, SB_G_INIT);
    sb_pack_u64(&p, SB_F_VERSION, 1);
    sb_pack_u64(&p, SB_F_EPOCH, the_epoch);
    sb_pack_str(&p, SB_F_ENV, "BOX=yes");
    sb_pack_str(&p, SB_F_ENV, "OVER=box");
    if (limit)
        sb_pack_u64(&p, SB_F_LIMIT_COMMANDS, limit);
    if (oom >= 0) {
        sb_pack_u64(&p, SB_F_OOM, 1);
        fds[nfds++] = fcntl(oom, F_DUPFD_CLOEXEC, 0);
    }
    if (use_leaves)
        nfds += make_leaves(fds + nfds, 4);
    sb_pack_u64(&p, SB_F_LEAF_FDS, (uint64_t)leaf_fds);
    if (leaf_fds == 3)
        sb_pack_u64(&p, SB_F_CLONE_AT, 0x23456789abcull);
    post(b->control, &p, fds, nfds);
    for (int i = 0; i < nfds; i++)
        close(fds[i]);
    if (receive(b->control, a, 3000) != 1 || a->head.type != SB_REPLY) {
        printf("  no answer to init\n");
        exit(1);
    }
    free(a);
    b->conn = new_conn(b);
}

static void box_start(struct box *b)
{
    box_start_with(b, 0);
}

static void box_end(struct box *b)
{
    char cmd[128];
    kill(b->pid, SIGKILL);
    waitpid(b->pid, NULL, 0);
    close(b->control);
    close(b->conn);
    snprintf(cmd, sizeof cmd, "rm -rf %s", b->dir);
    if (system(cmd) != 0)
        printf("  cannot remove %s\n", b->dir);
}

/* Answers NEED_LEAVES while a test runs. */
static void serve_control(struct box *b)
{
    struct answer *a = malloc(sizeof *a);
    struct sb_packer p;
    int fds[16], n;
    while (receive(b->control, a, 0) == 1)
        if (a->head.type == SB_G_NEED_LEAVES) {
            begin(&p, SB_G_LEAVES);
            n = make_leaves(fds, 4);
            sb_pack_u64(&p, SB_F_LEAF_FDS, (uint64_t)leaf_fds);
            post(b->control, &p, fds, n);
            for (int i = 0; i < n; i++)
                close(fds[i]);
        }
    free(a);
}

/* ---- commands ---- */

struct run {
    uint64_t serial, pid, start_ns, status;
    char kind[32], step[32], reason[32], path[256];
    int err, fds[3]; /* stdin, stdout, stderr; -1 */
    size_t n[2];
    char *data[2];
};

static void exec_begin(struct sb_packer *p, int in, int out, int err)
{
    begin(p, SB_C_EXEC);
    sb_pack_u64(p, SB_F_IN_MODE, (uint64_t)in);
    sb_pack_u64(p, SB_F_OUT_MODE, (uint64_t)out);
    sb_pack_u64(p, SB_F_ERR_MODE, (uint64_t)err);
}

static void exec_args(struct sb_packer *p, ...)
{
    va_list ap;
    const char *s;
    va_start(ap, p);
    sb_pack_u64(p, SB_F_STAGE, 0);
    while ((s = va_arg(ap, const char *)) != NULL)
        sb_pack_str(p, SB_F_ARG, s);
    va_end(ap);
}

/* Sends, takes the first answer apart. 0 when started. */
static int exec_post(int conn, struct sb_packer *p, struct run *r, const int *fds, int nfds)
{
    static struct answer a;
    uint64_t streams;
    uint32_t req = post(conn, p, fds, nfds);
    int at = 0;
    memset(r, 0, sizeof *r);
    r->fds[0] = r->fds[1] = r->fds[2] = -1;
    do {
        if (receive(conn, &a, 5000) != 1) {
            strcpy(r->kind, "no answer");
            return -1;
        }
    } while (a.head.req != req);
    if (a.head.type == SB_ERROR) {
        snprintf(r->kind, sizeof r->kind, "%s", text(&a, SB_F_KIND));
        snprintf(r->step, sizeof r->step, "%s", text(&a, SB_F_STEP));
        snprintf(r->path, sizeof r->path, "%s", text(&a, SB_F_PATH));
        r->err = (int)sb_read_u64(&a.fields, SB_F_ERRNO, 0);
        return -1;
    }
    r->serial = num(&a, SB_F_SERIAL);
    r->pid = num(&a, SB_F_PID);
    r->start_ns = num(&a, SB_F_START_NS);
    streams = num(&a, SB_F_STREAMS);
    for (int i = 0; i < 3; i++)
        if (streams & (1u << i) && at < a.nfds)
            r->fds[i] = a.fds[at++];
    return 0;
}

static int await_exit(int conn, struct run *r, int ms)
{
    static struct answer a;
    double end = now() + ms / 1000.0;
    for (;;) {
        int left = (int)((end - now()) * 1000);
        if (left < 0 || receive(conn, &a, left) != 1)
            return -1;
        if (a.head.type == SB_EXITED && num(&a, SB_F_SERIAL) == r->serial) {
            r->status = num(&a, SB_F_STATUS);
            snprintf(r->reason, sizeof r->reason, "%s", text(&a, SB_F_REASON));
            return 0;
        }
    }
}

static char *slurp(int fd, size_t *n, int ms)
{
    size_t cap = 65536;
    char *s = malloc(cap + 1);
    *n = 0;
    for (;;) {
        struct pollfd p = {fd, POLLIN, 0};
        long r;
        if (poll(&p, 1, ms) <= 0)
            break;
        if (*n == cap)
            s = realloc(s, (cap *= 2) + 1);
        r = read(fd, s + *n, cap - *n);
        if (r == 0 || (r < 0 && errno != EAGAIN))
            break;
        if (r > 0)
            *n += (size_t)r;
    }
    s[*n] = '\0';
    return s;
}

static void run_free(struct run *r)
{
    for (int i = 0; i < 3; i++)
        if (r->fds[i] >= 0)
            close(r->fds[i]);
    free(r->data[0]);
    free(r->data[1]);
}

/* Reads everything, waits for the exit. */
static int finish(int conn, struct run *r)
{
    int got;
    if (r->fds[1] >= 0)
        r->data[0] = slurp(r->fds[1], &r->n[0], 5000);
    if (r->fds[2] >= 0)
        r->data[1] = slurp(r->fds[2], &r->n[1], 5000);
    got = await_exit(conn, r, 5000);
    return got;
}

static int shell(struct box *b, struct run *r, const char *script)
{
    struct sb_packer p;
    exec_begin(&p, SB_IO_NULL, SB_IO_PIPE, SB_IO_PIPE);
    exec_args(&p, "/bin/sh", "-c", script, NULL);
    if (exec_post(b->conn, &p, r, NULL, 0) != 0)
        return -1;
    return finish(b->conn, r);
}

static int same(const char *a, const char *b)
{
    return a != NULL && strcmp(a, b) == 0;
}

/* What the shell line counts comes to nothing: what has been killed takes its time to die. */
static void die_out(struct box *b, const char *count, int line)
{
    double until = now() + 5;
    struct run r;
    while (shell(b, &r, count) == 0 && !same(r.data[0], "0\n") && now() < until) {
        run_free(&r);
        serve_control(b);
    }
    CHECK(same(r.data[0], "0\n"), "line %d: left '%s'", line, r.data[0]);
    run_free(&r);
}

/* ---- tests ---- */

static void test_ping(struct box *b)
{
    static struct answer a;
    struct sb_packer p;
    begin(&p, SB_C_PING);
    post(b->conn, &p, NULL, 0);
    CHECK(receive(b->conn, &a, 2000) == 1 && a.head.type == SB_REPLY, "type %d", a.head.type);
    sb_pack_begin(&p, packed, sizeof packed, SB_C_PING, next_req++, the_epoch + 1);
    post(b->conn, &p, NULL, 0);
    CHECK(receive(b->conn, &a, 2000) == 1 && a.head.type == SB_ERROR &&
              same(text(&a, SB_F_KIND), "NotRunning"),
          "wrong epoch: %s", text(&a, SB_F_KIND));
}

static void test_exec(struct box *b)
{
    struct sb_packer p;
    struct run r;
    CHECK(shell(b, &r, "echo hello; echo oops >&2; exit 3") == 0, "%s", r.kind);
    CHECK(same(r.data[0], "hello\n") && same(r.data[1], "oops\n"), "'%s' '%s'", r.data[0],
          r.data[1]);
    CHECK(WIFEXITED((int)r.status) && WEXITSTATUS((int)r.status) == 3, "status %lx", r.status);
    run_free(&r);
    CHECK(shell(b, &r, "kill -9 $$") == 0 && WIFSIGNALED((int)r.status) && same(r.reason, "signal"),
          "%s", r.reason);
    run_free(&r);
    CHECK(
        shell(b, &r,
              "ls /proc/self/fd | tr '\\n' ' '; grep -E "
              "'^(SigBlk|SigIgn|CapEff|CapPrm|CapInh|CapAmb|Groups|NoNewPrivs)' /proc/self/status; "
              "id; pwd; env | sort; ulimit -n; umask; ps -o sid,pid,pgid -p $$") == 0,
        "run");
    CHECK(strstr(r.data[0], "SigIgn:\t0000000000000000") != NULL, "ignored signals");
    CHECK(strstr(r.data[0], "SigBlk:\t0000000000000000") != NULL, "blocked signals");
    CHECK(strstr(r.data[0], "CapEff:\t0000000000000000") != NULL, "capabilities");
    CHECK(strstr(r.data[0], "CapPrm:\t0000000000000000") != NULL, "capabilities");
    CHECK(strstr(r.data[0], "uid=1000") != NULL, "user");
    CHECK(strstr(r.data[0], "BOX=yes") != NULL, "env of the box");
    CHECK(strncmp(r.data[0], "0 1 2 3 ", 8) == 0, "descriptors"); /* 3 is the listing's own */
    run_free(&r);

    exec_begin(&p, SB_IO_NULL, SB_IO_PIPE, SB_IO_MERGE);
    exec_args(&p, "env", NULL);
    sb_pack_str(&p, SB_F_ENV, "OVER=first");
    sb_pack_str(&p, SB_F_ENV, "OVER=command");
    sb_pack_str(&p, SB_F_ENV, "X=a b\n$(id)");
    sb_pack_u64(&p, SB_F_CLEAN_ENV, 1);
    CHECK(exec_post(b->conn, &p, &r, NULL, 0) == 0 && finish(b->conn, &r) == 0, "%s", r.kind);
    CHECK(same(r.data[0], "OVER=command\nX=a b\n$(id)\n"), "'%s'", r.data[0]);
    run_free(&r);

    exec_begin(&p, SB_IO_NULL, SB_IO_PIPE, SB_IO_MERGE);
    exec_args(&p, "sh", "-c",
              "id -u; id -g; echo $HOME $USER $OVER; cat /proc/self/status | grep CapEff; pwd",
              NULL);
    sb_pack_str(&p, SB_F_USER, "root");
    sb_pack_str(&p, SB_F_CWD, "/usr/lib");
    CHECK(exec_post(b->conn, &p, &r, NULL, 0) == 0 && finish(b->conn, &r) == 0, "%s", r.kind);
    CHECK(strncmp(r.data[0], "0\n0\n/root root box\n", 19) == 0 &&
              strstr(r.data[0], "\n/usr/lib\n"),
          "'%s'", r.data[0]);
    run_free(&r);

    exec_begin(&p, SB_IO_NULL, SB_IO_PIPE, SB_IO_PIPE);
    exec_args(&p, "sh", "-c", "echo one > /dev/stdout; echo two > /dev/stderr", NULL);
    CHECK(exec_post(b->conn, &p, &r, NULL, 0) == 0 && finish(b->conn, &r) == 0, "%s", r.kind);
    CHECK(same(r.data[0], "one\n") && same(r.data[1], "two\n"), "reopened: '%s' '%s'", r.data[0],
          r.data[1]);
    run_free(&r);
}

static void expect_error_once(struct box *b, struct sb_packer *p, const char *kind,
                              const char *step, int err, int line)
{
    struct run r;
    int got = exec_post(b->conn, p, &r, NULL, 0);
    checks++;
    if (got == 0 || !same(r.kind, kind) || (step != NULL && !same(r.step, step)) ||
        (err >= 0 && r.err != err)) {
        failures++;
        printf("  FAIL line %d: got '%s' step '%s' errno %d, want %s %s %d\n", line, r.kind, r.step,
               r.err, kind, step ? step : "", err);
    }
    if (got == 0)
        await_exit(b->conn, &r, 1000);
    run_free(&r);
}

/* And the same for an asker who wants to hear of the end only. */
static void expect_error(struct box *b, struct sb_packer *p, const char *kind, const char *step,
                         int err, int line)
{
    uint32_t req;
    expect_error_once(b, p, kind, step, err, line);
    req = next_req++;
    memcpy(p->buf + offsetof(struct sb_msg, req), &req, sizeof req);
    sb_pack_u64(p, SB_F_WHOLE, 1);
    expect_error_once(b, p, kind, step, err, line);
}

static void test_start_errors(struct box *b)
{
    struct sb_packer p;
    char path[128], *big;
    snprintf(path, sizeof path, "%s/plain", b->dir);
    write_file(path, "echo x\n");
#define START(...) (exec_begin(&p, 0, 0, 0), exec_args(&p, __VA_ARGS__, NULL))
#define EXPECT(kind, step, err) expect_error(b, &p, kind, step, err, __LINE__)
    START("no-such-program");
    EXPECT("StartFailed", "execve", ENOENT);
    START("/no/such");
    EXPECT("StartFailed", "execve", ENOENT);
    START(path);
    EXPECT("StartFailed", "execve", EACCES);
    chmod(path, 0755);
    START(path);
    EXPECT("StartFailed", "execve", ENOEXEC);
    START("/tmp");
    EXPECT("StartFailed", "execve", EACCES);
    START("plain");
    sb_pack_str(&p, SB_F_ENV, "PATH=/nowhere:/etc");
    EXPECT("StartFailed", "execve", ENOENT);
    START("passwd");
    sb_pack_str(&p, SB_F_ENV, "PATH=/etc:/nowhere");
    EXPECT("StartFailed", "execve", EACCES);
    snprintf(path, sizeof path, "%s/interp", b->dir);
    write_file(path, "#!/no/such/interpreter\n");
    chmod(path, 0755);
    START(path);
    EXPECT("StartFailed", "execve", ENOENT);
    START("");
    EXPECT("InvalidArgument", NULL, 0);
    exec_begin(&p, 0, 0, 0);
    EXPECT("InvalidArgument", NULL, 0);
    START("true");
    sb_pack_u64(&p, SB_F_STAGE, 1);
    EXPECT("InvalidArgument", NULL, 0);
    START("echo");
    sb_pack_bytes(&p, SB_F_ARG, "a\0b", 3);
    EXPECT("InvalidArgument", NULL, 0);
    START("true");
    sb_pack_bytes(&p, SB_F_ENV, "A=a\0b", 5);
    EXPECT("InvalidArgument", NULL, 0);
    START("true");
    sb_pack_str(&p, SB_F_ENV, "novalue");
    EXPECT("InvalidArgument", NULL, 0);
    START("true");
    sb_pack_str(&p, SB_F_ENV, "=x");
    EXPECT("InvalidArgument", NULL, 0);
    static const char *const nobody[] = {
        "nobody-such", "0abc",        "-1",      "4294967295",      "root:x", "root:",
        ":",           "99999999999", "root:-1", "root:4294967295", "../etc", "1000:0x1"};
    for (size_t i = 0; i < sizeof nobody / sizeof *nobody; i++) {
        START("true");
        sb_pack_str(&p, SB_F_USER, nobody[i]);
        EXPECT("InvalidArgument", "user", -1);
    }
    START("true");
    sb_pack_str(&p, SB_F_CWD, "/no/such/dir");
    EXPECT("NotFound", "cwd", ENOENT);
    START("true");
    sb_pack_str(&p, SB_F_CWD, "/etc/passwd");
    EXPECT("Platform", "cwd", ENOTDIR);
    START("true");
    sb_pack_str(&p, SB_F_CWD, "/root");
    EXPECT("PermissionDenied", "cwd", EACCES);
    START("true");
    sb_pack_str(&p, SB_F_CWD, "~root");
    EXPECT("InvalidArgument", "cwd", EINVAL);
    START("true");
    sb_pack_u64(&p, SB_F_OUT_MODE, 9);
    EXPECT("InvalidArgument", NULL, 0);

    /* large requests travel in a sealed memfd */
    for (size_t size = 131070; size <= 131073; size++) {
        struct run r;
        size_t cap = size + 100000;
        int m = memfd_create("spill", MFD_ALLOW_SEALING | MFD_CLOEXEC), got;
        struct sb_packer s = {malloc(cap), cap, 0, 0};
        big = malloc(size + 1);
        memset(big, 'x', size);
        big[size] = '\0';
        sb_pack_str(&s, SB_F_ARG, "true");
        sb_pack_str(&s, SB_F_ARG, big);
        for (int i = 0; i < 2000; i++) {
            char var[32];
            snprintf(var, sizeof var, "VAR%d=aaaaaaaaaaaaaaa", i);
            sb_pack_str(&s, SB_F_ENV, var);
        }
        CHECK(!s.overflow && write(m, s.buf, s.len) == (long)s.len, "spill");
        fcntl(m, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_WRITE | F_SEAL_GROW);
        begin(&p, SB_C_EXEC);
        ((struct sb_msg *)p.buf)->flags = SB_MSG_SPILLED;
        sb_pack_u64(&p, SB_F_SPILL, s.len);
        got = exec_post(b->conn, &p, &r, &m, 1);
        if (size <= 131071)
            CHECK(got == 0 && await_exit(b->conn, &r, 2000) == 0 && r.status == 0, "%zu: %s %d",
                  size, r.kind, r.err);
        else
            CHECK(got != 0 && same(r.kind, "StartFailed") && r.err == E2BIG, "%zu: %s %d", size,
                  r.kind, r.err);
        run_free(&r);
        close(m);
        free(big);
        free(s.buf);
    }
}

static void test_output(struct box *b)
{
    struct sb_packer p;
    struct run r;
    int bad = 0;
    double t = now();
    for (int i = 0; i < 500; i++) {
        int to_err = i & 1;
        exec_begin(&p, 0, to_err ? 0 : 1, to_err ? 1 : 0);
        exec_args(&p, "sh", "-c",
                  to_err ? "head -c 200000 /dev/zero >&2; exit 3" : "head -c 200000 /dev/zero",
                  NULL);
        if (exec_post(b->conn, &p, &r, NULL, 0) != 0 || finish(b->conn, &r) != 0 ||
            r.n[to_err] != 200000 || WEXITSTATUS((int)r.status) != (to_err ? 3 : 0))
            bad++;
        run_free(&r);
        serve_control(b);
    }
    CHECK(bad == 0, "%d of 500 were wrong (%s %d)", bad, r.kind, r.err);
    printf("  500 runs of 200000 bytes: %.2f ms each\n", (now() - t) * 2);

    /* 8 MiB through cat, fed and read together */
    exec_begin(&p, 1, 1, 0);
    exec_args(&p, "cat", NULL);
    CHECK(exec_post(b->conn, &p, &r, NULL, 0) == 0, "%s", r.kind);
    size_t sent = 0, got = 0;
    char *chunk = malloc(1 << 20), *back = malloc(1 << 20);
    memset(chunk, 7, 1 << 20);
    while (got < 8u << 20) {
        struct pollfd f[2] = {{r.fds[0], POLLOUT, 0}, {r.fds[1], POLLIN, 0}};
        long n;
        if (poll(f, 2, 5000) <= 0)
            break;
        if (f[0].revents && r.fds[0] >= 0) {
            n = write(r.fds[0], chunk, (8u << 20) - sent < 1 << 20 ? (8u << 20) - sent : 1 << 20);
            if (n > 0)
                sent += (size_t)n;
            if (sent == 8u << 20) {
                close(r.fds[0]);
                r.fds[0] = -1;
            }
        }
        if (f[1].revents) {
            n = read(r.fds[1], back, 1 << 20);
            if (n <= 0)
                break;
            got += (size_t)n;
        }
    }
    CHECK(got == 8u << 20, "got %zu", got);
    CHECK(await_exit(b->conn, &r, 2000) == 0, "cat did not end at the end of its input");
    run_free(&r);
    free(chunk);
    free(back);
}

static void test_pipeline(struct box *b)
{
    struct sb_packer p;
    struct run r;
    exec_begin(&p, 0, 1, 1);
    exec_args(&p, "sh", "-c", "echo b; echo a; echo err1 >&2", NULL);
    exec_args(&p, "sort", NULL);
    exec_args(&p, "sh", "-c", "cat; exit 5", NULL);
    CHECK(exec_post(b->conn, &p, &r, NULL, 0) == 0 && finish(b->conn, &r) == 0, "%s", r.kind);
    CHECK(same(r.data[0], "a\nb\n") && same(r.data[1], "err1\n") && WEXITSTATUS((int)r.status) == 5,
          "'%s' '%s' %lx", r.data[0], r.data[1], r.status);
    run_free(&r);
    exec_begin(&p, 0, 1, 0);
    exec_args(&p, "yes", NULL);
    exec_args(&p, "head", "-n", "2", NULL);
    CHECK(exec_post(b->conn, &p, &r, NULL, 0) == 0 && finish(b->conn, &r) == 0 &&
              same(r.data[0], "y\ny\n") && r.status == 0,
          "%s", r.kind);
    run_free(&r);
    exec_begin(&p, 0, 1, 0);
    exec_args(&p, "sleep", "100", NULL);
    exec_args(&p, "no-such-program", NULL);
    expect_error(b, &p, "StartFailed", "execve", ENOENT, __LINE__);
    die_out(b, "ps ax -o args= | grep -c '^sleep 100'", __LINE__);
    exec_begin(&p, 0, 0, 0);
    exec_args(&p, "no-such-program", NULL);
    exec_args(&p, "cat", NULL);
    expect_error(b, &p, "StartFailed", "execve", ENOENT, __LINE__);
}

static int request(struct box *b, struct sb_packer *p, struct answer *a, int ms)
{
    uint32_t req = post(b->conn, p, NULL, 0);
    double end = now() + ms / 1000.0;
    do {
        int left = (int)((end - now()) * 1000);
        if (left < 0 || receive(b->conn, a, left) != 1)
            return -1;
    } while (a->head.req != req);
    return a->head.type;
}

/* Until so many processes have such an argument vector. */
static void come_up(struct box *b, const char *pattern, int least, int line)
{
    double until = now() + 10;
    char script[100];
    struct run ps;
    int n;
    snprintf(script, sizeof script, "ps ax -o args= | grep -c '%s'", pattern);
    do {
        shell(b, &ps, script);
        n = atoi(ps.data[0]);
        run_free(&ps);
        serve_control(b);
    } while (n < least && now() < until);
    CHECK(n >= least, "line %d: %d of %d %s", line, n, least, pattern);
}

enum { LONG_GRACE = 4000 };
#define SLEEPS "^sleep 77"

static void come_readable(int fd)
{
    struct pollfd p = {fd, POLLIN, 0};
    CHECK(poll(&p, 1, 10000) == 1, "nothing to read");
}

/* Kills such a script once `up` processes `pattern` are there. What ends at the signal is not waited for until the
 * grace is over. */
static void kill_one(struct box *b, const char *script, int sig, int grace, const char *pattern,
                     int up, int count_least, int line)
{
    static struct answer a;
    struct sb_packer p;
    struct run r, ps;
    double t;
    exec_begin(&p, 0, 0, 0);
    exec_args(&p, "sh", "-c", script, NULL);
    CHECK(exec_post(b->conn, &p, &r, NULL, 0) == 0, "%s", r.kind);
    come_up(b, pattern, up, line);
    begin(&p, SB_C_KILL);
    sb_pack_u64(&p, SB_F_SERIAL, r.serial);
    sb_pack_u64(&p, SB_F_SIGNAL, (uint64_t)sig);
    sb_pack_u64(&p, SB_F_GRACE_MS, (uint64_t)grace);
    t = now();
    CHECK(request(b, &p, &a, 5000) == SB_REPLY, "line %d: no answer to kill", line);
    t = now() - t;
    CHECK(num(&a, SB_F_COUNT) >= (uint64_t)count_least, "line %d: count %lu", line,
          num(&a, SB_F_COUNT));
    if (grace >= LONG_GRACE)
        CHECK(t * 1000 < grace, "line %d: took %.2f", line, t);
    CHECK(shell(b, &ps, "ps ax -o args= | grep -E '^(sleep 77|yes)' | wc -l") == 0 &&
              same(ps.data[0], "0\n"),
          "line %d: left '%s'", line, ps.data[0]);
    run_free(&ps);
    run_free(&r);
    serve_control(b);
}

static int fds_open(pid_t pid)
{
    char path[64];
    int n = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *d = opendir(path);
    while (d != NULL && readdir(d) != NULL)
        n++;
    if (d != NULL)
        closedir(d);
    return n;
}

/* Of a pid 1 that has begun: it has done something. */
static int fds_of(struct box *b)
{
    struct run r;
    shell(b, &r, "true");
    run_free(&r);
    return fds_open(b->pid);
}

/* Pid 1 gives back all it took since it had `before` descriptors; but its stock of leaves may have grown. */
static void fds_return(struct box *b, int before)
{
    double until = now() + 5;
    int most = before + (use_leaves ? 16 : 0), n;
    while ((n = fds_open(b->pid)) > most && now() < until) {
        serve_control(b);
        usleep(10000);
    }
    CHECK(n <= most, "descriptors %d, then %d", before, n);
}

/* A stage that cannot start ends the others with their children, and costs nothing that stays. */
static void test_broken_pipeline(struct box *b)
{
    struct sb_packer p;
    struct run r;
    char path[128];
    int before = 0, busy;
    snprintf(path, sizeof path, "%s/busy", b->dir);
    write_file(path, "#!/bin/sh\n");
    chmod(path, 0755);
    busy = open(path, O_WRONLY | O_CLOEXEC); /* tried for some time: the first stage gets to work */
    for (int i = 0; i < 80; i++) {
        exec_begin(&p, 0, 0, 0);
        exec_args(&p, "sh", "-c", "setsid sleep 77 & sleep 77", NULL);
        exec_args(&p, i == 1 ? path : "/nonexistent", NULL);
        CHECK(exec_post(b->conn, &p, &r, NULL, 0) == -1 && same(r.kind, "StartFailed"), "%s",
              r.kind);
        serve_control(b);
        if (i == 40)
            before = fds_of(b);
    }
    close(busy);
    die_out(b, "ps ax -o args= | grep -cE '^(sleep 77|sh -c setsid)'", __LINE__);
    fds_return(b, before);
}

static void test_kill(struct box *b)
{
    static struct answer a;
    struct sb_packer p;
    struct run r;
    kill_one(b, "sleep 77 & sleep 77 & wait", SIGTERM, LONG_GRACE, SLEEPS, 2, 3, __LINE__);
    kill_one(b, "sleep 77 & sleep 77 & wait", SIGKILL, 0, SLEEPS, 2, 3, __LINE__);
    kill_one(b, "trap '' TERM; (trap '' TERM; sleep 77; sleep 77) & sleep 77; sleep 77; sleep 77",
             SIGTERM, 300, SLEEPS, 2, 2, __LINE__);
    kill_one(b, "setsid sleep 77 & setsid sleep 77 & wait", SIGKILL, 0, SLEEPS, 2, 3, __LINE__);
    kill_one(b, "kill -STOP $$; sleep 77", SIGTERM, LONG_GRACE, "^sh -c kill", 1, 1, __LINE__);
    kill_one(b, "yes | cat >/dev/null", SIGTERM, LONG_GRACE, "^cat$", 1, 2, __LINE__);
    if (use_leaves) {
        kill_one(b, "(setsid sh -c 'sleep 77 & sleep 77 &' &) ; sleep 77", SIGKILL, 0, SLEEPS, 3, 3,
                 __LINE__);
        kill_one(b, "(setsid sleep 77 &); exit 0", SIGKILL, 0, SLEEPS, 1, 1, __LINE__);
    }
    kill_one(b, "(sleep 77 &); exit 0", SIGKILL, 0, SLEEPS, 1, 1, __LINE__);

    /* time limit reaches the tree */
    exec_begin(&p, 0, 0, 0);
    exec_args(&p, "sh", "-c", "sleep 77 & (trap '' TERM; sleep 77; sleep 77) & wait", NULL);
    sb_pack_u64(&p, SB_F_TIME_LIMIT_MS, 200);
    CHECK(exec_post(b->conn, &p, &r, NULL, 0) == 0, "%s", r.kind);
    CHECK(await_exit(b->conn, &r, 2000) == 0 && same(r.reason, "limit"), "%s", r.reason);
    run_free(&r);
    die_out(b, "ps ax -o args= | grep -c '^sleep 77'", __LINE__);

    /* signals: the command, its group, an ended one */
    exec_begin(&p, 0, 1, 0);
    exec_args(&p, "sh", "-c",
              "trap 'echo got; exit 9' USR1; echo ready; while :; do sleep 0.05; done", NULL);
    CHECK(exec_post(b->conn, &p, &r, NULL, 0) == 0, "%s", r.kind);
    come_readable(r.fds[1]);
    begin(&p, SB_C_SIGNAL);
    sb_pack_u64(&p, SB_F_SERIAL, r.serial);
    sb_pack_u64(&p, SB_F_SIGNAL, SIGUSR1);
    CHECK(request(b, &p, &a, 1000) == SB_REPLY && num(&a, SB_F_COUNT) == 1, "count %lu",
          num(&a, SB_F_COUNT));
    CHECK(finish(b->conn, &r) == 0 && same(r.data[0], "ready\ngot\n") &&
              WEXITSTATUS((int)r.status) == 9,
          "'%s'", r.data[0]);
    begin(&p, SB_C_SIGNAL);
    sb_pack_u64(&p, SB_F_SERIAL, r.serial);
    sb_pack_u64(&p, SB_F_SIGNAL, SIGUSR1);
    CHECK(request(b, &p, &a, 1000) == SB_REPLY && num(&a, SB_F_COUNT) == 0, "count %lu",
          num(&a, SB_F_COUNT));
    run_free(&r);
    exec_begin(&p, 0, 1, 0);
    exec_args(&p, "sh", "-c", "sleep 77 & sleep 77 & wait", NULL);
    CHECK(exec_post(b->conn, &p, &r, NULL, 0) == 0, "%s", r.kind);
    come_up(b, SLEEPS, 2, __LINE__);
    begin(&p, SB_C_SIGNAL);
    sb_pack_u64(&p, SB_F_SERIAL, r.serial);
    sb_pack_u64(&p, SB_F_SIGNAL, SIGTERM);
    sb_pack_u64(&p, SB_F_GROUP, 1);
    CHECK(request(b, &p, &a, 1000) == SB_REPLY && num(&a, SB_F_COUNT) == 3, "count %lu",
          num(&a, SB_F_COUNT));
    CHECK(finish(b->conn, &r) == 0, "group");
    run_free(&r);
    begin(&p, SB_C_SIGNAL);
    sb_pack_u64(&p, SB_F_SERIAL, 123456);
    CHECK(request(b, &p, &a, 1000) == SB_ERROR && same(text(&a, SB_F_KIND), "NotFound"), "%s",
          text(&a, SB_F_KIND));
}

static void test_orphans(struct box *b)
{
    struct run r;
    int bad = 0, before = fds_of(b);
    for (int i = 0; i < 20; i++) {
        if (shell(b, &r, "i=0; while [ $i -lt 100 ]; do (sleep 0.01 &); i=$((i+1)); done") != 0)
            bad++;
        run_free(&r);
        serve_control(b);
    }
    CHECK(bad == 0, "%d", bad);
    die_out(b, "ps ax -o stat= | grep -c Z", __LINE__);
    struct sb_packer p;
    for (int i = 0; i < 200; i++) {
        exec_begin(&p, 1, 1, 1);
        exec_args(&p, "no-such-program", NULL);
        exec_post(b->conn, &p, &r, NULL, 0);
        run_free(&r);
    }
    die_out(b, "ps ax -o stat= | grep -c Z", __LINE__);
    fds_return(b, before);
}

/* Sends this request; what of the tail comes before its answer, which is left in `a`. */
static int tail_of(struct box *b, struct sb_packer *p, struct answer *a, size_t *bytes, int *ended)
{
    uint32_t req = post(b->conn, p, NULL, 0);
    int parts = 0;
    *bytes = 0;
    *ended = 0;
    while (receive(b->conn, a, 2000) == 1 && a->head.req == req && a->head.type == SB_PART) {
        struct sb_field_view f;
        parts++;
        if (sb_read_find(&a->fields, SB_F_DATA, &f)) {
            *bytes += f.len;
            *ended = f.len >= 4 && memcmp(f.data + f.len - 4, "end\n", 4) == 0;
        }
    }
    return parts;
}

static void test_attach(struct box *b)
{
    static struct answer a;
    struct sb_packer p;
    struct run r;
    int other, parts, end_seen;
    size_t bytes;
    /* tail: a megabyte, the last 64 KiB stay, the rest is counted */
    exec_begin(&p, 0, SB_IO_TAIL, SB_IO_MERGE);
    exec_args(&p, "sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' x; echo end; sleep 2", NULL);
    sb_pack_str(&p, SB_F_TAG, "mine");
    CHECK(exec_post(b->conn, &p, &r, NULL, 0) == 0, "%s", r.kind);
    double until = now() + 10;
    do { /* until it has written everything */
        begin(&p, SB_C_ATTACH);
        sb_pack_str(&p, SB_F_TAG, "mine");
        parts = tail_of(b, &p, &a, &bytes, &end_seen);
    } while (!end_seen && now() < until);
    CHECK(bytes == 65536 && end_seen, "%zu bytes, %d parts", bytes, parts);
    CHECK(a.head.type == SB_REPLY && num(&a, SB_F_DROPPED) == 1000004 - 65536 &&
              num(&a, SB_F_RUNNING) == 1 && num(&a, SB_F_PID) == r.pid &&
              same(text(&a, SB_F_TAG), "mine"),
          "dropped %lu", num(&a, SB_F_DROPPED));
    CHECK(await_exit(b->conn, &r, 10000) == 0, "exit");
    begin(&p, SB_C_WAIT);
    sb_pack_u64(&p, SB_F_SERIAL, r.serial);
    CHECK(request(b, &p, &a, 1000) == SB_EXITED && num(&a, SB_F_STATUS) == 0, "wait after the end");
    run_free(&r);

    /* lease: a second connection may look, not read; a dead first one makes room */
    other = new_conn(b);
    exec_begin(&p, 0, SB_IO_PIPE, 0);
    exec_args(&p, "sh", "-c", "i=0; while :; do echo line $i; i=$((i+1)); sleep 0.02; done", NULL);
    sb_pack_u64(&p, SB_F_DETACHED, 1);
    CHECK(exec_post(other, &p, &r, NULL, 0) == 0, "%s", r.kind);
    begin(&p, SB_C_ATTACH);
    sb_pack_u64(&p, SB_F_PID, r.pid);
    sb_pack_u64(&p, SB_F_START_NS, r.start_ns);
    sb_pack_u64(&p, SB_F_LEASE, 1);
    CHECK(request(b, &p, &a, 1000) == SB_REPLY && num(&a, SB_F_STREAMS) == 0 && a.nfds == 0,
          "lease given twice");
    begin(&p, SB_C_ATTACH);
    sb_pack_u64(&p, SB_F_PID, r.pid);
    sb_pack_u64(&p, SB_F_START_NS, r.start_ns + 1);
    CHECK(request(b, &p, &a, 1000) == SB_ERROR, "wrong start time");
    close(other);
    run_free(&r);
    r.fds[1] = -1;
    until = now() + 10;
    do { /* until what nobody reads is kept */
        begin(&p, SB_C_ATTACH);
        sb_pack_u64(&p, SB_F_SERIAL, r.serial);
        tail_of(b, &p, &a, &bytes, &end_seen);
    } while (bytes == 0 && now() < until);
    begin(&p, SB_C_ATTACH);
    sb_pack_u64(&p, SB_F_SERIAL, r.serial);
    sb_pack_u64(&p, SB_F_LEASE, 1);
    int type = request(b, &p, &a, 1000);
    CHECK(type == SB_PART && strstr(text(&a, SB_F_DATA), "line ") != NULL, "no tail: %d", type);
    CHECK(receive(b->conn, &a, 1000) == 1 && a.head.type == SB_REPLY && a.nfds == 1 &&
              num(&a, SB_F_STREAMS) == SB_STREAM_STDOUT,
          "streams %lu", num(&a, SB_F_STREAMS));
    char line[64] = "";
    come_readable(a.nfds == 1 ? a.fds[0] : -1);
    CHECK(a.nfds == 1 && read(a.fds[0], line, sizeof line - 1) > 0 && strncmp(line, "line", 4) == 0,
          "read '%s'", line);
    begin(&p, SB_C_RELEASE);
    sb_pack_u64(&p, SB_F_SERIAL, r.serial);
    CHECK(request(b, &p, &a, 1000) == SB_REPLY, "release");
    begin(&p, SB_C_LIST);
    CHECK(request(b, &p, &a, 1000) == SB_PART, "list");
    CHECK(same(text(&a, SB_F_ARG), "sh") && num(&a, SB_F_DETACHED) == 1, "list: %s",
          text(&a, SB_F_ARG));
    while (receive(b->conn, &a, 1000) == 1 && a.head.type == SB_PART)
        ;
    begin(&p, SB_C_KILL);
    sb_pack_u64(&p, SB_F_SERIAL, r.serial);
    CHECK(request(b, &p, &a, 2000) == SB_REPLY, "kill");

    /* who loses its connection goes on, and is drained */
    other = new_conn(b);
    exec_begin(&p, 0, 0, 0);
    exec_args(&p, "sh", "-c", "sleep 77 & sleep 77", NULL);
    CHECK(exec_post(other, &p, &r, NULL, 0) == 0, "%s", r.kind);
    close(other);
    run_free(&r);
    CHECK(shell(b, &r, "sleep 0.2; ps ax -o args= | grep -c '^sleep 77'; pkill -x sleep") == 0 &&
              same(r.data[0], "2\n"),
          "%s", r.data[0]);
    run_free(&r);

    /* 300 ended ones: 256 remain attachable */
    uint64_t first = 0;
    for (int i = 0; i < 300; i++) {
        exec_begin(&p, 0, 0, 0);
        exec_args(&p, "/bin/true", NULL);
        exec_post(b->conn, &p, &r, NULL, 0);
        await_exit(b->conn, &r, 2000);
        if (i == 0)
            first = r.serial;
        serve_control(b);
    }
    begin(&p, SB_C_WAIT);
    sb_pack_u64(&p, SB_F_SERIAL, first);
    CHECK(request(b, &p, &a, 1000) == SB_ERROR, "the oldest should be forgotten");
    begin(&p, SB_C_WAIT);
    sb_pack_u64(&p, SB_F_SERIAL, r.serial);
    CHECK(request(b, &p, &a, 1000) == SB_EXITED, "the newest should be kept");
}

static void test_control(struct box *b)
{
    static struct answer a;
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct sb_packer p;
    struct run r;
    int s;
    close(b->control);
    CHECK(shell(b, &r, "echo alive") == 0 && same(r.data[0], "alive\n"), "%s", r.kind);
    run_free(&r);
    strcpy(un.sun_path, b->sock);
    for (int i = 0; i < 2; i++) { /* the second one while the first is alive */
        s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        CHECK(connect(s, (struct sockaddr *)&un, sizeof un) == 0, "%s", strerror(errno));
        CHECK(receive(s, &a, 2000) == 1 && a.head.type == SB_G_HELLO && num(&a, SB_F_VERSION) == 1,
              "hello");
        if (i == 1)
            CHECK(receive(b->control, &a, 1000) == 0, "the old control must be closed");
        b->control = s;
    }
    the_epoch++;
    s = new_conn(b);
    usleep(50000);
    close(s);
    CHECK(shell(b, &r, "echo alive") == 0, "%s", r.kind);
    run_free(&r);
    the_epoch--;
    begin(&p, SB_C_PING);
    CHECK(request(b, &p, &a, 1000) == SB_ERROR, "old epoch");
    the_epoch++;
    /* stop */
    exec_begin(&p, 0, 0, 0);
    exec_args(&p, "sh", "-c", "trap '' TERM; while :; do sleep 77; done", NULL);
    CHECK(exec_post(b->conn, &p, &r, NULL, 0) == 0, "%s", r.kind);
    usleep(100000);
    begin(&p, SB_G_STOP);
    sb_pack_u64(&p, SB_F_GRACE_MS, 300);
    double t = now();
    post(b->control, &p, NULL, 0);
    CHECK(receive(b->control, &a, 5000) == 1 && a.head.type == SB_REPLY, "stop");
    CHECK(now() - t > 0.25 && now() - t < 2, "stop took %.2f", now() - t);
    exec_begin(&p, 0, 0, 0);
    exec_args(&p, "true", NULL);
    expect_error(b, &p, "NotRunning", NULL, -1, __LINE__);
}

static void test_limit(struct box *unused)
{
    struct sb_packer p;
    struct run r[3], more;
    struct box b;
    (void)unused;
    box_start_with(&b, 3);
    for (int i = 0; i < 3; i++) {
        exec_begin(&p, 0, 0, 0);
        exec_args(&p, "sleep", "77", NULL);
        CHECK(exec_post(b.conn, &p, &r[i], NULL, 0) == 0, "%s", r[i].kind);
    }
    exec_begin(&p, 0, 0, 0);
    exec_args(&p, "true", NULL);
    expect_error(&b, &p, "LimitExceeded", NULL, -1, __LINE__);
    begin(&p, SB_C_KILL);
    sb_pack_u64(&p, SB_F_SERIAL, r[0].serial);
    static struct answer a;
    CHECK(request(&b, &p, &a, 2000) == SB_REPLY, "kill");
    CHECK(shell(&b, &more, "echo fits") == 0 && same(more.data[0], "fits\n"), "%s", more.kind);
    run_free(&more);
    box_end(&b);
}

/* One id only, as an ordinary user without subordinate ids has it. */
static void test_single(struct box *unused)
{
    static struct answer a;
    struct sb_packer p;
    struct box b;
    struct run r;
    (void)unused;
    use_userns = use_single = 1;
    box_start_with(&b, 0);
    CHECK(shell(&b, &r, "id -u; id -g; grep CapEff /proc/self/status") == 0 &&
              strncmp(r.data[0], "1000\n1000\nCapEff:\t0000000000000000", 34) == 0,
          "%s %s '%s'", r.kind, r.step, r.data[0]);
    run_free(&r);
    exec_begin(&p, 0, 0, 0);
    exec_args(&p, "true", NULL);
    sb_pack_str(&p, SB_F_USER, "root");
    expect_error(&b, &p, "Unsupported", NULL, -1, __LINE__);
    exec_begin(&p, 0, 1, 0);
    exec_args(&p, "id", "-u", NULL);
    sb_pack_str(&p, SB_F_USER, "1000");
    CHECK(exec_post(b.conn, &p, &r, NULL, 0) == 0 && finish(b.conn, &r) == 0 &&
              same(r.data[0], "1000\n"),
          "%s", r.kind);
    run_free(&r);
    kill_one(&b, "setsid sleep 77 & sleep 77 & wait", SIGTERM, LONG_GRACE, SLEEPS, 2, 3, __LINE__);
    begin(&p, SB_C_FILE);
    sb_pack_u64(&p, SB_F_FILE_OP, SB_FILE_WRITE);
    sb_pack_str(&p, SB_F_DATA, "x");
    char path[128];
    snprintf(path, sizeof path, "%s/f", b.dir);
    sb_pack_str(&p, SB_F_PATH, path);
    CHECK(request(&b, &p, &a, 2000) == SB_REPLY && num(&a, SB_F_UID) == 1000, "write: %s",
          text(&a, SB_F_MESSAGE));
    box_end(&b);
    use_userns = use_single = 0;
}

static int cmp(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void stats(const char *what, double *t, int n)
{
    qsort(t, (size_t)n, sizeof *t, cmp);
    printf("  %-34s min %8.1f  median %8.1f  p99 %8.1f us\n", what, t[0] * 1e6, t[n / 2] * 1e6,
           t[n * 99 / 100] * 1e6);
}

static void test_bench(struct box *b)
{
    enum { PINGS = 3000, RUNS = 200 };
    static struct answer a;
    static double ping[PINGS], echo[PINGS], ours[RUNS], raw[RUNS], echoed[RUNS];
    struct sb_packer p;
    struct run r;
    int pair[2];
    pid_t child;
    socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair);
    child = fork();
    if (child == 0) {
        char buf[256];
        long n;
        close(pair[0]);
        while ((n = recv(pair[1], buf, sizeof buf, 0)) > 0)
            send(pair[1], buf, (size_t)n, 0);
        _exit(0);
    }
    close(pair[1]);
    for (int i = 0; i < PINGS; i++) {
        double t = now();
        begin(&p, SB_C_PING);
        send(b->conn, p.buf, p.len, 0);
        recv(b->conn, a.buf, sizeof a.buf, 0);
        ping[i] = now() - t;
        t = now();
        send(pair[0], p.buf, p.len, 0);
        recv(pair[0], a.buf, sizeof a.buf, 0);
        echo[i] = now() - t;
    }
    close(pair[0]);
    waitpid(child, NULL, 0);
    stats("ping", ping, PINGS);
    stats("bare seqpacket echo", echo, PINGS);
    for (int i = 0; i < RUNS; i++) {
        char *argv[] = {"/bin/true", NULL};
        double t = now();
        pid_t pid;
        exec_begin(&p, 0, 0, 0);
        exec_args(&p, "/bin/true", NULL);
        exec_post(b->conn, &p, &r, NULL, 0);
        await_exit(b->conn, &r, 2000);
        ours[i] = now() - t;
        serve_control(b);
        t = now();
        posix_spawn(&pid, "/bin/true", NULL, NULL, argv, environ);
        waitpid(pid, NULL, 0);
        raw[i] = now() - t;
        t = now();
        exec_begin(&p, 0, 1, 1);
        exec_args(&p, "/bin/echo", "hello", NULL);
        exec_post(b->conn, &p, &r, NULL, 0);
        finish(b->conn, &r);
        echoed[i] = now() - t;
        run_free(&r);
        serve_control(b);
    }
    stats("exec of true", ours, RUNS);
    stats("posix_spawn of true", raw, RUNS);
    stats("exec of echo, output captured", echoed, RUNS);
    char cmd[256];
    snprintf(cmd, sizeof cmd,
             "grep -E '^(Rss|Pss|Private|Shared)' /proc/%d/smaps_rollup; grep -i flt "
             "/proc/%d/status; awk '{print \"  minor faults\", $10}' /proc/%d/stat",
             b->pid, b->pid, b->pid);
    if (system(cmd) != 0)
        printf("?\n");
}

#include "guest_files.h"

/* exec for an asker who wants to hear of the end only. */
static uint32_t whole_post(int conn, const char *script)
{
    struct sb_packer p;
    exec_begin(&p, 0, 1, 1);
    sb_pack_u64(&p, SB_F_WHOLE, 1);
    exec_args(&p, "sh", "-c", script, NULL);
    return post(conn, &p, NULL, 0);
}

static int is_bytes(const struct answer *a, uint16_t tag, const char *want, size_t len)
{
    struct sb_field_view f;
    return sb_read_find(&a->fields, tag, &f) && f.len == len && memcmp(f.data, want, len) == 0;
}

static void tell(int conn, uint32_t req)
{
    struct sb_packer p;
    begin(&p, SB_C_TELL);
    sb_pack_u64(&p, SB_F_REQ, req);
    post(conn, &p, NULL, 0);
}

/* The answer to `req` as pipes; what else comes is skipped. */
static int started(int conn, uint32_t req, struct run *r)
{
    static struct answer a;
    int at = 0;
    memset(r, 0, sizeof *r);
    r->fds[0] = r->fds[1] = r->fds[2] = -1;
    do
        if (receive(conn, &a, 5000) != 1)
            return -1;
    while (a.head.req != req);
    r->serial = num(&a, SB_F_SERIAL);
    for (int i = 0; i < 3; i++)
        if (num(&a, SB_F_STREAMS) & (1u << i) && at < a.nfds)
            r->fds[i] = a.fds[at++];
    return a.head.type == SB_REPLY && at == 2 ? 0 : -1;
}

static void kill_serial(struct box *b, uint64_t serial)
{
    static struct answer a;
    struct sb_packer p;
    begin(&p, SB_C_KILL);
    sb_pack_u64(&p, SB_F_SERIAL, serial);
    uint32_t req = post(b->conn, &p, NULL, 0);
    do
        if (receive(b->conn, &a, 5000) != 1)
            break;
    while (a.head.req != req);
    CHECK(a.head.req == req && a.head.type == SB_REPLY && num(&a, SB_F_COUNT) == 1,
          "killed %llu processes", (unsigned long long)num(&a, SB_F_COUNT));
}

static void test_whole(struct box *b)
{
    static struct answer a;
    struct sb_packer p;
    struct run r;
    uint32_t req = whole_post(b->conn, "echo out; echo err >&2; exit 3");
    size_t n;
    int other;
    CHECK(receive(b->conn, &a, 5000) == 1 && a.head.type == SB_REPLY && a.head.req == req,
          "no answer");
    CHECK(a.nfds == 0 && num(&a, SB_F_STREAMS) == 0 && WEXITSTATUS((int)num(&a, SB_F_STATUS)) == 3,
          "not in one: %d descriptors", a.nfds);
    CHECK(is_bytes(&a, SB_F_DATA, "out\n", 4) && is_bytes(&a, SB_F_DATA_ERR, "err\n", 4), "output");
    CHECK(strcmp(text(&a, SB_F_REASON), "exit") == 0 && num(&a, SB_F_PID) > 1, "record");
    req = whole_post(b->conn, "head -c 16384 /dev/zero");
    CHECK(receive(b->conn, &a, 5000) == 1 && a.head.req == req && a.nfds == 0,
          "an end was told twice, or the limit is lower");

    /* too much for a message */
    req = whole_post(b->conn, "head -c 300000 /dev/zero");
    CHECK(started(b->conn, req, &r) == 0 && finish(b->conn, &r) == 0 && r.n[0] == 300000,
          "long output: %zu", r.n[0]);
    run_free(&r);

    /* somebody else still writes */
    req = whole_post(b->conn, "sleep 30 & echo here");
    CHECK(started(b->conn, req, &r) == 0 && await_exit(b->conn, &r, 5000) == 0, "held pipes");
    char *first = slurp(r.fds[1], &n, 200);
    CHECK(same(first, "here\n"), "%s", first);
    free(first);
    kill_serial(b, r.serial);
    run_free(&r);

    /* asked for */
    req = whole_post(b->conn, "echo here; exec sleep 30");
    tell(b->conn, req);
    CHECK(started(b->conn, req, &r) == 0, "the answer stays away");
    first = slurp(r.fds[1], &n, 200);
    CHECK(same(first, "here\n"), "%s", first);
    free(first);
    tell(b->conn, req);
    kill_serial(b, r.serial);
    run_free(&r);

    /* killed by its request, and where an asker closes all of his; not by others */
    other = new_conn(b);
    for (int all = 0; all < 2; all++) {
        req = whole_post(b->conn, "exec sleep 30");
        for (int i = 0; i < 2; i++) {
            begin(&p, SB_C_KILL);
            if (!all)
                sb_pack_u64(&p, SB_F_REQ, req);
            post(i == 0 ? other : b->conn, &p, NULL, 0);
            CHECK(i == 1 || (receive(other, &a, 5000) == 1 && a.head.type == SB_REPLY),
                  "of another");
        }
        CHECK(started(b->conn, req, &r) == 0 && await_exit(b->conn, &r, 5000) == 0 &&
                  WTERMSIG((int)r.status) == SIGKILL,
              "not killed by its request");
        run_free(&r);
    }
    close(other);

    /* somebody asks about the command; the one that waits is told of it then, and of the end */
    uint32_t req2 = whole_post(b->conn, "exec sleep 30");
    other = new_conn(b);
    begin(&p, SB_C_KILL);
    sb_pack_u64(&p, SB_F_SERIAL, r.serial + 1);
    post(other, &p, NULL, 0);
    CHECK(started(b->conn, req2, &r) == 0 && await_exit(b->conn, &r, 5000) == 0 &&
              WTERMSIG((int)r.status) == SIGKILL,
          "killed by another");
    run_free(&r);
    CHECK(receive(other, &a, 5000) == 1 && num(&a, SB_F_COUNT) == 1, "kill");

    /* the one that waits goes away: the command goes on, what it writes is kept */
    exec_begin(&p, 0, 1, 1);
    sb_pack_u64(&p, SB_F_WHOLE, 1);
    sb_pack_str(&p, SB_F_TAG, "left");
    exec_args(&p, "sh", "-c", "echo one; sleep 0.2; echo two; exec sleep 30", NULL);
    post(other, &p, NULL, 0);
    close(other);
    double end = now() + 5;
    do {
        begin(&p, SB_C_ATTACH);
        sb_pack_str(&p, SB_F_TAG, "left");
        post(b->conn, &p, NULL, 0);
        n = 0;
        while (receive(b->conn, &a, 5000) == 1 && a.head.type == SB_PART)
            n += is_bytes(&a, SB_F_DATA, "one\ntwo\n", 8);
    } while (n != 1 && now() < end);
    CHECK(n == 1, "the tail");
    kill_serial(b, num(&a, SB_F_SERIAL));
    serve_control(b);
}

#include "guest_burst.h"
#include "guest_memory.h"
#include "guest_starting.h"

static const struct {
    const char *name;
    void (*run)(struct box *b);
} tests[] = {
    {"ping", test_ping},
    {"exec", test_exec},
    {"start_errors", test_start_errors},
    {"whole", test_whole},
    {"starting", test_starting},
    {"burst", test_burst},
    {"pipeline", test_pipeline},
    {"kill", test_kill},
    {"attach", test_attach},
    {"orphans", test_orphans},
    {"broken_pipeline", test_broken_pipeline},
    {"output", test_output},
    {"files", test_files},
    {"deep", test_deep},
    {"hostile", test_hostile},
    {"control", test_control},
    {"limit", test_limit},
    {"memory", test_memory},
    {"single", test_single},
    {"bench", test_bench},
};

static void run_tests(char **names, int n, int bench)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        struct box b;
        int wanted = n == 0 && (bench || strcmp(tests[i].name, "bench") != 0);
        for (int j = 0; j < n; j++)
            wanted |= strcmp(names[j], tests[i].name) == 0;
        if (!wanted)
            continue;
        printf("%s%s%s\n", tests[i].name,
               !use_leaves     ? ""
               : leaf_fds == 3 ? " (started in leaf groups)"
                               : " (leaf groups)",
               use_userns ? " (user namespace)" : "");
        box_start(&b);
        tests[i].run(&b);
        CHECK(kill(b.pid, 0) == 0 && waitpid(b.pid, NULL, WNOHANG) == 0, "pid 1 has died");
        box_end(&b);
    }
}

int main(int argc, char **argv)
{
    static char *trees[] = {"kill",     "attach", "orphans", "control", "broken_pipeline",
                            "starting", "burst"},
                *users[] = {"exec", "start_errors", "kill", "files", "starting"};
    int plain = argc == 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    /* What a supervisor is started with, whoever runs this. By the bare call: posix_spawn leaves 32 and 33
     * ignored, which signal() will not touch. */
    static const uint64_t by_default[4];
    for (int sig = 1; sig <= 64; sig++)
        syscall(SYS_rt_sigaction, sig, by_default, NULL, 8);
    if (getcwd(start_dir, sizeof start_dir) == NULL)
        return 2;
    if (geteuid() != 0) {
        printf("pid 1 can be tried by root only\n");
        return 77;
    }
    find_cgroup2();
    for (; argc > 1 && argv[1][0] == '-'; argc--, argv++) {
        use_userns |= strcmp(argv[1], "--userns") == 0;
        use_leaves |= strcmp(argv[1], "--leaves") == 0;
        if (strncmp(argv[1], "--image=", 8) == 0)
            image = argv[1] + 8;
    }
    run_tests(argv + 1, argc - 1, 0);
    if (plain) {
        use_userns = 1;
        run_tests(users, 5, 0);
        use_userns = 0;
        use_leaves = cgroup2[0] != '\0';
        if (use_leaves)
            run_tests(trees, 7, 0);
        leaf_fds = 3;
        if (use_leaves)
            run_tests(trees, 7, 0);
    }
    remove_leaves();
    printf("%d checks, %d failures\n", checks, failures);
    return failures != 0;
}
