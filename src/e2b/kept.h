/* What is kept of a command's output, up to a size: its head or its tail. One thread at a time. */
#ifndef SB_E2B_KEPT_H
#define SB_E2B_KEPT_H

#include <stddef.h>
#include <stdint.h>

struct sb_kept {
    unsigned char *data;
    size_t len, cap;
    uint64_t dropped;
};

/* 0, or -1: out of memory. */
int sb_keep_head(struct sb_kept *kept, const unsigned char *data, size_t len, size_t most);
/* For a while it is more than `most`; sb_kept_trim ends that. */
int sb_keep_tail(struct sb_kept *kept, const unsigned char *data, size_t len, size_t most);
void sb_kept_trim(struct sb_kept *kept, size_t most);
/* Trims it to its last `most` bytes and gives it away. */
void sb_kept_give(struct sb_kept *kept, size_t most, unsigned char **bytes, size_t *len);

#endif
