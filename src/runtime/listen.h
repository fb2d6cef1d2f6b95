/* Between listen.c and the rest of the runtime. */
#ifndef SB_LISTEN_H
#define SB_LISTEN_H

struct sb_mailbox;

/* Gives the mailbox a new second channel; takes over fd. */
void sb_mailbox_set_channel(struct sb_mailbox *mailbox, int fd);

void sb_listen_end(void);    /* [io] the thread ends: nothing stays on disk */
void sb_listen_forget(void); /* in a forked child: the parent's go on */

#endif
