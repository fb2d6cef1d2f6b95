/* How an origin is reached: an authority found by name, over the host's own network. */
#ifndef SB_HTTP_ORIGIN_H
#define SB_HTTP_ORIGIN_H

#include <curl/curl.h>

#include "http/http.h"

struct sb_origin;

/* Copies; NULL: out of memory. */
struct sb_origin *sb_origin_keep(const struct sb_origin_options *options);
void sb_origin_free(struct sb_origin *origin); /* wipes: a proxy's URL may hold a password */

/* [io] Tells an easy handle; 0 or -1. */
int sb_origin_set(CURL *easy, const struct sb_origin *origin);
/* Several requests may share a connection. */
int sb_origin_shares(const struct sb_origin *origin);
/* The bytes on a connection's socket are those that are sent: there is no TLS, neither to `url` nor to the proxy. */
int sb_origin_is_plain(const struct sb_origin *origin, const char *url);

/* [io] What the end of a transfer means by which nothing was sent. */
void sb_origin_failed(const char *url, CURL *easy, CURLcode code, struct sb_error *err);
/* Unavailable: it cannot be reached. */
void sb_origin_not_reached(const char *url, const char *why, struct sb_error *err);

#endif
