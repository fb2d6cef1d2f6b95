/* UDP: datagrams of the sandbox's programs, by flows; and the answers of the resolver. An answer comes from
 * whoever was asked: only a raw socket can say that. */
#include <errno.h>
#include <netinet/icmp6.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>
#include <netinet/ip_icmp.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../supervisor/netrules.h"
#include "dns.h"
#include "relay.h"
#include "upstream.h"
#include "watch.h"

enum { FLOWS = 256, IDLE_MS = 60000, TURNS = 16, QUESTIONS = 64, DNS_PORT = 53, WORLD_TTL = 64 };
enum { DATAGRAM_MAX = 65507 };

/* Both ends of a program's datagrams. */
struct ends {
    struct sb_addr from, to;
    unsigned int from_port, to_port;
};

struct flow {
    struct sb_watch out; /* fd < 0: free */
    struct ends ends;
    int64_t used;
};

/* Asked of the resolver and not answered. */
struct question {
    bool busy;
    struct ends ends;
    struct sb_question q;
    size_t len;
    unsigned char query[SB_DNS_MAX];
};

static struct {
    struct sb_watch in[2];
    struct flow flow[FLOWS];
    struct question question[QUESTIONS];
} udp;

static unsigned char datagram[65536], packet[65536 + 128]; /* with its heads */

/* ---- to the program ---- */

static uint32_t sum(const void *data, size_t n, uint32_t s)
{
    const unsigned char *p = data;
    for (; n > 1; p += 2, n -= 2)
        s += (uint32_t)p[0] << 8 | p[1];
    return n > 0 ? s + ((uint32_t)p[0] << 8) : s;
}

static uint16_t checksum(uint32_t s)
{
    while (s >> 16 != 0)
        s = (s & 0xffff) + (s >> 16);
    return htons((uint16_t)~s);
}

/* Of a packet with its pseudo header. */
static uint16_t checksum_of(const struct sb_addr *from, const struct sb_addr *to, int protocol,
                            const void *data, size_t n)
{
    size_t skip = sb_addr_is4(from) ? 12 : 0;
    uint32_t s = sum(from->b + skip, 16 - skip, (uint32_t)protocol + (uint32_t)n);
    return checksum(sum(data, n, sum(to->b + skip, 16 - skip, s)));
}

/* Writes the head for `n` bytes that follow: its length. */
static size_t put_head(unsigned char *out, const struct sb_addr *from, const struct sb_addr *to,
                       int protocol, size_t n)
{
    if (sb_addr_is4(from)) {
        struct ip h = {.ip_v = 4, .ip_hl = 5, .ip_ttl = WORLD_TTL, .ip_p = (uint8_t)protocol};
        h.ip_len = htons((uint16_t)(sizeof h + n));
        memcpy(&h.ip_src, from->b + 12, 4);
        memcpy(&h.ip_dst, to->b + 12, 4);
        h.ip_sum = checksum(sum(&h, sizeof h, 0));
        memcpy(out, &h, sizeof h);
        return sizeof h;
    }
    struct ip6_hdr h = {.ip6_nxt = (uint8_t)protocol, .ip6_hlim = WORLD_TTL};
    h.ip6_vfc = 6 << 4;
    h.ip6_plen = htons((uint16_t)n);
    memcpy(&h.ip6_src, from->b, 16);
    memcpy(&h.ip6_dst, to->b, 16);
    memcpy(out, &h, sizeof h);
    return sizeof h;
}

static void send_raw(const struct sb_addr *to, size_t n)
{
    union sb_sockaddr s;
    sb_sockaddr_make(&s, to, 0);
    int fd = sb_addr_is4(to) ? SB_RELAY_RAW4 : SB_RELAY_RAW6;
    (void)!sendto(fd, packet, n, MSG_DONTWAIT, &s.any, sb_sockaddr_len(&s)); /* else it is lost */
}

static size_t put_udp(unsigned char *out, unsigned int from, unsigned int to, size_t n)
{
    struct udphdr h = {.uh_sport = htons((uint16_t)from),
                       .uh_dport = htons((uint16_t)to),
                       .uh_ulen = htons((uint16_t)(sizeof h + n))};
    memcpy(out, &h, sizeof h);
    return sizeof h;
}

static void answer(const struct ends *e, const void *data, size_t n)
{
    if (n > DATAGRAM_MAX)
        return;
    size_t head = put_head(packet, &e->to, &e->from, IPPROTO_UDP, sizeof(struct udphdr) + n);
    size_t whole = head + put_udp(packet + head, e->to_port, e->from_port, n);
    memcpy(packet + whole, data, n);
    whole += n;
    uint16_t check = checksum_of(&e->to, &e->from, IPPROTO_UDP, packet + head, whole - head);
    if (check == 0)
        check = 0xffff;
    memcpy(packet + head + offsetof(struct udphdr, uh_sum), &check, sizeof check);
    send_raw(&e->from, whole);
}

/* What a router would say of a datagram: `refused` by whoever is there, else on the way. */
static void bounce(const struct ends *e, bool refused)
{
    bool v4 = sb_addr_is4(&e->to);
    unsigned char icmp[8] = {0}, quote[sizeof(struct ip6_hdr) + sizeof(struct udphdr)];
    icmp[0] = v4 ? ICMP_DEST_UNREACH : ICMP6_DST_UNREACH;
    if (v4)
        icmp[1] = refused ? ICMP_PORT_UNREACH : ICMP_PKT_FILTERED;
    else
        icmp[1] = refused ? ICMP6_DST_UNREACH_NOPORT : ICMP6_DST_UNREACH_ADMIN;
    size_t n = put_head(quote, &e->from, &e->to, IPPROTO_UDP, sizeof(struct udphdr));
    n += put_udp(quote + n, e->from_port, e->to_port, 0);
    int protocol = v4 ? IPPROTO_ICMP : IPPROTO_ICMPV6;
    size_t head = put_head(packet, &e->to, &e->from, protocol, sizeof icmp + n);
    memcpy(packet + head, icmp, sizeof icmp);
    memcpy(packet + head + sizeof icmp, quote, n);
    n += sizeof icmp;
    uint16_t check = v4 ? checksum(sum(packet + head, n, 0))
                        : checksum_of(&e->to, &e->from, protocol, packet + head, n);
    memcpy(packet + head + 2, &check, sizeof check);
    send_raw(&e->from, head + n);
}

static void refuse(const struct ends *e, sb_refusal why)
{
    char text[INET6_ADDRSTRLEN];
    sb_addr_text(&e->to, text);
    sb_relay_denied("udp", text, e->to_port, why);
    bounce(e, false);
}

/* ---- flows ---- */

static void end_flow(struct flow *f)
{
    if (f->out.fd < 0)
        return;
    sb_watch_drop(&f->out);
    sb_watch_timed(-1);
}

static void flow_ready(struct sb_watch *w, uint32_t events)
{
    struct flow *f = SB_WATCHED(w, struct flow, out);
    (void)events;
    for (int i = 0; i < TURNS && f->out.fd >= 0; i++) {
        ssize_t n = recv(f->out.fd, datagram, sizeof datagram, 0);
        if (n < 0) {
            if (errno == EAGAIN)
                return;
            bounce(&f->ends, errno == ECONNREFUSED);
            end_flow(f);
            return;
        }
        f->used = sb_watch_now();
        sb_relay_counts->received += (uint64_t)n;
        answer(&f->ends, datagram, (size_t)n);
    }
}

static struct flow *find_flow(const struct ends *e)
{
    for (struct flow *f = udp.flow; f < udp.flow + FLOWS; f++)
        if (f->out.fd >= 0 && memcmp(&f->ends, e, sizeof *e) == 0)
            return f;
    return NULL;
}

static struct flow *make_flow(const struct ends *e)
{
    struct flow *oldest = udp.flow;
    for (struct flow *f = udp.flow; f < udp.flow + FLOWS; f++)
        if (oldest->out.fd >= 0 && (f->out.fd < 0 || f->used < oldest->used))
            oldest = f;
    end_flow(oldest);
    union sb_sockaddr s;
    sb_sockaddr_make(&s, &e->to, e->to_port);
    int fd = socket(s.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return NULL;
    if (connect(fd, &s.any, sb_sockaddr_len(&s)) < 0) {
        close(fd);
        return NULL;
    }
    if (sb_watch_add(&oldest->out, fd, EPOLLIN, flow_ready) < 0)
        return NULL;
    oldest->ends = *e;
    sb_watch_timed(1);
    return oldest;
}

static void pass_on(const struct ends *e, struct flow *f, size_t n)
{
    if (f == NULL) {
        bounce(e, false); /* no way there */
        return;
    }
    f->used = sb_watch_now();
    sb_relay_counts->sent += n;
    if (send(f->out.fd, datagram, n, 0) < 0 && errno == ECONNREFUSED) {
        bounce(e, true);
        end_flow(f);
    }
}

/* ---- the resolver ---- */

static void say(const struct question *k, int rcode, const struct sb_addresses *found)
{
    unsigned char out[SB_DNS_MAX];
    struct sb_addresses none = {.rcode = rcode};
    size_t n = sb_dns_make_answer(out, &k->q, k->query, found != NULL ? found : &none);
    answer(&k->ends, out, n);
}

/* Addresses that would be refused are not worth knowing. */
static void say_allowed(const struct question *k, struct sb_addresses *a)
{
    sb_refusal why = NULL;
    int n = 0, before = a->n;
    for (int i = 0; i < before; i++) {
        sb_refusal no = sb_may_reach(&a->at[i], true);
        if (no == NULL)
            a->at[n++] = a->at[i];
        else
            why = no;
    }
    a->n = n;
    if (why != NULL && n == 0)
        sb_relay_denied("dns", k->q.name, DNS_PORT, why);
    say(k, 0, a);
}

static void question_answered(void *arg, const unsigned char *in, size_t n)
{
    struct question *k = arg;
    struct sb_addresses a;
    k->busy = false;
    if (in == NULL)
        say(k, SB_DNS_FAILED, NULL);
    else if (sb_relay_policy()->mode == SB_POLICY_ALLOW)
        answer(&k->ends, in, n);
    else if (sb_dns_read_answer(&a, &k->q, in, n))
        say_allowed(k, &a);
    else
        say(k, SB_DNS_FAILED, NULL);
}

static void ask(const struct ends *e, size_t n)
{
    const struct sb_policy *p = sb_relay_policy();
    struct question *k = udp.question;
    while (k < udp.question + QUESTIONS && k->busy)
        k++;
    if (k == udp.question + QUESTIONS || !sb_dns_read_query(&k->q, datagram, n))
        return; /* asked again, or not worth an answer */
    k->ends = *e;
    k->len = n;
    memcpy(k->query, datagram, n);
    if (p->mode == SB_POLICY_RULES && !sb_policy_name(p, k->q.name, strlen(k->q.name))) {
        sb_relay_denied("dns", k->q.name, DNS_PORT, "not allowed");
        say(k, SB_DNS_NO_NAME, NULL); /* which every program takes for an answer */
        return;
    }
    if (p->mode == SB_POLICY_RULES) {
        if (k->q.type != SB_DNS_A && k->q.type != SB_DNS_AAAA) {
            say(k, SB_DNS_OK, NULL); /* nothing but addresses */
            return;
        }
        /* Written anew: no bit of the program's own goes out but a listed name. */
        n = sb_dns_make_query(datagram, k->q.id, k->q.name, k->q.type);
    }
    k->busy = sb_ask(datagram, n, question_answered, k);
    if (!k->busy)
        say(k, SB_DNS_FAILED, NULL);
}

/* ---- from the program ---- */

/* A proxy carries none, and nothing goes around it. */
static sb_refusal may_go(const struct sb_addr *to)
{
    sb_refusal why = sb_may_reach(to, false);
    return why == NULL && sb_upstream_on() ? "the upstream proxy carries TCP only" : why;
}

static void handle(const struct ends *e, size_t n)
{
    const struct sb_policy *p = sb_relay_policy();
    struct flow *f = find_flow(e);
    if (f != NULL) { /* allowed before, and still (sb_udp_recheck) */
        pass_on(e, f, n);
        return;
    }
    bool resolver = sb_addr_is_relay(&e->to, SB_NET_RESOLVER);
    sb_refusal why = resolver ? "not an address to reach" : may_go(&e->to);
    if (why == NULL)
        pass_on(e, make_flow(e), n);
    else if (e->to_port == DNS_PORT && sb_policy_opens(p) &&
             (resolver || !sb_policy_denied(p, &e->to)))
        ask(e, n);
    else
        refuse(e, why);
}

/* Where it was sent to is said beside it. */
static bool receive(int fd, struct ends *e, ssize_t *n)
{
    union sb_sockaddr from, to;
    char space[CMSG_SPACE(sizeof(struct sockaddr_in6))] __attribute__((aligned(8)));
    struct iovec iov = {datagram, sizeof datagram};
    struct msghdr m = {.msg_name = &from,
                       .msg_namelen = sizeof from,
                       .msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = space,
                       .msg_controllen = sizeof space};
    memset(e, 0, sizeof *e);
    to.any.sa_family = AF_UNSPEC;
    *n = recvmsg(fd, &m, 0);
    if (*n < 0)
        return false;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c != NULL; c = CMSG_NXTHDR(&m, c)) {
        if (c->cmsg_level == SOL_IP && c->cmsg_type == IP_RECVORIGDSTADDR)
            memcpy(&to.in4, CMSG_DATA(c), sizeof to.in4);
        if (c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_RECVORIGDSTADDR)
            memcpy(&to.in6, CMSG_DATA(c), sizeof to.in6);
    }
    if (to.any.sa_family == AF_UNSPEC)
        return false;
    sb_sockaddr_read(&from, &e->from, &e->from_port);
    sb_sockaddr_read(&to, &e->to, &e->to_port);
    return true;
}

static void in_ready(struct sb_watch *w, uint32_t events)
{
    struct ends e;
    ssize_t n;
    (void)events;
    for (int i = 0; i < TURNS; i++) {
        if (receive(w->fd, &e, &n))
            handle(&e, (size_t)n);
        else if (n < 0)
            return;
    }
}

void sb_udp_recheck(void)
{
    for (struct flow *f = udp.flow; f < udp.flow + FLOWS; f++)
        if (f->out.fd >= 0 && may_go(&f->ends.to) != NULL)
            end_flow(f);
    for (struct question *k = udp.question; k < udp.question + QUESTIONS; k++)
        if (k->busy) {
            sb_ask_cancel(k);
            k->busy = false;
        }
}

void sb_udp_tick(int64_t now)
{
    for (struct flow *f = udp.flow; f < udp.flow + FLOWS; f++)
        if (f->out.fd >= 0 && f->used + IDLE_MS <= now)
            end_flow(f);
}

int sb_udp_start(void)
{
    static const int fd[2] = {SB_RELAY_UDP4, SB_RELAY_UDP6};
    for (struct flow *f = udp.flow; f < udp.flow + FLOWS; f++)
        f->out.fd = -1;
    for (int i = 0; i < 2; i++)
        if (sb_watch_add(&udp.in[i], fd[i], EPOLLIN, in_ready) < 0 && i == 0)
            return -1;
    return 0;
}
