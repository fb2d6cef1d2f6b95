/* limits.disk: the uppers of such a sandbox lie in a file system of their own, an image in its directory. */
#ifndef SB_DISK_H
#define SB_DISK_H

#include "box.h"

bool sb_disk_can(void); /* found out once, when somebody asks */
int sb_disk_check(const struct sb_record *r, struct sb_failure *f);

/* Makes the image of a sandbox that is being created, in a process of its own, and goes on with sb_boot_create. 1: it
 * is under way; 0: there is nothing to make. */
int sb_disk_begin(struct sb_box *b, struct sb_failure *f);
/* It gets its name in the sandbox's directory. */
int sb_disk_place(struct sb_box *b, int dir, struct sb_failure *f);
/* Mounts it as b->disk, if it has one and that is not done. */
int sb_disk_mount(struct sb_box *b, int dir, struct sb_failure *f);
/* A detached mount of the image in `dir`, beside others that there may be. -1: see errno. */
int sb_disk_open(int dir);
/* A process waits until nobody has the image in `dir` mounted, and syncs. `ready` is called then. */
int sb_disk_sync(int dir, struct sb_source *src, void (*ready)(struct sb_source *, uint32_t));
bool sb_disk_used(const struct sb_box *b, uint64_t *bytes);

#endif
