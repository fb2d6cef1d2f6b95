/* The taking of snapshots. */
#ifndef SB_SNAPTAKE_H
#define SB_SNAPTAKE_H

#include "box.h"

struct sb_wire_in;

/* Handlers of requests: 0 answered, or it will be; -1 *f is the answer. */
int sb_snapshot_take(struct sb_conn *c, const struct sb_wire_in *in, struct sb_box *b,
                     struct sb_failure *f);
/* A step made of a directory of the host's. */
int sb_snapshot_import(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f);
int sb_snapshot_give_up(struct sb_conn *c, const struct sb_wire_in *in, struct sb_failure *f);

/* What a box stands for (`copied`) is for nobody any more: it is being wound down. */
bool sb_snapshot_given_up(const struct sb_box *b);
/* A sandbox that was frozen for a snapshot stands now; or will not (any more), and `f` says why. */
void sb_snapshot_frozen(struct sb_box *b);
void sb_snapshot_not_frozen(struct sb_box *b, const struct sb_failure *f);
/* The sandbox is no more: what is copied of it is given up. */
void sb_snapshot_box_gone(const struct sb_box *b);
void sb_snapshot_conn_gone(const struct sb_conn *c);

#endif
