/* One copy of the runtime in a process: two would mean two I/O threads, two fork generations, two
 * exit drains that do not know of each other. */
#ifndef SB_COPY_H
#define SB_COPY_H

#include <stddef.h>

/* Claims the process for this copy: 0, also when it holds the claim already. Else -1, and `why`
 * names both files; four kilobytes are enough for most. */
int sb_copy_claim(const char *version, char *why, size_t size);

#endif
