/* Round trips of a message: a bare seqpacket echo between two processes against a ping of pid 1 on a
 * caller's connection, interleaved. usage: ping ROOT ID PAIRS; prints two medians in microseconds. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "../src/engine/proto.h"

static unsigned char buf[SB_MSG_MAX];

static double micros(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static ssize_t receive(int fd, int *passed)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int) * SB_MSG_FDS)];
    } control;
    struct iovec iov = {buf, sizeof buf};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = sizeof control};
    ssize_t n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    if (c != NULL && passed != NULL)
        memcpy(passed, CMSG_DATA(c), sizeof *passed);
    return n;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct sb_packer p;
    int pair[2], sup, box = -1, pairs;
    double *echo, *ping;
    uint32_t epoch;
    struct sb_reader r;
    struct sb_msg head;
    ssize_t n;

    if (argc != 4)
        return 2;
    pairs = (int)strtol(argv[3], NULL, 10);
    echo = calloc((size_t)pairs, sizeof *echo);
    ping = calloc((size_t)pairs, sizeof *ping);
    if (echo == NULL || ping == NULL || socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) != 0)
        return 1;
    if (fork() == 0) {
        close(pair[0]);
        while ((n = recv(pair[1], buf, sizeof buf, 0)) > 0)
            send(pair[1], buf, (size_t)n, 0);
        _exit(0);
    }
    sup = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    snprintf(at.sun_path, sizeof at.sun_path, "%s/v1/sock", argv[1]);
    if (connect(sup, (struct sockaddr *)&at, sizeof at) != 0)
        return 1;
    sb_pack_begin(&p, buf, sizeof buf, SB_S_HELLO, 1, 0);
    sb_pack_u64(&p, SB_F_VERSION, SB_PROTO_VERSION);
    if (send(sup, buf, p.len, 0) < 0 || receive(sup, NULL) <= 0)
        return 1;
    sb_pack_begin(&p, buf, sizeof buf, SB_S_CONNECT, 2, 0);
    sb_pack_str(&p, SB_F_ID, argv[2]);
    if (send(sup, buf, p.len, 0) < 0 || (n = receive(sup, &box)) <= 0 || box < 0 ||
        sb_read_begin(&r, &head, buf, (size_t)n) != 0)
        return 1;
    epoch = (uint32_t)sb_read_u64(&r, SB_F_EPOCH, 0);
    if (fcntl(box, F_SETFL, 0) != 0) /* it comes non-blocking */
        return 1;
    for (int i = -100; i < pairs; i++) {
        double t0, t1, t2;
        sb_pack_begin(&p, buf, sizeof buf, SB_C_PING, 7, epoch);
        n = (ssize_t)p.len;
        t0 = micros();
        if (send(pair[0], buf, (size_t)n, 0) < 0 || recv(pair[0], buf, sizeof buf, 0) <= 0)
            return 1;
        t1 = micros();
        if (send(box, buf, (size_t)n, 0) < 0 || receive(box, NULL) <= 0)
            return 1;
        t2 = micros();
        if (i >= 0) {
            echo[i] = t1 - t0;
            ping[i] = t2 - t1;
        }
    }
    qsort(echo, (size_t)pairs, sizeof *echo, compare);
    qsort(ping, (size_t)pairs, sizeof *ping, compare);
    printf("%.2f %.2f\n", echo[pairs / 2], ping[pairs / 2]);
    return 0;
}
