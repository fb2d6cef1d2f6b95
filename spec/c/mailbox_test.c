/* The wake: never lost, rarely needless, on both channels. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "check.h"

#define OPS (100000 / CHECK_SCALE)
#define IN_FLIGHT 200

static _Atomic size_t completed;

static void complete(void *arg)
{
    sb_op_complete(arg);
    completed++;
}

static void submit(struct sb_mailbox *mailbox)
{
    struct sb_op *op = sb_op_new(mailbox, NULL, NULL);
    CHECK(op != NULL);
    CHECK(sb_loop_post(complete, op, NULL) == 0);
    sb_op_unref(op); /* the asker does not care */
}

/* Waits by poll alone, so a lost wake would time out. */
static void no_wake_is_lost(void)
{
    struct sb_mailbox *mailbox = new_mailbox();
    size_t made = 0, got = 0, wakes = 0;
    uint64_t start = sb_now();
    while (got < OPS) {
        while (made < OPS && made - got < IN_FLIGHT) {
            submit(mailbox);
            made++;
        }
        CHECK(sb_mailbox_poll(mailbox, sb_now() + 10ull * SECOND) == 1);
        wakes++;
        got += drain(mailbox);
    }
    printf("# %.0f operations a second, %.1f a wake\n",
           (double)got / ((double)(sb_now() - start) / 1e9), (double)got / (double)wakes);
    CHECK(sb_mailbox_pending(mailbox) == 0);
    CHECK(sb_mailbox_poll(mailbox, 0) == 0 || drain(mailbox) == 0);
    sb_mailbox_unref(mailbox);
    passed("no wake is lost, however completions and drains interleave");
}

static void a_bounded_drain_leaves_it_readable(void)
{
    struct sb_mailbox *mailbox = new_mailbox();
    struct sb_op *ops[4];
    size_t got = 0;
    completed = 0;
    for (int i = 0; i < 10; i++)
        submit(mailbox);
    while (completed < 10)
        ;
    on_loop(check_nothing, NULL);
    for (int i = 0; i < 3; i++) {
        CHECK(sb_mailbox_poll(mailbox, 0) == 1);
        size_t n = sb_mailbox_drain(mailbox, ops, 4);
        CHECK(n == (i < 2 ? 4 : 2));
        for (size_t k = 0; k < n; k++)
            sb_op_unref(ops[k]);
        got += n;
    }
    CHECK(got == 10 && sb_mailbox_poll(mailbox, 0) == 0);
    sb_mailbox_unref(mailbox);
    passed("a bounded drain leaves the descriptor readable, the last one does not");
}

static void order_is_the_order_of_completion(void)
{
    struct sb_mailbox *mailbox = new_mailbox();
    struct sb_op *made[50], *ops[7];
    size_t next = 0;
    for (int i = 0; i < 50; i++) {
        made[i] = sb_op_new(mailbox, NULL, NULL);
        CHECK(sb_loop_post(complete, made[i], NULL) == 0);
    }
    while (next < 50) {
        CHECK(sb_mailbox_poll(mailbox, sb_now() + 10ull * SECOND) == 1);
        size_t n = sb_mailbox_drain(mailbox, ops, 7);
        for (size_t i = 0; i < n; i++) {
            CHECK(ops[i] == made[next++]);
            sb_op_unref(ops[i]);
            sb_op_unref(ops[i]);
        }
    }
    sb_mailbox_unref(mailbox);
    passed("operations come out oldest first");
}

static void on_signal(int number)
{
    (void)number;
}

static void *send_signal(void *arg)
{
    usleep(20000);
    pthread_kill(*(pthread_t *)arg, SIGUSR1);
    return NULL;
}

static void a_signal_interrupts_the_wait(void)
{
    struct sb_mailbox *mailbox = new_mailbox();
    struct sigaction action = {.sa_handler = on_signal};
    pthread_t self = pthread_self(), thread;
    sigaction(SIGUSR1, &action, NULL);
    CHECK(pthread_create(&thread, NULL, send_signal, &self) == 0);
    CHECK(sb_mailbox_poll(mailbox, SB_NEVER) == -1);
    pthread_join(thread, NULL);
    uint64_t start = sb_now();
    CHECK(sb_mailbox_poll(mailbox, start + 3 * MS) == 0);
    CHECK(sb_now() >= start + 3 * MS);
    sb_mailbox_unref(mailbox);
    passed("a signal interrupts the wait, a deadline ends it");
}

/* ---- waiting for one operation ---- */

static void await_one(struct sb_mailbox *mailbox, uint64_t ns)
{
    submit(mailbox);
    struct sb_op *op = sb_op_timer(mailbox, ns);
    CHECK(op != NULL);
    CHECK(sb_mailbox_await(mailbox, op, sb_now() + 20ull * SECOND) == 1 && sb_op_done(op));
    CHECK(sb_mailbox_await(mailbox, op, 0) == 1);
    sb_op_unref(op);
    CHECK(sb_mailbox_pending(mailbox) == 0);
}

static void *await_many(void *arg)
{
    struct sb_mailbox *mailbox = new_mailbox();
    (void)arg;
    for (int i = 0; i < 300; i++)
        await_one(mailbox, i % 10 == 0 ? MS / 5 : 0);
    CHECK(drain(mailbox) <= 2); /* the last, if somebody else ran the loop */
    sb_mailbox_unref(mailbox);
    return NULL;
}

static void whoever_runs_the_loop_it_ends(void)
{
    pthread_t threads[3];
    await_many(NULL);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, await_many, NULL) == 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    passed("a wait for one operation ends with it, whoever runs the loop");
}

static void it_ends_early(void)
{
    struct sb_mailbox *mailbox = new_mailbox();
    struct sigaction action = {.sa_handler = on_signal};
    pthread_t self = pthread_self(), thread;
    await_one(mailbox, 0);
    struct sb_op *op = sb_op_timer(mailbox, SB_NEVER);
    uint64_t start = sb_now();
    submit(mailbox);
    CHECK(sb_mailbox_await(mailbox, op, start + 3 * MS) == 0 && !sb_op_done(op));
    CHECK(sb_now() >= start + 3 * MS);
    sigaction(SIGUSR1, &action, NULL);
    CHECK(pthread_create(&thread, NULL, send_signal, &self) == 0);
    CHECK(sb_mailbox_await(mailbox, op, SB_NEVER) == -1);
    pthread_join(thread, NULL);
    sb_op_cancel(op);
    CHECK(sb_mailbox_await(mailbox, op, SB_NEVER) == 1);
    CHECK(sb_op_result(op)->error.kind == SB_ERR_CANCELLED);
    sb_op_unref(op);
    sb_mailbox_unref(mailbox);
    passed("... or with a deadline or a signal; the operation can be waited for again");
}

/* What a wait left in the mailbox is there for whoever polls the descriptor next. */
static void mail_of_a_wait_that_polled_is_signalled(void)
{
    struct sb_mailbox *mailbox = new_mailbox();
    struct pollfd p = {.fd = sb_mailbox_fd(mailbox), .events = POLLIN};
    for (int i = 0; i < 50; i++) {
        submit(mailbox);
        CHECK(sb_mailbox_poll(mailbox, sb_now() + 20ull * SECOND) == 1);
        CHECK(poll(&p, 1, 0) == 1);
        CHECK(drain(mailbox) == 1);
    }
    sb_mailbox_unref(mailbox);
    passed("a poll that ends leaves the descriptor readable, whoever ran the loop");
}

/* ---- the second channel ---- */

static int dial(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && strlen(path) < sizeof addr.sun_path);
    memcpy(addr.sun_path, path, strlen(path) + 1);
    CHECK(connect(fd, (struct sockaddr *)&addr, sizeof addr) == 0);
    return fd;
}

static char next_byte(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char c = 0;
    CHECK(poll(&p, 1, 10000) == 1);
    CHECK(read(fd, &c, 1) == 1);
    return c;
}

static void a_connection_gets_one_byte_an_edge(void)
{
    struct sb_mailbox *mailbox = new_mailbox();
    struct sb_error err;
    struct stat st;
    char *path = sb_mailbox_listen(mailbox, &err), *dir;
    CHECK(path != NULL && stat(path, &st) == 0);
    dir = strdup(path);
    CHECK(dir != NULL);
    *strrchr(dir, '/') = '\0';
    CHECK(stat(dir, &st) == 0 && (st.st_mode & 0777) == 0700);

    submit(mailbox); /* before anybody has connected: signalled again then */
    on_loop(check_nothing, NULL);
    on_loop(check_nothing, NULL);
    int fd = dial(path);
    CHECK(next_byte(fd) == 'w');
    CHECK(stat(path, &st) < 0 && errno == ENOENT);
    CHECK(stat(dir, &st) < 0 && errno == ENOENT);
    CHECK(drain(mailbox) == 1);

    completed = 0;
    for (int i = 0; i < 5; i++)
        submit(mailbox);
    while (completed < 5)
        ;
    on_loop(check_nothing, NULL);
    CHECK(next_byte(fd) == 'w');
    struct pollfd p = {.fd = fd, .events = POLLIN};
    CHECK(poll(&p, 1, 20) == 0);
    CHECK(drain(mailbox) == 5);
    sb_mailbox_nudge(mailbox, 'l');
    CHECK(next_byte(fd) == 'l');

    close(fd);
    submit(mailbox); /* nobody there: no signal, no error */
    while (drain(mailbox) == 0)
        CHECK(sb_mailbox_poll(mailbox, sb_now() + 10ull * SECOND) == 1);
    free(path);
    free(dir);
    sb_mailbox_unref(mailbox);
    passed("the connection gets one byte an edge, also for what came before it; listener and "
           "directory vanish");
}

static void many_wakes_through_the_second_channel(void)
{
    struct sb_mailbox *mailbox = new_mailbox();
    struct sb_error err;
    char *path = sb_mailbox_listen(mailbox, &err);
    CHECK(path != NULL);
    int fd = dial(path);
    size_t made = 0, got = 0, bytes = 0;
    while (got < OPS / 4) {
        char buf[64];
        while (made < OPS / 4 && made - got < IN_FLIGHT) {
            submit(mailbox);
            made++;
        }
        struct pollfd p = {.fd = fd, .events = POLLIN};
        CHECK(poll(&p, 1, 10000) == 1);
        ssize_t n = read(fd, buf, sizeof buf);
        CHECK(n > 0);
        bytes += (size_t)n;
        got += drain(mailbox);
    }
    printf("# %d operations, %zu bytes\n", OPS / 4, bytes);
    close(fd);
    free(path);
    sb_mailbox_unref(mailbox);
    passed("no wake is lost on the second channel either");
}

int main(void)
{
    sb_loop_pin();
    no_wake_is_lost();
    a_bounded_drain_leaves_it_readable();
    order_is_the_order_of_completion();
    a_signal_interrupts_the_wait();
    whoever_runs_the_loop_it_ends();
    it_ends_early();
    mail_of_a_wait_that_polled_is_signalled();
    a_connection_gets_one_byte_an_edge();
    many_wakes_through_the_second_channel();
    return 0;
}
