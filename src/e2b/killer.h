/* What ends commands in a hosted sandbox, whole groups of them, as releases that the I/O thread runs when no Lua does
 * any more: the daemon signals one process only, so each is the start of a helper command there.
 *
 * A release is there before its command is asked for, so that there is no moment at which that runs without one. Until
 * its start is told of, a command is known by its token, which stands in its arguments and nowhere else: the processes
 * of the sandbox are listed until one has it. One that does not come to be seen for a while never began. */
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

struct sb_killer_options {
    const char *id;                           /* of the sandbox, for reports */
    const char *list, *start;                 /* targets: of process.Process/List, of Start */
    struct sb_killer_lines listing, starting; /* headers of either */
    struct sb_slice helper; /* the body of Start: the helper, in its envelope ... */
    size_t pid_at;          /* ... with the number of the process in SB_KILLER_DIGITS digits here */
};

/* Everything is copied; the port is referenced. */
struct sb_killer *sb_killer_new(struct sb_port *port, const struct sb_killer_options *options,
                                struct sb_error *err);
/* A release of the command with this number, or with this token. Any thread. NULL: out of memory. */
struct sb_release *sb_killer_release(struct sb_killer *killer, uint32_t pid);
struct sb_doomed;
struct sb_release *sb_killer_expect(struct sb_killer *killer, const char *token,
                                    struct sb_doomed **doomed);
/* [io] Its number is known. As long as the caller has the release. */
void sb_doomed_tell(struct sb_doomed *doomed, uint32_t pid);

#endif
