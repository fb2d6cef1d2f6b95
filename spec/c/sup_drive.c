/* Drives a supervisor by hand: starts it by the documented descriptor protocol, then runs the
 * requests given as words. For tests and measurements of the supervisor alone.
 *
 *   sup_drive <supervisor> <pid1> <root> [word ...]
 *
 * Words: hello | create <id> [key=value ...] ; | exec <id> arg ... ; | info <id> | list | destroy <id> |
 * pause <id> | resume <id> | connect <id> | socket <id> <port> | expose <id> <port> | lifetime <id> <ms> |
 * advance <ms> | stats | killsup | bench <n> | sleep <ms> | reconnect */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../src/engine/proto.h"

static const char *sup_path, *pid1_path, *root_path;
static int sup = -1;
static uint32_t next_req = 1;
static pid_t sup_pid;

struct answer {
    unsigned char buf[SB_MSG_MAX];
    struct sb_msg head;
    struct sb_reader r;
    int fd[SB_MSG_FDS], nfd;
};

static void die(const char *what)
{
    fprintf(stderr, "sup_drive: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int image_of(const char *path)
{
    int in = open(path, O_RDONLY | O_CLOEXEC),
        out = memfd_create("image", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    char buf[65536];
    ssize_t n;
    if (in < 0 || out < 0)
        die(path);
    while ((n = read(in, buf, sizeof buf)) > 0)
        if (write(out, buf, (size_t)n) != n)
            die("memfd");
    close(in);
    fcntl(out, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    return out;
}

static void start(void)
{
    int status[2], image = image_of(sup_path), pid1 = image_of(pid1_path);
    int root = open(root_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0 || pipe2(status, O_CLOEXEC) < 0)
        die("start");
    pid_t pid = fork();
    if (pid == 0) {
        setsid();
        int base = 100, null = open("/dev/null", O_RDWR);
        int img = fcntl(image, F_DUPFD, base), st = fcntl(status[1], F_DUPFD, base);
        int p1 = fcntl(pid1, F_DUPFD, base), rt = fcntl(root, F_DUPFD, base);
        if (getenv("SUP_STDERR") == NULL)
            dup2(null, 2);
        dup2(null, 0), dup2(null, 1), dup2(st, 3), dup2(p1, 4), dup2(rt, 5);
        fcntl(img, F_DUPFD, 6);
        dup3(img, 6, O_CLOEXEC);
        close_range(7, ~0U, 0);
        if (chdir("/") < 0)
            _exit(126);
        const char *linger = getenv("SUP_LINGER");
        char *argv[] = {"sandbar-supervisor", (char *)(linger != NULL ? linger : "2000"), NULL};
        char *envp[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", NULL};
        fexecve(6, argv, envp);
        _exit(127);
    }
    close(status[1]);
    close(image), close(pid1), close(root);
    char line[512] = "";
    size_t len = 0;
    ssize_t n;
    while (len < sizeof line - 1 && (n = read(status[0], line + len, sizeof line - 1 - len)) > 0)
        len += (size_t)n;
    close(status[0]);
    if (strcmp(line, "ready\n") != 0) {
        fprintf(stderr, "supervisor says: %s\n", len > 0 ? line : "(nothing)");
        exit(1);
    }
    sup_pid = pid;
}

static int try_connect(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s/v1/sock", root_path);
    sup = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connect(sup, (struct sockaddr *)&a, sizeof a) == 0)
        return 0;
    close(sup);
    return -1;
}

static void send_msg(int fd, struct sb_packer *p)
{
    if (p->overflow || send(fd, p->buf, p->len, MSG_NOSIGNAL) < 0)
        die("send");
}

static int receive(int fd, struct answer *a)
{
    char control[CMSG_SPACE(sizeof(int) * SB_MSG_FDS)];
    struct iovec io = {a->buf, sizeof a->buf};
    struct msghdr m = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
    if (n <= 0)
        return -1;
    a->nfd = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c != NULL; c = CMSG_NXTHDR(&m, c)) {
        size_t k = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(a->fd, CMSG_DATA(c), k * sizeof(int));
        a->nfd = (int)k;
    }
    return sb_read_begin(&a->r, &a->head, a->buf, (size_t)n);
}

static const char *const field_name[256] = {
#define NAME(tag, upper, lower, type) [tag] = #lower,
    SB_FIELDS(NAME)
#undef NAME
};
static const char field_type[256] = {
#define TYPE(tag, upper, lower, type) [tag] = #type[0],
    SB_FIELDS(TYPE)
#undef TYPE
};

static void show(const char *what, struct answer *a)
{
    struct sb_field_view f;
    printf("%s -> type %u:", what, a->head.type);
    struct sb_reader r = a->r;
    while (sb_read_field(&r, &f) == 1) {
        if (f.tag < 256 && field_type[f.tag] == 'U')
            printf(" %s=%llu", field_name[f.tag], (unsigned long long)sb_field_u64(&f, 0));
        else
            printf(" %s=%.*s", f.tag < 256 ? field_name[f.tag] : "?", (int)f.len,
                   (const char *)f.data);
    }
    printf(" fds=%d\n", a->nfd);
    fflush(stdout);
}

static struct answer ans;
static unsigned char out[SB_MSG_MAX];

static void begin(struct sb_packer *p, uint16_t type)
{
    sb_pack_begin(p, out, sizeof out, type, next_req++, 0);
}

static void ask(struct sb_packer *p)
{
    send_msg(sup, p);
    do
        if (receive(sup, &ans) < 0)
            die("no answer");
    while (ans.head.type == SB_PART && (show("  part", &ans), 1));
}

static void hello(void)
{
    struct sb_packer p;
    begin(&p, SB_S_HELLO);
    sb_pack_u64(&p, SB_F_VERSION, SB_PROTO_VERSION);
    ask(&p);
}

static void open_sup(void)
{
    if (try_connect() < 0) {
        start();
        if (try_connect() < 0)
            die("connect");
    }
    hello();
}

static uint16_t tag_of(const char *name, size_t n)
{
    for (int i = 0; i < 256; i++)
        if (field_name[i] != NULL && strlen(field_name[i]) == n &&
            memcmp(field_name[i], name, n) == 0)
            return (uint16_t)i;
    fprintf(stderr, "no field %.*s\n", (int)n, name);
    exit(1);
}

static void pack_pair(struct sb_packer *p, const char *word)
{
    const char *eq = strchr(word, '=');
    if (eq == NULL)
        die(word);
    uint16_t tag = tag_of(word, (size_t)(eq - word));
    if (field_type[tag] == 'U')
        sb_pack_u64(p, tag, strtoull(eq + 1, NULL, 10));
    else
        sb_pack_str(p, tag, eq + 1);
}

static struct conn {
    char id[64];
    int fd;
    uint32_t epoch;
} conn[256];
static int conns;

static void keep_conn(const char *id)
{
    if (ans.nfd == 0)
        return;
    struct conn *c = NULL;
    for (int i = 0; i < conns; i++)
        if (strcmp(conn[i].id, id) == 0)
            c = &conn[i];
    if (c == NULL)
        c = &conn[conns++];
    else
        close(c->fd);
    snprintf(c->id, sizeof c->id, "%s", id);
    c->fd = ans.fd[0];
    c->epoch = (uint32_t)sb_read_u64(&ans.r, SB_F_EPOCH, 0);
}

static void copy_out(int fd)
{
    char buf[4096];
    ssize_t n;
    while ((n = read(fd, buf, sizeof buf)) > 0 ||
           (n < 0 && errno == EAGAIN && poll(&(struct pollfd){fd, POLLIN, 0}, 1, -1)))
        if (n > 0)
            fwrite(buf, 1, (size_t)n, stdout);
    close(fd);
}

static int exec_in(const char *id, char **argv, int quiet)
{
    struct sb_packer p;
    struct conn *c = NULL;
    for (int i = 0; i < conns; i++)
        if (strcmp(conn[i].id, id) == 0)
            c = &conn[i];
    if (c == NULL)
        die("not connected");
    fcntl(c->fd, F_SETFL, 0);
    sb_pack_begin(&p, out, sizeof out, SB_C_EXEC, next_req++, c->epoch);
    for (; *argv != NULL && strcmp(*argv, ";") != 0; argv++)
        if (strncmp(*argv, "user=", 5) == 0)
            sb_pack_str(&p, SB_F_USER, *argv + 5);
        else
            sb_pack_str(&p, SB_F_ARG, *argv);
    sb_pack_u64(&p, SB_F_OUT_MODE, quiet ? SB_IO_NULL : SB_IO_PIPE);
    sb_pack_u64(&p, SB_F_ERR_MODE, quiet ? SB_IO_NULL : SB_IO_MERGE);
    send_msg(c->fd, &p);
    for (;;) {
        if (receive(c->fd, &ans) < 0) {
            printf("connection to %s ended\n", id);
            return -1;
        }
        if (!quiet && ans.head.type != SB_REPLY)
            show("exec", &ans);
        for (int i = 0; i < ans.nfd; i++)
            copy_out(ans.fd[i]);
        if (ans.head.type == SB_EXITED)
            return (int)sb_read_u64(&ans.r, SB_F_STATUS, 999);
        if (ans.head.type == SB_ERROR)
            return -1;
    }
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void line(const char *what, double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    printf("%-28s min %8.0f  median %8.0f  p90 %8.0f\n", what, v[0], v[n / 2], v[n * 9 / 10]);
}

extern char **environ;

static void bench(int n)
{
    double *v[7];
    for (int i = 0; i < 7; i++)
        v[i] = calloc((size_t)n, sizeof(double));
    char *true_argv[] = {"/bin/true", NULL};
    for (int i = 0; i < n; i++) {
        struct sb_packer p;
        char id[32];
        pid_t pid;
        double t0 = now_us();
        posix_spawn(&pid, "/bin/true", NULL, NULL, true_argv, environ);
        waitpid(pid, NULL, 0);
        double raw = now_us() - t0;
        usleep(getenv("PAUSE_US") != NULL ? atoi(getenv("PAUSE_US")) : 10000);
        snprintf(id, sizeof id, "bench-%d-%d", getpid(), i);
        t0 = now_us();
        begin(&p, SB_S_CREATE);
        sb_pack_str(&p, SB_F_ID, id);
        ask(&p);
        double created = now_us() - t0;
        if (ans.head.type != SB_REPLY) {
            show("create", &ans);
            exit(1);
        }
        keep_conn(id);
        double t1 = now_us(), ran = 0;
        if (getenv("NO_EXEC") == NULL) {
            exec_in(id, true_argv, 1);
            ran = now_us() - t1;
        }
        double t2 = now_us();
        begin(&p, SB_S_DESTROY);
        sb_pack_str(&p, SB_F_ID, id);
        ask(&p);
        double gone = now_us() - t2;
        close(conn[--conns].fd);
        v[0][i] = raw, v[1][i] = created, v[2][i] = ran, v[3][i] = gone;
        v[4][i] = created / raw * 1000, v[5][i] = (created + ran + gone), v[6][i] = created + gone;
    }
    line("raw posix_spawn true, us", v[0], n);
    line("create, us", v[1], n);
    line("exec true, us", v[2], n);
    line("destroy, us", v[3], n);
    line("create + destroy, us", v[6], n);
    line("all three, us", v[5], n);
    line("create / raw, thousandths", v[4], n);
}

static void simple(uint16_t type, const char *word, char **rest, const char *key)
{
    struct sb_packer p;
    begin(&p, type);
    if (rest[0] != NULL && type != SB_S_LIST && type != SB_S_STATS && type != SB_S_ADVANCE)
        sb_pack_str(&p, SB_F_ID, rest[0]);
    if (key != NULL) {
        char pair[64];
        snprintf(pair, sizeof pair, "%s=%s", key, rest[type == SB_S_ADVANCE ? 0 : 1]);
        pack_pair(&p, pair);
    }
    if (type == SB_S_PAUSE)
        sb_pack_str(&p, SB_F_KEEP, "disk");
    ask(&p);
    show(word, &ans);
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    sup_path = argv[1], pid1_path = argv[2], root_path = argv[3];
    signal(SIGPIPE, SIG_IGN);
    mkdir(root_path, 0700);
    open_sup();
    for (char **w = argv + 4; *w != NULL; w++) {
        struct sb_packer p;
        if (strcmp(*w, "hello") == 0) {
            hello();
            show("hello", &ans);
            sup_pid = (pid_t)sb_read_u64(&ans.r, SB_F_PID, 0);
        } else if (strcmp(*w, "create") == 0) {
            const char *id = *++w;
            begin(&p, SB_S_CREATE);
            sb_pack_str(&p, SB_F_ID, id);
            while (w[1] != NULL && strcmp(*++w, ";") != 0)
                pack_pair(&p, *w);
            ask(&p);
            show("create", &ans);
            keep_conn(id);
        } else if (strcmp(*w, "exec") == 0) {
            const char *id = w[1];
            printf("exec %s: status %d\n", id, exec_in(id, w + 2, 0));
            while (*w != NULL && strcmp(*w, ";") != 0)
                w++;
            if (*w == NULL)
                break;
        } else if (strcmp(*w, "info") == 0)
            simple(SB_S_INFO, *w, w + 1, NULL), w++;
        else if (strcmp(*w, "list") == 0)
            simple(SB_S_LIST, *w, w + 1, NULL);
        else if (strcmp(*w, "stats") == 0)
            simple(SB_S_STATS, *w, w + 1, NULL);
        else if (strcmp(*w, "destroy") == 0)
            simple(SB_S_DESTROY, *w, w + 1, NULL), w++;
        else if (strcmp(*w, "pause") == 0)
            simple(SB_S_PAUSE, *w, w + 1, NULL), w++;
        else if (strcmp(*w, "resume") == 0 || strcmp(*w, "connect") == 0) {
            simple(**w == 'r' ? SB_S_RESUME : SB_S_CONNECT, *w, w + 1, NULL), w++;
            keep_conn(*w);
        } else if (strcmp(*w, "socket") == 0) {
            simple(SB_S_SOCKET, *w, w + 1, NULL);
            struct sockaddr_in a = {.sin_family = AF_INET,
                                    .sin_port = htons((uint16_t)atoi(w[2])),
                                    .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
            fcntl(ans.fd[0], F_SETFL, 0);
            int rc = ans.nfd > 0 ? connect(ans.fd[0], (struct sockaddr *)&a, sizeof a) : -1;
            printf("  connect to port %s: %s\n", w[2], rc == 0 ? "done" : strerror(errno));
            w += 2;
        } else if (strcmp(*w, "expose") == 0)
            simple(SB_S_EXPOSE, *w, w + 1, "port"), w += 2;
        else if (strcmp(*w, "lifetime") == 0)
            simple(SB_S_LIFETIME, *w, w + 1, "lifetime_ms"), w += 2;
        else if (strcmp(*w, "advance") == 0)
            simple(SB_S_ADVANCE, *w, w + 1, "ms"), w++;
        else if (strcmp(*w, "sleep") == 0)
            usleep((useconds_t)atoi(*++w) * 1000);
        else if (strcmp(*w, "killsup") == 0) {
            hello();
            sup_pid = (pid_t)sb_read_u64(&ans.r, SB_F_PID, 0);
            kill(sup_pid, SIGKILL);
            usleep(50000);
            while (waitpid(-1, NULL, WNOHANG) > 0)
                ;
            close(sup);
            open_sup();
        } else if (strcmp(*w, "reconnect") == 0) {
            close(sup);
            open_sup();
        } else if (strcmp(*w, "bench") == 0)
            bench(atoi(*++w));
        else {
            fprintf(stderr, "unknown word %s\n", *w);
            return 2;
        }
    }
    return 0;
}
