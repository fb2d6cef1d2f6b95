/* Connections whose TLS is opened: by the relay's second process, for hosts whose requests get headers. It gets both
 * sockets; ours stay, to cut them. */
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tcp.h"

/* Never waited for: it may be waiting for us. */
static struct sb_watch other = {.fd = -1};

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

static void other_ready(struct sb_watch *w, uint32_t events)
{
    unsigned char buf[256];
    struct sb_msg head;
    struct sb_reader fields;
    (void)events;
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

/* With the first one comes what it counts into. */
void sb_opened_tell(const unsigned char *policy, size_t n)
{
    static bool told;
    size_t fds = !told && sb_relay_counts_fd >= 0 ? 1 : 0;
    if (!sb_opened_have())
        return;
    if (send_with(policy, n, &sb_relay_counts_fd, fds) < 0)
        _exit(5);
    told = true;
}

int sb_opened_hand(struct sb_tcp *c)
{
    static unsigned char buf[SB_MSG_MAX];
    static uint64_t serial;
    const int fd[2] = {c->in.fd, c->out.fd};
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
    return p.overflow ? -1 : send_with(p.buf, p.len, fd, 2);
}
