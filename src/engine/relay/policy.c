/* What a network policy allows: addresses, names, and what is never reached. */
#include "policy.h"

#include <arpa/inet.h>
#include <string.h>

/* ---- addresses ---- */

static const unsigned char mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool sb_addr_is4(const struct sb_addr *a)
{
    return memcmp(a->b, mapped, sizeof mapped) == 0;
}

/* ::/0 means IPv6 only, although IPv4 is written as a part of it. */
static bool inside(const struct sb_cidr *c, const struct sb_addr *a)
{
    unsigned int whole = c->bits / 8, rest = c->bits % 8;
    if (memcmp(c->at.b, a->b, whole) != 0 || (c->bits < 96 && sb_addr_is4(a)))
        return false;
    return rest == 0 || ((c->at.b[whole] ^ a->b[whole]) & (0xff00u >> rest) & 0xff) == 0;
}

bool sb_cidr_read(struct sb_cidr *c, const char *text, size_t n)
{
    char address[64];
    const char *slash = memchr(text, '/', n);
    size_t len = slash != NULL ? (size_t)(slash - text) : n;
    unsigned int bits = 0, most;
    if (len == 0 || len >= sizeof address)
        return false;
    memcpy(address, text, len);
    address[len] = '\0';
    memcpy(c->at.b, mapped, sizeof mapped);
    if (inet_pton(AF_INET, address, c->at.b + 12) == 1)
        most = 32;
    else if (inet_pton(AF_INET6, address, c->at.b) == 1)
        most = 128;
    else
        return false;
    if (slash == NULL) {
        bits = most;
    } else {
        size_t digits = n - len - 1;
        if (digits == 0 || digits > 3 || (digits > 1 && slash[1] == '0'))
            return false;
        for (size_t i = 1; i <= digits; i++) {
            if (slash[i] < '0' || slash[i] > '9')
                return false;
            bits = bits * 10 + (unsigned int)(slash[i] - '0');
        }
        if (bits > most)
            return false;
    }
    c->bits = (unsigned char)(bits + 128 - most);
    /* What lies beside the prefix is a slip of the pen, and changes what is meant. */
    for (unsigned int i = c->bits; i < 128; i++)
        if ((c->at.b[i / 8] & (0x80u >> (i % 8))) != 0)
            return false;
    return true;
}

/* ---- names ---- */

bool sb_name_read(char *out, const char *text, size_t n)
{
    size_t label = 0, digits = 0;
    if (n > 0 && text[n - 1] == '.')
        n--;
    if (n == 0 || n > SB_NAME_MAX)
        return false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (c == '.') {
            if (label == 0 || text[i - 1] == '-')
                return false;
            label = digits = 0;
            out[i] = c;
            continue;
        }
        if (c >= 'A' && c <= 'Z')
            c = (char)(c - 'A' + 'a');
        bool digit = c >= '0' && c <= '9';
        if (!digit && !(c >= 'a' && c <= 'z') && c != '_' && (c != '-' || label == 0))
            return false;
        digits += digit;
        if (++label > 63)
            return false;
        out[i] = c;
    }
    out[n] = '\0';
    /* What ends in a number is an address in some spelling ("127.1", "0x7f.1"). */
    const char *last = strrchr(out, '.');
    last = last != NULL ? last + 1 : out;
    return label != 0 && out[n - 1] != '-' && digits < label && !(last[0] == '0' && last[1] == 'x');
}

static bool matches(const char *rule, const char *name, size_t n)
{
    size_t r = strlen(rule);
    if (rule[0] != '*')
        return r == n && memcmp(rule, name, n) == 0;
    return n > r - 1 && memcmp(name + n - (r - 1), rule + 1, r - 1) == 0;
}

bool sb_policy_name(const struct sb_policy *p, const char *name, size_t n)
{
    char plain[SB_NAME_MAX + 1];
    if (p->mode != SB_POLICY_RULES || !sb_name_read(plain, name, n))
        return false;
    n = strlen(plain);
    for (int i = 0; i < p->names; i++)
        if (matches(p->text + p->name[i], plain, n))
            return true;
    return false;
}

/* ---- what is special ---- */

enum special { NEVER, UNLESS_LISTED, PRIVATE };

/* Addresses that mean something else to this machine than to the world. A CIDR opens those that may be
 * listed only if it lies inside: whoever writes 0.0.0.0/0 does not mean the cloud's metadata. */
static const struct {
    const char *text;
    enum special how;
    sb_refusal why;
} special[] = {
    {"0.0.0.0/8", NEVER, "not an address to reach"},
    {"127.0.0.0/8", NEVER, "the host's loopback"},
    {"224.0.0.0/3", NEVER, "not an address to reach"}, /* multicast, reserved, broadcast */
    {"192.0.0.0/29", NEVER, "not an address to reach"},
    {"169.254.0.0/16", UNLESS_LISTED, "link-local"},
    {"10.0.0.0/8", PRIVATE, "a private address"},
    {"172.16.0.0/12", PRIVATE, "a private address"},
    {"192.168.0.0/16", PRIVATE, "a private address"},
    {"100.64.0.0/10", PRIVATE, "a private address"},
    {"192.0.0.0/24", PRIVATE, "a private address"},
    {"198.18.0.0/15", PRIVATE, "a private address"},
    {"::/128", NEVER, "not an address to reach"},
    {"::1/128", NEVER, "the host's loopback"},
    {"ff00::/8", NEVER, "not an address to reach"},
    {"fe80::/10", NEVER, "link-local"}, /* without a scope it leads nowhere */
    {"fd73:616e:6462:6f78::/64", NEVER, "not an address to reach"},
    {"fc00::/7", PRIVATE, "a private address"},
    {"fec0::/10", PRIVATE, "a private address"},
};
enum { SPECIALS = sizeof special / sizeof *special };

static const struct sb_cidr *special_cidr(size_t i)
{
    static struct sb_cidr cidr[SPECIALS];
    if (cidr[0].bits == 0)
        for (size_t k = 0; k < SPECIALS; k++)
            sb_cidr_read(&cidr[k], special[k].text, strlen(special[k].text));
    return &cidr[i];
}

static void take4(struct sb_addr *to, const unsigned char *at, unsigned char flip)
{
    memcpy(to->b, mapped, sizeof mapped);
    for (int i = 0; i < 4; i++)
        to->b[12 + i] = at[i] ^ flip;
}

int sb_addr_embedded(const struct sb_addr *a, struct sb_addr v4[2])
{
    static const unsigned char none[12] = {0}, siit[12] = {[8] = 0xff, [9] = 0xff},
                               nat64[12] = {0, 0x64, 0xff, 0x9b},
                               own[6] = {0, 0x64, 0xff, 0x9b, 0, 1}, isatap[3] = {0, 0x5e, 0xfe},
                               teredo[4] = {0x20, 0x01};
    const unsigned char *b = a->b;
    if (memcmp(b, teredo, sizeof teredo) == 0) {
        take4(&v4[0], b + 4, 0);
        take4(&v4[1], b + 12, 0xff);
        return 2;
    }
    if (b[0] == 0x20 && b[1] == 0x02) {
        take4(&v4[0], b + 2, 0);
        return 1;
    }
    const bool compatible = memcmp(b, none, sizeof none) == 0 && (b[12] | b[13]) != 0;
    if (!compatible && memcmp(b, siit, sizeof siit) != 0 && memcmp(b, nat64, sizeof nat64) != 0 &&
        memcmp(b, own, sizeof own) != 0 &&
        ((b[8] & ~3) != 0 || memcmp(b + 9, isatap, sizeof isatap) != 0))
        return 0;
    take4(&v4[0], b + 12, 0);
    return 1;
}

static bool listed_within(const struct sb_policy *p, const struct sb_addr *to,
                          const struct sb_cidr *range)
{
    for (int i = 0; i < p->allows; i++)
        if (p->allow[i].bits >= range->bits && inside(range, &p->allow[i].at) &&
            inside(&p->allow[i], to))
            return true;
    return false;
}

static sb_refusal refuse_special(const struct sb_policy *p, const struct sb_addr *to, bool private)
{
    struct sb_addr v4[2];
    for (size_t i = 0; i < SPECIALS; i++) {
        const struct sb_cidr *range = special_cidr(i);
        if (!inside(range, to) || (special[i].how == PRIVATE && !private))
            continue;
        if (special[i].how == NEVER || !listed_within(p, to, range))
            return special[i].why;
    }
    sb_refusal why = NULL;
    for (int i = sb_addr_embedded(to, v4); why == NULL && i > 0; i--)
        why = refuse_special(p, &v4[i - 1], private);
    return why;
}

/* ---- decisions ---- */

static bool in_any(const struct sb_cidr *list, int n, const struct sb_addr *to)
{
    for (int i = 0; i < n; i++)
        if (inside(&list[i], to))
            return true;
    return false;
}

bool sb_policy_denied(const struct sb_policy *p, const struct sb_addr *to)
{
    struct sb_addr v4[2];
    bool denied = p->mode == SB_POLICY_DENY || in_any(p->deny, p->denies, to);
    for (int i = sb_addr_embedded(to, v4); !denied && i > 0; i--)
        denied = in_any(p->deny, p->denies, &v4[i - 1]);
    return denied;
}

sb_refusal sb_policy_address(const struct sb_policy *p, const struct sb_addr *to)
{
    if (sb_policy_denied(p, to))
        return "denied";
    if (p->mode == SB_POLICY_RULES && !in_any(p->allow, p->allows, to))
        return "not allowed";
    return refuse_special(p, to, false);
}

sb_refusal sb_policy_resolved(const struct sb_policy *p, const struct sb_addr *to)
{
    return sb_policy_denied(p, to) ? "denied" : refuse_special(p, to, true);
}

bool sb_policy_names_own(const struct sb_policy *p, const struct sb_addr *to)
{
    for (int i = 0; i < p->allows; i++)
        if (p->allow[i].bits == 128 && inside(&p->allow[i], to))
            return true;
    return false;
}

bool sb_policy_opens(const struct sb_policy *p)
{
    return p->mode == SB_POLICY_ALLOW ||
           (p->mode == SB_POLICY_RULES && (p->allows > 0 || p->names > 0));
}

/* ---- reading ---- */

static int wrong(struct sb_policy_error *e, const char *field, const struct sb_field_view *v,
                 const char *what)
{
    size_t n = v->len < sizeof e->entry - 1 ? v->len : sizeof e->entry - 1;
    *e = (struct sb_policy_error){.field = field, .what = what};
    for (size_t i = 0; i < n; i++)
        e->entry[i] = v->data[i] < ' ' || v->data[i] > '~' ? '?' : (char)v->data[i];
    return -1;
}

/* The name behind the "*." of some; *star: how long that is. */
static bool read_rule(char *name, const char *text, size_t n, size_t *star)
{
    *star = n > 2 && text[0] == '*' && text[1] == '.' ? 2 : 0;
    return sb_name_read(name, text + *star, n - *star);
}

enum sb_entry sb_policy_entry(const char *text, size_t n)
{
    char name[SB_NAME_MAX + 1];
    struct sb_cidr c;
    size_t star;
    if (sb_cidr_read(&c, text, n))
        return SB_ENTRY_ADDRESS;
    return read_rule(name, text, n, &star) ? SB_ENTRY_NAME : SB_ENTRY_NONE;
}

static int take_name(struct sb_policy *p, size_t *used, const struct sb_field_view *v)
{
    char name[SB_NAME_MAX + 1];
    size_t star;
    if (!read_rule(name, (const char *)v->data, v->len, &star))
        return 0;
    size_t n = strlen(name) + 1;
    if (*used + star + n > sizeof p->text || p->names == SB_POLICY_ENTRIES)
        return -1;
    p->name[p->names++] = (unsigned short)*used;
    memcpy(p->text + *used, "*.", star);
    memcpy(p->text + *used + star, name, n);
    *used += star + n;
    return 1;
}

static int take_mode(struct sb_policy *p, const struct sb_reader *fields, struct sb_policy_error *e)
{
    static const char *const mode[] = {"deny", "allow", "rules"};
    struct sb_field_view v;
    if (!sb_read_find(fields, SB_F_NETWORK, &v) || v.len == 0)
        return 0;
    for (int i = 0; i < 3; i++)
        if (v.len == strlen(mode[i]) && memcmp(v.data, mode[i], v.len) == 0) {
            p->mode = (enum sb_policy_mode)i;
            return 0;
        }
    return wrong(e, "network", &v, "neither \"deny\", \"allow\" nor \"rules\"");
}

int sb_policy_read(struct sb_policy *p, const struct sb_reader *fields, struct sb_policy_error *e)
{
    struct sb_reader walk = *fields;
    struct sb_field_view v;
    size_t used = 0;
    p->mode = SB_POLICY_DENY;
    p->allows = p->denies = p->names = 0;
    if (take_mode(p, fields, e) < 0)
        return -1;
    while (sb_read_field(&walk, &v) == 1) {
        struct sb_cidr c;
        bool allow = v.tag == SB_F_NET_ALLOW;
        if (!allow && v.tag != SB_F_NET_DENY)
            continue;
        const char *field = allow ? "network.allow" : "network.deny";
        if (p->mode != SB_POLICY_RULES)
            return wrong(e, field, &v, "belongs to rules only");
        int *n = allow ? &p->allows : &p->denies;
        if (sb_cidr_read(&c, (const char *)v.data, v.len)) {
            if (*n == SB_POLICY_ENTRIES)
                return wrong(e, field, &v, "is one too many");
            (allow ? p->allow : p->deny)[(*n)++] = c;
            continue;
        }
        int took = allow ? take_name(p, &used, &v) : 0;
        if (took < 0)
            return wrong(e, field, &v, "is one too many");
        if (took == 0)
            return wrong(e, field, &v,
                         allow ? "is neither a host name, an address nor a CIDR"
                               : "is neither an address nor a CIDR");
    }
    return 0;
}
