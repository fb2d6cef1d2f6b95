/* Envelopes of a Connect stream: a byte of flags, four of length, the payload. One parser a stream; no thread of its
 * own, no Lua, no libcurl. */
#ifndef SB_E2B_ENVELOPE_H
#define SB_E2B_ENVELOPE_H

#include <stddef.h>

#define SB_ENVELOPE_HEAD 5
#define SB_ENVELOPE_COMPRESSED 1u
#define SB_ENVELOPE_END 2u
#define SB_ENVELOPE_MOST (16u << 20) /* of a payload */

/* All zero is an empty one. */
struct sb_envelopes {
    unsigned char *buf; /* the beginning of one whose rest is not there yet */
    size_t len, cap;
};

enum sb_envelopes_end {
    SB_ENVELOPES_FED = 0,
    SB_ENVELOPES_LONG = -1, /* one announces more than SB_ENVELOPE_MOST */
    SB_ENVELOPES_MEMORY = -2,
    SB_ENVELOPES_STOPPED = -3, /* `take` did not want to go on */
};

/* Each payload is valid during the call of `take`, which gives 0 to go on. */
enum sb_envelopes_end sb_envelopes_feed(
    struct sb_envelopes *envelopes, const unsigned char *data, size_t len,
    int (*take)(void *arg, unsigned flags, const unsigned char *payload, size_t len), void *arg);
void sb_envelopes_free(struct sb_envelopes *envelopes);

#endif
