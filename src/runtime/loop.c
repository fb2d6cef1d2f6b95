/* The loop: whose turns they are, the work posted to them, and the end of each, where the mailboxes that
 * got something are signalled once. What it watches is in source.c, timers are in timer.c, the file
 * threads in pool.c.
 *
 * A turn: events of one wait, posted work, due timers, signals. Work posted during a turn
 * runs in the next one, which then does not sleep. The wake descriptor is edge-triggered and never
 * read; `signalled` keeps a running loop from being woken again and again.
 *
 * Who runs the turns, the one that "I/O thread" means everywhere, changes hands under the lock:
 *
 *   BY_THREAD  our own thread.
 *   BY_WAITER  a thread that blocks in sb_loop_wait until its mailbox has something: what it waits
 *              for costs no change of threads. Alone it asks for that by waiting; our thread steps
 *              back after the turn that ends its wait, and stands by.
 *   BY_NOBODY  such a thread is back in its program, and likely to wait again soon. When it has not
 *              after some milliseconds, or when somebody else waits too, the baton (a timer descriptor that our
 *              thread reads) goes off, and our thread takes over.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"
#include "listen.h"
#include "sigpipe.h"
#include "source.h"
#include "timer.h"

#define HOLD 1000000 /* ns that the loop may stand still between two waits ... */
#define HOLD_MAX 4   /* ... up to so many times that, while there is nothing to do in between */
#define LOOK 1000000 /* ns a waiter may leave the sources unseen */
#define SHORT 3      /* a wait is, as long as it lasts no more than so many times the hold */

enum loop_state { LOOP_NONE, LOOP_RUNNING, LOOP_STOPPING, LOOP_STOPPED };
enum driver { BY_THREAD, BY_WAITER, BY_NOBODY };

static struct {
    pthread_mutex_t lock; /* guards all down to the ruled line */
    enum loop_state state;
    pthread_t thread;
    int wake_fd;
    struct sb_post *head, **tail;
    int signalled;
    enum driver driver;
    int waiters;              /* threads in sb_loop_wait */
    uint64_t turns;           /* how often a waiter has taken the loop over */
    struct sb_mailbox *alone; /* of the only waiter, which is not driving */
    int baton_fd;
    int baton_set;       /* it will go off */
    uint64_t hold;       /* HOLD to HOLD_MAX * HOLD */
    uint64_t takes_over; /* BY_NOBODY: when our thread takes over */
    /* ---- the driver's own */
    struct sb_mailbox *touched;
    uint64_t looked;        /* when a waiter last had looked at the sources */
    unsigned worked;        /* turns with something to do since our thread took over */
    struct sb_mailbox *own; /* of the waiter that drives: it sees for itself what is there */
} loop = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .wake_fd = -1,
    .baton_fd = -1,
    .tail = &loop.head,
};

/* The thread that drives, 0: none. Only that thread sets and clears it, so another that reads it never finds
 * itself. Not thread-local, which would make our thread allocate: a heap of its own, for one that may never
 * drive. */
static _Atomic uintptr_t driving;
static int waiter_drives; /* the driver's own: it does while it waits */

static int is_io_thread(void)
{
    return atomic_load_explicit(&driving, memory_order_relaxed) == (uintptr_t)pthread_self();
}

static void set_io_thread(int drives)
{
    atomic_store_explicit(&driving, drives ? (uintptr_t)pthread_self() : 0, memory_order_relaxed);
}

/* ---- clock ---- */

static _Atomic uint64_t clock_offset;

static uint64_t monotonic(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t sb_now(void)
{
    return monotonic() + clock_offset;
}

static void wake(int fd)
{
    uint64_t one = 1;
    while (write(fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

void sb_clock_advance(uint64_t ns)
{
    clock_offset += ns;
    pthread_mutex_lock(&loop.lock);
    if (loop.state == LOOP_RUNNING)
        wake(loop.wake_fd);
    pthread_mutex_unlock(&loop.lock);
}

/* ---- turns ---- */

static void run_posts(void)
{
    pthread_mutex_lock(&loop.lock);
    struct sb_post *post = loop.head;
    loop.head = NULL;
    loop.tail = &loop.head;
    loop.signalled = 0;
    pthread_mutex_unlock(&loop.lock);
    while (post != NULL) {
        struct sb_post *next = post->next;
        post->fn(post);
        post = next;
    }
}

/* Returns whether the only waiter's was among them. */
static int signal_touched(void)
{
    int alone = 0;
    while (loop.touched != NULL) {
        struct sb_mailbox *mailbox = loop.touched;
        loop.touched = mailbox->touched_next;
        mailbox->touched = 0;
        pthread_mutex_lock(&loop.lock);
        alone |= mailbox == loop.alone;
        pthread_mutex_unlock(&loop.lock);
        if (mailbox != loop.own)
            sb_mailbox_wake(mailbox);
        sb_mailbox_unref(mailbox);
    }
    return alone;
}

void sb_loop_touch(struct sb_mailbox *mailbox)
{
    if (mailbox->touched)
        return;
    mailbox->touched = 1;
    mailbox->touched_next = loop.touched;
    loop.touched = sb_mailbox_ref(mailbox);
}

/* How long the thread may sleep, and in *stop whether it is to end. */
static uint64_t may_sleep(int *stop)
{
    pthread_mutex_lock(&loop.lock);
    int work = loop.head != NULL;
    *stop = loop.state != LOOP_RUNNING;
    pthread_mutex_unlock(&loop.lock);
    if (work)
        return 0;
    uint64_t at = sb_timers_next();
    if (at == SB_NEVER)
        return SB_NEVER;
    uint64_t now = sb_now();
    return at > now ? at - now : 0;
}

/* Lock held. */
static void set_baton(uint64_t ns)
{
    struct itimerspec at = {.it_value.tv_nsec = ns > 0 ? (long)ns : 1};
    loop.baton_set = 1;
    timerfd_settime(loop.baton_fd, 0, &at, NULL);
}

/* A turn up to where it may sleep. */
static int work_off(void)
{
    run_posts();
    sb_timers_fire(sb_now());
    return signal_touched();
}

/* Lock held. Our thread, standing by, takes over after `ns`, unless a waiter does before. A baton that
 * goes off sooner will do: the thread sets it again. So it is set once for many short waits. */
static void leave_to_nobody(uint64_t ns)
{
    loop.driver = BY_NOBODY;
    loop.takes_over = monotonic() + ns;
    if (!loop.baton_set || ns == 0)
        set_baton(ns);
}

/* Our thread's, with the lock held: comes back when the loop is its own. */
static void wait_for_baton(void)
{
    uint64_t seen = loop.turns;
    int again = 0;
    while (!is_io_thread()) {
        uint64_t count, now;
        pthread_mutex_unlock(&loop.lock);
        while (read(loop.baton_fd, &count, sizeof count) < 0 && errno == EINTR)
            ;
        pthread_mutex_lock(&loop.lock);
        loop.baton_set = 0;
        now = monotonic();
        if (loop.driver != BY_NOBODY) {
            /* While one short wait follows the other it is kept set here, where nobody waits for it;
             * after a long one who has the loop sets it when he is done. */
            again = loop.turns == seen ? again + 1 : 0;
            seen = loop.turns;
            if (again < SHORT)
                set_baton(loop.hold);
            continue;
        }
        if (now < loop.takes_over) {
            set_baton(loop.takes_over - now);
            continue;
        }
        loop.driver = BY_THREAD;
        loop.worked = 0;
        set_io_thread(1);
    }
}

/* Our thread's, after a turn: somebody who will likely wait again has got what he waited for. When that
 * was all there was to do, it took over too early: a program that does something else for a moment
 * between two waits would pay for the change of threads each time. */
static void stand_by(void)
{
    pthread_mutex_lock(&loop.lock);
    if (loop.state == LOOP_RUNNING && loop.waiters <= 1) {
        if (loop.worked > 1)
            loop.hold = HOLD;
        else if (loop.hold < HOLD_MAX * HOLD)
            loop.hold *= 2;
        set_io_thread(0);
        leave_to_nobody(loop.hold);
    }
    wait_for_baton();
    pthread_mutex_unlock(&loop.lock);
}

static void *run(void *arg)
{
    int stop = 0;
    (void)arg;
    pthread_setname_np(pthread_self(), "sandbar-io");
    pthread_mutex_lock(&loop.lock);
    wait_for_baton();
    pthread_mutex_unlock(&loop.lock);
    while (!stop) {
        if (work_off())
            stand_by();
        uint64_t ns = may_sleep(&stop);
        if (stop)
            break;
        loop.worked += sb_sources_turn(ns, NULL) != SB_TURN_WOKEN;
    }
    sb_listen_end();
    return NULL;
}

/* ---- turns of a waiter ---- */

/* Lock held. Takes the loop, if nobody runs it. A thread that drives already has been torn out of
 * its wait by a signal handler that never returned. */
static int take_over(void)
{
    if (!is_io_thread()) {
        if (loop.state != LOOP_RUNNING || loop.driver != BY_NOBODY)
            return 0;
        loop.driver = BY_WAITER;
        loop.turns++;
        set_io_thread(1);
    }
    return 1;
}

/* Lock held. */
static void give_back(int at_once)
{
    set_io_thread(0);
    leave_to_nobody(at_once ? 0 : loop.hold);
}

/* Signals arrive only while it sleeps, so that no handler runs in the middle of a turn. A wait that is over at
 * once looks at the sources nevertheless, if nobody has for LOOK: a program of such waits, a task that
 * sleeps for 0 s again and again, would keep everybody else's input from being read. */
static int drive(struct sb_mailbox *own, int (*over)(void *arg), void *arg, uint64_t deadline)
{
    sigset_t all, old, asleep;
    int stop = 0, result = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    asleep = old;
    sigaddset(&asleep, SIGPIPE); /* a turn may have left one pending */
    waiter_drives = 1;
    loop.own = own;
    for (int looked = 0;; looked = 1) {
        work_off();
        uint64_t ns = may_sleep(&stop), now = sb_now();
        int done = over(arg);
        if (looked)
            loop.looked = now;
        if (done && (stop || now - loop.looked < LOOK)) {
            result = 1;
            break;
        }
        if (!done && (stop || now >= deadline))
            break;
        if (done)
            ns = 0;
        else if (deadline != SB_NEVER && deadline - now < ns)
            ns = deadline - now;
        if (sb_sources_turn(ns, &asleep) == SB_TURN_SIGNAL) {
            result = -1;
            break;
        }
    }
    loop.own = NULL;
    waiter_drives = 0;
    sb_sigpipe_swallow(&old);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return result;
}

int sb_loop_wait(struct sb_mailbox *mailbox, int (*over)(void *arg), void *arg, uint64_t deadline,
                 int *result)
{
    pthread_mutex_lock(&loop.lock);
    loop.waiters++;
    int drives = (loop.waiters == 1 || is_io_thread()) && take_over();
    loop.alone = !drives && loop.waiters == 1 ? mailbox : NULL;
    pthread_mutex_unlock(&loop.lock);
    if (!drives)
        return 0;
    *result = drive(mailbox, over, arg, deadline);
    pthread_mutex_lock(&loop.lock);
    loop.waiters--;
    give_back(loop.waiters > 0 || loop.state != LOOP_RUNNING);
    pthread_mutex_unlock(&loop.lock);
    return 1;
}

void sb_loop_waited(struct sb_mailbox *mailbox)
{
    pthread_mutex_lock(&loop.lock);
    loop.waiters--;
    if (loop.alone == mailbox)
        loop.alone = NULL;
    pthread_mutex_unlock(&loop.lock);
}

int sb_loop_unattended(void)
{
    pthread_mutex_lock(&loop.lock);
    int unattended = loop.state == LOOP_RUNNING && loop.driver != BY_THREAD;
    pthread_mutex_unlock(&loop.lock);
    return unattended;
}

int sb_loop_by_waiter(void)
{
    return is_io_thread() && waiter_drives;
}

void sb_loop_drive(int (*over)(void *arg), void *arg, uint64_t deadline)
{
    pthread_mutex_lock(&loop.lock);
    int drives = take_over();
    pthread_mutex_unlock(&loop.lock);
    while (drives && drive(NULL, over, arg, deadline) < 0)
        ;
    if (!drives)
        return;
    pthread_mutex_lock(&loop.lock);
    give_back(0);
    pthread_mutex_unlock(&loop.lock);
}

/* ---- starting, stopping ---- */

int sb_thread_start(pthread_t *thread, void *(*run_thread)(void *))
{
    sigset_t all, old;
    pthread_attr_t attr;
    sigfillset(&all);
    int error = pthread_attr_init(&attr);
    if (error != 0)
        return error;
    /* not the default, which follows RLIMIT_STACK and may be anything */
    pthread_attr_setstacksize(&attr, 1u << 20);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    error = pthread_create(thread, &attr, run_thread, NULL);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return error;
}

void sb_thread_join(pthread_t thread, int seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += seconds;
    pthread_timedjoin_np(thread, NULL, &until);
}

static void close_fds(void)
{
    sb_sources_close();
    if (loop.wake_fd >= 0)
        close(loop.wake_fd);
    if (loop.baton_fd >= 0)
        close(loop.baton_fd);
    loop.wake_fd = loop.baton_fd = -1;
}

/* Lock held. */
static int start(struct sb_error *err)
{
    int error;
    loop.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    loop.baton_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    if (loop.wake_fd < 0 || loop.baton_fd < 0 || sb_sources_open(loop.wake_fd) < 0) {
        error = errno;
        close_fds();
        return sb_fail_errno(err, error, "start I/O thread", "cannot make the event descriptors");
    }
    loop.state = LOOP_RUNNING;
    loop.baton_set = 0;
    loop.hold = HOLD_MAX * HOLD;
    leave_to_nobody(
        loop.hold); /* who asks first most likely waits at once, and not for the last time */
    error = sb_thread_start(&loop.thread, run);
    if (error != 0) {
        loop.state = LOOP_NONE;
        close_fds();
        return sb_fail_errno(err, error, "start I/O thread", "cannot start the I/O thread");
    }
    return 0;
}

int sb_loop_post_node(struct sb_post *post, struct sb_error *err)
{
    int error = 0;
    post->next = NULL;
    pthread_mutex_lock(&loop.lock);
    if (loop.state == LOOP_NONE)
        error = start(err);
    else if (loop.state != LOOP_RUNNING)
        error = sb_fail(err, SB_ERR_CLOSED, "the process is exiting");
    if (error == 0) {
        *loop.tail = post;
        loop.tail = &post->next;
        /* nobody runs it: whoever takes it over begins with what is posted */
        if (!loop.signalled && !is_io_thread() && loop.driver != BY_NOBODY) {
            loop.signalled = 1;
            wake(loop.wake_fd);
        }
    }
    pthread_mutex_unlock(&loop.lock);
    return error;
}

struct plain_post {
    struct sb_post post;
    void (*fn)(void *arg);
    void *arg;
};

static void run_plain(struct sb_post *post)
{
    struct plain_post plain = *sb_container(post, struct plain_post, post);
    free(sb_container(post, struct plain_post, post));
    plain.fn(plain.arg);
}

int sb_loop_post(void (*fn)(void *arg), void *arg, struct sb_error *err)
{
    struct plain_post *plain = malloc(sizeof *plain);
    if (plain == NULL)
        return sb_fail_errno(err, ENOMEM, "post", "cannot hand over work");
    *plain = (struct plain_post){.post.fn = run_plain, .fn = fn, .arg = arg};
    int error = sb_loop_post_node(&plain->post, err);
    if (error != 0)
        free(plain);
    return error;
}

int sb_loop_is_io_thread(void)
{
    return is_io_thread();
}

/* The descriptors stay open: the thread may outlive a join that gave up, and the process
 * is ending. A thread that stands by is not even told. */
void sb_loop_stop(void)
{
    pthread_mutex_lock(&loop.lock);
    int running = loop.state == LOOP_RUNNING;
    int ours = running && take_over();
    loop.state = running && !ours ? LOOP_STOPPING : LOOP_STOPPED;
    if (running && !ours)
        wake(loop.wake_fd);
    pthread_mutex_unlock(&loop.lock);
    if (ours) {
        sb_listen_end();
        pthread_detach(loop.thread);
        return;
    }
    if (!running)
        return;
    sb_thread_join(loop.thread, 5);
    pthread_mutex_lock(&loop.lock);
    loop.state = LOOP_STOPPED;
    pthread_mutex_unlock(&loop.lock);
}

/* ---- fork ---- */

void sb_loop_fork_lock(void)
{
    pthread_mutex_lock(&loop.lock);
}

void sb_loop_fork_unlock(void)
{
    pthread_mutex_unlock(&loop.lock);
}

/* The parent's thread does not exist here. What was posted or watched belongs to it and is
 * forgotten. */
void sb_loop_fork_child(void)
{
    set_io_thread(0);
    waiter_drives = 0;
    close_fds();
    loop.state = LOOP_NONE;
    loop.head = NULL;
    loop.tail = &loop.head;
    loop.signalled = 0;
    loop.waiters = 0;
    loop.alone = NULL;
    loop.touched = loop.own = NULL;
    sb_timers_forget();
    sb_listen_forget();
}
