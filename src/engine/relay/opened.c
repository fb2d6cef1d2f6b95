/* Connections whose TLS is opened: by the relay's second process, for hosts whose requests get headers. It gets both
 * sockets; ours stay, to cut them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tcp.h"

/* Never waited for: it may be waiting for us. */
static struct sb_watch other = {.fd = -1};

/* What it has no room for yet: it is busy with many that began at once. */
struct late {
    struct late *next;
    uint64_t serial; /* of the connection; if that is gone by then, nothing is said of it */
    size_t len;
    unsigned char data[];
};

/* A newer policy takes the place of one that waits, and comes before all connections. */
static struct {
    struct late *policy, *first, **last;
} late = {.last = &late.first};

bool sb_opened_have(void)
{
    return other.fd >= 0;
}

static void ended(const struct sb_reader *fields)
{
    static const sb_refusal why[] = {
        [SB_OPENED_UNREADABLE] = "no readable request inside TLS",
        [SB_OPENED_REFUSED] = "a request that gets no headers for certain",
        [SB_OPENED_UNTRUSTED] = "its certificate is not trusted",
        [SB_OPENED_SERVER] = "it speaks no TLS that we do",
        [SB_OPENED_PROGRAM] = "the program does not trust the sandbox's authority",
    };
    struct sb_tcp *c = sb_tcp_handed(sb_read_u64(fields, SB_F_SERIAL, 0));
    uint64_t how = sb_read_u64(fields, SB_F_INDEX, SB_OPENED_CUT);
    if (c == NULL)
        return;
    if (how < sizeof why / sizeof *why && why[how] != NULL)
        sb_tcp_refuse(c, why[how]);
    else
        sb_tcp_drop(c, how != SB_OPENED_DONE);
}

/* A message with descriptors. 0, or -1. */
static int send_with(const void *data, size_t len, const int *fd, size_t n)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(2 * sizeof(int))];
    } space = {.room = {0}};
    struct iovec io = {(void *)(uintptr_t)data, len};
    struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1};
    if (n > 0) {
        m.msg_control = &space;
        m.msg_controllen = CMSG_SPACE(n * sizeof *fd);
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(n * sizeof *fd);
        memcpy(CMSG_DATA(h), fd, n * sizeof *fd);
    }
    return sendmsg(other.fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -1 : 0;
}

static void forget(struct late *l)
{
    if (l != NULL)
        explicit_bzero(l->data, l->len);
    free(l);
}

static struct late *keep(uint64_t serial, const void *data, size_t len)
{
    struct late *l = malloc(sizeof *l + len);
    if (l == NULL)
        return NULL;
    l->next = NULL;
    l->serial = serial;
    l->len = len;
    memcpy(l->data, data, len);
    sb_watch_want(&other, EPOLLIN | EPOLLOUT);
    return l;
}

/* With the first one comes what it counts into. */
static int send_policy(const void *data, size_t len)
{
    static bool told;
    size_t fds = !told && sb_relay_counts_fd >= 0 ? 1 : 0;
    int rc = send_with(data, len, &sb_relay_counts_fd, fds);
    told = told || rc == 0;
    return rc;
}

static int send_connection(const struct sb_tcp *c, const void *data, size_t len)
{
    const int fd[2] = {c->in.fd, c->out.fd};
    return send_with(data, len, fd, 2);
}

/* There is room again. */
static void send_late(void)
{
    if (late.policy != NULL && send_policy(late.policy->data, late.policy->len) < 0) {
        if (errno == EAGAIN)
            return;
        _exit(5);
    }
    forget(late.policy);
    late.policy = NULL;
    for (struct late *l; (l = late.first) != NULL; forget(l)) {
        struct sb_tcp *c = sb_tcp_handed(l->serial);
        int rc = c != NULL ? send_connection(c, l->data, l->len) : 0;
        if (rc < 0 && errno == EAGAIN)
            return;
        if (rc < 0)
            sb_tcp_drop(c, true);
        late.first = l->next;
        if (late.first == NULL)
            late.last = &late.first;
    }
    sb_watch_want(&other, EPOLLIN);
}

static void other_ready(struct sb_watch *w, uint32_t events)
{
    unsigned char buf[256];
    struct sb_msg head;
    struct sb_reader fields;
    if ((events & EPOLLOUT) != 0)
        send_late();
    if ((events & ~(uint32_t)EPOLLOUT) == 0)
        return;
    ssize_t n = recv(w->fd, buf, sizeof buf, MSG_DONTWAIT);
    if (n <= 0)
        _exit(5); /* both are made anew */
    if (sb_read_begin(&fields, &head, buf, (size_t)n) == 0 && head.type == SB_R_OPENED)
        ended(&fields);
}

void sb_opened_take(int fd)
{
    if (sb_opened_have() || sb_watch_add(&other, fd, EPOLLIN, other_ready) < 0)
        close(fd);
}

void sb_opened_tell(const unsigned char *policy, size_t n)
{
    if (!sb_opened_have())
        return;
    if (late.policy == NULL && send_policy(policy, n) == 0)
        return;
    if (late.policy == NULL && errno != EAGAIN)
        _exit(5);
    forget(late.policy);
    late.policy = keep(0, policy, n);
    if (late.policy == NULL)
        _exit(5);
}

int sb_opened_hand(struct sb_tcp *c)
{
    static unsigned char buf[SB_MSG_MAX];
    static uint64_t serial;
    struct sb_packer p;
    c->serial = ++serial;
    sb_pack_begin(&p, buf, sizeof buf, SB_R_OPEN, 0, 0);
    sb_pack_u64(&p, SB_F_SERIAL, c->serial);
    sb_pack_str(&p, SB_F_NAME, c->name);
    sb_pack_bytes(&p, SB_F_DATA, c->head, c->head_len);
    sb_watch_mute(&c->in);
    sb_watch_mute(&c->out);
    free(c->head);
    c->head = NULL;
    if (p.overflow)
        return -1;
    if (late.policy == NULL && late.first == NULL) {
        if (send_connection(c, p.buf, p.len) == 0)
            return 0;
        if (errno != EAGAIN)
            return -1;
    }
    struct late *l = keep(c->serial, p.buf, p.len);
    if (l == NULL)
        return -1;
    *late.last = l;
    late.last = &l->next;
    return 0;
}
