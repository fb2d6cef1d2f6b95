/* The one connection of this process to the supervisor of a state root, shared by all users of
 * that root: made when something is asked, kept while anything needs it, made again, with a new
 * supervisor if necessary, when it is lost while needed. [io] all of it, except sb_engine_*. */
#ifndef SB_CLIENT_H
#define SB_CLIENT_H

#include "../runtime/release.h"
#include "conn.h"

/* What core.engine{} makes: configuration, immutable, good in every process generation. */
extern const struct sb_object_type sb_engine_type;
struct sb_engine {
    struct sb_object object;
    uint64_t linger_ms;
    char root[]; /* absolute */
};
struct sb_engine *sb_engine_new(const char *root, uint64_t linger_ms);

struct sb_client;

/* The process's client of that root; lives until the process ends. NULL: out of memory. */
struct sb_client *sb_client_get(const struct sb_engine *engine);

/* A request to the supervisor, embedded in its owner. `msg` (malloc'ed, made with sb_pack_begin)
 * is owned by the call and wiped when it ends. If the supervisor dies under it, it is sent to the next
 * one when `again` says that this does no harm, a few times; else its end is OutcomeUnknown. Of a supervisor that breaks
 * the protocol it is Protocol. */
struct sb_client_call {
    struct sb_call call; /* first */
    void (*answer)(struct sb_client_call *call,
                   const struct sb_answer *answer); /* as in struct sb_call */
    struct sb_client *client;
    unsigned char *msg;
    size_t len;
    int again;
    int tries; /* how often it was sent: 0 at its end means that no supervisor has seen it */
    size_t
        parts; /* SB_PARTs that a true answer may have: those still to come. Who sends more loses the connection */
    size_t parts_room; /* and their bytes */
    struct sb_client_call *next;
};
void sb_client_call(struct sb_client *client, struct sb_client_call *call);

/* A message of `type` around a run of fields, malloc'ed; NULL: out of memory. */
unsigned char *sb_client_message(uint16_t type, const void *fields, size_t len, size_t *msg_len);

/* While anything needs it, the connection stays, and comes back. */
void sb_client_need(struct sb_client *client);
void sb_client_unneed(struct sb_client *client);

#endif
