/* TLS of listeners. */
#include "server/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <unistd.h>

#include "http/core.h"

static void init(void)
{
    OPENSSL_init_ssl(0, NULL);
    /* OpenSSL has an exit handler by now; ours must run before it, so that no thread is inside TLS while it is torn
     * down. */
    sb_loop_rearm_exit();
}

/* Nobody is asked at a terminal. */
static int no_phrase(char *buf, int size, int writing, void *arg)
{
    (void)buf, (void)size, (void)writing, (void)arg;
    return -1;
}

static int choose_protocol(SSL *tls, const unsigned char **out, unsigned char *len,
                           const unsigned char *offered, unsigned int offered_len, void *arg)
{
    static const unsigned char ours[] = "\x8http/1.1";
    unsigned char *chosen;
    (void)tls, (void)arg;
    if (SSL_select_next_proto(&chosen, len, ours, sizeof ours - 1, offered, offered_len) !=
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

static int fail(struct sb_error *err, const char *what, const char *path)
{
    const char *why = ERR_reason_error_string(ERR_peek_error());
    return sb_fail(err, SB_ERR_INVALID_ARGUMENT, "%s: %s: %s", what, path,
                   why != NULL ? why : "cannot be used");
}

static int is_readable(const char *path, const char *what, struct sb_error *err)
{
    if (access(path, R_OK) == 0)
        return 0;
    return sb_fail_errno(err, errno, "open", "%s: %s", what, path);
}

static int load(SSL_CTX *c, const char *cert, const char *key, struct sb_error *err)
{
    int rc = is_readable(cert, "tls_cert", err);
    if (rc == 0)
        rc = is_readable(key, "tls_key", err);
    if (rc < 0)
        return rc;
    if (SSL_CTX_use_certificate_chain_file(c, cert) != 1)
        return fail(err, "tls_cert", cert);
    if (SSL_CTX_use_PrivateKey_file(c, key, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(c) != 1)
        return fail(err, "tls_key", key);
    return 0;
}

SSL_CTX *sb_tls_new(const char *cert, const char *key, struct sb_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (OPENSSL_version_major() != OPENSSL_VERSION_MAJOR) {
        sb_fail(err, SB_ERR_UNSUPPORTED, "built for OpenSSL %d, but the process has %s",
                OPENSSL_VERSION_MAJOR, OpenSSL_version(OPENSSL_VERSION));
        return NULL;
    }
    pthread_once(&once, init);
    ERR_clear_error();
    SSL_CTX *c = SSL_CTX_new(TLS_server_method());
    if (c == NULL || SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION) != 1) {
        sb_fail(err, SB_ERR_INTERNAL, "OpenSSL has no TLS");
    } else {
        SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
        SSL_CTX_set_options(c, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
        SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
        SSL_CTX_set_default_passwd_cb(c, no_phrase);
        SSL_CTX_set_alpn_select_cb(c, choose_protocol, NULL);
        if (load(c, cert, key, err) == 0)
            return c;
    }
    ERR_clear_error();
    SSL_CTX_free(c);
    return NULL;
}
