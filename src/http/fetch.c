/* One request to a port and its answer.
 *
 * Order of a transfer: sockets (the port's spare pair, or new ones asked of the place), libcurl,
 * the head of the answer, its body. A refused connection goes back to the start once, with new
 * sockets, so that a place that is paused or gone is told by its own error; with `wait`, the
 * connection is then made by a dial with a back-off and handed to libcurl ready.
 *
 * Never sent twice: libcurl repeats any request when a kept connection turns out dead before the
 * first answer byte, and the server may have acted on it. So whatever is not idempotent, or has
 * a streamed body that cannot be read again, uses a new connection (to a loopback: some 15 us),
 * where libcurl never repeats. The pre-request callback refuses a second go all the same, should
 * that ever change. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "http/core.h"
#include "http/fetch.h"

/* How long an answer may be silent before the place is asked whether it still runs; doubled up
 * to ... */
#define PROBE_FIRST 250000000u
#define PROBE_MOST 8000000000u

static void sockets(struct sb_fetch *fetch, int fresh);
static void launch(struct sb_fetch *fetch);

/* ---- ending ---- */

/* Answers whoever still waits, gives everything back. */
static void end(struct sb_fetch *fetch, const struct sb_error *err)
{
    struct sb_op *op = fetch->op;
    struct sb_queue *queue = fetch->queue;
    sb_told_fn *told = fetch->told;
    void *told_arg = fetch->told_arg;
    struct sb_answered answered = {err,  fetch->status,  NULL, fetch->head_len,
                                   NULL, fetch->body_len};
    sb_exchange_leave(fetch, err == NULL);
    sb_timer_clear(&fetch->probe);
    if (fetch->dial != NULL)
        sb_dial_cancel(fetch->dial);
    fetch->dial = NULL;
    if (fetch->connected >= 0)
        close(fetch->connected);
    fetch->connected = -1;
    if (fetch->user.port != NULL && fetch->user.port->place != NULL) {
        sb_port_give(fetch->user.port, fetch->pair, fetch->pair_since);
    } else {
        sb_pair_close(&fetch->pair);
    }
    fetch->pair = SB_PAIR_NONE;
    sb_port_leave(&fetch->user);
    if (fetch->upload != NULL) {
        sb_upload_detach(fetch->upload);
        sb_object_unref(fetch->upload);
        fetch->upload = NULL;
    }
    sb_prepared_free(&fetch->request);
    if (op != NULL && err == NULL) {
        struct sb_result *result = sb_op_result(op);
        result->bytes2 = fetch->head;
        result->bytes2_len = fetch->head_len;
        result->bytes = fetch->body;
        result->bytes_len = fetch->body_len;
        fetch->head = NULL;
        fetch->body = NULL;
    }
    unsigned char *head = fetch->head, *body = fetch->body;
    if (told == NULL) {
        free(head);
        free(body);
    }
    fetch->head = NULL;
    fetch->body = NULL;
    fetch->op = NULL;
    fetch->told = NULL;
    fetch->queue = NULL;
    if (fetch->asking)
        fetch->dead = 1;
    else
        free(fetch);
    if (queue != NULL)
        sb_queue_end(queue, err);
    if (told != NULL) {
        answered.head = head;
        answered.body = body;
        told(told_arg, &answered);
        free(head);
        free(body);
    }
    if (op == NULL)
        return;
    if (err != NULL)
        sb_op_fail(op, err);
    else
        sb_op_complete(op);
}

/* The same with the transfer still in libcurl's hands: its connection is closed. */
static void abandon(struct sb_fetch *fetch, const struct sb_error *err)
{
    if (fetch->transfer.easy != NULL)
        sb_multi_remove(fetch->user.port->multi, &fetch->transfer);
    end(fetch, err);
}

void sb_fetch_fail(struct sb_fetch *fetch, enum sb_err kind, const char *message)
{
    struct sb_error err = {0};
    sb_fail(&err, kind, "%s", message);
    abandon(fetch, &err);
}

static void on_cancel(struct sb_op *op, void *owner)
{
    (void)op;
    sb_fetch_fail(owner, SB_ERR_CANCELLED, "cancelled"); /* or the deadline: the runtime knows */
}

static void on_closed(struct sb_port_user *user)
{
    sb_fetch_fail(SB_OF(user, struct sb_fetch, user), SB_ERR_CLOSED, "the port is closed");
}

static void on_dialled(void *arg, int fd, const struct sb_error *err)
{
    struct sb_fetch *fetch = arg;
    fetch->dial = NULL;
    if (fd < 0) {
        end(fetch, err);
        return;
    }
    fetch->dialled = 1;
    fetch->connected = fd;
    launch(fetch);
}

/* Nothing listened. Tells why, or tries again. */
static void refused(struct sb_fetch *fetch, const struct sb_error *err)
{
    struct sb_port *port = fetch->user.port;
    sb_exchange_leave(fetch, 0);
    sb_pair_close(&fetch->pair);
    if (fetch->wait_until > sb_now() && !fetch->dialled) {
        fetch->dial =
            sb_dial_start(port->place, port->number, fetch->wait_until, on_dialled, fetch);
        if (fetch->dial != NULL)
            return;
    } else if (port->place->type->remote && !fetch->new_sockets) {
        sockets(fetch, 1);
        return;
    }
    end(fetch, err);
}

static void on_done(struct sb_transfer *transfer, CURLcode code)
{
    struct sb_fetch *fetch = SB_OF(transfer, struct sb_fetch, transfer);
    struct sb_error err;
    fetch->user.port->resolved = code == CURLE_OK;
    if (code == CURLE_OK && fetch->head_done && fetch->refused == SB_OK) {
        end(fetch, NULL);
        return;
    }
    /* Closed inside the head is an empty answer to libcurl, and no failure. */
    sb_exchange_broken(fetch, code == CURLE_OK ? CURLE_RECV_ERROR : code, &err);
    if (err.kind == SB_ERR_UNAVAILABLE && err.sys == ECONNREFUSED &&
        fetch->user.port->place != NULL)
        refused(fetch, &err);
    else
        end(fetch, &err);
}

/* The server has ended while more of the body was waited for: libcurl would do nothing until there is more of it. Before
 * an answer this is the end; one that has begun may be whole, which libcurl knows. */
static void on_unheard(struct sb_transfer *transfer)
{
    struct sb_fetch *fetch = SB_OF(transfer, struct sb_fetch, transfer);
    struct sb_error err;
    if (fetch->pause != CURLPAUSE_SEND)
        return;
    if (fetch->head_done) {
        sb_exchange_writable(fetch);
        return;
    }
    sb_exchange_broken(fetch, CURLE_RECV_ERROR, &err);
    abandon(fetch, &err);
}

/* ---- beginning ---- */

/* Sockets are at hand: over to libcurl. The fetch may be gone when this returns. */
static void launch(struct sb_fetch *fetch)
{
    struct sb_port *port = fetch->user.port;
    struct sb_error err = {0};
    fetch->sent = fetch->head_len = 0;
    fetch->requests = fetch->pause = 0;
    if (sb_port_multi(port, &err) < 0) {
        end(fetch, &err);
        return;
    }
    fetch->transfer.done = on_done;
    fetch->transfer.unheard = fetch->upload != NULL && port->origin == NULL ? on_unheard : NULL;
    fetch->transfer.easy = sb_exchange_new(fetch);
    if (fetch->transfer.easy == NULL) {
        sb_fetch_fail(fetch, SB_ERR_INTERNAL, "out of memory");
        return;
    }
    if (port->place != NULL && port->place->type->remote)
        sb_timer_set(&fetch->probe, sb_now() + fetch->probe_after);
    if (sb_multi_add(port->multi, &fetch->transfer, &err) < 0)
        end(fetch, &err);
}

/* The place has answered somebody who is gone. 1: so it is. */
static int too_late(struct sb_fetch *fetch, struct sb_pair *pair)
{
    fetch->asking--;
    if (!fetch->dead)
        return 0;
    sb_pair_close(pair);
    if (fetch->asking == 0)
        free(fetch);
    return 1;
}

static void on_pair(void *arg, struct sb_pair pair, const struct sb_error *err)
{
    struct sb_fetch *fetch = arg;
    if (too_late(fetch, &pair))
        return;
    fetch->pair = pair;
    fetch->pair_since = sb_now();
    if (err != NULL)
        end(fetch, err);
    else
        launch(fetch);
}

static void sockets(struct sb_fetch *fetch, int fresh)
{
    struct sb_port *port = fetch->user.port;
    if (port->place == NULL) {
        launch(fetch);
        return;
    }
    fetch->pair_since = port->spare_since;
    if (!fresh)
        fetch->pair = sb_port_take(port, !sb_fetch_repeatable(fetch));
    if (fetch->pair.v4 >= 0) {
        launch(fetch);
        return;
    }
    sb_pair_close(&fetch->pair);
    fetch->new_sockets = 1;
    fetch->asking++;
    port->place->type->get(port->place, on_pair, fetch);
}

static void on_probed(void *arg, struct sb_pair pair, const struct sb_error *err)
{
    struct sb_fetch *fetch = arg;
    if (too_late(fetch, &pair))
        return;
    sb_port_give(fetch->user.port, pair, sb_now());
    if (fetch->head_done || fetch->transfer.easy == NULL)
        return;
    if (err == NULL) {
        if (fetch->probe_after < PROBE_MOST)
            fetch->probe_after *= 2;
        sb_timer_set(&fetch->probe, sb_now() + fetch->probe_after);
        return;
    }
    struct sb_error told = *err;
    if (fetch->requests > 0 && !fetch->request.idempotent)
        told.kind = SB_ERR_OUTCOME_UNKNOWN;
    abandon(fetch, &told);
}

static void on_silence(struct sb_timer *timer)
{
    struct sb_fetch *fetch = SB_OF(timer, struct sb_fetch, probe);
    struct sb_place *place = fetch->user.port->place;
    fetch->asking++;
    place->type->get(place, on_probed, fetch);
}

static void on_start(void *arg)
{
    struct sb_fetch *fetch = arg;
    struct sb_port *port = fetch->port;
    fetch->port = NULL;
    if (fetch->op != NULL)
        sb_op_set_cancel(fetch->op, on_cancel, fetch);
    if (fetch->upload != NULL)
        sb_upload_attach(fetch->upload, sb_exchange_writable, fetch);
    if (fetch->given_up || (fetch->op != NULL && sb_op_asked(fetch->op) != SB_OK))
        sb_fetch_fail(fetch, fetch->given_up ? SB_ERR_TIMEOUT : SB_ERR_CANCELLED, "cancelled");
    else if (sb_port_join(port, &fetch->user, on_closed) < 0)
        sb_fetch_fail(fetch, SB_ERR_CLOSED, "the port is closed");
    else
        sockets(fetch, 0);
    sb_object_unref(port);
}

static int start(struct sb_fetch *fetch, struct sb_port *port, const struct sb_request *request,
                 struct sb_error *err)
{
    if (port->object.generation != sb_generation())
        return sb_fail(err, SB_ERR_FORKED, "the port belongs to the parent process");
    int rc = sb_prepare(&fetch->request, request, port->number, port->lines, err);
    if (rc < 0)
        return rc;
    uint64_t now = sb_now();
    fetch->connected = -1;
    fetch->pair = SB_PAIR_NONE;
    fetch->stream = request->stream;
    fetch->max_body = request->max_body;
    fetch->wait_until = request->wait < SB_NEVER - now ? now + request->wait : SB_NEVER;
    fetch->probe.fire = on_silence;
    fetch->probe_after = PROBE_FIRST;
    fetch->upload = request->upload != NULL ? sb_object_ref(request->upload) : NULL;
    fetch->port = sb_object_ref(port);
    rc = sb_loop_post(on_start, fetch, err);
    if (rc < 0) {
        sb_prepared_free(&fetch->request);
        sb_object_unref(fetch->upload);
        sb_object_unref(port);
    }
    return rc;
}

struct sb_op *sb_fetch(struct sb_port *port, struct sb_mailbox *mailbox,
                       const struct sb_request *request)
{
    struct sb_error err = {0};
    struct sb_op *op = sb_op_new(mailbox, NULL, NULL);
    if (op == NULL)
        return NULL;
    struct sb_fetch *fetch = calloc(1, sizeof *fetch);
    if (fetch == NULL) {
        sb_fail(&err, SB_ERR_INTERNAL, "out of memory");
        return sb_http_refuse(op, &err);
    }
    fetch->op = op;
    if (start(fetch, port, request, &err) < 0) {
        free(fetch);
        return sb_http_refuse(op, &err);
    }
    return op;
}

struct sb_fetch *sb_fetch_told(struct sb_port *port, const struct sb_request *request,
                               sb_told_fn *told, void *arg, struct sb_error *err)
{
    struct sb_fetch *fetch = calloc(1, sizeof *fetch);
    if (fetch == NULL) {
        sb_fail(err, SB_ERR_INTERNAL, "out of memory");
        return NULL;
    }
    fetch->told = told;
    fetch->told_arg = arg;
    if (start(fetch, port, request, err) < 0) {
        free(fetch);
        return NULL;
    }
    return fetch;
}

void sb_fetch_give_up(struct sb_fetch *fetch)
{
    if (fetch->port != NULL) /* not begun */
        fetch->given_up = 1;
    else
        sb_fetch_fail(fetch, SB_ERR_TIMEOUT, "no answer in time");
}
