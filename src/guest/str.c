#include "str.h"

#include "mem.h"

int str_same(const void *a, size_t len, const char *b)
{
    return strlen(b) == len && memcmp(a, b, len) == 0;
}

int str_number(const char *s, size_t len, uint64_t max, uint64_t *out)
{
    uint64_t v = 0;
    if (len == 0 || len > 20)
        return 0;
    for (size_t i = 0; i < len; i++) {
        unsigned digit = (unsigned)(s[i] - '0');
        if (digit > 9 || v > (max - digit) / 10)
            return 0;
        v = v * 10 + digit;
    }
    *out = v;
    return 1;
}

size_t str_digits(char *out, uint64_t value)
{
    char buf[20];
    size_t n = 0;
    do
        buf[n++] = (char)('0' + value % 10);
    while ((value /= 10) != 0);
    for (size_t i = 0; i < n; i++)
        out[i] = buf[n - 1 - i];
    return n;
}

char *str_put(char *to, const char *s)
{
    while ((*to = *s++) != '\0')
        to++;
    return to;
}

const char *str_find(const void *s, size_t len, char c)
{
    const char *p = s;
    for (size_t i = 0; i < len; i++)
        if (p[i] == c)
            return p + i;
    return NULL;
}
