/* What little of JSON is read where no Lua runs: single members of an object, other than in strings and in what is
 * nested. No memory, any thread. */
#ifndef SB_HTTP_PEEK_H
#define SB_HTTP_PEEK_H

#include <stddef.h>

/* What it begins with, behind blanks; 0: there is nothing. */
char sb_peek_first(const unsigned char *body, size_t len);
/* The next object in an array, up to its end; NULL: there is no more. */
const char *sb_peek_entry(const char *at, const char *end, size_t *len);
/* The plain string (a-z 0-9 - _) that `key` has in the object at `at`, into `value`, which has room for `most` bytes and a
 * zero byte. Its length; 0: there is none. */
size_t sb_peek_name(const char *key, const char *at, size_t len, char *value, size_t most);
/* Is it an object with this number as its "code"? So what the vendor writes repeats its status; pages, gateways and
 * captive portals do not. */
int sb_peek_has_code(long code, const unsigned char *body, size_t len);

#endif
