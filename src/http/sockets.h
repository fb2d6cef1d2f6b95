/* Where the unconnected sockets of one place come from, and how they get connected to its
 * loopback.
 *
 * A place is a network namespace: a sandbox's (the engine makes the sockets there and sends them
 * over) or the host's own (tests, and what a program runs beside itself). Everything here is
 * [io]. */
#ifndef SB_HTTP_SOCKETS_H
#define SB_HTTP_SOCKETS_H

#include <stdint.h>

#include "runtime/error.h"

/* Two unconnected non-blocking TCP sockets, owned by whoever holds the pair; -1: none. */
struct sb_pair {
    int v4, v6;
};
#define SB_PAIR_NONE ((struct sb_pair){-1, -1})
void sb_pair_close(struct sb_pair *pair);

/* Called once per request for a pair, before the request returns if the answer is at hand. With an
 * error the pair is empty, and the error says what became of the place (NotRunning, NotFound). */
typedef void sb_pair_fn(void *arg, struct sb_pair pair, const struct sb_error *err);

/* Reference-counted; an open request holds one. */
struct sb_place {
    const struct sb_place_type *type;
    _Atomic unsigned refs;
};
struct sb_place_type {
    void (*get)(struct sb_place *place, sb_pair_fn *done, void *arg);
    void (*free)(struct sb_place *place); /* any thread */
    int remote; /* asking costs a round trip, and the answer tells whether the place still runs */
};
struct sb_place *sb_place_ref(struct sb_place *place);
void sb_place_unref(struct sb_place *place);

/* The host's own loopback. NULL: out of memory. */
struct sb_place *sb_place_host(void);
/* A sandbox of an engine (what core.engine{} makes; referenced). NULL: out of memory. */
struct sb_object;
struct sb_place *sb_place_engine(struct sb_object *engine, const char *id);

/* One attempt to connect to 127.0.0.1, then ::1, repeated with a back-off of 5 to 50 ms while it
 * is refused until `deadline` (0: one attempt). Each attempt takes new sockets from the place,
 * so that one that paused or went away in between is told by its own error. Answers once: a
 * connected non-blocking descriptor, or -1 and Unavailable with ECONNREFUSED, or the place's
 * error. */
struct sb_dial;
typedef void sb_dial_fn(void *arg, int fd, const struct sb_error *err);
struct sb_dial *sb_dial_start(struct sb_place *place, uint16_t port, uint64_t deadline,
                              sb_dial_fn *done,
                              void *arg);  /* NULL: out of memory; `done` runs later */
void sb_dial_cancel(struct sb_dial *dial); /* `done` will not run; only before it has */

/* Whether an errno of connect means that nothing listens there. */
int sb_dial_refused(int sys);
/* What is reported then. */
void sb_dial_refusal(struct sb_error *err, uint16_t port);

#endif
