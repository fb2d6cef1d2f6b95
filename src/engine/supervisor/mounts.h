/* What a sandbox's tree is made of: overlays with layers by descriptor, clones, the device tree. */
#ifndef SB_MOUNTS_H
#define SB_MOUNTS_H

#include "sup.h"

enum { SB_TREES_MAX = 8, SB_MASKS_MAX = 40 };

/* One thing to hide or protect below the sandbox's /proc. */
struct sb_mask {
    const char *path;
    enum { SB_HIDE_FILE, SB_HIDE_DIR, SB_READ_ONLY } how;
};

/* Decided once at start from the host's own /proc. Read by children before their exec. */
extern struct sb_mask sb_mask[SB_MASKS_MAX];
extern int sb_masks;

/* Builds the device tree and decides the masks. */
int sb_mounts_start(struct sb_failure *f);
int sb_mounts_device(void); /* a clone of the device tree, or -1 */

/* A detached clone of the directory `dir` alone; `user` >= 0: idmapped by that namespace. */
int sb_mounts_clone(int dir, int user);
/* The same for a detached mount that nobody else has yet, itself. */
int sb_mounts_own(int mount, int user);
/* A detached read-only clone of the directory with everything mounted below it. */
int sb_mounts_clone_readonly(int dir, const char *path, int user);

/* An overlay over `n` lowers, the uppermost first: a detached mount, or -1 and errno. `id` >= 0: the mounting process has
 * this file system id meanwhile, so that the overlay's own files fit an idmapped upper. */
int sb_mounts_overlay(const int *lower, int n, int upper, int work, int64_t id, bool allow_setuid);

#endif
