/* The programs carried in this library as bytes; two of them as sealed memfds to run them from. */
#ifndef SB_IMAGES_H
#define SB_IMAGES_H

#include "../runtime/error.h"

/* A new descriptor of the pid 1 of sandboxes, of the supervisor; the caller's to close. Nothing is
 * kept between two starts: they are rare, and a host may close what it does not know. Negative:
 * failed. */
int sb_image_pid1(struct sb_error *err);
int sb_image_supervisor(struct sb_error *err);
/* The bytes of the program that unpacks archives. */
const unsigned char *sb_image_unpack(size_t *n);

#endif
