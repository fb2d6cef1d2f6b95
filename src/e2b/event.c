/* Events of a process, by the field numbers of process.proto. */
#include "e2b/event.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static int take_start(struct sb_wire wire, struct sb_event *event)
{
    struct sb_wire_field at;
    int more;
    event->type = SB_EVENT_START;
    while ((more = sb_wire_next(&wire, &at)) > 0)
        if (at.number == 1 && at.type == SB_WIRE_VARINT)
            event->pid = (uint32_t)at.value;
    return more;
}

static int take_data(struct sb_wire wire, struct sb_event *event)
{
    struct sb_wire_field at;
    int more;
    while ((more = sb_wire_next(&wire, &at)) > 0) {
        if (at.number < 1 || at.number > 3)
            continue;
        if (at.type != SB_WIRE_BYTES)
            return -1;
        event->type = at.number == 2 ? SB_EVENT_STDERR : SB_EVENT_STDOUT;
        event->data = at.bytes;
    }
    return more;
}

static int take_end(struct sb_wire wire, struct sb_event *event)
{
    struct sb_wire_field at;
    int more;
    event->type = SB_EVENT_END;
    while ((more = sb_wire_next(&wire, &at)) > 0) {
        if (at.number == 1 && at.type == SB_WIRE_VARINT)
            event->exit_code = sb_wire_zigzag(at.value);
        else if (at.number == 2 && at.type == SB_WIRE_VARINT)
            event->exited = at.value != 0;
        else if (at.number == 3 && at.type == SB_WIRE_BYTES)
            event->status = at.bytes;
    }
    return more;
}

static int take_event(struct sb_wire wire, struct sb_event *event)
{
    struct sb_wire_field at;
    int more;
    while ((more = sb_wire_next(&wire, &at)) > 0) {
        if (at.number < 1 || at.number > 3)
            continue;
        if (at.type != SB_WIRE_BYTES)
            return -1;
        *event = (struct sb_event){SB_EVENT_OTHER, 0, {0}, 0, 0, {0}};
        if ((at.number == 1   ? take_start(at.bytes, event)
             : at.number == 2 ? take_data(at.bytes, event)
                              : take_end(at.bytes, event)) < 0)
            return -1;
    }
    return more;
}

int sb_event_read(struct sb_wire payload, struct sb_event *event)
{
    struct sb_wire_field at;
    int more;
    *event = (struct sb_event){SB_EVENT_OTHER, 0, {0}, 0, 0, {0}};
    while ((more = sb_wire_next(&payload, &at)) > 0)
        if (at.number == 1 && (at.type != SB_WIRE_BYTES || take_event(at.bytes, event) < 0))
            return -1;
    return more;
}

/* "killed", "segmentation fault (core dumped)", "signal 34": the number; 0: not known. */
static int signal_number(const char *name, size_t len)
{
    static const char core[] = " (core dumped)";
    char text[64];
    int number;
    if (len > sizeof core - 1 && memcmp(name + len - (sizeof core - 1), core, sizeof core - 1) == 0)
        len -= sizeof core - 1;
    if (len >= sizeof text)
        return 0;
    memcpy(text, name, len);
    text[len] = '\0';
    for (number = 1; number < 32; number++) {
        const char *known = sigdescr_np(number);
        if (known != NULL && strcasecmp(known, text) == 0)
            return number;
    }
    return sscanf(text, "signal %2d", &number) == 1 && number > 0 && number < 65 ? number : 0;
}

int sb_event_status(const struct sb_event *event)
{
    static const char prefix[] = "signal: ";
    size_t len = (size_t)(event->status.end - event->status.at), n = sizeof prefix - 1;
    int number = 0;
    if (!event->exited && len > n && memcmp(event->status.at, prefix, n) == 0)
        number = signal_number((const char *)event->status.at + n, len - n);
    return number != 0 ? number : (event->exit_code & 0xff) << 8;
}

/* The string that begins at `at`: behind its end, NULL without one. */
static const unsigned char *skip_string(const unsigned char *at, const unsigned char *end)
{
    for (at++; at < end && *at != '"'; at++)
        if (*at == '\\')
            at++;
    return at < end ? at + 1 : NULL;
}

int sb_end_failed(const unsigned char *json, size_t len)
{
    static const char name[] = "\"error\"";
    const unsigned char *at = json, *end = json + len, *next;
    int depth = 0, failed = 0;
    while (at < end) {
        if (*at == '"') {
            next = skip_string(at, end);
            if (next == NULL)
                return -1;
            failed |= depth == 1 && next - at == sizeof name - 1 &&
                      memcmp(at, name, sizeof name - 1) == 0;
            at = next;
            continue;
        }
        if (*at == '{' || *at == '[')
            depth++;
        else if (*at == '}' || *at == ']')
            depth--;
        else if (depth == 0 && *at != ' ' && *at != '\n' && *at != '\r' && *at != '\t')
            return -1;
        if (depth < 0)
            return -1;
        at++;
    }
    return depth == 0 && len > 0 && memchr(json, '{', len) != NULL ? failed : -1;
}
