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

/* a and b are the same bytes; b ends at its zero. */
int str_same(const void *a, size_t len, const char *b);

/* A decimal number of 1 to 20 digits, nothing else around it, no more than max: 1, or 0. */
int str_number(const char *s, size_t len, uint64_t max, uint64_t *out);

/* Writes decimal digits, returns how many (at most 20). Not zero-terminated. */
size_t str_digits(char *out, uint64_t value);

/* Copies a string with its zero; where that is now. */
char *str_put(char *to, const char *s);

/* The first byte c in s, or NULL. */
const char *str_find(const void *s, size_t len, char c);

#endif
