/* Connections through a proxy: the relay has resolved and checked where they go as ever, and asks the proxy for that
 * address. Nothing that the proxy says before it has agreed reaches the program. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "tcp.h"
#include "upstream.h"

enum { ASK_MS = 10000, ANSWER_MAX = 8192 };

static const char silent[] = "the upstream proxy does not answer";

static struct sb_upstream upstream;

bool sb_upstream_on(void)
{
    return upstream.on;
}

bool sb_upstream_take(const struct sb_reader *fields)
{
    static struct sb_upstream next;
    struct sb_reader walk = *fields;
    struct sb_field_view v;
    explicit_bzero(&next, sizeof next);
    while (sb_read_field(&walk, &v) == 1)
        if (v.tag == SB_F_NET_INJECT && v.len > 0 && v.data[0] == 'u')
            sb_upstream_read(&next, (const char *)v.data + 1, v.len - 1);
    bool other = next.port != upstream.port || strcmp(next.name, upstream.name) != 0 ||
                 strcmp(next.login, upstream.login) != 0 ||
                 memcmp(next.at.b, upstream.at.b, sizeof next.at.b) != 0;
    memcpy(&upstream, &next, sizeof next);
    explicit_bzero(&next, sizeof next);
    return other;
}

/* ---- to the proxy ---- */

static void found(void *arg, const unsigned char *answer, size_t n);

static void find(struct sb_tcp *c, int type)
{
    unsigned char query[SB_DNS_MAX];
    c->via_type = type;
    c->via_tried = 0;
    c->via.n = 0;
    size_t n = sb_dns_make_query(query, c->id, upstream.name, (uint16_t)type);
    sb_tcp_set(c, FINDING, 0);
    sb_tcp_interest(c);
    if (!sb_ask(query, n, found, c)) {
        sb_tcp_set(c, DIALING, 0);
        sb_tcp_refuse(c, "no resolver answers");
    }
}

void sb_upstream_next(struct sb_tcp *c)
{
    while (c->via_tried < c->via.n)
        if (sb_tcp_connect(c, &c->via.at[c->via_tried++], upstream.port) == 0)
            return;
    if (c->via_type == SB_DNS_A)
        find(c, SB_DNS_AAAA);
    else
        sb_tcp_refuse(c, silent);
}

static void found(void *arg, const unsigned char *answer, size_t n)
{
    struct sb_tcp *c = arg;
    struct sb_question q = {.id = c->id, .type = (uint16_t)c->via_type};
    memcpy(q.name, upstream.name, sizeof q.name);
    sb_tcp_set(c, DIALING, 0); /* no question is under way any more */
    if (answer == NULL || !sb_dns_read_answer(&c->via, &q, answer, n))
        c->via.n = 0;
    sb_upstream_next(c);
}

void sb_upstream_dial(struct sb_tcp *c)
{
    c->proxied = true;
    if (upstream.name[0] != '\0') {
        find(c, SB_DNS_A);
        return;
    }
    c->via = (struct sb_addresses){.n = 1};
    c->via.at[0] = upstream.at;
    c->via_type = SB_DNS_AAAA; /* there are no others */
    c->via_tried = 0;
    sb_upstream_next(c);
}

/* ---- what is said with it ---- */

void sb_upstream_ask(struct sb_tcp *c)
{
    static char head[sizeof upstream.login + 256];
    char text[INET6_ADDRSTRLEN], to[INET6_ADDRSTRLEN + 16];
    const bool login = upstream.login[0] != '\0';
    sb_addr_text(&c->dialed, text);
    snprintf(to, sizeof to, sb_addr_is4(&c->dialed) ? "%s:%u" : "[%s]:%u", text, c->port);
    int n =
        snprintf(head, sizeof head, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n%s%s%s\r\n", to, to,
                 login ? "Proxy-Authorization: Basic " : "", upstream.login, login ? "\r\n" : "");
    c->heard = c->heard_end = 0;
    sb_tcp_set(c, ASKING, ASK_MS);
    ssize_t done = send(c->out.fd, head, (size_t)n, MSG_NOSIGNAL);
    explicit_bzero(head, sizeof head);
    if (done != n) /* a new socket takes more than that */
        sb_tcp_refuse(c, silent);
    else
        sb_tcp_interest(c);
}

/* The next byte of the answer's head. False: it is none. */
static bool hear(struct sb_tcp *c, char b)
{
    static const char line[] = "HTTP/1.? ??? ", end[] = "\r\n\r\n";
    const size_t at = c->heard++;
    if (at < 8 ? (line[at] != '?' && b != line[at]) : at == 8 && b != ' ')
        return false;
    if (at >= 9 && at < 12) {
        if (b < '0' || b > '9')
            return false;
        c->status[at - 9] = b;
    }
    if (at == 12 && b != ' ' && b != '\r')
        return false;
    if (b == '\0' || c->heard >= ANSWER_MAX)
        return false;
    c->heard_end = b == end[c->heard_end] ? c->heard_end + 1 : b == '\r';
    return true;
}

static sb_refusal said_no(const struct sb_tcp *c)
{
    if (memcmp(c->status, "407", 3) == 0)
        return "the upstream proxy refuses who logs in";
    if (c->status[0] == '5')
        return "the upstream proxy cannot reach it";
    if (c->status[0] == '4')
        return "the upstream proxy refuses it";
    return "the upstream proxy does not do what is asked";
}

void sb_upstream_hear(struct sb_tcp *c)
{
    /* What follows the head is the server's: it stays where it is. */
    ssize_t n = recv(c->out.fd, sb_piece, ANSWER_MAX, MSG_PEEK);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    ssize_t used = 0;
    bool good = true;
    while (good && used < n && c->heard_end < 4)
        good = hear(c, sb_piece[used++]);
    if (n <= 0 || recv(c->out.fd, sb_piece, (size_t)used, 0) != used)
        sb_tcp_refuse(c, silent);
    else if (!good)
        sb_tcp_refuse(c, "the upstream proxy speaks no HTTP that we do");
    else if (c->heard_end == 4 && c->status[0] == '2')
        sb_tcp_open(c);
    else if (c->heard_end == 4 && c->status[0] == '5' && c->tried < c->found.n) {
        sb_watch_drop(&c->out);
        sb_tcp_dial_next(c);
    } else if (c->heard_end == 4)
        sb_tcp_refuse(c, said_no(c));
}

void sb_upstream_late(struct sb_tcp *c)
{
    sb_tcp_refuse(c, silent);
}
