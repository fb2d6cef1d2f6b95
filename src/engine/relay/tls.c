/* Reads the server name out of a TLS ClientHello. */
#include "tls.h"

#include <stdbool.h>
#include <stdint.h>

#include "policy.h"

struct cut {
    const unsigned char *at;
    size_t n;
};

/* A run of bytes whose length stands before it in `size` bytes. False: it is not all there. */
static bool take(struct cut *from, size_t size, struct cut *out)
{
    size_t n = 0;
    if (from->n < size)
        return false;
    for (size_t i = 0; i < size; i++)
        n = n << 8 | from->at[i];
    if (from->n - size < n)
        return false;
    *out = (struct cut){from->at + size, n};
    from->at += size + n;
    from->n -= size + n;
    return true;
}

static bool skip(struct cut *from, size_t n)
{
    if (from->n < n)
        return false;
    from->at += n;
    from->n -= n;
    return true;
}

static bool read_server_name(char *name, struct cut ext)
{
    struct cut list, host;
    if (!take(&ext, 2, &list) || ext.n != 0 || list.n < 1 || list.at[0] != 0)
        return false;
    skip(&list, 1);
    return take(&list, 2, &host) && list.n == 0 &&
           sb_name_read(name, (const char *)host.at, host.n);
}

static bool read_extensions(char *name, struct cut list)
{
    enum { SERVER_NAME = 0, ENCRYPTED_HELLO = 0xfe0d };
    bool named = false;
    while (list.n > 0) {
        struct cut ext;
        if (list.n < 2)
            return false;
        unsigned int type = (unsigned int)list.at[0] << 8 | list.at[1];
        if (!skip(&list, 2) || !take(&list, 2, &ext))
            return false;
        if (type == ENCRYPTED_HELLO)
            return false; /* the name that counts would be in there */
        if (type != SERVER_NAME)
            continue;
        if (named || !read_server_name(name, ext))
            return false;
        named = true;
    }
    return named;
}

int sb_hello_read(char *name, const unsigned char *in, size_t n)
{
    enum { HANDSHAKE = 22, CLIENT_HELLO = 1 };
    /* Refused as early as the bytes show it: what is no TLS may never send more. */
    if ((n > 0 && in[0] != HANDSHAKE) || (n > 1 && in[1] != 3))
        return -1;
    if (n < 5)
        return 0;
    size_t record = (size_t)in[3] << 8 | in[4];
    if (record < 4 || record > SB_HELLO_MAX - 5)
        return -1;
    if (n > 5 && in[5] != CLIENT_HELLO)
        return -1;
    if (n < 5 + record)
        return 0;
    struct cut message = {in + 6, record - 1}, hello, part;
    if (!take(&message, 3, &hello)) /* it goes on in another record */
        return -1;
    if (!skip(&hello, 2 + 32) || !take(&hello, 1, &part) || !take(&hello, 2, &part) ||
        !take(&hello, 1, &part) || !take(&hello, 2, &part) || hello.n != 0)
        return -1;
    return read_extensions(name, part) ? 1 : -1;
}
