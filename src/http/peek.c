/* JSON, one member at a time. */
#include "http/peek.h"

#include <stdio.h>
#include <string.h>

static int is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static const char *past_blanks(const char *at, const char *end)
{
    while (at < end && is_blank(*at))
        at++;
    return at;
}

/* Behind the end of the string that begins at `at`. */
static const char *string_end(const char *at, const char *end)
{
    for (at++; at < end && *at != '"'; at++)
        if (*at == '\\')
            at++;
    return at < end ? at + 1 : end;
}

char sb_peek_first(const unsigned char *body, size_t len)
{
    size_t n = 0;
    while (n < len && is_blank((char)body[n]))
        n++;
    return n < len ? (char)body[n] : '\0';
}

const char *sb_peek_entry(const char *at, const char *end, size_t *len)
{
    const char *from = NULL;
    int depth = 0;
    while (at < end) {
        if (*at == '"') {
            at = string_end(at, end);
            continue;
        }
        if (*at == '{' && depth++ == 0)
            from = at;
        at++;
        if (at[-1] == '}' && depth > 0 && --depth == 0) {
            *len = (size_t)(at - from);
            return from;
        }
    }
    return NULL;
}

/* Where the value of `key` begins in the object at `at`, not in one inside it; NULL: there is none. */
static const char *value_of(const char *key, const char *at, const char *end)
{
    size_t key_len = strlen(key);
    int depth = 0;
    while (at < end) {
        const char *from = at;
        depth += *at == '{' || *at == '[' ? 1 : *at == '}' || *at == ']' ? -1 : 0;
        at = *at == '"' ? string_end(at, end) : at + 1;
        if (depth != 1 || *from != '"' || (size_t)(at - from) != key_len + 2 ||
            memcmp(from + 1, key, key_len) != 0)
            continue;
        at = past_blanks(at, end);
        if (at < end && *at == ':') /* else it was a value */
            return past_blanks(at + 1, end);
    }
    return NULL;
}

size_t sb_peek_name(const char *key, const char *at, size_t len, char *value, size_t most)
{
    const char *end = at + len;
    size_t n = 0;
    at = value_of(key, at, end);
    if (at == NULL || at >= end || *at++ != '"')
        return 0;
    while (at + n < end && n < most &&
           ((at[n] >= 'a' && at[n] <= 'z') || (at[n] >= '0' && at[n] <= '9') || at[n] == '-' ||
            at[n] == '_'))
        n++;
    if (n == 0 || at + n >= end || at[n] != '"')
        return 0;
    memcpy(value, at, n);
    value[n] = '\0';
    return n;
}

int sb_peek_has_code(long code, const unsigned char *body, size_t len)
{
    if (sb_peek_first(body, len) != '{')
        return 0;
    char digits[24];
    const char *end = (const char *)body + len, *at = value_of("code", (const char *)body, end);
    size_t n = (size_t)snprintf(digits, sizeof digits, "%ld", code);
    return at != NULL && (size_t)(end - at) > n && memcmp(at, digits, n) == 0 &&
           (is_blank(at[n]) || at[n] == ',' || at[n] == '}');
}
