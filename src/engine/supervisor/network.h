/* The way of a sandbox to the world: its relay, started for those that may reach something. */
#ifndef SB_NETWORK_H
#define SB_NETWORK_H

#include <stdbool.h>

#include "../proto.h"
#include "fail.h"
#include "loop.h"

struct sb_box;
struct sb_record;
struct sb_denials;
struct sb_relay_counts;

/* Of one sandbox. No relay: fd < 0 for both. */
struct sb_network {
    struct sb_source control, proc;
    bool opens;       /* the relay has its second process */
    uint32_t asked;   /* number of the last policy sent; answered: the relay keeps to it */
    int64_t retry_ms; /* it ended by itself: when the next one is started; 0: not */
    int64_t started_ms;
    struct sb_relay_counts *counts; /* of the relay that is or was, SB_COUNTS, shared; NULL: none */
    uint64_t sent, received;        /* by those before it */
    struct sb_denials *denials;     /* what relays have refused since the start; NULL: nothing */
};

/* The policy of a request, checked, into the record. -1: see *f, and nothing has changed. */
int sb_network_take(struct sb_record *r, const struct sb_reader *fields, struct sb_failure *f);
/* pid 1 is there. Does nothing for a sandbox that may reach nothing. */
int sb_network_start(struct sb_box *b, struct sb_failure *f);
void sb_network_again(struct sb_box *b); /* the time of retry_ms has come */
/* Another policy, written down and sent. Those who wait for SB_S_NETWORK are answered when it holds. */
int sb_network_change(struct sb_box *b, const struct sb_reader *fields, struct sb_failure *f);
void sb_network_end(struct sb_box *b); /* kills the relay */
/* Bytes that its relays have carried. */
void sb_network_counts(const struct sb_box *b, uint64_t *sent, uint64_t *received);
void sb_network_show(const struct sb_box *b, struct sb_packer *p);

#endif
