/* What sandboxes use: measured when somebody asks, and for a while afterwards where a series was asked for. */
#ifndef SB_METRICS_H
#define SB_METRICS_H

#include "box.h"
#include "conn.h"

/* A request: answered at once, or when a sample has been taken. */
int sb_metrics_request(struct sb_conn *c, const struct sb_wire_in *in, struct sb_box *b,
                       struct sb_failure *f);
/* Pid 1's answer to SB_G_USAGE. */
void sb_metrics_answered(struct sb_box *b, const struct sb_wire_in *in);
/* It is paused or has ended: who waits for a sample is told so. */
void sb_metrics_stop(struct sb_box *b);
void sb_metrics_forget(struct sb_box *b);
void sb_metrics_conn_gone(struct sb_box *b, const struct sb_conn *c);
/* When to look again (real time); INT64_MAX: nobody has asked lately. */
int64_t sb_metrics_tick(int64_t now);

#endif
