/* Streams of events: envelopes wherever they are cut, what events mean, whether an end is a failure. */
#include <stdlib.h>
#include <string.h>

#include "check.h"

#include "../../src/e2b/envelope.c"
#include "../../src/e2b/event.c"
#include "../../src/e2b/wire.c"

#define ROUNDS 4

static unsigned char stream[4096];
static size_t stream_len;

static void add(unsigned flags, const void *payload, size_t len)
{
    unsigned char *at = stream + stream_len;
    at[0] = (unsigned char)flags;
    for (int i = 0; i < 4; i++)
        at[1 + i] = (unsigned char)(len >> (24 - 8 * i));
    memcpy(at + SB_ENVELOPE_HEAD, payload, len);
    stream_len += SB_ENVELOPE_HEAD + len;
}

struct seen {
    int count, bytes, stop_at;
    unsigned flags;
};

static int take(void *arg, unsigned flags, const unsigned char *payload, size_t len)
{
    struct seen *seen = arg;
    seen->flags |= flags;
    for (size_t i = 0; i < len; i++)
        CHECK(payload[i] == (unsigned char)('a' + seen->count));
    seen->bytes += (int)len;
    return ++seen->count == seen->stop_at ? -1 : 0;
}

static void test_envelopes(void)
{
    char text[700];
    for (int i = 0; i < ROUNDS; i++) {
        memset(text, 'a' + i, sizeof text);
        add(i == ROUNDS - 1 ? SB_ENVELOPE_END : 0, text, i == 1 ? 0 : sizeof text - (size_t)i);
    }
    for (size_t cut = 0; cut <= stream_len; cut++) {
        struct sb_envelopes e = {0};
        struct seen seen = {0, 0, 0, 0};
        unsigned char *first = malloc(cut + 1), *second = malloc(stream_len - cut + 1);
        CHECK(first != NULL && second != NULL);
        memcpy(first, stream, cut);
        memcpy(second, stream + cut, stream_len - cut);
        CHECK(sb_envelopes_feed(&e, first, cut, take, &seen) == SB_ENVELOPES_FED);
        free(first); /* nothing of it may be needed any more */
        CHECK(sb_envelopes_feed(&e, second, stream_len - cut, take, &seen) == SB_ENVELOPES_FED);
        free(second);
        CHECK(seen.count == ROUNDS && seen.bytes == 700 + 698 + 697 && e.len == 0);
        CHECK(seen.flags == SB_ENVELOPE_END);
        sb_envelopes_free(&e);
    }
    struct sb_envelopes e = {0};
    struct seen seen = {0, 0, 2, 0};
    CHECK(sb_envelopes_feed(&e, stream, stream_len, take, &seen) == SB_ENVELOPES_STOPPED);
    CHECK(seen.count == 2);
    sb_envelopes_free(&e);
    static const unsigned char giant[] = {0, 1, 0, 0, 1};
    for (size_t cut = 0; cut <= sizeof giant; cut++) {
        enum sb_envelopes_end end = sb_envelopes_feed(&e, giant, cut, take, &seen);
        if (end == SB_ENVELOPES_FED)
            end = sb_envelopes_feed(&e, giant + cut, sizeof giant - cut, take, &seen);
        CHECK(end == SB_ENVELOPES_LONG);
        sb_envelopes_free(&e);
    }
}

static int read_event(const char *bytes, size_t len, struct sb_event *event)
{
    const unsigned char *at = (const unsigned char *)bytes;
    return sb_event_read((struct sb_wire){at, at + len}, event);
}
#define READ(bytes, event) read_event(bytes, sizeof(bytes) - 1, event)

static void test_events(void)
{
    struct sb_event event;
    CHECK(READ("", &event) == 0 && event.type == SB_EVENT_OTHER);
    CHECK(READ("\x0a\x02\x22\x00", &event) == 0 && event.type == SB_EVENT_OTHER);
    CHECK(READ("\x0a\x05\x0a\x03\x08\xac\x02", &event) == 0 && event.type == SB_EVENT_START);
    CHECK(event.pid == 300);
    CHECK(READ("\x0a\x06\x12\x04\x0a\x02hi", &event) == 0 && event.type == SB_EVENT_STDOUT);
    CHECK(event.data.end - event.data.at == 2 && memcmp(event.data.at, "hi", 2) == 0);
    CHECK(READ("\x0a\x06\x12\x04\x12\x02hi", &event) == 0 && event.type == SB_EVENT_STDERR);
    CHECK(READ("\x0a\x06\x12\x04\x1a\x02hi", &event) == 0 && event.type == SB_EVENT_STDOUT);
    CHECK(READ("\x0a\x02\x1a\x00", &event) == 0 && event.type == SB_EVENT_END);
    CHECK(sb_event_status(&event) == 0);
    CHECK(READ("\x0a\x06\x1a\x04\x08\x06\x10\x01", &event) == 0 && event.exited);
    CHECK(event.exit_code == 3 && sb_event_status(&event) == 3 << 8);
    CHECK(READ("\x0a\x14\x1a\x12\x08\x01\x1a\x0esignal: killed", &event) == 0);
    CHECK(event.exit_code == -1 && sb_event_status(&event) == 9);
    CHECK(READ("\x0a\x06\x12\x05\x0a\x02hi", &event) < 0);
    CHECK(READ("\x0a\x06\x12\x04\x0a\x03hi", &event) < 0);
    CHECK(READ("\x08\x01", &event) < 0);
}

static int failed(const char *json)
{
    return sb_end_failed((const unsigned char *)json, strlen(json));
}

static void test_ends(void)
{
    CHECK(failed("{}") == 0 && failed(" { } \n") == 0);
    CHECK(failed("{\"metadata\":{\"error\":[\"x\"]}}") == 0);
    CHECK(failed("{\"metadata\":{\"k\":[\"}\\\"{\"]}}") == 0);
    CHECK(failed("{\"error\":{\"code\":\"internal\"}}") == 1);
    CHECK(failed("{\"metadata\":{},\"error\":{}}") == 1);
    CHECK(failed("") < 0 && failed("x") < 0 && failed("{") < 0 && failed("{}}") < 0);
    CHECK(failed("{\"a") < 0 && failed("{\"a\\") < 0 && failed("null") < 0 && failed("[]") < 0);
}

int main(void)
{
    test_envelopes();
    passed("envelopes come out whole, wherever they are cut");
    test_events();
    passed("events are read where they lie, damaged ones refused");
    test_ends();
    passed("an end that says it failed is told from one that does not");
    return 0;
}
