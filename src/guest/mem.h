/* Memory and bytes for a program without a C library. */
#ifndef GUEST_MEM_H
#define GUEST_MEM_H

#include <stddef.h>
#include <stdint.h>

void *memcpy(void *to, const void *from, size_t n);
void *memmove(void *to, const void *from, size_t n);
void *memset(void *to, int c, size_t n);
int memcmp(const void *a, const void *b, size_t n);
size_t strlen(const char *s);

/* Zeroed memory or NULL. Small pieces come from size classes that are never given back to the kernel,
 * large ones are mappings of their own. */
void *mem_alloc(size_t n);
void mem_free(void *at);

/* Room for n bytes with the first `used` of it kept; NULL leaves it alone. */
void *mem_grow(void *at, size_t used, size_t n);

#endif
