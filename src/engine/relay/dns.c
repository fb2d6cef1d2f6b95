/* Reads and writes the few messages of the DNS that a relay needs. */
#include "dns.h"

#include <string.h>

enum { HEADER = 12, CLASS_IN = 1, JUMPS = 32 };

static unsigned int u16(const unsigned char *p)
{
    return (unsigned int)p[0] << 8 | p[1];
}

static void put16(unsigned char *p, unsigned int v)
{
    p[0] = (unsigned char)(v >> 8);
    p[1] = (unsigned char)v;
}

/* Steps over a name at `at`: where it ends; 0: damaged. With `text`, writes it there as words between
 * dots; one that does not look like a host's becomes "". */
static size_t read_name(const unsigned char *in, size_t n, size_t at, char *text)
{
    char raw[SB_NAME_MAX + 2];
    size_t len = 0, end = 0;
    bool plain = true;
    for (int jumps = 0; at < n;) {
        unsigned int size = in[at];
        if (size == 0) {
            if (text != NULL && !(plain && len > 0 && sb_name_read(text, raw, len - 1)))
                text[0] = '\0';
            return end != 0 ? end : at + 1;
        }
        if ((size & 0xc0) == 0xc0) {
            if (at + 1 >= n || ++jumps > JUMPS)
                return 0;
            end = end != 0 ? end : at + 2;
            at = u16(in + at) & 0x3fff;
            continue;
        }
        if (size > 63 || at + 1 + size > n || len + size + 1 > SB_NAME_MAX + 1)
            return 0;
        plain = plain && memchr(in + at + 1, '.', size) == NULL;
        memcpy(raw + len, in + at + 1, size);
        len += size;
        raw[len++] = '.';
        at += 1 + size;
    }
    return 0;
}

static bool read_question(struct sb_question *q, const unsigned char *in, size_t n)
{
    size_t at = read_name(in, n, HEADER, q->name);
    if (at == 0 || at + 4 > n || u16(in + at + 2) != CLASS_IN)
        return false;
    q->id = (uint16_t)u16(in);
    q->type = (uint16_t)u16(in + at);
    q->recursion = (in[2] & 1) != 0;
    q->end = at + 4;
    return true;
}

bool sb_dns_read_query(struct sb_question *q, const unsigned char *in, size_t n)
{
    /* A query, of the usual kind, one question, nothing else but what extensions add. */
    return n > HEADER && n <= SB_DNS_MAX && (in[2] & 0xf8) == 0 && u16(in + 4) == 1 &&
           u16(in + 6) == 0 && u16(in + 8) == 0 && u16(in + 10) <= 1 && (in[HEADER] & 0xc0) == 0 &&
           read_question(q, in, n);
}

bool sb_dns_read_answer(struct sb_addresses *a, const struct sb_question *q,
                        const unsigned char *in, size_t n)
{
    static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
    struct sb_question asked;
    *a = (struct sb_addresses){.ttl = UINT32_MAX};
    if (n <= HEADER || (in[2] & 0x80) == 0 || u16(in + 4) != 1 || !read_question(&asked, in, n) ||
        asked.id != q->id || asked.type != q->type || strcmp(asked.name, q->name) != 0)
        return false;
    a->rcode = in[3] & 15;
    size_t at = asked.end, size = q->type == SB_DNS_A ? 4 : 16;
    for (unsigned int left = u16(in + 6); left > 0; left--) {
        at = read_name(in, n, at, NULL);
        if (at == 0 || at + 10 > n || at + 10 + u16(in + at + 8) > n)
            return false;
        const unsigned char *r = in + at;
        uint32_t ttl = (uint32_t)u16(r + 4) << 16 | u16(r + 6);
        size_t len = u16(r + 8);
        at += 10 + len;
        if (u16(r) != q->type || u16(r + 2) != CLASS_IN || len != size || a->n == SB_DNS_ADDRESSES)
            continue; /* aliases: the resolver has followed them */
        memcpy(a->at[a->n].b, mapped, sizeof mapped);
        memcpy(a->at[a->n].b + 16 - size, r + 10, size);
        a->ttl = ttl < a->ttl ? ttl : a->ttl;
        a->n++;
    }
    return true;
}

size_t sb_dns_make_query(unsigned char *out, uint16_t id, const char *name, uint16_t type)
{
    /* An extension record says how long an answer may be. */
    static const unsigned char extension[11] = {
        0, 0, 41, SB_DNS_MAX >> 8, SB_DNS_MAX & 0xff, 0, 0, 0, 0, 0, 0};
    size_t at = HEADER;
    memset(out, 0, HEADER);
    put16(out, id);
    out[2] = 1; /* recursion, please */
    put16(out + 4, 1);
    put16(out + 10, 1);
    for (const char *word = name; *word != '\0';) {
        size_t n = strcspn(word, ".");
        out[at++] = (unsigned char)n;
        memcpy(out + at, word, n);
        at += n;
        word += n + (word[n] == '.');
    }
    out[at++] = 0;
    put16(out + at, type);
    put16(out + at + 2, CLASS_IN);
    memcpy(out + at + 4, extension, sizeof extension);
    return at + 4 + sizeof extension;
}

size_t sb_dns_make_answer(unsigned char *out, const struct sb_question *q,
                          const unsigned char *query, const struct sb_addresses *a)
{
    enum { CLASSIC = 512 }; /* what everybody takes */
    size_t at = q->end, size = q->type == SB_DNS_A ? 4 : 16;
    unsigned int n = 0;
    memcpy(out, query, at);
    put16(out, q->id);
    out[2] = (unsigned char)(0x80 | q->recursion);
    out[3] = (unsigned char)(0x80 | a->rcode);
    for (int i = 0; i < a->n && at + 12 + size <= CLASSIC; i++, n++) {
        put16(out + at, 0xc000 | HEADER);
        put16(out + at + 2, q->type);
        put16(out + at + 4, CLASS_IN);
        put16(out + at + 6, a->ttl >> 16);
        put16(out + at + 8, a->ttl);
        put16(out + at + 10, (unsigned int)size);
        memcpy(out + at + 12, a->at[i].b + 16 - size, size);
        at += 12 + size;
    }
    put16(out + 4, 1);
    put16(out + 6, n);
    memset(out + 8, 0, 4);
    return at;
}
