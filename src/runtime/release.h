/* Releases: what must happen to an acquired external thing, registered as data before the
 * acquisition can be lost, fired exactly once by whoever is first: close, __gc, a lost scope,
 * process exit.
 *
 * `run` starts the release on the I/O thread and must end in sb_release_finish, now or later. The
 * runtime retries (Unavailable, Timeout, Busy) with back-off inside the drain time, and names on
 * stderr what could not be released at exit. A release of another process generation is freed
 * without running. */
#ifndef SB_RELEASE_H
#define SB_RELEASE_H

#include "op.h"

struct sb_release;

struct sb_release_type {
    const char *what;                                    /* "sandbox", "process": for reports */
    void (*run)(struct sb_release *release, void *data); /* [io] */
    void (*free)(void *data);                            /* any thread, once, after all */
};

/* One reference for the caller. `id` (copied) names the thing in reports. NULL: out of memory. */
struct sb_release *sb_release_new(const struct sb_release_type *type, void *data, const char *id);
struct sb_release *sb_release_ref(struct sb_release *release);
void sb_release_unref(struct sb_release *release); /* does not fire */

/* Fires it. The first caller wins and gets 1; later ones 0. `op` (may be NULL) completes when the
 * release has ended; a later caller's op completes with the first one's end. Any thread, never
 * waits. */
int sb_release_fire(struct sb_release *release, struct sb_op *op);
/* Withdraws it without running (ownership moved elsewhere). 1 if it had not been fired. */
int sb_release_cancel(struct sb_release *release);
int sb_release_fired(const struct sb_release *release);

/* [io] The run has ended; err NULL or SB_OK: released. */
void sb_release_finish(struct sb_release *release, const struct sb_error *err);

/* How many are registered and not yet ended. */
size_t sb_release_outstanding(void);
/* Seconds spent at process exit on what is outstanding: every fired one, and every
 * registered one. */
void sb_release_set_drain(double seconds);

#endif
