/* One request to a port and its answer.
 *
 * Order of a transfer: sockets (the port's spare pair, or new ones asked of the place), libcurl, the head
 * of the answer, its body. A refused connection goes back to the start once, with new sockets, so that a
 * place that is paused or gone is told by its own error; with `wait`, the connection is then made by a
 * dial with a back-off and handed to libcurl ready.
 *
 * Never sent twice: libcurl repeats any request when a kept connection turns out dead before the first
 * answer byte, and the server may have acted on it. So whatever is not idempotent, or has a streamed body
 * that cannot be read again, uses a new connection (to a loopback: some 15 us), where libcurl never
 * repeats. The pre-request callback refuses a second go all the same, should that ever change. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http/core.h"
#include "http/port.h"
#include "http/request.h"

#define HEAD_MOST (1u << 20) /* of an answer's head */
#define RECEIVE (64L << 10)
/* How long an answer may be silent before the place is asked whether it still runs; doubled up to ... */
#define PROBE_FIRST 250000000u
#define PROBE_MOST 8000000000u

struct fetch {
    struct sb_transfer transfer; /* easy: NULL when not in libcurl's hands */
    struct sb_port_user user;
    struct sb_port *port; /* the starter's reference, until it has joined */
    struct sb_op *op;     /* NULL once completed */
    struct sb_prepared request;
    size_t sent; /* of request.body */
    struct sb_upload *upload;
    int stream;
    size_t max_body;
    uint64_t wait_until;

    int asking;      /* answers the place owes: the memory must stay */
    int dead;        /* ... although all else is over */
    int new_sockets; /* the pair was asked for by this attempt: a refusal is final */
    struct sb_pair pair;
    struct sb_dial *dial;
    int dialled;   /* libcurl gets a connected descriptor ... */
    int connected; /* ... this one; -1 */
    struct sb_timer probe;
    uint64_t probe_after;

    int requests; /* how often libcurl was about to send it */
    int pause;    /* CURLPAUSE_* in force */
    unsigned char *head;
    size_t head_len, head_cap;
    int head_done;
    unsigned char *body;
    size_t body_len, body_cap;
    struct sb_queue *queue; /* the streamed body's */
    enum sb_err refused;    /* what one of our callbacks stopped the transfer for ... */
    const char *why;        /* ... in words */
};

static void sockets(struct fetch *fetch, int fresh);
static void launch(struct fetch *fetch);

/* Whether libcurl may send it again by itself. */
static int repeatable(const struct fetch *fetch)
{
    return fetch->request.idempotent && fetch->upload == NULL;
}

/* ---- ending ---- */

static void leave_curl(struct fetch *fetch)
{
    if (fetch->transfer.easy == NULL)
        return;
    curl_easy_cleanup(fetch->transfer.easy);
    fetch->transfer.easy = NULL;
}

/* Answers whoever still waits, gives everything back. */
static void end(struct fetch *fetch, const struct sb_error *err)
{
    struct sb_op *op = fetch->op;
    struct sb_queue *queue = fetch->queue;
    leave_curl(fetch);
    sb_timer_clear(&fetch->probe);
    if (fetch->dial != NULL)
        sb_dial_cancel(fetch->dial);
    fetch->dial = NULL;
    if (fetch->connected >= 0)
        close(fetch->connected);
    fetch->connected = -1;
    if (fetch->user.port != NULL && fetch->user.port->place != NULL) {
        if (fetch->pair.v4 < 0)
            sb_port_refill(fetch->user.port);
        sb_port_give(fetch->user.port, fetch->pair);
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
    free(fetch->head);
    free(fetch->body);
    fetch->head = NULL;
    fetch->body = NULL;
    fetch->op = NULL;
    fetch->queue = NULL;
    if (fetch->asking)
        fetch->dead = 1;
    else
        free(fetch);
    if (queue != NULL)
        sb_queue_end(queue, err);
    if (op == NULL)
        return;
    if (err != NULL)
        sb_op_fail(op, err);
    else
        sb_op_complete(op);
}

/* The same with the transfer still in libcurl's hands: its connection is closed. */
static void abandon(struct fetch *fetch, const struct sb_error *err)
{
    if (fetch->transfer.easy != NULL)
        sb_multi_remove(fetch->user.port->multi, &fetch->transfer);
    end(fetch, err);
}

static void fail(struct fetch *fetch, enum sb_err kind, const char *message)
{
    struct sb_error err = {0};
    sb_fail(&err, kind, "%s", message);
    abandon(fetch, &err);
}

static void on_cancel(struct sb_op *op, void *owner)
{
    (void)op;
    fail(owner, SB_ERR_CANCELLED, "cancelled"); /* or the deadline: the runtime knows */
}

static void on_closed(struct sb_port_user *user)
{
    fail(SB_OF(user, struct fetch, user), SB_ERR_CLOSED, "the port is closed");
}

/* What a broken transfer means. */
static void broken(struct fetch *fetch, CURLcode code, struct sb_error *err)
{
    long sys = 0;
    int safe = fetch->request.idempotent;
    curl_easy_getinfo(fetch->transfer.easy, CURLINFO_OS_ERRNO, &sys);
    *err = (struct sb_error){0};
    if (fetch->refused != SB_OK) {
        sb_fail(err, fetch->refused, "%s", fetch->why);
        return;
    }
    switch (code) {
    case CURLE_COULDNT_CONNECT:
        if (sys == 0 || sb_dial_refused((int)sys))
            sb_dial_refusal(err, fetch->user.port->number);
        else
            sb_fail_errno(err, (int)sys, "connect", "cannot connect");
        return;
    case CURLE_OUT_OF_MEMORY:
        sb_fail(err, SB_ERR_INTERNAL, "out of memory");
        return;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
        sb_fail(err, SB_ERR_UNAVAILABLE, "%s", curl_easy_strerror(code));
        return;
    case CURLE_UNSUPPORTED_PROTOCOL: /* what it takes an answer without a status line for */
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_BAD_CONTENT_ENCODING:
        sb_fail(err, SB_ERR_PROTOCOL, "the answer is not HTTP");
        return;
    default:
        break;
    }
    if (fetch->head_done) {
        sb_fail(err, safe ? SB_ERR_PROTOCOL : SB_ERR_OUTCOME_UNKNOWN, "the answer's body was cut short");
    } else if (fetch->head_len > 0) {
        sb_fail(err, safe ? SB_ERR_PROTOCOL : SB_ERR_OUTCOME_UNKNOWN, "the answer's head was cut short");
    } else {
        sb_fail(err, safe ? SB_ERR_UNAVAILABLE : SB_ERR_OUTCOME_UNKNOWN,
                "the connection ended before an answer");
        err->sys = ECONNRESET;
        return;
    }
    err->sys = (int)sys;
}

static void on_dialled(void *arg, int fd, const struct sb_error *err)
{
    struct fetch *fetch = arg;
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
static void refused(struct fetch *fetch, const struct sb_error *err)
{
    struct sb_port *port = fetch->user.port;
    leave_curl(fetch);
    sb_pair_close(&fetch->pair);
    if (fetch->wait_until > sb_now() && !fetch->dialled) {
        fetch->dial = sb_dial_start(port->place, port->number, fetch->wait_until, on_dialled, fetch);
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
    struct fetch *fetch = SB_OF(transfer, struct fetch, transfer);
    struct sb_error err;
    if (code == CURLE_OK && fetch->head_done && fetch->refused == SB_OK) {
        end(fetch, NULL);
        return;
    }
    /* Closed inside the head is an empty answer to libcurl, and no failure. */
    broken(fetch, code == CURLE_OK ? CURLE_RECV_ERROR : code, &err);
    if (err.kind == SB_ERR_UNAVAILABLE && err.sys == ECONNREFUSED && fetch->user.port->place != NULL)
        refused(fetch, &err);
    else
        end(fetch, &err);
}

/* ---- libcurl's callbacks: they may complete operations, never end the transfer ---- */

static curl_socket_t on_open(void *clientp, curlsocktype purpose, struct curl_sockaddr *address)
{
    (void)purpose;
    struct fetch *fetch = clientp;
    int *slot = fetch->dialled                ? &fetch->connected
                : address->family == AF_INET  ? &fetch->pair.v4
                : address->family == AF_INET6 ? &fetch->pair.v6
                                              : NULL;
    if (slot == NULL || *slot < 0)
        return CURL_SOCKET_BAD;
    int fd = *slot;
    *slot = -1;
    return fd;
}

static int on_sockopt(void *clientp, curl_socket_t fd, curlsocktype purpose)
{
    (void)fd;
    (void)purpose;
    struct fetch *fetch = clientp;
    return fetch->dialled ? CURL_SOCKOPT_ALREADY_CONNECTED : CURL_SOCKOPT_OK;
}

static int on_request(void *clientp, char *primary_ip, char *local_ip, int primary_port, int local_port)
{
    (void)primary_ip, (void)local_ip, (void)primary_port, (void)local_port;
    struct fetch *fetch = clientp;
    return fetch->requests++ > 0 && !repeatable(fetch) ? CURL_PREREQFUNC_ABORT : CURL_PREREQFUNC_OK;
}

static void stop(struct fetch *fetch, enum sb_err kind, const char *why)
{
    fetch->refused = kind;
    fetch->why = why;
}

static int grow(unsigned char **buf, size_t *cap, size_t need)
{
    if (need <= *cap)
        return 0;
    size_t to = *cap < 1024 ? 1024 : *cap;
    while (to < need)
        to *= 2;
    unsigned char *more = realloc(*buf, to);
    if (more == NULL)
        return -1;
    *buf = more;
    *cap = to;
    return 0;
}

static void on_reader(void *arg)
{
    struct fetch *fetch = arg;
    if (sb_queue_gone(fetch->queue)) {
        fail(fetch, SB_ERR_CLOSED, "the body is closed");
    } else if (fetch->pause & CURLPAUSE_RECV) {
        fetch->pause &= ~CURLPAUSE_RECV;
        sb_multi_pause(fetch->user.port->multi, &fetch->transfer, fetch->pause);
    }
}

/* The head is complete. */
static int on_head(struct fetch *fetch)
{
    long status = 0;
    curl_easy_getinfo(fetch->transfer.easy, CURLINFO_RESPONSE_CODE, &status);
    if (status >= 100 && status < 200) {
        if (status == 101) {
            stop(fetch, SB_ERR_PROTOCOL, "the answer changes protocols, which was not asked for");
            return -1;
        }
        fetch->head_len = 0; /* the real answer follows */
        return 0;
    }
    struct sb_body *body = fetch->stream ? sb_body_new(&fetch->queue, on_reader, fetch) : NULL;
    if (fetch->stream && body == NULL) {
        stop(fetch, SB_ERR_INTERNAL, "out of memory");
        return -1;
    }
    fetch->head_done = 1;
    sb_timer_clear(&fetch->probe);
    struct sb_op *op = fetch->op;
    struct sb_result *result = sb_op_result(op);
    result->number = (double)status;
    result->has_number = 1;
    if (!fetch->stream)
        return 0;
    result->bytes2 = fetch->head;
    result->bytes2_len = fetch->head_len;
    result->object = (struct sb_object *)body;
    fetch->head = NULL;
    fetch->op = NULL;
    sb_op_complete(op);
    return 0;
}

static size_t on_header(char *data, size_t size, size_t count, void *userp)
{
    struct fetch *fetch = userp;
    size_t len = size * count;
    if (fetch->head_done)
        return len; /* trailers */
    if (fetch->head_len + len > HEAD_MOST) {
        stop(fetch, SB_ERR_PROTOCOL, "the answer's head is longer than a mebibyte");
        return 0;
    }
    if (grow(&fetch->head, &fetch->head_cap, fetch->head_len + len) < 0) {
        stop(fetch, SB_ERR_INTERNAL, "out of memory");
        return 0;
    }
    if ((len == 2 && data[0] == '\r' && data[1] == '\n') || (len == 1 && data[0] == '\n'))
        return on_head(fetch) < 0 ? 0 : len;
    memcpy(fetch->head + fetch->head_len, data, len);
    fetch->head_len += len;
    return len;
}

static size_t on_write(char *data, size_t size, size_t count, void *userp)
{
    struct fetch *fetch = userp;
    size_t len = size * count;
    if (fetch->queue != NULL) {
        if (sb_queue_full(fetch->queue)) {
            fetch->pause |= CURLPAUSE_RECV;
            return CURL_WRITEFUNC_PAUSE;
        }
        if (sb_queue_append(fetch->queue, data, len) == 0)
            return len;
    } else if (len > fetch->max_body - fetch->body_len) {
        stop(fetch, SB_ERR_LIMIT_EXCEEDED, "the answer's body is longer than it may be");
        return 0;
    } else if (grow(&fetch->body, &fetch->body_cap, fetch->body_len + len) == 0) {
        memcpy(fetch->body + fetch->body_len, data, len);
        fetch->body_len += len;
        return len;
    }
    stop(fetch, SB_ERR_INTERNAL, "out of memory");
    return 0;
}

static void on_writer(void *arg)
{
    struct fetch *fetch = arg;
    if ((fetch->pause & CURLPAUSE_SEND) == 0)
        return;
    fetch->pause &= ~CURLPAUSE_SEND;
    sb_multi_pause(fetch->user.port->multi, &fetch->transfer, fetch->pause);
}

static size_t on_read(char *data, size_t size, size_t count, void *userp)
{
    struct fetch *fetch = userp;
    size_t room = size * count;
    if (fetch->upload == NULL) {
        size_t left = fetch->request.body_len - fetch->sent;
        size_t n = left < room ? left : room;
        if (n > 0)
            memcpy(data, fetch->request.body + fetch->sent, n);
        fetch->sent += n;
        return n;
    }
    long n = sb_upload_take(fetch->upload, data, room);
    if (n >= 0)
        return (size_t)n;
    if (n == -1) {
        fetch->pause |= CURLPAUSE_SEND;
        return CURL_READFUNC_PAUSE;
    }
    stop(fetch, fetch->request.idempotent ? SB_ERR_CANCELLED : SB_ERR_OUTCOME_UNKNOWN,
         "the request's body was given up");
    return CURL_READFUNC_ABORT;
}

static int on_seek(void *userp, curl_off_t offset, int origin)
{
    struct fetch *fetch = userp;
    if (fetch->upload != NULL || origin != SEEK_SET || offset < 0 ||
        (size_t)offset > fetch->request.body_len)
        return CURL_SEEKFUNC_FAIL;
    fetch->sent = (size_t)offset;
    return CURL_SEEKFUNC_OK;
}

/* ---- beginning ---- */

static CURL *set_up(struct fetch *fetch)
{
    struct sb_port *port = fetch->user.port;
    struct sb_prepared *request = &fetch->request;
    CURL *easy = curl_easy_init();
    if (easy == NULL)
        return NULL;
    CURLcode rc = CURLE_OK; /* whatever copies a string may fail */
    rc |= curl_easy_setopt(easy, CURLOPT_URL, port->url);
    rc |= curl_easy_setopt(easy, CURLOPT_REQUEST_TARGET, request->target);
    rc |= curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, request->method);
    rc |= curl_easy_setopt(easy, CURLOPT_PROXY, "");
    rc |= curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
#if LIBCURL_VERSION_NUM >= 0x075500
    rc |= curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, port->place != NULL ? "http" : "http,https");
#else
    rc |= curl_easy_setopt(easy, CURLOPT_PROTOCOLS,
                           port->place != NULL ? CURLPROTO_HTTP : CURLPROTO_HTTP | CURLPROTO_HTTPS);
#endif
    if (rc != CURLE_OK) {
        curl_easy_cleanup(easy);
        return NULL;
    }
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, request->headers);
    curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, RECEIVE);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, fetch);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_write);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, fetch);
#if LIBCURL_VERSION_NUM >= 0x075000
    curl_easy_setopt(easy, CURLOPT_PREREQFUNCTION, on_request);
    curl_easy_setopt(easy, CURLOPT_PREREQDATA, fetch);
#endif
    if (port->place != NULL) {
        curl_easy_setopt(easy, CURLOPT_RESOLVE, port->resolve);
        curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, on_open);
        curl_easy_setopt(easy, CURLOPT_OPENSOCKETDATA, fetch);
        curl_easy_setopt(easy, CURLOPT_SOCKOPTFUNCTION, on_sockopt);
        curl_easy_setopt(easy, CURLOPT_SOCKOPTDATA, fetch);
    }
    if (!repeatable(fetch) || fetch->dialled)
        curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, 1L);
    if (request->head) {
        curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
    } else if (request->sends) {
        curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, request->upload_len);
        curl_easy_setopt(easy, CURLOPT_READFUNCTION, on_read);
        curl_easy_setopt(easy, CURLOPT_READDATA, fetch);
        curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, on_seek);
        curl_easy_setopt(easy, CURLOPT_SEEKDATA, fetch);
    } else {
        curl_easy_setopt(easy, CURLOPT_HTTPGET, 1L);
        curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, request->method);
    }
    return easy;
}

/* Sockets are at hand: over to libcurl. The fetch may be gone when this returns. */
static void launch(struct fetch *fetch)
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
    fetch->transfer.easy = set_up(fetch);
    if (fetch->transfer.easy == NULL) {
        fail(fetch, SB_ERR_INTERNAL, "out of memory");
        return;
    }
    if (port->place != NULL && port->place->type->remote)
        sb_timer_set(&fetch->probe, sb_now() + fetch->probe_after);
    if (sb_multi_add(port->multi, &fetch->transfer, &err) < 0)
        end(fetch, &err);
}

/* The place has answered somebody who is gone. 1: so it is. */
static int too_late(struct fetch *fetch, struct sb_pair *pair)
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
    struct fetch *fetch = arg;
    if (too_late(fetch, &pair))
        return;
    fetch->pair = pair;
    if (err != NULL)
        end(fetch, err);
    else
        launch(fetch);
}

static void sockets(struct fetch *fetch, int fresh)
{
    struct sb_port *port = fetch->user.port;
    if (port->place == NULL) {
        launch(fetch);
        return;
    }
    if (!fresh)
        fetch->pair = sb_port_take(port);
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
    struct fetch *fetch = arg;
    if (too_late(fetch, &pair))
        return;
    sb_port_give(fetch->user.port, pair);
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
    struct fetch *fetch = SB_OF(timer, struct fetch, probe);
    struct sb_place *place = fetch->user.port->place;
    fetch->asking++;
    place->type->get(place, on_probed, fetch);
}

static void on_start(void *arg)
{
    struct fetch *fetch = arg;
    struct sb_port *port = fetch->port;
    fetch->port = NULL;
    sb_op_set_cancel(fetch->op, on_cancel, fetch);
    if (fetch->upload != NULL)
        sb_upload_attach(fetch->upload, on_writer, fetch);
    if (sb_op_asked(fetch->op) != SB_OK)
        fail(fetch, SB_ERR_CANCELLED, "cancelled");
    else if (sb_port_join(port, &fetch->user, on_closed) < 0)
        fail(fetch, SB_ERR_CLOSED, "the port is closed");
    else
        sockets(fetch, !repeatable(fetch) && port->place != NULL && port->place->type->remote);
    sb_object_unref(port);
}

static int start(struct fetch *fetch, struct sb_port *port, const struct sb_request *request,
                 struct sb_error *err)
{
    if (port->object.generation != sb_generation())
        return sb_fail(err, SB_ERR_FORKED, "the port belongs to the parent process");
    int rc = sb_prepare(&fetch->request, request, port->number, err);
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

struct sb_op *sb_fetch(struct sb_port *port, struct sb_mailbox *mailbox, const struct sb_request *request)
{
    struct sb_error err = {0};
    struct sb_op *op = sb_op_new(mailbox, NULL, NULL);
    if (op == NULL)
        return NULL;
    struct fetch *fetch = calloc(1, sizeof *fetch);
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
