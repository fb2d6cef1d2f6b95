/* Bytes that are somebody else's. */
#ifndef SB_SLICE_H
#define SB_SLICE_H

#include <stddef.h>

struct sb_slice {
    const char *data;
    size_t len;
};

#endif
