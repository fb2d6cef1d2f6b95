/* The other end of a stream of events, which answers as the request tells it: for the specs of the E2B data plane.
 *
 * connect_server    prints the port it listens on (on 127.0.0.1) and its process id; ends with its parent.
 *
 * The header "script" of a POST is what to do, step by step, each ended by a semicolon:
 *   h          the head of a stream in chunks          x‹hex›      these bytes as they are
 *   e‹hex›     an envelope in a chunk: flags, payload   o‹n›        that many bytes of stdout, in events of 32 KiB
 *   z          the last chunk                           w‹ms›       waits
 *   c          closes                                   r           resets
 *   q          waits until the client closes            d           waits until it has sent more, or closes
 * With c, r or q the connection ends, otherwise the next request may come. GET tells how many POSTs there were, how
 * many clients have closed under a q, how many connections there were, and the last body, in hexadecimal. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define HEAD 262144
#define BODY 65536
#define EVENT 32768

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long posts, gone, accepted;
static unsigned char last[BODY];
static size_t last_len;

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

static size_t unhex(const char *from, const char *end, unsigned char *to)
{
    size_t n = 0;
    unsigned byte;
    for (; end - from >= 2 && sscanf(from, "%2x", &byte) == 1; from += 2)
        to[n++] = (unsigned char)byte;
    return n;
}

static int send_chunk(int fd, const unsigned char *data, size_t len)
{
    char head[32];
    int n = snprintf(head, sizeof head, "%zx\r\n", len);
    return send_all(fd, head, (size_t)n) < 0 || send_all(fd, data, len) < 0 ||
                   send_all(fd, "\r\n", 2) < 0
               ? -1
               : 0;
}

static void put_length(unsigned char *to, size_t n)
{
    for (int i = 0; i < 4; i++)
        to[i] = (unsigned char)(n >> (24 - 8 * i));
}

static int send_envelope(int fd, unsigned char *bytes, size_t n, unsigned char *chunk)
{
    chunk[0] = bytes[0];
    put_length(chunk + 1, n - 1);
    memcpy(chunk + 5, bytes + 1, n - 1);
    return send_chunk(fd, chunk, n + 4);
}

/* A length in three bytes, whatever it is: padded. */
static unsigned char *put_varint3(unsigned char *to, size_t n)
{
    to[0] = (unsigned char)(n | 0x80);
    to[1] = (unsigned char)(n >> 7 | 0x80);
    to[2] = (unsigned char)(n >> 14 & 0x7f);
    return to + 3;
}

/* StartResponse { event { data { stdout } } }: bytes that count up. */
static int send_output(int fd, size_t total)
{
    unsigned char *chunk = malloc(EVENT + 32);
    int rc = 0;
    for (size_t sent = 0; rc == 0 && sent < total;) {
        size_t n = total - sent < EVENT ? total - sent : EVENT;
        unsigned char *at = chunk;
        *at++ = 0;
        put_length(at, n + 12);
        at += 4;
        *at++ = 0x0a;
        at = put_varint3(at, n + 8);
        *at++ = 0x12;
        at = put_varint3(at, n + 4);
        *at++ = 0x0a;
        at = put_varint3(at, n);
        for (size_t i = 0; i < n; i++)
            at[i] = (unsigned char)((sent + i) % 251);
        rc = send_chunk(fd, chunk, n + 17);
        sent += n;
    }
    free(chunk);
    return rc;
}

static void await(int fd, int counts)
{
    char c;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    poll(&p, 1, 60000);
    if (recv(fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) <= 0 && counts) {
        pthread_mutex_lock(&lock);
        gone++;
        pthread_mutex_unlock(&lock);
    }
}

/* 0: the next request may come. */
static int play(int fd, const char *script, const char *end)
{
    static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: application/connect+proto\r\n"
                               "Transfer-Encoding: chunked\r\n\r\n";
    unsigned char *bytes = malloc(HEAD), *chunk = malloc(HEAD);
    int rc = 0;
    while (rc == 0 && script < end) {
        const char *stop = memchr(script, ';', (size_t)(end - script));
        if (stop == NULL)
            stop = end;
        const char *rest = script + 1;
        struct linger now = {1, 0};
        switch (*script) {
        case 'h':
            rc = send_all(fd, head, sizeof head - 1);
            break;
        case 'x':
            rc = send_all(fd, bytes, unhex(rest, stop, bytes));
            break;
        case 'e':
            rc = send_envelope(fd, bytes, unhex(rest, stop, bytes), chunk);
            break;
        case 'o':
            rc = send_output(fd, strtoul(rest, NULL, 10));
            break;
        case 'z':
            rc = send_all(fd, "0\r\n\r\n", 5);
            break;
        case 'w':
            poll(NULL, 0, (int)strtol(rest, NULL, 10));
            break;
        case 'r':
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
            rc = -1;
            break;
        case 'q':
            await(fd, 1);
            rc = -1;
            break;
        case 'd':
            await(fd, 0);
            break;
        default:
            rc = -1;
        }
        script = stop + 1;
    }
    free(bytes);
    free(chunk);
    return rc;
}

static const char *header(const char *head, const char *name, const char **end)
{
    size_t n = strlen(name);
    for (const char *at = strstr(head, "\r\n"); at != NULL; at = strstr(at + 2, "\r\n")) {
        if (strncasecmp(at + 2, name, n) == 0 && at[2 + n] == ':') {
            at += n + 3;
            at += *at == ' ';
            *end = strstr(at, "\r\n");
            return at;
        }
    }
    return NULL;
}

static int answer_get(int fd)
{
    char *text = malloc(2 * BODY + 512), *at = text;
    pthread_mutex_lock(&lock);
    at += snprintf(at, 96, "%ld %ld %ld ", posts, gone, accepted);
    for (size_t i = 0; i < last_len; i++)
        at += snprintf(at, 3, "%02x", last[i]);
    pthread_mutex_unlock(&lock);
    char head[64];
    int n = snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n",
                     (size_t)(at - text));
    int rc = send_all(fd, head, (size_t)n) < 0 || send_all(fd, text, (size_t)(at - text)) < 0;
    free(text);
    return rc ? -1 : 0;
}

/* One request; 0: another may follow. */
static int serve(int fd, char *buf, size_t *have)
{
    char *body;
    buf[*have] = '\0';
    while ((body = strstr(buf, "\r\n\r\n")) == NULL) {
        ssize_t n = *have < HEAD ? recv(fd, buf + *have, HEAD - *have, 0) : 0;
        if (n <= 0)
            return -1;
        *have += (size_t)n;
        buf[*have] = '\0';
    }
    body += 4;
    const char *end, *length = header(buf, "content-length", &end);
    size_t len = length != NULL ? strtoul(length, NULL, 10) : 0, head = (size_t)(body - buf);
    if (len > BODY)
        return -1;
    while (*have - head < len) {
        ssize_t n = recv(fd, buf + *have, HEAD + BODY - *have, 0);
        if (n <= 0)
            return -1;
        *have += (size_t)n;
    }
    int rc;
    if (strncmp(buf, "POST ", 5) == 0) {
        pthread_mutex_lock(&lock);
        posts++;
        last_len = len;
        memcpy(last, body, len);
        pthread_mutex_unlock(&lock);
        const char *script = header(buf, "script", &end);
        rc = script != NULL ? play(fd, script, end) : -1;
    } else {
        rc = answer_get(fd);
    }
    *have -= head + len;
    memmove(buf, body + len, *have);
    return rc;
}

static void *connection(void *arg)
{
    int fd = (int)(long)arg;
    char *buf = malloc(HEAD + BODY + 1);
    size_t have = 0;
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    pthread_mutex_lock(&lock);
    accepted++;
    pthread_mutex_unlock(&lock);
    while (buf != NULL && serve(fd, buf, &have) == 0)
        ;
    free(buf);
    close(fd);
    return NULL;
}

int main(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) < 0 ||
        listen(fd, 128) < 0 || getsockname(fd, (struct sockaddr *)&address, &len) < 0) {
        perror("connect_server");
        return 1;
    }
    printf("%d %d\n", ntohs(address.sin_port), (int)getpid());
    fflush(stdout);
    for (;;) {
        pthread_t thread;
        int client = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        if (client >= 0 && pthread_create(&thread, NULL, connection, (void *)(long)client) == 0)
            pthread_detach(thread);
        else if (client >= 0)
            close(client);
    }
}
