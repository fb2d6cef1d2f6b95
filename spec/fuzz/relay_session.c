/* The relay's second process: what the program inside and the server outside say inside TLS, and, if the first byte asks for
 * it, in place of TLS. Whatever it is, the server gets one request at most, which is for the name of the TLS and has the
 * secret once. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/relay/http.c"
#include "engine/relay/inject.c"
#include "engine/relay/policy.c"
#include "engine/relay/upstream_url.c"
#include "engine/relay/watch.c"
#define fill fill_certificate
#include "engine/tlsrelay/authority.c"
#undef fill
#include "engine/tlsrelay/session.c"

#define HOST "tls.test"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct sb_relay_counts counts;
struct sb_relay_counts *sb_tlsrelay_counts = &counts;
static struct sb_inject some;
static int ended; /* how, or -1 */

const struct sb_inject *sb_tlsrelay_inject(void)
{
    return &some;
}

void sb_tlsrelay_over(uint64_t serial, int how)
{
    assert(serial == 7 && ended < 0 && how >= 0);
    ended = how;
}

/* ---- the world ---- */

static SSL_CTX *client, *server;

static void make_rules(void)
{
    static const char *const entry[] = {"h" HOST, "sX-Secret:s3cr3t"};
    unsigned char buf[256];
    struct sb_packer p;
    struct sb_msg msg;
    struct sb_reader fields;
    struct sb_policy_error e;
    sb_pack_begin(&p, buf, sizeof buf, SB_R_POLICY, 0, 0);
    for (size_t i = 0; i < sizeof entry / sizeof *entry; i++)
        sb_pack_str(&p, SB_F_NET_INJECT, entry[i]);
    sb_read_begin(&fields, &msg, buf, p.len);
    assert(sb_inject_read(&some, &fields, &e) == 0);
}

static void make_authority(void)
{
    static char cert[4096], key[4096];
    EVP_PKEY *k = EVP_EC_gen("P-256");
    X509 *x = X509_new();
    BIO *c = BIO_new(BIO_s_mem()), *s = BIO_new(BIO_s_mem());
    assert(X509_set_version(x, 2) == 1 && X509_set_pubkey(x, k) == 1);
    ASN1_INTEGER_set_uint64(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), -DAY);
    X509_gmtime_adj(X509_getm_notAfter(x), VALID_FOR);
    X509_NAME_add_entry_by_NID(X509_get_subject_name(x), NID_commonName, MBSTRING_ASC,
                               (const unsigned char *)"fuzz", -1, -1, 0);
    X509_set_issuer_name(x, X509_get_subject_name(x));
    authority.cert = x; /* for its extensions */
    assert(add(x, NID_basic_constraints, "critical,CA:TRUE") &&
           add(x, NID_subject_key_identifier, "hash") && X509_sign(x, k, EVP_sha256()) > 0);
    assert(PEM_write_bio_X509(c, x) == 1 &&
           PEM_write_bio_PrivateKey(s, k, NULL, NULL, 0, NULL, NULL) == 1);
    assert(BIO_read(c, cert, sizeof cert - 1) > 0 && BIO_read(s, key, sizeof key - 1) > 0);
    BIO_free(c);
    BIO_free(s);
    EVP_PKEY_free(k);
    assert(sb_authority_set(cert, key));
    assert(sb_session_start(cert) == 0);
}

static void make_world(void)
{
    if (client != NULL)
        return;
    assert(sb_watch_open() == 0);
    make_rules();
    make_authority();
    client = SSL_CTX_new(TLS_client_method());
    server = SSL_CTX_new(TLS_server_method());
    assert(client != NULL && server != NULL);
}

/* One of the world's sides: its TLS in memory, and what it has got by it. */
struct peer {
    int fd;
    SSL *ssl;
    BIO *in, *out;
    char got[1 << 17];
    size_t n;
};

static void open_peer(struct peer *p, SSL_CTX *c, int fd)
{
    p->fd = fd;
    p->n = 0;
    p->ssl = SSL_new(c);
    p->in = BIO_new(BIO_s_mem());
    p->out = BIO_new(BIO_s_mem());
    assert(p->ssl != NULL && p->in != NULL && p->out != NULL);
    SSL_set_bio(p->ssl, p->in, p->out);
}

/* Between its TLS and its socket. */
static void move(struct peer *p)
{
    char *at, buf[16384];
    ssize_t n;
    while ((n = recv(p->fd, buf, sizeof buf, MSG_DONTWAIT)) > 0)
        BIO_write(p->in, buf, (int)n);
    if (!SSL_is_init_finished(p->ssl))
        SSL_do_handshake(p->ssl);
    while (p->n < sizeof p->got &&
           (n = SSL_read(p->ssl, p->got + p->n, (int)(sizeof p->got - p->n))) > 0)
        p->n += (size_t)n;
    n = (ssize_t)BIO_get_mem_data(p->out, &at);
    if (n > 0 && (n = send(p->fd, at, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL)) > 0)
        for (ssize_t left = n; left > 0;)
            left -= BIO_read(p->out, buf, left < (ssize_t)sizeof buf ? (int)left : (int)sizeof buf);
    ERR_clear_error();
}

static struct peer program, world;

static void rounds(int n)
{
    while (n-- > 0) {
        move(&program);
        move(&world);
        if (ended < 0)
            turn(all.first);
    }
}

/* One request, and what it says of itself; or the bytes that a WebSocket has, behind one. */
static void check(void)
{
    static char again[SB_HEAD_MAX + 128];
    struct sb_head h;
    size_t len;
    int times = 0;
    if (world.n == 0)
        return;
    int used = sb_head_read(&h, world.got, world.n, again, &len);
    assert(used > 0 && strcmp(h.host, HOST) == 0 && (h.port == 0 || h.port == 443));
    char *head = strndup(world.got, (size_t)used);
    for (char *at = head; (at = strcasestr(at, "\nx-secret:")) != NULL; at++)
        times++;
    assert(times == 1 && strcasestr(head, "\nx_secret:") == NULL);
    free(head);
    long body = sb_body_eat(&h.body, world.got + used, world.n - (size_t)used);
    /* What is damaged is cut, and has maybe begun. */
    assert(h.upgrade || body < 0 || (size_t)used + (size_t)body == world.n);
}

static void say(struct peer *p, bool plain, const uint8_t *in, size_t n)
{
    if (plain)
        (void)!send(p->fd, in, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    else if (n > 0)
        SSL_write(p->ssl, in, (int)n);
    ERR_clear_error();
}

/* The first byte: bit 0, the program speaks no TLS at first; bit 1, the server does not later on. The second: how much of the rest
 * is the program's, in 256ths; which is said in two pieces. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int in[2], out[2];
    char hello[4096];
    if (size < 2 || size > 60000)
        return 0;
    make_world();
    const uint8_t how = data[0];
    const size_t rest = size - 2, mine = rest * data[1] / 256, half = mine / 2;
    data += 2;
    assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, in) == 0);
    assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, out) == 0);
    open_peer(&program, client, in[1]);
    open_peer(&world, server, out[1]);
    assert(sb_authority_serve(world.ssl, HOST));
    SSL_set_accept_state(world.ssl);
    SSL_set_connect_state(program.ssl);
    SSL_set_tlsext_host_name(program.ssl, HOST);
    SSL_do_handshake(program.ssl);
    int n = BIO_read(program.out, hello, sizeof hello);
    ended = -1;
    const int fd[2] = {in[0], out[0]};
    if ((how & 1) != 0)
        sb_session_open(7, HOST, fd, data, half);
    else
        sb_session_open(7, HOST, fd, hello, (size_t)n);
    rounds(6);
    assert((how & 1) != 0 || (ended < 0 && SSL_is_init_finished(program.ssl)));
    say(&program, (how & 1) != 0, data, half);
    rounds(2);
    say(&program, (how & 1) != 0, data + half, mine - half);
    rounds(2);
    say(&world, (how & 2) != 0, data + mine, rest - mine);
    rounds(2);
    say(&program, false, data, half);
    rounds(2);
    check();
    shutdown(program.fd, SHUT_WR);
    shutdown(world.fd, SHUT_WR);
    rounds(4);
    check();
    if (ended < 0)
        over(all.first, SB_OPENED_CUT);
    assert(all.first == NULL);
    fill_graves();
    loop.timed = 0;
    SSL_free(program.ssl);
    SSL_free(world.ssl);
    close(in[1]);
    close(out[1]);
    return 0;
}
