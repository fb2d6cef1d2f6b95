/* A pid 1 that lies. What it does is the sandbox's host name; under any other it says what a supervisor wants to hear, and
 * does nothing. Descriptor 3 is the control channel. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../src/engine/proto.h"

static unsigned char buf[SB_MSG_MAX];

static void send_with(const void *data, size_t len, const int *fds, size_t n)
{
    char control[CMSG_SPACE(sizeof(int) * 253)] = {0};
    struct iovec io = {(void *)(uintptr_t)data, len};
    struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1};
    if (n > 0) {
        m.msg_control = control;
        m.msg_controllen = CMSG_SPACE(sizeof(int) * n);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * n);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * n);
    }
    while (sendmsg(3, &m, MSG_NOSIGNAL) < 0 && (errno == EAGAIN || errno == EINTR)) {
        struct pollfd p = {3, POLLOUT, 0};
        poll(&p, 1, 1000);
    }
}

static size_t message(uint16_t type, uint32_t req, int version)
{
    struct sb_packer p;
    sb_pack_begin(&p, buf, sizeof buf, type, req, 0);
    if (version)
        sb_pack_u64(&p, SB_F_VERSION, SB_PROTO_VERSION);
    return p.len;
}

static void say(uint16_t type, uint32_t req, int version)
{
    send_with(buf, message(type, req, version), NULL, 0);
}

static void hello(void)
{
    say(SB_G_HELLO, 0, 1);
}

static size_t gather(int *fds)
{
    size_t n = 0;
    int ends[2];
    while (n < 248) {
        if (pipe(ends) == 0) {
            fds[n++] = ends[0];
            fds[n++] = ends[1];
        }
        fds[n++] = open("/", O_RDONLY | O_DIRECTORY);
        fds[n++] = epoll_create1(0);
        fds[n++] = open("/dev/zero", O_RDWR);
        fds[n++] = 3; /* a loop: the channel in itself */
    }
    return n;
}

static void lie(const char *what)
{
    int fds[253];
    if (strcmp(what, "silent") == 0) {
        return;
    } else if (strcmp(what, "short") == 0) {
        send_with("abc", 3, NULL, 0);
    } else if (strcmp(what, "empty") == 0) {
        send_with("", 0, NULL, 0);
    } else if (strcmp(what, "noise") == 0) {
        for (size_t i = 0; i < sizeof buf; i++)
            buf[i] = (unsigned char)(i * 2654435761u >> 13);
        send_with(buf, sizeof buf, NULL, 0);
    } else if (strcmp(what, "beyond") == 0) { /* a field that is longer than its message */
        size_t len = message(SB_G_HELLO, 0, 1);
        memset(buf + sizeof(struct sb_msg) + 4, 0xff, 4);
        send_with(buf, len, NULL, 0);
    } else if (strcmp(what, "unknown") == 0) {
        say(9999, 0, 1);
    } else if (strcmp(what, "versionless") == 0) {
        say(SB_G_HELLO, 0, 0);
    } else if (strcmp(what, "twice") == 0) {
        hello();
        hello();
    } else if (strcmp(what, "descriptors") == 0) {
        size_t n = gather(fds), len = message(SB_G_HELLO, 0, 1);
        for (int i = 0; i < 20; i++)
            send_with(buf, len, fds, n);
    } else if (strcmp(what, "spilled") == 0) { /* fields in a descriptor that is none of the kind */
        int wrong[3] = {memfd_create("x", 0), open("/dev/zero", O_RDWR), open("/", O_RDONLY)};
        size_t len = message(SB_G_HELLO, 0, 1);
        ((struct sb_msg *)(void *)buf)->flags = SB_MSG_SPILLED;
        for (size_t i = 0; i < 3; i++)
            send_with(buf, len, &wrong[i], 1);
    } else if (strcmp(what, "answers") == 0) { /* to what was not asked */
        for (uint32_t req = 0; req < 500; req++)
            say(req % 2 == 0 ? SB_REPLY : SB_ERROR, req, 0);
        say(9999, 0, 0);
    } else if (strcmp(what, "refusing") == 0) {
        hello();
        say(SB_ERROR, 1, 0);
    } else if (strcmp(what, "mute") == 0) {
        hello();
    } else if (strcmp(what, "flood") == 0) {
        hello();
        for (;;)
            say(SB_G_NEED_LEAVES, 0, 0);
    } else if (strcmp(what, "closing") == 0) {
        close(3);
    } else if (strcmp(what, "ending") == 0) {
        exit(7);
    } else {
        hello();
        for (;;) { /* whatever is asked is done */
            struct sb_msg head;
            struct pollfd p = {3, POLLIN, 0};
            poll(&p, 1, -1);
            ssize_t n = recv(3, &head, sizeof head, MSG_TRUNC);
            if (n == 0)
                exit(0);
            if (n > 0 && head.req != 0)
                say(SB_REPLY, head.req, 0);
        }
    }
}

int main(void)
{
    char name[65] = "";
    gethostname(name, sizeof name - 1);
    lie(name);
    for (;;)
        pause();
}
