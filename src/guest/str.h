/* Text for a program without a C library. */
#ifndef GUEST_STR_H
#define GUEST_STR_H

#include <stddef.h>
#include <stdint.h>

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
