/* The pump between two stream sockets. */
#include "http/relay.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http/core.h"

#define BUFFER (64u << 10)
/* How often one wake moves bytes before the other sources get their turn. */
#define TURNS 8

/* One side, with what was read from it and is to be written to the other. The buffer exists only
 * while it holds something: an idle relay costs no memory. */
struct side {
    struct sb_source source;
    struct sb_relay *relay;
    CURL *easy; /* whose bytes they are; NULL: the socket's own */
    int watched;
    unsigned char *buf;
    size_t off, len;
    int ended;  /* end of file read from it */
    int passed; /* ... and handed on as a half-close of the other side */
};

struct sb_relay {
    struct side side[2];
    struct sb_timer again; /* libcurl may hold bytes that its socket shows no more */
    void (*done)(void *arg);
    void *arg;
};

static struct side *other(struct side *side)
{
    return side == &side->relay->side[0] ? &side->relay->side[1] : &side->relay->side[0];
}

static void dispose(struct sb_relay *relay, int reset)
{
    sb_timer_clear(&relay->again);
    for (int i = 0; i < 2; i++) {
        struct side *side = &relay->side[i];
        if (side->watched)
            sb_source_remove(&side->source);
        free(side->buf);
        if (side->easy != NULL)
            continue;
        if (reset) {
            struct linger now = {1, 0};
            setsockopt(side->source.fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        }
        close(side->source.fd);
    }
    free(relay);
}

static void finish(struct sb_relay *relay, int reset)
{
    void (*done)(void *arg) = relay->done;
    void *arg = relay->arg;
    dispose(relay, reset);
    done(arg);
}

/* As recv() and send() answer. */
static ssize_t answered(CURLcode rc, const size_t *n)
{
    if (rc == CURLE_OK)
        return (ssize_t)*n;
    errno = rc == CURLE_AGAIN ? EAGAIN : EIO;
    return -1;
}

static ssize_t take(struct side *from)
{
    size_t n = 0;
    if (from->easy == NULL)
        return recv(from->source.fd, from->buf, BUFFER, MSG_DONTWAIT);
    return answered(curl_easy_recv(from->easy, from->buf, BUFFER, &n), &n);
}

static ssize_t give(struct side *to, const void *data, size_t len)
{
    size_t n = 0;
    if (to->easy == NULL)
        return send(to->source.fd, data, len, MSG_DONTWAIT | MSG_NOSIGNAL);
    return answered(curl_easy_send(to->easy, data, len, &n), &n);
}

/* Moves what can be moved from `from` to the other side: 1 as long as there may be more, 0 when
 * either side would wait or the direction has ended, -1 when a side has failed. */
static int move(struct side *from)
{
    struct side *to = other(from);
    if (from->len == 0 && !from->ended) {
        if (from->buf == NULL)
            from->buf = malloc(BUFFER);
        if (from->buf == NULL)
            return -1;
        ssize_t n = take(from);
        if (n < 0)
            return errno == EAGAIN ? 0 : errno == EINTR ? 1 : -1;
        from->off = 0;
        from->len = (size_t)n;
        from->ended = n == 0;
    }
    if (from->len > 0) {
        ssize_t n = give(to, from->buf + from->off, from->len);
        if (n < 0)
            return errno == EAGAIN ? 0 : errno == EINTR ? 1 : -1;
        from->off += (size_t)n;
        from->len -= (size_t)n;
        return 1;
    }
    if (from->ended && !from->passed) {
        from->passed = 1;
        if (to->easy == NULL)
            shutdown(to->source.fd, SHUT_WR);
    }
    return 0;
}

/* Watches a side for what it is needed for. A side nothing is wanted from is not in the loop: a
 * hung-up descriptor would wake it forever. Except one that has ended: only its hang-up (which
 * needs no asking; the edge keeps it from repeating) tells that nobody is left to read the other
 * direction. */
static int watch(struct side *side, struct sb_error *err)
{
    uint32_t want = 0;
    if (!side->ended && side->len == 0)
        want |= EPOLLIN;
    if (other(side)->len > 0)
        want |= EPOLLOUT;
    if (side->len == 0) {
        free(side->buf);
        side->buf = NULL;
    }
    if (want == 0 && side->passed)
        want = EPOLLET;
    if (want == 0) {
        if (side->watched)
            sb_source_remove(&side->source);
        side->watched = 0;
        return 0;
    }
    if (!side->watched) {
        side->source.events = want;
        int rc = sb_source_add(&side->source, err);
        side->watched = rc == 0;
        return rc;
    }
    if (side->source.events != want)
        sb_source_change(&side->source, want);
    return 0;
}

static int is_over(const struct sb_relay *relay)
{
    const struct side *a = &relay->side[0], *b = &relay->side[1];
    return a->passed && (b->passed || b->easy != NULL);
}

static void turn(struct sb_relay *relay)
{
    int more = 1; /* other errors show in the transfer itself */
    for (int turn = 0; more && turn < TURNS; turn++) {
        more = 0;
        for (int i = 0; i < 2; i++) {
            int rc = move(&relay->side[i]);
            if (rc < 0) {
                finish(relay, 1);
                return;
            }
            more |= rc;
        }
    }
    if (is_over(relay))
        finish(relay, 0);
    else if (watch(&relay->side[0], NULL) < 0 || watch(&relay->side[1], NULL) < 0)
        finish(relay, 1);
    else if (more && relay->side[1].easy != NULL)
        sb_timer_set(&relay->again, sb_now());
}

static void on_again(struct sb_timer *timer)
{
    turn(SB_OF(timer, struct sb_relay, again));
}

static void on_ready(struct sb_source *source, uint32_t events)
{
    struct side *side = SB_OF(source, struct side, source);
    if ((events & (EPOLLHUP | EPOLLERR)) != 0 && side->passed)
        finish(side->relay, 0);
    else
        turn(side->relay);
}

static struct sb_relay *start(int a, int b, CURL *easy, void (*done)(void *arg), void *arg,
                              struct sb_error *err)
{
    struct sb_relay *relay = calloc(1, sizeof *relay);
    if (relay == NULL) {
        close(a);
        if (easy == NULL)
            close(b);
        sb_fail(err, SB_ERR_INTERNAL, "out of memory");
        return NULL;
    }
    relay->done = done;
    relay->arg = arg;
    relay->again.fire = on_again;
    int fds[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        relay->side[i].relay = relay;
        relay->side[i].source = (struct sb_source){fds[i], 0, on_ready};
    }
    relay->side[1].easy = easy;
    if (watch(&relay->side[0], err) < 0 || watch(&relay->side[1], err) < 0) {
        dispose(relay, 1);
        return NULL;
    }
    if (easy != NULL)
        sb_timer_set(&relay->again, sb_now());
    return relay;
}

struct sb_relay *sb_relay_start(int a, int b, void (*done)(void *arg), void *arg,
                                struct sb_error *err)
{
    return start(a, b, NULL, done, arg, err);
}

struct sb_relay *sb_relay_start_wire(int a, const struct sb_wire *b, void (*done)(void *arg),
                                     void *arg, struct sb_error *err)
{
    return start(a, b->fd, b->easy, done, arg, err);
}

void sb_relay_stop(struct sb_relay *relay)
{
    dispose(relay, 1);
}
