/* A pump between two connected stream sockets: both directions, half-close, bounded buffers.
 *
 * What one side sends is read only while there is room for it, so a slow receiver stops the
 * sender through the kernel. The end of one direction is passed on as a half-close, after the
 * last byte; when both have ended, or either side fails, both descriptors are closed. A failure
 * (reset, not an orderly end) is passed on as a reset where the socket has one, so that a cut
 * body is seen as cut. All [io]. */
#ifndef SB_HTTP_RELAY_H
#define SB_HTTP_RELAY_H

#include <curl/curl.h>

#include "runtime/error.h"

struct sb_relay;

/* Takes over both descriptors in every case. `done` runs once when the relay has ended by
 * itself, which is also when its memory goes. NULL: out of memory or no room in the loop. */
struct sb_relay *sb_relay_start(int a, int b, void (*done)(void *arg), void *arg,
                                struct sb_error *err);
/* The same, where b's bytes are libcurl's: a connection in a handle that connects only, and its socket. Both stay the
 * caller's, and outlive the relay. What is read from `a` has its end only with the connection's: nothing is half-closed
 * there. */
struct sb_wire {
    CURL *easy;
    curl_socket_t fd;
};
struct sb_relay *sb_relay_start_wire(int a, const struct sb_wire *b, void (*done)(void *arg),
                                     void *arg, struct sb_error *err);
/* Ends it now: both sides are reset, `done` does not run. */
void sb_relay_stop(struct sb_relay *relay);

#endif
