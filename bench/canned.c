/* What a client of the E2B protocol costs by itself: every command has ended at once, everything else is answered
 * with what FILE holds. One thread, keep-alive. usage: canned FILE; prints its port */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define MOST 64

struct client {
    int fd;
    size_t len;
    char in[65536];
};

static struct client clients[MOST];
static char made[8192], ran[1024];
static size_t made_len, ran_len;

static size_t envelope(char *to, int flags, const char *text)
{
    size_t n = strlen(text);
    memcpy(to, (char[]){(char)flags, 0, 0, (char)(n >> 8), (char)n}, 5);
    memcpy(to + 5, text, n);
    return n + 5;
}

static int prepare(const char *path)
{
    char body[4096];
    FILE *f = fopen(path, "r");
    size_t n = f != NULL ? fread(body, 1, sizeof body - 1, f) : 0;
    if (f == NULL)
        return -1;
    fclose(f);
    body[n] = '\0';
    made_len = (size_t)snprintf(made, sizeof made,
                                "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\n"
                                "Content-Length: %zu\r\n\r\n%s",
                                n, body);
    n = envelope(body, 0, "{\"event\":{\"start\":{\"pid\":7}}}");
    n += envelope(body + n, 0,
                  "{\"event\":{\"end\":{\"exited\":true,\"status\":\"exit status 0\"}}}");
    n += envelope(body + n, 2, "{}");
    ran_len = (size_t)snprintf(ran, sizeof ran,
                               "HTTP/1.1 200 OK\r\nContent-Type: application/connect+json\r\n"
                               "Transfer-Encoding: chunked\r\n\r\n%zx\r\n",
                               n);
    memcpy(ran + ran_len, body, n);
    memcpy(ran + ran_len + n, "\r\n0\r\n\r\n", 7);
    ran_len += n + 7;
    return 0;
}

/* How long the request is that begins at `at`; 0: not all of it is there. */
static size_t whole(const char *at)
{
    const char *end = strstr(at, "\r\n\r\n"), *line;
    if (end == NULL)
        return 0;
    for (line = strstr(at, "\r\n"); line < end; line = strstr(line + 2, "\r\n"))
        if (strncasecmp(line + 2, "content-length:", 15) == 0)
            return (size_t)(end + 4 - at) + strtoul(line + 17, NULL, 10);
    return (size_t)(end + 4 - at);
}

static int serve(struct client *c)
{
    ssize_t n = recv(c->fd, c->in + c->len, sizeof c->in - 1 - c->len, 0);
    if (n <= 0)
        return -1;
    c->len += (size_t)n;
    c->in[c->len] = '\0';
    for (size_t len; (len = whole(c->in)) > 0 && len <= c->len;) {
        int is_start = strncmp(c->in, "POST /process.Process/Start ", 28) == 0;
        size_t out = is_start ? ran_len : made_len;
        if (send(c->fd, is_start ? ran : made, out, MSG_NOSIGNAL) != (ssize_t)out)
            return -1;
        c->len -= len;
        memmove(c->in, c->in + len, c->len + 1);
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t at_len = sizeof at;
    int used = 0, one = 1;
    if (argc != 2 || prepare(argv[1]) < 0)
        return 2;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) != 0 || listen(listener, MOST) != 0 ||
        getsockname(listener, (struct sockaddr *)&at, &at_len) != 0)
        return 1;
    printf("%d\n", ntohs(at.sin_port));
    fflush(stdout);
    for (;;) {
        struct pollfd fds[MOST + 1] = {{.fd = used < MOST ? listener : -1, .events = POLLIN}};
        for (int i = 0; i < used; i++)
            fds[i + 1] = (struct pollfd){.fd = clients[i].fd, .events = POLLIN};
        poll(fds, (nfds_t)used + 1, -1);
        for (int i = used; i > 0; i--)
            if (fds[i].revents != 0 && serve(&clients[i - 1]) != 0) {
                close(clients[i - 1].fd);
                clients[i - 1] = clients[--used];
            }
        if (fds[0].revents != 0 && (clients[used].fd = accept(listener, NULL, NULL)) >= 0) {
            setsockopt(clients[used].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            clients[used++].len = 0;
        }
    }
}
