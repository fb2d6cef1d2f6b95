/* TCP: accepts what the sandbox's programs connect to, decides, dials, and copies both ways. */
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../supervisor/netrules.h"
#include "dns.h"
#include "http.h"
#include "relay.h"
#include "tls.h"
#include "watch.h"

enum {
    CONNS = 1024,
    FEW = 64, /* so many may use large pieces */
    LARGE = 262144,
    SMALL = 16384,
    TURNS = 4, /* pieces copied before others have their turn */
    ACCEPTS = 16,
    SNIFF_MS = 10000,
    DIAL_MS = 15000,
    HTTP_PORT = 80,
    TLS_PORT = 443,
    DNS_PORT = 53,
};

/* What one side has sent and the other has not taken. */
struct rest {
    char *data;
    size_t at, len;
};

enum state { SNIFFING, RESOLVING, DIALING, OPEN };

/* A connection of a program (`in`) and ours for it (`out`). Owned by the list; closed by drop. */
struct conn {
    struct conn *next, **link;
    struct sb_watch in, out;
    enum state state;
    int64_t due;       /* of the state; 0: none */
    struct sb_addr to; /* where the program wants to go ... */
    unsigned int port;
    struct sb_addr dialed;      /* ... and where we went */
    char name[SB_NAME_MAX + 1]; /* by which it was allowed; "" by its address */
    struct sb_addresses found;
    int tried;
    uint16_t id; /* of the question for the name */
    char *head;  /* of a name rule: what has come, until it is decided */
    size_t head_len;
    struct rest up, down;      /* to the world; to the program */
    bool up_ended, down_ended; /* whoever sends has ended */
    bool http, unconfirmed;    /* what goes up is one request; an upgrade that nobody has granted */
    struct sb_body body;
};

static struct {
    struct conn *first;
    int count, most;
    struct sb_watch listener[2];
} tcp;

static char piece[LARGE];

static void free_rest(struct rest *r)
{
    free(r->data);
    *r = (struct rest){NULL, 0, 0};
}

static void set_state(struct conn *c, enum state state, int64_t patience_ms)
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

/* `hard`: both sides see that it was cut. */
static void drop(struct conn *c, bool hard)
{
    if (hard) {
        reset(&c->in);
        reset(&c->out);
    }
    if (c->state == RESOLVING)
        sb_ask_cancel(c);
    set_state(c, c->state, 0);
    sb_watch_drop(&c->in);
    sb_watch_drop(&c->out);
    free_rest(&c->up);
    free_rest(&c->down);
    free(c->head);
    *c->link = c->next;
    if (c->next != NULL)
        c->next->link = c->link;
    tcp.count--;
    sb_watch_bury(c);
}

static void refuse(struct conn *c, sb_refusal why)
{
    char text[INET6_ADDRSTRLEN];
    sb_addr_text(&c->to, text);
    sb_relay_denied("tcp", c->name[0] != '\0' ? c->name : text, c->port, why);
    drop(c, true);
}

/* ---- copying ---- */

static void interest(struct conn *c)
{
    bool open = c->state == OPEN;
    bool hungry =
        c->state == SNIFFING || (open && !c->up_ended && c->up.len == 0 && !c->unconfirmed);
    sb_watch_want(&c->in, (hungry ? EPOLLIN : 0u) | (c->down.len > 0 ? EPOLLOUT : 0u));
    if (open)
        sb_watch_want(&c->out, (!c->down_ended && c->down.len == 0 ? EPOLLIN : 0u) |
                                   (c->up.len > 0 ? EPOLLOUT : 0u));
}

/* 0, or -1: the receiver is gone. What it does not take is kept. */
static int give(int fd, struct rest *r, const char *data, size_t n)
{
    ssize_t done = send(fd, data, n, MSG_NOSIGNAL);
    if (done < 0 && errno != EAGAIN)
        return -1;
    size_t left = n - (done > 0 ? (size_t)done : 0);
    if (left == 0)
        return 0;
    r->data = malloc(left);
    if (r->data == NULL)
        return -1;
    memcpy(r->data, data + n - left, left);
    r->at = 0;
    r->len = left;
    return 0;
}

static int give_rest(int fd, struct rest *r)
{
    if (r->len == 0)
        return 0;
    ssize_t done = send(fd, r->data + r->at, r->len, MSG_NOSIGNAL);
    if (done < 0)
        return errno == EAGAIN ? 0 : -1;
    r->at += (size_t)done;
    r->len -= (size_t)done;
    if (r->len == 0)
        free_rest(r);
    return 0;
}

/* Of what the program has sent, how much is the request's; the rest is never passed on. */
static long filter_up(struct conn *c, const char *data, size_t n)
{
    return c->http ? sb_body_eat(&c->body, data, n) : (long)n;
}

/* The server's word on an upgrade, in its first bytes. */
static int confirm(struct conn *c, const char *data, size_t n)
{
    if (!c->unconfirmed)
        return 0;
    if (n < 12)
        return -1;
    c->unconfirmed = false;
    if (memcmp(data, "HTTP/1.1 101", 12) == 0)
        c->http = false;
    return 0;
}

/* One direction, as far as it goes. 0, or -1: cut. */
static int copy(struct conn *c, bool upwards)
{
    struct sb_watch *from = upwards ? &c->in : &c->out, *to = upwards ? &c->out : &c->in;
    struct rest *r = upwards ? &c->up : &c->down;
    bool *ended = upwards ? &c->up_ended : &c->down_ended;
    size_t most = tcp.count <= FEW ? LARGE : SMALL;
    for (int i = 0; i < TURNS && !*ended && r->len == 0; i++) {
        ssize_t n = recv(from->fd, piece, most, 0);
        if (n < 0)
            return errno == EAGAIN ? 0 : -1;
        if (n == 0) {
            *ended = true;
            break;
        }
        long mine = upwards ? filter_up(c, piece, (size_t)n) : n;
        if (mine < 0 || (!upwards && confirm(c, piece, (size_t)n) < 0) ||
            (mine > 0 && give(to->fd, r, piece, (size_t)mine) < 0))
            return -1;
    }
    if (*ended && r->len == 0)
        shutdown(to->fd, SHUT_WR);
    return 0;
}

static void carry(struct conn *c, struct sb_watch *w, uint32_t events)
{
    int rc = 0;
    if ((events & EPOLLOUT) != 0) {
        bool up = w == &c->out;
        struct rest *r = up ? &c->up : &c->down;
        rc = give_rest(w->fd, r);
        if (rc == 0 && r->len == 0 && (up ? c->up_ended : c->down_ended))
            shutdown(w->fd, SHUT_WR);
    }
    if (rc == 0 && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0)
        rc = copy(c, w == &c->in);
    if (rc < 0) {
        drop(c, true);
        return;
    }
    bool ended = w == &c->in ? c->up_ended : c->down_ended;
    if (ended && (events & EPOLLERR) != 0) {
        drop(c, true);
        return;
    }
    if (ended && (events & EPOLLHUP) != 0)
        sb_watch_mute(w); /* gone for good: it would say so again and again */
    if (c->down_ended && c->down.len == 0 && (c->up_ended || c->http) && c->up.len == 0) {
        drop(c, false);
        return;
    }
    interest(c);
}

/* ---- dialing ---- */

static void out_ready(struct sb_watch *w, uint32_t events);

/* What comes in pieces has been waited for already. */
static void no_delay(int fd)
{
    static const int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static int dial(struct conn *c, const struct sb_addr *to, unsigned int port)
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
    c->dialed = *to;
    set_state(c, DIALING, DIAL_MS);
    interest(c);
    return 0;
}

/* The next address of the name that may be dialed. */
static void dial_found(struct conn *c)
{
    sb_refusal why = "its name has no address";
    bool any = false;
    while (c->tried < c->found.n) {
        const struct sb_addr *a = &c->found.at[c->tried++];
        sb_refusal no = sb_may_reach(a, true);
        if (no != NULL) {
            why = no;
        } else if (dial(c, a, c->port) == 0) {
            return;
        } else {
            any = true;
        }
    }
    if (any || c->state == DIALING)
        drop(c, true); /* nobody there: not our refusal */
    else
        refuse(c, why);
}

/* What was held back of a name rule's connection goes first. */
static int give_head(struct conn *c)
{
    char *head = c->head;
    c->head = NULL;
    int rc = head != NULL ? give(c->out.fd, &c->up, head, c->head_len) : 0;
    free(head);
    return rc;
}

static void connected(struct conn *c)
{
    int err = 0;
    socklen_t len = sizeof err;
    if (getsockopt(c->out.fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0 || err != 0) {
        sb_watch_drop(&c->out);
        dial_found(c); /* by an address: there is no other, and it is dropped */
        return;
    }
    set_state(c, OPEN, 0);
    if (give_head(c) < 0) {
        drop(c, true);
        return;
    }
    interest(c);
}

static void out_ready(struct sb_watch *w, uint32_t events)
{
    struct conn *c = SB_WATCHED(w, struct conn, out);
    if (c->state == DIALING)
        connected(c);
    else
        carry(c, w, events);
}

/* ---- name rules ---- */

static void resolved(void *arg, const unsigned char *answer, size_t n)
{
    struct conn *c = arg;
    struct sb_question q = {.id = c->id, .type = sb_addr_is4(&c->to) ? SB_DNS_A : SB_DNS_AAAA};
    memcpy(q.name, c->name, sizeof q.name);
    set_state(c, SNIFFING, 0); /* no question is under way any more */
    if (answer == NULL || !sb_dns_read_answer(&c->found, &q, answer, n))
        c->found.n = 0;
    dial_found(c);
}

/* Never the address that the program chose: a name costs nothing to write. */
static void resolve(struct conn *c)
{
    unsigned char query[SB_DNS_MAX];
    size_t n =
        sb_dns_make_query(query, c->id, c->name, sb_addr_is4(&c->to) ? SB_DNS_A : SB_DNS_AAAA);
    set_state(c, RESOLVING, 0);
    interest(c);
    if (!sb_ask(query, n, resolved, c)) {
        set_state(c, SNIFFING, 0);
        refuse(c, "no resolver answers");
    }
}

/* 1: a listed name; 0: more is needed; -1: refused. */
static int read_name(struct conn *c, char **head, size_t *len, sb_refusal *why)
{
    static char out[SB_HEAD_MAX + 64];
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
        return -1;
    long body = sb_body_eat(&h.body, c->head + used, c->head_len - (size_t)used);
    /* What follows an upgrade that nobody has granted is no part of it yet. */
    if (body < 0 || (h.upgrade && (size_t)used < c->head_len))
        return -1;
    *len = n + (size_t)body;
    *head = malloc(*len);
    if (*head == NULL)
        return -1;
    memcpy(*head, out, n);
    memcpy(*head + n, c->head + used, (size_t)body);
    c->http = true;
    c->unconfirmed = h.upgrade;
    c->body = h.body;
    return 1;
}

static void sniff(struct conn *c)
{
    char *head = NULL;
    size_t len = 0, most = c->port == TLS_PORT ? SB_HELLO_MAX : SB_HEAD_MAX;
    sb_refusal why;
    ssize_t n = recv(c->in.fd, piece, most - c->head_len, 0);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0) {
        drop(c, true); /* it has changed its mind */
        return;
    }
    char *more = realloc(c->head, c->head_len + (size_t)n);
    if (more == NULL) {
        drop(c, true);
        return;
    }
    memcpy(more + c->head_len, piece, (size_t)n);
    c->head = more;
    c->head_len += (size_t)n;
    int rc = read_name(c, &head, &len, &why);
    if (rc < 0)
        c->name[0] = '\0'; /* whatever of it was read */
    if (rc == 0 && c->head_len < most)
        return;
    if (rc > 0 && !sb_policy_name(sb_relay_policy(), c->name, strlen(c->name))) {
        rc = -1;
        why = "not allowed";
    }
    if (head != NULL) {
        free(c->head);
        c->head = head;
        c->head_len = len;
    }
    if (rc <= 0)
        refuse(c, why);
    else
        resolve(c);
}

static void in_ready(struct sb_watch *w, uint32_t events)
{
    struct conn *c = SB_WATCHED(w, struct conn, in);
    if (c->state == OPEN)
        carry(c, w, events);
    else if (c->state == SNIFFING && (events & EPOLLIN) != 0)
        sniff(c);
    else if ((events & (EPOLLHUP | EPOLLERR)) != 0)
        drop(c, true);
}

/* ---- accepting ---- */

static bool is_name_port(const struct sb_policy *p, unsigned int port)
{
    return p->mode == SB_POLICY_RULES && p->names > 0 && (port == HTTP_PORT || port == TLS_PORT);
}

static void decide(struct conn *c)
{
    const struct sb_policy *p = sb_relay_policy();
    const union sb_sockaddr *resolver = sb_resolver_first();
    if (sb_addr_is_relay(&c->to, SB_NET_RESOLVER) && c->port == DNS_PORT &&
        p->mode == SB_POLICY_ALLOW && resolver != NULL) {
        struct sb_addr at;
        unsigned int port;
        sb_sockaddr_read(resolver, &at, &port);
        if (dial(c, &at, port) < 0)
            drop(c, true);
        return;
    }
    sb_refusal why = sb_may_reach(&c->to, false);
    if (why == NULL) {
        if (dial(c, &c->to, c->port) < 0)
            drop(c, true);
    } else if (is_name_port(p, c->port) && !sb_policy_denied(p, &c->to)) {
        set_state(c, SNIFFING, SNIFF_MS);
        interest(c);
    } else {
        refuse(c, why);
    }
}

static void accept_one(int fd)
{
    union sb_sockaddr to;
    socklen_t len = sizeof to;
    struct conn *c = tcp.count < tcp.most ? calloc(1, sizeof *c) : NULL;
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
static bool still_allowed(const struct conn *c)
{
    const struct sb_policy *p = sb_relay_policy();
    if (sb_policy_denied(p, &c->to))
        return false;
    if (c->state == SNIFFING)
        return is_name_port(p, c->port);
    if (c->name[0] != '\0')
        return sb_policy_name(p, c->name, strlen(c->name)) &&
               (c->state == RESOLVING || sb_may_reach(&c->dialed, true) == NULL);
    if (sb_addr_is_relay(&c->to, SB_NET_RESOLVER))
        return p->mode == SB_POLICY_ALLOW;
    return sb_may_reach(&c->dialed, false) == NULL;
}

void sb_tcp_recheck(void)
{
    for (struct conn *c = tcp.first, *next; c != NULL; c = next) {
        next = c->next;
        if (!still_allowed(c))
            drop(c, true);
    }
}

void sb_tcp_tick(int64_t now)
{
    for (struct conn *c = tcp.first, *next; c != NULL; c = next) {
        next = c->next;
        if (c->due == 0 || c->due > now)
            continue;
        if (c->state == SNIFFING)
            refuse(c, "no readable name");
        else
            drop(c, true);
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
