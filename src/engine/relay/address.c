/* Addresses of sockets and policies, and which of them are this machine's own. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../supervisor/netrules.h"
#include "relay.h"

static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};

void sb_sockaddr_make(union sb_sockaddr *s, const struct sb_addr *a, unsigned int port)
{
    memset(s, 0, sizeof *s);
    if (sb_addr_is4(a)) {
        s->in4.sin_family = AF_INET;
        s->in4.sin_port = htons((uint16_t)port);
        memcpy(&s->in4.sin_addr, a->b + 12, 4);
    } else {
        s->in6.sin6_family = AF_INET6;
        s->in6.sin6_port = htons((uint16_t)port);
        memcpy(&s->in6.sin6_addr, a->b, 16);
    }
}

void sb_sockaddr_read(const union sb_sockaddr *s, struct sb_addr *a, unsigned int *port)
{
    if (s->any.sa_family == AF_INET) {
        memcpy(a->b, mapped, sizeof mapped);
        memcpy(a->b + 12, &s->in4.sin_addr, 4);
        *port = ntohs(s->in4.sin_port);
    } else {
        memcpy(a->b, &s->in6.sin6_addr, 16);
        *port = ntohs(s->in6.sin6_port);
    }
}

socklen_t sb_sockaddr_len(const union sb_sockaddr *s)
{
    return s->any.sa_family == AF_INET ? sizeof s->in4 : sizeof s->in6;
}

void sb_addr_text(const struct sb_addr *a, char out[INET6_ADDRSTRLEN])
{
    if (sb_addr_is4(a))
        inet_ntop(AF_INET, a->b + 12, out, INET6_ADDRSTRLEN);
    else
        inet_ntop(AF_INET6, a->b, out, INET6_ADDRSTRLEN);
}

bool sb_addr_is_relay(const struct sb_addr *a, int which)
{
    static const unsigned char prefix[16] = SB_NET_PREFIX6;
    const uint32_t v4 = htonl((SB_NET_OWN4 & ~7u) | (uint32_t)which);
    if (sb_addr_is4(a))
        return memcmp(a->b + 12, &v4, sizeof v4) == 0;
    return memcmp(a->b, prefix, 15) == 0 && a->b[15] == which;
}

static int bind_to(const struct sb_addr *a)
{
    union sb_sockaddr s;
    sb_sockaddr_make(&s, a, 0);
    int fd = socket(s.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, &s.any, sb_sockaddr_len(&s)) < 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Some machines let any address be bound (ip_nonlocal_bind): nobody has this one. */
static bool binds_any(bool v4)
{
    static int known[2]; /* 1: no, 2: yes */
    struct sb_cidr nobody;
    const char *text = v4 ? "240.0.0.1" : "2001:db8:ffff:ffff::1";
    if (known[v4] == 0) {
        int fd = sb_cidr_read(&nobody, text, strlen(text)) ? bind_to(&nobody.at) : -1;
        known[v4] = fd < 0 ? 1 : 2;
        if (fd >= 0)
            close(fd);
    }
    return known[v4] == 2;
}

/* What goes to a machine itself comes from the same address, unless that has several in one network. */
static bool comes_back(const struct sb_addr *a)
{
    union sb_sockaddr s, from;
    socklen_t len = sizeof from;
    sb_sockaddr_make(&s, a, 9);
    from = s;
    int fd = socket(s.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool own = fd >= 0 && connect(fd, &s.any, sb_sockaddr_len(&s)) == 0 &&
               getsockname(fd, &from.any, &len) == 0;
    if (own) {
        struct sb_addr source;
        unsigned int port;
        sb_sockaddr_read(&from, &source, &port);
        own = memcmp(source.b, a->b, sizeof source.b) == 0;
    }
    if (fd >= 0)
        close(fd);
    return own;
}

/* Only an address of this machine can be bound. Asked each time: they come and go. */
bool sb_addr_is_own(const struct sb_addr *a)
{
    if (binds_any(sb_addr_is4(a)))
        return comes_back(a);
    int fd = bind_to(a);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

sb_refusal sb_may_reach(const struct sb_addr *a, bool resolved)
{
    const struct sb_policy *p = sb_relay_policy();
    sb_refusal why = resolved ? sb_policy_resolved(p, a) : sb_policy_address(p, a);
    if (why != NULL || sb_policy_names_own(p, a))
        return why;
    struct sb_addr v4[2];
    bool own = sb_addr_is_own(a);
    for (int i = sb_addr_embedded(a, v4); !own && i > 0; i--)
        own = sb_addr_is_own(&v4[i - 1]);
    return own ? "an address of the host" : NULL;
}
