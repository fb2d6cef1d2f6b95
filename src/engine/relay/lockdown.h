/* Giving up what a relay does not need. */
#ifndef SB_RELAY_LOCKDOWN_H
#define SB_RELAY_LOCKDOWN_H

/* Ids ("-": it stays who it is), capabilities, files, nearly all system calls. Ends the process where it cannot. */
void sb_lock_down(const char *uid);

#endif
