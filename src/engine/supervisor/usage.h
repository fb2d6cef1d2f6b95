#ifndef SB_USAGE_H
#define SB_USAGE_H

#include <stdint.h>

/* Adds what dir/name and all below it take on their file system to *bytes; nothing where there is none of the name.
 * -1: not all of it could be looked at. */
int sb_usage_add(int dir, const char *name, uint64_t *bytes);

#endif
