#include "server/ending.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "http/core.h"

/* One for the process, as the signal is. All of it is the I/O thread's, but for `told`, which the handler has. */
static struct sb_source source = {.fd = -1};
static struct sb_op *asker;
static struct sigaction before;
static volatile sig_atomic_t told = -1;

static void on_signal(int number)
{
    int kept = errno;
    uint64_t one = 1;
    (void)number;
    if (told >= 0 && write(told, &one, sizeof one) < 0) {
        /* nothing to be done here: the counter is full, so it is known already */
    }
    errno = kept;
}

static struct sb_op *let_go(void)
{
    struct sb_op *op = asker;
    asker = NULL;
    told = -1;
    sb_source_remove(&source);
    close(source.fd);
    source.fd = -1;
    return op;
}

static void on_told(struct sb_source *at, uint32_t events)
{
    (void)at;
    (void)events;
    sb_op_complete(let_go());
}

static void on_cancel(struct sb_op *op, void *owner)
{
    struct sb_error err = {.kind = SB_ERR_CANCELLED, .message = "cancelled"};
    (void)owner;
    if (op == asker) {
        sigaction(SIGTERM, &before, NULL);
        let_go();
    }
    sb_op_fail(op, &err);
}

static void begin(void *arg)
{
    struct sb_op *op = arg;
    struct sb_error err = {0};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART | (int)SA_RESETHAND};
    if (asker != NULL) {
        sb_fail(&err, SB_ERR_BUSY, "the signal is waited for already");
        sb_op_fail(op, &err);
        return;
    }
    source = (struct sb_source){eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), EPOLLIN, on_told};
    if (source.fd < 0 || sb_source_add(&source, &err) != 0) {
        if (source.fd < 0)
            sb_fail_errno(&err, errno, "eventfd", "the signal cannot be waited for");
        else
            close(source.fd);
        source.fd = -1;
        sb_op_fail(op, &err);
        return;
    }
    asker = op;
    told = source.fd;
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, &before);
}

struct sb_op *sb_server_ending(struct sb_mailbox *mailbox)
{
    struct sb_error err = {0};
    struct sb_op *op = sb_op_new(mailbox, on_cancel, NULL);
    if (op == NULL || sb_loop_post(begin, op, &err) == 0)
        return op;
    return sb_http_refuse(op, &err);
}
