/* A command in a hosted sandbox, over the stream that started it or connected to it.
 *
 * What it writes waits in two bounded queues; when one is full, the connection is held, and so the command in the end.
 * Or it is kept as a whole (sb_run_options.capture). Success is an end event and a clean end of the stream: everything
 * else is OutcomeUnknown, whatever the transport says of itself. */
#ifndef SB_E2B_RUN_H
#define SB_E2B_RUN_H

#include "http/http.h"

struct sb_killer;
struct sb_run;
extern const struct sb_object_type sb_run_type;

struct sb_run_options {
    struct sb_slice target;         /* "/process.Process/Start", perhaps with a prefix */
    const struct sb_slice *headers; /* lines, the content type among them */
    size_t header_count;
    struct sb_slice message; /* the packed request */
    uint64_t silence;        /* ns: longer than the other side is ever silent */
    int capture;             /* complete at the end, with what was written */
    size_t max_output;       /* of each stream kept then: the head of stdout, the tail of stderr */
    unsigned tails;          /* without capture, bit fd - 1: only the tail of that output is kept */
    /* What kills the command when the operation is cancelled, and as the release of its result; NULL: nothing does.
     * Until the start is told the command is known by the token, which stands in its arguments. */
    struct sb_killer *killer;
    const char *token;
};

/* Everything is copied. Completes at the first event with object = sb_run, or with capture at the end with bytes and
 * bytes2, on failure as far as it got. Fields of a result (of proto.h): pid, dropped, dropped_err; when it has ended
 * status, message (the other side's words); data: what a refusal says (the end of the stream, or the body of an
 * answer that is none), count: the HTTP status of such an answer. A cancelled one lets go of the stream, and has the
 * fired release of what it had begun. */
struct sb_op *sb_run_start(struct sb_port *origin, struct sb_mailbox *mailbox,
                           const struct sb_run_options *options);

/* Any thread. */
uint32_t sb_run_pid(const struct sb_run *run);
struct sb_body *sb_run_output(const struct sb_run *run, int fd); /* 1 or 2 */
/* The last 64 KiB of an output whose tail is kept, once the stream has ended; lives as long as the run. */
const unsigned char *sb_run_tail(const struct sb_run *run, int fd, size_t *len);
/* Completes with the fields when the stream has ended, or fails with them. */
struct sb_op *sb_run_wait(struct sb_run *run, struct sb_mailbox *mailbox);
/* NULL until it has ended in order; lives as long as the run. */
const unsigned char *sb_run_exited(const struct sb_run *run, size_t *len);
/* Its stream has ended or was cut, by others than its reader: nothing tells any more who has its number. */
int sb_run_lost(const struct sb_run *run);
/* The command has been killed: what it had written, up to 64 MiB, comes whether it is read or not, since its end comes
 * behind it. */
void sb_run_killed(struct sb_run *run);
void sb_run_close(struct sb_run *run); /* lets go of the stream; idempotent */

#endif
