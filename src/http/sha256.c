/* SHA-256 by OpenSSL. */
#include <openssl/evp.h>

#include "http/core.h"
#include "http/http.h"

int sb_sha256(const void *data, size_t len, unsigned char out[32])
{
    unsigned int got = 0;
    return EVP_Digest(data, len, out, &got, EVP_sha256(), NULL) == 1 && got == 32 ? 0 : -1;
}
