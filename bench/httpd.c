/* The web server of the benchmark, the same program on the host and in the sandbox: one thread, keep-alive,
 * `/` answers 13 bytes, `/big/<bytes>` that many. usage: httpd PORT */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static char big[262144];

static int send_all(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
        if (n <= 0)
            return -1;
        data += n;
        len -= (size_t)n;
    }
    return 0;
}

/* One request head has arrived in `head`; answers it. */
static int answer(int fd, const char *head)
{
    char text[128];
    long bytes;
    if (sscanf(head, "GET /big/%ld ", &bytes) != 1) {
        static const char page[] = "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nhello, world\n";
        return send_all(fd, page, sizeof page - 1);
    }
    snprintf(text, sizeof text, "HTTP/1.1 200 OK\r\nContent-Length: %ld\r\n\r\n", bytes);
    if (send_all(fd, text, strlen(text)) != 0)
        return -1;
    for (; bytes > 0; bytes -= (long)sizeof big)
        if (send_all(fd, big, bytes < (long)sizeof big ? (size_t)bytes : sizeof big) != 0)
            return -1;
    return 0;
}

int main(int argc, char **argv)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct pollfd fds[65] = {{.events = POLLIN}};
    int used = 1, one = 1;

    if (argc != 2)
        return 2;
    at.sin_port = htons((unsigned short)strtol(argv[1], NULL, 10));
    fds[0].fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fds[0].fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fds[0].fd, (struct sockaddr *)&at, sizeof at) != 0 || listen(fds[0].fd, 64) != 0)
        return 1;
    for (;;) {
        poll(fds, (nfds_t)used, -1);
        if ((fds[0].revents & POLLIN) && used < 65) {
            int fd = accept(fds[0].fd, NULL, NULL);
            if (fd >= 0) {
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                fds[used++] = (struct pollfd){.fd = fd, .events = POLLIN};
            }
        }
        for (int i = used - 1; i > 0; i--) {
            char head[8192];
            ssize_t n;
            if (fds[i].revents == 0)
                continue;
            n = recv(fds[i].fd, head, sizeof head - 1, 0);
            head[n > 0 ? n : 0] = '\0';
            if (n <= 0 || answer(fds[i].fd, head) != 0) {
                close(fds[i].fd);
                fds[i] = fds[--used];
            }
        }
    }
}
