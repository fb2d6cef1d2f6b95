/* The two programs carried in this library as bytes, as sealed memfds to run them from. */
#ifndef SB_IMAGES_H
#define SB_IMAGES_H

#include "../runtime/error.h"

/* A descriptor of the pid 1 of sandboxes, of the supervisor. Made once per process generation,
 * never closed; shared by all, so not to be given away. [io], or any one thread at a time.
 * Negative: failed. */
int sb_image_pid1(struct sb_error *err);
int sb_image_supervisor(struct sb_error *err);

#endif
