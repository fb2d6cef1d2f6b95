/* Goes into a sandbox's network and prepares it for a relay: a short-lived process in our memory does
 * (sockets.c says why). Its network belongs to the outer user namespace: nobody inside can change this. */
#include "netplace.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/netlink.h>
#include <linux/sched.h>
#include <net/if.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "birth.h"
#include "netrules.h"
#include "raw.h"

enum { BACKLOG = 256 };

struct job {
    int pidfd; /* -1: of a network of its own */
    const struct sb_netrules *rules;
    struct sb_net_sockets s;
    struct sockaddr_in at4;
    struct sockaddr_in6 at6;
    unsigned char answer[4096];
    const char *volatile step;
    volatile int err;
};

/* Sends one run of messages, of which one is acknowledged. The kernel has answered when write returns. */
static long ask(struct job *j, long fd, const void *msg, size_t len)
{
    long rc = sb_sys(write, fd, msg, len);
    if (rc < 0)
        return rc;
    rc = sb_sys(read, fd, j->answer, sizeof j->answer);
    if (rc < (long)(sizeof(struct nlmsghdr) + sizeof(int)))
        return rc < 0 ? rc : -EPROTO;
    struct nlmsghdr *h = (struct nlmsghdr *)(void *)j->answer;
    return h->nlmsg_type == NLMSG_ERROR ? *(int *)(void *)(j->answer + sizeof *h) : -EPROTO;
}

static long on(long fd, int level, int option)
{
    static const int one = 1;
    return sb_sys(setsockopt, fd, level, option, &one, sizeof one);
}

static int make_routes(struct job *j, bool *v6)
{
    long fd;
    *v6 = true;
    TRY(j, "netlink", fd = sb_sys(socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
    for (int i = 0; i < 4 && *v6; i++) {
        long rc = ask(j, fd, j->rules->route[i], j->rules->route_len[i]);
        if (i >= 2 && rc < 0) /* no IPv6 here: nothing of it goes anywhere */
            *v6 = false;
        else
            TRY(j, i % 2 == 0 ? "address" : "route", rc);
    }
    sb_sys(close, fd);
    TRY(j, "netlink",
        j->s.kept = (int)sb_sys(socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER));
    TRY(j, "rules", ask(j, j->s.kept, j->rules->rules, j->rules->rules_len));
    return 0;
}

static int make_sockets(struct job *j, int family, int *tcp, int *udp, int *raw)
{
    bool v6 = family == AF_INET6;
    const void *at = v6 ? (void *)&j->at6 : (void *)&j->at4;
    size_t n = v6 ? sizeof j->at6 : sizeof j->at4;
    int level = v6 ? SOL_IPV6 : SOL_IP;
    int transparent = v6 ? IPV6_TRANSPARENT : IP_TRANSPARENT;
    TRY(j, "listener",
        *tcp = (int)sb_sys(socket, family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    TRY(j, "listener", on(*tcp, level, transparent));
    TRY(j, "listener", on(*tcp, SOL_SOCKET, SO_REUSEADDR));
    TRY(j, "listener", v6 ? on(*tcp, SOL_IPV6, IPV6_V6ONLY) : 0);
    TRY(j, "listener", sb_sys(bind, *tcp, at, n));
    TRY(j, "listener", sb_sys(listen, *tcp, BACKLOG));
    TRY(j, "datagrams",
        *udp = (int)sb_sys(socket, family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    TRY(j, "datagrams", on(*udp, level, transparent));
    TRY(j, "datagrams", v6 ? on(*udp, SOL_IPV6, IPV6_V6ONLY) : 0);
    TRY(j, "datagrams", on(*udp, level, v6 ? IPV6_RECVORIGDSTADDR : IP_RECVORIGDSTADDR));
    TRY(j, "datagrams", sb_sys(bind, *udp, at, n));
    /* Answers come from whoever was asked, which only a raw socket can say. */
    TRY(j, "raw socket",
        *raw = (int)sb_sys(socket, family, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_RAW));
    return 0;
}

static int make_network(struct job *j)
{
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    long fd;
    TRY(j, "network", sb_sys(unshare, CLONE_NEWNET));
    TRY(j, "loopback", fd = sb_sys(socket, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    TRY(j, "loopback", sb_sys(ioctl, fd, SIOCSIFFLAGS, &lo));
    TRY(j, "loopback", sb_sys(close, fd));
    return 0;
}

static int make(void *arg)
{
    struct job *j = arg;
    bool v6;
    if (j->pidfd >= 0)
        TRY(j, "enter", sb_sys(setns, j->pidfd, CLONE_NEWNET));
    else if (make_network(j) != 0)
        return 1;
    if (make_routes(j, &v6) != 0 ||
        make_sockets(j, AF_INET, &j->s.tcp4, &j->s.udp4, &j->s.raw4) != 0 ||
        (v6 && make_sockets(j, AF_INET6, &j->s.tcp6, &j->s.udp6, &j->s.raw6) != 0))
        return 1;
    j->err = 0;
    return 0;
}

void sb_netplace_close(struct sb_net_sockets *s)
{
    sb_close(&s->tcp4);
    sb_close(&s->udp4);
    sb_close(&s->raw4);
    sb_close(&s->tcp6);
    sb_close(&s->udp6);
    sb_close(&s->raw6);
    sb_close(&s->kept);
}

int sb_netplace_make(int pidfd, struct sb_net_sockets *s, struct sb_failure *f)
{
    static char stack[SB_STACK] __attribute__((aligned(16)));
    static const unsigned char prefix[16] = SB_NET_PREFIX6;
    static struct job j;
    struct clone_args args = {
        .flags = CLONE_VM | CLONE_VFORK | CLONE_FILES | CLONE_CLEAR_SIGHAND,
        .stack = (uint64_t)(uintptr_t)stack,
        .stack_size = sizeof stack,
    };
    j = (struct job){.pidfd = pidfd, .rules = sb_netrules(), .step = "enter", .err = EINTR};
    j.s = (struct sb_net_sockets){-1, -1, -1, -1, -1, -1, -1};
    j.at4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(SB_NET_PORT)};
    j.at4.sin_addr.s_addr = htonl(SB_NET_RELAY4);
    j.at6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(SB_NET_PORT)};
    memcpy(&j.at6.sin6_addr, prefix, sizeof prefix);
    j.at6.sin6_addr.s6_addr[15] = SB_NET_RELAY;
    long pid = sb_raw_clone3(&args, sizeof args, make, &j);
    if (pid < 0)
        j.err = (int)-pid;
    else
        while (waitid(P_PID, (id_t)pid, &(siginfo_t){0}, WEXITED | __WALL) < 0 && errno == EINTR)
            ;
    *s = j.s;
    if (j.err == 0)
        return 0;
    sb_netplace_close(s);
    if (strcmp(j.step, "rules") == 0 && (j.err == ENOENT || j.err == EOPNOTSUPP))
        return sb_failed(f, "Unsupported", j.err, "network",
                         "this kernel has no transparent proxying (nf_tables, nft_tproxy)");
    return sb_failed(f, NULL, j.err, "network", "%s", j.step);
}

bool sb_netplace_works(void)
{
    static enum { UNKNOWN, WORKS, FAILS } state;
    struct sb_net_sockets s;
    struct sb_failure f;
    if (state == UNKNOWN) {
        state = sb_netplace_make(-1, &s, &f) == 0 ? WORKS : FAILS;
        if (state == WORKS)
            sb_netplace_close(&s);
    }
    return state == WORKS;
}
