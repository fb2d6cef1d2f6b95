/* One connection of the sandbox, for the files that serve it. */
#ifndef SB_RELAY_TCP_H
#define SB_RELAY_TCP_H

#include "dns.h"
#include "http.h"
#include "relay.h"
#include "watch.h"

/* What one side has sent and the other has not taken. */
struct sb_rest {
    char *data;
    size_t at, len;
};

/* FINDING and ASKING: the way through a proxy (upstream.c). */
enum sb_tcp_state { SNIFFING, RESOLVING, FINDING, DIALING, ASKING, OPEN, HANDED };

/* A connection of a program (`in`) and ours for it (`out`). Owned by the list; closed by drop. */
struct sb_tcp {
    struct sb_tcp *next, **link;
    struct sb_watch in, out;
    enum sb_tcp_state state;
    int64_t due;       /* of the state; 0: none */
    struct sb_addr to; /* where the program wants to go ... */
    unsigned int port;
    struct sb_addr dialed;      /* ... and where we went */
    char name[SB_NAME_MAX + 1]; /* which we looked up; "": gone to by its address */
    struct sb_addresses found;
    int tried;
    uint16_t id; /* of the question for the name */
    char *head;  /* of a name rule: what has come, until it is decided */
    size_t head_len;
    struct sb_rest up, down;   /* to the world; to the program */
    bool up_ended, down_ended; /* whoever sends has ended */
    bool http, unconfirmed;    /* what goes up is one request; an upgrade that nobody has granted */
    /* That address is allowed: whatever is no request for a host of a rule goes there. */
    bool by_address;
    bool injected;   /* secrets may be in what goes up */
    bool opens;      /* it is for the second process ... */
    uint64_t serial; /* ... which knows it by this */
    struct sb_body body;
    bool proxied;            /* it goes through the proxy ... */
    struct sb_addresses via; /* ... at one of these, of a question of this type */
    int via_type, via_tried;
    size_t heard, heard_end; /* bytes of the proxy's answer, and of the end of its head */
    char status[3];
};

/* For what is just being read; nothing in it is kept. */
enum { SB_PIECE = 262144 };
extern char sb_piece[SB_PIECE];

/* ---- tcp.c ---- */

int sb_tcp_count(void);
void sb_tcp_set(struct sb_tcp *c, enum sb_tcp_state state, int64_t patience_ms); /* 0: no end */
/* Begins a connection of ours. 0, or -1. */
int sb_tcp_connect(struct sb_tcp *c, const struct sb_addr *to, unsigned int port);
/* The next address of the name that may be dialed. */
void sb_tcp_dial_next(struct sb_tcp *c);
/* The way to c->dialed is there. */
void sb_tcp_open(struct sb_tcp *c);
/* `hard`: both sides see that it was cut. */
void sb_tcp_drop(struct sb_tcp *c, bool hard);
void sb_tcp_refuse(struct sb_tcp *c, sb_refusal why);
struct sb_tcp *sb_tcp_handed(uint64_t serial); /* NULL: there is none */

/* ---- opened.c ---- */

int sb_opened_hand(struct sb_tcp *c); /* 0, or -1 */

/* ---- carry.c: an open one ---- */

void sb_tcp_interest(struct sb_tcp *c);
void sb_tcp_carry(struct sb_tcp *c, struct sb_watch *w, uint32_t events);
/* 0, or -1: the receiver is gone. What it does not take is kept. */
int sb_tcp_give(int fd, struct sb_rest *r, const char *data, size_t n);
void sb_tcp_forget(struct sb_tcp *c, struct sb_rest *r);
/* `n` bytes of it, in which a secret may be. */
void sb_tcp_wipe(const struct sb_tcp *c, char *data, size_t n);

#endif
