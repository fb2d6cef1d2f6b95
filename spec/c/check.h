/* For the C unit tests: a check that names its place, and waiting for an operation as a blocking
 * host does. */
#ifndef CHECK_H
#define CHECK_H

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/loop.h"
#include "runtime/mailbox.h"
#include "runtime/op.h"

#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                        \
        }                                                                   \
    } while (0)

/* For what other threads bring about: waits until it is so. */
#define CHECK_SOON(condition)                                \
    do {                                                     \
        uint64_t patience_ = sb_now() + 20ull * 1000000000u; \
        while (!(condition) && sb_now() < patience_)         \
            usleep(500);                                     \
        CHECK(condition);                                    \
    } while (0)

#define MS 1000000u
#define SECOND 1000000000u

/* Says which promise was kept; a test is a list of these. */
static inline void passed(const char *promise)
{
    printf("ok - %s\n", promise);
    fflush(stdout);
}

/* Says which promise was not looked at, and why not. */
static inline void skipped(const char *promise, const char *why)
{
    printf("  skip  %s: %s\n", promise, why);
    fflush(stdout);
}

/* It answers for setrlimit itself: the kernel goes on with the old limit on descriptors. */
#define VALGRIND_LIMITS "under valgrind the kernel does not see a lowered limit on descriptors"
static inline int under_valgrind(void)
{
    return getenv("SPEC_VALGRIND") != NULL;
}

static inline struct sb_mailbox *new_mailbox(void)
{
    struct sb_error err;
    struct sb_mailbox *mailbox = sb_mailbox_new(&err);
    CHECK(mailbox != NULL);
    return mailbox;
}

/* Takes everything out of the mailbox; returns how many there were. */
static inline size_t drain(struct sb_mailbox *mailbox)
{
    struct sb_op *ops[16];
    size_t n, all = 0;
    do {
        n = sb_mailbox_drain(mailbox, ops, 16);
        for (size_t i = 0; i < n; i++)
            sb_op_unref(ops[i]);
        all += n;
    } while (n == 16);
    return all;
}

/* Waits for the operation and returns its result, which lives as long as the caller's reference: the
 * mailbox has none any more. */
static inline struct sb_result *wait_for(struct sb_mailbox *mailbox, struct sb_op *op)
{
    CHECK(op != NULL);
    while (!sb_op_done(op)) {
        CHECK(sb_mailbox_poll(mailbox, sb_now() + 20ull * SECOND) != 0);
        drain(mailbox);
    }
    drain(mailbox);
    return sb_op_result(op);
}

static inline void check_nothing(void *arg)
{
    (void)arg;
}

/* Runs fn(arg) on the I/O thread and waits until it has. */
struct check_call {
    void (*fn)(void *arg);
    void *arg;
    _Atomic int done;
};

static inline void check_call_run(void *arg)
{
    struct check_call *call = arg;
    call->fn(call->arg);
    call->done = 1;
}

static inline void on_loop(void (*fn)(void *arg), void *arg)
{
    struct check_call call = {fn, arg, 0};
    struct sb_error err;
    CHECK(sb_loop_post(check_call_run, &call, &err) == 0);
    while (!call.done)
        sched_yield();
}

/* The sanitizers and fork: what a child forgets of its parent's is no leak, and it may start
 * threads. */
#define CHECK_FORKS                                                                  \
    __attribute__((visibility("default"))) int __lsan_is_turned_off(void);           \
    int __lsan_is_turned_off(void)                                                   \
    {                                                                                \
        return sb_generation() != 1;                                                 \
    }                                                                                \
    __attribute__((visibility("default"))) const char *__tsan_default_options(void); \
    const char *__tsan_default_options(void)                                         \
    {                                                                                \
        return "die_after_fork=0:atexit_sleep_ms=0";                                 \
    }                                                                                \
    _Static_assert(1, "")

/* Volumes are divided by this where every access is instrumented. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define CHECK_SCALE 16
#else
#define CHECK_SCALE (under_valgrind() ? 64 : 1)
#endif

#endif
