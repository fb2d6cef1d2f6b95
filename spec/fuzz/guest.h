/* What every target needs that is made of pid 1's sources, which live without a C library and its headers:
 * memory that the sanitizer watches, and the rest of pid 1's bytes and text as they are. Included first. */
#ifndef FUZZ_GUEST_H
#define FUZZ_GUEST_H

#include "guest/guest.h"
#include "guest/mem.h"
#include "guest/str.c"

extern void *calloc(size_t n, size_t size);
extern void *realloc(void *p, size_t n);
extern void free(void *p);
extern void abort(void);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct guest guest;

void *mem_alloc(size_t n)
{
    return calloc(1, n + 1);
}

void mem_free(void *p)
{
    free(p);
}

void *mem_grow(void *p, size_t used, size_t n)
{
    (void)used;
    return realloc(p, n);
}

#endif
