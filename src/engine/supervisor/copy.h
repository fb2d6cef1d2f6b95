/* Copying a small tree of the host into a template. */
#ifndef SB_COPY_H
#define SB_COPY_H

#include "sup.h"

/* Copies files, directories and links with their modes (less set-id bits); everything in the copy
 * belongs to `id`. What is not there or not readable is left out; devices and sockets too. A link at
 * the top is followed, links below are copied. 0, or -1 and errno when the copy cannot be written. */
int sb_copy_tree(int from_dir, const char *from, int to_dir, const char *to, uint32_t id);

#endif
