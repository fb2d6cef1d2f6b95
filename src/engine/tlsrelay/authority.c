/* Certificates made on demand, all for one key, kept while they are young. */
#include "authority.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "../relay/policy.h"

enum { KEPT = 64, DAY = 86400, KEPT_FOR = DAY, VALID_FOR = 30 * DAY };

static struct {
    char pem[4096];
    X509 *cert;
    EVP_PKEY *key, *leaf_key;
    struct {
        char host[SB_NAME_MAX + 1];
        X509 *cert;
        time_t made;
    } leaf[KEPT];
    int next;
} authority;

static void forget(void)
{
    for (int i = 0; i < KEPT; i++) {
        X509_free(authority.leaf[i].cert);
        authority.leaf[i].cert = NULL;
    }
    X509_free(authority.cert);
    EVP_PKEY_free(authority.key);
    authority.cert = NULL;
    authority.key = NULL;
    authority.pem[0] = '\0';
}

bool sb_authority_is(const char *cert)
{
    return authority.cert != NULL && strcmp(authority.pem, cert) == 0;
}

bool sb_authority_set(const char *cert, const char *key)
{
    BIO *c = BIO_new_mem_buf(cert, -1), *k = BIO_new_mem_buf(key, -1);
    forget();
    if (c != NULL && k != NULL && strlen(cert) < sizeof authority.pem) {
        authority.cert = PEM_read_bio_X509(c, NULL, NULL, NULL);
        authority.key = PEM_read_bio_PrivateKey(k, NULL, NULL, NULL);
    }
    BIO_free(c);
    BIO_free(k);
    if (authority.leaf_key == NULL)
        authority.leaf_key = EVP_EC_gen("P-256");
    if (authority.cert == NULL || authority.key == NULL || authority.leaf_key == NULL ||
        X509_check_private_key(authority.cert, authority.key) != 1) {
        forget();
        return false;
    }
    snprintf(authority.pem, sizeof authority.pem, "%s", cert);
    return true;
}

static bool add(X509 *x, int what, const char *value)
{
    X509V3_CTX ctx;
    X509V3_set_ctx(&ctx, authority.cert, x, NULL, NULL, 0);
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &ctx, what, value);
    bool ok = e != NULL && X509_add_ext(x, e, -1) == 1;
    X509_EXTENSION_free(e);
    return ok;
}

static bool number(X509 *x)
{
    uint64_t serial;
    if (RAND_bytes((unsigned char *)&serial, sizeof serial) != 1)
        return false;
    return ASN1_INTEGER_set_uint64(X509_get_serialNumber(x), serial >> 1 | 1) == 1;
}

/* `host` is as sb_name_read makes it: it needs no quoting. A name of a subject has 64 bytes at most. */
static bool fill(X509 *x, const char *host)
{
    char names[SB_NAME_MAX + 8];
    X509_NAME *subject = X509_get_subject_name(x);
    const unsigned char *common = (const unsigned char *)(strlen(host) <= 64 ? host : "sandbar");
    snprintf(names, sizeof names, "DNS:%s", host);
    return X509_set_version(x, 2) == 1 && number(x) &&
           X509_gmtime_adj(X509_getm_notBefore(x), -DAY) != NULL &&
           X509_gmtime_adj(X509_getm_notAfter(x), VALID_FOR) != NULL &&
           X509_NAME_add_entry_by_NID(subject, NID_commonName, MBSTRING_ASC, common, -1, -1, 0) ==
               1 &&
           X509_set_issuer_name(x, X509_get_subject_name(authority.cert)) == 1 &&
           X509_set_pubkey(x, authority.leaf_key) == 1 && add(x, NID_subject_alt_name, names) &&
           add(x, NID_basic_constraints, "critical,CA:FALSE") &&
           add(x, NID_key_usage, "critical,digitalSignature") &&
           add(x, NID_ext_key_usage, "serverAuth") &&
           add(x, NID_authority_key_identifier, "keyid") &&
           X509_sign(x, authority.key, EVP_sha256()) > 0;
}

static X509 *leaf_for(const char *host)
{
    time_t now = time(NULL);
    for (int i = 0; i < KEPT; i++)
        if (authority.leaf[i].cert != NULL && strcmp(authority.leaf[i].host, host) == 0 &&
            authority.leaf[i].made <= now && now - authority.leaf[i].made < KEPT_FOR)
            return authority.leaf[i].cert;
    X509 *x = X509_new();
    if (x == NULL || !fill(x, host)) {
        X509_free(x);
        return NULL;
    }
    int i = authority.next++ % KEPT;
    X509_free(authority.leaf[i].cert);
    authority.leaf[i].cert = x;
    authority.leaf[i].made = now;
    snprintf(authority.leaf[i].host, sizeof authority.leaf[i].host, "%s", host);
    return x;
}

bool sb_authority_serve(SSL *ssl, const char *host)
{
    X509 *x = authority.cert != NULL ? leaf_for(host) : NULL;
    return x != NULL && SSL_use_certificate(ssl, x) == 1 &&
           SSL_use_PrivateKey(ssl, authority.leaf_key) == 1;
}
