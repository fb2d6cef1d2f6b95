/* The proxy that all connections of a sandbox go through, if its policy names one. Its URL is read by the supervisor,
 * who checks it, and by the relay, who alone uses it; nothing inside gets to see it. */
#ifndef SB_RELAY_UPSTREAM_H
#define SB_RELAY_UPSTREAM_H

#include "policy.h"

enum { SB_UPSTREAM_URL = 1024, SB_UPSTREAM_SHOWN = SB_UPSTREAM_URL + 32 };

/* Plain data, wiped with explicit_bzero. */
struct sb_upstream {
    bool on;
    unsigned int port;
    struct sb_addr at;               /* if it is given by address ... */
    char name[SB_NAME_MAX + 1];      /* ... else this is not "" */
    char login[SB_UPSTREAM_URL * 2]; /* "user:password" in base64; "": none */
};

/* ---- upstream_url.c ---- */

/* "http://[user[:password]@]host[:port][/]". False: it is none. */
bool sb_upstream_read(struct sb_upstream *u, const char *url, size_t n);
/* A good URL as it may be shown, without who logs in. */
void sb_upstream_shown(char out[SB_UPSTREAM_SHOWN], const char *url);

/* ---- upstream.c: the relay's ---- */

struct sb_tcp;

/* From the fields of a policy. True: it is another one than before. */
bool sb_upstream_take(const struct sb_reader *fields);
bool sb_upstream_on(void);
/* Connects c to c->dialed through it; what goes wrong is refused and dropped. */
void sb_upstream_dial(struct sb_tcp *c);
/* Its connection to the proxy could not be made: the proxy's next address is tried. */
void sb_upstream_next(struct sb_tcp *c);
/* Its connection to the proxy is there. */
void sb_upstream_ask(struct sb_tcp *c);
/* The proxy has said something. */
void sb_upstream_hear(struct sb_tcp *c);
/* It has had time enough. */
void sb_upstream_late(struct sb_tcp *c);

#endif
