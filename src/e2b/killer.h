/* What ends commands in a hosted sandbox, whole groups of them, as releases that the I/O thread runs when no Lua does
 * any more: the daemon signals one process only, so each is the start of a helper command there.
 *
 * A release is there before its command is asked for, so that there is no moment at which that runs without one. A
 * command is known by its token, which stands in its arguments behind a "#", and nowhere else: its number may be
 * somebody else's by now, after a new boot at the latest. So the processes of the sandbox are listed, and what has the
 * token is ended. One whose start was not told of and that does not come to be seen for a while never began. Of one that
 * was, and has ended, a second helper ends what is left of its group. */
#ifndef SB_E2B_KILLER_H
#define SB_E2B_KILLER_H

#include "http/http.h"
#include "runtime/release.h"

struct sb_killer;
extern const struct sb_object_type sb_killer_type;

#define SB_KILLER_DIGITS 10

struct sb_killer_lines {
    const struct sb_slice *at; /* "Name: value" */
    size_t count;
};

struct sb_killer_helper {
    struct sb_slice body; /* of Start, in its envelope ... */
    size_t pid_at;        /* ... with the number of the process in SB_KILLER_DIGITS digits here */
};

struct sb_killer_options {
    const char *id;                           /* of the sandbox, for reports */
    const char *list, *start;                 /* targets: of process.Process/List, of Start */
    struct sb_killer_lines listing, starting; /* headers of either */
    struct sb_killer_helper all;              /* ends a process and its group */
    struct sb_killer_helper
        left; /* of one that is not listed any more; without a body: nothing does */
};

/* Everything is copied; the port is referenced. */
struct sb_killer *sb_killer_new(struct sb_port *port, const struct sb_killer_options *options,
                                struct sb_error *err);
struct sb_doomed;
/* A release of the command with this token (NULL: it has none, and the helper itself knows what it ends) and number (0:
 * not told yet). Any thread. NULL: out of memory. */
struct sb_release *sb_killer_release(struct sb_killer *killer, const char *token, uint32_t pid,
                                     struct sb_doomed **doomed);
/* [io] Its number is known. As long as the caller has the release. */
void sb_doomed_tell(struct sb_doomed *doomed, uint32_t pid);

#endif
