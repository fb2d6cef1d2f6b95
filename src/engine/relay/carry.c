/* Copies both ways of a connection. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "tcp.h"

enum {
    FEW = 64, /* so many may use large pieces */
    LARGE = SB_PIECE,
    SMALL = 16384,
    TURNS = 4, /* pieces copied before others have their turn */
};

char sb_piece[SB_PIECE];

void sb_tcp_wipe(const struct sb_tcp *c, char *data, size_t n)
{
    if (c->injected && data != NULL)
        explicit_bzero(data, n);
}

void sb_tcp_forget(struct sb_tcp *c, struct sb_rest *r)
{
    sb_tcp_wipe(c, r->data, r->at + r->len);
    free(r->data);
    *r = (struct sb_rest){NULL, 0, 0};
}

void sb_tcp_interest(struct sb_tcp *c)
{
    bool open = c->state == OPEN;
    bool hungry =
        c->state == SNIFFING || (open && !c->up_ended && c->up.len == 0 && !c->unconfirmed);
    sb_watch_want(&c->in, (hungry ? EPOLLIN : 0u) | (c->down.len > 0 ? EPOLLOUT : 0u));
    if (c->state == ASKING)
        sb_watch_want(&c->out, EPOLLIN);
    if (open)
        sb_watch_want(&c->out, (!c->down_ended && c->down.len == 0 ? EPOLLIN : 0u) |
                                   (c->up.len > 0 ? EPOLLOUT : 0u));
}

int sb_tcp_give(int fd, struct sb_rest *r, const char *data, size_t n)
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

static int give_rest(struct sb_tcp *c, int fd, struct sb_rest *r)
{
    if (r->len == 0)
        return 0;
    ssize_t done = send(fd, r->data + r->at, r->len, MSG_NOSIGNAL);
    if (done < 0)
        return errno == EAGAIN ? 0 : -1;
    r->at += (size_t)done;
    r->len -= (size_t)done;
    if (r->len == 0)
        sb_tcp_forget(c, r);
    return 0;
}

/* Of what the program has sent, how much is the request's; the rest is never passed on. */
static long filter_up(struct sb_tcp *c, const char *data, size_t n)
{
    return c->http ? sb_body_eat(&c->body, data, n) : (long)n;
}

/* The server's word on an upgrade, in its first bytes. */
static int confirm(struct sb_tcp *c, const char *data, size_t n)
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
static int copy(struct sb_tcp *c, bool upwards)
{
    struct sb_watch *from = upwards ? &c->in : &c->out, *to = upwards ? &c->out : &c->in;
    struct sb_rest *r = upwards ? &c->up : &c->down;
    bool *ended = upwards ? &c->up_ended : &c->down_ended;
    size_t most = sb_tcp_count() <= FEW ? LARGE : SMALL;
    for (int i = 0; i < TURNS && !*ended && r->len == 0; i++) {
        ssize_t n = recv(from->fd, sb_piece, most, 0);
        if (n < 0)
            return errno == EAGAIN ? 0 : -1;
        if (n == 0) {
            *ended = true;
            break;
        }
        long mine = upwards ? filter_up(c, sb_piece, (size_t)n) : n;
        if (mine < 0 || (!upwards && confirm(c, sb_piece, (size_t)n) < 0) ||
            (mine > 0 && sb_tcp_give(to->fd, r, sb_piece, (size_t)mine) < 0))
            return -1;
        if (upwards)
            sb_relay_counts->sent += (uint64_t)mine;
        else
            sb_relay_counts->received += (uint64_t)n;
    }
    if (*ended && r->len == 0)
        shutdown(to->fd, SHUT_WR);
    return 0;
}

void sb_tcp_carry(struct sb_tcp *c, struct sb_watch *w, uint32_t events)
{
    int rc = 0;
    if ((events & EPOLLOUT) != 0) {
        bool up = w == &c->out;
        struct sb_rest *r = up ? &c->up : &c->down;
        rc = give_rest(c, w->fd, r);
        if (rc == 0 && r->len == 0 && (up ? c->up_ended : c->down_ended))
            shutdown(w->fd, SHUT_WR);
    }
    if (rc == 0 && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0)
        rc = copy(c, w == &c->in);
    if (rc < 0) {
        sb_tcp_drop(c, true);
        return;
    }
    bool ended = w == &c->in ? c->up_ended : c->down_ended;
    if (ended && (events & EPOLLERR) != 0) {
        sb_tcp_drop(c, true);
        return;
    }
    if (ended && (events & EPOLLHUP) != 0)
        sb_watch_mute(w); /* gone for good: it would say so again and again */
    if (c->down_ended && c->down.len == 0 && (c->up_ended || c->http) && c->up.len == 0) {
        sb_tcp_drop(c, false);
        return;
    }
    sb_tcp_interest(c);
}
