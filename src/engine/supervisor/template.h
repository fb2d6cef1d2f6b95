/* Templates: what the lower layers of a sandbox are. */
#ifndef SB_TEMPLATE_H
#define SB_TEMPLATE_H

#include "mounts.h"
#include "sup.h"

/* A template that is open. The base template lives as long as the supervisor; others are opened for
 * one create and closed after it. `dir` is the lower of `/`; only the base has further trees. */
struct sb_template {
    char name[40]; /* of the directory below <root>/v1/t; "" for a rootfs in place */
    int dir;
    bool composed; /* with the host's /usr and whatever is not merged into it */
};

/* The directory of a template of which everything is in layers. */
#define SB_TEMPLATE_EMPTY "empty"

extern struct sb_template sb_base;

/* Names of the host's top-level directories that the base template shows: "usr" first. */
extern const char *sb_base_tree[SB_TREES_MAX];
extern int sb_base_trees;

/* Finds or builds the base template; old ones that no record names go to the trash. */
int sb_template_start(struct sb_failure *f);
void sb_template_prune(bool (*used)(const char *name));

/* By record or request: `name` of a template's directory or, when `rootfs` is not NULL, that directory
 * as root and its copy `name` (import.h) otherwise. */
int sb_template_open(struct sb_template *t, const char *name, const char *rootfs,
                     struct sb_failure *f);
/* The directory can be a root: 0, or -1 and *f. */
int sb_template_check(int dir, struct sb_failure *f);
void sb_template_close(struct sb_template *t); /* no-op for the base */

#endif
