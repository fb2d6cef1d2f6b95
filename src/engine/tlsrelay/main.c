/* The process: what it reads before it gives up everything, its policy, its loop. */
#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../proto.h"
#include "../relay/lockdown.h"
#include "../relay/watch.h"
#include "authority.h"
#include "tlsrelay.h"

enum { CONTROL = 3, TRUSTED_MAX = 4 << 20 };

static struct sb_watch control;
static struct sb_inject inject;
static unsigned char box[SB_MSG_MAX];

static struct sb_relay_counts uncounted;
struct sb_relay_counts *sb_tlsrelay_counts = &uncounted;

/* Carries as well where it cannot count. */
static void take_counts(int fd)
{
    struct sb_relay_counts *at =
        mmap(NULL, SB_COUNTS * sizeof *at, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at != MAP_FAILED)
        sb_tlsrelay_counts = &at[SB_COUNTS_TLS];
}

const struct sb_inject *sb_tlsrelay_inject(void)
{
    return &inject;
}

void sb_tlsrelay_over(uint64_t serial, int how)
{
    unsigned char buf[64];
    struct sb_packer p;
    sb_pack_begin(&p, buf, sizeof buf, SB_R_OPENED, 0, 0);
    sb_pack_u64(&p, SB_F_SERIAL, serial);
    sb_pack_u64(&p, SB_F_INDEX, (uint64_t)how);
    if (send(control.fd, p.buf, p.len, MSG_NOSIGNAL) < 0)
        _exit(1); /* blocking: the relay is gone */
}

/* The certificate and the key are between the rules (inject.h). */
static void take_authority(const struct sb_reader *fields)
{
    struct sb_reader walk = *fields;
    struct sb_field_view v;
    char *cert = NULL, *key = NULL;
    while (sb_read_field(&walk, &v) == 1) {
        char **to = v.tag != SB_F_NET_INJECT || v.len == 0 ? NULL
                    : v.data[0] == 'c'                     ? &cert
                    : v.data[0] == 'k'                     ? &key
                                                           : NULL;
        if (to != NULL && *to == NULL)
            *to = strndup((const char *)v.data + 1, v.len - 1);
    }
    if (cert != NULL && key != NULL && !sb_authority_is(cert))
        sb_authority_set(cert, key); /* without one nothing is served */
    if (key != NULL)
        explicit_bzero(key, strlen(key));
    free(cert);
    free(key);
}

static void take_policy(const struct sb_reader *fields)
{
    struct sb_policy_error e;
    if (sb_inject_read(&inject, fields, &e) < 0)
        sb_inject_wipe(&inject);
    take_authority(fields);
}

static void take_connection(const struct sb_reader *fields, const int fd[2])
{
    char host[SB_NAME_MAX + 1];
    struct sb_field_view name, hello;
    if (sb_read_find(fields, SB_F_NAME, &name) && sb_read_find(fields, SB_F_DATA, &hello) &&
        sb_name_read(host, (const char *)name.data, name.len)) {
        sb_session_open(sb_read_u64(fields, SB_F_SERIAL, 0), host, fd, hello.data, hello.len);
        return;
    }
    close(fd[0]);
    close(fd[1]);
}

static void control_ready(struct sb_watch *w, uint32_t events)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(2 * sizeof(int))];
    } space;
    struct iovec io = {box, sizeof box};
    struct msghdr m = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = &space, .msg_controllen = sizeof space};
    struct sb_msg head;
    struct sb_reader fields;
    int fd[2] = {-1, -1};
    (void)events;
    ssize_t n = recvmsg(w->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0)
        _exit(0);
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (c != NULL && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof fd))
        memcpy(fd, CMSG_DATA(c), sizeof fd);
    else if (c != NULL && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof *fd))
        memcpy(fd, CMSG_DATA(c), sizeof *fd);
    if (sb_read_begin(&fields, &head, box, (size_t)n) < 0)
        _exit(1);
    if (head.type == SB_R_POLICY && fd[0] >= 0)
        take_counts(fd[0]);
    if (head.type == SB_R_POLICY)
        take_policy(&fields);
    else if (head.type == SB_R_OPEN && fd[1] >= 0)
        take_connection(&fields, fd);
    explicit_bzero(box, (size_t)n);
}

/* Whom this machine trusts, in PEM: where its distribution keeps that. */
static char *read_trusted(void)
{
    static const char *const place[] = {"/etc/ssl/certs/ca-certificates.crt",
                                        "/etc/pki/tls/certs/ca-bundle.crt",
                                        "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"};
    struct stat st;
    for (size_t i = 0; i < sizeof place / sizeof *place; i++) {
        int fd = open(place[i], O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0)
            continue;
        size_t size = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size <= TRUSTED_MAX
                          ? (size_t)st.st_size
                          : 0;
        char *text = calloc(1, size + 1);
        ssize_t n = text != NULL ? read(fd, text, size) : -1;
        close(fd);
        if (n > 0)
            return text;
        free(text);
    }
    return calloc(1, 1); /* nobody */
}

static void all_files(void)
{
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "check") == 0)
        return 0; /* its libraries are there */
    char *trusted = argc == 2 ? read_trusted() : NULL;
    /* Nothing of the host's configuration is read, and nothing later on. */
    if (trusted == NULL || OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG, NULL) != 1 ||
        sb_session_start(trusted) < 0 || sb_watch_open() < 0 ||
        sb_watch_add(&control, CONTROL, EPOLLIN, control_ready) < 0)
        return 1;
    free(trusted);
    all_files();
    sb_lock_down(argv[1]);
    sb_watch_run(sb_session_tick);
    return 0;
}
