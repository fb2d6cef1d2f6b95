/* Inside of a port, for the files that make up its transfers and relays. Everything is [io]
 * unless said. */
#ifndef SB_HTTP_PORT_H
#define SB_HTTP_PORT_H

#include <stdatomic.h>

#include "http/http.h"
#include "http/multi.h"
#include "runtime/loop.h"

extern char sb_http_tmpdir[]; /* where sockets with a path are made; set at load */

#define SB_PORT_IDLE 4

struct sb_port {
    struct sb_object object;
    uint16_t number;          /* 0: an origin */
    struct sb_place *place;   /* NULL: an origin */
    struct sb_origin *origin; /* how that is reached; NULL: a port */
    char *url;      /* scheme and authority; the authority of a port is a name of its own */
    CURLU *address; /* the same, parsed once */
    struct curl_slist *lines;   /* the usual header lines */
    struct curl_slist *resolve; /* that name's two loopback addresses */
    /* [io] */
    struct sb_multi *multi; /* made by the first transfer */
    struct sb_pair spare;   /* at hand for the next connection ... */
    uint64_t spare_since;   /* ... got when the place was last known to run */
    int resolved; /* the multi handle knows the two addresses by now, and never forgets them */
    int refilling, closed;
    struct sb_timer rest;       /* nothing was in flight for a while: connections and sockets go */
    int resting;                /* it is set */
    uint64_t used;              /* when something last was */
    struct sb_port_user *users; /* in flight */
    struct sb_idle {
        CURL *easy;
        int plain;
    } idle[SB_PORT_IDLE]; /* easy handles for later transfers: cheaper than new ones */
    unsigned idle_count;
};

/* What is in flight on a port: holds a reference of it, is told when the port closes. */
struct sb_port_user {
    struct sb_port_user *next, **link;
    struct sb_port *port;
    void (*closed)(struct sb_port_user *user); /* must leave */
};
/* -1: the port is closed. */
int sb_port_join(struct sb_port *port, struct sb_port_user *user,
                 void (*closed)(struct sb_port_user *user));
void sb_port_leave(struct sb_port_user *user);

int sb_port_multi(struct sb_port *port, struct sb_error *err);
/* An easy handle or NULL, with nothing set, or (*kept) with what the last plain request of this port
 * left set, which only the next plain one may build on; and back, out of the multi handle. */
CURL *sb_port_easy(struct sb_port *port, int plain, int *kept);
void sb_port_easy_done(struct sb_port *port, CURL *easy, int plain);
/* The spare pair, or an empty one. `sure`: only if the place ran a moment ago. A place that has
 * been frozen since still lets connections in, so what must not be sent into one asks again
 * after that moment. */
struct sb_pair sb_port_take(struct sb_port *port, int sure);
/* Gives back what was not used, got at `since`: kept when there is no other. */
void sb_port_give(struct sb_port *port, struct sb_pair pair, uint64_t since);
/* Asks for a spare pair where asking takes a while. */
void sb_port_refill(struct sb_port *port);

#endif
