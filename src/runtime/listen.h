/* What listen.c needs of mailbox.c. */
#ifndef SB_LISTEN_H
#define SB_LISTEN_H

struct sb_mailbox;

/* Gives the mailbox a new second channel; takes over fd. */
void sb_mailbox_set_channel(struct sb_mailbox *mailbox, int fd);

#endif
