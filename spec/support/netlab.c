/* netlab COMMAND...: runs a command on a machine with a small world around it, for specs of network policies.
 *
 * The machine is a network namespace of its own (as an ordinary user in a user namespace of its own) with the
 * addresses 203.0.113.2 and 2001:db8:1::2. Behind a link lies the world, another network namespace, to which
 * 198.51.100.0/24, 10.1.0.0/16, 169.254.0.0/16, 2001:db8:2::/64 and fd00:1::/64 belong. Each address there
 * serves (it notes each question of the DNS in $SPEC_DIR/questions, which it removes at its end):
 *   TCP 80    HTTP, one answer a request, as many requests as come: "<address> <request line> <Host>", or with an
 *             X-Echo field "<address> " and the whole head as it came
 *   TCP 443   anything: reads once, answers "<address> <bytes read>"; at 198.51.100.20 and .21 (tls.test, bad.test)
 *             HTTPS by tls_world.py, with a certificate for tls.test of an authority that the machine trusts
 *   TCP, UDP 7  sends back what comes; TCP 9 takes it all and says nothing; TCP 11 sends without end
 *   UDP 53    the DNS of the names below
 * The machine's resolver is 203.0.113.1, which is one of the world's.
 * Ends with 77 and a reason where this machine cannot do that. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <pthread.h>
#include <unistd.h>

static const struct {
    const char *name, *v4, *v6;
} host[] = {
    {"good.test", "198.51.100.10", "2001:db8:2::10"},
    {"other.test", "198.51.100.11", NULL},
    {"sub.wide.test", "198.51.100.12", NULL},
    {"rebind.test", "127.0.0.1", "::1"},
    {"metadata.test", "169.254.169.254", NULL},
    {"private.test", "10.1.0.5", "fd00:1::5"},
    {"own.test", "203.0.113.2", "2001:db8:1::2"},
    {"mapped.test", NULL, "::ffff:10.1.0.5"},
    {"tls.test", "198.51.100.20", NULL},
    {"bad.test", "198.51.100.21", NULL},
};

static int log_fd = -1;

static void die(const char *what)
{
    printf("no network laboratory here: %s: %s\n", what, strerror(errno));
    exit(77);
}

static void put(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        die(path);
    close(fd);
}

/* Runs `ip` with our capabilities, which an ordinary user would lose with the exec. */
static void ip(const char *line)
{
    char text[256], *argv[24], *save = NULL;
    int n = 1;
    argv[0] = (char *)"ip";
    snprintf(text, sizeof text, "%s", line);
    for (char *w = strtok_r(text, " ", &save); w != NULL && n < 23; w = strtok_r(NULL, " ", &save))
        argv[n++] = w;
    argv[n] = NULL;
    pid_t pid = fork();
    if (pid == 0) {
        unsetenv("LD_PRELOAD"); /* a sanitizer's, for the command only */
        execvp("ip", argv);
        execv("/usr/sbin/ip", argv);
        _exit(127);
    }
    int status;
    while (waitpid(pid, &status, 0) < 0)
        ;
    if (status != 0) {
        errno = ENOENT;
        die(line);
    }
}

static void keep_capabilities(int on)
{
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    static const int cap[] = {CAP_NET_ADMIN, CAP_SYS_ADMIN, CAP_NET_RAW};
    if (!on) {
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
        syscall(SYS_capget, &head, data);
        data[0].inheritable = data[1].inheritable = 0;
        syscall(SYS_capset, &head, data);
        return;
    }
    syscall(SYS_capget, &head, data);
    for (size_t i = 0; i < sizeof cap / sizeof *cap; i++)
        data[0].inheritable |= 1u << cap[i];
    if (syscall(SYS_capset, &head, data) < 0)
        die("capset");
    for (size_t i = 0; i < sizeof cap / sizeof *cap; i++)
        if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap[i], 0, 0) < 0)
            die("ambient capabilities");
}

/* ---- the world's servers ---- */

static void name_of(int fd, char out[INET6_ADDRSTRLEN])
{
    struct sockaddr_in6 s;
    socklen_t len = sizeof s;
    getsockname(fd, (struct sockaddr *)&s, &len);
    if (IN6_IS_ADDR_V4MAPPED(&s.sin6_addr))
        inet_ntop(AF_INET, s.sin6_addr.s6_addr + 12, out, INET6_ADDRSTRLEN);
    else
        inet_ntop(AF_INET6, &s.sin6_addr, out, INET6_ADDRSTRLEN);
}

static void say(int fd, const char *text, size_t n)
{
    while (n > 0) {
        ssize_t done = send(fd, text, n, MSG_NOSIGNAL);
        if (done <= 0)
            return;
        text += done;
        n -= (size_t)done;
    }
}

static void serve_http(int fd)
{
    char buf[65536], at[INET6_ADDRSTRLEN], body[4096], answer[8192];
    size_t have = 0;
    name_of(fd, at);
    for (;;) {
        char *end;
        buf[have] = '\0';
        while ((end = strstr(buf, "\r\n\r\n")) == NULL) {
            ssize_t n = recv(fd, buf + have, sizeof buf - 1 - have, 0);
            if (n <= 0)
                return;
            have += (size_t)n;
            buf[have] = '\0';
        }
        *end = '\0';
        char *h = strcasestr(buf, "\r\nHost:"), *line = strstr(buf, "\r\n");
        char *length = strcasestr(buf, "\r\nContent-Length:");
        size_t want = length != NULL ? strtoul(length + 17, NULL, 10) : 0;
        int closing = strcasestr(buf, "\r\nConnection: close") != NULL;
        int upgrade = strcasestr(buf, "\r\nUpgrade: websocket") != NULL;
        int n = snprintf(body, sizeof body, "%s %.*s%.*s", at,
                         (int)(line != NULL ? line - buf : (long)strlen(buf)), buf,
                         h != NULL ? (int)strcspn(h + 7, "\r") : 0, h != NULL ? h + 7 : "");
        if (strcasestr(buf, "\r\nX-Echo:") != NULL)
            n = snprintf(body, sizeof body, "%s %s", at, buf);
        if (upgrade)
            n = snprintf(answer, sizeof answer, "HTTP/1.1 101 Switching Protocols\r\n\r\n");
        else
            n = snprintf(answer, sizeof answer,
                         "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n%s\n", n + 1,
                         closing ? "Connection: close\r\n" : "", body);
        size_t used = (size_t)(end + 4 - buf);
        while (have - used < want) {
            ssize_t more = recv(fd, buf + have, sizeof buf - 1 - have, 0);
            if (more <= 0)
                return;
            have += (size_t)more;
        }
        used += want;
        say(fd, answer, (size_t)n);
        if (upgrade) {
            say(fd, buf + used, have - used);
            for (;;) {
                ssize_t more = recv(fd, buf, sizeof buf, 0);
                if (more <= 0)
                    return;
                say(fd, buf, (size_t)more);
            }
        }
        if (closing)
            return;
        memmove(buf, buf + used, have - used);
        have -= used;
    }
}

/* To the HTTPS server, which may be just starting. */
static void tunnel(int fd)
{
    enum { TRIES = 500 };
    struct sockaddr_in s = {.sin_family = AF_INET, .sin_port = htons(8443)};
    struct pollfd p[2] = {{fd, POLLIN, 0}, {-1, POLLIN, 0}};
    char buf[65536];
    s.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < TRIES; i++) {
        p[1].fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(p[1].fd, (struct sockaddr *)&s, sizeof s) == 0)
            break;
        close(p[1].fd);
        p[1].fd = -1;
        usleep(10000);
    }
    while (p[1].fd >= 0 && poll(p, 2, -1) > 0)
        for (int i = 0; i < 2; i++) {
            if (p[i].revents == 0)
                continue;
            ssize_t n = recv(p[i].fd, buf, sizeof buf, 0);
            if (n > 0) {
                say(p[1 - i].fd, buf, (size_t)n);
            } else { /* the server ends with what it has said */
                close(p[1].fd);
                return;
            }
        }
}

static void serve(int fd, int port)
{
    static const char filler[65536];
    char buf[65536], at[INET6_ADDRSTRLEN], text[128];
    ssize_t n;
    name_of(fd, at);
    switch (port) {
    case 80:
        serve_http(fd);
        break;
    case 443:
        if (strcmp(at, "198.51.100.20") == 0 || strcmp(at, "198.51.100.21") == 0) {
            tunnel(fd);
            break;
        }
        n = recv(fd, buf, sizeof buf, 0);
        snprintf(text, sizeof text, "%s %zd\n", at, n);
        say(fd, text, strlen(text));
        break;
    case 7:
        while ((n = recv(fd, buf, sizeof buf, 0)) > 0)
            say(fd, buf, (size_t)n);
        break;
    case 9:
        while (recv(fd, buf, sizeof buf, 0) > 0)
            ;
        break;
    default:
        while (send(fd, filler, sizeof filler, MSG_NOSIGNAL) > 0)
            ;
    }
}

struct job {
    int fd, port;
};

static void *serve_thread(void *arg)
{
    struct job j = *(struct job *)arg;
    free(arg);
    serve(j.fd, j.port);
    shutdown(j.fd, SHUT_WR);
    char rest[4096];
    while (recv(j.fd, rest, sizeof rest, 0) > 0)
        ;
    close(j.fd);
    return NULL;
}

static size_t answer_dns(unsigned char *m, size_t n)
{
    char name[256] = "", line[300];
    size_t at = 12, len = 0;
    while (at < n && m[at] != 0 && at + m[at] < n && len + m[at] + 1 < sizeof name) {
        memcpy(name + len, m + at + 1, m[at]);
        len += m[at];
        name[len++] = '.';
        at += 1u + m[at];
    }
    name[len > 0 ? len - 1 : 0] = '\0';
    if (at + 5 > n)
        return 0;
    int type = m[at + 1] << 8 | m[at + 2];
    at += 5;
    if (log_fd >= 0) {
        int k = snprintf(line, sizeof line, "%s %d\n", name, type);
        (void)!write(log_fd, line, (size_t)k);
    }
    m[2] = 0x81;
    m[3] = 0x83; /* no such name */
    memset(m + 6, 0, 6);
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) {
        if (strcasecmp(host[i].name, name) != 0)
            continue;
        m[3] = 0x80;
        const char *text = type == 1 ? host[i].v4 : type == 28 ? host[i].v6 : NULL;
        if (text == NULL)
            break;
        size_t size = type == 1 ? 4 : 16;
        const unsigned char head[12] = {0xc0, 12, 0, (unsigned char)type, 0, 1, 0, 0,
                                        0,    60, 0, (unsigned char)size};
        memcpy(m + at, head, sizeof head);
        inet_pton(type == 1 ? AF_INET : AF_INET6, text, m + at + 12);
        at += 12 + size;
        m[7] = 1;
    }
    return at;
}

static int bound(int type, int port)
{
    static const int one = 1, zero = 0;
    struct sockaddr_in6 s = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    int fd = socket(AF_INET6, type | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_IPV6, IPV6_V6ONLY, &zero, sizeof zero) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) < 0 ||
        setsockopt(fd, SOL_IPV6, IPV6_RECVPKTINFO, &one, sizeof one) < 0 ||
        setsockopt(fd, SOL_IPV6, IPV6_FREEBIND, &one, sizeof one) < 0 ||
        bind(fd, (struct sockaddr *)&s, sizeof s) < 0 ||
        (type == SOCK_STREAM && listen(fd, 512) < 0))
        die("a server of the world");
    return fd;
}

/* Answers from the address that was asked. */
static void serve_datagram(int fd, int dns)
{
    unsigned char buf[65536];
    char space[256];
    struct sockaddr_in6 from;
    struct iovec iov = {buf, sizeof buf};
    struct msghdr m = {.msg_name = &from,
                       .msg_namelen = sizeof from,
                       .msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = space,
                       .msg_controllen = sizeof space};
    ssize_t n = recvmsg(fd, &m, 0);
    if (n < 0)
        return;
    iov.iov_len = dns ? answer_dns(buf, (size_t)n) : (size_t)n;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c != NULL; c = CMSG_NXTHDR(&m, c))
        if (c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_PKTINFO)
            ((struct in6_pktinfo *)(void *)CMSG_DATA(c))->ipi6_ifindex = 0;
    sendmsg(fd, &m, 0);
}

static void world(int ready)
{
    static const int port[] = {80, 443, 7, 9, 11};
    enum { TCPS = sizeof port / sizeof *port };
    struct pollfd p[TCPS + 2];
    ip("link set lo up");
    ip("link set world0 up");
    ip("addr add 203.0.113.1/24 dev world0");
    ip("addr add 2001:db8:1::1/64 dev world0 nodad");
    ip("route add local 198.51.100.0/24 dev lo");
    ip("route add local 10.1.0.0/16 dev lo");
    ip("route add local 169.254.0.0/16 dev lo");
    ip("route add local 2001:db8:2::/64 dev lo");
    ip("route add local fd00:1::/64 dev lo");
    for (int i = 0; i < TCPS; i++)
        p[i] = (struct pollfd){bound(SOCK_STREAM, port[i]), POLLIN, 0};
    p[TCPS] = (struct pollfd){bound(SOCK_DGRAM, 7), POLLIN, 0};
    p[TCPS + 1] = (struct pollfd){bound(SOCK_DGRAM, 53), POLLIN, 0};
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        unsetenv("LD_PRELOAD");
        execlp("python3", "python3", "spec/support/tls_world.py", (char *)NULL);
        _exit(127);
    }
    (void)!write(ready, "x", 1);
    close(ready);
    for (;;) {
        poll(p, TCPS + 2, -1);
        for (int i = 0; i < TCPS; i++)
            if ((p[i].revents & POLLIN) != 0) {
                struct job *j = malloc(sizeof *j);
                pthread_t t;
                j->fd = accept(p[i].fd, NULL, NULL);
                j->port = port[i];
                if (j->fd >= 0 && pthread_create(&t, NULL, serve_thread, j) == 0)
                    pthread_detach(t);
            }
        for (int i = TCPS; i < TCPS + 2; i++)
            if ((p[i].revents & POLLIN) != 0)
                serve_datagram(p[i].fd, i == TCPS + 1);
    }
}

/* ---- the machine ---- */

static void enter(void)
{
    char map[64];
    uid_t uid = getuid();
    gid_t gid = getgid();
    if (uid == 0) {
        if (unshare(CLONE_NEWNET | CLONE_NEWNS) < 0)
            die("network namespace");
        return;
    }
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS) < 0)
        die("user namespace");
    put("/proc/self/setgroups", "deny");
    snprintf(map, sizeof map, "%u %u 1", uid, uid);
    put("/proc/self/uid_map", map);
    snprintf(map, sizeof map, "%u %u 1", gid, gid);
    put("/proc/self/gid_map", map);
}

/* Another file in place of one of the machine's. */
static void replace(const char *file, const char *text, size_t n)
{
    char path[] = "/tmp/netlab.XXXXXX", *real = realpath(file, NULL);
    int fd = mkstemp(path);
    if (real == NULL || fd < 0 || write(fd, text, n) < 0 || fchmod(fd, 0644) < 0 ||
        mount(path, real, NULL, MS_BIND, NULL) < 0) {
        unlink(path);
        die(file);
    }
    unlink(path);
    close(fd);
    free(real);
}

static void set_files(void)
{
    static const char resolver[] = "nameserver 203.0.113.1\n",
                      trusted[] = "/etc/ssl/certs/ca-certificates.crt";
    char authority[8192];
    if (mount(NULL, "/", NULL, MS_SLAVE | MS_REC, NULL) < 0)
        die("mounts");
    replace("/etc/resolv.conf", resolver, sizeof resolver - 1);
    int fd = open("spec/support/tls/ca.crt", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, authority, sizeof authority) : -1;
    if (n < 0)
        die("spec/support/tls/ca.crt");
    close(fd);
    if (access(trusted, R_OK) == 0) /* else nobody is trusted here */
        replace(trusted, authority, (size_t)n);
}

int main(int argc, char **argv)
{
    int go[2], ready[2];
    char b, line[96];
    char log[300] = "";
    if (argc < 2)
        return 2;
    if (getenv("SPEC_DIR") != NULL)
        snprintf(log, sizeof log, "%s/questions", getenv("SPEC_DIR"));
    if (log[0] != '\0')
        log_fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    enter();
    keep_capabilities(1);
    set_files();
    if (pipe2(go, O_CLOEXEC) < 0 || pipe2(ready, O_CLOEXEC) < 0)
        die("pipe");
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent || unshare(CLONE_NEWNET) < 0)
            _exit(1);
        (void)!write(ready[1], "u", 1);
        if (read(go[0], &b, 1) != 1)
            _exit(1);
        world(ready[1]);
        _exit(0);
    }
    close(ready[1]);
    if (pid < 0 || read(ready[0], &b, 1) != 1)
        die("the world");
    snprintf(line, sizeof line, "link add host0 type veth peer name world0 netns %d", (int)pid);
    ip("link set lo up");
    ip(line);
    ip("link set host0 up");
    ip("addr add 203.0.113.2/24 dev host0");
    ip("addr add 2001:db8:1::2/64 dev host0 nodad");
    (void)!write(go[1], "g", 1);
    if (read(ready[0], &b, 1) != 1)
        die("the world");
    ip("route add default via 203.0.113.1");
    ip("route add default via 2001:db8:1::1");
    keep_capabilities(0);
    pid_t command = fork();
    if (command == 0) {
        execvp(argv[1], argv + 1);
        perror(argv[1]);
        _exit(127);
    }
    int status = 0;
    while (waitpid(command, &status, 0) < 0 && errno == EINTR)
        ;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    if (log[0] != '\0')
        unlink(log);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
