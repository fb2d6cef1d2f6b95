/* A client's connection as bytes. */
#include "server/wire.h"

#include <errno.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

static ssize_t plain_read(int fd, void *buf, size_t len)
{
    ssize_t n;
    do
        n = recv(fd, buf, len, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n;
}

static ssize_t plain_write(int fd, const void *buf, size_t len)
{
    ssize_t n;
    do
        n = send(fd, buf, len, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n;
}

/* ---- the socket as OpenSSL sees it: its own kind would raise SIGPIPE ---- */

static int bio_fd(BIO *bio)
{
    const struct sb_wire *wire = BIO_get_data(bio);
    return wire->fd;
}

static int bio_read(BIO *bio, char *buf, int len)
{
    ssize_t n = plain_read(bio_fd(bio), buf, (size_t)len);
    BIO_clear_retry_flags(bio);
    if (n < 0 && errno == EAGAIN)
        BIO_set_retry_read(bio);
    return (int)n;
}

static int bio_write(BIO *bio, const char *buf, int len)
{
    ssize_t n = plain_write(bio_fd(bio), buf, (size_t)len);
    BIO_clear_retry_flags(bio);
    if (n < 0 && errno == EAGAIN)
        BIO_set_retry_write(bio);
    return (int)n;
}

static long bio_control(BIO *bio, int what, long number, void *pointer)
{
    (void)bio, (void)number, (void)pointer;
    return what == BIO_CTRL_FLUSH;
}

static BIO *new_bio(struct sb_wire *wire)
{
    static BIO_METHOD *method; /* the I/O thread's; lives as long as the process */
    if (method == NULL) {
        BIO_METHOD *made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "sandbar");
        if (made == NULL)
            return NULL;
        BIO_meth_set_read(made, bio_read);
        BIO_meth_set_write(made, bio_write);
        BIO_meth_set_ctrl(made, bio_control);
        method = made;
    }
    BIO *bio = BIO_new(method);
    if (bio != NULL) {
        BIO_set_data(bio, wire);
        BIO_set_init(bio, 1);
    }
    return bio;
}

int sb_wire_open(struct sb_wire *wire, int fd, SSL_CTX *context)
{
    *wire = (struct sb_wire){.fd = fd};
    if (context == NULL)
        return 0;
    SSL *tls = SSL_new(context);
    BIO *bio = tls != NULL ? new_bio(wire) : NULL;
    if (bio == NULL) {
        SSL_free(tls);
        ERR_clear_error();
        return -1;
    }
    SSL_set_bio(tls, bio, bio);
    SSL_set_accept_state(tls);
    wire->tls = tls;
    return 0;
}

/* ---- reading, writing ---- */

/* What a call that got nothing means. */
static ssize_t outcome(struct sb_wire *wire, int rc, int *wants_other, int other)
{
    int sys = errno, why = SSL_get_error(wire->tls, rc);
    ERR_clear_error(); /* the thread's queue is shared with the program's own use of OpenSSL */
    *wants_other = why == other;
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) {
        errno = EAGAIN;
        return -1;
    }
    if (why == SSL_ERROR_ZERO_RETURN)
        return 0;
    errno = why == SSL_ERROR_SYSCALL && sys != 0 && sys != EAGAIN ? sys : EPROTO;
    return -1;
}

ssize_t sb_wire_read(struct sb_wire *wire, void *buf, size_t len)
{
    if (wire->tls == NULL)
        return plain_read(wire->fd, buf, len);
    ERR_clear_error();
    errno = 0;
    int n = SSL_read(wire->tls, buf, len < INT_MAX ? (int)len : INT_MAX);
    wire->reading_wants_room = 0;
    return n > 0 ? n : outcome(wire, n, &wire->reading_wants_room, SSL_ERROR_WANT_WRITE);
}

ssize_t sb_wire_write(struct sb_wire *wire, const void *buf, size_t len)
{
    if (wire->tls == NULL)
        return plain_write(wire->fd, buf, len);
    ERR_clear_error();
    errno = 0;
    int n = SSL_write(wire->tls, buf, len < INT_MAX ? (int)len : INT_MAX);
    wire->writing_wants_input = 0;
    return n > 0 ? n : outcome(wire, n, &wire->writing_wants_input, SSL_ERROR_WANT_READ);
}

int sb_wire_is_shaking(const struct sb_wire *wire)
{
    return wire->tls != NULL && !SSL_is_init_finished(wire->tls);
}

void sb_wire_shut(struct sb_wire *wire)
{
    if (wire->tls != NULL && SSL_is_init_finished(wire->tls)) {
        ERR_clear_error();
        SSL_shutdown(wire->tls);
        ERR_clear_error();
    }
    shutdown(wire->fd, SHUT_WR);
}

void sb_wire_close(struct sb_wire *wire, int reset)
{
    struct linger now = {1, 0};
    if (reset)
        setsockopt(wire->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    SSL_free(wire->tls);
    close(wire->fd);
    *wire = (struct sb_wire){.fd = -1};
}
