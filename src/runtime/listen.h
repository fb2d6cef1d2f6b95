/* Between listen.c and the rest of the runtime. */
#ifndef SB_LISTEN_H
#define SB_LISTEN_H

struct sb_error;
struct sb_mailbox;

/* Gives the mailbox a new second channel; takes over fd. */
void sb_mailbox_set_channel(struct sb_mailbox *mailbox, int fd);

/* A path (malloc'ed) that one connection from this very process can be made to. accepted(arg, fd)
 * is called once, on the I/O thread, and takes fd over; -1: nobody came. NULL: it failed and will
 * not be called. */
char *sb_listen(void (*accepted)(void *arg, int fd), void *arg, struct sb_error *err);

void sb_listen_end(void);    /* [io] the thread ends: nothing stays on disk */
void sb_listen_forget(void); /* in a forked child: the parent's go on */

#endif
