/* A sandbox's own authority: the certificates it makes for the hosts whose requests are read. */
#ifndef SB_TLSRELAY_AUTHORITY_H
#define SB_TLSRELAY_AUTHORITY_H

#include <openssl/ssl.h>
#include <stdbool.h>

/* From the certificate and the key in PEM. False: they are none; then there is no authority. */
bool sb_authority_set(const char *cert, const char *key);
bool sb_authority_is(const char *cert); /* the very same is set */
/* Gives `ssl` a certificate for this host. */
bool sb_authority_serve(SSL *ssl, const char *host);

#endif
