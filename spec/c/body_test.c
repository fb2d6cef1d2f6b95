/* The queue of an answer's body: what comes out is what went in, whoever lends, copies or closes meanwhile. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "runtime/api.h"
/* without SB_API_CLIENT: calls the runtime itself */
#include "../../src/http/body.c"

#define ROUNDS (20000 / CHECK_SCALE)
#define BYTES ((64u << 20) / CHECK_SCALE)

/* Byte `i` of every body here. */
static unsigned char byte_at(size_t i)
{
    return (unsigned char)(i * 2654435761u >> 13);
}

static void fill(unsigned char *to, size_t from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = byte_at(from + i);
}

static int is_right(const unsigned char *data, size_t from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (data[i] != byte_at(from + i))
            return 0;
    return 1;
}

static size_t append(struct sb_queue *queue, size_t from, size_t n)
{
    unsigned char *data = malloc(n);
    CHECK(data != NULL);
    fill(data, from, n);
    CHECK(sb_queue_append(queue, data, n) == 0);
    free(data);
    return n;
}

/* A body whose transfer goes on whether it is asked to or not. */
static struct sb_body *new_body(struct sb_queue **queue)
{
    struct sb_body *body = sb_body_new(queue, check_nothing, NULL);
    CHECK(body != NULL);
    return body;
}

/* Reads `n` bytes that are there. */
static struct sb_result take_out(struct sb_body *body, size_t n, const void **lent)
{
    struct sb_result result = {.fd = -1};
    CHECK(sb_body_try_read(body, SB_READ_EXACT, n, &result, lent) == 1);
    CHECK(result.bytes_len == n);
    return result;
}

static void on_end(void *arg)
{
    sb_queue_end(arg, NULL);
}

static void finish(struct sb_body *body, struct sb_queue *queue)
{
    CHECK(sb_loop_post(on_end, queue, NULL) == 0);
    sb_object_unref(body);
}

static void in_any_order(void)
{
    struct sb_queue *queue;
    struct sb_body *body = new_body(&queue);
    size_t in = 0, out = 0;
    srand(1);
    for (int round = 0; round < ROUNDS; round++) {
        size_t n = (size_t)rand() % (rand() % 8 == 0 ? 300000 : 3000) + 1;
        if (rand() % 2 == 0 && in - out < 2 * SB_BODY_HIGH)
            in += append(queue, in, n % 20000 + 1);
        struct sb_result result = {.fd = -1};
        const void *lent = NULL;
        int lends = rand() % 3 != 0;
        enum sb_read_mode mode = rand() % 2 ? SB_READ_SOME : SB_READ_EXACT;
        int done = sb_body_try_read(body, mode, n, &result, lends ? &lent : NULL);
        size_t have = in - out, most = have < n ? have : n;
        CHECK(done == (mode == SB_READ_SOME ? have > 0 : have >= n));
        if (!done)
            continue;
        CHECK(result.error.kind == SB_OK && result.bytes_len == most);
        CHECK((lent != NULL) == lends && (result.bytes != NULL) == !lends);
        CHECK(sb_body_has_lent(body) == lends);
        out += most;
        if (lends && rand() % 2 == 0) { /* what happens meanwhile leaves it alone */
            struct sb_result other = {.fd = -1};
            while (in - out < SB_BODY_HIGH && rand() % 8 != 0)
                in += append(queue, in, (size_t)rand() % 30000 + 1);
            size_t more = in - out < 5000 ? in - out : 5000;
            if (more > 0) {
                CHECK(sb_body_try_read(body, SB_READ_SOME, 5000, &other, NULL) == 1);
                CHECK(other.bytes_len == more && is_right(other.bytes, out, more));
                out += more;
                free(other.bytes);
                CHECK(is_right(lent, out - more - most, most));
            } else {
                CHECK(is_right(lent, out - most, most));
            }
        } else {
            CHECK(is_right(lends ? lent : result.bytes, out - most, most));
        }
        free(result.bytes);
        if (lends)
            sb_body_give_back(body);
    }
    CHECK(in > (size_t)ROUNDS * 100);
    finish(body, queue);
    passed("bytes come out in order, lent or copied, and what is lent stays");
}

static void closed_while_lent(void)
{
    struct sb_queue *queue;
    struct sb_body *body = new_body(&queue);
    struct sb_result result = {.fd = -1};
    const void *lent = NULL;
    append(queue, 0, 100000);
    take_out(body, 60000, &lent);
    sb_body_close(body);
    CHECK(is_right(lent, 0, 60000));
    CHECK(sb_queue_append(queue, "more", 4) == 0); /* goes nowhere */
    sb_body_give_back(body);
    CHECK(sb_body_try_read(body, SB_READ_SOME, 1, &result, NULL) == 1);
    CHECK(result.error.kind == SB_ERR_CLOSED);
    finish(body, queue);
    passed("what is lent survives a close");
}

static void never_given_back(void)
{
    struct sb_queue *queue;
    struct sb_body *body = new_body(&queue);
    const void *lent = NULL;
    size_t in = append(queue, 0, 200000), out = 1000;
    take_out(body, 1000, &lent);
    while (out < 3000000) {
        while (in - out < 70000)
            in += append(queue, in, 16384);
        struct sb_result next = take_out(body, 65536, NULL);
        CHECK(is_right(next.bytes, out, 65536));
        free(next.bytes);
        out += 65536;
    }
    CHECK(is_right(lent, 0, 1000));
    finish(body, queue);
    passed("what is never given back costs memory and nothing else");
}

static _Atomic unsigned wakes;

static void on_thirst(void *arg)
{
    (void)arg;
    wakes++;
}

/* Once the transfer has heard that it is full it stands still, whatever it asks afterwards. */
static void told_when_thirsty(void)
{
    struct sb_queue *queue;
    struct sb_mailbox *mailbox = new_mailbox();
    struct sb_body *body = sb_body_new(&queue, on_thirst, NULL);
    size_t in = append(queue, 0, SB_BODY_HIGH - 1), out = 0;
    CHECK(!sb_queue_full(queue, 0));
    in += append(queue, in, 1);
    CHECK(sb_queue_full(queue, 0) && !sb_queue_full(queue, 1));
    for (int i = 0; i < 10; i++) {
        struct sb_result result = take_out(body, 20000, NULL);
        CHECK(is_right(result.bytes, out, 20000));
        free(result.bytes);
        out += 20000;
        CHECK(!sb_queue_full(queue, 0));
    }
    /* on the I/O thread, behind the wake */
    struct sb_op *op = sb_body_read(body, mailbox, SB_READ_EXACT, 20000);
    CHECK(wait_for(mailbox, op)->bytes_len == 20000);
    sb_op_unref(op);
    CHECK(wakes == 1);
    finish(body, queue);
    sb_mailbox_unref(mailbox);
    passed("a full queue tells once when there is room, however often it is asked");
}

/* The transfer on the I/O thread, a piece a turn, up to the mark; the reader here. */
struct source {
    struct sb_queue *queue;
    size_t sent;
    _Atomic int stands;
};

static void on_turn(void *arg)
{
    struct source *source = arg;
    size_t left = BYTES - source->sent;
    if (left == 0) {
        sb_queue_end(source->queue, NULL);
        return;
    }
    if (sb_queue_full(source->queue, 0)) {
        source->stands = 1;
        return;
    }
    source->sent += append(source->queue, source->sent, left < 16384 ? left : 16384);
    CHECK(sb_loop_post(on_turn, source, NULL) == 0);
}

static void on_more(void *arg)
{
    struct source *source = arg;
    if (atomic_exchange(&source->stands, 0))
        on_turn(source);
}

static void beside_the_transfer(void)
{
    struct source source = {0};
    struct sb_mailbox *mailbox = new_mailbox();
    struct sb_body *body = sb_body_new(&source.queue, on_more, &source);
    static const size_t sizes[] = {65536, 1, 262144, 16384, 100000, 7};
    size_t out = 0;
    CHECK(sb_loop_post(on_turn, &source, NULL) == 0);
    for (size_t i = 0; out < BYTES; i++) {
        size_t n = sizes[i % (sizeof sizes / sizeof *sizes)];
        n = n < BYTES - out ? n : BYTES - out;
        struct sb_result result = {.fd = -1};
        const void *lent = NULL;
        if (sb_body_try_read(body, SB_READ_EXACT, n, &result, &lent)) {
            CHECK(result.bytes_len == n && is_right(lent, out, n));
            sb_body_give_back(body);
        } else {
            struct sb_op *op = sb_body_read(body, mailbox, SB_READ_EXACT, n);
            struct sb_result *r = wait_for(mailbox, op);
            CHECK(r->bytes_len == n && is_right(r->bytes, out, n));
            sb_op_unref(op);
        }
        out += n;
    }
    struct sb_result end = {.fd = -1};
    uint64_t until = sb_now() + 10ull * SECOND;
    while (!sb_body_try_read(body, SB_READ_SOME, 1, &end, NULL))
        CHECK(sb_now() < until);
    CHECK(end.bytes == NULL && end.error.kind == SB_OK && sb_body_at_end(body));
    sb_object_unref(body);
    sb_mailbox_unref(mailbox);
    passed("a reader that borrows and a transfer that goes on do not meet");
}

int main(void)
{
    sb_loop_pin();
    in_any_order();
    closed_while_lent();
    never_given_back();
    told_when_thirsty();
    beside_the_transfer();
    return 0;
}
