/* What libcurl is told about an origin, beyond what it is told about every request. */
#include "http/origin.h"

#include <stdlib.h>
#include <string.h>

#include "http/core.h"

#define KEEPALIVE_AFTER 30L /* seconds of silence, and between two of nine probes */
#define KEEPALIVE_EACH 10L

struct sb_origin {
    char *proxy;
    char *ca_file;
    long connect_ms; /* 0: libcurl's own five minutes */
    int http2;
};

struct sb_origin *sb_origin_keep(const struct sb_origin_options *options)
{
    struct sb_origin *origin = calloc(1, sizeof *origin);
    if (origin == NULL)
        return NULL;
    int proxied = options->proxy.len > 0, own = options->ca_file != NULL;
    if (proxied)
        origin->proxy = strndup(options->proxy.data, options->proxy.len);
    if (own)
        origin->ca_file = strdup(options->ca_file);
    if ((proxied && origin->proxy == NULL) || (own && origin->ca_file == NULL)) {
        sb_origin_free(origin);
        return NULL;
    }
    uint64_t ms = options->connect_timeout / 1000000u;
    origin->connect_ms = ms > 3600000 ? 3600000 : (long)ms;
    if (origin->connect_ms == 0 && options->connect_timeout > 0)
        origin->connect_ms = 1;
    origin->http2 = options->http2;
    return origin;
}

void sb_origin_free(struct sb_origin *origin)
{
    if (origin == NULL)
        return;
    if (origin->proxy != NULL)
        explicit_bzero(origin->proxy, strlen(origin->proxy));
    free(origin->proxy);
    free(origin->ca_file);
    free(origin);
}

/* Through a proxy everything goes in a tunnel, plain HTTP too: a proxy that reads requests would see
 * the keys in their headers. */
int sb_origin_set(CURL *easy, const struct sb_origin *origin)
{
    CURLcode rc = CURLE_OK;
    if (origin->proxy != NULL) {
        rc |= curl_easy_setopt(easy, CURLOPT_PROXY, origin->proxy);
        rc |= curl_easy_setopt(easy, CURLOPT_NOPROXY, "");
        curl_easy_setopt(easy, CURLOPT_HTTPPROXYTUNNEL, 1L);
        curl_easy_setopt(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
        curl_easy_setopt(easy, CURLOPT_HEADEROPT, (long)CURLHEADER_SEPARATE);
    }
    if (origin->ca_file != NULL)
        rc |= curl_easy_setopt(easy, CURLOPT_CAINFO, origin->ca_file);
    /* An answer may take as long as it likes, but not one of a machine that is not there any more. */
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPIDLE, KEEPALIVE_AFTER);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPINTVL, KEEPALIVE_EACH);
    if (origin->connect_ms > 0)
        curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, origin->connect_ms);
    if (origin->http2) /* over TLS only, where it is offered */
        curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_2TLS);
    return rc == CURLE_OK ? 0 : -1;
}

int sb_origin_shares(const struct sb_origin *origin)
{
    return origin->http2;
}

int sb_origin_is_plain(const struct sb_origin *origin, const char *url)
{
    return strncmp(url, "http://", 7) == 0 &&
           (origin->proxy == NULL || strncmp(origin->proxy, "https://", 8) != 0);
}

void sb_origin_not_reached(const char *url, const char *why, struct sb_error *err)
{
    sb_fail(err, SB_ERR_UNAVAILABLE, "%s cannot be reached: %s", url, why);
}

void sb_origin_failed(const char *url, CURL *easy, CURLcode code, struct sb_error *err)
{
    long sys = 0, connect = 0;
    curl_easy_getinfo(easy, CURLINFO_OS_ERRNO, &sys);
    curl_easy_getinfo(easy, CURLINFO_HTTP_CONNECTCODE, &connect);
    *err = (struct sb_error){0};
    if (code == CURLE_OUT_OF_MEMORY) {
        sb_fail(err, SB_ERR_INTERNAL, "out of memory");
    } else if (code == CURLE_SSL_CACERT_BADFILE) {
        sb_fail(err, SB_ERR_INVALID_ARGUMENT, "the file of trusted certificates cannot be read");
    } else if (code == CURLE_COULDNT_CONNECT) {
        sb_origin_not_reached(url, sys != 0 ? strerrordesc_np((int)sys) : "nobody answers", err);
        err->sys = (int)sys;
    } else if (connect != 0 && connect / 100 != 2) {
        sb_fail(err, connect == 407 ? SB_ERR_UNAUTHENTICATED : SB_ERR_UNAVAILABLE,
                "the proxy answers %ld", connect);
    } else {
        sb_origin_not_reached(url, curl_easy_strerror(code), err);
    }
}
