/* A stream of events as a hosted sandbox might send it: whatever the bytes and however they are cut, the same
 * envelopes come out, and events and ends are read without a step outside of them. */
#include <stdlib.h>
#include <string.h>

#include "../../src/e2b/envelope.c"
#include "../../src/e2b/event.c"
#include "../../src/e2b/wire.c"

struct seen {
    unsigned long sum, count;
};

static int take(void *arg, unsigned flags, const unsigned char *payload, size_t len)
{
    struct seen *seen = arg;
    struct sb_event event;
    unsigned char *copy = malloc(len + (len == 0)); /* of its exact size, for the sanitizer */
    if (copy == NULL)
        return -1;
    if (len > 0)
        memcpy(copy, payload, len);
    seen->count++;
    seen->sum = seen->sum * 31 + flags + len;
    for (size_t i = 0; i < len; i++)
        seen->sum = seen->sum * 31 + payload[i];
    if (sb_event_read((struct sb_wire){copy, copy + len}, &event) == 0) {
        int status = sb_event_status(&event);
        if (status < 0 || status > 0xff00)
            abort();
        for (const unsigned char *at = event.data.at; at != event.data.end; at++)
            seen->sum += *at;
    }
    if (sb_end_failed(copy, len) > 1)
        abort();
    free(copy);
    return seen->count > 1000;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sb_envelopes whole = {0}, pieces = {0};
    struct seen a = {0, 0}, b = {0, 0};
    if (size == 0)
        return 0;
    size_t step = data[0] % 16 + 1;
    data++;
    size--;
    enum sb_envelopes_end end = sb_envelopes_feed(&whole, data, size, take, &a),
                          cut = SB_ENVELOPES_FED;
    for (size_t at = 0; at < size && cut == SB_ENVELOPES_FED; at += step) {
        size_t n = size - at < step ? size - at : step;
        unsigned char *copy = malloc(n);
        if (copy == NULL)
            break;
        memcpy(copy, data + at, n);
        cut = sb_envelopes_feed(&pieces, copy, n, take, &b);
        free(copy);
    }
    if (end != cut || a.sum != b.sum || a.count != b.count)
        abort();
    sb_envelopes_free(&whole);
    sb_envelopes_free(&pieces);
    return 0;
}
