/* Named templates: a stack of layers, the settings of sandboxes made from it, and what is started in them. */
#ifndef SB_NAMED_H
#define SB_NAMED_H

#include "box.h"

struct sb_wire_in;

/* Reads those on the disk; drops what an interrupted request has left. Before snapshots are read. */
void sb_named_start(void);
void sb_named_prune(void); /* drops steps that nobody needs */

/* Handlers of requests: 0 answered, or it will be; -1 *f is the answer. */
int sb_named_publish(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f);
int sb_named_list(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f);
int sb_named_delete(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f);
void sb_named_conn_gone(const struct sb_conn *c);

/* What a sandbox made from it begins with: base, layers, user, cwd. NULL: there is none. */
const struct sb_record *sb_named_find(const char *name);
/* Its environment and what is to be started, added to the box's. -1: no memory. */
int sb_named_give(const char *name, struct sb_list *env, struct sb_list *start);
/* A box's `start`, as the fields start and ready. */
void sb_named_tell(const struct sb_list *start, struct sb_packer *p);

/* Whether some template needs that layer, or a directory with that base. */
bool sb_named_layer(const char *layer);
bool sb_named_base(const char *base);

#endif
