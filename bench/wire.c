/* Bytes and round trips through TCP, for what lies between a client in a network of its own and a server on the host.
 *   wire server PORT                     serves until it is killed
 *   wire client ADDRESS PORT rtt N       prints the median of N round trips of a byte, in microseconds
 *   wire client ADDRESS PORT out|in N    prints the seconds that N bytes take to there, or from there
 * A client gives up after 10 seconds. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static char buf[256 * 1024];

struct ask {
    char what[8];
    uint64_t n;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void take(int fd, size_t n)
{
    while (n > 0) {
        ssize_t got = read(fd, buf, n < sizeof buf ? n : sizeof buf);
        if (got <= 0)
            exit(3);
        n -= (size_t)got;
    }
}

static void give(int fd, size_t n)
{
    while (n > 0) {
        ssize_t done = write(fd, buf, n < sizeof buf ? n : sizeof buf);
        if (done <= 0)
            exit(3);
        n -= (size_t)done;
    }
}

static void no_delay(int fd)
{
    static const int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void answer(int fd)
{
    struct ask ask;
    no_delay(fd);
    if (recv(fd, &ask, sizeof ask, MSG_WAITALL) != sizeof ask)
        return;
    if (strcmp(ask.what, "out") == 0) {
        take(fd, ask.n);
        give(fd, 1);
    } else if (strcmp(ask.what, "in") == 0) {
        give(fd, ask.n);
    } else {
        while (read(fd, buf, 1) == 1)
            give(fd, 1);
    }
}

static int serve(uint16_t port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) < 0 || listen(fd, 16) < 0) {
        perror("wire: listen");
        return 1;
    }
    for (;;) { /* one at a time: so are the clients */
        int c = accept(fd, NULL, NULL);
        if (c < 0)
            return 1;
        pid_t pid = fork();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            answer(c);
            _exit(0);
        }
        close(c);
    }
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void round_trips(int fd, size_t n)
{
    double *times = calloc(n, sizeof *times);
    if (times == NULL)
        exit(1);
    for (size_t i = 0; i < n; i++) {
        double start = now();
        give(fd, 1);
        take(fd, 1);
        times[i] = now() - start;
    }
    qsort(times, n, sizeof *times, compare);
    printf("%.3f\n", times[n / 2] * 1e6);
    free(times);
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_IGN);
    if (argc == 3 && strcmp(argv[1], "server") == 0)
        return serve((uint16_t)strtol(argv[2], NULL, 10));
    if (argc != 6 || strcmp(argv[1], "client") != 0)
        return 2;
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)strtol(argv[3], NULL, 10))};
    struct ask ask = {.n = strtoull(argv[5], NULL, 10)};
    snprintf(ask.what, sizeof ask.what, "%s", argv[4]);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (inet_pton(AF_INET, argv[2], &to.sin_addr) != 1 ||
        connect(fd, (struct sockaddr *)&to, sizeof to) < 0) {
        perror("wire: connect");
        return 1;
    }
    no_delay(fd);
    alarm(10);
    if (write(fd, &ask, sizeof ask) != sizeof ask)
        return 1;
    double start = now();
    if (strcmp(ask.what, "rtt") == 0) {
        round_trips(fd, ask.n);
        return 0;
    }
    if (strcmp(ask.what, "out") == 0) {
        give(fd, ask.n);
        take(fd, 1);
    } else {
        take(fd, ask.n);
    }
    printf("%.6f\n", now() - start);
    return 0;
}
