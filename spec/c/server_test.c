/* The HTTP server where Lua does not reach: heads that come byte by byte, no descriptors left to accept with, clients
 * that reset at any moment, a stream pumped into an answer, files on their way. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "check.h"
#include "runtime/api.h"
#include "server/server.h"

#define RESETS (400 / CHECK_SCALE)
#define MOVES (200 / CHECK_SCALE)
#define PUMPED ((8u << 20) / CHECK_SCALE)

/* What core.so gives to the server's module. */
static const struct sb_core_api api = {.version = SB_API_VERSION,
                                       .size = sizeof(struct sb_core_api),
                                       .stream_type = &sb_stream_type,
                                       .file_type = &sb_file_type,
#define ENTRY(f) .f = f,
                                       SB_API_FUNCTIONS(ENTRY)
#undef ENTRY
};
const struct sb_core_api *sb_api = &api;

/* Of engine/file.h, whose other names are not those of the server's headers. */
struct sb_file *sb_file_new(int fd, struct sb_error *err);
void sb_file_close(struct sb_file *file);

static struct sb_mailbox *mailbox;
static struct sb_listener *listener;

static void open_listener(void)
{
    struct sb_error err;
    struct sb_server_options options = {
        .address = "127.0.0.1",
        .max_connections = 64,
        .header_limit = 4096,
        .header_timeout = 20ull * SECOND,
        .idle_timeout = 20ull * SECOND,
        .body_timeout = 20ull * SECOND,
        .write_timeout = 20ull * SECOND,
        .stream_timeout = 20ull * SECOND,
        .tunnel_timeout = 20ull * SECOND,
    };
    listener = sb_listener_new(&options, &err);
    CHECK(listener != NULL);
}

static void close_listener(void)
{
    sb_listener_cut(listener);
    struct sb_op *op = sb_listener_drain(listener, mailbox);
    CHECK(wait_for(mailbox, op)->error.kind == SB_OK);
    sb_op_unref(op);
    sb_object_unref(listener);
}

/* `small`: its receive buffer, 0: as it is. */
static int client(int small)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(sb_listener_port(listener))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (small > 0)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    return fd;
}

static void say(int fd, const char *text, size_t len)
{
    CHECK(send(fd, text, len, MSG_NOSIGNAL) == (ssize_t)len);
}

static void reset(int fd)
{
    struct linger now = {1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(fd);
}

static struct sb_exchange *accepted(void)
{
    struct sb_op *op = sb_listener_accept(listener, mailbox);
    struct sb_result *r = wait_for(mailbox, op);
    CHECK(r->error.kind == SB_OK && r->object != NULL);
    struct sb_exchange *exchange = (struct sb_exchange *)(void *)r->object;
    r->object = NULL;
    sb_op_unref(op);
    return exchange;
}

static enum sb_err done(struct sb_op *op)
{
    enum sb_err kind = wait_for(mailbox, op)->error.kind;
    sb_op_unref(op);
    return kind;
}

static void answer(struct sb_exchange *exchange, const char *text)
{
    struct sb_reply reply = {.status = 200, .body = {text, strlen(text)}};
    CHECK(done(sb_exchange_answer(exchange, mailbox, &reply)) == SB_OK);
    sb_object_unref(exchange);
}

/* To the end of the connection, or until `end` has come. */
static size_t hear(int fd, char *to, size_t most, const char *end)
{
    size_t have = 0;
    for (;;) {
        struct pollfd p = {fd, POLLIN, 0};
        CHECK(poll(&p, 1, 20000) == 1 && have < most - 1);
        ssize_t n = recv(fd, to + have, most - 1 - have, 0);
        CHECK(n >= 0);
        have += (size_t)n;
        to[have] = '\0';
        if (n == 0 || (end != NULL && strstr(to, end) != NULL))
            return have;
    }
}

static const char REQUEST[] = "POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                              "3\r\nabc\r\n0\r\n\r\n";

static void test_bytes(void)
{
    char got[1024];
    open_listener();
    int fd = client(0), one = 1;
    setsockopt(fd, IPPROTO_TCP, 1 /* TCP_NODELAY */, &one, sizeof one);
    for (size_t i = 0; i < sizeof REQUEST - 1; i++)
        say(fd, REQUEST + i, 1);
    struct sb_exchange *exchange = accepted();
    CHECK(sb_exchange_head(exchange)->target.len == 2);
    struct sb_op *op = sb_exchange_read(exchange, mailbox, SB_READ_ALL, 3);
    struct sb_result *r = wait_for(mailbox, op);
    CHECK(r->error.kind == SB_OK && r->bytes_len == 3 && memcmp(r->bytes, "abc", 3) == 0);
    sb_op_unref(op);
    answer(exchange, "hello");
    hear(fd, got, sizeof got, "hello");
    CHECK(strncmp(got, "HTTP/1.1 200 OK\r\n", 17) == 0);
    close(fd);
    close_listener();
    passed("a request that comes byte by byte is one request");
}

static void test_descriptors(void)
{
    static const char words[] = "clients wait while there is no descriptor for them";
    char got[1024];
    struct rlimit old, none;
    if (under_valgrind()) {
        skipped(words, VALGRIND_LIMITS);
        return;
    }
    open_listener();
    int first = client(0), second = client(0);
    say(first, REQUEST, sizeof REQUEST - 1);
    answer(accepted(), "first");
    hear(first, got, sizeof got, "first");
    CHECK(getrlimit(RLIMIT_NOFILE, &old) == 0);
    none = old;
    none.rlim_cur = 3; /* none of those that are open is closed by that */
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    say(second, REQUEST, sizeof REQUEST - 1);
    /* the first one is idle and goes; that helps nobody as long as the limit is what it is */
    struct sb_op *op = sb_listener_accept(listener, mailbox);
    CHECK(sb_mailbox_poll(mailbox, sb_now() + 50u * MS) == 0 || sb_op_done(op));
    CHECK(setrlimit(RLIMIT_NOFILE, &old) == 0);
    struct sb_result *r = wait_for(mailbox, op);
    CHECK(r->error.kind == SB_OK);
    struct sb_exchange *exchange = (struct sb_exchange *)(void *)r->object;
    r->object = NULL;
    sb_op_unref(op);
    answer(exchange, "second");
    hear(second, got, sizeof got, "second");
    close(first);
    close(second);
    close_listener();
    passed(words);
}

/* Whatever has become of the client by now, every call comes to an end. */
static void serve_one(struct sb_exchange *exchange, unsigned way)
{
    struct sb_reply reply = {.status = 200, .stream = 1};
    if (way % 4 == 0) /* it has been reset: no byte is waited for that may never come */
        done(sb_exchange_read(exchange, mailbox, way % 8 == 0 ? SB_READ_ALL : SB_READ_SOME, 100));
    done(sb_exchange_answer(exchange, mailbox, &reply));
    done(sb_exchange_write(exchange, mailbox, REQUEST, sizeof REQUEST));
    if (way % 3 == 0)
        sb_exchange_abort(exchange);
    else if (way % 3 == 1)
        done(sb_exchange_finish(exchange, mailbox, NULL, 0));
    sb_object_unref(exchange);
}

static void test_resets(void)
{
    open_listener();
    for (unsigned i = 0; i < RESETS; i++) {
        int fd = client(0);
        size_t cut = i * 7 % sizeof REQUEST;
        if (cut > 0)
            say(fd, REQUEST, cut);
        struct sb_op *op = sb_listener_accept(listener, mailbox);
        if (i % 2 == 0 && strstr(REQUEST, "\r\n\r\n") + 4 <= REQUEST + cut) {
            wait_for(mailbox, op);
            struct sb_result *r = sb_op_result(op);
            struct sb_exchange *exchange = (struct sb_exchange *)(void *)r->object;
            r->object = NULL;
            if (i % 4 == 0)
                reset(fd);
            serve_one(exchange, i);
            if (i % 4 != 0)
                reset(fd);
        } else {
            reset(fd);
            sb_op_cancel(op);
            wait_for(mailbox, op);
        }
        sb_op_unref(op);
    }
    close_listener();
    passed("clients that reset at any moment leave nothing behind and keep nobody waiting");
}

static void test_pump(void)
{
    struct sb_error err;
    struct sb_reply reply = {.status = 200, .stream = 1};
    struct sb_slice length = {"Content-Length: 00000000000", 27};
    char line[40], got[65536];
    int pair[2];
    open_listener();
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    struct sb_stream *stream = sb_stream_new(pair[0], 1, 0, 0, &err);
    CHECK(stream != NULL);
    int fd = client(4096);
    say(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27);
    struct sb_exchange *exchange = accepted();
    length.len = (size_t)snprintf(line, sizeof line, "Content-Length: %u", PUMPED);
    length.data = line;
    reply.lines = &length;
    reply.count = 1;
    CHECK(done(sb_exchange_answer(exchange, mailbox, &reply)) == SB_OK);
    struct sb_op *op = sb_exchange_pump_out(exchange, mailbox, stream, SB_PUMP_RAW, SB_PUMP_STDOUT);
    CHECK(done(sb_exchange_pump_out(exchange, mailbox, stream, SB_PUMP_RAW, SB_PUMP_STDOUT)) ==
          SB_ERR_BUSY);
    size_t sent = 0, heard = 0;
    struct pollfd p[2] = {{pair[1], POLLOUT, 0}, {fd, POLLIN, 0}};
    hear(fd, got, sizeof got, "\r\n\r\n");
    heard = strlen(strstr(got, "\r\n\r\n") + 4);
    memset(got, 'x', sizeof got);
    while (heard < PUMPED) {
        CHECK(poll(p, 2, 20000) > 0);
        if (p[0].revents != 0 && sent < PUMPED) {
            size_t n = PUMPED - sent < sizeof got ? PUMPED - sent : sizeof got;
            ssize_t w = send(pair[1], got, n, MSG_NOSIGNAL | MSG_DONTWAIT);
            sent += w > 0 ? (size_t)w : 0;
            if (sent == PUMPED) {
                close(pair[1]);
                p[0].fd = -1;
            }
        }
        if (p[1].revents != 0) {
            static char drop[3000];
            ssize_t n = recv(fd, drop, sizeof drop, 0);
            CHECK(n > 0);
            heard += (size_t)n;
        }
    }
    struct sb_result *r = wait_for(mailbox, op);
    CHECK(r->error.kind == SB_OK && r->number == PUMPED);
    sb_op_unref(op);
    CHECK(done(sb_exchange_finish(exchange, mailbox, NULL, 0)) == SB_OK);
    sb_object_unref(exchange);
    sb_object_unref(stream);
    close(fd);
    close_listener();
    passed("a stream is pumped into an answer, at the pace of who reads it");
}

/* Files out of and into exchanges whose clients go at any moment, or whose pumps are cancelled: pieces that are with a
 * file thread by then. */
static void test_files(void)
{
    static const char GET[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    static char body[400000];
    struct sb_error err;
    struct sb_reply reply = {.status = 200, .stream = 1};
    char path[] = "/tmp/sandbar-test.XXXXXX";
    int raw = mkostemp(path, O_CLOEXEC);
    CHECK(raw >= 0 && unlink(path) == 0);
    CHECK(ftruncate(raw, 3 * (int)sizeof body) == 0);
    struct sb_file *file = sb_file_new(raw, &err);
    CHECK(file != NULL);
    open_listener();
    for (unsigned i = 0; i < MOVES; i++) {
        int out = i % 2 == 0, fd = client(out && i % 3 == 0 ? 4096 : 0);
        char head[80];
        if (out) {
            say(fd, GET, sizeof GET - 1);
        } else {
            snprintf(head, sizeof head, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n",
                     sizeof body);
            say(fd, head, strlen(head));
            (void)send(fd, body, i % 5 == 0 ? sizeof body : i * 997 % sizeof body,
                       MSG_NOSIGNAL | MSG_DONTWAIT);
        }
        struct sb_exchange *exchange = accepted();
        struct sb_op *op;
        if (out) {
            CHECK(done(sb_exchange_answer(exchange, mailbox, &reply)) == SB_OK);
            op = sb_exchange_send_file(exchange, mailbox, file, i, SB_FILE_REST);
        } else {
            static const struct sb_part part = {{"\0\0--", 4}, {"early", 5}};
            op = sb_exchange_take_file(exchange, mailbox, file, 0, i % 3 == 1 ? &part : NULL);
        }
        if (out)
            (void)recv(fd, body, i * 1009 % sizeof body, 0);
        if (i % 4 < 2)
            reset(fd);
        else
            sb_op_cancel(op);
        wait_for(mailbox, op);
        sb_op_unref(op);
        sb_exchange_abort(exchange);
        sb_object_unref(exchange);
        if (i % 4 >= 2)
            close(fd);
    }
    sb_file_close(file);
    int fd = client(0);
    say(fd, GET, sizeof GET - 1);
    struct sb_exchange *exchange = accepted();
    CHECK(done(sb_exchange_answer(exchange, mailbox, &reply)) == SB_OK);
    CHECK(done(sb_exchange_send_file(exchange, mailbox, file, 0, 10)) == SB_ERR_CLOSED);
    sb_object_unref(exchange);
    close(fd);
    close_listener();
    sb_object_unref(file);
    passed("files on their way to or from clients that go, or whom nobody serves any more");
}

int main(void)
{
    mailbox = new_mailbox();
    test_bytes();
    test_descriptors();
    test_resets();
    test_pump();
    test_files();
    sb_mailbox_unref(mailbox);
    return 0;
}
