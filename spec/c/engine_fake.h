/* For the tests of the engine's caller side: a supervisor that is a thread of this process, and the pid 1 of
 * every sandbox it "creates", which is the test itself, on its end of a socket pair. */
#ifndef ENGINE_FAKE_H
#define ENGINE_FAKE_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "check.h"
#include "engine/lifecycle.h"
#include "engine/proc.h"
#include "engine/proto.h"

struct fake {
    char root[64];
    int listener;
    pthread_t thread;
    _Atomic int pid1; /* the far end of the newest sandbox's connection */
    _Atomic int busy; /* answering: it may still have the descriptor that it has sent */
    _Atomic int hellos, infos, destroys, creates;
    _Atomic int hang_up; /* how many more requests are answered by closing the connection */
    _Atomic int dead;    /* 1: it hangs up at the next message: a copy of its socket outlived it */
    _Atomic int refuse_create; /* answer create with AlreadyExists */
    _Atomic int deaf;          /* 1: the next create makes it 2, and hangs up once it is 0 */
    _Atomic int lost_creates;  /* those answered by hanging up, and the token of the last one */
    char lost_token[64], token[64]; /* and of the last create or destroy that was answered */
    size_t token_len;
    const char *state; /* what info says */
};

static inline void send_msg(int fd, const void *data, size_t len, const int *fds, unsigned nfds)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(64 * sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (nfds > 0) {
        memset(&control, 0, sizeof control);
        msg.msg_control = &control;
        msg.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(nfds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, nfds * sizeof(int));
    }
    CHECK(sendmsg(fd, &msg, MSG_NOSIGNAL) == (ssize_t)len);
}

/* One message; its length, 0 at the end. Descriptors (at most 4) go to fds, -1 for none. */
static inline size_t recv_msg(int fd, unsigned char *buf, size_t room, struct sb_msg *head,
                              struct sb_reader *r, int fds[4])
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(16 * sizeof(int))];
    } control;
    struct iovec iov = {buf, room};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = sizeof control};
    struct pollfd p = {fd, POLLIN, 0};
    CHECK(poll(&p, 1, 10000) == 1);
    ssize_t n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
    for (int i = 0; i < 4; i++)
        fds[i] = -1;
    if (n <= 0)
        return 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c != NULL; c = CMSG_NXTHDR(&msg, c))
        memcpy(fds, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0));
    CHECK(sb_read_begin(r, head, buf, (size_t)n) == 0);
    return (size_t)n;
}

static inline size_t fake_token(const struct sb_reader *r, char token[64])
{
    struct sb_field_view f;
    if (!sb_read_find(r, SB_F_TOKEN, &f))
        return 0;
    CHECK(f.len <= 64);
    memcpy(token, f.data, f.len);
    return f.len;
}

static inline void fake_answer(struct fake *fake, int fd, const struct sb_msg *head,
                               const struct sb_reader *r)
{
    unsigned char out[4096];
    struct sb_packer p;
    struct sb_field_view id;
    int pair[2] = {-1, -1};
    sb_pack_begin(&p, out, sizeof out, SB_REPLY, head->req, 0);
    if (head->type == SB_S_CREATE || head->type == SB_S_DESTROY)
        fake->token_len = fake_token(r, fake->token);
    switch (head->type) {
    case SB_S_HELLO:
        fake->hellos++;
        sb_pack_u64(&p, SB_F_VERSION, SB_PROTO_VERSION);
        sb_pack_u64(&p, SB_F_RELEASE, UINT32_MAX); /* nobody asks it to leave */
        break;
    case SB_S_CREATE:
    case SB_S_CONNECT:
        fake->creates += head->type == SB_S_CREATE;
        if (fake->refuse_create) {
            sb_pack_begin(&p, out, sizeof out, SB_ERROR, head->req, 0);
            sb_pack_str(&p, SB_F_KIND, "AlreadyExists");
            sb_pack_str(&p, SB_F_MESSAGE, "it is\033[31m there");
            break;
        }
        CHECK(sb_read_find(r, SB_F_ID, &id));
        sb_pack_bytes(&p, SB_F_ID, id.data, id.len);
        sb_pack_str(&p, SB_F_BOOT, "boot-1");
        sb_pack_u64(&p, SB_F_EPOCH, 7);
        CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
        fake->pid1 = pair[1];
        break;
    case SB_S_INFO:
        fake->infos++;
        sb_pack_str(&p, SB_F_STATE, fake->state);
        sb_pack_str(&p, SB_F_BOOT, "boot-1");
        break;
    case SB_S_DESTROY:
        fake->destroys++;
        break;
    case SB_S_LIST:
        for (int i = 0; i < 3; i++) {
            sb_pack_begin(&p, out, sizeof out, SB_PART, head->req, 0);
            sb_pack_u64(&p, SB_F_COUNT, (uint64_t)i);
            send_msg(fd, out, p.len, NULL, 0);
        }
        sb_pack_begin(&p, out, sizeof out, SB_REPLY, head->req, 0);
        sb_pack_str(&p, SB_F_NEXT, "more");
        break;
    default:
        break;
    }
    send_msg(fd, out, p.len, pair, pair[0] >= 0);
    if (pair[0] >= 0)
        close(pair[0]);
}

static void *fake_run(void *arg)
{
    struct fake *fake = arg;
    static unsigned char buf[SB_MSG_MAX];
    for (;;) {
        int fd = accept4(fake->listener, NULL, NULL, SOCK_CLOEXEC), fds[4];
        struct sb_msg head;
        struct sb_reader r;
        if (fd < 0)
            return NULL;
        for (;;) {
            struct pollfd p[2] = {{fd, POLLIN, 0}, {fake->listener, POLLHUP, 0}};
            poll(p, 2, -1);
            if (p[1].revents)
                break;
            if (recv_msg(fd, buf, sizeof buf, &head, &r, fds) == 0)
                break;
            if (head.type == SB_S_CREATE && (fake->hang_up > 0 || fake->deaf)) {
                fake->lost_creates++;
                fake_token(&r, fake->lost_token);
            }
            if (fake->deaf && head.type == SB_S_CREATE) {
                for (fake->deaf = 2; fake->deaf != 0;)
                    usleep(1000);
                break;
            }
            if (fake->hang_up > 0 && head.type != SB_S_HELLO) {
                fake->hang_up--;
                break;
            }
            if (fake->dead) {
                fake->dead = 0;
                break;
            }
            fake->busy = 1;
            fake_answer(fake, fd, &head, &r);
            fake->busy = 0;
        }
        close(fd);
    }
}

static inline void fake_begin(struct fake *fake)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    memset(fake, 0, sizeof *fake);
    snprintf(fake->root, sizeof fake->root, "/tmp/sandbar-engine-XXXXXX");
    CHECK(mkdtemp(fake->root) != NULL);
    snprintf(at.sun_path, sizeof at.sun_path, "%s/v1", fake->root);
    CHECK(mkdir(at.sun_path, 0700) == 0);
    snprintf(at.sun_path, sizeof at.sun_path, "%s/v1/sock", fake->root);
    fake->state = "running";
    fake->pid1 = -1;
    fake->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(bind(fake->listener, (struct sockaddr *)&at, sizeof at) == 0);
    CHECK(listen(fake->listener, 16) == 0);
    CHECK(pthread_create(&fake->thread, NULL, fake_run, fake) == 0);
}

static inline void fake_end(struct fake *fake)
{
    char path[96];
    shutdown(fake->listener, SHUT_RDWR);
    pthread_join(fake->thread, NULL);
    close(fake->listener);
    snprintf(path, sizeof path, "%s/v1/sock", fake->root);
    unlink(path);
    snprintf(path, sizeof path, "%s/v1", fake->root);
    rmdir(path);
    rmdir(fake->root);
}

/* A sandbox; its pid 1's end is in fake->pid1. */
static inline struct sb_box *fake_box(struct fake *fake, struct sb_mailbox *mailbox,
                                      struct sb_engine *engine)
{
    unsigned char buf[64];
    struct sb_packer p;
    sb_pack_begin(&p, buf, sizeof buf, 0, 0, 0);
    sb_pack_str(&p, SB_F_ID, "box");
    struct sb_op *op = sb_engine_open(engine, mailbox, SB_S_CREATE, buf + sizeof(struct sb_msg),
                                      p.len - sizeof(struct sb_msg));
    struct sb_result *r = wait_for(mailbox, op);
    CHECK(r->error.kind == SB_OK && r->object != NULL && r->release != NULL && fake->pid1 >= 0);
    struct sb_box *box = (struct sb_box *)r->object;
    r->object = NULL;
    CHECK(sb_release_cancel(r->release));
    sb_op_unref(op);
    CHECK_SOON(!fake->busy);
    return box;
}

static inline int open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n - 3; /* ".", "..", and the directory itself */
}

/* Lets the I/O thread finish what it has been given. */
static inline void settle(void)
{
    for (int i = 0; i < 3; i++)
        on_loop(check_nothing, NULL);
}

#endif
