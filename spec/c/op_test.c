/* Operations: one completion whoever is first, and what becomes of results. */
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

static void a_timer_operation_completes(void)
{
    struct sb_mailbox *mailbox = new_mailbox();
    uint64_t start = sb_now();
    struct sb_op *op = sb_op_timer(mailbox, 5 * MS);
    CHECK(wait_for(mailbox, op)->error.kind == SB_OK);
    CHECK(sb_now() - start >= 5 * MS);
    CHECK(sb_mailbox_pending(mailbox) == 0);
    CHECK(sb_op_id(op) > 0 && sb_op_id(op) < 1ull << 53);
    sb_op_unref(op);
    sb_mailbox_unref(mailbox);
    passed("a timer operation completes when its time has come");
}

static void cancel_and_deadline_end_it_early(void)
{
    struct sb_mailbox *mailbox = new_mailbox();
    struct sb_op *op = sb_op_timer(mailbox, 3600ull * SECOND);
    CHECK(sb_mailbox_pending(mailbox) == 1);
    sb_op_cancel(op);
    sb_op_cancel(op);
    CHECK(wait_for(mailbox, op)->error.kind == SB_ERR_CANCELLED);
    sb_op_cancel(op);
    sb_op_unref(op);

    op = sb_op_timer(mailbox, 3600ull * SECOND);
    sb_op_deadline(op, sb_now() + 2 * MS);
    CHECK(wait_for(mailbox, op)->error.kind == SB_ERR_TIMEOUT);
    sb_op_unref(op);

    op = sb_op_timer(mailbox, 3600ull * SECOND);
    sb_op_deadline(op, 0);
    CHECK(wait_for(mailbox, op)->error.kind == SB_ERR_TIMEOUT);
    sb_op_unref(op);

    op = sb_op_timer(mailbox, 2 * MS);
    sb_op_deadline(op, sb_now() + 3600ull * SECOND);
    CHECK(wait_for(mailbox, op)->error.kind == SB_OK);
    sb_op_unref(op);
    drain(mailbox);
    sb_mailbox_unref(mailbox);
    passed("cancel ends it with Cancelled, a deadline with Timeout, neither after its end");
}

/* Completed by a post, cancelled by another thread, with a deadline around the same moment. */
#define RACES 3000

struct race {
    struct sb_op *op;
    int cancels;
};

static void race_complete(void *arg)
{
    struct race *race = arg;
    if (race->op != NULL) {
        struct sb_op *op = race->op;
        race->op = NULL;
        sb_op_complete(op);
    }
}

static void race_cancelled(struct sb_op *op, void *owner)
{
    struct race *race = owner;
    struct sb_error err;
    race->cancels++;
    CHECK(race->op == op && sb_op_asked(op) != SB_OK);
    race->op = NULL;
    sb_fail(&err, SB_ERR_CANCELLED, "cancelled");
    sb_op_fail(op, &err);
}

static struct race races[RACES];
static struct sb_op *raced[RACES];
static _Atomic int race_made;

static void *cancel_all(void *arg)
{
    (void)arg;
    for (int i = 0; i < RACES; i++) {
        while (race_made <= i)
            ;
        sb_op_cancel(raced[i]);
    }
    return NULL;
}

static void one_completion_whoever_is_first(void)
{
    struct sb_mailbox *mailbox = new_mailbox();
    size_t done = 0, ok = 0;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, cancel_all, NULL) == 0);
    for (int i = 0; i < RACES; i++) {
        races[i].op = sb_op_new(mailbox, race_cancelled, &races[i]);
        CHECK(races[i].op != NULL);
        raced[i] = sb_op_ref(races[i].op); /* the canceller's */
        struct sb_op *asker = races[i].op;
        if (i % 3 == 0)
            sb_op_deadline(asker, sb_now() + 10000);
        race_made = i + 1;
        for (volatile int spin = 0; spin < i % 2 * (i % 97) * 100; spin++)
            ;
        CHECK(sb_loop_post(race_complete, &races[i], NULL) == 0);
        done += drain(mailbox);
    }
    pthread_join(thread, NULL);
    while (done < RACES) {
        CHECK(sb_mailbox_poll(mailbox, sb_now() + 20ull * SECOND) == 1);
        done += drain(mailbox);
    }
    on_loop(check_nothing, NULL);
    for (int i = 0; i < RACES; i++) {
        enum sb_err kind = sb_op_result(raced[i])->error.kind;
        CHECK(sb_op_done(raced[i]) && races[i].cancels <= 1);
        CHECK(kind == SB_OK || kind == SB_ERR_CANCELLED || kind == SB_ERR_TIMEOUT);
        CHECK((kind == SB_OK) == (races[i].cancels == 0));
        ok += kind == SB_OK;
        sb_op_unref(raced[i]); /* the asker's */
        sb_op_unref(raced[i]);
    }
    printf("# %zu of %d completed before they were cancelled\n", ok, RACES);
    CHECK(done == RACES && drain(mailbox) == 0 && sb_mailbox_pending(mailbox) == 0);
    sb_mailbox_unref(mailbox);
    passed("work, cancel and deadline race: each operation completes once");
}

/* A cancel that comes before there is anything to cancel is remembered. */
static struct race late;

static void set_late_cancel(void *arg)
{
    (void)arg;
    CHECK(sb_op_asked(late.op) == SB_ERR_CANCELLED);
    sb_op_set_cancel(late.op, race_cancelled, &late);
    CHECK(late.cancels == 0);
}

static void an_early_cancel_is_remembered(void)
{
    struct sb_mailbox *mailbox = new_mailbox();
    struct sb_op *op = late.op = sb_op_new(mailbox, NULL, NULL);
    sb_op_cancel(op);
    on_loop(check_nothing, NULL);
    CHECK(!sb_op_done(op));
    on_loop(set_late_cancel, NULL);
    CHECK(wait_for(mailbox, op)->error.kind == SB_ERR_CANCELLED && late.cancels == 1);
    sb_op_unref(op);
    drain(mailbox);
    sb_mailbox_unref(mailbox);
    passed("a cancel that comes before there is anything to cancel is remembered");
}

/* ---- results ---- */

static _Atomic int destroyed;

static void count_destroy(struct sb_object *object)
{
    destroyed++;
    free(object);
}

static const struct sb_object_type counted = {"counted", count_destroy};

static void complete_full(void *arg)
{
    struct sb_op *op = arg;
    struct sb_result *r = sb_op_result(op);
    r->bytes = malloc(10);
    r->bytes2 = malloc(10);
    r->fields = malloc(10);
    CHECK(r->bytes != NULL && r->bytes2 != NULL && r->fields != NULL);
    r->bytes_len = r->bytes2_len = r->fields_len = 10;
    r->object = malloc(sizeof *r->object);
    CHECK(r->object != NULL);
    sb_object_init(r->object, &counted);
    r->fd = dup(0);
    sb_op_complete(op);
}

static void what_is_not_taken_is_freed(void)
{
    struct sb_mailbox *mailbox = new_mailbox();
    for (int taken = 0; taken < 2; taken++) {
        struct sb_op *op = sb_op_new(mailbox, NULL, NULL);
        CHECK(sb_loop_post(complete_full, op, NULL) == 0);
        struct sb_result *r = wait_for(mailbox, op);
        int fd = r->fd;
        struct sb_object *object = r->object;
        if (taken)
            r->object = NULL;
        sb_op_unref(op);
        drain(mailbox); /* the queue's reference */
        CHECK(destroyed == 1 && write(fd, "", 0) < 0);
        if (taken)
            sb_object_unref(object);
        CHECK(destroyed == 1 + taken);
    }
    drain(mailbox);
    sb_mailbox_unref(mailbox);
    passed("what nobody took of a result is freed, what was taken is not");
}

/* It stayed open in the mailbox until the program waited for something else. */
static void what_was_abandoned_is_freed_at_once(void)
{
    struct sb_mailbox *mailbox = new_mailbox();
    for (int before = 0; before < 2; before++) {
        destroyed = 0;
        struct sb_op *op = sb_op_new(mailbox, NULL, NULL);
        CHECK(op != NULL);
        if (before)
            sb_op_abandon(op);
        CHECK(sb_loop_post(complete_full, op, NULL) == 0);
        on_loop(check_nothing, NULL); /* it has been completed */
        if (!before) {
            CHECK(destroyed == 0 && fcntl(sb_op_result(op)->fd, F_GETFD) >= 0);
            sb_op_abandon(op);
        }
        CHECK(destroyed == 1);
    }
    drain(mailbox);
    CHECK(destroyed == 1);
    sb_mailbox_unref(mailbox);
    passed("what an abandoned operation came to is freed at once, mailbox emptied or not");
}

static void an_asker_may_go_before_the_end(void)
{
    struct sb_mailbox *mailbox = new_mailbox();
    struct sb_op *op = sb_op_timer(mailbox, 2 * MS);
    sb_op_unref(op);
    sb_mailbox_unref(mailbox);
    usleep(10000);
    on_loop(check_nothing, NULL);
    passed("asker and mailbox may go before the end");
}

int main(void)
{
    sb_loop_pin();
    a_timer_operation_completes();
    cancel_and_deadline_end_it_early();
    one_completion_whoever_is_first();
    an_early_cancel_is_remembered();
    what_is_not_taken_is_freed();
    what_was_abandoned_is_freed_at_once();
    an_asker_may_go_before_the_end();
    return 0;
}
