/* A network policy: what may be reached. Shared by the caller, who checks it before he asks, the supervisor, which
 * checks what it is given, and the relay, which keeps to it. */
#ifndef SB_POLICY_H
#define SB_POLICY_H

#include <stdbool.h>
#include <stddef.h>

#include "../proto.h"

enum { SB_POLICY_ENTRIES = 256, SB_POLICY_BYTES = 32768, SB_NAME_MAX = 253 };

/* Every address in 16 bytes, IPv4 as ::ffff:a.b.c.d. */
struct sb_addr {
    unsigned char b[16];
};

struct sb_cidr {
    struct sb_addr at;
    unsigned char bits; /* of 128 */
};

enum sb_policy_mode { SB_POLICY_DENY, SB_POLICY_ALLOW, SB_POLICY_RULES };

/* Plain data. Names are lower-case, without a dot at the end; "*.x" stands for all below x. */
struct sb_policy {
    enum sb_policy_mode mode;
    int allows, denies, names;
    struct sb_cidr allow[SB_POLICY_ENTRIES], deny[SB_POLICY_ENTRIES];
    unsigned short name[SB_POLICY_ENTRIES]; /* where each begins in `text` */
    char text[SB_POLICY_BYTES];
};

/* What a refused connection is reported with; NULL: it may go. */
typedef const char *sb_refusal;

/* From the fields network, net_allow*, net_deny*. 0, or -1 and the field's name, the entry and what is wrong
 * with it in `why`. */
struct sb_policy_error {
    const char *field, *what;
    char entry[64];
};
int sb_policy_read(struct sb_policy *p, const struct sb_reader *fields, struct sb_policy_error *e);
bool sb_policy_opens(const struct sb_policy *p); /* anything at all */

/* Whether this very address may be reached. */
sb_refusal sb_policy_address(const struct sb_policy *p, const struct sb_addr *to);
/* Whether it is denied by name rules and CIDRs alike. */
bool sb_policy_denied(const struct sb_policy *p, const struct sb_addr *to);
/* Whether `name` (any case, maybe with a dot at the end) is listed. */
bool sb_policy_name(const struct sb_policy *p, const char *name, size_t n);
/* Whether an address that a listed name has may be reached. */
sb_refusal sb_policy_resolved(const struct sb_policy *p, const struct sb_addr *to);
/* Whether an address of this machine is listed by itself. */
bool sb_policy_names_own(const struct sb_policy *p, const struct sb_addr *to);

bool sb_addr_is4(const struct sb_addr *a);
/* The IPv4 addresses, two at most, that one of IPv6 may lead to: compatible, translated (RFC 2765, 6052, 8215), ISATAP,
 * 6to4, Teredo (the server's, and the client's with its bits turned). How many. */
int sb_addr_embedded(const struct sb_addr *a, struct sb_addr v4[2]);
/* What an entry of a policy is. */
enum sb_entry { SB_ENTRY_NONE, SB_ENTRY_NAME, SB_ENTRY_ADDRESS };
enum sb_entry sb_policy_entry(const char *text, size_t n);
bool sb_cidr_read(struct sb_cidr *c, const char *text, size_t n);
/* A host name in `out` (SB_NAME_MAX + 1), lower-case, without the dot at the end. False: it is none. */
bool sb_name_read(char *out, const char *text, size_t n);

#endif
