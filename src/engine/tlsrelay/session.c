/* One connection: TLS with the program, by a certificate of the sandbox's authority; TLS with the server, whom the host
 * must trust; between them one request, whose head is read and written anew. */
#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../proto.h"
#include "../relay/http.h"
#include "../relay/watch.h"
#include "authority.h"
#include "tlsrelay.h"

enum {
    PIECE = 16384,       /* a record's worth */
    WAITING = 4 * PIECE, /* so much may wait to be taken, or to be read */
    PATIENCE_MS = 30000, /* until the request is on its way */
    OUT_SIZE = SB_HEAD_MAX + 64 + SB_INJECT_BYTES,
};

struct side {
    struct sb_watch watch;
    SSL *ssl;
    BIO *in, *out; /* of its TLS; they belong to ssl */
    bool ended;    /* nothing more comes from its socket */
    bool outside;  /* the server's: its bytes are counted */
};

/* Owned by the list; closed by over(). */
struct session {
    struct session *next, **link;
    struct side program, server;
    uint64_t serial;
    int64_t due; /* 0: the request is on its way */
    bool down_ended;
    bool http, unconfirmed; /* as in the relay's connections */
    struct sb_body body;
    size_t head_len;
    char host[SB_NAME_MAX + 1], head[SB_HEAD_MAX];
};

static struct {
    SSL_CTX *serve, *ask;
    struct session *first;
} all;

static char piece[PIECE];

static void over(struct session *s, int how)
{
    sb_tlsrelay_over(s->serial, how);
    sb_watch_timed(-(s->due != 0));
    /* The relay has them open as well: closing alone would not end what is heard of them. */
    sb_watch_mute(&s->program.watch);
    sb_watch_mute(&s->server.watch);
    sb_watch_drop(&s->program.watch);
    sb_watch_drop(&s->server.watch);
    SSL_free(s->program.ssl);
    SSL_free(s->server.ssl);
    *s->link = s->next;
    if (s->next != NULL)
        s->next->link = s->link;
    sb_watch_bury(s);
}

/* ---- one side ---- */

static size_t waiting(const struct side *side)
{
    return BIO_ctrl_pending(side->out);
}

static bool is_full(const struct side *side)
{
    return waiting(side) >= WAITING;
}

/* 0, or -1: it is gone. */
static int flush(struct side *side)
{
    char *at;
    long n;
    while ((n = BIO_get_mem_data(side->out, &at)) > 0) {
        ssize_t done = send(side->watch.fd, at, (size_t)n, MSG_NOSIGNAL);
        if (done < 0)
            return errno == EAGAIN ? 0 : -1;
        if (side->outside)
            sb_tlsrelay_counts->sent += (uint64_t)done;
        for (ssize_t left = done; left > 0;) {
            int took = BIO_read(side->out, piece, left < PIECE ? (int)left : PIECE);
            if (took <= 0)
                return -1;
            left -= took;
        }
    }
    return 0;
}

static int fill(struct side *side)
{
    while (!side->ended && BIO_ctrl_pending(side->in) < WAITING) {
        ssize_t n = recv(side->watch.fd, piece, sizeof piece, 0);
        if (n < 0 && errno == EAGAIN)
            return 0;
        if (n > 0 && side->outside)
            sb_tlsrelay_counts->received += (uint64_t)n;
        if (n <= 0) /* of an error sending tells */
            side->ended = true;
        else if (BIO_write(side->in, piece, (int)n) != n)
            return -1;
    }
    return 0;
}

/* Bytes read; 0: nothing yet; -1: it has ended; -2: it failed. */
static int take(struct side *side)
{
    ERR_clear_error();
    int n = SSL_read(side->ssl, piece, sizeof piece);
    if (n > 0)
        return n;
    switch (SSL_get_error(side->ssl, n)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        return side->ended ? -1 : 0;
    case SSL_ERROR_ZERO_RETURN:
        return -1;
    default:
        return -2;
    }
}

/* To memory: all of it, at once. */
static int give(struct side *side, const char *data, size_t n)
{
    ERR_clear_error();
    return n == 0 || SSL_write(side->ssl, data, (int)n) == (int)n ? 0 : -1;
}

/* 1: done; 0: not yet; -1: failed. */
static int shake(struct side *side)
{
    if (SSL_is_init_finished(side->ssl))
        return 1;
    ERR_clear_error();
    int rc = SSL_do_handshake(side->ssl), why = SSL_get_error(side->ssl, rc);
    if (rc == 1)
        return 1;
    return (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) && !side->ended ? 0 : -1;
}

/* ---- the request ---- */

/* Whether it may go, and then it has gone. 1; 0: more is needed; else why not. */
static int send_head(struct session *s)
{
    static char out[OUT_SIZE];
    struct sb_head h;
    size_t n;
    sb_refusal why;
    int used = sb_head_read(&h, s->head, s->head_len, out, &n);
    if (used == 0 && s->head_len < sizeof s->head)
        return 0;
    /* The name in the request decides at the server, the one of TLS did here. */
    if (used <= 0 || strcmp(h.host, s->host) != 0 || (h.port != 0 && h.port != 443))
        return -SB_OPENED_UNREADABLE;
    const char *rest = s->head + used;
    size_t left = s->head_len - (size_t)used;
    long body = sb_body_eat(&h.body, rest, left);
    if (body < 0 || (h.upgrade && left > 0))
        return -SB_OPENED_UNREADABLE;
    int rc = sb_inject_apply(sb_tlsrelay_inject(), s->host, out, &n, sizeof out, &why);
    if (rc >= 0 && (give(&s->server, out, n) < 0 || give(&s->server, rest, (size_t)body) < 0))
        rc = -2;
    explicit_bzero(out, sizeof out);
    if (rc < 0)
        return rc == -2 ? -SB_OPENED_CUT : -SB_OPENED_REFUSED;
    s->body = h.body;
    s->unconfirmed = h.upgrade;
    s->http = true;
    sb_watch_timed(-1);
    s->due = 0;
    return 1;
}

/* The rest of what the program has to say. 0, or minus how it ends. */
static int carry_up(struct session *s)
{
    while (!s->unconfirmed && !is_full(&s->server)) {
        int n = take(&s->program);
        if (n == 0)
            return 0;
        if (n == -1) /* a request's answer is still to come */
            return s->due == 0 && s->http ? 0 : -SB_OPENED_DONE;
        if (n < 0)
            return -SB_OPENED_PROGRAM;
        if (s->due != 0) {
            if ((size_t)n > sizeof s->head - s->head_len)
                return -SB_OPENED_UNREADABLE;
            memcpy(s->head + s->head_len, piece, (size_t)n);
            s->head_len += (size_t)n;
            n = send_head(s);
            if (n < 0)
                return n;
            continue;
        }
        long mine = s->http ? sb_body_eat(&s->body, piece, (size_t)n) : n;
        if (mine < 0 || give(&s->server, piece, (size_t)mine) < 0)
            return -SB_OPENED_CUT;
    }
    return 0;
}

static int carry_down(struct session *s)
{
    while (!s->down_ended && !is_full(&s->program)) {
        int n = take(&s->server);
        if (n == 0)
            return 0;
        if (n == -2)
            return -SB_OPENED_CUT;
        if (n == -1) {
            s->down_ended = true;
            /* Who ended without a word is passed on as such. */
            if ((SSL_get_shutdown(s->server.ssl) & SSL_RECEIVED_SHUTDOWN) != 0)
                SSL_shutdown(s->program.ssl);
            return 0;
        }
        if (s->unconfirmed) {
            if (n < 12)
                return -SB_OPENED_CUT;
            s->unconfirmed = false;
            s->http = memcmp(piece, "HTTP/1.1 101", 12) != 0;
        }
        if (give(&s->program, piece, (size_t)n) < 0)
            return -SB_OPENED_CUT;
    }
    return 0;
}

static void interest(struct side *side, const struct side *other)
{
    bool hungry = !side->ended && BIO_ctrl_pending(side->in) < WAITING && !is_full(other);
    sb_watch_want(&side->watch, (hungry ? EPOLLIN : 0u) | (waiting(side) > 0 ? EPOLLOUT : 0u));
}

/* As far as it goes. 0, or minus how it ends. */
static int go(struct session *s)
{
    if (fill(&s->program) < 0 || fill(&s->server) < 0)
        return -SB_OPENED_CUT;
    int with_server = shake(&s->server), with_program = shake(&s->program);
    if (flush(&s->server) < 0 || flush(&s->program) < 0)
        return -SB_OPENED_CUT;
    if (with_server < 0)
        return SSL_get_verify_result(s->server.ssl) != X509_V_OK ? -SB_OPENED_UNTRUSTED
                                                                 : -SB_OPENED_SERVER;
    if (with_program < 0)
        return -SB_OPENED_PROGRAM;
    if (with_server == 0 || with_program == 0)
        return 0;
    int rc;
    bool full;
    do {
        rc = carry_up(s);
        if (rc == 0 && s->due == 0)
            rc = carry_down(s);
        full = is_full(&s->program) || is_full(&s->server);
        if (rc == 0 && (flush(&s->server) < 0 || flush(&s->program) < 0))
            rc = -SB_OPENED_CUT;
        /* What was left for want of room has some again, and no event would say so. */
    } while (rc == 0 && full && !is_full(&s->program) && !is_full(&s->server));
    if (rc == 0 && s->down_ended && waiting(&s->program) == 0)
        rc = -SB_OPENED_DONE;
    return rc;
}

static void turn(struct session *s)
{
    int rc = go(s);
    if (rc < 0) {
        over(s, -rc);
        return;
    }
    interest(&s->program, &s->server);
    interest(&s->server, &s->program);
}

static void program_ready(struct sb_watch *w, uint32_t events)
{
    struct session *s = SB_WATCHED(w, struct session, program.watch);
    if ((events & (EPOLLHUP | EPOLLERR)) == 0) {
        turn(s);
        return;
    }
    int rc = go(s); /* its last word may say why */
    over(s, rc < 0 ? -rc : SB_OPENED_CUT);
}

static void server_ready(struct sb_watch *w, uint32_t events)
{
    if ((events & (EPOLLHUP | EPOLLERR)) != 0)
        sb_watch_mute(w); /* it would say so again and again; what it sent is still to be read */
    turn(SB_WATCHED(w, struct session, server.watch));
}

/* ---- beginning ---- */

static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *len,
                           const unsigned char *in, unsigned int n, void *arg)
{
    static const unsigned char http[] = "\x08http/1.1";
    (void)ssl;
    (void)arg;
    for (unsigned int at = 0; at < n && in[at] < n - at; at += 1u + in[at])
        if (in[at] == http[0] && memcmp(in + at + 1, http + 1, http[0]) == 0) {
            *out = in + at + 1;
            *len = in[at];
            return SSL_TLSEXT_ERR_OK;
        }
    return SSL_TLSEXT_ERR_ALERT_FATAL;
}

static SSL_CTX *context(const SSL_METHOD *method)
{
    SSL_CTX *c = SSL_CTX_new(method);
    if (c == NULL || SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION) != 1)
        return NULL;
    SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_options(c, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_mode(c, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_num_tickets(c, 0);
    return c;
}

static void trust(X509_STORE *store, const char *pem)
{
    BIO *b = BIO_new_mem_buf(pem, -1);
    X509 *x;
    while (b != NULL && (x = PEM_read_bio_X509(b, NULL, NULL, NULL)) != NULL) {
        X509_STORE_add_cert(store, x);
        X509_free(x);
    }
    BIO_free(b);
    ERR_clear_error();
}

int sb_session_start(const char *trusted)
{
    static const unsigned char http[] = "\x08http/1.1";
    all.serve = context(TLS_server_method());
    all.ask = context(TLS_client_method());
    if (all.serve == NULL || all.ask == NULL ||
        SSL_CTX_set_alpn_protos(all.ask, http, sizeof http - 1) != 0)
        return -1;
    SSL_CTX_set_alpn_select_cb(all.serve, choose_protocol, NULL);
    SSL_CTX_set_verify(all.ask, SSL_VERIFY_PEER, NULL);
    trust(SSL_CTX_get_cert_store(all.ask), trusted);
    return 0;
}

static bool prepare(struct side *side, SSL_CTX *c)
{
    side->ssl = SSL_new(c);
    side->in = BIO_new(BIO_s_mem());
    side->out = BIO_new(BIO_s_mem());
    if (side->ssl == NULL || side->in == NULL || side->out == NULL) {
        BIO_free(side->in);
        BIO_free(side->out);
        return false;
    }
    BIO_set_mem_eof_return(side->in, -1);
    SSL_set_bio(side->ssl, side->in, side->out);
    return true;
}

static bool begin(struct session *s, const void *hello, size_t n)
{
    if (!prepare(&s->program, all.serve) || !prepare(&s->server, all.ask))
        return false;
    s->server.outside = true;
    SSL_set_accept_state(s->program.ssl);
    SSL_set_connect_state(s->server.ssl);
    SSL_set_hostflags(s->server.ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return sb_authority_serve(s->program.ssl, s->host) &&
           SSL_set_tlsext_host_name(s->server.ssl, s->host) == 1 &&
           SSL_set1_host(s->server.ssl, s->host) == 1 &&
           BIO_write(s->program.in, hello, (int)n) == (int)n;
}

void sb_session_open(uint64_t serial, const char *host, const int fd[2], const void *hello,
                     size_t n)
{
    struct session *s = calloc(1, sizeof *s);
    if (s == NULL) {
        close(fd[0]);
        close(fd[1]);
        sb_tlsrelay_over(serial, SB_OPENED_CUT);
        return;
    }
    s->serial = serial;
    memcpy(s->host, host, strlen(host) + 1);
    s->due = sb_watch_now() + PATIENCE_MS;
    sb_watch_timed(1);
    s->next = all.first;
    s->link = &all.first;
    if (s->next != NULL)
        s->next->link = &s->next;
    all.first = s;
    s->program.watch.fd = s->server.watch.fd = -1;
    if (sb_watch_add(&s->program.watch, fd[0], 0, program_ready) < 0)
        close(fd[1]);
    else if (sb_watch_add(&s->server.watch, fd[1], 0, server_ready) == 0 && begin(s, hello, n)) {
        turn(s);
        return;
    }
    over(s, SB_OPENED_CUT);
}

void sb_session_tick(int64_t now)
{
    for (struct session *s = all.first, *next; s != NULL; s = next) {
        next = s->next;
        if (s->due != 0 && s->due <= now)
            over(s, SB_OPENED_UNREADABLE);
    }
}
