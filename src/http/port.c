/* A port of a sandbox: its name, its spare sockets, what is in flight on it. */
#include "http/port.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "http/core.h"
#include "http/libraries.h"
#include "http/origin.h"
#include "http/request.h"

#define SURE 1000000000u    /* ns */
#define REST 10000000000ull /* ns: how long an unused port keeps what the next request could use */
/* Connections kept that nobody uses: as many as one program has commands under way in a hosted sandbox, of which each has
 * one of its own. */
#define IDLE_ORIGIN 64
#define IDLE_PORT 16

char sb_http_tmpdir[64] = "/tmp";

static int global_code;

static void global_init(void)
{
    /* Another OpenSSL than the one this was built with has crashed hosts that bring their own. */
    if (OPENSSL_version_major() != OPENSSL_VERSION_MAJOR) {
        global_code = -2;
        return;
    }
    sb_libraries_settle();
    global_code = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK ? 0 : -1;
    sb_libraries_settle();
    /* libcurl and OpenSSL have registered exit handlers of their own by now; ours must run
     * before them, so that no thread is inside TLS while it is torn down. Their global clean-up
     * is never called. */
    sb_loop_rearm_exit();
    const char *tmp =
        getenv("TMPDIR"); /* once, at load: other threads of the host may change it later */
    if (tmp != NULL && tmp[0] == '/' && strlen(tmp) < sizeof sb_http_tmpdir)
        snprintf(sb_http_tmpdir, sizeof sb_http_tmpdir, "%s", tmp);
}

int sb_http_init(struct sb_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, global_init);
    if (global_code == -2)
        return sb_fail(err, SB_ERR_UNSUPPORTED, "built for OpenSSL %d, but the process has %s",
                       OPENSSL_VERSION_MAJOR, OpenSSL_version(OPENSSL_VERSION));
    return global_code == 0 ? 0 : sb_fail(err, SB_ERR_INTERNAL, "libcurl does not start");
}

static void free_memory(struct sb_port *port)
{
    curl_slist_free_all(port->resolve);
    curl_slist_free_all(port->lines);
    curl_url_cleanup(port->address);
    sb_origin_free(port->origin);
    free(port->url);
    free(port);
}

static void drop_curl(struct sb_port *port)
{
    while (port->idle_count > 0)
        curl_easy_cleanup(port->idle[--port->idle_count].easy);
    sb_multi_free(port->multi);
    port->multi = NULL;
    port->resolved = 0;
}

static void drop_all(struct sb_port *port)
{
    sb_timer_clear(&port->rest);
    port->resting = 0;
    drop_curl(port);
    sb_pair_close(&port->spare);
}

static void on_rest(struct sb_timer *timer);

static void set_rest(struct sb_port *port)
{
    port->rest.fire = on_rest;
    port->resting = 1;
    sb_timer_set(&port->rest, port->used + REST);
}

static void on_rest(struct sb_timer *timer)
{
    struct sb_port *port = SB_OF(timer, struct sb_port, rest);
    port->resting = 0;
    if (port->users != NULL)
        return; /* the last to leave sets it again */
    if (sb_now() >= port->used + REST)
        drop_all(port);
    else
        set_rest(port);
}

/* Once set, the timer runs its time: moving it for each request would cost more. */
static void rest_later(struct sb_port *port)
{
    port->used = sb_now();
    if (!port->resting && port->users == NULL && !port->closed)
        set_rest(port);
}

static void on_destroy(void *arg)
{
    struct sb_port *port = arg;
    drop_all(port);
    sb_place_unref(port->place);
    free_memory(port);
}

static void destroy(struct sb_object *object)
{
    struct sb_port *port = (struct sb_port *)object;
    if (object->generation != sb_generation())
        return; /* libcurl's state is the parent's: neither touched nor freed here */
    sb_loop_post(on_destroy, port, NULL); /* refused: the process is ending */
}

const struct sb_object_type sb_port_type = {"port", destroy};

/* What all requests have in common; `url` is taken over, NULL for want of memory. */
static int set_address(struct sb_port *port, char *url, struct sb_error *err)
{
    port->url = url;
    port->lines = sb_usual_lines(port->number);
    port->address = curl_url();
    if (url == NULL || port->lines == NULL || port->address == NULL)
        return sb_fail_errno(err, ENOMEM, "memory", "out of memory");
    CURLUcode rc = curl_url_set(port->address, CURLUPART_URL, url, 0);
    if (rc == CURLUE_OUT_OF_MEMORY)
        return sb_fail_errno(err, ENOMEM, "memory", "out of memory");
    if (rc != CURLUE_OK)
        return sb_fail(err, SB_ERR_INVALID_ARGUMENT, "%s is not an origin", url);
    return 0;
}

static struct sb_port *new_port(struct sb_error *err)
{
    struct sb_port *port = calloc(1, sizeof *port);
    if (port == NULL) {
        sb_fail_errno(err, ENOMEM, "memory", "out of memory");
        return NULL;
    }
    sb_object_init(&port->object, &sb_port_type);
    port->spare = SB_PAIR_NONE;
    return port;
}

struct sb_port *sb_port_new(struct sb_place *place, uint16_t number, struct sb_error *err)
{
    static _Atomic unsigned long serial;
    struct sb_port *port = new_port(err);
    if (port == NULL) {
        sb_place_unref(place);
        return NULL;
    }
    char name[64], resolve[160], *url;
    /* Never looked up: the name only keeps libcurl from taking two ports for one. Short, since libcurl
     * prints it several times for each request. */
    snprintf(name, sizeof name, "%lu.invalid", atomic_fetch_add(&serial, 1) + 1);
    snprintf(resolve, sizeof resolve, "%s:%u:127.0.0.1,[::1]", name, (unsigned)number);
    port->number = number;
    port->resolve = curl_slist_append(NULL, resolve);
    if (asprintf(&url, "http://%s:%u", name, (unsigned)number) < 0)
        url = NULL;
    if (set_address(port, url, err) < 0 || port->resolve == NULL) {
        if (port->resolve == NULL)
            sb_fail_errno(err, ENOMEM, "memory", "out of memory");
        free_memory(port);
        sb_place_unref(place);
        return NULL;
    }
    port->place = place;
    return port;
}

struct sb_port *sb_origin_new(const struct sb_origin_options *options, struct sb_error *err)
{
    struct sb_port *port = new_port(err);
    if (port == NULL)
        return NULL;
    port->origin = sb_origin_keep(options);
    if (port->origin == NULL)
        sb_fail_errno(err, ENOMEM, "memory", "out of memory");
    if (port->origin == NULL || set_address(port, strdup(options->url), err) < 0) {
        free_memory(port);
        return NULL;
    }
    return port;
}

static void on_close(void *arg)
{
    struct sb_port *port = arg;
    port->closed = 1;
    while (port->users != NULL)
        port->users->closed(port->users);
    drop_all(port);
    sb_object_unref(port);
}

void sb_port_close(struct sb_port *port)
{
    if (port->object.generation != sb_generation())
        return;
    if (sb_loop_post(on_close, sb_object_ref(port), NULL) < 0)
        sb_object_unref(port);
}

int sb_port_join(struct sb_port *port, struct sb_port_user *user,
                 void (*closed)(struct sb_port_user *user))
{
    if (port->closed)
        return -1;
    user->port = sb_object_ref(port);
    user->closed = closed;
    user->next = port->users;
    user->link = &port->users;
    if (user->next != NULL)
        user->next->link = &user->next;
    port->users = user;
    return 0;
}

void sb_port_leave(struct sb_port_user *user)
{
    if (user->port == NULL)
        return;
    *user->link = user->next;
    if (user->next != NULL)
        user->next->link = user->link;
    rest_later(user->port);
    sb_object_unref(user->port);
    user->port = NULL;
}

int sb_port_multi(struct sb_port *port, struct sb_error *err)
{
    if (port->multi == NULL)
        port->multi = port->origin != NULL
                          ? sb_multi_new(sb_origin_shares(port->origin), IDLE_ORIGIN, err)
                          : sb_multi_new(0, IDLE_PORT, err);
    return port->multi != NULL ? 0 : -SB_ERR_INTERNAL;
}

CURL *sb_port_easy(struct sb_port *port, int plain, int *kept)
{
    *kept = 0;
    if (port->idle_count == 0)
        return curl_easy_init();
    unsigned last = port->idle_count - 1, at = last;
    while (at > 0 && port->idle[at].plain != plain)
        at--;
    struct sb_idle idle = port->idle[at];
    port->idle[at] = port->idle[last];
    port->idle_count = last;
    *kept = idle.plain && plain;
    if (idle.plain && !plain)
        curl_easy_reset(idle.easy);
    return idle.easy;
}

void sb_port_easy_done(struct sb_port *port, CURL *easy, int plain)
{
    if (port->closed || port->idle_count == SB_PORT_IDLE)
        curl_easy_cleanup(easy);
    else
        port->idle[port->idle_count++] = (struct sb_idle){easy, plain};
}

struct sb_pair sb_port_take(struct sb_port *port, int sure)
{
    if (sure && port->place->type->remote && sb_now() - port->spare_since > SURE)
        return SB_PAIR_NONE;
    struct sb_pair pair = port->spare;
    port->spare = SB_PAIR_NONE;
    return pair;
}

void sb_port_give(struct sb_port *port, struct sb_pair pair, uint64_t since)
{
    if (pair.v4 >= 0 && port->spare.v4 < 0 && !port->closed) {
        sb_pair_close(&port->spare);
        port->spare = pair;
        port->spare_since = since;
        rest_later(port);
    } else {
        sb_pair_close(&pair);
    }
}

static void on_refill(void *arg, struct sb_pair pair, const struct sb_error *err)
{
    struct sb_port *port = arg;
    (void)err; /* whoever needs the sockets asks again and is told */
    port->refilling = 0;
    sb_port_give(port, pair, sb_now());
    sb_object_unref(port);
}

void sb_port_refill(struct sb_port *port)
{
    if (port->refilling || port->closed || !port->place->type->remote || port->spare.v4 >= 0)
        return;
    port->refilling = 1;
    port->place->type->get(port->place, on_refill, sb_object_ref(port));
}

/* ---- waiting until somebody listens ---- */

struct waiter {
    struct sb_port_user user;
    struct sb_op *op;
    struct sb_dial *dial;
    struct sb_port *port; /* the starter's reference */
    uint64_t until;
};

static void waiter_end(struct waiter *waiter, const struct sb_error *err)
{
    struct sb_op *op = waiter->op;
    if (waiter->dial != NULL)
        sb_dial_cancel(waiter->dial);
    sb_port_leave(&waiter->user);
    free(waiter);
    if (err != NULL)
        sb_op_fail(op, err);
    else
        sb_op_complete(op);
}

static void waiter_dialled(void *arg, int fd, const struct sb_error *err)
{
    struct waiter *waiter = arg;
    waiter->dial = NULL;
    if (fd >= 0)
        close(fd);
    waiter_end(waiter, err);
}

static void waiter_closed(struct sb_port_user *user)
{
    struct sb_error err = {0};
    sb_fail(&err, SB_ERR_CLOSED, "the port is closed");
    waiter_end(SB_OF(user, struct waiter, user), &err);
}

static void waiter_cancel(struct sb_op *op, void *owner)
{
    (void)op;
    struct sb_error err = {.kind = SB_ERR_CANCELLED, .message = "cancelled"};
    waiter_end(owner, &err);
}

static void waiter_start(void *arg)
{
    struct waiter *waiter = arg;
    struct sb_port *port = waiter->port;
    struct sb_error err = {0};
    sb_op_set_cancel(waiter->op, waiter_cancel, waiter);
    if (sb_op_asked(waiter->op) != SB_OK) {
        waiter_cancel(waiter->op, waiter);
    } else if (sb_port_join(port, &waiter->user, waiter_closed) < 0) {
        sb_fail(&err, SB_ERR_CLOSED, "the port is closed");
        waiter_end(waiter, &err);
    } else {
        waiter->dial =
            sb_dial_start(port->place, port->number, waiter->until, waiter_dialled, waiter);
        if (waiter->dial == NULL) {
            sb_fail_errno(&err, ENOMEM, "memory", "out of memory");
            waiter_end(waiter, &err);
        }
    }
    sb_object_unref(port);
}

struct sb_op *sb_port_wait(struct sb_port *port, struct sb_mailbox *mailbox, uint64_t wait)
{
    struct sb_error err = {0};
    struct sb_op *op = sb_op_new(mailbox, NULL, NULL);
    struct waiter *waiter = op != NULL ? calloc(1, sizeof *waiter) : NULL;
    if (op == NULL)
        return NULL;
    if (waiter == NULL) {
        sb_fail_errno(&err, ENOMEM, "memory", "out of memory");
        return sb_http_refuse(op, &err);
    }
    if (port->object.generation != sb_generation() || port->place == NULL) {
        sb_fail(&err, port->place == NULL ? SB_ERR_UNSUPPORTED : SB_ERR_FORKED,
                port->place == NULL ? "an origin cannot be waited for"
                                    : "the port belongs to the parent process");
        free(waiter);
        return sb_http_refuse(op, &err);
    }
    uint64_t now = sb_now();
    waiter->op = op;
    waiter->until = wait < SB_NEVER - now ? now + wait : SB_NEVER;
    waiter->port = sb_object_ref(port);
    if (sb_loop_post(waiter_start, waiter, &err) < 0) {
        sb_object_unref(port);
        free(waiter);
        return sb_http_refuse(op, &err);
    }
    return op;
}
