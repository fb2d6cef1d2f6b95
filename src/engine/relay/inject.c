/* Which request gets which headers on its way, and the head that has them. */
#include "inject.h"

#include <string.h>

#include "upstream.h"

struct part {
    const char *at;
    size_t n;
};

/* ---- headers' names ---- */

static bool is_field_name(struct part s)
{
    for (size_t i = 0; i < s.n; i++) {
        char c = s.at[i];
        if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9') &&
            (c == '\0' || strchr("!#$%&'*+-.^_`|~", c) == NULL))
            return false;
    }
    return s.n > 0;
}

static char folded(char c)
{
    return c == '_' ? '-' : c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* In any case, and with "_" for "-", which many servers take for the same. */
static bool same_name(struct part a, const char *b)
{
    if (a.n != strlen(b))
        return false;
    for (size_t i = 0; i < a.n; i++)
        if (folded(a.at[i]) != folded(b[i]))
            return false;
    return true;
}

/* What decides where a request ends, or where it goes, is not a rule's business. */
static bool may_be_set(struct part name)
{
    static const char *const not [] = {
        "host",    "content-length", "transfer-encoding", "te",     "connection",    "upgrade",
        "trailer", "keep-alive",     "proxy-connection",  "expect", "http2-settings"};
    for (size_t i = 0; i < sizeof not / sizeof *not ; i++)
        if (same_name(name, not [i]))
            return false;
    return true;
}

static bool is_value(struct part s)
{
    for (size_t i = 0; i < s.n; i++)
        if (((unsigned char)s.at[i] < ' ' && s.at[i] != '\t') || s.at[i] == 0x7f)
            return false;
    return s.n == 0 ||
           (s.at[0] != ' ' && s.at[0] != '\t' && s.at[s.n - 1] != ' ' && s.at[s.n - 1] != '\t');
}

/* ---- paths ---- */

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* One byte of a path, decoded; -1: servers do not agree on what it is. */
static int path_byte(struct part s, size_t *i)
{
    unsigned char c = (unsigned char)s.at[(*i)++];
    if (c == '%') {
        int high = *i < s.n ? hex(s.at[*i]) : -1, low = *i + 1 < s.n ? hex(s.at[*i + 1]) : -1;
        if (high < 0 || low < 0)
            return -1;
        *i += 2;
        c = (unsigned char)(high << 4 | low);
        if (c == '%')
            return -1; /* encoded twice */
    }
    /* No UTF-8 begins with 0xc0 and 0xc1, but a too long "." or "/" does. */
    return c < ' ' || c == 0x7f || c == '#' || c == 0xc0 || c == 0xc1 ? -1 : c;
}

/* Every server finds the same in it: no empty segment, none of one or two dots, in no spelling. Of a segment counts
 * what stands before a ";": some servers drop the rest. */
static bool is_clear(struct part s)
{
    size_t i = 1, seen = 0, dots = 0;
    bool counts = true;
    if (s.n == 0 || s.at[0] != '/')
        return false;
    while (i < s.n) {
        int c = path_byte(s, &i);
        if (c < 0)
            return false;
        if (c == '/' || c == '\\') {
            if (seen == 0 || (dots == seen && dots <= 2))
                return false;
            seen = dots = 0;
            counts = true;
            continue;
        }
        counts = counts && c != ';';
        seen += counts;
        dots += counts && c == '.';
    }
    return (seen == 0 && counts) || (seen > 0 && !(dots == seen && dots <= 2));
}

/* "/a" stands for "/a" and all below it, not for "/ab". */
static bool is_below(struct part path, const char *prefix)
{
    size_t n = strlen(prefix);
    return path.n >= n && memcmp(path.at, prefix, n) == 0 &&
           (prefix[n - 1] == '/' || path.n == n || path.at[n] == '/');
}

/* ---- reading ---- */

static int bad_rule(struct sb_policy_error *e, struct part entry, const char *what)
{
    size_t n = entry.n < sizeof e->entry - 1 ? entry.n : sizeof e->entry - 1;
    *e = (struct sb_policy_error){.field = "network.inject", .what = what};
    for (size_t i = 0; i < n; i++)
        e->entry[i] = entry.at[i] < ' ' || entry.at[i] > '~' ? '?' : entry.at[i];
    return -1;
}

/* Where it lies in the text, behind what it is; 0: there is no room. */
static unsigned short keep(struct sb_inject *in, char what, struct part s)
{
    size_t at = in->used + 1;
    if (s.n + 1 >= sizeof in->text - at)
        return 0;
    in->text[at - 1] = what;
    memcpy(in->text + at, s.at, s.n);
    in->text[at + s.n] = '\0';
    in->used = at + s.n + 1;
    return (unsigned short)at;
}

static int take_host(struct sb_inject *in, struct part s, struct sb_policy_error *e)
{
    char name[SB_NAME_MAX + 3] = "*.";
    size_t star = s.n > 2 && s.at[0] == '*' && s.at[1] == '.' ? 2 : 0;
    if (sb_policy_entry(s.at, s.n) != SB_ENTRY_NAME ||
        !sb_name_read(name + star, s.at + star, s.n - star))
        return bad_rule(e, s, "is no host name");
    if (in->rules == SB_INJECT_RULES)
        return bad_rule(e, s, "is one rule too many");
    unsigned short at = keep(in, 'h', (struct part){name, strlen(name)});
    if (at == 0)
        return bad_rule(e, s, "does not fit: the rules are too long");
    in->rule[in->rules].host = at;
    in->rule[in->rules].path = 0;
    in->rule[in->rules].from = in->rule[in->rules].to = (unsigned short)in->items;
    in->rules++;
    return 0;
}

static int take_path(struct sb_inject *in, struct part s, struct sb_policy_error *e)
{
    if (in->rules == 0 || in->rule[in->rules - 1].path != 0 || !is_clear(s) ||
        memchr(s.at, '?', s.n) != NULL)
        return bad_rule(e, s, "is no path that all servers read alike");
    in->rule[in->rules - 1].path = keep(in, 'p', s);
    return in->rule[in->rules - 1].path != 0
               ? 0
               : bad_rule(e, s, "does not fit: the rules are too long");
}

static int take_item(struct sb_inject *in, struct part s, bool set, struct sb_policy_error *e)
{
    const char *colon = memchr(s.at, ':', s.n);
    struct part name = {s.at, colon != NULL ? (size_t)(colon - s.at) : s.n};
    if (in->rules == 0 || colon == NULL || name.n > SB_INJECT_NAME || !is_field_name(name))
        return bad_rule(e, name, "is no name of a header");
    struct part value = {colon + 1, s.n - name.n - 1};
    if (set && !may_be_set(name))
        return bad_rule(e, name, "is not a header to set");
    if (!is_value(value))
        return bad_rule(e, name, "has a value with control characters or with spaces around it");
    for (int i = in->rule[in->rules - 1].from; i < in->items; i++)
        if (in->item[i].set == set && same_name(name, in->text + in->item[i].name))
            return bad_rule(e, name, "is there twice");
    if (in->items == SB_INJECT_ITEMS)
        return bad_rule(e, name, "is one header too many");
    unsigned short at = keep(in, set ? 's' : 'w', name), to = keep(in, ':', value);
    if (at == 0 || to == 0)
        return bad_rule(e, name, "does not fit: the rules are too long");
    in->item[in->items].set = set;
    in->item[in->items].name = at;
    in->item[in->items].value = to;
    in->rule[in->rules - 1].to = (unsigned short)++in->items;
    return 0;
}

/* It is taken by whoever uses it. */
static int check_proxy(struct part s, struct sb_policy_error *e)
{
    struct sb_upstream u;
    bool good = sb_upstream_read(&u, s.at, s.n);
    explicit_bzero(&u, sizeof u);
    if (good)
        return 0;
    *e = (struct sb_policy_error){.field = "network.upstream_proxy",
                                  .what = "is no URL of an HTTP proxy",
                                  .entry = "[redacted]"};
    return -1;
}

static int take_one(struct sb_inject *in, char what, struct part s, struct sb_policy_error *e)
{
    switch (what) {
    case 'h':
        return take_host(in, s, e);
    case 'p':
        return take_path(in, s, e);
    case 'w':
    case 's':
        return take_item(in, s, what == 's', e);
    case 'c':
    case 'k':
        return 0;
    case 'u':
        return check_proxy(s, e);
    default:
        return bad_rule(e, (struct part){"", 0}, "is of an unknown kind");
    }
}

int sb_inject_read(struct sb_inject *in, const struct sb_reader *fields, struct sb_policy_error *e)
{
    struct sb_reader walk = *fields;
    struct sb_field_view v;
    sb_inject_wipe(in);
    while (sb_read_field(&walk, &v) == 1) {
        if (v.tag != SB_F_NET_INJECT)
            continue;
        struct part s = {(const char *)v.data + 1, v.len > 0 ? v.len - 1 : 0};
        if (take_one(in, v.len > 0 ? (char)v.data[0] : '\0', s, e) < 0) {
            sb_inject_wipe(in);
            return -1;
        }
    }
    return 0;
}

void sb_inject_wipe(struct sb_inject *in)
{
    explicit_bzero(in, sizeof *in);
}

bool sb_inject_same(const struct sb_inject *a, const struct sb_inject *b)
{
    return a->used == b->used && memcmp(a->text, b->text, a->used) == 0;
}

/* ---- requests ---- */

static bool host_fits(const char *rule, const char *host)
{
    size_t n = strlen(host), r = strlen(rule);
    if (rule[0] != '*')
        return strcmp(rule, host) == 0;
    return n > r - 1 && memcmp(host + n - (r - 1), rule + 1, r - 1) == 0;
}

bool sb_inject_host(const struct sb_inject *in, const char *host)
{
    for (int i = 0; i < in->rules; i++)
        if (host_fits(in->text + in->rule[i].host, host))
            return true;
    return false;
}

/* The line at *at without its end; *at moves on. False: it is the empty one that ends the head. */
static bool one_line(const char **at, struct part *line)
{
    const char *lf = strchr(*at, '\n');
    *line = (struct part){*at, (size_t)(lf - 1 - *at)};
    *at = lf + 1;
    return line->n > 0;
}

static struct part name_of(struct part line)
{
    return (struct part){line.at, (size_t)((const char *)memchr(line.at, ':', line.n) - line.at)};
}

static struct part value_of(struct part line)
{
    size_t skip = name_of(line).n + 1;
    struct part v = {line.at + skip, line.n - skip};
    while (v.n > 0 && (*v.at == ' ' || *v.at == '\t'))
        v.at++, v.n--;
    while (v.n > 0 && (v.at[v.n - 1] == ' ' || v.at[v.n - 1] == '\t'))
        v.n--;
    return v;
}

/* Of the request line. Neither the authority of an absolute form nor the query belong to it. */
static struct part path_of(struct part line)
{
    const char *target = (const char *)memchr(line.at, ' ', line.n) + 1;
    struct part p = {
        target,
        (size_t)((const char *)memchr(target, ' ', line.n - (size_t)(target - line.at)) - target)};
    if (p.at[0] != '/' && p.n > 7) { /* "http://" */
        p.at += 7;
        p.n -= 7;
        while (p.n > 0 && strchr("/?#", *p.at) == NULL)
            p.at++, p.n--;
        if (p.n == 0 || *p.at == '?')
            return (struct part){"/", 1};
    }
    const char *query = memchr(p.at, '?', p.n);
    if (query != NULL)
        p.n = (size_t)(query - p.at);
    return p;
}

/* It is there once, with just this value. */
static bool has(const char *fields, const char *name, const char *value)
{
    struct part line;
    int found = 0, fits = 0;
    while (one_line(&fields, &line)) {
        if (!same_name(name_of(line), name))
            continue;
        struct part v = value_of(line);
        found++;
        fits += v.n == strlen(value) && memcmp(v.at, value, v.n) == 0;
    }
    return found == 1 && fits == 1;
}

static bool conditions_hold(const struct sb_inject *in, int rule, const char *fields)
{
    for (int i = in->rule[rule].from; i < in->rule[rule].to; i++)
        if (!in->item[i].set &&
            !has(fields, in->text + in->item[i].name, in->text + in->item[i].value))
            return false;
    return true;
}

static bool is_set_by(const struct sb_inject *in, int rule, struct part name)
{
    for (int i = in->rule[rule].from; i < in->rule[rule].to; i++)
        if (in->item[i].set && same_name(name, in->text + in->item[i].name))
            return true;
    return false;
}

static bool append(char *head, size_t *len, size_t cap, struct part s)
{
    if (s.n > cap - *len)
        return false;
    memcpy(head + *len, s.at, s.n);
    *len += s.n;
    return true;
}

static struct part text_of(const struct sb_inject *in, unsigned short at)
{
    return (struct part){in->text + at, strlen(in->text + at)};
}

/* The program's own headers of those names go, the rule's come. */
static bool write_head(const struct sb_inject *in, int rule, char *head, size_t *len, size_t cap)
{
    const char *at = head;
    struct part line;
    bool fits = true;
    one_line(&at, &line);
    size_t kept = (size_t)(at - head);
    for (const char *from = at; one_line(&at, &line); from = at)
        if (!is_set_by(in, rule, name_of(line))) {
            memmove(head + kept, from, (size_t)(at - from));
            kept += (size_t)(at - from);
        }
    *len = kept;
    for (int i = in->rule[rule].from; fits && i < in->rule[rule].to; i++)
        if (in->item[i].set)
            fits = append(head, len, cap, text_of(in, in->item[i].name)) &&
                   append(head, len, cap, (struct part){": ", 2}) &&
                   append(head, len, cap, text_of(in, in->item[i].value)) &&
                   append(head, len, cap, (struct part){"\r\n", 2});
    return fits && append(head, len, cap, (struct part){"\r\n", 2});
}

int sb_inject_apply(const struct sb_inject *in, const char *host, char *head, size_t *len,
                    size_t cap, sb_refusal *why)
{
    const char *fields = head;
    struct part line;
    one_line(&fields, &line);
    struct part path = path_of(line);
    for (int i = 0; i < in->rules; i++) {
        if (!host_fits(in->text + in->rule[i].host, host))
            continue;
        if (in->rule[i].path != 0 && path.at[0] == '/' && !is_clear(path)) {
            *why = "a path that servers read differently";
            return -1;
        }
        if ((in->rule[i].path != 0 && !is_below(path, in->text + in->rule[i].path)) ||
            !conditions_hold(in, i, fields))
            continue;
        /* Its answer would be the request. */
        if (same_name((struct part){head, 5}, "TRACE") ||
            same_name((struct part){head, 5}, "TRACK")) {
            *why = "TRACE would show what is injected";
            return -1;
        }
        *why = "its head grows too long";
        return write_head(in, i, head, len, cap) ? 1 : -1;
    }
    return 0;
}
