/* Streams: read modes, limits, back-pressure, writing, closing; each over pipes and sockets. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "runtime/stream.h"
#include "runtime/transfer.h"

static struct sb_mailbox *mailbox;

static struct sb_stream *stream_of(int fd, int readable, int writable, size_t high)
{
    struct sb_error err;
    struct sb_stream *stream = sb_stream_new(fd, readable, writable, high, &err);
    CHECK(stream != NULL);
    return stream;
}

/* A stream that reads, and the descriptor to write to. */
static struct sb_stream *reader(int sockets, size_t high, int *other)
{
    int p[2];
    CHECK((sockets ? socketpair(AF_UNIX, SOCK_STREAM, 0, p) : pipe(p)) == 0);
    *other = p[1];
    return stream_of(p[0], 1, 0, high);
}

static void put(int fd, const char *s)
{
    CHECK(write(fd, s, strlen(s)) == (ssize_t)strlen(s));
}

/* Reads and compares: "" for an empty read, NULL for the end. */
static void expect(struct sb_stream *stream, enum sb_read_mode mode, size_t n, const char *want)
{
    struct sb_op *op = sb_stream_read(stream, mailbox, mode, n);
    struct sb_result *r = wait_for(mailbox, op);
    CHECK(r->error.kind == SB_OK);
    CHECK((r->bytes == NULL) == (want == NULL));
    if (want != NULL)
        CHECK(r->bytes_len == strlen(want) && memcmp(r->bytes, want, r->bytes_len) == 0);
    sb_op_unref(op);
}

static void expect_error(struct sb_op *op, enum sb_err kind)
{
    CHECK(wait_for(mailbox, op)->error.kind == kind);
    sb_op_unref(op);
}

static void modes(int sockets)
{
    int w;
    struct sb_stream *s = reader(sockets, 0, &w);
    put(w, "abcdef");
    expect(s, SB_READ_SOME, 2, "ab");
    expect(s, SB_READ_SOME, 100, "cdef");
    expect(s, SB_READ_SOME, 0, "");
    put(w, "0123456789");
    expect(s, SB_READ_EXACT, 4, "0123");
    expect(s, SB_READ_EXACT, 0, "");
    expect(s, SB_READ_EXACT, 6, "456789");
    put(w, "one\n\ntwo\nthr");
    expect(s, SB_READ_LINE, 100, "one\n");
    expect(s, SB_READ_LINE, 100, "\n");
    expect(s, SB_READ_LINE, 4, "two\n");
    put(w, "ee\nlast");
    expect(s, SB_READ_LINE, 100, "three\n");
    CHECK(!sb_stream_at_end(s));
    close(w);
    expect(s, SB_READ_LINE, 100, "last");
    expect(s, SB_READ_LINE, 100, NULL);
    expect(s, SB_READ_SOME, 100, NULL);
    expect(s, SB_READ_ALL, 100, NULL);
    CHECK(sb_stream_at_end(s));
    sb_object_unref(s);

    s = reader(sockets, 0, &w);
    put(w, "short");
    close(w);
    expect(s, SB_READ_EXACT, 10, "short");
    expect(s, SB_READ_EXACT, 10, NULL);
    sb_object_unref(s);

    s = reader(sockets, 0, &w);
    put(w, "all of it");
    struct sb_op *op = sb_stream_read(s, mailbox, SB_READ_ALL, 9);
    usleep(2000);
    CHECK(!sb_op_done(op));
    close(w);
    CHECK(wait_for(mailbox, op)->bytes_len == 9);
    sb_op_unref(op);
    sb_object_unref(s);
    passed(sockets ? "each read mode takes what it promises (socket)"
                   : "each read mode takes what it promises (pipe)");
}

static void limits_consume_nothing(void)
{
    int w;
    struct sb_stream *s = reader(0, 0, &w);
    put(w, "too long\nok\n");
    expect_error(sb_stream_read(s, mailbox, SB_READ_LINE, 8), SB_ERR_LIMIT_EXCEEDED);
    expect(s, SB_READ_LINE, 9, "too long\n");
    expect(s, SB_READ_LINE, 9, "ok\n");
    put(w, "no newline in here");
    expect_error(sb_stream_read(s, mailbox, SB_READ_LINE, 5), SB_ERR_LIMIT_EXCEEDED);
    close(w);
    expect_error(sb_stream_read(s, mailbox, SB_READ_ALL, 17), SB_ERR_LIMIT_EXCEEDED);
    expect(s, SB_READ_ALL, 18, "no newline in here");
    sb_object_unref(s);
    passed("a read above its limit fails and consumes nothing");
}

static void a_cancelled_read_consumes_nothing(void)
{
    int w;
    struct sb_stream *s = reader(0, 0, &w);
    struct sb_op *op = sb_stream_read(s, mailbox, SB_READ_EXACT, 10);
    put(w, "12345");
    expect_error(sb_stream_read(s, mailbox, SB_READ_SOME, 10), SB_ERR_BUSY);
    struct sb_result try = {.error.kind = SB_OK};
    CHECK(sb_stream_try_read(s, SB_READ_SOME, 10, &try) == 1 && try.error.kind == SB_ERR_BUSY);
    sb_op_cancel(op);
    expect_error(op, SB_ERR_CANCELLED);
    op = sb_stream_read(s, mailbox, SB_READ_EXACT, 10);
    sb_op_deadline(op, sb_now() + 2 * MS);
    expect_error(op, SB_ERR_TIMEOUT);
    expect(s, SB_READ_SOME, 10, "12345");
    close(w);
    sb_object_unref(s);
    passed("one reader at a time; a cancelled or late read has consumed nothing");
}

static void try_read_answers_at_once(void)
{
    int w;
    struct sb_stream *s = reader(0, 0, &w);
    struct sb_result r = {.error.kind = SB_OK};
    CHECK(sb_stream_try_read(s, SB_READ_SOME, 10, &r) == 0);
    put(w, "abc");
    CHECK(sb_stream_try_read(s, SB_READ_LINE, 10, &r) == 0);
    CHECK(sb_stream_try_read(s, SB_READ_SOME, 10, &r) == 1 && r.bytes_len == 3);
    free(r.bytes);
    r = (struct sb_result){.error.kind = SB_OK};
    close(w);
    while (sb_stream_try_read(s, SB_READ_SOME, 10, &r) == 0)
        ;
    CHECK(r.bytes == NULL && r.error.kind == SB_OK);
    sb_object_unref(s);
    passed("try answers at once");
}

/* ---- volume ---- */

struct feed {
    int fd;
    size_t total;
    _Atomic size_t sent;
    int line; /* length of a line, 0: none */
};

static void *feed(void *arg)
{
    struct feed *f = arg;
    static char block[65536];
    while (f->sent < f->total) {
        size_t n = f->total - f->sent < sizeof block ? f->total - f->sent : sizeof block;
        for (size_t i = 0; i < n; i++)
            block[i] = f->line != 0 && (f->sent + i + 1) % (size_t)f->line == 0
                           ? '\n'
                           : (char)('a' + (f->sent + i) % 23);
        ssize_t m = write(f->fd, block, n);
        if (m <= 0)
            break;
        f->sent += (size_t)m;
    }
    close(f->fd);
    return NULL;
}

static void a_slow_reader_stops_the_writer(void)
{
    struct feed f = {.total = (64u << 20) / CHECK_SCALE};
    pthread_t thread;
    struct sb_stream *s = reader(0, 100000, &f.fd);
    CHECK(pthread_create(&thread, NULL, feed, &f) == 0);
    expect(s, SB_READ_EXACT, 1, "a");
    size_t before;
    do {
        before = f.sent;
        usleep(30000);
    } while (f.sent != before);
    CHECK(f.sent < 100000 + 65536 * 5);
    printf("# the writer stood at %zu bytes\n", (size_t)f.sent);
    size_t got = 1;
    for (;;) {
        struct sb_op *op = sb_stream_read(s, mailbox, SB_READ_SOME, 1u << 20);
        struct sb_result *r = wait_for(mailbox, op);
        CHECK(r->error.kind == SB_OK);
        size_t n = r->bytes_len;
        for (size_t i = 0; i < n; i += 4099)
            CHECK(r->bytes[i] == (unsigned char)('a' + (got + i) % 23));
        int end = r->bytes == NULL;
        sb_op_unref(op);
        drain(mailbox);
        if (end)
            break;
        got += n;
    }
    CHECK(got == f.total);
    pthread_join(thread, NULL);
    sb_object_unref(s);
    passed("a slow reader stops the writer; nothing is lost or reordered");
}

static void bulk_and_lines(void)
{
    struct feed f = {.total = (256u << 20) / CHECK_SCALE};
    pthread_t thread;
    uint64_t start = sb_now();
    struct sb_stream *s = reader(0, 0, &f.fd);
    size_t got = 0;
    CHECK(pthread_create(&thread, NULL, feed, &f) == 0);
    for (int end = 0; !end;) {
        struct sb_result r = {.error.kind = SB_OK};
        if (sb_stream_try_read(s, SB_READ_SOME, 1u << 20, &r)) {
            end = r.bytes == NULL;
            got += r.bytes_len;
            free(r.bytes);
            continue;
        }
        struct sb_op *op = sb_stream_read(s, mailbox, SB_READ_SOME, 1u << 20);
        end = wait_for(mailbox, op)->bytes == NULL;
        got += sb_op_result(op)->bytes_len;
        sb_op_unref(op);
    }
    pthread_join(thread, NULL);
    CHECK(got == f.total);
    drain(mailbox);
    sb_object_unref(s);
    printf("# bulk: %.0f MB/s\n", (double)got / 1e6 / ((double)(sb_now() - start) / 1e9));

    struct feed g = {.total = (20u << 20) / CHECK_SCALE, .line = 20};
    size_t lines = 0;
    start = sb_now();
    s = reader(0, 0, &g.fd);
    CHECK(pthread_create(&thread, NULL, feed, &g) == 0);
    for (int end = 0; !end;) {
        struct sb_result r = {.error.kind = SB_OK};
        if (!sb_stream_try_read(s, SB_READ_LINE, 100, &r)) {
            struct sb_op *op = sb_stream_read(s, mailbox, SB_READ_LINE, 100);
            r = *wait_for(mailbox, op);
            sb_op_result(op)->bytes = NULL;
            sb_op_unref(op);
        }
        CHECK(r.error.kind == SB_OK);
        end = r.bytes == NULL;
        lines += !end;
        free(r.bytes);
    }
    pthread_join(thread, NULL);
    CHECK(lines == (g.total + 19) / 20);
    drain(mailbox);
    sb_object_unref(s);
    printf("# %.0f lines/s\n", (double)lines / ((double)(sb_now() - start) / 1e9));
    passed("bulk and lines go through");
}

/* Would take minutes if each arriving piece were searched from the start. */
static void one_line_of_many_megabytes(void)
{
    struct feed f = {.total = (32u << 20) / CHECK_SCALE, .line = (32 << 20) / CHECK_SCALE};
    pthread_t thread;
    uint64_t start = sb_now();
    struct sb_stream *s = reader(1, 4096, &f.fd);
    CHECK(pthread_create(&thread, NULL, feed, &f) == 0);
    struct sb_op *op = sb_stream_read(s, mailbox, SB_READ_LINE, SIZE_MAX);
    struct sb_result *r = wait_for(mailbox, op);
    CHECK(r->error.kind == SB_OK && r->bytes_len == f.total && r->bytes[f.total - 1] == '\n');
    sb_op_unref(op);
    drain(mailbox);
    pthread_join(thread, NULL);
    sb_object_unref(s);
    CHECK(sb_now() - start < 20ull * SECOND);
    passed("a line of many megabytes is read in linear time, through a buffer of 4 kB");
}

/* ---- writing ---- */

static void *slow_sink(void *arg)
{
    static char block[65536];
    size_t *got = arg;
    int fd = (int)*got;
    ssize_t n;
    *got = 0;
    usleep(20000);
    while ((n = read(fd, block, sizeof block)) > 0) {
        for (ssize_t i = 0; i < n; i += 101)
            CHECK(block[i] == (char)('a' + (*got + (size_t)i) % 19));
        *got += (size_t)n;
    }
    close(fd);
    return NULL;
}

static void writes_complete_when_the_kernel_has_them(int sockets)
{
    int p[2];
    size_t len = 5u << 20, got;
    unsigned char *data = malloc(len);
    pthread_t thread;
    CHECK(data != NULL && (sockets ? socketpair(AF_UNIX, SOCK_STREAM, 0, p) : pipe(p)) == 0);
    for (size_t i = 0; i < len; i++)
        data[i] = (unsigned char)('a' + i % 19);
    got = (size_t)p[0];
    struct sb_stream *s = stream_of(p[1], 0, 1, 0);
    struct sb_op *a = sb_stream_write(s, mailbox, data, len / 2);
    struct sb_op *b = sb_stream_write(s, mailbox, data + len / 2, len - len / 2);
    sb_stream_close_write(s);
    struct sb_op *c = sb_stream_write(s, mailbox, "x", 1);
    CHECK(wait_for(mailbox, c)->error.kind == SB_ERR_CLOSED);
    CHECK(!sb_op_done(a));
    CHECK(pthread_create(&thread, NULL, slow_sink, &got) == 0);
    CHECK(wait_for(mailbox, a)->number == 2621440);
    CHECK(wait_for(mailbox, b)->number == 2621440);
    pthread_join(thread, NULL);
    CHECK(got == len);
    sb_op_unref(a);
    sb_op_unref(b);
    sb_op_unref(c);
    sb_object_unref(s);
    drain(mailbox);
    free(data);
    passed(sockets
               ? "writes complete when the kernel has them, half-close comes after them (socket)"
               : "writes complete when the kernel has them, half-close comes after them (pipe)");
}

static void a_write_nobody_reads_is_closed(int sockets)
{
    int p[2];
    CHECK((sockets ? socketpair(AF_UNIX, SOCK_STREAM, 0, p) : pipe(p)) == 0);
    struct sb_stream *s = stream_of(p[1], 0, 1, 0);
    static char big[1 << 20];
    struct sb_op *op = sb_stream_write(s, mailbox, big, sizeof big);
    on_loop(check_nothing, NULL);
    CHECK(!sb_op_done(op));
    close(p[0]);
    struct sb_result *r = wait_for(mailbox, op);
    CHECK(r->error.kind == SB_ERR_CLOSED && r->error.sys == EPIPE);
    CHECK(r->number > 0 && r->number < sizeof big);
    sb_op_unref(op);
    expect_error(sb_stream_write(s, mailbox, "x", 1), SB_ERR_CLOSED);
    sb_object_unref(s);
    passed("a write nobody reads is Closed, with the number of bytes that went, and no SIGPIPE");
}

/* By the caller's own thread, as if SIGPIPE had its default there: it would end this program. */
static void a_try_to_write_nobody_reads_is_closed(int sockets)
{
    int p[2];
    size_t taken;
    sigset_t set, old, now;
    struct sb_error err = {SB_OK};
    signal(SIGPIPE, SIG_DFL);
    CHECK((sockets ? socketpair(AF_UNIX, SOCK_STREAM, 0, p) : pipe(p)) == 0);
    struct sb_stream *s = stream_of(p[1], 0, 1, 0);
    CHECK(sb_stream_try_write(s, "some", 4, &taken, &err) == 0 && taken == 4);
    close(p[0]);
    pthread_sigmask(SIG_SETMASK, NULL, &old);
    for (int i = 0; i < 2; i++)
        CHECK(sb_stream_try_write(s, "more", 4, &taken, &err) < 0 && err.kind == SB_ERR_CLOSED &&
              taken == 0);
    pthread_sigmask(SIG_SETMASK, NULL, &now);
    for (int i = 1; i < SIGRTMIN; i++)
        CHECK(sigismember(&old, i) == sigismember(&now, i));
    CHECK(sigpending(&set) == 0 && !sigismember(&set, SIGPIPE));
    sb_object_unref(s);
    passed("a try to write what nobody reads is Closed, without a SIGPIPE and with the signals as "
           "they were");
}

static void a_cancelled_write_says_how_much_went(void)
{
    int p[2];
    CHECK(pipe(p) == 0);
    struct sb_stream *s = stream_of(p[1], 0, 1, 0);
    static char big[1 << 20];
    memset(big, 'x', sizeof big);
    struct sb_op *op = sb_stream_write(s, mailbox, big, sizeof big);
    struct sb_op *second = sb_stream_write(s, mailbox, "y", 1);
    on_loop(check_nothing, NULL);
    sb_op_cancel(op);
    struct sb_result *r = wait_for(mailbox, op);
    CHECK(r->error.kind == SB_ERR_CANCELLED);
    size_t went = (size_t)r->number, got = 0;
    sb_op_unref(op);
    sb_stream_close_write(s);
    for (;;) {
        char buf[4096];
        ssize_t n = read(p[0], buf, sizeof buf);
        CHECK(n >= 0);
        if (n == 0)
            break;
        got += (size_t)n;
        if (got == went + 1)
            CHECK(buf[n - 1] == 'y');
    }
    CHECK(got == went + 1);
    CHECK(wait_for(mailbox, second)->number == 1);
    sb_op_unref(second);
    close(p[0]);
    sb_object_unref(s);
    passed("a cancelled write says how much went; the next one goes on behind it");
}

/* ---- closing, life ---- */

static void close_ends_what_is_open(void)
{
    int p[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0);
    struct sb_stream *s = stream_of(p[0], 1, 1, 0);
    static char big[1 << 20];
    struct sb_op *r = sb_stream_read(s, mailbox, SB_READ_SOME, 10);
    struct sb_op *w = sb_stream_write(s, mailbox, big, sizeof big);
    usleep(2000);
    sb_stream_close(s);
    sb_stream_close(s);
    expect_error(r, SB_ERR_CLOSED);
    expect_error(w, SB_ERR_CLOSED);
    expect_error(sb_stream_read(s, mailbox, SB_READ_SOME, 10), SB_ERR_CLOSED);
    on_loop(check_nothing, NULL);
    char c[4096];
    ssize_t n;
    while ((n = read(p[1], c, sizeof c)) > 0)
        ;
    CHECK(n == 0 || errno == ECONNRESET);
    close(p[1]);
    sb_object_unref(s);
    passed("close ends open operations with Closed and lets the descriptor go");
}

static void both_directions_of_a_socket(void)
{
    int p[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0);
    struct sb_stream *a = stream_of(p[0], 1, 1, 0), *b = stream_of(p[1], 1, 1, 0);
    for (int i = 0; i < 500; i++) {
        struct sb_op *op = sb_stream_read(b, mailbox, SB_READ_LINE, 10);
        struct sb_op *w = sb_stream_write(a, mailbox, "ping\n", 5);
        CHECK(wait_for(mailbox, op)->bytes_len == 5);
        CHECK(wait_for(mailbox, w)->number == 5);
        sb_op_unref(op);
        sb_op_unref(w);
        struct sb_stream *t = a;
        a = b;
        b = t;
    }
    sb_stream_close_write(a);
    expect(b, SB_READ_SOME, 10, NULL);
    struct sb_op *w = sb_stream_write(b, mailbox, "still\n", 6);
    expect(a, SB_READ_LINE, 10, "still\n");
    CHECK(wait_for(mailbox, w)->error.kind == SB_OK);
    sb_op_unref(w);
    sb_object_unref(a);
    sb_object_unref(b);
    passed("a socket carries both directions, and one after the other was closed");
}

static void streams_may_go_at_any_moment(void)
{
    for (int i = 0; i < 2000; i++) {
        int w;
        struct sb_stream *s = reader(i & 1, 0, &w);
        struct sb_op *op = sb_stream_read(s, mailbox, SB_READ_SOME, 10);
        if (i & 2)
            put(w, "x");
        if (i & 4)
            sb_op_cancel(op);
        if (i & 8)
            sb_stream_close(s);
        sb_object_unref(s);
        if (!(i & 14))
            sb_op_cancel(op);
        wait_for(mailbox, op);
        sb_op_unref(op);
        close(w);
    }
    drain(mailbox);
    on_loop(check_nothing, NULL);
    passed("streams may go at any moment, and no descriptor stays");
}

/* ---- whatever the other side does to the flags ---- */

static void transfers_never_wait(enum sb_transfer_how how)
{
    struct sb_transfer r, w;
    int p[2];
    char buf[100], big[100000];
    size_t total = 0, got = 0;
    CHECK(pipe(p) == 0); /* blocking descriptors, as if the other side had cleared O_NONBLOCK */
    sb_transfer_init(&r, p[0]);
    sb_transfer_init(&w, p[1]);
    if (how == SB_TRANSFER_SPLICE) {
        CHECK(pipe2(r.through, O_NONBLOCK) == 0 && pipe2(w.through, O_NONBLOCK) == 0);
        r.how = w.how = how;
    }
    CHECK(sb_transfer_read(&r, p[0], buf, sizeof buf) == -1 && errno == EAGAIN);
    CHECK(sb_transfer_write(&w, p[1], "hello", 5) == 5);
    CHECK(sb_transfer_read(&r, p[0], buf, 3) == 3 && memcmp(buf, "hel", 3) == 0);
    CHECK(sb_transfer_read(&r, p[0], buf, sizeof buf) == 2 && memcmp(buf, "lo", 2) == 0);
    for (size_t i = 0; i < sizeof big; i++)
        big[i] = (char)(i % 251);
    for (int full = 0; full < 3;) {
        size_t at = total % sizeof big;
        ssize_t n = sb_transfer_write(&w, p[1], big + at, sizeof big - at);
        if (n < 0) {
            CHECK(errno == EAGAIN);
            full++;
            ssize_t m = read(p[0], buf, sizeof buf);
            CHECK(m > 0);
            for (ssize_t i = 0; i < m; i++)
                CHECK(buf[i] == big[(got + (size_t)i) % sizeof big]);
            got += (size_t)m;
            if (full == 2) { /* make room for what is staged too */
                char *all = malloc(1 << 20);
                CHECK(all != NULL);
                m = read(p[0], all, 1 << 20);
                CHECK(m > 0);
                got += (size_t)m;
                free(all);
            }
        } else {
            total += (size_t)n;
        }
    }
    sb_transfer_discard(&w);
    close(p[1]);
    for (;;) {
        ssize_t m = sb_transfer_read(&r, p[0], buf, sizeof buf);
        CHECK(m >= 0);
        if (m == 0)
            break;
        for (ssize_t i = 0; i < m; i++)
            CHECK(buf[i] == big[(got + (size_t)i) % sizeof big]);
        got += (size_t)m;
    }
    CHECK(got == total);
    sb_transfer_close(&r);
    sb_transfer_close(&w);
    close(p[0]);
    passed(how == SB_TRANSFER_SPLICE ? "transfers never wait on blocking pipes (splice)"
                                     : "transfers never wait on blocking pipes");
}

static int count_fds(void)
{
    int n = 0;
    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

int main(void)
{
    sb_loop_pin();
    mailbox = new_mailbox();
    on_loop(check_nothing, NULL);
    int before = count_fds();
    transfers_never_wait(SB_TRANSFER_NOWAIT);
    transfers_never_wait(SB_TRANSFER_SPLICE);
    modes(0);
    modes(1);
    limits_consume_nothing();
    a_cancelled_read_consumes_nothing();
    try_read_answers_at_once();
    a_slow_reader_stops_the_writer();
    bulk_and_lines();
    one_line_of_many_megabytes();
    writes_complete_when_the_kernel_has_them(0);
    writes_complete_when_the_kernel_has_them(1);
    a_write_nobody_reads_is_closed(0);
    a_write_nobody_reads_is_closed(1);
    a_try_to_write_nobody_reads_is_closed(0);
    a_try_to_write_nobody_reads_is_closed(1);
    a_cancelled_write_says_how_much_went();
    close_ends_what_is_open();
    both_directions_of_a_socket();
    streams_may_go_at_any_moment();
    drain(mailbox);
    for (int i = 0; i < 100 && count_fds() != before; i++)
        on_loop(check_nothing, NULL), usleep(1000);
    CHECK(count_fds() == before);
    passed("no descriptor is left over");
    CHECK(sb_mailbox_pending(mailbox) == 0);
    sb_mailbox_unref(mailbox);
    return 0;
}
