/* Releases: fired once, retried, drained at exit, never run in a forked child. */
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "runtime/release.h"

CHECK_FORKS;

/* What a release in these tests does: fail `failures` times, then succeed, and count. Shared with
 * child processes, so that the parent sees what an exiting child did. */
struct plan {
    _Atomic int runs, frees;
    int failures;
    enum sb_err kind;
    int never; /* never ends */
    int slow;  /* milliseconds */
    struct sb_timer timer;
    struct sb_release *release;
};

static void end(struct plan *plan)
{
    struct sb_error err;
    if (plan->runs <= plan->failures) {
        sb_fail(&err, plan->kind, "the far side says no");
        sb_release_finish(plan->release, &err);
    } else {
        sb_release_finish(plan->release, NULL);
    }
}

static void later(struct sb_timer *timer)
{
    end((struct plan *)((char *)timer - offsetof(struct plan, timer)));
}

static void run(struct sb_release *release, void *data)
{
    struct plan *plan = data;
    CHECK(sb_loop_is_io_thread());
    plan->runs++;
    plan->release = release;
    plan->timer.fire = later;
    if (plan->slow > 0)
        sb_timer_set(&plan->timer, sb_now() + (uint64_t)plan->slow * MS);
    else if (!plan->never)
        end(plan);
}

static void free_plan(void *data)
{
    ((struct plan *)data)->frees++;
}

static const struct sb_release_type type = {"sandbox", run, free_plan};

static struct sb_mailbox *mailbox;

static struct plan *new_plan(void)
{
    struct plan *plan =
        mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(plan != MAP_FAILED);
    return plan;
}

static struct sb_op *new_op(void)
{
    struct sb_op *op = sb_op_new(mailbox, NULL, NULL);
    CHECK(op != NULL);
    return op;
}

static void finish_op(struct sb_op *op, enum sb_err kind)
{
    CHECK(wait_for(mailbox, op)->error.kind == kind);
    sb_op_unref(op);
    drain(mailbox);
}

/* ---- in this process ---- */

#define FIRERS 4

static _Atomic int winners, go;

static void *fire_it(void *arg)
{
    while (!go)
        ;
    winners += sb_release_fire(arg, NULL);
    return NULL;
}

static void it_runs_once_whoever_is_first(void)
{
    for (int round = 0; round < 200; round++) {
        struct plan *plan = new_plan();
        pthread_t threads[FIRERS];
        struct sb_release *release = sb_release_new(&type, plan, "abc");
        CHECK(release != NULL && sb_release_outstanding() == 1 && !sb_release_fired(release));
        winners = go = 0;
        for (int i = 0; i < FIRERS; i++)
            CHECK(pthread_create(&threads[i], NULL, fire_it, release) == 0);
        go = 1;
        for (int i = 0; i < FIRERS; i++)
            pthread_join(threads[i], NULL);
        struct sb_op *op = new_op();
        CHECK(sb_release_fire(release, op) == 0);
        finish_op(op, SB_OK);
        CHECK(winners == 1 && plan->runs == 1 && sb_release_fired(release) &&
              !sb_release_cancel(release));
        op = new_op();
        CHECK(sb_release_fire(release, op) == 0); /* after the end */
        finish_op(op, SB_OK);
        sb_release_unref(release);
        on_loop(check_nothing, NULL);
        CHECK(plan->frees == 1 && sb_release_outstanding() == 0);
        munmap(plan, sizeof *plan);
    }
    passed("it runs once, whoever is first, and everybody learns its end");
}

static void a_dropped_one_stays_registered_and_a_cancelled_one_never_runs(void)
{
    struct plan *plan = new_plan();
    struct sb_release *release = sb_release_new(&type, plan, "abc");
    sb_release_unref(sb_release_ref(release));
    CHECK(sb_release_outstanding() == 1 && plan->frees == 0);
    CHECK(sb_release_cancel(release) == 1);
    CHECK(sb_release_cancel(release) == 0);
    CHECK(sb_release_fire(release, NULL) == 0 && sb_release_outstanding() == 0);
    sb_release_unref(release);
    on_loop(check_nothing, NULL);
    CHECK(plan->runs == 0 && plan->frees == 1);
    munmap(plan, sizeof *plan);
    passed("a cancelled one never runs; its data is freed");
}

static void what_may_pass_is_retried(void)
{
    struct plan *plan = new_plan();
    plan->failures = 3;
    plan->kind = SB_ERR_UNAVAILABLE;
    struct sb_release *release = sb_release_new(&type, plan, "abc");
    struct sb_op *op = new_op();
    uint64_t start = sb_now();
    sb_release_fire(release, op);
    finish_op(op, SB_OK);
    CHECK(plan->runs == 4 && sb_now() - start >= 350 * MS);
    sb_release_unref(release);
    on_loop(check_nothing, NULL);
    CHECK(plan->frees == 1);
    passed("Unavailable, Timeout and Busy are retried with back-off");

    *plan = (struct plan){.failures = 1000000, .kind = SB_ERR_BUSY};
    release = sb_release_new(&type, plan, "abc");
    op = new_op();
    sb_release_fire(release, op);
    while (!sb_op_done(op)) {
        sb_clock_advance(100 * MS);
        on_loop(check_nothing, NULL);
    }
    finish_op(op, SB_ERR_BUSY);
    CHECK(plan->runs > 3 && plan->runs < 20);
    sb_release_unref(release);
    passed("but not for longer than the drain time");

    *plan = (struct plan){.failures = 1, .kind = SB_ERR_PERMISSION_DENIED};
    release = sb_release_new(&type, plan, "abc");
    op = new_op();
    sb_release_fire(release, op);
    finish_op(op, SB_ERR_PERMISSION_DENIED);
    CHECK(plan->runs == 1 && sb_release_outstanding() == 0);
    sb_release_unref(release);
    on_loop(check_nothing, NULL);
    munmap(plan, sizeof *plan);
    passed("other errors are final");
}

static void an_asker_may_stop_waiting(void)
{
    struct plan *plan = new_plan();
    plan->slow = 100000;
    struct sb_release *release = sb_release_new(&type, plan, "abc");
    struct sb_op *a = new_op(), *b = new_op(), *c = new_op();
    sb_release_fire(release, a);
    sb_release_fire(release, b);
    sb_release_fire(release, c);
    sb_op_cancel(b);
    finish_op(b, SB_ERR_CANCELLED);
    sb_op_deadline(a, sb_now() + MS);
    finish_op(a, SB_ERR_TIMEOUT);
    sb_clock_advance(100000 * (uint64_t)MS);
    on_loop(check_nothing, NULL);
    finish_op(c, SB_OK);
    CHECK(plan->runs == 1);
    sb_release_unref(release);
    on_loop(check_nothing, NULL);
    CHECK(plan->frees == 1);
    munmap(plan, sizeof *plan);
    passed("an asker may stop waiting, the release goes on");
}

static void complete_with(void *arg)
{
    void **pair = arg;
    sb_op_result(pair[0])->release = pair[1];
    sb_op_complete(pair[0]);
}

static void a_result_nobody_took_is_released(void)
{
    struct plan *plan = new_plan();
    struct sb_op *op = new_op();
    void *pair[2] = {op, sb_release_new(&type, plan, "abc")};
    on_loop(complete_with, pair);
    drain(mailbox);
    CHECK(plan->runs == 0);
    sb_op_unref(op);
    while (sb_release_outstanding() > 0)
        on_loop(check_nothing, NULL);
    on_loop(check_nothing, NULL);
    CHECK(plan->runs == 1 && plan->frees == 1);
    munmap(plan, sizeof *plan);
    passed("the release of a result that nobody took fires when the operation is freed");
}

/* ---- at exit, in children ---- */

/* Runs `child` in a child process that ends by exit(0); its stderr goes to `out`. Returns the
 * milliseconds. */
static int in_child(void (*child)(struct plan *plan), struct plan *plan, char *out, size_t size)
{
    int p[2], status;
    size_t len = 0;
    ssize_t n;
    CHECK(pipe(p) == 0);
    uint64_t start = sb_now();
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        dup2(p[1], 2);
        close(p[0]);
        close(p[1]);
        sb_loop_pin();
        child(plan);
        exit(0);
    }
    close(p[1]);
    while (len < size - 1 && (n = read(p[0], out + len, size - 1 - len)) > 0)
        len += (size_t)n;
    out[len] = '\0';
    close(p[0]);
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return (int)((sb_now() - start) / MS);
}

static void leave_registered(struct plan *plan)
{
    CHECK(sb_release_new(&type, plan, "abc") != NULL);
}

static void leave_fired(struct plan *plan)
{
    struct sb_release *release = sb_release_new(&type, plan, "abc");
    sb_release_fire(release, NULL);
    sb_release_unref(release);
}

static void leave_hanging(struct plan *plan)
{
    sb_release_set_drain(0.3);
    leave_fired(plan);
    leave_registered(plan);
}

static void leave_without_time(struct plan *plan)
{
    sb_release_set_drain(0);
    leave_registered(plan);
}

static void fail_while_it_lives(struct plan *plan)
{
    leave_fired(plan);
    while (sb_release_outstanding() > 0)
        usleep(1000);
}

static void fail_while_it_is_waited_for(struct plan *plan)
{
    struct sb_error err;
    CHECK(sb_mailbox_renew(mailbox, &err) == 0);
    struct sb_release *release = sb_release_new(&type, plan, "abc");
    struct sb_op *op = new_op();
    sb_release_fire(release, op);
    finish_op(op, SB_ERR_INTERNAL);
    sb_release_unref(release);
}

static void exit_drains(void)
{
    struct plan *plan = new_plan();
    char out[1000];
    in_child(leave_registered, plan, out, sizeof out);
    CHECK(plan->runs == 1 && out[0] == '\0');
    passed("exit fires and awaits what is registered");

    *plan = (struct plan){.slow = 100};
    CHECK(in_child(leave_fired, plan, out, sizeof out) >= 90);
    CHECK(plan->runs == 1 && out[0] == '\0');
    passed("exit awaits what was fired");

    *plan = (struct plan){.failures = 2, .kind = SB_ERR_TIMEOUT};
    in_child(leave_registered, plan, out, sizeof out);
    CHECK(plan->runs == 3 && out[0] == '\0');
    passed("exit retries");

    *plan = (struct plan){.never = 1};
    int ms = in_child(leave_hanging, plan, out, sizeof out);
    CHECK(ms >= 290 && ms < 5000 && plan->runs == 2);
    CHECK(strcmp(out, "sandbar: not released at exit: sandbox abc\nsandbar: not released at exit: "
                      "sandbox abc\n") == 0);
    passed("exit gives up after the drain time and names what is left on stderr");

    *plan = (struct plan){.never = 1};
    in_child(leave_without_time, plan, out, sizeof out);
    CHECK(plan->runs == 0 && strcmp(out, "sandbar: not released at exit: sandbox abc\n") == 0);
    passed("with a drain of 0 it only names them");

    *plan = (struct plan){.failures = 1, .kind = SB_ERR_INTERNAL};
    in_child(fail_while_it_lives, plan, out, sizeof out);
    CHECK(strcmp(out, "sandbar: not released at exit: sandbox abc (the far side says no)\n") == 0);
    *plan = (struct plan){.failures = 1, .kind = SB_ERR_INTERNAL};
    in_child(fail_while_it_is_waited_for, plan, out, sizeof out);
    CHECK(strcmp(out, "sandbar: not released at exit: sandbox abc (the far side says no)\n") == 0);
    passed("a release that failed is named at exit, was it waited for or not");
    munmap(plan, sizeof *plan);
}

static struct sb_release *of_parent;

static void use_parents(struct plan *plan)
{
    (void)plan;
    struct sb_error err;
    CHECK(sb_mailbox_renew(mailbox, &err) == 0);
    struct sb_op *op = new_op();
    CHECK(sb_release_outstanding() == 0);
    CHECK(sb_release_fire(of_parent, op) == 0 && !sb_release_cancel(of_parent));
    finish_op(op, SB_ERR_FORKED);
    sb_release_unref(of_parent);
}

static void a_child_never_releases_what_is_the_parents(void)
{
    struct plan *plan = new_plan();
    char out[1000];
    of_parent = sb_release_new(&type, plan, "parents");
    in_child(use_parents, plan, out, sizeof out);
    CHECK(plan->runs == 0 && out[0] == '\0' && sb_release_outstanding() == 1);
    struct sb_op *op = new_op();
    CHECK(sb_release_fire(of_parent, op) == 1);
    finish_op(op, SB_OK);
    sb_release_unref(of_parent);
    passed("a forked child never releases what its parent acquired, the parent still does");
}

int main(void)
{
    sb_loop_pin();
    mailbox = new_mailbox();
    exit_drains();
    it_runs_once_whoever_is_first();
    a_dropped_one_stays_registered_and_a_cancelled_one_never_runs();
    what_may_pass_is_retried();
    an_asker_may_stop_waiting();
    a_result_nobody_took_is_released();
    a_child_never_releases_what_is_the_parents();
    sb_mailbox_unref(mailbox);
    return 0;
}
