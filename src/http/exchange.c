/* One request and its answer in libcurl's hands: what it is told, and what its callbacks do. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "http/core.h"
#include "http/fetch.h"
#include "http/origin.h"
#include "runtime/large.h"

#define HEAD_MOST (1u << 20)    /* of an answer's head, and of its trailers */
#define HEAD_FIRST 512          /* room for most heads */
#define HEAD_LONG (256 * 1024)  /* where it begins that libcurl may have had enough of a head */
#define RECEIVE SB_BODY_BEYOND  /* at once; more would be mapped anew for each transfer */
#define EXPECT_MOST (64u << 20) /* room made at once because of a Content-Length */

static void head_broken(struct sb_error *err, int safe, const char *how)
{
    sb_fail(err, safe ? SB_ERR_PROTOCOL : SB_ERR_OUTCOME_UNKNOWN, "the answer's head %s", how);
}

/* Of an origin it is known: libcurl tells just before it sends. */
static int never_sent(const struct sb_fetch *fetch)
{
#if LIBCURL_VERSION_NUM >= 0x075000
    return fetch->user.port->origin != NULL && fetch->requests == 0;
#else
    return 0;
#endif
}

/* What a broken transfer means. */
void sb_exchange_broken(struct sb_fetch *fetch, CURLcode code, struct sb_error *err)
{
    long sys = 0, heads = 0;
    curl_off_t answered = 0;
    int safe = fetch->request.idempotent;
    curl_easy_getinfo(fetch->transfer.easy, CURLINFO_OS_ERRNO, &sys);
    *err = (struct sb_error){0};
    if (fetch->refused != SB_OK) {
        sb_fail(err, fetch->refused, "%s", fetch->why);
        return;
    }
    if (never_sent(fetch) || (code == CURLE_COULDNT_CONNECT && fetch->user.port->origin != NULL)) {
        sb_origin_failed(fetch->user.port->url, fetch->transfer.easy, code, err);
        return;
    }
    switch (code) {
    case CURLE_COULDNT_CONNECT:
        if (sys == 0 || sb_dial_refused((int)sys))
            sb_dial_refusal(err, fetch->user.port->number);
        else
            sb_fail_errno(err, (int)sys, "connect", "cannot connect");
        return;
    case CURLE_OUT_OF_MEMORY: /* also what it says to a line of the head that is too long for it */
        curl_easy_getinfo(fetch->transfer.easy, CURLINFO_STARTTRANSFER_TIME_T, &answered);
        if (answered == 0 || fetch->head_done)
            sb_fail(err, SB_ERR_INTERNAL, "out of memory");
        else
            head_broken(err, safe, "is too long");
        return;
    case CURLE_SSL_CACERT_BADFILE:
        sb_fail(err, SB_ERR_INVALID_ARGUMENT, "the file of trusted certificates cannot be read");
        return;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
        if (fetch->user.port->origin != NULL)
            sb_origin_not_reached(fetch->user.port->url, curl_easy_strerror(code), err);
        else
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
        sb_fail(err, safe ? SB_ERR_PROTOCOL : SB_ERR_OUTCOME_UNKNOWN,
                "the answer's body was cut short");
    } else if (fetch->head_len > 0) {
        curl_easy_getinfo(fetch->transfer.easy, CURLINFO_HEADER_SIZE, &heads);
        head_broken(err, safe, heads < HEAD_LONG ? "was cut short" : "is too long");
    } else {
        sb_fail(err, safe ? SB_ERR_UNAVAILABLE : SB_ERR_OUTCOME_UNKNOWN,
                "the connection ended before an answer");
        err->sys = ECONNRESET;
        return;
    }
    err->sys = (int)sys;
}

/* ---- libcurl's callbacks: they may complete operations, never end the transfer ---- */

static curl_socket_t on_open(void *clientp, curlsocktype purpose, struct curl_sockaddr *address)
{
    (void)purpose;
    struct sb_fetch *fetch = clientp;
    int *slot = fetch->dialled                ? &fetch->connected
                : address->family == AF_INET  ? &fetch->pair.v4
                : address->family == AF_INET6 ? &fetch->pair.v6
                                              : NULL;
    if (slot == NULL || *slot < 0)
        return CURL_SOCKET_BAD;
    int fd = *slot;
    *slot = -1;
    if (!fetch->dialled) /* the next connection shall find its sockets there */
        sb_port_refill(fetch->user.port);
    return fd;
}

static int on_sockopt(void *clientp, curl_socket_t fd, curlsocktype purpose)
{
    (void)fd;
    (void)purpose;
    struct sb_fetch *fetch = clientp;
    return fetch->dialled ? CURL_SOCKOPT_ALREADY_CONNECTED : CURL_SOCKOPT_OK;
}

static int on_request(void *clientp, char *primary_ip, char *local_ip, int primary_port,
                      int local_port)
{
    (void)primary_ip, (void)local_ip, (void)primary_port, (void)local_port;
    struct sb_fetch *fetch = clientp;
    return fetch->requests++ > 0 && !sb_fetch_repeatable(fetch) ? CURL_PREREQFUNC_ABORT
                                                                : CURL_PREREQFUNC_OK;
}

static void stop(struct sb_fetch *fetch, enum sb_err kind, const char *why)
{
    fetch->refused = kind;
    fetch->why = why;
}

static int grow(unsigned char **buf, size_t *cap, size_t need)
{
    if (need <= *cap)
        return 0;
    size_t to = *cap == 0 ? need : *cap * 2; /* the first guess is often exact */
    if (to < need)
        to = need;
    unsigned char *more = sb_large_realloc(*buf, to);
    if (more == NULL)
        return -1;
    *buf = more;
    *cap = to;
    return 0;
}

/* Room for all of it, before the first byte. Only a hint: may fail. */
static void expect(struct sb_fetch *fetch, size_t len)
{
    if (fetch->body != NULL)
        return;
    fetch->body = sb_large_alloc(len);
    fetch->body_cap = fetch->body != NULL ? len : 0;
}

static void on_reader(void *arg)
{
    struct sb_fetch *fetch = arg;
    if (sb_queue_gone(fetch->queue)) {
        sb_fetch_fail(fetch, SB_ERR_CLOSED, "the body is closed");
    } else if (fetch->pause & CURLPAUSE_RECV) {
        fetch->pause &= fetch->request.sends ? CURLPAUSE_SEND : 0;
        sb_multi_pause(fetch->user.port->multi, &fetch->transfer, fetch->pause);
    }
}

/* The head is complete. */
static int on_head(struct sb_fetch *fetch)
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
    fetch->status = status;
    struct sb_op *op = fetch->op;
    struct sb_result *result = op != NULL ? sb_op_result(op) : NULL;
    if (result != NULL) {
        result->number = (double)status;
        result->has_number = 1;
    }
    if (!fetch->stream || result == NULL) {
        curl_off_t expected = -1;
        curl_easy_getinfo(fetch->transfer.easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &expected);
        if (!fetch->request.head && expected > 0 && expected <= EXPECT_MOST &&
            (size_t)expected <= fetch->max_body)
            expect(fetch, (size_t)expected);
        return 0;
    }
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
    struct sb_fetch *fetch = userp;
    size_t len = size * count;
    if (fetch->head_done) { /* a trailer: libcurl keeps each until the end, for nobody */
        fetch->trailers_len += len;
        if (fetch->trailers_len <= HEAD_MOST)
            return len;
        stop(fetch, SB_ERR_PROTOCOL, "the answer's trailers are longer than a mebibyte");
        return 0;
    }
    if (fetch->head_len + len > HEAD_MOST) {
        stop(fetch, SB_ERR_PROTOCOL, "the answer's head is longer than a mebibyte");
        return 0;
    }
    size_t need = fetch->head_len + len;
    if (grow(&fetch->head, &fetch->head_cap, need < HEAD_FIRST ? HEAD_FIRST : need) < 0) {
        stop(fetch, SB_ERR_INTERNAL, "out of memory");
        return 0;
    }
    if ((len == 2 && data[0] == '\r' && data[1] == '\n') || (len == 1 && data[0] == '\n'))
        return on_head(fetch) < 0 ? 0 : len;
    memcpy(fetch->head + fetch->head_len, data, len);
    fetch->head_len += len;
    return len;
}

/* Past the mark libcurl still hands over what it has received, then receives no more. Were it refused
 * what it hands over, it would copy that once more, to put it by; and stopped in one direction only it
 * takes another look at the socket (a request that is not sending anything has no other). */
static void stop_receiving(struct sb_fetch *fetch)
{
    if (fetch->pause == 0 && !fetch->request.sends && sb_queue_full(fetch->queue, 0)) {
        fetch->pause = CURLPAUSE_ALL;
        sb_multi_pause(fetch->user.port->multi, &fetch->transfer, fetch->pause);
    }
}

static size_t on_write(char *data, size_t size, size_t count, void *userp)
{
    struct sb_fetch *fetch = userp;
    size_t len = size * count;
    if (fetch->queue != NULL) {
        if (sb_queue_full(fetch->queue, len < RECEIVE ? RECEIVE - len : 0)) {
            fetch->pause |= CURLPAUSE_RECV;
            return CURL_WRITEFUNC_PAUSE;
        }
        if (sb_queue_append(fetch->queue, data, len) == 0) {
            stop_receiving(fetch);
            return len;
        }
    } else if (len > fetch->max_body - fetch->body_len) {
        stop(fetch, SB_ERR_LIMIT_EXCEEDED, "the answer's body is longer than max_body");
        return 0;
    } else if (grow(&fetch->body, &fetch->body_cap, fetch->body_len + len) == 0) {
        sb_large_copy(fetch->body + fetch->body_len, data, len);
        fetch->body_len += len;
        return len;
    }
    stop(fetch, SB_ERR_INTERNAL, "out of memory");
    return 0;
}

void sb_exchange_writable(void *arg)
{
    struct sb_fetch *fetch = arg;
    if ((fetch->pause & CURLPAUSE_SEND) == 0)
        return;
    fetch->pause &= ~CURLPAUSE_SEND;
    sb_multi_pause(fetch->user.port->multi, &fetch->transfer, fetch->pause);
}

/* The announced length is kept to the byte: less or more would turn the connection's bytes into
 * another request. */
static size_t on_read(char *data, size_t size, size_t count, void *userp)
{
    struct sb_fetch *fetch = userp;
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
    if (n == -1) {
        fetch->pause |= CURLPAUSE_SEND;
        return CURL_READFUNC_PAUSE;
    }
    enum sb_err unfinished = fetch->request.idempotent ? SB_ERR_CANCELLED : SB_ERR_OUTCOME_UNKNOWN;
    if (n < 0) {
        stop(fetch, unfinished, "the request's body was given up");
        return CURL_READFUNC_ABORT;
    }
    fetch->sent += (size_t)n;
    curl_off_t length = fetch->request.upload_len;
    if (length >= 0 &&
        (n == 0 ? (curl_off_t)fetch->sent < length : (curl_off_t)fetch->sent > length)) {
        stop(fetch, SB_ERR_INVALID_ARGUMENT,
             "the request's body is not as long as its Content-Length");
        return CURL_READFUNC_ABORT;
    }
    return (size_t)n;
}

static int on_seek(void *userp, curl_off_t offset, int origin)
{
    struct sb_fetch *fetch = userp;
    if (fetch->upload != NULL || origin != SEEK_SET || offset < 0 ||
        (size_t)offset > fetch->request.body_len)
        return CURL_SEEKFUNC_FAIL;
    fetch->sent = (size_t)offset;
    return CURL_SEEKFUNC_OK;
}

/* Nothing but a GET of a whole that may be sent again: its options fit the next one. */
static int is_plain(const struct sb_fetch *fetch)
{
    const struct sb_prepared *request = &fetch->request;
    return sb_fetch_repeatable(fetch) && !fetch->dialled && !request->sends && !request->head &&
           strcmp(request->method, "GET") == 0;
}

/* What is the same for all requests to the port. */
static int set_common(CURL *easy, const struct sb_port *port)
{
    CURLcode rc = CURLE_OK; /* whatever copies a string may fail */
    curl_easy_setopt(easy, CURLOPT_CURLU, port->address);
    rc |= curl_easy_setopt(easy, CURLOPT_PROXY, "");
    rc |= curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
#if LIBCURL_VERSION_NUM >= 0x075500
    rc |=
        curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, port->place != NULL ? "http" : "http,https");
#else
    rc |= curl_easy_setopt(easy, CURLOPT_PROTOCOLS,
                           port->place != NULL ? CURLPROTO_HTTP : CURLPROTO_HTTP | CURLPROTO_HTTPS);
#endif
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, (long)RECEIVE);
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_write);
#if LIBCURL_VERSION_NUM >= 0x075000
    curl_easy_setopt(easy, CURLOPT_PREREQFUNCTION, on_request);
#endif
    if (port->place != NULL) {
        curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, on_open);
        curl_easy_setopt(easy, CURLOPT_SOCKOPTFUNCTION, on_sockopt);
        sb_multi_keep_watches(port->multi, easy);
    }
    if (port->origin != NULL && sb_origin_set(easy, port->origin) < 0)
        return -1;
    return rc == CURLE_OK ? 0 : -1;
}

/* What a plain request has of its own. */
static int set_own(CURL *easy, struct sb_fetch *fetch)
{
    const struct sb_port *port = fetch->user.port;
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, fetch->request.headers);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, fetch);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, fetch);
#if LIBCURL_VERSION_NUM >= 0x075000
    curl_easy_setopt(easy, CURLOPT_PREREQDATA, fetch);
#endif
    if (port->place != NULL) {
        curl_easy_setopt(easy, CURLOPT_RESOLVE, port->resolved ? NULL : port->resolve);
        curl_easy_setopt(easy, CURLOPT_OPENSOCKETDATA, fetch);
        curl_easy_setopt(easy, CURLOPT_SOCKOPTDATA, fetch);
    }
    return curl_easy_setopt(easy, CURLOPT_REQUEST_TARGET, fetch->request.target) == CURLE_OK ? 0
                                                                                             : -1;
}

static int set_others(CURL *easy, struct sb_fetch *fetch)
{
    const struct sb_prepared *request = &fetch->request;
    if (!sb_fetch_repeatable(fetch) || fetch->dialled) {
        curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, 1L);
        if (fetch->user.port->origin != NULL) /* each would leave one more behind */
            curl_easy_setopt(easy, CURLOPT_FORBID_REUSE, 1L);
    }
    if (request->head) {
        curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
    } else if (request->sends) {
        curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, request->upload_len);
        curl_easy_setopt(easy, CURLOPT_READFUNCTION, on_read);
        curl_easy_setopt(easy, CURLOPT_READDATA, fetch);
        curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, on_seek);
        curl_easy_setopt(easy, CURLOPT_SEEKDATA, fetch);
    }
    return curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, request->method) == CURLE_OK ? 0 : -1;
}

CURL *sb_exchange_new(struct sb_fetch *fetch)
{
    struct sb_port *port = fetch->user.port;
    int kept = 0;
    fetch->plain = is_plain(fetch);
    CURL *easy = sb_port_easy(port, fetch->plain, &kept);
    if (easy == NULL)
        return NULL;
    if ((!kept && set_common(easy, port) < 0) || set_own(easy, fetch) < 0 ||
        (!fetch->plain && set_others(easy, fetch) < 0)) {
        curl_easy_cleanup(easy);
        return NULL;
    }
    return easy;
}

void sb_exchange_leave(struct sb_fetch *fetch, int whole)
{
    CURL *easy = fetch->transfer.easy;
    if (easy == NULL)
        return;
    fetch->transfer.easy = NULL;
    if (fetch->plain && whole) { /* the request's memory and secrets are the fetch's */
        curl_easy_setopt(easy, CURLOPT_HTTPHEADER, NULL);
        curl_easy_setopt(easy, CURLOPT_REQUEST_TARGET, NULL);
    } else {
        curl_easy_reset(easy);
    }
    sb_port_easy_done(fetch->user.port, easy, fetch->plain && whole);
}
