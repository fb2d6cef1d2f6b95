/* The terminal of a command.
 *
 * Its far side, the master, stays with us. What the asker writes and reads are pipes, as those of every
 * other command; we carry the bytes between them and the master. So a caller never touches a terminal:
 * a read from one cannot be kept from waiting, once somebody inside has a hold of it. */
#ifndef GUEST_TERM_H
#define GUEST_TERM_H

#include "guest.h"

struct term;
struct request;

/* A terminal of this size. *peer: the side for the command, the caller's to pass on and nobody's to close.
 * in, out: the pipes' ends it reads and writes, taken over in every case; in < 0: its input ends at once.
 * 0, or a negative errno and *made NULL. */
int term_open(struct term **made, int *peer, uint64_t cols, uint64_t rows, int in, int out);
/* Begins to carry. */
void term_start(struct term *t, struct proc *p);
/* The command has ended: takes what it wrote. Is all of it in the pipe? If not, proc_drained tells. */
int term_over(struct term *t);
/* Hangs up: whoever is left in its session gets SIGHUP. May be NULL. */
void term_free(struct term *t);
/* cols and rows, as programs inside see them. */
void term_pack(const struct term *t, struct sb_packer *a);
/* SB_C_RESIZE */
void term_resize(struct request *r, const struct proc *p);

#endif
