/* Asks the host's resolvers: each query on a socket of its own, so that its port is a random one, with an id of
 * its own, of one resolver after the other. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dns.h"
#include "relay.h"
#include "watch.h"

enum { ASKS = 64, TRIES = 4, PATIENCE_MS = 2000, DNS_PORT = 53 };

/* One query under way; free while `done` is NULL. */
struct ask {
    struct sb_watch watch;
    sb_asked *done;
    void *arg;
    int64_t due;
    size_t len;
    int tries;
    uint16_t id; /* the asker's */
    unsigned char query[SB_DNS_MAX];
};

/* One that finds no place among those waits for it, as long as one that has a place may take. */
struct late {
    struct late *next;
    sb_asked *done;
    void *arg;
    int64_t due;
    size_t len;
    unsigned char query[];
};

static struct ask asks[ASKS];
static struct {
    struct late *first, **last;
} late = {.last = &late.first};
static union sb_sockaddr resolver[SB_RESOLVERS];
static int resolvers;

void sb_resolvers_set(const struct sb_reader *fields)
{
    struct sb_reader walk = *fields;
    struct sb_field_view v;
    struct sb_cidr c;
    resolvers = 0;
    while (sb_read_field(&walk, &v) == 1 && resolvers < SB_RESOLVERS)
        if (v.tag == SB_F_RESOLVER && sb_cidr_read(&c, (const char *)v.data, v.len))
            sb_sockaddr_make(&resolver[resolvers++], &c.at, DNS_PORT);
}

const union sb_sockaddr *sb_resolver_first(void)
{
    return resolvers > 0 ? &resolver[0] : NULL;
}

static void start_late(void);

static void finish(struct ask *a, const unsigned char *answer, size_t n)
{
    sb_asked *done = a->done;
    sb_watch_drop(&a->watch);
    sb_watch_timed(-1);
    a->done = NULL;
    done(a->arg, answer, n);
    start_late();
}

static void answered(struct sb_watch *w, uint32_t events);

/* To the next resolver. False: all had their chance. */
static bool send_query(struct ask *a)
{
    while (a->tries < TRIES) {
        const union sb_sockaddr *to = &resolver[a->tries++ % resolvers];
        sb_watch_drop(&a->watch);
        int fd = socket(to->any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0 || getrandom(a->query, 2, 0) != 2 ||
            connect(fd, &to->any, sb_sockaddr_len(to)) < 0 ||
            send(fd, a->query, a->len, 0) != (ssize_t)a->len) {
            if (fd >= 0)
                close(fd);
            continue;
        }
        if (sb_watch_add(&a->watch, fd, EPOLLIN, answered) < 0)
            continue;
        a->due = sb_watch_now() + PATIENCE_MS;
        return true;
    }
    return false;
}

static void again(struct ask *a)
{
    if (resolvers == 0 || !send_query(a))
        finish(a, NULL, 0);
}

static void answered(struct sb_watch *w, uint32_t events)
{
    static unsigned char buf[65536];
    struct ask *a = SB_WATCHED(w, struct ask, watch);
    (void)events;
    ssize_t n = recv(w->fd, buf, sizeof buf, 0);
    if (n < 0) {
        if (errno != EAGAIN) /* nobody is there */
            again(a);
        return;
    }
    /* A stray one: the right one may still come. */
    if (n < 12 || memcmp(buf, a->query, 2) != 0 || (buf[2] & 0x80) == 0)
        return;
    int rcode = buf[3] & 15;
    if ((rcode == 2 || rcode == 5) && a->tries < resolvers) {
        again(a); /* it cannot say, another may */
        return;
    }
    buf[0] = (unsigned char)(a->id >> 8);
    buf[1] = (unsigned char)a->id;
    finish(a, buf, (size_t)n);
}

static struct ask *free_place(void)
{
    for (struct ask *a = asks; a < asks + ASKS; a++)
        if (a->done == NULL)
            return a;
    return NULL;
}

static bool start(struct ask *a, const unsigned char *query, size_t n, sb_asked *done, void *arg)
{
    a->watch.fd = -1;
    a->arg = arg;
    a->tries = 0;
    a->len = n;
    memcpy(a->query, query, n);
    a->id = (uint16_t)(query[0] << 8 | query[1]);
    if (resolvers == 0 || !send_query(a))
        return false;
    a->done = done;
    sb_watch_timed(1);
    return true;
}

/* Out of the list, at `at`: the caller's from now on. */
static struct late *take_late(struct late **at)
{
    struct late *l = *at;
    *at = l->next;
    if (l->next == NULL)
        late.last = at;
    sb_watch_timed(-1);
    return l;
}

static void start_late(void)
{
    struct ask *a;
    while (late.first != NULL && (a = free_place()) != NULL) {
        struct late *l = take_late(&late.first);
        if (!start(a, l->query, l->len, l->done, l->arg))
            l->done(l->arg, NULL, 0);
        free(l);
    }
}

static bool wait_for_place(const unsigned char *query, size_t n, sb_asked *done, void *arg)
{
    struct late *l = malloc(sizeof *l + n);
    if (l == NULL)
        return false;
    *l = (struct late){
        .done = done, .arg = arg, .due = sb_watch_now() + (int64_t)TRIES * PATIENCE_MS, .len = n};
    memcpy(l->query, query, n);
    *late.last = l;
    late.last = &l->next;
    sb_watch_timed(1);
    return true;
}

bool sb_ask(const unsigned char *query, size_t n, sb_asked *done, void *arg)
{
    if (resolvers == 0 || n < 12 || n > SB_DNS_MAX)
        return false;
    struct ask *a = late.first == NULL ? free_place() : NULL;
    return a != NULL ? start(a, query, n, done, arg) : wait_for_place(query, n, done, arg);
}

void sb_ask_cancel(const void *arg)
{
    for (struct ask *a = asks; a < asks + ASKS; a++)
        if (a->done != NULL && a->arg == arg) {
            sb_watch_drop(&a->watch);
            sb_watch_timed(-1);
            a->done = NULL;
        }
    for (struct late **at = &late.first; *at != NULL;)
        if ((*at)->arg == arg)
            free(take_late(at));
        else
            at = &(*at)->next;
}

void sb_ask_tick(int64_t now)
{
    for (struct ask *a = asks; a < asks + ASKS; a++)
        if (a->done != NULL && a->due <= now)
            again(a);
    while (late.first != NULL && late.first->due <= now) {
        struct late *l = take_late(&late.first);
        l->done(l->arg, NULL, 0);
        free(l);
    }
    start_late(); /* places that were given up */
}
