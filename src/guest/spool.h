/* Output that is kept, for any number of readers: the last SB_SPOOL_BYTES of a stream, on the sandbox's disk.
 *
 * Each reader has a pipe of its own, into which we write frames (SB_FRAME_HEAD) from where it wanted to begin, as
 * fast as it takes them. It belongs to no connection: it ends when the stream does, or when nobody has its other end
 * any more. For one that is too slow the frames jump over what was dropped meanwhile. */
#ifndef GUEST_SPOOL_H
#define GUEST_SPOOL_H

#include "guest.h"

struct spool;

/* 0 or a negative errno. */
int spool_new(struct spool **made);
/* NULL is fine. Readers find the end of their pipes, but not that of the stream. */
void spool_free(struct spool *s);
/* Takes in what can be read from fd: what the read gave. */
long spool_take(struct spool *s, int fd);
/* Nothing more will come. */
void spool_end(struct spool *s);
/* A pipe for a reader that begins at `from`, or at the first byte after it that is still there: its reading end, which
 * the caller closes. Or a negative errno. */
int spool_read(struct spool *s, uint64_t from);
uint64_t spool_dropped(const struct spool *s);
/* With `last` proc_tick is called when there are none any more. */
int spool_has_readers(struct spool *s, int last);

/* spool_file.c: a file without a name on the sandbox's own disk, or a negative errno. */
int spool_file(void);

#endif
