/* Snapshots: names for what was on a sandbox's disk. */
#ifndef SB_SNAPSHOT_H
#define SB_SNAPSHOT_H

#include "box.h"

struct sb_wire_in;

/* Reads those on the disk; drops temporary ones whose maker has gone, and layers that nobody names. */
void sb_snapshot_start(void);

/* Handlers of requests: 0 answered; -1 *f is the answer. */
int sb_snapshot_list(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f);
int sb_snapshot_delete(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f);

/* The record of the snapshot `name`, NULL if there is none; the environment kept with it, as a list. */
const struct sb_record *sb_snapshot_find(const char *name);
int sb_snapshot_env(const char *name, struct sb_list *env);
/* The text kept with a step, allocated; NULL: none. */
char *sb_snapshot_note(const char *name, size_t *n);

bool sb_snapshot_busy(void); /* one is being made */
/* Layers that no record names go to the trash. After the end of whatever named some. */
void sb_snapshot_prune(void);
/* Drops the steps of builds that are not needed and that no sandbox begins with. */
void sb_snapshot_prune_steps(bool (*needed)(const char *step, int64_t created_ms));
bool sb_snapshot_base(const char *base); /* one stands on that directory */

#endif
