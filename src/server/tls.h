/* What a listener needs for TLS: certificate, key, and how strict it is. */
#ifndef SB_SERVER_TLS_H
#define SB_SERVER_TLS_H

#include <openssl/types.h>

#include "runtime/error.h"

/* From PEM files: a certificate and those that lead to it, and its key without a pass phrase. Reads them on the calling
 * thread. NULL: InvalidArgument, or what the files say. Freed by SSL_CTX_free. */
SSL_CTX *sb_tls_new(const char *cert, const char *key, struct sb_error *err);

#endif
