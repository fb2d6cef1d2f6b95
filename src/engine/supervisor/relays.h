/* Processes of sandboxes' relays: starting them, and taking them in when they have ended. */
#ifndef SB_RELAYS_H
#define SB_RELAYS_H

#include <stdbool.h>

/* Runs `image` with argv {name, arg}: a session of its own, no environment, the descriptors from 3 on, of which -1 is
 * none. The pidfd, or -1 and errno. */
int sb_relay_spawn(const char *name, int image, const char *arg, const int *fd, int n);
void sb_relay_reap(int pidfd); /* its end takes its time: nobody waits for it. Takes the pidfd */

/* The process that opens TLS (src/engine/tlsrelay): the other end of its way to the relay, or -1 and errno. It ends with
 * that. */
int sb_tlsrelay_start(const char *id);
bool sb_tlsrelay_works(void); /* this machine has OpenSSL; tried once */

#endif
