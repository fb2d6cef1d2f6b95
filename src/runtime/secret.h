/* Secrets: byte strings that are wiped when freed, and known to the redactor as long as
 * they live. */
#ifndef SB_SECRET_H
#define SB_SECRET_H

#include <stddef.h>

struct sb_secret;

/* A copy of the bytes; NULL: out of memory. Freed by any thread, wiped first. */
struct sb_secret *sb_secret_new(const void *data, size_t len);
struct sb_secret *sb_secret_join(const void *a, size_t alen, const void *b, size_t blen);
void sb_secret_free(struct sb_secret *secret);
const char *sb_secret_data(const struct sb_secret *secret, size_t *len);

/* Shorter ones are wiped like the others but not looked for: replacing every "x" would make all text
 * unreadable, and would tell more than it hides. */
#define SB_SECRET_SHOWN 4

/* Replaces every live secret in `data`, plain or in base64, base64url, hex, percent or JSON
 * escapes, by "[redacted]". 0: nothing to replace. 1: *out is malloc'ed, zero-terminated, *out_len
 * bytes. -1: out of memory. */
int sb_redact(const char *data, size_t len, char **out, size_t *out_len);

#endif
