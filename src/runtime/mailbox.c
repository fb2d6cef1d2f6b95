/* Mailboxes: a queue under a lock, and the coalesced wake. Why no wake is lost: the consumer takes
 * the signal before it stores `armed` = 0 and detaches the queue after that, so whatever is linked
 * later finds `armed` 0 and signals, and whatever was linked before is detached. The price is a
 * spurious wake now and then. */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"
#include "listen.h"

static int new_eventfd(struct sb_error *err)
{
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return fd >= 0 ? fd : sb_fail_errno(err, errno, "mailbox", "cannot make an eventfd");
}

struct sb_mailbox *sb_mailbox_new(struct sb_error *err)
{
    struct sb_mailbox *mailbox = calloc(1, sizeof *mailbox);
    if (mailbox == NULL) {
        sb_fail_errno(err, ENOMEM, "mailbox", "cannot make a mailbox");
        return NULL;
    }
    mailbox->fd = new_eventfd(err);
    if (mailbox->fd < 0) {
        free(mailbox);
        return NULL;
    }
    pthread_mutex_init(&mailbox->lock, NULL);
    mailbox->refs = 1;
    mailbox->generation = sb_generation();
    mailbox->tail = &mailbox->head;
    mailbox->wake_fd = -1;
    return mailbox;
}

struct sb_mailbox *sb_mailbox_ref(struct sb_mailbox *mailbox)
{
    mailbox->refs++;
    return mailbox;
}

static void drop_all(struct sb_op *op)
{
    while (op != NULL) {
        struct sb_op *next = op->next;
        sb_op_unref(op);
        op = next;
    }
}

/* Open operations hold the mailbox, completed ones are held by it. In a forked child the queue is
 * the parent's. */
void sb_mailbox_unref(struct sb_mailbox *mailbox)
{
    if (mailbox == NULL || --mailbox->refs != 0)
        return;
    close(mailbox->fd);
    if (mailbox->wake_fd >= 0)
        close(mailbox->wake_fd);
    if (mailbox->generation == sb_generation()) {
        drop_all(mailbox->left);
        drop_all(mailbox->head);
        pthread_mutex_destroy(&mailbox->lock);
    }
    free(mailbox);
}

int sb_mailbox_renew(struct sb_mailbox *mailbox, struct sb_error *err)
{
    uint64_t generation = sb_generation();
    if (mailbox->generation == generation)
        return 0;
    int fd = new_eventfd(err);
    if (fd < 0)
        return fd;
    close(mailbox->fd); /* this process's copy: the parent's stays */
    if (mailbox->wake_fd >= 0)
        close(mailbox->wake_fd);
    pthread_mutex_init(&mailbox->lock, NULL); /* the parent's thread may have held it */
    mailbox->fd = fd;
    mailbox->wake_fd = -1;
    mailbox->head = mailbox->left = NULL;
    mailbox->tail = &mailbox->head;
    mailbox->armed = 0;
    mailbox->open = 0;
    mailbox->touched = 0;
    mailbox->touched_next = NULL;
    mailbox->generation = generation;
    return 0;
}

int sb_mailbox_fd(const struct sb_mailbox *mailbox)
{
    return mailbox->fd;
}

size_t sb_mailbox_pending(const struct sb_mailbox *mailbox)
{
    return mailbox->open;
}

void sb_mailbox_put(struct sb_mailbox *mailbox, struct sb_op *op)
{
    op->next = NULL;
    pthread_mutex_lock(&mailbox->lock);
    *mailbox->tail = op;
    mailbox->tail = &op->next;
    mailbox->open--;
    atomic_store_explicit(&op->done, 1, memory_order_release);
    pthread_mutex_unlock(&mailbox->lock);
}

/* Lock held. A peer that has gone away ends the channel. */
static void send_byte(struct sb_mailbox *mailbox, char byte)
{
    if (mailbox->wake_fd < 0 || send(mailbox->wake_fd, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1)
        return;
    if (errno != EAGAIN && errno != EINTR) {
        close(mailbox->wake_fd);
        mailbox->wake_fd = -1;
    }
}

void sb_mailbox_wake(struct sb_mailbox *mailbox)
{
    uint64_t one = 1;
    if (atomic_exchange(&mailbox->armed, 1))
        return;
    while (write(mailbox->fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
    pthread_mutex_lock(&mailbox->lock);
    send_byte(mailbox, 'w');
    pthread_mutex_unlock(&mailbox->lock);
}

/* A new second channel; takes over fd. What was signalled before it existed is signalled again on
 * it. */
void sb_mailbox_set_channel(struct sb_mailbox *mailbox, int fd)
{
    pthread_mutex_lock(&mailbox->lock);
    if (mailbox->wake_fd >= 0)
        close(mailbox->wake_fd);
    mailbox->wake_fd = fd;
    if (mailbox->armed)
        send_byte(mailbox, 'w');
    pthread_mutex_unlock(&mailbox->lock);
}

void sb_mailbox_nudge(struct sb_mailbox *mailbox, char byte)
{
    if (mailbox->generation != sb_generation())
        return;
    pthread_mutex_lock(&mailbox->lock);
    send_byte(mailbox, byte);
    pthread_mutex_unlock(&mailbox->lock);
}

static int is_empty(struct sb_mailbox *mailbox)
{
    pthread_mutex_lock(&mailbox->lock);
    int empty = mailbox->left == NULL && mailbox->head == NULL;
    pthread_mutex_unlock(&mailbox->lock);
    return empty;
}

size_t sb_mailbox_drain(struct sb_mailbox *mailbox, struct sb_op **ops, size_t max)
{
    size_t n = 0;
    if (mailbox->generation != sb_generation())
        return 0;
    if (mailbox->armed) {
        uint64_t count;
        while (read(mailbox->fd, &count, sizeof count) < 0 && errno == EINTR)
            ;
        mailbox->armed = 0;
    }
    while (n < max) {
        if (mailbox->left == NULL) {
            pthread_mutex_lock(&mailbox->lock);
            mailbox->left = mailbox->head;
            mailbox->head = NULL;
            mailbox->tail = &mailbox->head;
            pthread_mutex_unlock(&mailbox->lock);
            if (mailbox->left == NULL)
                return n;
        }
        ops[n] = mailbox->left;
        mailbox->left = mailbox->left->next;
        ops[n++]->next = NULL;
    }
    /* stopped early: what was linked while `armed` was still 1 has not been signalled either */
    if (!is_empty(mailbox))
        sb_mailbox_wake(mailbox);
    return n;
}

static int has_mail(void *arg)
{
    struct sb_mailbox *mailbox = arg;
    return mailbox->armed || !is_empty(mailbox);
}

/* For a thread that does not run the loop. 1 readable, 0 deadline, -1 interrupted. */
static int wait_readable(struct sb_mailbox *mailbox, uint64_t deadline)
{
    struct pollfd pfd = {.fd = mailbox->fd, .events = POLLIN};
    struct timespec ts = {0, 0};
    if (deadline != SB_NEVER) {
        uint64_t now = sb_now();
        uint64_t ns = deadline > now ? deadline - now : 0;
        ts.tv_sec = (time_t)(ns / 1000000000u);
        ts.tv_nsec = (long)(ns % 1000000000u);
    }
    int n = ppoll(&pfd, 1, deadline != SB_NEVER ? &ts : NULL, NULL);
    sb_loop_waited(mailbox);
    return n > 0 ? 1 : n == 0 ? 0 : -1;
}

int sb_mailbox_poll(struct sb_mailbox *mailbox, uint64_t deadline)
{
    int n;
    if (mailbox->generation != sb_generation())
        return 0;
    if (sb_loop_wait(mailbox, has_mail, mailbox, deadline, &n)) {
        if (!is_empty(mailbox))
            sb_mailbox_wake(mailbox); /* the descriptor is readable until all is drained */
        return n;
    }
    return wait_readable(mailbox, deadline);
}

/* ---- waiting for one operation, alone ---- */

static int is_done(void *arg)
{
    return sb_op_done(arg);
}

/* The loop does not signal what it puts here while this thread runs it (see sb_loop_wait), so it is
 * taken out whatever the wait came to. */
static void drop_mail(struct sb_mailbox *mailbox)
{
    struct sb_op *ops[16];
    size_t n;
    do {
        n = sb_mailbox_drain(mailbox, ops, sizeof ops / sizeof *ops);
        for (size_t i = 0; i < n; i++)
            sb_op_unref(ops[i]);
    } while (n > 0);
}

int sb_mailbox_await(struct sb_mailbox *mailbox, struct sb_op *op, uint64_t deadline)
{
    int n = 1;
    while (n > 0 && !sb_op_done(op)) {
        if (!sb_loop_wait(mailbox, is_done, op, deadline, &n))
            n = wait_readable(mailbox, deadline);
        drop_mail(mailbox);
    }
    return sb_op_done(op) ? 1 : n;
}
