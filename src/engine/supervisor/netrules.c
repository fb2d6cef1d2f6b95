/* The network of a sandbox that may reach something, as netlink messages. There is no interface but `lo`: a
 * route makes every address one of this machine, and a rule gives whatever is sent to a foreign one to the
 * relay's listeners (transparent proxying: no connection tracking, no rewriting). Without a listener it is
 * refused, as on any machine without one. */
#include "netrules.h"

#include <arpa/inet.h>
#include <linux/if_addr.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <stdint.h>
#include <string.h>

enum { LO = 1 }; /* its index, in every network */

static struct sb_netrules made;

/* ---- a message growing in a buffer; the sizes are constants, and fit ---- */

struct out {
    unsigned char *buf;
    size_t len;
};

static void *grow(struct out *o, size_t n)
{
    void *at = o->buf + o->len;
    memset(at, 0, NLMSG_ALIGN(n));
    o->len += NLMSG_ALIGN(n);
    return at;
}

static struct nlmsghdr *begin(struct out *o, uint16_t type, uint16_t flags)
{
    struct nlmsghdr *h = grow(o, sizeof *h);
    h->nlmsg_type = type;
    h->nlmsg_flags = NLM_F_REQUEST | flags;
    return h;
}

static void end(struct out *o, struct nlmsghdr *h)
{
    h->nlmsg_len = (uint32_t)(o->buf + o->len - (unsigned char *)h);
}

static void attr(struct out *o, uint16_t type, const void *data, size_t n)
{
    struct nlattr *a = grow(o, sizeof *a + n);
    a->nla_type = type;
    a->nla_len = (uint16_t)(sizeof *a + n);
    memcpy(a + 1, data, n);
}

static void attr_u32(struct out *o, uint16_t type, uint32_t v)
{
    v = htonl(v);
    attr(o, type, &v, sizeof v);
}

static void attr_str(struct out *o, uint16_t type, const char *s)
{
    attr(o, type, s, strlen(s) + 1);
}

static struct nlattr *nest(struct out *o, uint16_t type)
{
    struct nlattr *a = grow(o, sizeof *a);
    a->nla_type = type | NLA_F_NESTED;
    return a;
}

static void unnest(struct out *o, struct nlattr *a)
{
    a->nla_len = (uint16_t)(o->buf + o->len - (unsigned char *)a);
}

/* ---- addresses and routes ---- */

static void own_address(int family, unsigned char out[16])
{
    static const unsigned char prefix[16] = SB_NET_PREFIX6;
    const uint32_t v4 = htonl(SB_NET_OWN4);
    memcpy(out, prefix, 16);
    out[15] = SB_NET_OWN;
    if (family == AF_INET)
        memcpy(out, &v4, sizeof v4);
}

static size_t make_address(unsigned char *buf, int family)
{
    struct out o = {buf, 0};
    unsigned char own[16];
    size_t n = family == AF_INET ? 4 : 16;
    struct nlmsghdr *h = begin(&o, RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE);
    struct ifaddrmsg *m = grow(&o, sizeof *m);
    m->ifa_family = (unsigned char)family;
    m->ifa_prefixlen = (unsigned char)(n * 8);
    m->ifa_index = LO;
    m->ifa_flags = family == AF_INET6 ? IFA_F_NODAD : 0;
    own_address(family, own);
    attr(&o, IFA_LOCAL, own, n);
    attr(&o, IFA_ADDRESS, own, n);
    end(&o, h);
    return o.len;
}

static size_t make_route(unsigned char *buf, int family)
{
    struct out o = {buf, 0};
    unsigned char own[16];
    const uint32_t lo = LO;
    struct nlmsghdr *h = begin(&o, RTM_NEWROUTE, NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE);
    struct rtmsg *m = grow(&o, sizeof *m);
    m->rtm_family = (unsigned char)family;
    m->rtm_table = RT_TABLE_LOCAL;
    m->rtm_protocol = RTPROT_STATIC;
    m->rtm_scope = family == AF_INET ? RT_SCOPE_HOST : RT_SCOPE_UNIVERSE;
    m->rtm_type = RTN_LOCAL;
    own_address(family, own);
    attr(&o, RTA_OIF, &lo, sizeof lo);
    attr(&o, RTA_PREFSRC, own, family == AF_INET ? 4 : 16);
    end(&o, h);
    return o.len;
}

/* ---- the table ---- */

static const char table[] = "sandbar";

static struct nlmsghdr *begin_nft(struct out *o, uint16_t what, uint16_t flags)
{
    struct nlmsghdr *h = begin(o, (uint16_t)(NFNL_SUBSYS_NFTABLES << 8 | what), flags);
    struct nfgenmsg *g = grow(o, sizeof *g);
    g->nfgen_family = NFPROTO_INET;
    return h;
}

static void batch_edge(struct out *o, uint16_t what)
{
    struct nlmsghdr *h = begin(o, what, 0);
    struct nfgenmsg *g = grow(o, sizeof *g);
    g->res_id = htons(NFNL_SUBSYS_NFTABLES);
    end(o, h);
}

static void one_table(struct out *o, uint16_t what, uint16_t flags)
{
    struct nlmsghdr *h = begin_nft(o, what, flags);
    attr_str(o, NFTA_TABLE_NAME, table);
    end(o, h);
}

static void chain(struct out *o, const char *name, uint32_t hook, int priority)
{
    struct nlmsghdr *h = begin_nft(o, NFT_MSG_NEWCHAIN, NLM_F_CREATE);
    attr_str(o, NFTA_CHAIN_TABLE, table);
    attr_str(o, NFTA_CHAIN_NAME, name);
    struct nlattr *n = nest(o, NFTA_CHAIN_HOOK);
    attr_u32(o, NFTA_HOOK_HOOKNUM, hook);
    attr_u32(o, NFTA_HOOK_PRIORITY, (uint32_t)priority);
    unnest(o, n);
    attr_str(o, NFTA_CHAIN_TYPE, "filter");
    attr_u32(o, NFTA_CHAIN_POLICY, NF_ACCEPT);
    end(o, h);
}

/* Expressions of the rule under way. */
struct rule {
    struct out *o;
    struct nlmsghdr *head;
    struct nlattr *list, *elem, *data;
};

static struct rule begin_rule(struct out *o, const char *in, uint16_t flags)
{
    struct rule r = {.o = o};
    r.head = begin_nft(o, NFT_MSG_NEWRULE, (uint16_t)(NLM_F_CREATE | NLM_F_APPEND | flags));
    attr_str(o, NFTA_RULE_TABLE, table);
    attr_str(o, NFTA_RULE_CHAIN, in);
    r.list = nest(o, NFTA_RULE_EXPRESSIONS);
    return r;
}

static void end_rule(struct rule *r)
{
    unnest(r->o, r->list);
    end(r->o, r->head);
}

static void begin_expr(struct rule *r, const char *name)
{
    r->elem = nest(r->o, NFTA_LIST_ELEM);
    attr_str(r->o, NFTA_EXPR_NAME, name);
    r->data = nest(r->o, NFTA_EXPR_DATA);
}

static void end_expr(struct rule *r)
{
    unnest(r->o, r->data);
    unnest(r->o, r->elem);
}

static void value(struct rule *r, uint16_t type, const void *data, size_t n)
{
    struct nlattr *a = nest(r->o, type);
    attr(r->o, NFTA_DATA_VALUE, data, n);
    unnest(r->o, a);
}

static void load_meta(struct rule *r, uint32_t key)
{
    begin_expr(r, "meta");
    attr_u32(r->o, NFTA_META_DREG, NFT_REG_1);
    attr_u32(r->o, NFTA_META_KEY, key);
    end_expr(r);
}

static void load_destination(struct rule *r, size_t n)
{
    begin_expr(r, "payload");
    attr_u32(r->o, NFTA_PAYLOAD_DREG, NFT_REG_1);
    attr_u32(r->o, NFTA_PAYLOAD_BASE, NFT_PAYLOAD_NETWORK_HEADER);
    attr_u32(r->o, NFTA_PAYLOAD_OFFSET, n == 4 ? 16 : 24);
    attr_u32(r->o, NFTA_PAYLOAD_LEN, (uint32_t)n);
    end_expr(r);
}

static void mask(struct rule *r, uint32_t bits)
{
    const uint32_t keep = htonl(bits), zero = 0;
    begin_expr(r, "bitwise");
    attr_u32(r->o, NFTA_BITWISE_SREG, NFT_REG_1);
    attr_u32(r->o, NFTA_BITWISE_DREG, NFT_REG_1);
    attr_u32(r->o, NFTA_BITWISE_LEN, 4);
    value(r, NFTA_BITWISE_MASK, &keep, sizeof keep);
    value(r, NFTA_BITWISE_XOR, &zero, sizeof zero);
    end_expr(r);
}

static void must_be(struct rule *r, const void *data, size_t n)
{
    begin_expr(r, "cmp");
    attr_u32(r->o, NFTA_CMP_SREG, NFT_REG_1);
    attr_u32(r->o, NFTA_CMP_OP, NFT_CMP_EQ);
    value(r, NFTA_CMP_DATA, data, n);
    end_expr(r);
}

static void must_be_byte(struct rule *r, unsigned char v)
{
    must_be(r, &v, 1);
}

static void into(struct rule *r, uint32_t reg, const void *data, size_t n)
{
    begin_expr(r, "immediate");
    attr_u32(r->o, NFTA_IMMEDIATE_DREG, reg);
    value(r, NFTA_IMMEDIATE_DATA, data, n);
    end_expr(r);
}

static void verdict(struct rule *r, uint32_t code)
{
    begin_expr(r, "immediate");
    attr_u32(r->o, NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT);
    struct nlattr *d = nest(r->o, NFTA_IMMEDIATE_DATA), *v = nest(r->o, NFTA_DATA_VERDICT);
    attr_u32(r->o, NFTA_VERDICT_CODE, code);
    unnest(r->o, v);
    unnest(r->o, d);
    end_expr(r);
}

/* What the sandbox sends to itself is its own matter. */
static void accept_own(struct out *o, const char *in)
{
    unsigned char own[16], loopback[16] = {[15] = 1};
    const uint32_t net127 = htonl(0x7f000000u);
    struct rule r = begin_rule(o, in, 0);
    load_meta(&r, NFT_META_NFPROTO);
    must_be_byte(&r, NFPROTO_IPV4);
    load_destination(&r, 4);
    mask(&r, 0xff000000u);
    must_be(&r, &net127, sizeof net127);
    verdict(&r, NF_ACCEPT);
    end_rule(&r);
    for (int v6 = 0; v6 < 3; v6++) {
        size_t n = v6 != 0 ? 16 : 4;
        own_address(v6 != 0 ? AF_INET6 : AF_INET, own);
        r = begin_rule(o, in, 0);
        load_meta(&r, NFT_META_NFPROTO);
        must_be_byte(&r, v6 != 0 ? NFPROTO_IPV6 : NFPROTO_IPV4);
        load_destination(&r, n);
        must_be(&r, v6 == 2 ? loopback : own, n);
        verdict(&r, NF_ACCEPT);
        end_rule(&r);
    }
}

static void to_relay(struct out *o, const char *in, unsigned char family, unsigned char protocol)
{
    unsigned char relay[16];
    const uint16_t port = htons(SB_NET_PORT);
    const uint32_t relay4 = htonl(SB_NET_RELAY4);
    own_address(AF_INET6, relay);
    relay[15] = SB_NET_RELAY;
    struct rule r = begin_rule(o, in, 0);
    load_meta(&r, NFT_META_NFPROTO);
    must_be_byte(&r, family);
    load_meta(&r, NFT_META_L4PROTO);
    must_be_byte(&r, protocol);
    into(&r, NFT_REG_1, family == NFPROTO_IPV4 ? (const void *)&relay4 : relay,
         family == NFPROTO_IPV4 ? 4 : 16);
    into(&r, NFT_REG_2, &port, sizeof port);
    begin_expr(&r, "tproxy");
    attr_u32(o, NFTA_TPROXY_FAMILY, family);
    attr_u32(o, NFTA_TPROXY_REG_ADDR, NFT_REG_1);
    attr_u32(o, NFTA_TPROXY_REG_PORT, NFT_REG_2);
    end_expr(&r);
    verdict(&r, NF_ACCEPT);
    end_rule(&r);
}

static void accept_protocol(struct out *o, const char *in, unsigned char protocol)
{
    struct rule r = begin_rule(o, in, 0);
    load_meta(&r, NFT_META_L4PROTO);
    must_be_byte(&r, protocol);
    verdict(&r, NF_ACCEPT);
    end_rule(&r);
}

static void make_rules(struct sb_netrules *m)
{
    static const char in[] = "in", out[] = "out";
    struct out o = {m->rules, 0};
    batch_edge(&o, NFNL_MSG_BATCH_BEGIN);
    /* Also where there is one already: of an earlier relay of this sandbox. */
    one_table(&o, NFT_MSG_NEWTABLE, NLM_F_CREATE);
    one_table(&o, NFT_MSG_DELTABLE, 0);
    one_table(&o, NFT_MSG_NEWTABLE, NLM_F_CREATE);
    chain(&o, in, NF_INET_PRE_ROUTING, -150);
    accept_own(&o, in);
    to_relay(&o, in, NFPROTO_IPV4, IPPROTO_TCP);
    to_relay(&o, in, NFPROTO_IPV4, IPPROTO_UDP);
    to_relay(&o, in, NFPROTO_IPV6, IPPROTO_TCP);
    to_relay(&o, in, NFPROTO_IPV6, IPPROTO_UDP);
    /* Whatever else would be answered by the kernel itself: all addresses are its own. Dropped before it
     * leaves, it is refused at once (EPERM). */
    chain(&o, out, NF_INET_LOCAL_OUT, 0);
    accept_own(&o, out);
    accept_protocol(&o, out, IPPROTO_TCP);
    accept_protocol(&o, out, IPPROTO_UDP);
    struct rule r = begin_rule(&o, out, NLM_F_ACK);
    verdict(&r, NF_DROP);
    end_rule(&r);
    batch_edge(&o, NFNL_MSG_BATCH_END);
    m->rules_len = o.len;
}

const struct sb_netrules *sb_netrules(void)
{
    if (made.rules_len == 0) {
        made.route_len[0] = make_address(made.route[0], AF_INET);
        made.route_len[1] = make_route(made.route[1], AF_INET);
        made.route_len[2] = make_address(made.route[2], AF_INET6);
        made.route_len[3] = make_route(made.route[3], AF_INET6);
        make_rules(&made);
    }
    return &made;
}
