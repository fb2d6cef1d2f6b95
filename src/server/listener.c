/* Where clients connect, and where their requests wait to be accepted. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <openssl/ssl.h>

#include "server/peer.h"
#include "server/tls.h"

#define ACCEPTS 16       /* taken in one turn of the loop */
#define PAUSE 100000000u /* ns without accepting when descriptors have run out */
#define BACKLOG 511

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_un un;
};

/* Somebody who accepts, or waits for the last connection to go. */
struct waiter {
    struct waiter *next;
    struct sb_listener *listener; /* a reference */
    struct sb_op *op;
    int drains;
};

/* The file of a unix socket, until it is released. */
struct file {
    char path[108];
    dev_t dev;
    ino_t ino;
};

struct sb_listener {
    struct sb_object object;
    char address[108];
    uint16_t port;
    struct sb_listener_limits limits;
    struct sb_handshakes handshakes; /* [io] */
    unsigned max_connections;
    struct sb_release *release; /* of the file, NULL: none */
    SSL_CTX *context;           /* NULL: plain */
    /* [io] */
    int fd; /* -1 once closed */
    int closed;
    struct sb_source source; /* while open it holds a reference */
    struct sb_timer resume;
    struct sb_peer *peers;
    unsigned count;
    struct sb_exchange *first, **last; /* not accepted yet */
    struct waiter *waiters;
};

const struct sb_listener_limits *sb_listener_limits(const struct sb_listener *listener)
{
    return &listener->limits;
}

SSL_CTX *sb_listener_context(const struct sb_listener *listener)
{
    return listener->context;
}

struct sb_handshakes *sb_listener_handshakes(struct sb_listener *listener)
{
    return &listener->handshakes;
}

int sb_listener_is_closed(const struct sb_listener *listener)
{
    return listener->closed;
}

const char *sb_listener_address(const struct sb_listener *listener)
{
    return listener->address;
}

uint16_t sb_listener_port(const struct sb_listener *listener)
{
    return listener->port;
}

/* ---- who waits ---- */

static void end_waiter(struct waiter *waiter, struct sb_exchange *exchange,
                       const struct sb_error *err)
{
    struct waiter **at = &waiter->listener->waiters;
    while (*at != waiter)
        at = &(*at)->next;
    *at = waiter->next;
    if (exchange != NULL)
        sb_op_result(waiter->op)->object = &exchange->object;
    if (err != NULL)
        sb_op_fail(waiter->op, err);
    else
        sb_op_complete(waiter->op);
    sb_object_unref(waiter->listener);
    free(waiter);
}

/* The one who has waited longest. */
static struct waiter *find_waiter(struct sb_listener *listener, int drains)
{
    struct waiter *found = NULL;
    for (struct waiter *at = listener->waiters; at != NULL; at = at->next)
        if (at->drains == drains)
            found = at;
    return found;
}

static void on_waiter_cancelled(struct sb_op *op, void *owner)
{
    struct sb_error err = {.kind = SB_ERR_CANCELLED, .message = "cancelled"};
    (void)op;
    end_waiter(owner, NULL, &err);
}

static void closed_error(struct sb_error *err)
{
    *err = (struct sb_error){0};
    sb_fail(err, SB_ERR_CLOSED, "the listener is closed");
}

static void settle(struct sb_listener *listener)
{
    struct waiter *waiter;
    struct sb_error err;
    while (listener->first != NULL && (waiter = find_waiter(listener, 0)) != NULL) {
        struct sb_exchange *exchange = listener->first;
        listener->first = exchange->next;
        if (listener->first == NULL)
            listener->last = &listener->first;
        end_waiter(waiter, exchange, NULL);
    }
    closed_error(&err);
    while (listener->closed && (waiter = find_waiter(listener, 0)) != NULL)
        end_waiter(waiter, NULL, &err);
    while (listener->count == 0 && (waiter = find_waiter(listener, 1)) != NULL)
        end_waiter(waiter, NULL, NULL);
}

static void on_wait(void *arg)
{
    struct waiter *waiter = arg;
    struct sb_listener *listener = sb_object_ref(waiter->listener);
    waiter->next = listener->waiters;
    listener->waiters = waiter;
    settle(listener);
    sb_object_unref(listener);
}

static struct sb_op *wait_for(struct sb_listener *listener, struct sb_mailbox *mailbox, int drains)
{
    struct sb_error err = {0};
    struct waiter *waiter = calloc(1, sizeof *waiter);
    struct sb_op *op = waiter != NULL ? sb_op_new(mailbox, on_waiter_cancelled, waiter) : NULL;
    if (op == NULL) {
        free(waiter);
        return NULL;
    }
    *waiter = (struct waiter){NULL, sb_object_ref(listener), op, drains};
    if (listener->object.generation != sb_generation())
        sb_fail(&err, SB_ERR_FORKED, "the listener belongs to the parent process");
    else if (sb_loop_post(on_wait, waiter, &err) == 0)
        return op;
    sb_object_unref(listener);
    free(waiter);
    return sb_http_refuse(op, &err);
}

struct sb_op *sb_listener_accept(struct sb_listener *listener, struct sb_mailbox *mailbox)
{
    return wait_for(listener, mailbox, 0);
}

struct sb_op *sb_listener_drain(struct sb_listener *listener, struct sb_mailbox *mailbox)
{
    return wait_for(listener, mailbox, 1);
}

void sb_listener_deliver(struct sb_listener *listener, struct sb_exchange *exchange)
{
    exchange->next = NULL;
    *listener->last = exchange;
    listener->last = &exchange->next;
    settle(listener);
}

/* ---- connections ---- */

void sb_listener_joined(struct sb_listener *listener, struct sb_peer *peer)
{
    listener->count++;
    peer->next = listener->peers;
    peer->link = &listener->peers;
    if (peer->next != NULL)
        peer->next->link = &peer->next;
    listener->peers = peer;
}

void sb_listener_left(struct sb_listener *listener, struct sb_peer *peer)
{
    listener->count--;
    *peer->link = peer->next;
    if (peer->next != NULL)
        peer->next->link = peer->link;
    if (listener->fd >= 0 && !listener->resume.set && listener->source.events == 0)
        sb_source_change(&listener->source, EPOLLIN);
    settle(listener);
}

/* One of those that nobody has asked anything of for a while goes. 0: there is none. */
static int make_room(struct sb_listener *listener)
{
    struct sb_peer *oldest = NULL;
    for (struct sb_peer *peer = listener->peers; peer != NULL; peer = peer->next)
        if (peer->served > 0 && sb_peer_is_idle(peer) &&
            (oldest == NULL || peer->since < oldest->since))
            oldest = peer;
    if (oldest != NULL)
        sb_peer_end(oldest, 0, NULL);
    return oldest != NULL;
}

static void name_of(const union address *from, char *name, size_t size)
{
    char text[INET6_ADDRSTRLEN] = "";
    if (from->any.sa_family == AF_INET) {
        inet_ntop(AF_INET, &from->v4.sin_addr, text, sizeof text);
        snprintf(name, size, "%s:%u", text, (unsigned)ntohs(from->v4.sin_port));
    } else if (from->any.sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &from->v6.sin6_addr, text, sizeof text);
        snprintf(name, size, "[%s]:%u", text, (unsigned)ntohs(from->v6.sin6_port));
    } else {
        snprintf(name, size, "unix");
    }
}

/* 1: there may be more. */
static int accept_one(struct sb_listener *listener)
{
    union address from = {0};
    socklen_t len = sizeof from;
    char name[64];
    int one = 1, fd = accept4(listener->fd, &from.any, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        if (from.any.sa_family != AF_UNIX)
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        name_of(&from, name, sizeof name);
        sb_peer_start(listener, fd, name);
        return 1;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        if (errno == EMFILE && make_room(listener))
            return 1;
        sb_source_change(&listener->source, 0); /* it stays readable: would spin */
        sb_timer_set(&listener->resume, sb_now() + PAUSE);
        return 0;
    }
    return errno != EAGAIN; /* others are of the one connection only */
}

static void on_ready(struct sb_source *source, uint32_t events)
{
    struct sb_listener *listener = SB_OF(source, struct sb_listener, source);
    (void)events;
    for (int i = 0; i < ACCEPTS; i++) {
        if (listener->count >= listener->max_connections && !make_room(listener)) {
            sb_source_change(source, 0);
            return;
        }
        if (!accept_one(listener))
            return;
    }
}

static void on_resume(struct sb_timer *timer)
{
    struct sb_listener *listener = SB_OF(timer, struct sb_listener, resume);
    sb_source_change(&listener->source, EPOLLIN);
}

/* ---- going down ---- */

static void remove_file(struct sb_release *release, void *data)
{
    struct file *file = data;
    struct stat st;
    if (lstat(file->path, &st) == 0 && st.st_dev == file->dev && st.st_ino == file->ino)
        unlink(file->path);
    sb_release_finish(release, NULL);
}

static const struct sb_release_type file_type = {"listening socket", remove_file, free};

static void on_close(void *arg)
{
    struct sb_listener *listener = arg; /* a reference */
    if (!listener->closed) {
        listener->closed = 1;
        sb_timer_clear(&listener->resume);
        if (listener->fd >= 0) {
            sb_source_remove(&listener->source);
            close(listener->fd);
            listener->fd = -1;
        }
        if (listener->release != NULL)
            sb_release_fire(listener->release, NULL);
        while (listener->first != NULL) {
            struct sb_exchange *exchange = listener->first;
            struct sb_peer *peer = sb_peer_ref(exchange->peer);
            listener->first = exchange->next;
            if (peer->current == exchange) {
                peer->current = NULL;
                sb_peer_refuse(peer, 503, "the server is closing");
                sb_peer_turn(peer);
            }
            sb_object_unref(exchange);
            sb_peer_unref(peer);
        }
        listener->last = &listener->first;
        for (struct sb_peer *peer = listener->peers, *next; peer != NULL; peer = next) {
            next = peer->next; /* ending one ends no other */
            if (sb_peer_is_idle(peer))
                sb_peer_end(peer, 0, NULL);
        }
        settle(listener);
        sb_object_unref(listener); /* the source's */
    }
    sb_object_unref(listener);
}

static void on_cut(void *arg)
{
    struct sb_listener *listener = sb_object_ref(arg);
    on_close(arg);
    while (listener->peers != NULL)
        sb_peer_end(listener->peers, 1, NULL);
    sb_object_unref(listener);
}

static void post(struct sb_listener *listener, void (*fn)(void *arg))
{
    if (listener->object.generation == sb_generation() &&
        sb_loop_post(fn, sb_object_ref(listener), NULL) < 0)
        sb_object_unref(listener);
}

void sb_listener_close(struct sb_listener *listener)
{
    post(listener, on_close);
}

void sb_listener_cut(struct sb_listener *listener)
{
    post(listener, on_cut);
}

static void destroy(struct sb_object *object)
{
    struct sb_listener *listener = (struct sb_listener *)object;
    sb_release_unref(listener->release);
    if (listener->fd >= 0 && object->generation == sb_generation())
        close(listener->fd);
    if (object->generation == sb_generation())
        SSL_CTX_free(listener->context);
    free(listener);
}

const struct sb_object_type sb_listener_type = {"listener", destroy};

/* ---- coming up ---- */

static void on_start(void *arg)
{
    struct sb_listener *listener = arg; /* a reference, from now on the source's */
    listener->source = (struct sb_source){listener->fd, EPOLLIN, on_ready};
    listener->resume.fire = on_resume;
    if (sb_source_add(&listener->source, NULL) < 0)
        on_close(sb_object_ref(listener));
}

static int parse(const struct sb_server_options *options, union address *address, socklen_t *len,
                 struct sb_error *err)
{
    *address = (union address){0};
    if (options->path != NULL) {
        if (options->path[0] == '\0' || strlen(options->path) >= sizeof address->un.sun_path)
            return sb_fail(err, SB_ERR_INVALID_ARGUMENT, "path: empty, or longer than %zu bytes",
                           sizeof address->un.sun_path - 1);
        address->un.sun_family = AF_UNIX;
        memcpy(address->un.sun_path, options->path, strlen(options->path));
        *len = sizeof address->un;
    } else if (inet_pton(AF_INET, options->address, &address->v4.sin_addr) == 1) {
        address->v4.sin_family = AF_INET;
        address->v4.sin_port = htons(options->port);
        *len = sizeof address->v4;
    } else if (inet_pton(AF_INET6, options->address, &address->v6.sin6_addr) == 1) {
        address->v6.sin6_family = AF_INET6;
        address->v6.sin6_port = htons(options->port);
        *len = sizeof address->v6;
    } else {
        return sb_fail(err, SB_ERR_INVALID_ARGUMENT, "address: %s is no IP address",
                       options->address);
    }
    return 0;
}

/* A socket file that nobody listens on was left by a process that was killed. */
static int bind_file(int fd, const union address *address, socklen_t len)
{
    if (bind(fd, &address->any, len) == 0)
        return 0;
    struct stat st;
    int sys = errno, probe;
    if (sys != EADDRINUSE || lstat(address->un.sun_path, &st) < 0 || !S_ISSOCK(st.st_mode))
        return -1;
    probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int dead = probe >= 0 && connect(probe, &address->any, len) < 0 && errno == ECONNREFUSED;
    if (probe >= 0)
        close(probe);
    if (dead && unlink(address->un.sun_path) == 0)
        return bind(fd, &address->any, len);
    errno = sys;
    return -1;
}

/* Its file goes with it, at the process's exit, too. */
static int own_file(struct sb_listener *listener, const char *path, struct sb_error *err)
{
    struct stat st;
    struct file *file = calloc(1, sizeof *file);
    if (file == NULL) {
        unlink(path);
        return sb_fail_errno(err, ENOMEM, "memory", "out of memory");
    }
    snprintf(file->path, sizeof file->path, "%s", path);
    int known = lstat(path, &st) == 0;
    file->dev = known ? st.st_dev : 0;
    file->ino = known ? st.st_ino : 0;
    listener->release = sb_release_new(&file_type, file, path);
    if (listener->release == NULL) {
        free(file);
        unlink(path);
        return sb_fail_errno(err, ENOMEM, "memory", "out of memory");
    }
    if (chmod(path, 0600) < 0) /* before anybody can be let in */
        return sb_fail_errno(err, errno, "chmod", "cannot listen on %s", path);
    return 0;
}

static int open_up(struct sb_listener *listener, const struct sb_server_options *options,
                   struct sb_error *err)
{
    union address address;
    socklen_t len = 0;
    int one = 1, rc = parse(options, &address, &len, err);
    if (rc < 0)
        return rc;
    const char *where = options->path != NULL ? options->path : options->address;
    char port[16] = "";
    if (options->path == NULL)
        snprintf(port, sizeof port, " port %u", (unsigned)options->port);
    listener->fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener->fd < 0)
        return sb_fail_errno(err, errno, "socket", "cannot make a socket");
    if (options->path == NULL)
        setsockopt(listener->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    rc = options->path != NULL ? bind_file(listener->fd, &address, len)
                               : bind(listener->fd, &address.any, len);
    if (rc < 0)
        return sb_fail_errno(err, errno, "bind", "cannot listen on %s%s", where, port);
    if (options->path != NULL && (rc = own_file(listener, options->path, err)) < 0)
        return rc;
    if (listen(listener->fd, BACKLOG) < 0)
        return sb_fail_errno(err, errno, "listen", "cannot listen on %s%s", where, port);
    if (getsockname(listener->fd, &address.any, &len) < 0)
        return sb_fail_errno(err, errno, "getsockname", "cannot listen on %s%s", where, port);
    snprintf(listener->address, sizeof listener->address, "%s", where);
    if (options->path == NULL)
        listener->port =
            ntohs(address.any.sa_family == AF_INET ? address.v4.sin_port : address.v6.sin6_port);
    return 0;
}

struct sb_listener *sb_listener_new(const struct sb_server_options *options, struct sb_error *err)
{
    struct sb_listener *listener = calloc(1, sizeof *listener);
    if (listener == NULL) {
        sb_fail_errno(err, ENOMEM, "memory", "out of memory");
        return NULL;
    }
    sb_object_init(&listener->object, &sb_listener_type);
    listener->fd = -1;
    listener->last = &listener->first;
    sb_handshakes_init(&listener->handshakes);
    listener->max_connections = options->max_connections;
    listener->limits = (struct sb_listener_limits){options->header_limit,  options->header_timeout,
                                                   options->idle_timeout,  options->body_timeout,
                                                   options->write_timeout, options->stream_timeout,
                                                   options->tunnel_timeout};
    if (options->tls_cert != NULL)
        listener->context = sb_tls_new(options->tls_cert, options->tls_key, err);
    if ((options->tls_cert == NULL || listener->context != NULL) &&
        open_up(listener, options, err) == 0) {
        sb_object_ref(listener);
        if (sb_loop_post(on_start, listener, err) == 0)
            return listener;
        sb_object_unref(listener);
    }
    if (listener->release != NULL)
        sb_release_fire(listener->release, NULL);
    sb_object_unref(listener);
    return NULL;
}
