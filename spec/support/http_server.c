/* A web server that misbehaves on demand, for the HTTP specs. One thread a connection, plain
 * HTTP/1.1.
 *
 * http_server [-6] [port]   prints the port it listens on (on 127.0.0.1, or on ::1) and its
 * process id; ends with its parent.
 *
 * http_server -c path       connects to a unix socket instead, sends its stdin, half-closes,
 * prints how many bytes came back, and the last 200.
 *
 * The path of a request says what happens; see `answer`. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define HEAD (1 << 20)

static _Atomic long connections, accepted, posts, held;

struct client {
    int fd;
    char *head;      /* of the request being answered, zero-terminated */
    size_t head_len; /* with the empty line */
    size_t have;     /* bytes in `head`, later ones included */
    int requests;
};

static int send_all(int fd, const void *data, size_t len)
{
    for (const char *at = data; len > 0;) {
        ssize_t n = send(fd, at, len, MSG_NOSIGNAL);
        if (n <= 0)
            return -1;
        at += n;
        len -= (size_t)n;
    }
    return 0;
}

__attribute__((format(printf, 2, 3))) static int say(int fd, const char *fmt, ...)
{
    char *text;
    va_list args;
    va_start(args, fmt);
    int n = vasprintf(&text, fmt, args);
    va_end(args);
    if (n < 0)
        return -1;
    int rc = send_all(fd, text, (size_t)n);
    free(text);
    return rc;
}

static void nap(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

static void reset(int fd)
{
    struct linger now = {1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

static const char *header(const struct client *c, const char *name)
{
    size_t len = strlen(name);
    for (const char *at = strstr(c->head, "\r\n"); at != NULL; at = strstr(at, "\r\n")) {
        at += 2;
        if (strncasecmp(at, name, len) == 0 && at[len] == ':')
            return at + len + 1 + strspn(at + len + 1, " ");
    }
    return NULL;
}

/* Reads from what came with the head, then from the socket. */
static ssize_t take(struct client *c, void *buf, size_t room)
{
    size_t early = c->have - c->head_len;
    if (early == 0)
        return recv(c->fd, buf, room, 0);
    size_t n = early < room ? early : room;
    memcpy(buf, c->head + c->head_len, n);
    memmove(c->head + c->head_len, c->head + c->head_len + n, early - n);
    c->have -= n;
    return (ssize_t)n;
}

static int take_line(struct client *c, char *line, size_t room)
{
    size_t n = 0;
    while (n + 1 < room) {
        if (take(c, line + n, 1) != 1)
            return -1;
        if (line[n++] == '\n')
            break;
    }
    line[n] = '\0';
    return 0;
}

/* Hands the body to `piece` as it comes; -1 when it was cut. */
static int body(struct client *c, void (*piece)(void *arg, const char *data, size_t len), void *arg)
{
    static const char go[] = "HTTP/1.1 100 Continue\r\n\r\n";
    const char *length = header(c, "Content-Length"), *coding = header(c, "Transfer-Encoding");
    char buf[65536], line[64];
    if (header(c, "Expect") != NULL)
        send_all(c->fd, go, sizeof go - 1);
    if (coding != NULL) {
        for (;;) {
            if (take_line(c, line, sizeof line) < 0)
                return -1;
            unsigned long left = strtoul(line, NULL, 16);
            int last = left == 0;
            while (left > 0) {
                ssize_t n = take(c, buf, left < sizeof buf ? left : sizeof buf);
                if (n <= 0)
                    return -1;
                piece(arg, buf, (size_t)n);
                left -= (unsigned long)n;
            }
            if (take_line(c, line, sizeof line) < 0)
                return -1;
            if (last)
                return 0;
        }
    }
    unsigned long left = length != NULL ? strtoul(length, NULL, 10) : 0;
    while (left > 0) {
        ssize_t n = take(c, buf, left < sizeof buf ? left : sizeof buf);
        if (n <= 0)
            return -1;
        piece(arg, buf, (size_t)n);
        left -= (unsigned long)n;
    }
    return 0;
}

struct kept {
    char *data;
    size_t len;
};

static void keep(void *arg, const char *data, size_t len)
{
    struct kept *kept = arg;
    kept->data = realloc(kept->data, kept->len + len + 1);
    memcpy(kept->data + kept->len, data, len);
    kept->len += len;
}

static void count(void *arg, const char *data, size_t len)
{
    (void)data;
    *(size_t *)arg += len;
}

static void report(void *arg, const char *data, size_t len)
{
    char line[32];
    (void)data;
    int n = snprintf(line, sizeof line, "%zu\n", len);
    say(*(int *)arg, "%x\r\n%s\r\n", (unsigned)n, line);
}

static int whole(int fd, const char *data, size_t len)
{
    return say(fd, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", len) < 0 ||
                   send_all(fd, data, len) < 0
               ? -1
               : 0;
}

static int number(int fd, long n)
{
    char text[32];
    snprintf(text, sizeof text, "%ld", n);
    return whole(fd, text, strlen(text));
}

/* -1: the connection ends. */
static int answer(struct client *c)
{
    char method[16] = "", path[256] = "", *query;
    int fd = c->fd, n = 0, ms = 0;
    sscanf(c->head, "%15s %255s", method, path);
    query = path;
#define IS(prefix) \
    (strncmp(path, prefix, sizeof prefix - 1) == 0 && (query = path + sizeof prefix - 1))
    if (strcmp(method, "POST") == 0)
        posts++;

    if (IS("/status/")) { /* /status/404 */
        size_t len = 0;
        n = atoi(query);
        if (body(c, count, &len) < 0)
            return -1;
        if (n == 204 || n == 304)
            return say(fd, "HTTP/1.1 %d Odd words (here)\r\nX-Kind: bare\r\n\r\n", n);
        return say(fd,
                   "HTTP/1.1 %d Odd words (here)\r\nLocation: "
                   "http://127.0.0.1:1/\r\nContent-Length: 5\r\n\r\n%s",
                   n, strcmp(method, "HEAD") == 0 ? "" : "hello");
    }
    if (IS("/raw")) { /* the request's head comes back */
        size_t len = 0;
        char *copy = strndup(c->head, c->head_len);
        int rc = body(c, count, &len);
        rc = rc < 0 ? rc : whole(fd, copy, strlen(copy));
        free(copy);
        return rc;
    }
    if (IS("/echo")) {
        struct kept kept = {NULL, 0};
        int rc = body(c, keep, &kept);
        rc = rc < 0 ? rc : whole(fd, kept.data != NULL ? kept.data : "", kept.len);
        free(kept.data);
        return rc;
    }
    if (IS("/count-body")) {
        size_t len = 0;
        return body(c, count, &len) < 0 ? -1 : number(fd, (long)len);
    }
    if (IS("/pieces")) { /* tells at once how much of the body has come, again and again */
        say(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        if (body(c, report, &fd) < 0)
            return -1;
        return say(fd, "0\r\n\r\n");
    }
    if (IS("/refuse-body")) { /* answers without reading it */
        say(fd, "HTTP/1.1 413 Too much\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno");
        shutdown(fd, SHUT_WR);
        nap(200);
        return -1;
    }
    if (IS("/headers/")) { /* /headers/60: that many KiB of them */
        say(fd, "HTTP/1.1 200 OK\r\n");
        for (n = 0; n < atoi(query); n++)
            say(fd, "X-Fat-%d: %01000d\r\n", n, 7);
        return say(fd, "Content-Length: 0\r\n\r\n");
    }
    if (IS("/cookies")) {
        say(fd, "HTTP/1.1 200 OK\r\n");
        for (n = 1; n <= 20; n++)
            say(fd, "%s: c%d=%d; Path=/\r\n", n % 2 ? "Set-Cookie" : "set-cookie", n, n);
        return say(fd, "Content-Length: 0\r\n\r\n");
    }
    if (IS("/drip/")) { /* /drip/5/100: five pieces, 100 ms apart */
        say(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        sscanf(query, "%d/%d", &n, &ms);
        for (int i = 1; i <= n; i++) {
            if (say(fd, "7\r\npiece %d\r\n", i) < 0)
                return -1;
            nap(ms);
        }
        return say(fd, "0\r\nX-Trailer: late\r\n\r\n");
    }
    if (IS("/big/")) { /* /big/n: n bytes; /big/n/chunks, /big/n/close, /big/n/cut: one byte too few */
        char block[65536];
        memset(block, 'x', sizeof block);
        long left = atol(query);
        const char *how = strchr(query, '/');
        int chunks = how != NULL && strcmp(how, "/chunks") == 0;
        int ends = how != NULL && strcmp(how, "/close") == 0;
        int cut = how != NULL && strcmp(how, "/cut") == 0;
        if (chunks)
            say(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        else if (ends)
            say(fd, "HTTP/1.0 200 OK\r\n\r\n");
        else
            say(fd, "HTTP/1.1 200 OK\r\nContent-Length: %ld\r\n\r\n", left + cut);
        while (left > 0) {
            size_t len = left < (long)sizeof block ? (size_t)left : sizeof block;
            if ((chunks && say(fd, "%zx\r\n", len) < 0) || send_all(fd, block, len) < 0 ||
                (chunks && say(fd, "\r\n") < 0))
                return -1;
            left -= (long)len;
        }
        return chunks ? say(fd, "0\r\n\r\n") : ends || cut ? -1 : 0;
    }
    if (IS("/endless")) {
        say(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        held++;
        while (say(fd, "5\r\nmore\n\r\n") == 0)
            nap(5);
        held--;
        return -1;
    }
    if (IS("/silent")) { /* no answer until the other side goes */
        char byte;
        held++;
        while (recv(fd, &byte, 1, 0) > 0)
            continue;
        held--;
        return -1;
    }
    if (IS("/cut/length")) {
        say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this");
        return -1;
    }
    if (IS("/cut/chunk")) {
        say(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nonly this");
        return -1;
    }
    if (IS("/cut/between")) {
        say(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nwhole\r\n");
        return -1;
    }
    if (IS("/cut/head")) {
        say(fd, "HTTP/1.1 200 OK\r\nContent-Type: te");
        return -1;
    }
    if (IS("/cut/reset")) {
        say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this");
        nap(100);
        reset(fd);
        return -1;
    }
    if (IS("/until-close")) {
        say(fd, "HTTP/1.0 200 OK\r\n\r\nall of it");
        return -1;
    }
    if (IS("/nothing"))
        return -1;
    if (IS("/flood/")) { /* without an end */
        const char *first = "HTTP/1.1 200 OK\r\n",
                   *next = "X-A: 0123456789012345678901234567890123456789\r\n";
        if (strcmp(query, "line") == 0)
            first = "HTTP/1.1 200 OK\r\nX-A: ", next = "0123456789012345678901234567890123456789";
        else if (strcmp(query, "hints") == 0)
            first = "", next = "HTTP/1.1 103 Early Hints\r\nX-A: 1\r\n\r\n";
        else if (strcmp(query, "trailers") == 0)
            first = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n";
        say(fd, "%s", first);
        while (say(fd, "%s", next) == 0)
            continue;
        return -1;
    }
    if (IS("/rubbish")) {
        say(fd, "220 this is no web server\r\n");
        nap(50);
        return -1;
    }
    if (IS("/second-dies")) { /* the connection's first request is answered, a later one is not */
        size_t len = 0;
        if (body(c, count, &len) < 0)
            return -1;
        return c->requests > 1 ? -1 : whole(fd, "first", 5);
    }
    if (IS("/posts"))
        return number(fd, posts);
    if (IS("/accepted"))
        return number(fd, accepted);
    if (IS("/connections"))
        return number(fd, connections);
    if (IS("/held")) /* by /endless and /silent */
        return number(fd, held);
    if (IS("/tunnel")) { /* bytes go back until the half-close; then a word */
        char buf[4096];
        ssize_t got;
        say(fd, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n");
        while ((got = take(c, buf, sizeof buf)) > 0)
            send_all(fd, buf, (size_t)got);
        send_all(fd, "bye", 3);
        return -1;
    }
    return say(fd, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
}

static void *serve(void *arg)
{
    struct client client = {.fd = (int)(long)arg, .head = malloc(HEAD + 1)};
    connections++;
    for (;;) {
        char *end;
        client.head[client.have] = '\0';
        while ((end = memmem(client.head, client.have, "\r\n\r\n", 4)) == NULL &&
               client.have < HEAD) {
            ssize_t n = recv(client.fd, client.head + client.have, HEAD - client.have, 0);
            if (n <= 0)
                goto out;
            client.have += (size_t)n;
            client.head[client.have] = '\0';
        }
        if (end == NULL)
            goto out;
        client.head_len = (size_t)(end - client.head) + 4;
        client.requests++;
        if (answer(&client) < 0)
            goto out;
        client.have -= client.head_len;
        memmove(client.head, client.head + client.head_len, client.have);
    }
out:
    connections--;
    close(client.fd);
    free(client.head);
    return NULL;
}

static int client(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    static char buf[65536 + 200];
    size_t total = 0, kept = 0;
    ssize_t n;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
        perror(path);
        return 1;
    }
    while ((n = read(0, buf, sizeof buf)) > 0)
        send_all(fd, buf, (size_t)n);
    shutdown(fd, SHUT_WR);
    while ((n = recv(fd, buf + kept, sizeof buf - kept, 0)) > 0) {
        total += (size_t)n;
        kept += (size_t)n;
        if (kept > 200) {
            memmove(buf, buf + kept - 200, 200);
            kept = 200;
        }
    }
    printf("%zu %s", total, n < 0 ? "(reset) " : "");
    fwrite(buf, 1, kept, stdout);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "-c") == 0)
        return client(argv[2]);
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address = {0};
    socklen_t len = sizeof address.v4;
    int one = 1, at = 1;
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    address.v4.sin_family = AF_INET;
    address.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (at < argc && strcmp(argv[at], "-6") == 0) {
        address.v6 =
            (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
        len = sizeof address.v6;
        at++;
    }
    if (at < argc)
        address.v4.sin_port = htons((unsigned short)atoi(argv[at])); /* same place in both */
    int fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (fd < 0 || bind(fd, &address.any, len) < 0 || listen(fd, 1024) < 0 ||
        getsockname(fd, &address.any, &len) < 0) {
        perror("http_server");
        return 1;
    }
    printf("%d %d\n", ntohs(address.v4.sin_port), (int)getpid());
    fflush(stdout);
    for (;;) {
        int client = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        pthread_t thread;
        if (client < 0)
            continue;
        setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        accepted++;
        if (pthread_create(&thread, NULL, serve, (void *)(long)client) == 0)
            pthread_detach(thread);
        else
            close(client);
    }
}
