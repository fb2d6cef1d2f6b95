/* Is it text? */
#include "http/websocket.h"

int sb_utf8_valid(const void *data, size_t len)
{
    const unsigned char *s = data, *end = s + len;
    while (s < end) {
        unsigned c = *s++, more, least;
        if (c < 0x80)
            continue;
        if (c >= 0xc2 && c < 0xe0)
            more = 1, least = 0x80, c &= 0x1f;
        else if (c >= 0xe0 && c < 0xf0)
            more = 2, least = 0x800, c &= 0x0f;
        else if (c >= 0xf0 && c < 0xf5)
            more = 3, least = 0x10000, c &= 0x07;
        else
            return 0;
        if ((size_t)(end - s) < more)
            return 0;
        for (; more > 0; more--, s++) {
            if ((*s & 0xc0) != 0x80)
                return 0;
            c = c << 6 | (*s & 0x3f);
        }
        if (c < least || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
            return 0;
    }
    return 1;
}
