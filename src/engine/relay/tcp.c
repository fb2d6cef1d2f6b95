/* TCP: accepts what the sandbox's programs connect to, decides, and dials. */
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../supervisor/netrules.h"
#include "tcp.h"
#include "inject.h"
#include "tls.h"
#include "upstream.h"

enum {
    CONNS = 1024,
    ACCEPTS = 16,
    SNIFF_MS = 10000,
    DIAL_MS = 15000,
    HTTP_PORT = 80,
    TLS_PORT = 443,
    DNS_PORT = 53,
};

static struct {
    struct sb_tcp *first;
    int count, most;
    struct sb_watch listener[2];
} tcp;

int sb_tcp_count(void)
{
    return tcp.count;
}

void sb_tcp_set(struct sb_tcp *c, enum sb_tcp_state state, int64_t patience_ms)
{
    int64_t due = patience_ms > 0 ? sb_watch_now() + patience_ms : 0;
    sb_watch_timed((due != 0) - (c->due != 0));
    c->due = due;
    c->state = state;
}

static void reset(struct sb_watch *w)
{
    static const struct linger now = {1, 0};
    if (w->fd >= 0)
        setsockopt(w->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

struct sb_tcp *sb_tcp_handed(uint64_t serial)
{
    struct sb_tcp *c = tcp.first;
    while (c != NULL && (c->state != HANDED || c->serial != serial))
        c = c->next;
    return c;
}

void sb_tcp_drop(struct sb_tcp *c, bool hard)
{
    if (c->state == HANDED) { /* somebody else has them open as well */
        shutdown(c->in.fd, SHUT_RDWR);
        shutdown(c->out.fd, SHUT_RDWR);
    }
    if (hard) {
        reset(&c->in);
        reset(&c->out);
    }
    if (c->state == RESOLVING || c->state == FINDING)
        sb_ask_cancel(c);
    sb_tcp_set(c, c->state, 0);
    sb_watch_drop(&c->in);
    sb_watch_drop(&c->out);
    sb_tcp_forget(c, &c->up);
    sb_tcp_forget(c, &c->down);
    sb_tcp_wipe(c, c->head, c->head_len);
    free(c->head);
    *c->link = c->next;
    if (c->next != NULL)
        c->next->link = c->link;
    tcp.count--;
    sb_watch_bury(c);
}

void sb_tcp_refuse(struct sb_tcp *c, sb_refusal why)
{
    char text[INET6_ADDRSTRLEN];
    sb_addr_text(&c->to, text);
    sb_relay_denied("tcp", c->name[0] != '\0' ? c->name : text, c->port, why);
    sb_tcp_drop(c, true);
}

/* ---- dialing ---- */

static void out_ready(struct sb_watch *w, uint32_t events);

/* What comes in pieces has been waited for already. */
static void no_delay(int fd)
{
    static const int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

int sb_tcp_connect(struct sb_tcp *c, const struct sb_addr *to, unsigned int port)
{
    union sb_sockaddr s;
    sb_sockaddr_make(&s, to, port);
    int fd = socket(s.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    no_delay(fd);
    if (connect(fd, &s.any, sb_sockaddr_len(&s)) < 0 && errno != EINPROGRESS) {
        close(fd);
        return -1;
    }
    if (sb_watch_add(&c->out, fd, EPOLLOUT, out_ready) < 0)
        return -1;
    sb_tcp_set(c, DIALING, DIAL_MS);
    sb_tcp_interest(c);
    return 0;
}

/* By the way that the policy wants: 0, and it may have been refused and dropped by now; or -1. */
static int dial(struct sb_tcp *c, const struct sb_addr *to)
{
    c->dialed = *to;
    if (!sb_upstream_on())
        return sb_tcp_connect(c, to, c->port);
    sb_upstream_dial(c);
    return 0;
}

/* Whether the name may lead there. A rule that injects opens nothing: the name or its address is allowed. */
static sb_refusal may_dial(const struct sb_addr *a, const struct sb_tcp *c)
{
    sb_refusal why = sb_may_reach(a, false);
    if (why != NULL && sb_policy_name(sb_relay_policy(), c->name, strlen(c->name)))
        why = sb_may_reach(a, true);
    return why;
}

void sb_tcp_dial_next(struct sb_tcp *c)
{
    sb_refusal why = "its name has no address";
    bool any = false;
    while (c->tried < c->found.n) {
        const struct sb_addr *a = &c->found.at[c->tried++];
        sb_refusal no = may_dial(a, c);
        if (no != NULL) {
            why = no;
        } else if (dial(c, a) == 0) {
            return;
        } else {
            any = true;
        }
    }
    if (any || c->state == DIALING)
        sb_tcp_drop(c, true); /* nobody there: not our refusal */
    else
        sb_tcp_refuse(c, why);
}

/* What was held back of a name rule's connection goes first. */
static int give_head(struct sb_tcp *c)
{
    char *head = c->head;
    c->head = NULL;
    int rc = head != NULL ? sb_tcp_give(c->out.fd, &c->up, head, c->head_len) : 0;
    sb_relay_counts->sent += head != NULL ? c->head_len : 0;
    sb_tcp_wipe(c, head, c->head_len);
    free(head);
    return rc;
}

void sb_tcp_open(struct sb_tcp *c)
{
    if (c->opens) {
        sb_tcp_set(c, HANDED, 0);
        if (sb_opened_hand(c) < 0)
            sb_tcp_drop(c, true);
        return;
    }
    sb_tcp_set(c, OPEN, 0);
    if (give_head(c) < 0) {
        sb_tcp_drop(c, true);
        return;
    }
    sb_tcp_interest(c);
}

static void connected(struct sb_tcp *c)
{
    int err = 0;
    socklen_t len = sizeof err;
    bool there = getsockopt(c->out.fd, SOL_SOCKET, SO_ERROR, &err, &len) == 0 && err == 0;
    if (!there)
        sb_watch_drop(&c->out);
    if (c->proxied)
        (there ? sb_upstream_ask : sb_upstream_next)(c);
    else
        (there ? sb_tcp_open : sb_tcp_dial_next)(c); /* by an address: no other is found */
}

static void out_ready(struct sb_watch *w, uint32_t events)
{
    struct sb_tcp *c = SB_WATCHED(w, struct sb_tcp, out);
    if (c->state == DIALING)
        connected(c);
    else if (c->state == ASKING)
        sb_upstream_hear(c);
    else
        sb_tcp_carry(c, w, events);
}

/* ---- name rules ---- */

static void resolved(void *arg, const unsigned char *answer, size_t n)
{
    struct sb_tcp *c = arg;
    struct sb_question q = {.id = c->id, .type = sb_addr_is4(&c->to) ? SB_DNS_A : SB_DNS_AAAA};
    memcpy(q.name, c->name, sizeof q.name);
    sb_tcp_set(c, SNIFFING, 0); /* no question is under way any more */
    if (answer == NULL || !sb_dns_read_answer(&c->found, &q, answer, n))
        c->found.n = 0;
    sb_tcp_dial_next(c);
}

/* Never the address that the program chose: a name costs nothing to write. */
static void resolve(struct sb_tcp *c)
{
    unsigned char query[SB_DNS_MAX];
    size_t n =
        sb_dns_make_query(query, c->id, c->name, sb_addr_is4(&c->to) ? SB_DNS_A : SB_DNS_AAAA);
    sb_tcp_set(c, RESOLVING, 0);
    sb_tcp_interest(c);
    if (!sb_ask(query, n, resolved, c)) {
        sb_tcp_set(c, SNIFFING, 0);
        sb_tcp_refuse(c, "no resolver answers");
    }
}

enum { MORE = 0, NAMED = 1, UNREADABLE = -1, REFUSED = -2 };

/* What has come names a host (NAMED, and the head to send instead), or one of the others and why. */
static int read_name(struct sb_tcp *c, char **head, size_t *len, sb_refusal *why)
{
    static char out[SB_HEAD_MAX + 64 + SB_INJECT_BYTES];
    struct sb_head h;
    *why = "no readable name";
    if (c->port == TLS_PORT)
        return sb_hello_read(c->name, (unsigned char *)c->head, c->head_len);
    size_t n;
    int used = sb_head_read(&h, c->head, c->head_len, out, &n);
    if (used <= 0)
        return used;
    memcpy(c->name, h.host, sizeof c->name);
    if (h.port != 0 && h.port != c->port)
        return UNREADABLE;
    long body = sb_body_eat(&h.body, c->head + used, c->head_len - (size_t)used);
    /* What follows an upgrade that nobody has granted is no part of it yet. */
    if (body < 0 || (h.upgrade && (size_t)used < c->head_len))
        return UNREADABLE;
    int injected = sb_inject_apply(sb_relay_inject(), c->name, out, &n, sizeof out, why);
    *len = n + (size_t)body;
    *head = injected >= 0 ? malloc(*len) : NULL;
    c->injected = injected != 0;
    if (*head != NULL)
        memcpy(*head, out, n);
    sb_tcp_wipe(c, out, sizeof out);
    if (*head == NULL)
        return REFUSED;
    memcpy(*head + n, c->head + used, (size_t)body);
    c->http = true;
    c->unconfirmed = h.upgrade;
    c->body = h.body;
    return NAMED;
}

/* Its address is allowed, and it is no request for a host of a rule that injects. */
static void pass_on(struct sb_tcp *c)
{
    c->name[0] = '\0';
    c->http = c->unconfirmed = false;
    if (dial(c, &c->to) < 0)
        sb_tcp_drop(c, true);
}

static void sniff(struct sb_tcp *c)
{
    char *head = NULL;
    size_t len = 0, most = c->port == TLS_PORT ? SB_HELLO_MAX : SB_HEAD_MAX;
    sb_refusal why;
    ssize_t n = recv(c->in.fd, sb_piece, most - c->head_len, 0);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n == 0 && c->by_address) {
        pass_on(c);
        return;
    }
    if (n <= 0) {
        sb_tcp_drop(c, true); /* it has changed its mind */
        return;
    }
    char *more = realloc(c->head, c->head_len + (size_t)n);
    if (more == NULL) {
        sb_tcp_drop(c, true);
        return;
    }
    memcpy(more + c->head_len, sb_piece, (size_t)n);
    c->head = more;
    c->head_len += (size_t)n;
    int rc = read_name(c, &head, &len, &why);
    if (rc == MORE && c->head_len < most)
        return;
    if (c->by_address && rc != REFUSED &&
        (rc != NAMED || !sb_inject_host(sb_relay_inject(), c->name))) {
        free(head);
        pass_on(c);
        return;
    }
    if (rc == UNREADABLE)
        c->name[0] = '\0'; /* whatever of it was read */
    if (rc == NAMED && !c->by_address &&
        !sb_policy_name(sb_relay_policy(), c->name, strlen(c->name))) {
        rc = REFUSED;
        why = "not allowed";
    }
    if (head != NULL) {
        free(c->head);
        c->head = head;
        c->head_len = len;
    }
    if (rc == NAMED && c->port == TLS_PORT && sb_opened_have() &&
        sb_inject_host(sb_relay_inject(), c->name))
        c->opens = c->injected = true;
    if (rc == NAMED)
        resolve(c);
    else
        sb_tcp_refuse(c, why);
}

static void in_ready(struct sb_watch *w, uint32_t events)
{
    struct sb_tcp *c = SB_WATCHED(w, struct sb_tcp, in);
    if (c->state == OPEN)
        sb_tcp_carry(c, w, events);
    else if (c->state == SNIFFING && (events & EPOLLIN) != 0)
        sniff(c);
    else if ((events & (EPOLLHUP | EPOLLERR)) != 0)
        sb_tcp_drop(c, true);
}

/* ---- accepting ---- */

static bool is_name_port(const struct sb_policy *p, unsigned int port)
{
    return p->mode == SB_POLICY_RULES && p->names > 0 && (port == HTTP_PORT || port == TLS_PORT);
}

/* By what a program sends there it is decided what becomes of it, although its address is allowed. */
static bool is_injected_port(unsigned int port)
{
    return (port == HTTP_PORT || (port == TLS_PORT && sb_opened_have())) &&
           sb_relay_inject()->rules > 0;
}

static void decide(struct sb_tcp *c)
{
    const struct sb_policy *p = sb_relay_policy();
    const union sb_sockaddr *resolver = sb_resolver_first();
    if (sb_addr_is_relay(&c->to, SB_NET_RESOLVER) && c->port == DNS_PORT &&
        p->mode == SB_POLICY_ALLOW && resolver != NULL) {
        struct sb_addr at;
        unsigned int port;
        sb_sockaddr_read(resolver, &at, &port);
        c->dialed = at; /* the relay's own questions go straight there as well */
        if (sb_tcp_connect(c, &at, port) < 0)
            sb_tcp_drop(c, true);
        return;
    }
    sb_refusal why = sb_may_reach(&c->to, false);
    c->by_address = why == NULL;
    if (why == NULL && !is_injected_port(c->port)) {
        if (dial(c, &c->to) < 0)
            sb_tcp_drop(c, true);
    } else if (why == NULL || (is_name_port(p, c->port) && !sb_policy_denied(p, &c->to))) {
        sb_tcp_set(c, SNIFFING, SNIFF_MS);
        sb_tcp_interest(c);
    } else {
        sb_tcp_refuse(c, why);
    }
}

static void accept_one(int fd)
{
    union sb_sockaddr to;
    socklen_t len = sizeof to;
    struct sb_tcp *c = tcp.count < tcp.most ? calloc(1, sizeof *c) : NULL;
    if (c == NULL || getsockname(fd, &to.any, &len) < 0) {
        struct sb_watch w = {.fd = fd};
        free(c);
        reset(&w);
        close(fd);
        return;
    }
    no_delay(fd);
    c->in.fd = c->out.fd = -1;
    sb_sockaddr_read(&to, &c->to, &c->port);
    if (sb_watch_add(&c->in, fd, 0, in_ready) < 0) {
        free(c);
        return;
    }
    c->next = tcp.first;
    c->link = &tcp.first;
    if (c->next != NULL)
        c->next->link = &c->next;
    tcp.first = c;
    tcp.count++;
    decide(c);
}

static void listener_ready(struct sb_watch *w, uint32_t events)
{
    (void)events;
    for (int i = 0; i < ACCEPTS; i++) {
        int fd = accept4(w->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        accept_one(fd);
    }
}

/* Whether the policy of now would let it come to be. */
static bool still_allowed(const struct sb_tcp *c)
{
    const struct sb_policy *p = sb_relay_policy();
    if (sb_policy_denied(p, &c->to))
        return false;
    if (c->state == SNIFFING)
        return c->by_address || is_name_port(p, c->port);
    if (c->state == RESOLVING)
        return c->by_address || sb_policy_name(p, c->name, strlen(c->name));
    if (c->name[0] != '\0')
        return may_dial(&c->dialed, c) == NULL;
    if (sb_addr_is_relay(&c->to, SB_NET_RESOLVER))
        return p->mode == SB_POLICY_ALLOW;
    return sb_may_reach(&c->dialed, false) == NULL;
}

void sb_tcp_recheck(bool all, bool injected)
{
    for (struct sb_tcp *c = tcp.first, *next; c != NULL; c = next) {
        next = c->next;
        c->by_address = c->by_address && sb_may_reach(&c->to, false) == NULL;
        if (all || !still_allowed(c) || (injected && c->injected))
            sb_tcp_drop(c, true);
    }
}

void sb_tcp_tick(int64_t now)
{
    for (struct sb_tcp *c = tcp.first, *next; c != NULL; c = next) {
        next = c->next;
        if (c->due == 0 || c->due > now)
            continue;
        if (c->state == SNIFFING && c->by_address)
            pass_on(c);
        else if (c->state == SNIFFING)
            sb_tcp_refuse(c, "no readable name");
        else if (c->proxied)
            sb_upstream_late(c);
        else
            sb_tcp_drop(c, true);
    }
}

int sb_tcp_start(void)
{
    enum { OTHERS = 400 }; /* descriptors for all else */
    static const int fd[2] = {SB_RELAY_TCP4, SB_RELAY_TCP6};
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    tcp.most = files.rlim_cur > 2 * CONNS + OTHERS ? CONNS : ((int)files.rlim_cur - OTHERS) / 2;
    for (int i = 0; i < 2; i++)
        if (sb_watch_add(&tcp.listener[i], fd[i], EPOLLIN, listener_ready) < 0 && i == 0)
            return -1;
    return tcp.most > 0 ? 0 : -1;
}
