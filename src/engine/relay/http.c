/* Requests of HTTP/1: their head, and where their body ends. */
#include "http.h"

#include <string.h>

#include "policy.h"

struct span {
    const char *at;
    size_t n;
};

static bool is_token(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

/* In any case: `word` is in lower. */
static bool begins(struct span s, const char *word)
{
    size_t i = 0;
    for (; word[i] != '\0'; i++) {
        if (i == s.n)
            return false;
        char c = s.at[i];
        if (c >= 'A' && c <= 'Z')
            c = (char)(c - 'A' + 'a');
        if (c != word[i])
            return false;
    }
    return true;
}

static bool equal(struct span s, const char *word)
{
    return s.n == strlen(word) && begins(s, word);
}

/* A comma-separated list has this word. */
static bool has_word(struct span s, const char *word)
{
    while (s.n > 0) {
        const char *comma = memchr(s.at, ',', s.n);
        struct span one = {s.at, comma != NULL ? (size_t)(comma - s.at) : s.n};
        s.at += one.n + (comma != NULL);
        s.n -= one.n + (comma != NULL);
        while (one.n > 0 && (*one.at == ' ' || *one.at == '\t'))
            one.at++, one.n--;
        while (one.n > 0 && (one.at[one.n - 1] == ' ' || one.at[one.n - 1] == '\t'))
            one.n--;
        if (equal(one, word))
            return true;
    }
    return false;
}

static bool read_number(struct span s, uint64_t *v)
{
    *v = 0;
    if (s.n == 0 || s.n > 18)
        return false;
    for (size_t i = 0; i < s.n; i++) {
        if (s.at[i] < '0' || s.at[i] > '9')
            return false;
        *v = *v * 10 + (uint64_t)(s.at[i] - '0');
    }
    return true;
}

/* "name", "name:port". An address is none of a rule's names: the host stays "". */
static bool read_authority(struct sb_head *h, struct span s)
{
    uint64_t port = 0;
    const char *colon = memchr(s.at, ':', s.n);
    size_t n = colon != NULL ? (size_t)(colon - s.at) : s.n;
    if (colon != NULL &&
        (!read_number((struct span){colon + 1, s.n - n - 1}, &port) || port == 0 || port > 65535))
        return false;
    h->port = (unsigned int)port;
    if (n > SB_NAME_MAX + 1 || !sb_name_read(h->host, s.at, n))
        h->host[0] = '\0';
    return h->host[0] != '\0';
}

/* The line without its end; .at NULL: it has none, or one that not everybody takes for one. */
static struct span next_line(const char **at, const char *end)
{
    const char *from = *at, *lf = memchr(from, '\n', (size_t)(end - from));
    if (lf == NULL || lf == from || lf[-1] != '\r')
        return (struct span){NULL, 0};
    *at = lf + 1;
    struct span line = {from, (size_t)(lf - 1 - from)};
    for (size_t i = 0; i < line.n; i++)
        if (((unsigned char)from[i] < ' ' && from[i] != '\t') || from[i] == 0x7f)
            return (struct span){NULL, 0};
    return line;
}

/* -1: not a request that goes through. *authority of the absolute form, else .at NULL; *old: HTTP/1.0. */
static int read_request_line(struct span line, struct span *authority, bool *old)
{
    size_t method = 0;
    while (method < line.n && is_token(line.at[method]))
        method++;
    if (method == 0 || method >= line.n || line.at[method] != ' ' ||
        equal((struct span){line.at, method}, "connect"))
        return -1;
    const char *target = line.at + method + 1;
    const char *space = memchr(target, ' ', line.n - method - 1);
    if (space == NULL || space == target)
        return -1;
    struct span version = {space + 1, line.n - (size_t)(space + 1 - line.at)};
    if (version.n != 8 ||
        (memcmp(version.at, "HTTP/1.1", 8) != 0 && memcmp(version.at, "HTTP/1.0", 8) != 0))
        return -1;
    *old = version.at[7] == '0';
    *authority = (struct span){NULL, 0};
    size_t n = (size_t)(space - target);
    if (target[0] == '/' || (n == 1 && target[0] == '*'))
        return 0;
    if (n <= 7 || !begins((struct span){target, n}, "http://"))
        return -1;
    authority->at = target + 7;
    while (authority->n < n - 7 && strchr("/?#", authority->at[authority->n]) == NULL)
        authority->n++;
    return authority->n > 0 && memchr(authority->at, '@', authority->n) == NULL ? 0 : -1;
}

struct fields {
    struct span host, length, coding, upgrade;
    bool upgrades;
};

/* Once at most. */
static int once(struct span *field, struct span value)
{
    if (field->at != NULL)
        return -1;
    *field = value;
    return 0;
}

/* 1: the line goes on as it is; 0: it does not; -1: refused. */
static int read_field(struct fields *f, struct span line)
{
    size_t n = 0;
    while (n < line.n && is_token(line.at[n]))
        n++;
    if (n == 0 || n >= line.n || line.at[n] != ':')
        return -1; /* a continued line too */
    struct span name = {line.at, n}, value = {line.at + n + 1, line.n - n - 1};
    while (value.n > 0 && (*value.at == ' ' || *value.at == '\t'))
        value.at++, value.n--;
    while (value.n > 0 && (value.at[value.n - 1] == ' ' || value.at[value.n - 1] == '\t'))
        value.n--;
    if (equal(name, "host"))
        return once(&f->host, value) < 0 ? -1 : 1;
    if (equal(name, "content-length"))
        return once(&f->length, value) < 0 ? -1 : 1;
    if (equal(name, "transfer-encoding"))
        return once(&f->coding, value) < 0 ? -1 : 1;
    if (equal(name, "upgrade"))
        return once(&f->upgrade, value) < 0 ? -1 : 0;
    if (equal(name, "connection")) {
        f->upgrades = f->upgrades || has_word(value, "upgrade");
        return 0;
    }
    return !equal(name, "keep-alive") && !equal(name, "proxy-connection") &&
           !equal(name, "http2-settings");
}

static int read_body(struct sb_head *h, const struct fields *f, bool old)
{
    h->body = (struct sb_body){.kind = SB_BODY_NONE};
    if (f->coding.at != NULL) {
        if (old || f->length.at != NULL || !equal(f->coding, "chunked"))
            return -1;
        h->body.kind = SB_BODY_CHUNKED;
    } else if (f->length.at != NULL) {
        if (!read_number(f->length, &h->body.left))
            return -1;
        h->body.kind = h->body.left > 0 ? SB_BODY_LENGTH : SB_BODY_NONE;
    }
    return 0;
}

static void put(char *out, size_t *len, const char *text, size_t n)
{
    memcpy(out + *len, text, n);
    *len += n;
}

int sb_head_read(struct sb_head *h, const char *in, size_t n, char *out, size_t *out_len)
{
    static const char end[] = "\r\n\r\n", closing[] = "Connection: close\r\n\r\n",
                      upgrading[] = "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    struct fields f = {.upgrades = false};
    struct span authority;
    struct sb_head other;
    bool old;
    size_t most = n < SB_HEAD_MAX ? n : SB_HEAD_MAX;
    const char *stop = memmem(in, most, end, 4), *at = in;
    if (stop == NULL)
        return n >= SB_HEAD_MAX || (n > 0 && !is_token(in[0])) ? -1 : 0;
    stop += 2; /* behind the last field's end of line */
    struct span line = next_line(&at, stop);
    *out_len = 0;
    if (line.at == NULL || read_request_line(line, &authority, &old) < 0)
        return -1;
    put(out, out_len, in, (size_t)(at - in));
    while (at < stop) {
        const char *from = at;
        line = next_line(&at, stop);
        int keep = line.at == NULL ? -1 : read_field(&f, line);
        if (keep < 0)
            return -1;
        if (keep > 0)
            put(out, out_len, from, (size_t)(at - from));
    }
    if (f.host.at == NULL || !read_authority(h, f.host) || read_body(h, &f, old) < 0)
        return -1;
    if (authority.at != NULL && (!read_authority(&other, authority) ||
                                 strcmp(other.host, h->host) != 0 || other.port != h->port))
        return -1;
    h->upgrade = f.upgrades && f.upgrade.at != NULL && equal(f.upgrade, "websocket") && !old;
    if (h->upgrade && h->body.kind != SB_BODY_NONE)
        return -1;
    if (h->upgrade)
        put(out, out_len, upgrading, sizeof upgrading - 1);
    else
        put(out, out_len, closing, sizeof closing - 1);
    return (int)(stop + 2 - in);
}

/* ---- the body ---- */

enum { SIZE, EXTENSION, SIZE_LF, DATA, DATA_CR, DATA_LF, TRAILER, TRAILER_LF, ENDED };
enum { LINE_MAX_BYTES = 4096 };

bool sb_body_done(const struct sb_body *b)
{
    return b->kind == SB_BODY_NONE || (b->kind == SB_BODY_LENGTH && b->left == 0) ||
           (b->kind == SB_BODY_CHUNKED && b->state == ENDED);
}

static int digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* One byte that is not data. `line` counts the size's digits, later the bytes of a line. */
static int step(struct sb_body *b, char c)
{
    switch (b->state) {
    case SIZE:
        if (digit(c) >= 0) {
            if (++b->line > 15)
                return -1;
            b->left = b->left * 16 + (uint64_t)digit(c);
            return 0;
        }
        if (b->line == 0 || (c != '\r' && c != ';'))
            return -1;
        b->state = c == '\r' ? SIZE_LF : EXTENSION;
        return 0;
    case EXTENSION:
        if (c == '\r')
            b->state = SIZE_LF;
        else if (c == '\n' || c == '\0' || ++b->line > LINE_MAX_BYTES)
            return -1;
        return 0;
    case SIZE_LF:
        b->line = 0;
        b->state = b->left > 0 ? DATA : TRAILER;
        return c == '\n' ? 0 : -1;
    case DATA_CR:
        b->state = DATA_LF;
        return c == '\r' ? 0 : -1;
    case DATA_LF:
        b->state = SIZE;
        return c == '\n' ? 0 : -1;
    case TRAILER: /* of which only the empty one is let through */
        b->state = TRAILER_LF;
        return c == '\r' ? 0 : -1;
    default:
        b->state = ENDED;
        return c == '\n' ? 0 : -1;
    }
}

long sb_body_eat(struct sb_body *b, const char *in, size_t n)
{
    size_t at = 0;
    while (at < n && !sb_body_done(b)) {
        if (b->kind == SB_BODY_LENGTH || b->state == DATA) {
            size_t take = n - at < b->left ? n - at : (size_t)b->left;
            b->left -= take;
            at += take;
            if (b->kind == SB_BODY_CHUNKED && b->left == 0)
                b->state = DATA_CR;
        } else if (step(b, in[at++]) < 0) {
            return -1;
        }
    }
    return (long)at;
}
