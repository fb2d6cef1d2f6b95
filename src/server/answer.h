/* The head of an answer. */
#ifndef SB_SERVER_ANSWER_H
#define SB_SERVER_ANSWER_H

#include "runtime/buffer.h"
#include "server/server.h"

/* A reply that was looked at: its status line and header lines as they are sent, and what they say about framing. */
struct sb_answer {
    char *text;
    size_t len;
    int status;
    int has_length, close;
    uint64_t length;
};

/* Copies; `answer` is to be freed when it returns 0. Any thread. */
int sb_answer_make(struct sb_answer *answer, const struct sb_reply *reply, struct sb_error *err);
void sb_answer_free(struct sb_answer *answer);

/* How its body is told from what follows. */
struct sb_answer_framing {
    int chunked;     /* in chunks */
    int has_length;  /* of `length` bytes */
    uint64_t length; /* else: to the end of the connection */
    int none;        /* a status or a request that has no body: nothing is sent of it */
    int last;        /* the connection ends with it */
    int minor;       /* of the request */
};

/* Appends the whole head to `out`. 0, or -1: out of memory. */
int sb_answer_put(const struct sb_answer *answer, const struct sb_answer_framing *framing,
                  struct sb_buffer *out);

const char *sb_reason(int status);
int sb_put(struct sb_buffer *out, const void *data, size_t len); /* -1: out of memory */

#endif
