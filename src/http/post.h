/* One POST to an origin whose answer is a stream: the bytes go to a sink as they come. Everything is [io] unless said.
 *
 * Sent once at most: libcurl sends a request again by itself when a kept connection dies before the first byte of the
 * answer; here its second go is refused, and what became of the first one is unknown. */
#ifndef SB_HTTP_POST_H
#define SB_HTTP_POST_H

#include "http/http.h"
#include "runtime/loop.h"

struct sb_post;

struct sb_post_sink {
    /* The head of the answer; `type` may be NULL. Before any data and before the end of an answer that is whole. */
    void (*head)(void *arg, long status, const char *type);
    /* 0; -1: no more, the transfer ends with the error that was put into *err. */
    int (*data)(void *arg, const unsigned char *data, size_t len, struct sb_error *err);
    /* Once, last; the post is gone then. NULL: the answer was whole as HTTP has it. Unavailable: it was never sent;
     * OutcomeUnknown: it was, and the answer was cut; else what ended it. */
    void (*end)(void *arg, const struct sb_error *err);
};

/* Any thread. Copies the request, which has a method of POST; begins nothing. */
struct sb_post *sb_post_new(struct sb_port *origin, const struct sb_request *request,
                            struct sb_error *err);
void sb_post_free(struct sb_post *post); /* any thread: of one that was never begun */

/* `silence`: ns without a byte of the answer (while it is not held) after which the connection counts as cut; SB_NEVER:
 * only what the kernel says. May end before it returns. */
void sb_post_begin(struct sb_post *post, const struct sb_post_sink *sink, void *arg,
                   uint64_t silence);
/* Takes no more bytes than have been received, until it goes on. From inside `data`, too. */
void sb_post_hold(struct sb_post *post);
void sb_post_go_on(struct sb_post *post); /* never from inside `data` */
/* From inside `head`: after how many seconds to ask again; 0: it says nothing of that. */
long sb_post_retry_after(const struct sb_post *post);
int sb_post_sent(const struct sb_post *post); /* it may have reached the other side */
/* Ends it with this, its connection closed. Never from inside the sink. */
void sb_post_abort(struct sb_post *post, const struct sb_error *err);

#endif
