/* Messages of the DNS: questions and answers of one name. */
#ifndef SB_RELAY_DNS_H
#define SB_RELAY_DNS_H

#include "policy.h"

enum { SB_DNS_MAX = 1232, SB_DNS_ADDRESSES = 16, SB_DNS_A = 1, SB_DNS_AAAA = 28 };
enum { SB_DNS_OK = 0, SB_DNS_FAILED = 2, SB_DNS_NO_NAME = 3, SB_DNS_CANNOT = 4 };

struct sb_question {
    char name[SB_NAME_MAX + 1]; /* as sb_name_read makes it; "" where it is no host's name */
    uint16_t id, type;
    bool recursion;
    size_t end; /* of the question, in its message */
};

/* What an answer says. */
struct sb_addresses {
    int rcode, n;
    struct sb_addr at[SB_DNS_ADDRESSES];
    uint32_t ttl;
};

/* A query with exactly one question of class IN. False: it is none. */
bool sb_dns_read_query(struct sb_question *q, const unsigned char *in, size_t n);
/* The addresses of an answer to the question `q`. False: it is damaged, or answers something else. */
bool sb_dns_read_answer(struct sb_addresses *a, const struct sb_question *q,
                        const unsigned char *in, size_t n);
/* Both give a length and need SB_DNS_MAX bytes. An answer repeats the question of `query`. */
size_t sb_dns_make_query(unsigned char *out, uint16_t id, const char *name, uint16_t type);
size_t sb_dns_make_answer(unsigned char *out, const struct sb_question *q,
                          const unsigned char *query, const struct sb_addresses *a);

#endif
