/* Two threads for work on regular files, which no poll reports: one slow file stalls no stream, and
 * the two start only when somebody asks. */
#include <errno.h>
#include <stdlib.h>

#include "internal.h"

#define POOL_THREADS 2

struct job {
    struct sb_post post; /* for `done` */
    struct job *next;
    void (*work)(void *arg);
    void (*done)(void *arg);
    void *arg;
};

static struct {
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t more;
    struct job *head, **tail;
    pthread_t threads[POOL_THREADS];
    int started, idle, stop;
} pool = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .more = PTHREAD_COND_INITIALIZER,
    .tail = &pool.head,
};

static void finish(struct sb_post *post)
{
    struct job job = *sb_container(post, struct job, post);
    free(sb_container(post, struct job, post));
    job.done(job.arg);
}

static void *run(void *arg)
{
    (void)arg;
    pthread_setname_np(pthread_self(), "sandbar-file");
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        struct job *job = pool.head;
        if (pool.stop)
            break;
        if (job == NULL) {
            pool.idle++;
            pthread_cond_wait(&pool.more, &pool.lock);
            pool.idle--;
            continue;
        }
        pool.head = job->next;
        if (pool.head == NULL)
            pool.tail = &pool.head;
        pthread_mutex_unlock(&pool.lock);
        job->work(job->arg);
        job->post.fn = finish;
        sb_loop_post_node(&job->post, NULL); /* refused only when the process exits: nobody waits */
        pthread_mutex_lock(&pool.lock);
    }
    pthread_mutex_unlock(&pool.lock);
    return NULL;
}

static struct job *job_new(void (*work)(void *arg), void (*done)(void *arg), void *arg)
{
    struct job *job = malloc(sizeof *job);
    if (job != NULL)
        *job = (struct job){.work = work, .done = done, .arg = arg};
    return job;
}

static int no_memory(struct sb_error *err)
{
    return sb_fail_errno(err, ENOMEM, "file thread", "cannot hand over work");
}

static int enqueue(struct job *job, struct sb_error *err)
{
    int error = 0;
    pthread_mutex_lock(&pool.lock);
    if (pool.stop) {
        error = sb_fail(err, SB_ERR_CLOSED, "the process is exiting");
    } else if (pool.idle == 0 && pool.started < POOL_THREADS) {
        int sys = sb_thread_start(&pool.threads[pool.started], run);
        if (sys == 0)
            pool.started++;
        else if (pool.started == 0)
            error = sb_fail_errno(err, sys, "start file thread", "cannot start a file thread");
    }
    if (error == 0) {
        *pool.tail = job;
        pool.tail = &job->next;
        pthread_cond_signal(&pool.more);
    }
    pthread_mutex_unlock(&pool.lock);
    return error;
}

int sb_pool_run(void (*work)(void *arg), void (*done)(void *arg), void *arg, struct sb_error *err)
{
    struct job *job = job_new(work, done, arg);
    int error = job != NULL ? enqueue(job, err) : no_memory(err);
    if (error != 0)
        free(job);
    return error;
}

/* In the loop: by then it is known who runs it. */
static void run_short(struct sb_post *post)
{
    struct job *job = sb_container(post, struct job, post);
    if (!sb_loop_by_waiter() && enqueue(job, NULL) == 0)
        return;
    job->work(job->arg);
    finish(post);
}

int sb_pool_run_short(void (*work)(void *arg), void (*done)(void *arg), void *arg,
                      struct sb_error *err)
{
    if (!sb_loop_unattended())
        return sb_pool_run(work, done, arg, err);
    struct job *job = job_new(work, done, arg);
    if (job == NULL)
        return no_memory(err);
    job->post.fn = run_short;
    int error = sb_loop_post_node(&job->post, err);
    if (error != 0)
        free(job);
    return error;
}

void sb_pool_stop(void)
{
    pthread_mutex_lock(&pool.lock);
    int started = pool.stop ? 0 : pool.started;
    pool.stop = 1;
    pthread_cond_broadcast(&pool.more);
    pthread_mutex_unlock(&pool.lock);
    for (int i = 0; i < started; i++)
        sb_thread_join(pool.threads[i], 5);
}

void sb_pool_fork_lock(void)
{
    pthread_mutex_lock(&pool.lock);
}

void sb_pool_fork_unlock(void)
{
    pthread_mutex_unlock(&pool.lock);
}

void sb_pool_fork_child(void)
{
    static const pthread_cond_t fresh = PTHREAD_COND_INITIALIZER;
    pool.more = fresh; /* the parent's threads wait on theirs */
    pool.head = NULL;
    pool.tail = &pool.head;
    pool.started = pool.idle = pool.stop = 0;
}
