/* A libcurl multi handle driven by the I/O thread. Everything is [io].
 *
 * One per port (or origin), never shared: the connection cache belongs to it, so connections
 * cannot meet across sandboxes, boots or ports, and freeing it closes the idle ones. */
#ifndef SB_HTTP_MULTI_H
#define SB_HTTP_MULTI_H

#include <curl/curl.h>

#include "runtime/error.h"

struct sb_multi;

/* Embedded in its owner, and the easy handle's CURLOPT_PRIVATE while it is added. */
struct sb_transfer {
    CURL *easy;
    /* The transfer has ended and was taken out; may add it again, or free it. Never called from
     * inside one of libcurl's callbacks. */
    void (*done)(struct sb_transfer *transfer, CURLcode code);
    /* NULL, or: the other side of the connection has ended, and libcurl, which has read it to its end, goes on with the
     * transfer all the same. Called as `done` is. */
    void (*unheard)(struct sb_transfer *transfer);
    int stays; /* it is not taken out, and `done` leaves it and its multi handle alone */
};

/* `shares`: requests in flight may share a connection that can carry several; `idle`: how many connections are kept that
 * nobody uses. */
struct sb_multi *sb_multi_new(int shares, long idle, struct sb_error *err);
void sb_multi_free(struct sb_multi *multi); /* NULL is fine; nothing is added any more */

/* For handles all of whose connections are closed through libcurl's close-socket callback, which is set
 * here: their sockets stay in the loop's set from one transfer to the next. */
void sb_multi_keep_watches(struct sb_multi *multi, CURL *easy);

/* Both may run other transfers' `done`, and add its own, before they return. */
int sb_multi_add(struct sb_multi *multi, struct sb_transfer *transfer, struct sb_error *err);
void sb_multi_remove(struct sb_multi *multi,
                     struct sb_transfer *transfer); /* `done` will not run */
/* CURLPAUSE_* bits that hold from now on. From inside a callback only more of them. */
void sb_multi_pause(struct sb_multi *multi, struct sb_transfer *transfer, int bits);

#endif
