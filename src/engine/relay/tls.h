/* The name a TLS client asks for, from its first message. */
#ifndef SB_RELAY_TLS_H
#define SB_RELAY_TLS_H

#include <stddef.h>

enum { SB_HELLO_MAX = 5 + 16384 };

/* `name` (SB_NAME_MAX + 1) of the ClientHello at the start of `in`, as sb_name_read makes it. 1; 0: more is
 * needed; -1: there is none that can be trusted (no name, two, an encrypted one, split over records). */
int sb_hello_read(char *name, const unsigned char *in, size_t n);

#endif
