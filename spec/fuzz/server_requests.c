/* What the HTTP server reads from its clients: heads of requests and bodies in chunks, which have to mean the same
 * however they are cut into pieces. The first byte chooses, the second says where they are cut. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "server/chunked.c"
#include "server/head.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void inside(const struct sb_head *head, size_t len, const struct sb_slice *span)
{
    assert(span->data >= head->text && span->data + span->len <= head->text + len);
}

static void head(const char *data, size_t size, size_t cut)
{
    size_t scanned = 0, again = 0;
    const char *why = NULL;
    long whole = sb_head_find(data, size, &scanned), pieces = 0;
    for (size_t n = 0; n <= size && pieces == 0; n = n < size && n + cut > size ? size : n + cut)
        pieces = sb_head_find(data, n, &again);
    assert(pieces == whole);
    if (whole <= 0)
        return;
    struct sb_head h;
    int status = sb_head_read(&h, data, (size_t)whole, &why);
    assert(status == 0 || (status >= 400 && why != NULL && h.text == NULL));
    if (status != 0)
        return;
    size_t len = (size_t)whole;
    assert(memchr(h.text, '\0', len) == NULL && h.count <= SB_HEAD_FIELDS);
    assert(h.method.len > 0 && h.target.len > 0 && (h.minor == 0 || h.host.data != NULL));
    inside(&h, len, &h.method);
    inside(&h, len, &h.target);
    int lengths = 0, codings = 0;
    for (size_t i = 0; i < h.count; i++) {
        inside(&h, len, &h.fields[i].name);
        inside(&h, len, &h.fields[i].value);
        assert(memchr(h.fields[i].value.data, '\n', h.fields[i].value.len) == NULL);
        lengths += sb_slice_is(&h.fields[i].name, "content-length");
        codings += sb_slice_is(&h.fields[i].name, "transfer-encoding");
    }
    assert(lengths + codings <= 1 && (codings == 1) == (h.framing == SB_FRAMED_CHUNKED));
    sb_head_free(&h);
}

static void body(const uint8_t *data, size_t size, size_t cut)
{
    static unsigned char one[1 << 16], other[1 << 16];
    struct sb_chunked c = {0}, d = {0};
    size_t used, made, at = 0, to = 0;
    if (size > sizeof one)
        return;
    int rc = sb_chunked_read(&c, data, size, one, sizeof one, &used, &made);
    assert(used <= size && made <= used);
    int in_pieces = 0;
    while (in_pieces == 0 && at < size) {
        size_t n = size - at < cut ? size - at : cut, u, m;
        in_pieces = sb_chunked_read(&d, data + at, n, other + to, cut / 2 + 1, &u, &m);
        assert(u <= n && m <= cut / 2 + 1 && (u > 0 || in_pieces != 0));
        at += u;
        to += m;
    }
    assert(in_pieces == rc && to == made && memcmp(one, other, made) == 0);
    assert(rc < 0 || at == used);
    if (rc == 1)
        assert(sb_chunked_read(&c, data, size, one, sizeof one, &used, &made) == 1 && used == 0 &&
               made == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    size_t cut = (size_t)data[1] % 32 + 1;
    if (data[0] % 2 == 0)
        head((const char *)data + 2, size - 2, cut);
    else
        body(data + 2, size - 2, cut);
    return 0;
}
