/* Sockets, and the network's configuration. What a policy lets through is network_spec.lua's. */
#include "probe.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void families(const char *arg)
{
    static const int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_RAW, SOCK_SEQPACKET};
    static const struct {
        int rooms;
        const char *what;
        int family, type, protocol;
    } each[] = {{PLAIN, "packet", AF_PACKET, SOCK_RAW, 0},
                {PLAIN, "raw IPv4", AF_INET, SOCK_RAW, IPPROTO_TCP},
                {PLAIN, "raw ICMP", AF_INET, SOCK_RAW, IPPROTO_ICMP},
                {PLAIN, "raw IPv6", AF_INET6, SOCK_RAW, IPPROTO_TCP},
                {0, "vsock", 40, SOCK_STREAM, 0}, /* not every kernel has it, nor the ones below */
                {0, "SCTP", AF_INET, SOCK_STREAM, 132},
                {0, "SCTP, one to many", AF_INET6, SOCK_SEQPACKET, 132},
                {0, "DCCP", AF_INET, 6, 33},
                {0, "MPTCP", AF_INET, SOCK_STREAM, 262},
                {0, "UDP-Lite", AF_INET, SOCK_DGRAM, 136},
                {0, "L2TP", AF_INET, SOCK_DGRAM, 115},
                {0, "SMC", AF_INET, SOCK_STREAM, 256},
                {PLAIN, "netfilter", AF_NETLINK, SOCK_RAW, 12},
                {PLAIN, "audit", AF_NETLINK, SOCK_RAW, 9},
                {PLAIN, "kernel events", AF_NETLINK, SOCK_RAW, 15},
                {PLAIN, "sockets of everybody", AF_NETLINK, SOCK_RAW, 4},
                {PLAIN, "generic netlink", AF_NETLINK, SOCK_RAW, 16}};
    (void)arg;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        attack(each[i].rooms, each[i].what, socket(each[i].family, each[i].type, each[i].protocol));
    for (int family = 0; family < 46; family++) {
        if (family == AF_UNIX || family == AF_INET || family == AF_INET6 || family == AF_NETLINK)
            continue;
        for (size_t i = 0; i < sizeof types / sizeof *types; i++)
            if (socket(family, types[i], 0) >= 0)
                worked("family %d, type %d", family, types[i]);
    }
    for (int protocol = 1; protocol < 23; protocol++)
        if (socket(AF_NETLINK, SOCK_RAW, protocol) >= 0)
            worked("netlink protocol %d", protocol);
}

static int route_request(int type, const void *body, size_t len)
{
    struct {
        struct nlmsghdr h;
        char body[64];
    } req = {.h = {.nlmsg_type = (uint16_t)type,
                   .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE}};
    struct {
        struct nlmsghdr h;
        struct nlmsgerr e;
        char rest[256];
    } ans;
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    memcpy(req.body, body, len);
    req.h.nlmsg_len = (uint32_t)(NLMSG_HDRLEN + len);
    if (fd < 0 || send(fd, &req, req.h.nlmsg_len, 0) < 0 || recv(fd, &ans, sizeof ans, 0) < 0) {
        close(fd);
        return -1;
    }
    close(fd);
    errno = -ans.e.error;
    return ans.e.error == 0 ? 0 : -1;
}

static void routes(const char *arg)
{
    struct ifinfomsg up = {.ifi_index = 1, .ifi_flags = IFF_UP, .ifi_change = IFF_UP};
    struct ifinfomsg down = {.ifi_index = 1, .ifi_change = IFF_UP};
    struct {
        struct ifaddrmsg a;
        struct rtattr h;
        uint32_t ip;
    } address = {{AF_INET, 32, 0, 0, 1}, {8, IFA_LOCAL}, htonl(0x0a000001)};
    struct {
        struct rtmsg r;
        struct rtattr h;
        uint32_t oif;
    } route = {{.rtm_family = AF_INET,
                .rtm_table = RT_TABLE_MAIN,
                .rtm_protocol = RTPROT_BOOT,
                .rtm_scope = RT_SCOPE_LINK,
                .rtm_type = RTN_UNICAST},
               {8, RTA_OIF},
               1};
    struct ifreq lo = {.ifr_name = "lo"};
    char table[84] = "filter";
    socklen_t len = sizeof table;
    (void)arg;
    attack(PLAIN, "lo up", route_request(RTM_SETLINK, &up, sizeof up));
    attack(PLAIN, "an address", route_request(RTM_NEWADDR, &address, sizeof address));
    attack(PLAIN, "a route", route_request(RTM_NEWROUTE, &route, sizeof route));
    attack(PLAIN, "lo down", route_request(RTM_SETLINK, &down, sizeof down));
    attack(PLAIN, "lo down by ioctl", ioctl(socket(AF_INET, SOCK_DGRAM, 0), SIOCSIFFLAGS, &lo));
    attack(0, "the packet filter",
           getsockopt(socket(AF_INET, SOCK_STREAM, 0), IPPROTO_IP, 64 /* IPT_SO_GET_INFO */, table,
                      &len));
    attack(PLAIN, "a transparent socket",
           setsockopt(socket(AF_INET, SOCK_STREAM, 0), IPPROTO_IP, 19 /* IP_TRANSPARENT */,
                      &(int){1}, sizeof(int)));
    attack(
        PLAIN, "a mark",
        setsockopt(socket(AF_INET, SOCK_STREAM, 0), SOL_SOCKET, SO_MARK, &(int){1}, sizeof(int)));
}

static int try_connect(int type, const char *ip, int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0), result;
    inet_pton(AF_INET, ip, &at.sin_addr);
    result = connect(fd, (struct sockaddr *)&at, sizeof at);
    if (result == 0 && type == SOCK_DGRAM)
        result = (int)send(fd, "x", 1, 0);
    close(fd);
    return result;
}

/* argument: a port somebody listens on on the host's loopback */
static void outside(const char *arg)
{
    static const char *const six[] = {"2001:4860:4860::8888", "::ffff:8.8.8.8", "::ffff:127.0.0.1",
                                      "64:ff9b::7f00:1"};
    int port = arg != NULL ? (int)strtol(arg, NULL, 10) : 22;
    attack(HOST, "the host's loopback", try_connect(SOCK_STREAM, "127.0.0.1", port));
    attack(0, "the host's loopback by another name", try_connect(SOCK_STREAM, "127.1.2.3", port));
    attack(HOST, "the host's loopback by 0", try_connect(SOCK_STREAM, "0.0.0.0", port));
    if (room != INSIDE)
        return; /* the rest would leave the machine */
    attack(0, "the metadata address", try_connect(SOCK_STREAM, "169.254.169.254", 80));
    attack(0, "a public address", try_connect(SOCK_STREAM, "8.8.8.8", 53));
    attack(0, "UDP", try_connect(SOCK_DGRAM, "8.8.8.8", 53));
    attack(0, "a private address", try_connect(SOCK_STREAM, "10.0.0.1", 80));
    attack(0, "the resolver of sandboxes", try_connect(SOCK_DGRAM, "192.0.0.1", 53));
    for (size_t i = 0; i < sizeof six / sizeof *six; i++) {
        struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
        inet_pton(AF_INET6, six[i], &at.sin6_addr);
        attack(0, six[i],
               connect(socket(AF_INET6, SOCK_STREAM, 0), (struct sockaddr *)&at, sizeof at));
    }
}

void listen_on_host(void)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    socklen_t len = sizeof in;
    int inet = socket(AF_INET, SOCK_STREAM, 0), local = socket(AF_UNIX, SOCK_STREAM, 0);
    int n = snprintf(un.sun_path + 1, sizeof un.sun_path - 1, "sandbar-spec-%d", (int)getpid());
    struct pollfd reader = {1, 0, 0};
    if (bind(inet, (struct sockaddr *)&in, sizeof in) != 0 || listen(inet, 64) != 0 ||
        getsockname(inet, (struct sockaddr *)&in, &len) != 0 ||
        bind(local, (struct sockaddr *)&un,
             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) != 0 ||
        listen(local, 64) != 0)
        cannot("sockets");
    printf("%d %s\n", ntohs(in.sin_port), un.sun_path + 1);
    fflush(stdout);
    while (poll(&reader, 1, 60000) < 0 && errno == EINTR)
        continue;
    exit(0);
}

const struct probe network_probes[] = {{"families", PLAIN, families},
                                       {"routes", PLAIN, routes},
                                       {"outside", HOST, outside},
                                       {NULL, 0, NULL}};
