/* What is written to a command in a hosted sandbox: calls of process.SendInput, one after the other, so that nothing
 * overtakes. A write is done when the daemon has taken all of it; so a command that does not read holds its writer. */
#ifndef SB_E2B_INPUT_H
#define SB_E2B_INPUT_H

#include "http/http.h"

struct sb_input;
extern const struct sb_object_type sb_input_type;

struct sb_run;
struct sb_input_options {
    struct sb_slice send, close;    /* targets: of SendInput, of CloseStdin */
    const struct sb_slice *headers; /* lines of both */
    size_t header_count;
    uint32_t pid;
    struct sb_run
        *run; /* of the command: when that has lost it, nothing more is sent. NULL: nobody knows */
    int terminal; /* it has one, and ends by a character that is typed */
};

/* Everything is copied; the origin is referenced. */
struct sb_input *sb_input_new(struct sb_port *origin, const struct sb_input_options *options,
                              struct sb_error *err);
/* Completes with number = how many bytes were taken, on a cancel too: those on their way count. Closed when the command
 * reads no more. */
struct sb_op *sb_input_write(struct sb_input *input, struct sb_mailbox *mailbox, const void *data,
                             size_t len);
/* As much as may wait here; 0 or a negative code. */
int sb_input_try_write(struct sb_input *input, const void *data, size_t len, size_t *taken,
                       struct sb_error *err);
void sb_input_finish(struct sb_input *input); /* the end, behind what was written. Any thread */
void sb_input_abort(struct sb_input *input);  /* what has not been sent never is. Any thread */

#endif
