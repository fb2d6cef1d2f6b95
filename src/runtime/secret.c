/* Secrets and the redactor.
 *
 * The redactor marks, in a mask as long as the text, every place where a live secret shows in one
 * of its forms, then replaces each marked run. Percent and JSON escapes are matched byte by byte,
 * whichever bytes were escaped; hex in either case; base64 by the characters that depend on the
 * secret alone, at each of the three positions it can have in a longer encoded text. */
#include "secret.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define MARK "[redacted]"
#define ENCODED_LEAST 4 /* shorter encoded forms would match by accident */

struct sb_secret {
    struct sb_secret *next, **link; /* of all live ones, under live.lock */
    size_t len;
    char data[];
};

static struct {
    pthread_mutex_t lock;
    struct sb_secret *head;
} live = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct sb_secret *sb_secret_join(const void *a, size_t alen, const void *b, size_t blen)
{
    if (blen > SIZE_MAX - sizeof(struct sb_secret) - alen)
        return NULL;
    struct sb_secret *secret = malloc(sizeof *secret + alen + blen);
    if (secret == NULL)
        return NULL;
    secret->len = alen + blen;
    if (alen > 0)
        memcpy(secret->data, a, alen);
    if (blen > 0)
        memcpy(secret->data + alen, b, blen);
    pthread_mutex_lock(&live.lock);
    secret->next = live.head;
    secret->link = &live.head;
    if (live.head != NULL)
        live.head->link = &secret->next;
    live.head = secret;
    pthread_mutex_unlock(&live.lock);
    return secret;
}

struct sb_secret *sb_secret_new(const void *data, size_t len)
{
    return sb_secret_join(data, len, NULL, 0);
}

void sb_secret_free(struct sb_secret *secret)
{
    if (secret == NULL)
        return;
    pthread_mutex_lock(&live.lock);
    *secret->link = secret->next;
    if (secret->next != NULL)
        secret->next->link = secret->link;
    pthread_mutex_unlock(&live.lock);
    explicit_bzero(secret->data, secret->len);
    free(secret);
}

const char *sb_secret_data(const struct sb_secret *secret, size_t *len)
{
    *len = secret->len;
    return secret->data;
}

/* ---- matching ---- */

struct text {
    const unsigned char *at;
    size_t len;
    unsigned char *mask;
    int hits;
};

static int hex_digit(unsigned char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static int hex_byte(const unsigned char *p)
{
    int high = hex_digit(p[0]), low = hex_digit(p[1]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

/* Each decoder takes one byte from p (left > 0 bytes) and returns how many characters it was, 0:
 * none. */
static size_t plain_or_percent(const unsigned char *p, size_t left, unsigned char want)
{
    if (*p == '%' && left >= 3 && hex_byte(p + 1) == want)
        return 3;
    return *p == want || (*p == '+' && want == ' ') ? 1 : 0;
}

static size_t json_escaped(const unsigned char *p, size_t left, unsigned char want)
{
    static const char names[] = "\"\"\\\\//b\bf\fn\nr\rt\t";
    if (*p != '\\')
        return *p == want ? 1 : 0;
    if (left >= 6 && p[1] == 'u' && p[2] == '0' && p[3] == '0' && hex_byte(p + 4) == want)
        return 6;
    for (size_t i = 0; left >= 2 && i + 1 < sizeof names; i += 2)
        if (p[1] == (unsigned char)names[i])
            return want == (unsigned char)names[i + 1] ? 2 : 0;
    return 0;
}

static size_t hex_pair(const unsigned char *p, size_t left, unsigned char want)
{
    return left >= 2 && hex_byte(p) == want ? 2 : 0;
}

static void mark(struct text *t, size_t from, size_t len)
{
    memset(t->mask + from, 1, len);
    t->hits = 1;
}

static void mark_decoded(struct text *t, const unsigned char *secret, size_t len,
                         size_t (*decode)(const unsigned char *p, size_t left, unsigned char want))
{
    for (size_t from = 0; from < t->len; from++) {
        size_t at = from, i = 0;
        while (i < len && at < t->len) {
            size_t n = decode(t->at + at, t->len - at, secret[i]);
            if (n == 0)
                break;
            at += n;
            i++;
        }
        if (i == len)
            mark(t, from, at - from);
    }
}

/* The value (0-63) of a character in either base64 alphabet, -1 for others. */
static int base64_value(unsigned char c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+' || c == '-' ? 62
           : c == '/' || c == '_' ? 63
                                  : -1;
}

/* The i-th six bits of a text that has the secret after `skip` unknown bytes; -1 where the
 * character depends on unknown bits. `last` (the secret ends the text): missing bits at the end are
 * 0. */
static int six_bits(const unsigned char *secret, size_t len, size_t skip, size_t i, int last)
{
    size_t bit = i * 6, byte = bit / 8, shift = bit % 8;
    unsigned pair = 0;
    for (size_t k = 0; k < 2; k++) {
        int needed = k == 0 || shift > 2;
        size_t at = byte + k;
        pair <<= 8;
        if (at >= skip && at - skip < len)
            pair |= secret[at - skip];
        else if (needed && (at < skip || !last || k == 0))
            return -1;
    }
    return (int)(pair >> (10 - shift) & 63);
}

static void mark_base64(struct text *t, const unsigned char *secret, size_t len, size_t skip,
                        int last)
{
    size_t first = (skip * 8 + 5) / 6, bits = (skip + len) * 8;
    size_t end = last ? (bits + 5) / 6 : bits / 6;
    if (end < first + ENCODED_LEAST)
        return;
    for (size_t from = 0; from + (end - first) <= t->len; from++) {
        size_t i = first;
        while (i < end &&
               base64_value(t->at[from + i - first]) == six_bits(secret, len, skip, i, last))
            i++;
        if (i != end)
            continue;
        /* with the characters beside it, which hold a few bits of the secret's first and
         * last byte */
        size_t low = from > 0 && first * 6 > skip * 8,
               high = from + (end - first) < t->len && end * 6 < bits;
        mark(t, from - low, end - first + low + high);
    }
}

static void mark_secret(struct text *t, const struct sb_secret *secret)
{
    const unsigned char *data = (const unsigned char *)secret->data;
    size_t len = secret->len;
    if (len < SB_SECRET_SHOWN)
        return;
    mark_decoded(t, data, len, plain_or_percent);
    mark_decoded(t, data, len, json_escaped);
    if (len * 2 >= ENCODED_LEAST)
        mark_decoded(t, data, len, hex_pair);
    for (size_t skip = 0; skip < 3; skip++) {
        mark_base64(t, data, len, skip, 0);
        mark_base64(t, data, len, skip, 1);
    }
}

static size_t write_redacted(const struct text *t, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < t->len; i++) {
        if (!t->mask[i]) {
            if (out != NULL)
                out[n] = (char)t->at[i];
            n++;
        } else if (i == 0 || !t->mask[i - 1]) {
            if (out != NULL)
                memcpy(out + n, MARK, sizeof MARK - 1);
            n += sizeof MARK - 1;
        }
    }
    return n;
}

int sb_redact(const char *data, size_t len, char **out, size_t *out_len)
{
    struct text t = {(const unsigned char *)data, len, NULL, 0};
    pthread_mutex_lock(&live.lock);
    if (live.head != NULL && len > 0) {
        t.mask = calloc(1, len);
        for (struct sb_secret *s = live.head; t.mask != NULL && s != NULL; s = s->next)
            mark_secret(&t, s);
    }
    int failed = live.head != NULL && len > 0 && t.mask == NULL;
    pthread_mutex_unlock(&live.lock);
    if (!failed && t.hits && t.mask != NULL) {
        *out_len = write_redacted(&t, NULL);
        *out = malloc(*out_len + 1);
        failed = *out == NULL;
        if (!failed) {
            write_redacted(&t, *out);
            (*out)[*out_len] = '\0';
        }
    }
    free(t.mask);
    return failed ? -1 : t.hits;
}

void sb_secret_fork_lock(void)
{
    pthread_mutex_lock(&live.lock);
}

void sb_secret_fork_unlock(void)
{
    pthread_mutex_unlock(&live.lock);
}
