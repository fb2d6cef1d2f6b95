/* One piece of work on a file, for C code that is told of its end on the I/O thread. */
#ifndef SB_FILEWORK_H
#define SB_FILEWORK_H

#include <stddef.h>
#include <stdint.h>

#include "../runtime/error.h"
#include "../runtime/op.h"

struct sb_file; /* file.h */
extern const struct sb_object_type sb_file_type;

struct sb_file_work {
    struct sb_file *file;      /* a reference */
    const unsigned char *data; /* write: what; stays the owner's */
    unsigned char *bytes;      /* read: malloc'ed, to be taken; of a piece: where to, the owner's */
    size_t len; /* write: how much; read: the most, and of a whole file then how much */
    uint64_t offset;
    size_t done; /* write, and a piece that was read: how much */
    struct sb_error error;
    _Atomic int stop;                         /* asks it to end early */
    void (*ended)(struct sb_file_work *work); /* [io] */
};

/* Each starts one; where it cannot, `ended` is not called. A whole file longer than `len`: LimitExceeded. */
int sb_file_read_whole(struct sb_file_work *work, struct sb_error *err);
int sb_file_write_whole(struct sb_file_work *work, struct sb_error *err);
/* Parts of a file, always on a file thread. Read: done = 0 is its end. */
int sb_file_read_piece(struct sb_file_work *work, struct sb_error *err);
int sb_file_write_piece(struct sb_file_work *work, struct sb_error *err);

#endif
