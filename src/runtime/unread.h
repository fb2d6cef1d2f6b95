/* What a stream is made of (stream.c), and the half of it that has been read and nobody has taken. */
#ifndef SB_UNREAD_H
#define SB_UNREAD_H

#include "buffer.h"
#include "internal.h"
#include "stream.h"
#include "transfer.h"

#define SB_STREAM_FIRST 32768u  /* asked for in one transfer at first ... */
#define SB_STREAM_MOST 262144u  /* ... and as long as transfers come back full */
#define SB_STREAM_TURN 1048576u /* transferred before other sources get their turn */

struct sb_chunk {
    struct sb_chunk *next;
    struct sb_stream *stream; /* one reference, the operation's */
    struct sb_op *op;
    size_t len, done;
    char data[];
};

struct sb_stream {
    struct sb_object object;
    pthread_mutex_t lock;    /* guards the rest */
    struct sb_source source; /* owns the descriptor; only the I/O thread closes it */
    struct sb_transfer transfer;
    int readable, writable;

    struct sb_buffer unread;
    size_t high;
    size_t room; /* of the next transfer */
    int eof, read_error;
    struct sb_op *reader; /* at most one, completer's reference */
    int tried;            /* the last try got nothing; whoever tries is a reader, too */
    enum sb_read_mode mode;
    size_t want;

    struct sb_chunk *head, **tail; /* to be written */
    int write_error;
    sb_stream_tap_fn *tap; /* the I/O thread's, as are its argument */
    void *tap_arg;
    int tap_blocked; /* it waits for room */

    int half_close; /* asked for: after the queue */
    int half_closed;

    int closed;  /* asked for; the descriptor goes at the next turn */
    int paused;  /* reading, at the high mark */
    int added;   /* to the loop; the I/O thread's */
    int started; /* was ever posted */
    int posted;
    struct sb_post post;
};

/* Lock held in all of these. */

/* How much may be buffered: more than the high mark only while a reader needs it. */
size_t sb_unread_limit(const struct sb_stream *s);
/* Reads until the descriptor has no more or the limit is reached. */
void sb_unread_fill(struct sb_stream *s);
/* 1 and the result, or 0: would wait. */
int sb_unread_serve(struct sb_stream *s, enum sb_read_mode mode, size_t n, struct sb_result *r);

#endif
