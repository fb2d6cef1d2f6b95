/* Copying uppers: all that makes an overlay layer what it is. */
#ifndef SB_APPLY_H
#define SB_APPLY_H

#include <stdbool.h>

/* Puts the upper directory `from` on top of the upper directory `to`: what is there afterwards is what an overlay of
 * both would be. With `link` its files, which nobody changes any more, get further names instead of copies. Directories
 * that were replaced are in the directory `spare` afterwards, which is on the target's file system and had nothing in
 * it. 0 or an errno. In a process of its own, without the loop. */
int sb_apply(int from, int to, int spare, bool link);

/* The directory `to` gets owner, mode, times and attributes of `from`, but nothing that overlays keep there. -1: errno. */
int sb_apply_top(int from, int to);

#endif
