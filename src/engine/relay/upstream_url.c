/* A proxy's URL: read strictly, and shown without who logs in. */
#include <stdio.h>
#include <string.h>

#include "upstream.h"

struct piece {
    const char *at;
    size_t n;
};

static int nibble(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool is_plain(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("-._~!$&'()*+,;=", c) != NULL);
}

/* "user:password" without its percent signs, in `out`; what HTTP could not tell apart is none. */
static bool decode(struct piece s, unsigned char out[SB_UPSTREAM_URL], size_t *len)
{
    bool named = false; /* the colon was there */
    *len = 0;
    for (size_t i = 0; i < s.n; i++) {
        int c = (unsigned char)s.at[i];
        if (c == '%') {
            int high = i + 2 < s.n ? nibble(s.at[i + 1]) : -1,
                low = i + 2 < s.n ? nibble(s.at[i + 2]) : -1;
            if (high < 0 || low < 0)
                return false;
            c = high << 4 | low;
            i += 2;
            if (c < ' ' || c == 0x7f || (c == ':' && !named))
                return false;
        } else if (c == ':') {
            named = true;
        } else if (!is_plain((char)c)) {
            return false;
        }
        out[(*len)++] = (unsigned char)c;
    }
    if (!named)
        out[(*len)++] = ':';
    return true;
}

static void encode(char *out, const unsigned char *in, size_t n)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        unsigned int three = (unsigned int)in[i] << 16;
        three |= i + 1 < n ? (unsigned int)in[i + 1] << 8 : 0;
        three |= i + 2 < n ? in[i + 2] : 0;
        *out++ = digit[three >> 18];
        *out++ = digit[three >> 12 & 63];
        *out++ = i + 1 < n ? digit[three >> 6 & 63] : '=';
        *out++ = i + 2 < n ? digit[three & 63] : '=';
    }
    *out = '\0';
}

static bool read_port(struct sb_upstream *u, struct piece s)
{
    u->port = 0;
    for (size_t i = 0; i < s.n; i++) {
        if (s.at[i] < '0' || s.at[i] > '9' || i == 5)
            return false;
        u->port = u->port * 10 + (unsigned int)(s.at[i] - '0');
    }
    return u->port > 0 && u->port < 65536;
}

static bool read_host(struct sb_upstream *u, struct piece s)
{
    struct sb_cidr c;
    bool six = s.n > 2 && s.at[0] == '[' && s.at[s.n - 1] == ']';
    if (six)
        s = (struct piece){s.at + 1, s.n - 2};
    if (s.n > 0 && memchr(s.at, '/', s.n) == NULL && sb_cidr_read(&c, s.at, s.n)) {
        u->at = c.at;
        return six == (memchr(s.at, ':', s.n) != NULL);
    }
    if (six || !sb_name_read(u->name, s.at, s.n))
        return false;
    if (strcmp(u->name, "localhost") == 0) { /* which no resolver has to know */
        u->name[0] = '\0';
        return sb_cidr_read(&c, "127.0.0.1", 9) && (u->at = c.at, true);
    }
    return true;
}

static bool split(struct sb_upstream *u, struct piece s)
{
    unsigned char login[SB_UPSTREAM_URL];
    const char *at = memchr(s.at, '@', s.n);
    if (at != NULL) {
        size_t len;
        bool good = decode((struct piece){s.at, (size_t)(at - s.at)}, login, &len);
        if (good)
            encode(u->login, login, len);
        explicit_bzero(login, sizeof login);
        if (!good)
            return false;
        s.n -= (size_t)(at + 1 - s.at);
        s.at = at + 1;
    }
    size_t host = s.n;
    const char *colon = memrchr(s.at, ':', s.n), *bracket = memrchr(s.at, ']', s.n);
    u->port = 80;
    if (colon != NULL && (bracket == NULL || colon > bracket)) {
        host = (size_t)(colon - s.at);
        if (!read_port(u, (struct piece){colon + 1, s.n - host - 1}))
            return false;
    }
    return read_host(u, (struct piece){s.at, host});
}

bool sb_upstream_read(struct sb_upstream *u, const char *url, size_t n)
{
    static const char scheme[] = "http://";
    explicit_bzero(u, sizeof *u);
    if (n > 0 && url[n - 1] == '/')
        n--;
    if (n >= SB_UPSTREAM_URL || n < sizeof scheme ||
        strncasecmp(url, scheme, sizeof scheme - 1) != 0)
        return false;
    u->on = split(u, (struct piece){url + sizeof scheme - 1, n - (sizeof scheme - 1)});
    if (!u->on)
        explicit_bzero(u, sizeof *u);
    return u->on;
}

void sb_upstream_shown(char out[SB_UPSTREAM_SHOWN], const char *url)
{
    const char *at = strrchr(url, '@');
    snprintf(out, SB_UPSTREAM_SHOWN, "%s%s", at != NULL ? "http://[redacted]" : "",
             at != NULL ? at : url);
}
