/* The I/O thread: posts, timers, sources, the file pool. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "check.h"

/* ---- posts ---- */

#define POSTERS 4
#define POSTS 5000

static int next_of[POSTERS], out_of_order;

struct numbered {
    int poster, n;
};

static void take_number(void *arg)
{
    struct numbered *number = arg;
    if (number->n != next_of[number->poster]++ || !sb_loop_is_io_thread())
        out_of_order = 1;
    free(number);
}

static void *post_many(void *arg)
{
    for (int i = 0; i < POSTS; i++) {
        struct numbered *number = malloc(sizeof *number);
        CHECK(number != NULL);
        *number = (struct numbered){*(int *)arg, i};
        CHECK(sb_loop_post(take_number, number, NULL) == 0);
    }
    return NULL;
}

static void posts_run_in_the_order_of_posting(void)
{
    pthread_t threads[POSTERS];
    int poster[POSTERS];
    for (int i = 0; i < POSTERS; i++) {
        poster[i] = i;
        CHECK(pthread_create(&threads[i], NULL, post_many, &poster[i]) == 0);
    }
    for (int i = 0; i < POSTERS; i++)
        pthread_join(threads[i], NULL);
    on_loop(check_nothing, NULL);
    for (int i = 0; i < POSTERS; i++)
        CHECK(next_of[i] == POSTS);
    CHECK(!out_of_order);
    passed("posts of each thread run in the order of posting, on the I/O thread");
}

static _Atomic int ran_inside;

static void inner(void *arg)
{
    (void)arg;
    ran_inside = 1;
}

static void outer(void *arg)
{
    (void)arg;
    CHECK(sb_loop_post(inner, NULL, NULL) == 0);
    CHECK(!ran_inside);
}

static void a_post_of_the_thread_itself_only_queues(void)
{
    on_loop(outer, NULL);
    on_loop(check_nothing, NULL);
    CHECK(ran_inside);
    passed("a post of the I/O thread itself only queues");
}

/* ---- timers ---- */

#define TIMERS 2000

static struct sb_timer timers[TIMERS];
static uint64_t base, last_at;
static _Atomic int fired, early;
static unsigned seed = 7;

static unsigned pick(unsigned below)
{
    seed = seed * 1103515245u + 12345u;
    return (seed >> 16) % below;
}

static void fire(struct sb_timer *timer)
{
    if (timer->at < last_at || sb_now() < timer->at)
        early = 1;
    last_at = timer->at;
    fired++;
}

/* Sets, moves and clears at random; returns in *arg how many are set in the end. */
static void shuffle_timers(void *arg)
{
    int *set = arg;
    base = sb_now() + 3600ull * SECOND;
    for (int i = 0; i < TIMERS; i++)
        timers[i].fire = fire;
    for (int round = 0; round < 10 * TIMERS; round++) {
        struct sb_timer *timer = &timers[pick(TIMERS)];
        if (pick(4) == 0)
            sb_timer_clear(timer);
        else
            sb_timer_set(timer, base + pick(1000) * (uint64_t)MS);
    }
    *set = 0;
    for (int i = 0; i < TIMERS; i++)
        *set += timers[i].set;
}

static void timers_fire_in_order_and_never_early(void)
{
    int set;
    on_loop(shuffle_timers, &set);
    CHECK(set > 0 && fired == 0);
    sb_clock_advance(3602ull * SECOND);
    for (int i = 0; i < 1000 && fired < set; i++)
        on_loop(check_nothing, NULL);
    on_loop(check_nothing, NULL);
    CHECK(fired == set && !early);
    passed("timers fire in order, never early, whatever was set, moved and cleared before");
}

static _Atomic int again;

static void set_again(struct sb_timer *timer)
{
    if (++again < 3)
        sb_timer_set(timer, 0);
}

static void start_again(void *arg)
{
    struct sb_timer *timer = arg;
    timer->fire = set_again;
    sb_timer_set(timer, sb_now() + 1);
}

static void a_timer_may_set_itself_again(void)
{
    static struct sb_timer timer;
    on_loop(start_again, &timer);
    for (int i = 0; i < 1000 && again < 3; i++) {
        on_loop(check_nothing, NULL);
        usleep(100);
    }
    CHECK(again == 3);
    passed("a timer may set itself again");
}

/* ---- sources ---- */

struct watched {
    struct sb_source source;
    struct watched *other;
    int events;
};

/* Both are ready at once; whichever is told first removes the other. */
static void remove_other(struct sb_source *source, uint32_t events)
{
    struct watched *w = (struct watched *)source;
    char c;
    CHECK(events & EPOLLIN);
    CHECK(read(source->fd, &c, 1) == 1);
    w->events++;
    sb_source_remove(&w->other->source);
}

static void add_both(void *arg)
{
    struct watched *w = arg;
    struct sb_error err;
    CHECK(sb_source_add(&w[0].source, &err) == 0);
    CHECK(sb_source_add(&w[1].source, &err) == 0);
}

static void remove_both(void *arg)
{
    struct watched *w = arg;
    sb_source_remove(&w[0].source);
    sb_source_remove(&w[1].source);
    sb_source_remove(&w[1].source);
}

static void a_removed_source_is_not_told_of_an_event_already_seen(void)
{
    int a[2], b[2];
    CHECK(pipe(a) == 0 && pipe(b) == 0);
    struct watched w[2] = {
        {{a[0], EPOLLIN, remove_other}, &w[1], 0},
        {{b[0], EPOLLIN, remove_other}, &w[0], 0},
    };
    CHECK(write(a[1], "x", 1) == 1 && write(b[1], "x", 1) == 1);
    on_loop(add_both, w);
    for (int i = 0; i < 10; i++)
        on_loop(check_nothing, NULL);
    usleep(10000);
    on_loop(remove_both, w);
    CHECK(w[0].events + w[1].events == 1);
    for (int i = 0; i < 2; i++)
        close(a[i]), close(b[i]);
    passed("a source that was removed is not told of an event that had been seen already");
}

static _Atomic int hangups;

static void count_hangup(struct sb_source *source, uint32_t events)
{
    (void)source;
    (void)events;
    hangups++;
}

static void pause_source(void *arg)
{
    sb_source_change(arg, 0);
}

static void resume_source(void *arg)
{
    sb_source_change(arg, EPOLLIN);
}

static void add_one(void *arg)
{
    struct sb_error err;
    CHECK(sb_source_add(arg, &err) == 0);
}

static void remove_one(void *arg)
{
    sb_source_remove(arg);
}

static void an_unwatched_source_is_not_told_of_a_hangup(void)
{
    int p[2];
    CHECK(pipe(p) == 0);
    struct sb_source source = {p[0], 0, count_hangup};
    on_loop(add_one, &source);
    close(p[1]);
    usleep(5000);
    on_loop(pause_source, &source);
    CHECK(hangups == 0);
    on_loop(resume_source, &source);
    for (int i = 0; i < 1000 && hangups == 0; i++)
        usleep(1000), on_loop(check_nothing, NULL);
    on_loop(remove_one, &source);
    CHECK(hangups > 0);
    close(p[0]);
    passed("an unwatched source is not told of a hang-up until it is watched again");
}

static _Atomic int readable;

static void count_readable(struct sb_source *source, uint32_t events)
{
    CHECK(events == EPOLLIN);
    readable++;
    char c;
    CHECK(read(source->fd, &c, 1) == 1);
}

static void rest_source(void *arg)
{
    sb_source_rest(arg);
}

static void await_readable(int many)
{
    for (int i = 0; i < 1000 && readable < many; i++)
        usleep(1000), on_loop(check_nothing, NULL);
    CHECK(readable == many);
}

/* Whether the kernel has been told (something happened meanwhile) or not. */
static void a_source_that_rested_is_told_of_what_came_meanwhile(void)
{
    int p[2];
    CHECK(pipe(p) == 0);
    struct sb_source source = {p[0], EPOLLIN, count_readable};
    on_loop(add_one, &source);
    on_loop(rest_source, &source);
    on_loop(resume_source, &source);
    CHECK(write(p[1], "x", 1) == 1);
    await_readable(1);
    on_loop(rest_source, &source);
    CHECK(write(p[1], "x", 1) == 1);
    struct rusage before, after;
    CHECK(getrusage(RUSAGE_SELF, &before) == 0);
    usleep(20000);
    CHECK(getrusage(RUSAGE_SELF, &after) == 0);
    CHECK(readable == 1);
    long spent = (after.ru_utime.tv_sec - before.ru_utime.tv_sec) * 1000000 +
                 (after.ru_utime.tv_usec - before.ru_utime.tv_usec) +
                 (after.ru_stime.tv_sec - before.ru_stime.tv_sec) * 1000000 +
                 (after.ru_stime.tv_usec - before.ru_stime.tv_usec);
    CHECK(spent < 10000); /* else the loop was told of it all the time */
    on_loop(resume_source, &source);
    await_readable(2);
    on_loop(rest_source, &source);
    on_loop(remove_one, &source);
    close(p[0]), close(p[1]);
    passed("a source that rested is told of what came meanwhile, and not before");
}

/* ---- the pool ---- */

#define JOBS 200

static _Atomic int worked;
static _Atomic int came_back;

static void work(void *arg)
{
    CHECK(!sb_loop_is_io_thread());
    *(int *)arg = 1;
    worked++;
}

static void came(void *arg)
{
    CHECK(sb_loop_is_io_thread() && *(int *)arg == 1);
    came_back++;
}

static void pool_work_comes_back_to_the_io_thread(void)
{
    static int flags[JOBS];
    struct sb_error err;
    for (int i = 0; i < JOBS; i++)
        CHECK(sb_pool_run(work, came, &flags[i], &err) == 0);
    for (int i = 0; i < 20000 && came_back < JOBS; i++)
        usleep(100), on_loop(check_nothing, NULL);
    CHECK(worked == JOBS && came_back == JOBS);
    passed("pool work runs elsewhere and comes back to the I/O thread");
}

/* ---- the loop run by who waits ---- */

static void wait_timer(struct sb_mailbox *mailbox, uint64_t ns)
{
    struct sb_op *op = sb_op_timer(mailbox, ns);
    CHECK(wait_for(mailbox, op)->error.kind == SB_OK);
    sb_op_unref(op);
}

static _Atomic uintptr_t ran_on;

static void note_thread(void *arg)
{
    (void)arg;
    CHECK(sb_loop_is_io_thread());
    ran_on = (uintptr_t)pthread_self();
}

/* Waits for `ns`; whether what was posted just before ran on this thread. */
static int drives_itself(struct sb_mailbox *mailbox, uint64_t ns)
{
    struct sb_error err;
    ran_on = 0;
    CHECK(sb_loop_post(note_thread, NULL, &err) == 0);
    wait_timer(mailbox, ns);
    CHECK(!sb_loop_is_io_thread());
    CHECK(ran_on != 0);
    return ran_on == (uintptr_t)pthread_self();
}

static void who_waits_alone_runs_the_loop(void)
{
    struct sb_mailbox *mailbox = new_mailbox();
    int own = 0;
    for (int i = 0; i < 200; i++)
        own += drives_itself(mailbox, i % 2 ? 0 : MS / 4);
    CHECK(own > 20); /* the first never does, and a busy machine takes the loop away again */
    sb_mailbox_unref(mailbox);
    passed("a thread that waits alone runs the loop");
}

static void what_is_posted_between_two_waits_runs_all_the_same(void)
{
    struct sb_mailbox *mailbox = new_mailbox();
    for (int i = 0; i < 20; i++) {
        drives_itself(mailbox, 0);
        ran_on = 0;
        CHECK(sb_loop_post(note_thread, NULL, NULL) == 0);
        while (ran_on == 0)
            usleep(100);
        CHECK(ran_on != (uintptr_t)pthread_self());
    }
    sb_mailbox_unref(mailbox);
    passed("what is posted between two waits runs on the I/O thread");
}

static void *wait_often(void *arg)
{
    struct sb_mailbox *mailbox = new_mailbox();
    for (int i = 0; i < *(int *)arg; i++)
        wait_timer(mailbox, (uint64_t)(i % 5) * MS / 10);
    sb_mailbox_unref(mailbox);
    return NULL;
}

static void several_may_wait(void)
{
    pthread_t threads[3];
    int times = 400;
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, wait_often, &times) == 0);
    wait_often(&times);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    passed("several threads may wait beside each other");
}

static _Atomic int interrupts;

static void count_interrupt(int number)
{
    (void)number;
    interrupts++;
}

static void *interrupt_main(void *arg)
{
    usleep(20000);
    pthread_kill(*(pthread_t *)arg, SIGUSR1);
    return NULL;
}

static void a_signal_ends_the_wait(void)
{
    struct sb_mailbox *mailbox = new_mailbox();
    struct sigaction action = {.sa_handler = count_interrupt}, old;
    sigset_t before, after;
    pthread_t self = pthread_self(), other;
    CHECK(sigaction(SIGUSR1, &action, &old) == 0);
    drives_itself(mailbox, 0);
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    CHECK(pthread_create(&other, NULL, interrupt_main, &self) == 0);
    CHECK(sb_mailbox_poll(mailbox, sb_now() + 20ull * SECOND) == -1);
    pthread_join(other, NULL);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    CHECK(interrupts == 1);
    CHECK(sigismember(&before, SIGTERM) == sigismember(&after, SIGTERM));
    CHECK(!sigismember(&after, SIGUSR1) && !sigismember(&after, SIGPIPE));
    CHECK(sigaction(SIGUSR1, &old, NULL) == 0);
    sb_mailbox_unref(mailbox);
    passed("a signal ends the wait, and the signal mask is as before");
}

static void write_to_nobody(void *arg)
{
    int *ends = arg;
    CHECK(write(ends[1], "x", 1) == -1 && errno == EPIPE);
}

static void no_sigpipe_leaves_the_loop(void)
{
    struct sb_mailbox *mailbox = new_mailbox();
    int ends[2];
    CHECK(pipe(ends) == 0);
    close(ends[0]);
    for (int i = 0; i < 50; i++) {
        wait_timer(mailbox, 0);
        CHECK(sb_loop_post(write_to_nobody, ends, NULL) == 0);
        wait_timer(mailbox, i % 2 ? 0 : MS); /* over at once, or it goes on and sleeps */
    }
    close(ends[1]);
    sb_mailbox_unref(mailbox);
    passed("a SIGPIPE of the loop's own does not reach the program");
}

int main(void)
{
    sb_loop_pin();
    posts_run_in_the_order_of_posting();
    a_post_of_the_thread_itself_only_queues();
    timers_fire_in_order_and_never_early();
    a_timer_may_set_itself_again();
    a_removed_source_is_not_told_of_an_event_already_seen();
    an_unwatched_source_is_not_told_of_a_hangup();
    a_source_that_rested_is_told_of_what_came_meanwhile();
    pool_work_comes_back_to_the_io_thread();
    who_waits_alone_runs_the_loop();
    what_is_posted_between_two_waits_runs_all_the_same();
    several_may_wait();
    a_signal_ends_the_wait();
    no_sigpipe_leaves_the_loop();
    return 0;
}
