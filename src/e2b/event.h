/* What a stream of process.Start or process.Connect says, read where it lies. */
#ifndef SB_E2B_EVENT_H
#define SB_E2B_EVENT_H

#include "e2b/wire.h"

enum sb_event_type {
    SB_EVENT_OTHER, /* keepalive, or of a later version */
    SB_EVENT_START,
    SB_EVENT_STDOUT, /* of a terminal, too */
    SB_EVENT_STDERR,
    SB_EVENT_END,
};

struct sb_event {
    enum sb_event_type type;
    uint32_t pid;        /* of a start */
    struct sb_wire data; /* of output */
    int32_t exit_code;   /* of an end ... */
    int exited;          /* ... by itself */
    struct sb_wire status;
};

/* A StartResponse or ConnectResponse: 0, or -1: it is none. */
int sb_event_read(struct sb_wire payload, struct sb_event *event);

/* The wait status that an end means: of "signal: killed" it is 9. */
int sb_event_status(const struct sb_event *event);

/* Whether what a stream ended with says that it failed: 1, 0, or -1: it is no JSON object. */
int sb_end_failed(const unsigned char *json, size_t len);

#endif
