/* Unconnected sockets of a place, and connecting them. */
#include "http/sockets.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http/core.h"

#define BACKOFF_FIRST 5000000u /* ns */
#define BACKOFF_MOST 50000000u

void sb_pair_close(struct sb_pair *pair)
{
    if (pair->v4 >= 0)
        close(pair->v4);
    if (pair->v6 >= 0)
        close(pair->v6);
    *pair = SB_PAIR_NONE;
}

struct sb_place *sb_place_ref(struct sb_place *place)
{
    atomic_fetch_add_explicit(&place->refs, 1, memory_order_relaxed);
    return place;
}

void sb_place_unref(struct sb_place *place)
{
    if (place != NULL && atomic_fetch_sub_explicit(&place->refs, 1, memory_order_acq_rel) == 1)
        place->type->free(place);
}

/* ---- the host's own loopback ---- */

static void host_get(struct sb_place *place, sb_pair_fn *done, void *arg)
{
    (void)place;
    struct sb_pair pair = {
        socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0),
        socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0),
    };
    if (pair.v4 < 0 && pair.v6 < 0) {
        struct sb_error err = {0};
        sb_fail_errno(&err, errno, "socket", "cannot make a socket");
        done(arg, pair, &err);
        return;
    }
    done(arg, pair, NULL);
}

static void host_free(struct sb_place *place)
{
    free(place);
}

static const struct sb_place_type host_type = {host_get, host_free, 0};

struct sb_place *sb_place_host(void)
{
    struct sb_place *place = calloc(1, sizeof *place);
    if (place != NULL) {
        place->type = &host_type;
        atomic_init(&place->refs, 1);
    }
    return place;
}

/* ---- a sandbox ---- */

struct engine_place {
    struct sb_place place; /* first */
    struct sb_object *engine;
    char id[];
};

struct question {
    struct sb_place *place; /* a reference */
    sb_pair_fn *done;
    void *arg;
};

static void engine_answer(void *arg, int v4, int v6, const struct sb_error *err)
{
    struct question *question = arg;
    sb_pair_fn *done = question->done;
    void *whom = question->arg;
    sb_place_unref(question->place);
    free(question);
    done(whom, (struct sb_pair){v4, v6}, err);
}

static void engine_get(struct sb_place *place, sb_pair_fn *done, void *arg)
{
    struct engine_place *engine = (struct engine_place *)place;
    struct question *question = malloc(sizeof *question);
    if (question == NULL) {
        struct sb_error err = {0};
        sb_fail_errno(&err, ENOMEM, "memory", "out of memory");
        done(arg, SB_PAIR_NONE, &err);
        return;
    }
    *question = (struct question){sb_place_ref(place), done, arg};
    sb_client_sockets(engine->engine, engine->id, engine_answer, question);
}

static void engine_free(struct sb_place *place)
{
    sb_object_unref(((struct engine_place *)place)->engine);
    free(place);
}

static const struct sb_place_type engine_type = {engine_get, engine_free, 1};

struct sb_place *sb_place_engine(struct sb_object *engine, const char *id)
{
    size_t len = strlen(id) + 1;
    struct engine_place *place = calloc(1, sizeof *place + len);
    if (place == NULL)
        return NULL;
    place->place.type = &engine_type;
    atomic_init(&place->place.refs, 1);
    place->engine = sb_object_ref(engine);
    memcpy(place->id, id, len);
    return &place->place;
}

/* ---- dialling ---- */

struct sb_dial {
    struct sb_place *place;
    uint16_t port;
    uint64_t deadline, backoff;
    sb_dial_fn *done;
    void *arg;
    struct sb_pair pair;
    int family; /* being tried: 4, 6; 0 between attempts */
    int asking; /* the place owes an answer: the memory must stay */
    int cancelled;
    struct sb_source source;
    struct sb_timer timer;
};

static void attempt(struct sb_dial *dial);
static void try_family(struct sb_dial *dial, int family);

int sb_dial_refused(int sys)
{
    /* A namespace without IPv6 answers for ::1 with one of the others. */
    return sys == ECONNREFUSED || sys == EADDRNOTAVAIL || sys == ENETUNREACH ||
           sys == EAFNOSUPPORT || sys == EHOSTUNREACH;
}

void sb_dial_refusal(struct sb_error *err, uint16_t port)
{
    *err = (struct sb_error){0};
    sb_fail(err, SB_ERR_UNAVAILABLE, "nothing listens on port %u", (unsigned)port);
    err->sys = ECONNREFUSED;
}

static void stop(struct sb_dial *dial)
{
    sb_source_remove(&dial->source);
    sb_timer_clear(&dial->timer);
    sb_pair_close(&dial->pair);
}

static void dispose(struct sb_dial *dial)
{
    sb_place_unref(dial->place);
    free(dial);
}

static void finish(struct sb_dial *dial, int fd, const struct sb_error *err)
{
    stop(dial);
    sb_dial_fn *done = dial->done;
    void *arg = dial->arg;
    dispose(dial);
    done(arg, fd, err);
}

static void on_timer(struct sb_timer *timer)
{
    attempt(SB_OF(timer, struct sb_dial, timer));
}

static void refused(struct sb_dial *dial)
{
    uint64_t now = sb_now();
    if (now >= dial->deadline) {
        struct sb_error err;
        sb_dial_refusal(&err, dial->port);
        finish(dial, -1, &err);
        return;
    }
    sb_pair_close(&dial->pair);
    uint64_t at = now + dial->backoff;
    sb_timer_set(&dial->timer, at < dial->deadline ? at : dial->deadline);
    dial->backoff = dial->backoff * 2 < BACKOFF_MOST ? dial->backoff * 2 : BACKOFF_MOST;
}

static void settled(struct sb_dial *dial, int sys)
{
    if (sys == 0) {
        int *fd = dial->family == 4 ? &dial->pair.v4 : &dial->pair.v6;
        int connected = *fd;
        *fd = -1;
        finish(dial, connected, NULL);
    } else if (!sb_dial_refused(sys)) {
        struct sb_error err = {0};
        sb_fail_errno(&err, sys, "connect", "cannot connect to port %u", (unsigned)dial->port);
        finish(dial, -1, &err);
    } else if (dial->family == 4) {
        try_family(dial, 6);
    } else {
        refused(dial);
    }
}

static void on_writable(struct sb_source *source, uint32_t events)
{
    (void)events;
    struct sb_dial *dial = SB_OF(source, struct sb_dial, source);
    int sys = 0;
    socklen_t len = sizeof sys;
    if (getsockopt(source->fd, SOL_SOCKET, SO_ERROR, &sys, &len) < 0)
        sys = errno;
    sb_source_remove(source);
    settled(dial, sys);
}

static void try_family(struct sb_dial *dial, int family)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address = {0};
    socklen_t len;
    int fd;
    dial->family = family;
    if (family == 4) {
        fd = dial->pair.v4;
        address.v4.sin_family = AF_INET;
        address.v4.sin_port = htons(dial->port);
        address.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        len = sizeof address.v4;
    } else {
        fd = dial->pair.v6;
        address.v6.sin6_family = AF_INET6;
        address.v6.sin6_port = htons(dial->port);
        address.v6.sin6_addr = (struct in6_addr)IN6ADDR_LOOPBACK_INIT;
        len = sizeof address.v6;
    }
    if (fd < 0) {
        settled(dial, EAFNOSUPPORT);
        return;
    }
    int rc;
    do
        rc = connect(fd, &address.any, len);
    while (rc < 0 && errno == EINTR);
    if (rc == 0 || errno != EINPROGRESS) {
        settled(dial, rc == 0 ? 0 : errno);
        return;
    }
    struct sb_error err = {0};
    dial->source = (struct sb_source){fd, EPOLLOUT, on_writable};
    if (sb_source_add(&dial->source, &err) < 0)
        finish(dial, -1, &err);
}

static void on_pair(void *arg, struct sb_pair pair, const struct sb_error *err)
{
    struct sb_dial *dial = arg;
    dial->asking = 0;
    dial->pair = pair;
    if (dial->cancelled) {
        sb_pair_close(&dial->pair);
        dispose(dial);
    } else if (err != NULL) {
        finish(dial, -1, err);
    } else {
        try_family(dial, 4);
    }
}

static void attempt(struct sb_dial *dial)
{
    dial->asking = 1;
    dial->place->type->get(dial->place, on_pair, dial);
}

struct sb_dial *sb_dial_start(struct sb_place *place, uint16_t port, uint64_t deadline,
                              sb_dial_fn *done, void *arg)
{
    struct sb_dial *dial = calloc(1, sizeof *dial);
    if (dial == NULL)
        return NULL;
    dial->place = sb_place_ref(place);
    dial->port = port;
    dial->deadline = deadline;
    dial->backoff = BACKOFF_FIRST;
    dial->done = done;
    dial->arg = arg;
    dial->pair = SB_PAIR_NONE;
    dial->source.fd = -1;
    /* From the loop, so that the caller has the handle before anything is answered. */
    dial->timer.fire = on_timer;
    sb_timer_set(&dial->timer, sb_now());
    return dial;
}

void sb_dial_cancel(struct sb_dial *dial)
{
    stop(dial);
    if (dial->asking)
        dial->cancelled = 1;
    else
        dispose(dial);
}
