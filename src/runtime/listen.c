/* Sockets for hosts that can connect to a path but not poll a descriptor: the second wake channel
 * of a mailbox, and what leash.c needs.
 *
 * A 0700 directory with a listening socket; the first connection from this very process is kept,
 * listener and directory go away. Nobody connects: they go away after half a minute. The listener
 * belongs to the I/O thread. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "internal.h"
#include "listen.h"

#define PATIENCE 30000000000u /* ns */

struct listener {
    struct listener *next, **link; /* of those that are watched */
    struct sb_source source;
    struct sb_timer timer;
    struct sb_post post;
    void (*accepted)(void *arg, int fd);
    void *arg;
    char dir[80];
    char path[96];
};

static struct listener *watched; /* the I/O thread's */

/* What it was for is told apart from it: by stop, or by the caller of sb_listen. */
static void discard(struct listener *l)
{
    if (l->source.fd >= 0)
        close(l->source.fd);
    if (l->path[0] != '\0')
        unlink(l->path);
    if (l->dir[0] != '\0')
        rmdir(l->dir);
    free(l);
}

/* Ends it with the connection, or with -1 when nobody came. */
static void stop(struct listener *l, int fd)
{
    void (*accepted)(void *arg, int fd) = l->accepted;
    void *arg = l->arg;
    *l->link = l->next;
    if (l->next != NULL)
        l->next->link = l->link;
    sb_timer_clear(&l->timer);
    sb_source_remove(&l->source);
    discard(l);
    accepted(arg, fd);
}

void sb_listen_end(void)
{
    while (watched != NULL)
        stop(watched, -1);
}

void sb_listen_forget(void)
{
    watched = NULL;
}

static void give_up(struct sb_timer *timer)
{
    stop(sb_container(timer, struct listener, timer), -1);
}

static void accept_one(struct sb_source *source, uint32_t events)
{
    struct listener *l = sb_container(source, struct listener, source);
    struct ucred peer;
    socklen_t len = sizeof peer;
    (void)events;
    int fd = accept4(source->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0 || peer.pid != getpid()) {
        close(fd);
        return;
    }
    stop(l, fd);
}

static void begin(struct sb_post *post)
{
    struct listener *l = sb_container(post, struct listener, post);
    if (sb_source_add(&l->source, NULL) != 0) {
        void (*accepted)(void *arg, int fd) = l->accepted;
        void *arg = l->arg;
        discard(l);
        accepted(arg, -1);
        return;
    }
    sb_timer_set(&l->timer, sb_now() + PATIENCE);
    l->next = watched;
    l->link = &watched;
    if (watched != NULL)
        watched->link = &l->next;
    watched = l;
}

static int open_listener(struct listener *l, struct sb_error *err)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    const char *const roots[] = {sb_tmpdir, "/tmp", "/var/tmp"};
    for (size_t i = 0; i < sizeof roots / sizeof *roots && l->dir[0] == '\0'; i++) {
        snprintf(l->dir, sizeof l->dir, "%s/sandbar-XXXXXX", roots[i]);
        if (mkdtemp(l->dir) == NULL)
            l->dir[0] = '\0';
    }
    if (l->dir[0] == '\0')
        return sb_fail_errno(err, errno, "wake socket",
                             "cannot make a directory for the wake socket");
    snprintf(l->path, sizeof l->path, "%s/wake", l->dir);
    memcpy(addr.sun_path, l->path, strlen(l->path) + 1);
    l->source.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->source.fd < 0 || bind(l->source.fd, (struct sockaddr *)&addr, sizeof addr) < 0 ||
        listen(l->source.fd, 4) < 0)
        return sb_fail_errno(err, errno, "wake socket", "cannot listen on the wake socket");
    return 0;
}

char *sb_listen(void (*accepted)(void *arg, int fd), void *arg, struct sb_error *err)
{
    struct listener *l = calloc(1, sizeof *l);
    if (l == NULL) {
        sb_fail_errno(err, ENOMEM, "wake socket", "cannot make the wake socket");
        return NULL;
    }
    l->source = (struct sb_source){-1, EPOLLIN, accept_one};
    l->timer.fire = give_up;
    l->post.fn = begin;
    l->accepted = accepted;
    l->arg = arg;
    char *path = NULL;
    if (open_listener(l, err) == 0) {
        path = strdup(l->path);
        if (path == NULL)
            sb_fail_errno(err, ENOMEM, "wake socket", "cannot make the wake socket");
    }
    if (path != NULL && sb_loop_post_node(&l->post, err) == 0)
        return path;
    free(path);
    discard(l);
    return NULL;
}

static void set_channel(void *arg, int fd)
{
    struct sb_mailbox *mailbox = arg;
    if (fd >= 0)
        sb_mailbox_set_channel(mailbox, fd);
    sb_mailbox_unref(mailbox);
}

char *sb_mailbox_listen(struct sb_mailbox *mailbox, struct sb_error *err)
{
    char *path = sb_listen(set_channel, sb_mailbox_ref(mailbox), err);
    if (path == NULL)
        sb_mailbox_unref(mailbox);
    return path;
}
