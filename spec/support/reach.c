/* reach tcp|udp|icmp|udplite ADDRESS PORT [TEXT] [HOW]: what a program inside a sandbox gets when it talks to somebody.
 *
 * Prints one line: "ok BYTES", "closed", "reset", "refused", "error NAME", "silent" (nothing came for 3 s), and
 * behind it what came. TEXT may hold \r \n \xHH. HOW: "slow" sends a byte at a time, "hold" waits for a line on
 * its input before it sends and prints "held" when connected, "shut" ends its sending. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static size_t decode(char *out, const char *in)
{
    size_t n = 0;
    while (*in != '\0') {
        if (in[0] == '\\' && in[1] == 'x' && in[2] != '\0' && in[3] != '\0') {
            const char hex[] = {in[2], in[3], '\0'};
            out[n++] = (char)strtoul(hex, NULL, 16);
            in += 4;
        } else if (in[0] == '\\' && (in[1] == 'r' || in[1] == 'n')) {
            out[n++] = in[1] == 'r' ? '\r' : '\n';
            in += 2;
        } else {
            out[n++] = *in++;
        }
    }
    return n;
}

static int failed(void)
{
    switch (errno) {
    case ECONNREFUSED:
        puts("refused");
        break;
    case ECONNRESET:
    case EPIPE:
        puts("reset");
        break;
    default:
        printf("error %s\n", strerrorname_np(errno));
    }
    return 1;
}

int main(int argc, char **argv)
{
    enum { PATIENCE_MS = 3000, MOST = 1 << 20 };
    struct sockaddr_in in4 = {.sin_family = AF_INET};
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
    if (argc < 4)
        return 2;
    int stream = strcmp(argv[1], "tcp") == 0, port = (int)strtol(argv[3], NULL, 10);
    const char *how = argc > 5 ? argv[5] : "";
    int v4 = inet_pton(AF_INET, argv[2], &in4.sin_addr) == 1;
    if (!v4 && inet_pton(AF_INET6, argv[2], &in6.sin6_addr) != 1)
        return 2;
    in4.sin_port = in6.sin6_port = htons((uint16_t)port);
    int protocol = strcmp(argv[1], "udplite") == 0 ? IPPROTO_UDPLITE
                   : strcmp(argv[1], "icmp") != 0  ? 0
                   : v4                            ? IPPROTO_ICMP
                                                   : IPPROTO_ICMPV6;
    int fd = socket(v4 ? AF_INET : AF_INET6, stream ? SOCK_STREAM : SOCK_DGRAM, protocol);
    if (fd < 0 || connect(fd, v4 ? (struct sockaddr *)&in4 : (struct sockaddr *)&in6,
                          v4 ? sizeof in4 : sizeof in6) < 0)
        return failed();
    if (strcmp(how, "hold") == 0) {
        char line[16];
        puts("held");
        fflush(stdout);
        if (fgets(line, sizeof line, stdin) == NULL)
            return 2;
    }
    static char text[MOST], got[MOST];
    size_t n = decode(text, argc > 4 ? argv[4] : ""), have = 0;
    size_t step = strcmp(how, "slow") == 0 ? 1 : n;
    for (size_t at = 0; at < n; at += step) {
        if (send(fd, text + at, step, MSG_NOSIGNAL) < 0)
            return failed();
        if (step < n)
            usleep(1000);
    }
    if (strcmp(how, "shut") == 0)
        shutdown(fd, SHUT_WR);
    for (;;) {
        struct pollfd p = {fd, POLLIN, 0};
        int rc = poll(&p, 1, have > 0 ? PATIENCE_MS / 6 : PATIENCE_MS);
        if (rc == 0 && have == 0) {
            puts("silent");
            return 1;
        }
        if (rc == 0)
            break;
        ssize_t more = recv(fd, got + have, sizeof got - have, 0);
        if (more < 0)
            return failed();
        if (more == 0 && have == 0) {
            puts("closed");
            return 1;
        }
        if (more == 0)
            break;
        have += (size_t)more;
        if (!stream || have == sizeof got)
            break;
    }
    printf("ok %zu\n", have);
    fwrite(got, 1, have, stdout);
    return 0;
}
