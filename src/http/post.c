/* A POST whose answer is a stream. */
#include "http/post.h"

#include <stdlib.h>
#include <string.h>

#include "http/core.h"
#include "http/origin.h"
#include "http/port.h"
#include "http/request.h"

#define RECEIVE 65536L
#define RETRY_AFTER_MOST 86400L

struct sb_post {
    struct sb_transfer transfer;
    struct sb_port_user user;
    struct sb_port *port; /* the maker's reference, until it has joined */
    struct sb_prepared request;
    const struct sb_post_sink *sink;
    void *arg;
    int requests; /* how often libcurl was about to send it */
    int headed, held;
    struct sb_error stopped; /* by the sink */
    struct sb_timer timer;
    uint64_t silence, heard;
};

struct sb_post *sb_post_new(struct sb_port *origin, const struct sb_request *request,
                            struct sb_error *err)
{
    struct sb_post *post = calloc(1, sizeof *post);
    if (post == NULL) {
        sb_fail(err, SB_ERR_INTERNAL, "out of memory");
        return NULL;
    }
    if (origin->place != NULL) {
        sb_fail(err, SB_ERR_UNSUPPORTED, "streams are for origins");
    } else if (sb_prepare(&post->request, request, origin->number, origin->lines, err) == 0) {
        post->port = sb_object_ref(origin);
        return post;
    }
    free(post);
    return NULL;
}

void sb_post_free(struct sb_post *post)
{
    if (post == NULL)
        return;
    sb_prepared_free(&post->request);
    sb_object_unref(post->port);
    free(post);
}

static void end(struct sb_post *post, const struct sb_error *err)
{
    const struct sb_post_sink *sink = post->sink;
    void *arg = post->arg;
    CURL *easy = post->transfer.easy;
    sb_timer_clear(&post->timer);
    if (easy != NULL) {
        curl_easy_reset(easy);
        sb_port_easy_done(post->user.port, easy, 0);
    }
    sb_port_leave(&post->user);
    sb_post_free(post);
    sink->end(arg, err);
}

void sb_post_abort(struct sb_post *post, const struct sb_error *err)
{
    if (post->transfer.easy != NULL)
        sb_multi_remove(post->user.port->multi, &post->transfer);
    end(post, err);
}

int sb_post_sent(const struct sb_post *post)
{
    return post->requests > 0;
}

long sb_post_retry_after(const struct sb_post *post)
{
    curl_off_t seconds = 0;
    curl_easy_getinfo(post->transfer.easy, CURLINFO_RETRY_AFTER, &seconds);
    return seconds < RETRY_AFTER_MOST ? (long)seconds : RETRY_AFTER_MOST;
}

static void cut(struct sb_post *post, const char *why)
{
    struct sb_error err = {0};
    sb_fail(&err, post->requests > 0 ? SB_ERR_OUTCOME_UNKNOWN : SB_ERR_UNAVAILABLE, "%s", why);
    sb_post_abort(post, &err);
}

static void on_closed(struct sb_port_user *user)
{
    struct sb_error err = {0};
    sb_fail(&err, SB_ERR_CLOSED, "the connection was closed");
    sb_post_abort(SB_OF(user, struct sb_post, user), &err);
}

static uint64_t silent_at(const struct sb_post *post)
{
    return post->silence == SB_NEVER ? SB_NEVER : post->heard + post->silence;
}

static void on_silence(struct sb_timer *timer)
{
    struct sb_post *post = SB_OF(timer, struct sb_post, timer);
    if (post->held) /* set again when it goes on */
        return;
    if (sb_now() < silent_at(post))
        sb_timer_set(timer, silent_at(post));
    else
        cut(post, "nothing has come for longer than the other side is ever silent");
}

/* Once, before the first byte of the body or where there is none. */
static void tell_head(struct sb_post *post)
{
    long status = 0;
    char *type = NULL;
    if (post->headed)
        return;
    post->headed = 1;
    curl_easy_getinfo(post->transfer.easy, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(post->transfer.easy, CURLINFO_CONTENT_TYPE, &type);
    post->sink->head(post->arg, status, type);
}

static void on_done(struct sb_transfer *transfer, CURLcode code)
{
    struct sb_post *post = SB_OF(transfer, struct sb_post, transfer);
    struct sb_error err = {0};
    if (code == CURLE_OK)
        tell_head(post);
    if (post->stopped.kind != SB_OK) {
        err = post->stopped;
    } else if (code == CURLE_OK) {
        end(post, NULL);
        return;
    } else if (post->requests == 0) {
        sb_fail(&err, SB_ERR_UNAVAILABLE, "%s cannot be reached: %s", post->user.port->url,
                curl_easy_strerror(code));
    } else {
        sb_fail(&err, SB_ERR_OUTCOME_UNKNOWN, "the connection was cut: %s",
                curl_easy_strerror(code));
    }
    end(post, &err);
}

/* ---- libcurl's callbacks: they never end the transfer ---- */

static int on_request(void *clientp, char *primary_ip, char *local_ip, int primary_port,
                      int local_port)
{
    (void)primary_ip, (void)local_ip, (void)primary_port, (void)local_port;
    struct sb_post *post = clientp;
    return post->requests++ > 0 ? CURL_PREREQFUNC_ABORT : CURL_PREREQFUNC_OK;
}

static size_t on_write(char *data, size_t size, size_t count, void *userp)
{
    struct sb_post *post = userp;
    size_t len = size * count;
    post->heard = sb_now();
    tell_head(post);
    return post->sink->data(post->arg, (const unsigned char *)data, len, &post->stopped) < 0 ? 0
                                                                                             : len;
}

void sb_post_hold(struct sb_post *post)
{
    if (post->held)
        return;
    post->held = 1;
    /* In both directions: stopped in one only, libcurl takes another look at the socket. */
    sb_multi_pause(post->user.port->multi, &post->transfer, CURLPAUSE_ALL);
}

void sb_post_go_on(struct sb_post *post)
{
    if (!post->held)
        return;
    post->held = 0;
    post->heard = sb_now();
    sb_timer_set(&post->timer, silent_at(post));
    sb_multi_pause(post->user.port->multi, &post->transfer, CURLPAUSE_CONT);
}

static int set_up(CURL *easy, struct sb_post *post)
{
    const struct sb_port *port = post->user.port;
    const struct sb_prepared *request = &post->request;
    CURLcode rc = CURLE_OK; /* whatever copies a string may fail */
    curl_easy_setopt(easy, CURLOPT_CURLU, port->address);
    rc |= curl_easy_setopt(easy, CURLOPT_PROXY, "");
    rc |= curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
#if LIBCURL_VERSION_NUM >= 0x075500
    rc |= curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    rc |= curl_easy_setopt(easy, CURLOPT_PROTOCOLS, CURLPROTO_HTTP | CURLPROTO_HTTPS);
#endif
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, RECEIVE);
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, request->headers);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_write);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, post);
    curl_easy_setopt(easy, CURLOPT_POST, 1L);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, request->body != NULL ? (char *)request->body : "");
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request->body_len);
#if LIBCURL_VERSION_NUM >= 0x075000
    curl_easy_setopt(easy, CURLOPT_PREREQFUNCTION, on_request);
    curl_easy_setopt(easy, CURLOPT_PREREQDATA, post);
#else /* without it only a new connection is sure */
    curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, 1L);
#endif
    rc |= curl_easy_setopt(easy, CURLOPT_REQUEST_TARGET, request->target);
    if (port->origin != NULL && sb_origin_set(easy, port->origin) < 0)
        return -1;
    return rc == CURLE_OK ? 0 : -1;
}

void sb_post_begin(struct sb_post *post, const struct sb_post_sink *sink, void *arg,
                   uint64_t silence)
{
    struct sb_port *port = post->port;
    struct sb_error err = {0};
    int kept;
    post->sink = sink;
    post->arg = arg;
    post->silence = silence;
    post->heard = sb_now();
    post->timer.fire = on_silence;
    post->transfer.done = on_done;
    if (sb_port_join(port, &post->user, on_closed) < 0)
        sb_fail(&err, SB_ERR_CLOSED, "the connection was closed");
    else if (sb_port_multi(port, &err) == 0) {
        post->transfer.easy = sb_port_easy(port, 0, &kept);
        if (post->transfer.easy == NULL || set_up(post->transfer.easy, post) < 0)
            sb_fail(&err, SB_ERR_INTERNAL, "out of memory");
    }
    if (err.kind != SB_OK) {
        end(post, &err);
        return;
    }
    sb_timer_set(&post->timer, silent_at(post));
    if (sb_multi_add(port->multi, &post->transfer, &err) < 0)
        end(post, &err);
}
