/* A client that sends exactly what it is told: raw_client PORT|PATH STEP...
 *
 *   send=TEXT    \r \n \t \0 \\ \xHH are escapes
 *   fill=N       N bytes 'x'
 *   wait=MS      a pause, for clients that are slow
 *   gate=FIFO    nothing is done until somebody has opened it for writing and closed it
 *   read=N       N bytes of the answer, or to its end
 *   until=TEXT   ... until TEXT has come
 *   sink=N       the same as read, of what is not printed
 *   small        a small receive buffer (before the first byte)
 *   shut         no more is sent
 *   reset        the connection is reset
 *   hang         nothing is read until the other side has reset it
 *   end          to the end of the answer
 *
 * Prints what was received, and in the end how the connection did: "[end]", "[reset]", "[open]" or "[late]". */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define PATIENCE 20000 /* ms without a byte */

static int fd = -1;
static char got[1 << 20];
static size_t have;
static const char *state = "[open]";

static int link_up(const char *where, int small)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    int room = 4096;
    fd = socket(where[0] == '/' ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (small)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    if (where[0] == '/') {
        snprintf(un.sun_path, sizeof un.sun_path, "%s", where);
        return connect(fd, (struct sockaddr *)&un, sizeof un);
    }
    in.sin_port = htons((uint16_t)strtol(where, NULL, 10));
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return connect(fd, (struct sockaddr *)&in, sizeof in);
}

static void send_all(const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
        if (n < 0)
            return; /* the reading tells */
        data += n;
        len -= (size_t)n;
    }
}

static size_t unescape(char *text)
{
    char *to = text;
    for (char *at = text; *at != '\0'; at++) {
        if (*at != '\\') {
            *to++ = *at;
            continue;
        }
        char hex[3] = {0};
        switch (*++at) {
        case 'r':
            *to++ = '\r';
            break;
        case 'n':
            *to++ = '\n';
            break;
        case 't':
            *to++ = '\t';
            break;
        case '0':
            *to++ = '\0';
            break;
        case 'x':
            memcpy(hex, at + 1, 2);
            *to++ = (char)strtol(hex, NULL, 16);
            at += 2;
            break;
        default:
            *to++ = *at;
        }
    }
    return (size_t)(to - text);
}

/* 1: some bytes came, at `have`, at most `most`. */
static ssize_t some(char *to, size_t most)
{
    struct pollfd p = {fd, POLLIN, 0};
    if (poll(&p, 1, PATIENCE) <= 0) {
        state = "[late]";
        return 0;
    }
    ssize_t n = recv(fd, to, most, 0);
    if (n == 0)
        state = "[end]";
    else if (n < 0)
        state = errno == ECONNRESET ? "[reset]" : "[broken]";
    return n > 0 ? n : 0;
}

static void receive(size_t most, const char *until)
{
    size_t from = have;
    while (most > 0 && have < sizeof got) {
        size_t n = sizeof got - have < most ? sizeof got - have : most;
        if (until != NULL)
            n = 1; /* what comes after it is left to the next step */
        ssize_t r = some(got + have, n);
        if (r == 0)
            return;
        have += (size_t)r;
        most -= (size_t)r;
        if (until != NULL && memmem(got + from, have - from, until, strlen(until)) != NULL)
            return;
    }
}

static void sink(size_t most)
{
    static char drop[65536];
    while (most > 0) {
        ssize_t r = some(drop, most < sizeof drop ? most : sizeof drop);
        if (r == 0)
            return;
        most -= (size_t)r;
    }
}

static void step(char *s)
{
    char *value = strchr(s, '=');
    long n = value != NULL ? strtol(value + 1, NULL, 10) : 0;
    struct linger now = {1, 0};
    if (strncmp(s, "send=", 5) == 0) {
        send_all(value + 1, unescape(value + 1));
    } else if (strncmp(s, "fill=", 5) == 0) {
        static char x[65536];
        memset(x, 'x', sizeof x);
        for (; n > 0; n -= (long)sizeof x)
            send_all(x, (size_t)n < sizeof x ? (size_t)n : sizeof x);
    } else if (strncmp(s, "wait=", 5) == 0) {
        poll(NULL, 0, (int)n);
    } else if (strncmp(s, "gate=", 5) == 0) {
        struct pollfd gate = {open(value + 1, O_RDONLY | O_NONBLOCK | O_CLOEXEC), 0, 0};
        poll(&gate, 1, PATIENCE); /* it hangs up */
        close(gate.fd);
    } else if (strncmp(s, "read=", 5) == 0) {
        receive((size_t)n, NULL);
    } else if (strncmp(s, "sink=", 5) == 0) {
        sink((size_t)n);
    } else if (strncmp(s, "until=", 6) == 0) {
        value[1 + unescape(value + 1)] = '\0';
        receive(SIZE_MAX, value + 1);
    } else if (strcmp(s, "shut") == 0) {
        shutdown(fd, SHUT_WR);
    } else if (strcmp(s, "reset") == 0) {
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        close(fd);
        state = "[gone]";
    } else if (strcmp(s, "hang") == 0) {
        struct pollfd p = {fd, 0, 0};
        state = poll(&p, 1, PATIENCE) > 0 && (p.revents & POLLERR) != 0 ? "[reset]" : "[late]";
    } else if (strcmp(s, "end") == 0) {
        receive(SIZE_MAX, NULL);
    } else if (strcmp(s, "small") != 0) {
        fprintf(stderr, "no step: %s\n", s);
        exit(2);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    if (link_up(argv[1], argc > 2 && strcmp(argv[2], "small") == 0) < 0) {
        printf("[refused]");
        return 0;
    }
    for (int i = 2; i < argc; i++)
        step(argv[i]);
    fwrite(got, 1, have, stdout);
    printf("%s", state);
    return 0;
}
