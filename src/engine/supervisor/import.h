/* A rootfs for an ordinary user: copied once into the template directory, with the ids his sandboxes
 * have, and used from there. */
#ifndef SB_IMPORT_H
#define SB_IMPORT_H

#include "box.h"

/* Checks the directory a request names, and what its copy is called: by its device, inode and time of
 * change. */
int sb_import_name(const char *rootfs, char *name, size_t size, struct sb_failure *f);

/* Starts the copy that a new sandbox needs. 0: there is nothing to copy; 1: under way, the sandbox boots
 * when it is done and its waiters are answered; -1: see *f. */
int sb_import_begin(struct sb_box *b, struct sb_failure *f);

/* Copies what is in the directory `from` into the empty directory `to`, with the owners it has inside. 0 or an errno. In
 * a process of its own. */
int sb_import_tree(int from, int to);

/* Drops what is half-made, and what no record has used for some time. */
void sb_import_prune(bool (*used)(const char *name));

#endif
