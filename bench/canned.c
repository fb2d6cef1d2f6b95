/* What a client of the E2B protocol costs by itself: every command has ended at once, with 200 MB of output if
 * "200000000" is among its arguments; any file is 100 MiB long; everything else is answered with what FILE holds. In
 * both codecs. One thread, keep-alive, nothing is started. usage: canned FILE; prints its port */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define MOST 128
#define LOOKED_AT 32768 /* bytes of a request's body */
#define FILE_LEN (100L << 20)
#define EVENT 32766 /* bytes of output: in base64 without an end of its own */
#define OUTPUT_EVENTS (200000000 / EVENT + 1) /* of them */
#define AT_ONCE 4                             /* of them in one send */

enum codec { JSON, PROTO };

struct client {
    int fd;
    size_t len;
    char in[65536];
    /* of the request that is being read */
    int in_body, chunked;
    size_t left; /* of its body, or of this chunk and what ends it */
    char head[8192];
    size_t body_len;
    char body[LOOKED_AT + 1];
};

struct text {
    char *at;
    size_t len;
};

static struct client *clients[MOST];
static struct text made, ended[2], begun[2], finish[2], output[2];
static char zeros[262144];

static int send_all(int fd, const char *data, size_t len)
{
    for (ssize_t n; len > 0; data += n, len -= (size_t)n)
        if ((n = send(fd, data, len, MSG_NOSIGNAL)) <= 0)
            return -1;
    return 0;
}

/* ---- what is said ---- */

static void add(struct text *to, const void *data, size_t len)
{
    to->at = realloc(to->at, to->len + len + 1);
    if (to->at == NULL)
        abort();
    memcpy(to->at + to->len, data, len);
    to->len += len;
    to->at[to->len] = '\0';
}

static void add_text(struct text *to, const char *text)
{
    add(to, text, strlen(text));
}

static void add_field(struct text *to, int number, const void *data, size_t len)
{
    unsigned char key[6] = {(unsigned char)(number << 3 | 2)};
    size_t n = 1, rest = len;
    for (; rest > 127; rest >>= 7)
        key[n++] = (unsigned char)(rest | 128);
    key[n++] = (unsigned char)rest;
    add(to, key, n);
    add(to, data, len);
}

static void add_envelope(struct text *to, int flags, const char *data, size_t len)
{
    char head[32],
        lead[5] = {(char)flags, (char)(len >> 24), (char)(len >> 16), (char)(len >> 8), (char)len};
    add(to, head, (size_t)snprintf(head, sizeof head, "%zx\r\n", len + 5));
    add(to, lead, 5);
    add(to, data, len);
    add_text(to, "\r\n");
}

/* An event: field `number` of the union, by its name in JSON. */
static void add_event(struct text *to, enum codec codec, int number, const char *proto, size_t len,
                      const char *json)
{
    struct text event = {0}, outer = {0};
    if (codec == JSON) {
        add_envelope(to, 0, json, strlen(json));
        return;
    }
    add_field(&event, number, proto, len);
    add_field(&outer, 1, event.at, event.len);
    add_envelope(to, 0, outer.at, outer.len);
    free(event.at);
    free(outer.at);
}

static void add_stdout(struct text *to, enum codec codec, const char *data, size_t len)
{
    struct text proto = {0}, json = {0};
    add_field(&proto, 1, data, len);
    add_text(&json, "{\"event\":{\"data\":{\"stdout\":\"");
    for (size_t i = 0; i < len; i += 3)
        add_text(&json, "eHh4"); /* who speaks JSON is told nothing but "xxx..." */
    add_text(&json, "\"}}}");
    add_event(to, codec, 2, proto.at, proto.len, json.at);
    free(proto.at);
    free(json.at);
}

static int prepare(const char *path)
{
    char body[4096], head[512], xs[EVENT];
    FILE *f = fopen(path, "r");
    size_t n = f != NULL ? fread(body, 1, sizeof body, f) : 0;
    if (f == NULL)
        return -1;
    fclose(f);
    add(&made, head,
        (size_t)snprintf(head, sizeof head,
                         "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\n"
                         "Content-Length: %zu\r\n\r\n",
                         n));
    add(&made, body, n);
    memset(xs, 'x', sizeof xs);
    for (int codec = JSON; codec <= PROTO; codec++) {
        add(&begun[codec], head,
            (size_t)snprintf(head, sizeof head,
                             "HTTP/1.1 200 OK\r\nContent-Type: application/connect+%s\r\n"
                             "Transfer-Encoding: chunked\r\n\r\n",
                             codec == JSON ? "json" : "proto"));
        add_event(&begun[codec], codec, 1, "\x08\x07", 2, "{\"event\":{\"start\":{\"pid\":7}}}");
        add_event(&finish[codec], codec, 3, "\20\1\32\15exit status 0", 17,
                  "{\"event\":{\"end\":{\"exited\":true,\"status\":\"exit status 0\"}}}");
        add_envelope(&finish[codec], 2, "{}", 2);
        add_text(&finish[codec], "0\r\n\r\n");
        add(&ended[codec], begun[codec].at, begun[codec].len);
        add(&ended[codec], finish[codec].at, finish[codec].len);
        for (int i = 0; i < AT_ONCE; i++)
            add_stdout(&output[codec], codec, xs, sizeof xs);
    }
    return 0;
}

/* ---- answers ---- */

static int say(struct client *c, enum codec codec, const char *data, size_t len)
{
    struct text text = {0};
    add(&text, begun[codec].at, begun[codec].len);
    add_stdout(&text, codec, data, len);
    add(&text, finish[codec].at, finish[codec].len);
    int rc = send_all(c->fd, text.at, text.len);
    free(text.at);
    return rc;
}

static int say_output(struct client *c, enum codec codec)
{
    if (send_all(c->fd, begun[codec].at, begun[codec].len) < 0)
        return -1;
    for (int i = 0; i < OUTPUT_EVENTS / AT_ONCE; i++)
        if (send_all(c->fd, output[codec].at, output[codec].len) < 0)
            return -1;
    return send_all(c->fd, finish[codec].at, finish[codec].len);
}

static int has(const struct client *c, const char *what)
{
    return memmem(c->body, c->body_len, what, strlen(what)) != NULL;
}

/* Commands; those that sandbar looks at files by, whose names are arguments with their length before them, want an
 * answer. */
static int answer_start(struct client *c)
{
    static const char gate[] = "+b/f", begin[] = "+n\0/.sb-f\0/f\0/f";
    static const char entry[] = "+f\0/f\0file\000104857600\000420\0000\0000\0root\0root\0000\0";
    enum codec codec = strcasestr(c->head, "application/connect+proto") != NULL ? PROTO : JSON;
    if (has(c, "200000000"))
        return say_output(c, codec);
    if (has(c, "\4gate"))
        return say(c, codec, gate, sizeof gate - 1);
    if (has(c, "\5begin"))
        return say(c, codec, begin, sizeof begin);
    if (has(c, "\6commit") || has(c, "\4stat"))
        return say(c, codec, entry, sizeof entry);
    return send_all(c->fd, ended[codec].at, ended[codec].len);
}

static int answer_file(struct client *c)
{
    char head[256];
    int n = snprintf(head, sizeof head,
                     "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
                     "Content-Length: %ld\r\n\r\n",
                     FILE_LEN);
    if (send_all(c->fd, head, (size_t)n) < 0)
        return -1;
    for (long sent = 0; sent < FILE_LEN; sent += (long)sizeof zeros)
        if (send_all(c->fd, zeros, sizeof zeros) < 0)
            return -1;
    return 0;
}

static int answer(struct client *c)
{
    static const char written[] =
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 40"
        "\r\n\r\n[{\"name\":\"f\",\"type\":\"file\",\"path\":\"/f\"}]";
    static const char deleted[] = "HTTP/1.1 204 No Content\r\n\r\n";
    if (strncmp(c->head, "POST /process.Process/Start ", 28) == 0)
        return answer_start(c);
    if (strncmp(c->head, "GET /files?", 11) == 0)
        return answer_file(c);
    if (strncmp(c->head, "POST /files", 11) == 0)
        return send_all(c->fd, written, sizeof written - 1);
    if (strncmp(c->head, "DELETE ", 7) == 0)
        return send_all(c->fd, deleted, sizeof deleted - 1);
    return send_all(c->fd, made.at, made.len);
}

/* ---- requests ---- */

static const char *field(const struct client *c, const char *name)
{
    const char *at = strcasestr(c->head, name);
    return at != NULL ? at + strlen(name) : NULL;
}

/* How many of the bytes that are there belong to the head; 0: it is not whole. */
static size_t take_head(struct client *c, const char *at, size_t len)
{
    const char *end = memmem(at, len, "\r\n\r\n", 4), *length;
    size_t n = end != NULL ? (size_t)(end + 4 - at) : 0;
    if (n == 0 || n >= sizeof c->head)
        return 0;
    memcpy(c->head, at, n);
    c->head[n] = '\0';
    length = field(c, "\r\ncontent-length:");
    c->chunked = field(c, "\r\ntransfer-encoding: chunked") != NULL;
    c->left = length != NULL ? strtoul(length, NULL, 10) : 0;
    c->body_len = 0;
    c->in_body = 1;
    return n;
}

static void keep(struct client *c, const char *at, size_t n)
{
    if (n > LOOKED_AT - c->body_len)
        n = LOOKED_AT - c->body_len;
    memcpy(c->body + c->body_len, at, n);
    c->body_len += n;
}

/* The same of the body; *whole: that was all of it. */
static size_t take_body(struct client *c, const char *at, size_t len, int *whole)
{
    if (c->left == 0 && c->chunked) {
        const char *end = memmem(at, len, "\r\n", 2);
        if (end == NULL)
            return 0;
        size_t size = strtoul(at, NULL, 16), n = (size_t)(end + 2 - at);
        if (size == 0 && len < n + 2)
            return 0;
        *whole = size == 0;
        c->left = size == 0 ? 0 : size + 2;
        return size == 0 ? n + 2 : n;
    }
    size_t n = len < c->left ? len : c->left;
    keep(c, at, n);
    c->left -= n;
    *whole = c->left == 0 && !c->chunked;
    return n;
}

static int serve(struct client *c)
{
    ssize_t got = recv(c->fd, c->in + c->len, sizeof c->in - c->len, 0);
    size_t at = 0, n;
    if (got <= 0)
        return -1;
    c->len += (size_t)got;
    do {
        int whole = 0;
        n = c->in_body ? take_body(c, c->in + at, c->len - at, &whole)
                       : take_head(c, c->in + at, c->len - at);
        at += n;
        if (c->in_body && !c->chunked && c->left == 0)
            whole = 1;
        if (whole) {
            c->in_body = 0;
            if (answer(c) < 0)
                return -1;
        }
    } while (n > 0 && at < c->len);
    c->len -= at;
    memmove(c->in, c->in + at, c->len);
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
            fds[i + 1] = (struct pollfd){.fd = clients[i]->fd, .events = POLLIN};
        poll(fds, (nfds_t)used + 1, -1);
        for (int i = used; i > 0; i--)
            if (fds[i].revents != 0 && serve(clients[i - 1]) != 0) {
                close(clients[i - 1]->fd);
                free(clients[i - 1]);
                clients[i - 1] = clients[--used];
            }
        int fd = fds[0].revents != 0 ? accept(listener, NULL, NULL) : -1;
        if (fd >= 0) {
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            clients[used] = calloc(1, sizeof *clients[used]);
            if (clients[used] == NULL)
                abort();
            clients[used++]->fd = fd;
        }
    }
}
