/* Releases: one state machine under one lock, run and retried on the I/O thread, drained at exit.
 *
 *   REGISTERED -fire-> FIRED -finish-> (retry: FIRED) -> ENDED
 *   REGISTERED -cancel-> WITHDRAWN
 *
 * References: the holders'; the registry's while REGISTERED or FIRED; a run's while FIRED. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "audit.h"
#include "internal.h"
#include "secret.h"

#define RETRY_FIRST 50000000u  /* ns, doubled each time ... */
#define RETRY_MOST 1000000000u /* ... up to this */
#define LOST_MOST 64           /* failures that exit names one by one */

enum release_state { REGISTERED, FIRED, ENDED, WITHDRAWN };

struct sb_release {
    _Atomic unsigned refs;
    uint64_t generation;
    const struct sb_release_type *type;
    void *data;
    char *id;

    /* under registry.lock */
    enum release_state state;
    struct sb_release *next, **link; /* the registry, newest first; then the list of lost ones */
    struct sb_op *waiters;           /* completer's references */
    struct sb_error error;           /* of the last run */

    /* the I/O thread's */
    struct sb_post post;
    struct sb_timer retry;
    uint64_t give_up; /* no run starts later */
    uint64_t delay;
};

static struct {
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t ended;
    struct sb_release *head;
    size_t outstanding;
    struct sb_release *lost;
    size_t lost_count;
    uint64_t drain;               /* ns */
    uint64_t exit_deadline;       /* 0: not exiting */
    struct sb_release *forgotten; /* the parent's, in a forked child */
} registry = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .ended = PTHREAD_COND_INITIALIZER,
    .drain = 5000000000u,
};

/* Lock held. */
static void link_in(struct sb_release *release)
{
    release->next = registry.head;
    release->link = &registry.head;
    if (registry.head != NULL)
        registry.head->link = &release->next;
    registry.head = release;
    registry.outstanding++;
}

/* Lock held. It counts as outstanding until forget(). */
static void link_out(struct sb_release *release)
{
    *release->link = release->next;
    if (release->next != NULL)
        release->next->link = release->link;
    release->next = NULL;
}

/* Lock held. Exit may go on: what there was to tell of the release has been told. */
static void forget(void)
{
    registry.outstanding--;
    pthread_cond_broadcast(&registry.ended);
}

struct sb_release *sb_release_new(const struct sb_release_type *type, void *data, const char *id)
{
    struct sb_release *release = calloc(1, sizeof *release);
    char *copy = strdup(id);
    if (release == NULL || copy == NULL) {
        free(release);
        free(copy);
        return NULL;
    }
    release->refs = 2;
    release->generation = sb_generation();
    release->type = type;
    release->data = data;
    release->id = copy;
    pthread_mutex_lock(&registry.lock);
    link_in(release);
    pthread_mutex_unlock(&registry.lock);
    return release;
}

struct sb_release *sb_release_ref(struct sb_release *release)
{
    release->refs++;
    return release;
}

void sb_release_unref(struct sb_release *release)
{
    if (release == NULL || --release->refs != 0)
        return;
    if (release->type->free != NULL)
        release->type->free(release->data);
    free(release->id);
    free(release);
}

static void describe(struct sb_audit_line *line, const struct sb_release *release,
                     const struct sb_error *err, const char *op)
{
    sb_audit_begin(line, "release");
    sb_audit_text(line, "what", release->type->what, strlen(release->type->what));
    if (op != NULL)
        sb_audit_text(line, "op", op, strlen(op));
    sb_audit_text(line, "id", release->id, strlen(release->id));
    if (err->kind != SB_OK)
        sb_audit_text(line, "error", err->message, strlen(err->message));
}

/* The audit trail hears of one that nobody waited for: the others are told by who did. */
static void tell(const struct sb_release *release, const struct sb_error *err, int waited_for)
{
    struct sb_audit_line line = {0};
    if (!waited_for && sb_audit_on()) {
        describe(&line, release, err, "detached");
        sb_audit_end(&line);
    }
    if (sb_trace_on()) {
        describe(&line, release, err, NULL);
        sb_trace_end(&line);
    }
}

/* Takes over the run's and the registry's reference. */
static void end(struct sb_release *release, const struct sb_error *err)
{
    int lost = 0;
    pthread_mutex_lock(&registry.lock);
    release->error = *err;
    release->state = ENDED;
    link_out(release);
    struct sb_op *op = release->waiters;
    release->waiters = NULL;
    if (err->kind != SB_OK && registry.lost_count++ < LOST_MOST) {
        release->next = registry.lost;
        registry.lost = release;
        lost = 1;
    }
    pthread_mutex_unlock(&registry.lock);
    tell(release, err, op != NULL);
    pthread_mutex_lock(&registry.lock);
    forget();
    pthread_mutex_unlock(&registry.lock);
    while (op != NULL) {
        struct sb_op *next = op->next;
        sb_op_fail(op, err); /* with SB_OK: completes it */
        op = next;
    }
    sb_release_unref(release);
    if (!lost)
        sb_release_unref(release);
}

static void run_again(struct sb_timer *timer)
{
    struct sb_release *release = sb_container(timer, struct sb_release, retry);
    release->type->run(release, release->data);
}

static void run_first(struct sb_post *post)
{
    struct sb_release *release = sb_container(post, struct sb_release, post);
    pthread_mutex_lock(&registry.lock);
    release->give_up = sb_now() + registry.drain;
    pthread_mutex_unlock(&registry.lock);
    release->delay = RETRY_FIRST;
    release->retry.fire = run_again;
    release->type->run(release, release->data);
}

static int may_pass(enum sb_err kind)
{
    return kind == SB_ERR_UNAVAILABLE || kind == SB_ERR_TIMEOUT || kind == SB_ERR_BUSY;
}

void sb_release_finish(struct sb_release *release, const struct sb_error *err)
{
    static const struct sb_error released;
    uint64_t give_up = release->give_up, again = sb_now() + release->delay;
    if (err == NULL)
        err = &released;
    pthread_mutex_lock(&registry.lock);
    assert(release->state == FIRED);
    release->error = *err;
    if (registry.exit_deadline != 0)
        give_up = registry.exit_deadline;
    pthread_mutex_unlock(&registry.lock);
    if (!may_pass(err->kind) || again > give_up) {
        end(release, err);
        return;
    }
    release->delay = release->delay * 2 < RETRY_MOST ? release->delay * 2 : RETRY_MOST;
    sb_timer_set(&release->retry, again);
}

/* An asker that stops waiting; the release goes on. */
static void leave(struct sb_op *op, void *owner)
{
    struct sb_release *release = owner;
    struct sb_error err;
    pthread_mutex_lock(&registry.lock);
    for (struct sb_op **at = &release->waiters; *at != NULL; at = &(*at)->next)
        if (*at == op) {
            *at = op->next;
            break;
        }
    pthread_mutex_unlock(&registry.lock);
    sb_fail(&err, SB_ERR_CANCELLED, "no longer waited for");
    sb_op_fail(op, &err);
}

/* Lock held. */
static int start_run(struct sb_release *release, struct sb_error *err)
{
    release->state = FIRED;
    release->refs++;
    release->post.fn = run_first;
    return sb_loop_post_node(&release->post, err);
}

int sb_release_fire(struct sb_release *release, struct sb_op *op)
{
    struct sb_error err = {.kind = SB_OK};
    if (release->generation != sb_generation()) {
        if (op != NULL)
            sb_op_fail_forked(op);
        return 0;
    }
    pthread_mutex_lock(&registry.lock);
    int won = release->state == REGISTERED, open = won || release->state == FIRED;
    if (open && op != NULL) {
        op->cancel = leave;
        op->owner = release; /* which its run keeps alive as long as it has waiters */
        op->next = release->waiters;
        release->waiters = op;
    }
    int failed = won && start_run(release, &err) != 0;
    if (!open && op != NULL)
        err = release->error;
    pthread_mutex_unlock(&registry.lock);
    if (failed)
        end(release, &err);
    else if (!open && op != NULL)
        sb_op_fail(op, &err);
    return won;
}

int sb_release_cancel(struct sb_release *release)
{
    if (release->generation != sb_generation())
        return 0;
    pthread_mutex_lock(&registry.lock);
    int won = release->state == REGISTERED;
    if (won) {
        release->state = WITHDRAWN;
        link_out(release);
        forget();
    }
    pthread_mutex_unlock(&registry.lock);
    if (won)
        sb_release_unref(release);
    return won;
}

int sb_release_fired(const struct sb_release *release)
{
    if (release->generation != sb_generation())
        return 0;
    pthread_mutex_lock(&registry.lock);
    int fired = release->state == FIRED || release->state == ENDED;
    pthread_mutex_unlock(&registry.lock);
    return fired;
}

size_t sb_release_outstanding(void)
{
    pthread_mutex_lock(&registry.lock);
    size_t outstanding = registry.outstanding;
    pthread_mutex_unlock(&registry.lock);
    return outstanding;
}

void sb_release_set_drain(double seconds)
{
    pthread_mutex_lock(&registry.lock);
    registry.drain = seconds > 0 ? seconds < 1e9 ? (uint64_t)(seconds * 1e9) : (uint64_t)1e18 : 0;
    pthread_mutex_unlock(&registry.lock);
}

/* ---- exit ---- */

static void report(const struct sb_release *release)
{
    char line[1024], *clean = line;
    size_t len;
    const char *why = release->error.message;
    int n = snprintf(line, sizeof line, "sandbar: not released at exit: %s %.256s%s%s%s\n",
                     release->type->what, release->id, why[0] != '\0' ? " (" : "", why,
                     why[0] != '\0' ? ")" : "");
    len = n < 0 ? 0 : n < (int)sizeof line ? (size_t)n : sizeof line - 1;
    int redacted = sb_redact(line, len, &clean, &len);
    if (redacted >= 0 && write(STDERR_FILENO, redacted ? clean : line, len) < 0)
        return; /* nobody is left to be told */
    if (redacted == 1)
        free(clean);
}

/* Lock held. Waits until nothing is outstanding or the deadline has passed. In slices of real time,
 * since a condition variable that knows the monotonic clock is not to be had everywhere. */
static void wait_for_end(uint64_t deadline)
{
    while (registry.outstanding > 0 && sb_now() < deadline) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 20000000;
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
        pthread_cond_timedwait(&registry.ended, &registry.lock, &until);
    }
}

static int nothing_outstanding(void *arg)
{
    (void)arg;
    return sb_release_outstanding() == 0;
}

void sb_release_drain(void)
{
    pthread_mutex_lock(&registry.lock);
    if (registry.exit_deadline == 0 && (registry.outstanding > 0 || registry.lost_count > 0)) {
        registry.exit_deadline = sb_now() + registry.drain;
        if (registry.drain > 0)
            for (struct sb_release *r = registry.head; r != NULL; r = r->next)
                if (r->state == REGISTERED && start_run(r, &r->error) != 0)
                    break; /* no thread to be had: nothing can be released */
        if (registry.outstanding > 0) {
            uint64_t deadline = registry.exit_deadline;
            pthread_mutex_unlock(&registry.lock);
            sb_loop_drive(nothing_outstanding, NULL, deadline);
            pthread_mutex_lock(&registry.lock);
        }
        wait_for_end(registry.exit_deadline);
        for (struct sb_release *r = registry.head; r != NULL; r = r->next)
            report(r);
        for (struct sb_release *r = registry.lost; r != NULL; r = r->next)
            report(r);
        if (registry.lost_count > LOST_MOST)
            dprintf(STDERR_FILENO, "sandbar: and %zu more\n", registry.lost_count - LOST_MOST);
    }
    pthread_mutex_unlock(&registry.lock);
}

/* ---- fork ---- */

void sb_release_fork_lock(void)
{
    pthread_mutex_lock(&registry.lock);
}

void sb_release_fork_unlock(void)
{
    pthread_mutex_unlock(&registry.lock);
}

void sb_release_fork_child(void)
{
    static const pthread_cond_t fresh = PTHREAD_COND_INITIALIZER;
    registry.ended = fresh;
    registry.forgotten = registry.head;
    registry.head = registry.lost = NULL;
    registry.outstanding = registry.lost_count = 0;
    registry.exit_deadline = 0;
}
