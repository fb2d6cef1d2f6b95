/* A unix socket of the host that leads to a port of a sandbox, for proxies that want an address.
 *
 * Two lives: the object a Lua state holds, and the listener on the I/O thread. The release
 * between them takes the listener down exactly once: closed, collected, with its port, or at
 * process exit. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "http/core.h"
#include "http/port.h"
#include "http/relay.h"
#include "http/tunnel.h"

#define ACCEPTS 16       /* taken in one turn of the loop */
#define PAUSE 100000000u /* ns without accepting when descriptors have run out */

struct listener {
    struct sb_port *port; /* a reference, until it is down */
    char dir[100], path[108];
    int fd; /* -1 once down */
    uint64_t generation;
    struct sb_source source;
    struct sb_timer resume;
    struct sb_port_user user;   /* told when the port closes */
    struct sb_release *release; /* borrowed: it owns this */
    struct link *links;
};

struct sb_upstream {
    struct sb_object object;
    struct sb_release *release;
    char path[108];
};

/* One connection: being dialled, then relayed. */
struct link {
    struct link *next, **link;
    struct listener *listener;
    int client;               /* -1 once the relay has it */
    struct sb_dial *dial;     /* of a port ... */
    struct sb_tunnel *tunnel; /* ... or an origin */
    struct sb_relay *relay;
};

static void link_free(struct link *link)
{
    *link->link = link->next;
    if (link->next != NULL)
        link->next->link = link->link;
    if (link->client >= 0)
        close(link->client);
    free(link);
}

static void on_relayed(void *arg)
{
    link_free(arg);
}

static void on_dialled(void *arg, int fd, const struct sb_error *err)
{
    struct link *link = arg;
    (void)err; /* the proxy in front sees its connection closed, and answers 502 */
    link->dial = NULL;
    link->tunnel = NULL;
    if (fd >= 0) {
        link->relay = sb_relay_start(link->client, fd, on_relayed, link, NULL);
        link->client = -1;
    }
    if (link->relay == NULL)
        link_free(link);
}

static void take(struct listener *listener, int client)
{
    struct link *link = calloc(1, sizeof *link);
    struct sb_port *port = listener->port;
    if (link != NULL && port->place != NULL)
        link->dial = sb_dial_start(port->place, port->number, 0, on_dialled, link);
    else if (link != NULL)
        link->tunnel = sb_tunnel_start(port, on_dialled, link);
    if (link == NULL || (link->dial == NULL && link->tunnel == NULL)) {
        free(link);
        close(client);
        return;
    }
    link->client = client;
    link->listener = listener;
    link->next = listener->links;
    link->link = &listener->links;
    if (link->next != NULL)
        link->next->link = &link->next;
    listener->links = link;
}

static void on_ready(struct sb_source *source, uint32_t events)
{
    struct listener *listener = SB_OF(source, struct listener, source);
    (void)events;
    for (int i = 0; i < ACCEPTS; i++) {
        int client = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (client >= 0) {
            take(listener, client);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            sb_source_change(source, 0); /* stays readable: would spin */
            sb_timer_set(&listener->resume, sb_now() + PAUSE);
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return;
        }
    }
}

static void on_resume(struct sb_timer *timer)
{
    struct listener *listener = SB_OF(timer, struct listener, resume);
    sb_source_change(&listener->source, EPOLLIN);
}

/* ---- going down ---- */

static void run(struct sb_release *release, void *data)
{
    struct listener *listener = data;
    sb_timer_clear(&listener->resume);
    if (listener->fd >= 0) {
        sb_source_remove(&listener->source);
        close(listener->fd);
        listener->fd = -1;
    }
    if (listener->path[0] != '\0')
        unlink(listener->path);
    if (listener->dir[0] != '\0')
        rmdir(listener->dir);
    while (listener->links != NULL) {
        struct link *link = listener->links;
        if (link->dial != NULL)
            sb_dial_cancel(link->dial);
        if (link->tunnel != NULL)
            sb_tunnel_cancel(link->tunnel);
        if (link->relay != NULL)
            sb_relay_stop(link->relay);
        link_free(link);
    }
    sb_port_leave(&listener->user);
    sb_object_unref(listener->port);
    listener->port = NULL;
    sb_release_finish(release, NULL);
}

static void free_listener(void *data)
{
    struct listener *listener = data;
    /* In a forked child nothing was run: the directory is the parent's, the descriptor already
     * closed. */
    if (listener->port != NULL && listener->generation == sb_generation())
        sb_object_unref(listener->port);
    free(listener);
}

static const struct sb_release_type release_type = {"upstream socket", run, free_listener};

static void on_port_closed(struct sb_port_user *user)
{
    struct listener *listener = SB_OF(user, struct listener, user);
    sb_port_leave(user);
    sb_release_fire(listener->release, NULL);
}

/* ---- coming up ---- */

static void on_start(void *arg)
{
    struct listener *listener = arg;
    struct sb_release *release = listener->release; /* a reference, for this call */
    listener->source = (struct sb_source){listener->fd, EPOLLIN, on_ready};
    listener->resume.fire = on_resume;
    if (sb_port_join(listener->port, &listener->user, on_port_closed) < 0 ||
        sb_source_add(&listener->source, NULL) < 0)
        sb_release_fire(release, NULL);
    sb_release_unref(release);
}

static void destroy(struct sb_object *object)
{
    struct sb_upstream *upstream = (struct sb_upstream *)object;
    sb_upstream_close(upstream);
    sb_release_unref(upstream->release);
    free(upstream);
}

const struct sb_object_type sb_upstream_type = {"upstream", destroy};

/* A private directory with a listening socket in it. */
static int listen_in(struct listener *listener, struct sb_error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char dir[sizeof listener->dir];
    snprintf(dir, sizeof dir, "%s/sandbar-port-XXXXXX", sb_http_tmpdir);
    if (mkdtemp(dir) == NULL) /* 0700 */
        return sb_fail_errno(err, errno, "mkdtemp", "cannot make a directory in %s",
                             sb_http_tmpdir);
    memcpy(listener->dir, dir, sizeof dir);
    snprintf(listener->path, sizeof listener->path, "%s/socket", dir);
    memcpy(address.sun_path, listener->path, sizeof address.sun_path);
    listener->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener->fd < 0)
        return sb_fail_errno(err, errno, "socket", "cannot make a socket");
    if (bind(listener->fd, (struct sockaddr *)&address, sizeof address) < 0 ||
        listen(listener->fd, 511) < 0)
        return sb_fail_errno(err, errno, "bind", "cannot listen on %s", listener->path);
    return 0;
}

struct sb_upstream *sb_upstream_new(struct sb_port *port, struct sb_error *err)
{
    if (port->object.generation != sb_generation()) {
        sb_fail(err, SB_ERR_FORKED, "the port belongs to the parent process");
        return NULL;
    }
    struct sb_upstream *upstream = calloc(1, sizeof *upstream);
    struct listener *listener = calloc(1, sizeof *listener);
    if (upstream == NULL || listener == NULL) {
        free(upstream);
        free(listener);
        sb_fail(err, SB_ERR_INTERNAL, "out of memory");
        return NULL;
    }
    listener->fd = -1;
    listener->generation = sb_generation();
    listener->port = sb_object_ref(port);
    sb_object_init(&upstream->object, &sb_upstream_type);
    /* Before there is anything to release. */
    upstream->release = sb_release_new(&release_type, listener, port->url);
    if (upstream->release == NULL) {
        free_listener(listener);
        free(upstream);
        sb_fail(err, SB_ERR_INTERNAL, "out of memory");
        return NULL;
    }
    listener->release = upstream->release;
    if (listen_in(listener, err) == 0) {
        memcpy(upstream->path, listener->path, sizeof upstream->path);
        sb_release_ref(upstream->release);
        if (sb_loop_post(on_start, listener, err) == 0)
            return upstream;
        sb_release_unref(upstream->release);
    }
    sb_object_unref(upstream);
    return NULL;
}

const char *sb_upstream_path(const struct sb_upstream *upstream)
{
    return upstream->path;
}

void sb_upstream_close(struct sb_upstream *upstream)
{
    if (upstream->object.generation == sb_generation())
        sb_release_fire(upstream->release, NULL);
}
