/* Headers with secrets in them, which requests of HTTP get on their way: which request gets which, and how a head is
 * written anew. Read by the supervisor, who checks it, and by the relay; never by anything inside. */
#ifndef SB_RELAY_INJECT_H
#define SB_RELAY_INJECT_H

#include "policy.h"

enum {
    SB_INJECT_RULES = 32,
    SB_INJECT_ITEMS = 256,
    SB_INJECT_BYTES = 16384,
    SB_INJECT_NAME = 128, /* of a header */
};

/* Plain data, in which everything lies in `text`. Wiped with sb_inject_wipe. */
struct sb_inject {
    int rules, items;
    size_t used;
    struct {
        unsigned short host, path; /* path: 0, none */
        unsigned short from, to;   /* its items */
    } rule[SB_INJECT_RULES];
    struct {
        bool set; /* else: it must be there like that */
        unsigned short name, value;
    } item[SB_INJECT_ITEMS];
    char text[SB_INJECT_BYTES];
};

/* From the fields net_inject*, of which the first byte says what it is: h a host, which begins a rule, p a path's
 * prefix, w a header that must be there ("name:value"), s one that is set; c and k, a certificate and its key, are for tlsrelay; u is the
 * URL of a proxy (upstream.h), which who does not know it must not skip. 0, or -1: *e, in which no value shows. */
int sb_inject_read(struct sb_inject *in, const struct sb_reader *fields, struct sb_policy_error *e);
void sb_inject_wipe(struct sb_inject *in);
bool sb_inject_same(const struct sb_inject *a, const struct sb_inject *b);
/* Whether any rule is for `host`, which is as sb_name_read makes it. */
bool sb_inject_host(const struct sb_inject *in, const char *host);
/* The first rule that fits the request sets its headers in `head`, which is as sb_head_read makes it, has *len
 * bytes and room for `cap`. 1: done; 0: none fits; -1: refused, and why. */
int sb_inject_apply(const struct sb_inject *in, const char *host, char *head, size_t *len,
                    size_t cap, sb_refusal *why);

#endif
