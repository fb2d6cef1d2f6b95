/* What the relay of a sandbox's network reads from inside and from the host's resolvers: heads and bodies of HTTP,
 * ClientHellos, questions and answers of the DNS; and policies and URLs of proxies, which come from the host's program.
 * The first byte chooses. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/relay/dns.c"
#include "engine/relay/http.c"
#include "engine/relay/inject.c"
#include "engine/relay/policy.c"
#include "engine/relay/tls.c"
#include "engine/relay/upstream_url.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* For hosts and paths that a fuzzer finds soon. */
static const struct sb_inject *rules(void)
{
    static const char *const entry[] = {"hgood.test",       "p/v1", "wX-A:b",
                                        "sX-Secret:s3cr3t", "h*.t", "sX-Secret:s3cr3t"};
    static struct sb_inject made;
    unsigned char buf[512];
    struct sb_packer p;
    struct sb_msg msg;
    struct sb_reader fields;
    struct sb_policy_error e;
    if (made.rules > 0)
        return &made;
    sb_pack_begin(&p, buf, sizeof buf, SB_R_POLICY, 0, 0);
    for (size_t i = 0; i < sizeof entry / sizeof *entry; i++)
        sb_pack_str(&p, SB_F_NET_INJECT, entry[i]);
    sb_read_begin(&fields, &msg, buf, p.len);
    assert(sb_inject_read(&made, &fields, &e) == 0);
    return &made;
}

/* What goes on has the secret once, in place of all of its name, and is else the request that was read. */
static void injected(const struct sb_head *h, const char *in, size_t n)
{
    static char out[SB_HEAD_MAX + 128], again[SB_HEAD_MAX + 256];
    struct sb_head h2;
    size_t len = n, len2;
    int times = 0;
    sb_refusal why = NULL;
    memcpy(out, in, n);
    int rc = sb_inject_apply(rules(), h->host, out, &len, sizeof out, &why);
    assert(rc >= 0 || why != NULL);
    if (rc == 0)
        assert(len == n && memcmp(in, out, n) == 0);
    if (rc <= 0 || len > SB_HEAD_MAX)
        return;
    assert(len >= 4 && memcmp(out + len - 4, "\r\n\r\n", 4) == 0);
    assert(sb_head_read(&h2, out, len, again, &len2) == (int)len);
    assert(strcmp(h->host, h2.host) == 0 && h->port == h2.port && h->upgrade == h2.upgrade);
    assert(h->body.kind == h2.body.kind && h->body.left == h2.body.left);
    out[len] = '\0';
    for (char *at = out; (at = strcasestr(at, "\nx-secret:")) != NULL; at++)
        times++;
    assert(times == 1 && strcasestr(out, "\nx_secret:") == NULL);
}

static void head(const char *in, size_t n)
{
    static char out[SB_HEAD_MAX + 64];
    struct sb_head h;
    size_t len = 0;
    int used = sb_head_read(&h, in, n, out, &len);
    if (used <= 0)
        return;
    char name[SB_NAME_MAX + 1];
    assert((size_t)used <= n && len <= (size_t)used + 64 && len > 4);
    assert(memcmp(out + len - 4, "\r\n\r\n", 4) == 0);
    assert(sb_name_read(name, h.host, strlen(h.host)) && strcmp(name, h.host) == 0);
    if (len < SB_HEAD_MAX)
        injected(&h, out, len);
    /* What goes on is read the same way. */
    static char again[SB_HEAD_MAX + 128];
    struct sb_head h2;
    size_t len2;
    if (len <= SB_HEAD_MAX) {
        assert(sb_head_read(&h2, out, len, again, &len2) == (int)len);
        assert(strcmp(h.host, h2.host) == 0 && h.port == h2.port && h.upgrade == h2.upgrade);
        assert(h.body.kind == h2.body.kind && h.body.left == h2.body.left);
    }
    /* In two pieces the body ends where it ends in one. */
    const char *rest = in + used;
    size_t left = n - (size_t)used, half = left / 2;
    struct sb_body whole = h.body, parts = h.body;
    long a = sb_body_eat(&whole, rest, left), b = sb_body_eat(&parts, rest, half);
    assert(a <= (long)left && b <= (long)half);
    if (b == (long)half && b >= 0) {
        long c = sb_body_eat(&parts, rest + half, left - half);
        assert((a < 0) == (c < 0) && (a < 0 || a == b + c));
    }
}

static void dns(const uint8_t *in, size_t n)
{
    unsigned char out[SB_DNS_MAX];
    struct sb_question q, back;
    struct sb_addresses a;
    if (!sb_dns_read_query(&q, in, n))
        return;
    char name[SB_NAME_MAX + 1];
    assert(q.end <= n);
    if (q.name[0] != '\0') {
        assert(sb_name_read(name, q.name, strlen(q.name)));
        size_t len = sb_dns_make_query(out, q.id, q.name, q.type);
        assert(len <= sizeof out && sb_dns_read_query(&back, out, len));
        assert(strcmp(back.name, q.name) == 0 && back.type == q.type);
    }
    a = (struct sb_addresses){.n = SB_DNS_ADDRESSES, .ttl = 1};
    assert(sb_dns_make_answer(out, &q, in, &a) <= sizeof out);
}

static void dns_answer(const uint8_t *in, size_t n)
{
    struct sb_question q = {.name = "good.test", .id = 7, .type = SB_DNS_A};
    struct sb_addresses a;
    if (n < 2)
        return;
    q.type = in[0] & 1 ? SB_DNS_A : SB_DNS_AAAA;
    if (sb_dns_read_answer(&a, &q, in + 1, n - 1))
        assert(a.n >= 0 && a.n <= SB_DNS_ADDRESSES);
}

static void policy(const uint8_t *in, size_t n)
{
    static struct sb_policy p;
    struct sb_policy_error e;
    struct sb_addr to = {{0}};
    struct sb_reader fields = {in, in + n};
    static struct sb_inject some;
    if (sb_inject_read(&some, &fields, &e) == 0)
        sb_inject_host(&some, "good.test");
    if (sb_policy_read(&p, &fields, &e) < 0)
        return;
    if (n >= 16)
        memcpy(to.b, in, 16);
    if (sb_policy_denied(&p, &to))
        assert(sb_policy_address(&p, &to) != NULL && sb_policy_resolved(&p, &to) != NULL);
    sb_policy_name(&p, (const char *)in, n < 300 ? n : 300);
    sb_policy_names_own(&p, &to);
}

/* What is shown of a good one has nothing of who logs in, and is else the same. */
static void proxy(const uint8_t *in, size_t n)
{
    static struct sb_upstream u, again;
    char url[SB_UPSTREAM_URL + 1], shown[SB_UPSTREAM_SHOWN];
    if (!sb_upstream_read(&u, (const char *)in, n))
        return;
    assert(u.port > 0 && u.port < 65536 && strlen(u.login) < sizeof u.login);
    assert(n <= SB_UPSTREAM_URL && memchr(in, '\0', n) == NULL);
    memcpy(url, in, n);
    url[n] = '\0';
    sb_upstream_shown(shown, url);
    char *at = strchr(shown, '@');
    if (u.login[0] == '\0') {
        assert(at == NULL && strcmp(shown, url) == 0);
        return;
    }
    assert(at == shown + 17 && !sb_upstream_read(&again, shown, strlen(shown)));
    memmove(shown + 7, at + 1, strlen(at));
    assert(sb_upstream_read(&again, shown, strlen(shown)) && again.login[0] == '\0');
    assert(strcmp(again.name, u.name) == 0 && again.port == u.port);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char name[SB_NAME_MAX + 1];
    if (size < 1)
        return 0;
    /* A copy of just this size: a byte too far is found. */
    uint8_t *in = malloc(size - 1 + (size == 1));
    if (in == NULL)
        return 0;
    memcpy(in, data + 1, size - 1);
    switch (data[0] % 6) {
    case 0:
        head((char *)in, size - 1);
        break;
    case 1:
        if (sb_hello_read(name, in, size - 1) == 1)
            assert(sb_name_read(name, name, strlen(name)));
        break;
    case 2:
        dns(in, size - 1);
        break;
    case 3:
        dns_answer(in, size - 1);
        break;
    case 4:
        proxy(in, size - 1);
        break;
    default:
        policy(in, size - 1);
    }
    free(in);
    return 0;
}
