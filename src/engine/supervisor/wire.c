/* Datagrams with descriptors, in and out. */
#include "wire.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

static unsigned char inbox[SB_MSG_MAX + 1];

/* The fields of a spilled message: only from a memfd that nobody can change any more. */
static int read_spill(struct sb_wire_in *in)
{
    uint64_t size = sb_read_u64(&in->fields, SB_F_SPILL, 0);
    struct stat st;
    if (in->nfd < 1 || size == 0 || size > SB_SPILL_MAX)
        return -1;
    int seals = fcntl(in->fd[0], F_GET_SEALS);
    if (seals < 0 || (seals & (F_SEAL_WRITE | F_SEAL_SHRINK)) != (F_SEAL_WRITE | F_SEAL_SHRINK))
        return -1;
    if (fstat(in->fd[0], &st) < 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size < size)
        return -1;
    in->spill = malloc(size);
    if (in->spill == NULL)
        return -1;
    for (uint64_t at = 0; at < size;) {
        ssize_t got = pread(in->fd[0], in->spill + at, size - at, (off_t)at);
        if (got <= 0)
            return -1;
        at += (uint64_t)got;
    }
    sb_close(&in->fd[0]);
    memmove(in->fd, in->fd + 1, sizeof *in->fd * (size_t)--in->nfd);
    in->fields.at = (unsigned char *)in->spill;
    in->fields.end = in->fields.at + size;
    return 0;
}

int sb_wire_receive(int fd, struct sb_wire_in *in, int max_fds)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int) * SB_MSG_FDS)];
    } control;
    struct iovec io = {inbox, sizeof inbox};
    struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1};
    if (max_fds > 0) {
        m.msg_control = &control;
        m.msg_controllen = sizeof control;
    }
    memset(in, 0, sizeof *in);
    ssize_t n;
    do
        n = recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return errno == EAGAIN ? 0 : -1;
    if (max_fds > 0)
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c != NULL; c = CMSG_NXTHDR(&m, c)) {
            if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
                continue;
            size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            for (size_t i = 0; i < count && in->nfd < SB_MSG_FDS; i++)
                memcpy(&in->fd[in->nfd++], CMSG_DATA(c) + i * sizeof(int), sizeof(int));
        }
    if (n == 0)
        return -1; /* end of file: an empty datagram is no message either */
    if ((m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 || in->nfd > max_fds || n > SB_MSG_MAX ||
        sb_read_begin(&in->fields, &in->head, inbox, (size_t)n) < 0 ||
        ((in->head.flags & SB_MSG_SPILLED) != 0 && read_spill(in) < 0)) {
        sb_wire_done(in);
        return -2;
    }
    struct sb_reader walk = in->fields;
    struct sb_field_view f;
    int rc;
    while ((rc = sb_read_field(&walk, &f)) == 1)
        ;
    if (rc < 0) {
        sb_wire_done(in);
        return -2;
    }
    return 1;
}

void sb_wire_done(struct sb_wire_in *in)
{
    for (int i = 0; i < in->nfd; i++)
        sb_close(&in->fd[i]);
    in->nfd = 0;
    free(in->spill);
    in->spill = NULL;
}

static int send_bytes(int fd, const void *data, size_t len, const int *fds, int nfd)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int) * SB_MSG_FDS)];
    } control;
    union {
        const void *in;
        void *out;
    } bytes = {data};
    struct iovec io = {bytes.out, len};
    struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1};
    if (nfd > 0) {
        memset(&control, 0, sizeof control);
        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)nfd);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)nfd);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * (size_t)nfd);
    }
    ssize_t n;
    do
        n = sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -1 : 0;
}

int sb_wire_send(int fd, const struct sb_packer *p, const int *fds, int nfd)
{
    if (p->overflow) {
        errno = EMSGSIZE;
        return -1;
    }
    return send_bytes(fd, p->buf, p->len, fds, nfd);
}

int sb_wire_big_begin(struct sb_wire_big *b, size_t room, uint16_t type, uint32_t req)
{
    b->memory = malloc(room);
    sb_pack_begin(&b->p, b->memory, b->memory != NULL ? room : 0, type, req, 0);
    return b->memory != NULL ? 0 : -1;
}

int sb_wire_big_send(int fd, struct sb_wire_big *b, const int *fds, int nfd)
{
    if (b->p.overflow || b->p.len <= SB_MSG_MAX - 4096)
        return sb_wire_send(fd, &b->p, fds, nfd);
    size_t size = b->p.len - sizeof(struct sb_msg);
    sb_autofd int mem = memfd_create("sandbar", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (mem < 0 && errno == EINVAL)
        mem = memfd_create("sandbar", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (mem < 0 || nfd >= SB_MSG_FDS ||
        write(mem, b->memory + sizeof(struct sb_msg), size) != (ssize_t)size ||
        fcntl(mem, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return -1;
    unsigned char small[64];
    struct sb_packer p;
    struct sb_msg head;
    int all[SB_MSG_FDS] = {mem};
    memcpy(&head, b->memory, sizeof head);
    sb_pack_begin(&p, small, sizeof small, head.type, head.req, head.epoch);
    head.flags |= SB_MSG_SPILLED;
    memcpy(small, &head, sizeof head);
    sb_pack_u64(&p, SB_F_SPILL, size);
    if (nfd > 0)
        memcpy(all + 1, fds, sizeof *fds * (size_t)nfd);
    return sb_wire_send(fd, &p, all, nfd + 1);
}

void sb_wire_big_free(struct sb_wire_big *b)
{
    free(b->memory);
    b->memory = NULL;
}

int sb_wire_string(const struct sb_reader *r, uint16_t tag, size_t max, char **out)
{
    struct sb_field_view f;
    *out = NULL;
    if (!sb_read_find(r, tag, &f))
        return 0;
    if (f.len > max || memchr(f.data, 0, f.len) != NULL)
        return -1;
    *out = strndup((const char *)f.data, f.len);
    return *out != NULL ? 1 : -1;
}
