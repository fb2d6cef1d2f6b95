/* A server that runs inside a sandbox, of the smallest kind: answers every HTTP request with a text.
 * usage: answer ADDRESS PORT TEXT [v6only | both]
 * Prints "up" when it listens. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int listen_on(const char *address, int port, int v6only)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((unsigned short)port)};
    struct sockaddr *to = (struct sockaddr *)&v4;
    socklen_t len = sizeof v4;
    int one = 1, fd;
    if (inet_pton(AF_INET, address, &v4.sin_addr) != 1) {
        if (inet_pton(AF_INET6, address, &v6.sin6_addr) != 1)
            return -1;
        to = (struct sockaddr *)&v6;
        len = sizeof v6;
    }
    fd = socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (to->sa_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6only, sizeof v6only);
    if (bind(fd, to, len) < 0 || listen(fd, 64) < 0)
        return -1;
    return fd;
}

int main(int argc, char **argv)
{
    char request[8192];
    int fd;
    if (argc < 4) {
        fputs("usage: answer ADDRESS PORT TEXT [v6only | both]\n", stderr);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    fd = listen_on(argv[1], atoi(argv[2]), argc > 4 && strcmp(argv[4], "v6only") == 0);
    if (fd < 0) {
        perror("answer");
        return 1;
    }
    puts("up");
    fflush(stdout);
    for (;;) {
        int client = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        if (client < 0)
            continue;
        if (read(client, request, sizeof request) > 0)
            dprintf(client, "HTTP/1.0 200 OK\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s",
                    strlen(argv[3]), argv[3]);
        shutdown(client, SHUT_WR);
        while (read(client, request, sizeof request) > 0)
            ;
        close(client);
    }
}
