/* File operations: each in a process of its own, which takes on the asked user, answers on the caller's
 * connection by itself, and ends. Only a few run at once, the rest waits. */
#ifndef GUEST_WORKER_H
#define GUEST_WORKER_H

#include "conn.h"

/* Somebody inside stopped this pid: a worker is ended, so that its caller hears of it. */
void worker_stopped(int pid);
/* 1 when this pid was a worker's. */
int worker_reaped(int pid, int status);
/* The connection is gone: what waits is dropped, what runs finds its socket shut. */
void worker_forget(struct conn *c);
/* What waits is not started any more, for SB_G_STOP. */
void worker_drop_waiting(void);
/* For SB_G_FREEZE: what waits is refused; how many run. */
unsigned worker_refuse_waiting(void);
unsigned worker_running(void);

#endif
