/* A certificate authority of one sandbox, by OpenSSL: made on the host, trusted inside. */
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "http/core.h"
#include "http/http.h"

enum { DAY = 86400, YEARS = 10 };

static int add(X509 *x, int what, const char *value)
{
    X509V3_CTX ctx;
    X509V3_set_ctx(&ctx, x, x, NULL, NULL, 0);
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &ctx, what, value);
    int ok = e != NULL && X509_add_ext(x, e, -1) == 1;
    X509_EXTENSION_free(e);
    return ok;
}

static int fill(X509 *x, EVP_PKEY *key)
{
    uint64_t serial;
    char name[48];
    X509_NAME *subject = X509_get_subject_name(x);
    if (RAND_bytes((unsigned char *)&serial, sizeof serial) != 1)
        return 0;
    snprintf(name, sizeof name, "sandbar %016llx", (unsigned long long)serial);
    return X509_set_version(x, 2) == 1 &&
           ASN1_INTEGER_set_uint64(X509_get_serialNumber(x), serial >> 1 | 1) == 1 &&
           X509_gmtime_adj(X509_getm_notBefore(x), -DAY) != NULL &&
           X509_time_adj_ex(X509_getm_notAfter(x), 365 * YEARS, 0, NULL) != NULL &&
           X509_NAME_add_entry_by_NID(subject, NID_commonName, MBSTRING_ASC,
                                      (const unsigned char *)name, -1, -1, 0) == 1 &&
           X509_set_issuer_name(x, subject) == 1 && X509_set_pubkey(x, key) == 1 &&
           add(x, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
           add(x, NID_key_usage, "critical,keyCertSign") &&
           add(x, NID_subject_key_identifier, "hash") && X509_sign(x, key, EVP_sha256()) > 0;
}

/* What a memory holds, as a string. */
static int text_of(BIO *b, char *out, size_t size)
{
    char *at;
    long n = BIO_get_mem_data(b, &at);
    if (n <= 0 || (size_t)n >= size)
        return -1;
    memcpy(out, at, (size_t)n);
    out[n] = '\0';
    return 0;
}

int sb_authority_make(struct sb_authority *a)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *x = X509_new();
    BIO *cert = BIO_new(BIO_s_mem()), *secret = BIO_new(BIO_s_secmem());
    int rc = -1;
    if (key != NULL && x != NULL && cert != NULL && secret != NULL && fill(x, key) &&
        PEM_write_bio_X509(cert, x) == 1 &&
        PEM_write_bio_PrivateKey(secret, key, NULL, NULL, 0, NULL, NULL) == 1 &&
        text_of(cert, a->cert, sizeof a->cert) == 0 &&
        text_of(secret, a->key, sizeof a->key) == 0) {
        snprintf(a->hash, sizeof a->hash, "%08lx", X509_subject_name_hash(x));
        rc = 0;
    }
    BIO_free(cert);
    BIO_free(secret);
    X509_free(x);
    EVP_PKEY_free(key);
    return rc;
}
