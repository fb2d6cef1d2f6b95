/* SHA-256 by OpenSSL. */
#include <openssl/evp.h>

#include "http/core.h"
#include "http/http.h"

int sb_sha256(const struct sb_slice *parts, size_t n, unsigned char out[32])
{
    EVP_MD_CTX *hash = EVP_MD_CTX_new();
    unsigned int got = 0;
    int ok = hash != NULL && EVP_DigestInit_ex(hash, EVP_sha256(), NULL) == 1;
    for (size_t i = 0; ok && i < n; i++)
        ok = EVP_DigestUpdate(hash, parts[i].data, parts[i].len) == 1;
    ok = ok && EVP_DigestFinal_ex(hash, out, &got) == 1 && got == 32;
    EVP_MD_CTX_free(hash); /* wiped: a part may be a secret */
    return ok ? 0 : -1;
}
