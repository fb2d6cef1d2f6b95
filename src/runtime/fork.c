/* Process generations: what happens to the runtime when the process forks. */
#include <pthread.h>
#include <stdatomic.h>

#include "internal.h"
#include "source.h"

static _Atomic uint64_t generation = 1;

uint64_t sb_generation(void)
{
    return atomic_load_explicit(&generation, memory_order_relaxed);
}

/* Taken in the order in which the runtime nests them. Locks inside objects are not taken: an object
 * of another generation is never locked, a mailbox gets a fresh lock when it is renewed. */
static void prepare(void)
{
    sb_release_fork_lock();
    sb_audit_fork_lock();
    sb_secret_fork_lock();
    sb_pool_fork_lock();
    sb_loop_fork_lock();
    sb_sources_fork_lock();
}

static void parent(void)
{
    sb_sources_fork_unlock();
    sb_loop_fork_unlock();
    sb_pool_fork_unlock();
    sb_secret_fork_unlock();
    sb_audit_fork_unlock();
    sb_release_fork_unlock();
}

static void child(void)
{
    generation++;
    sb_sources_fork_child();
    sb_loop_fork_child();
    sb_pool_fork_child();
    sb_release_fork_child();
    sb_audit_fork_child();
    parent();
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(prepare, parent, child);
}
