/* libcurl's multi interface on the runtime's I/O thread. */
#include "http/multi.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http/core.h"

struct sb_multi {
    CURLM *curl;
    struct sb_timer timer;
    int reading; /* messages are being handed out */
    int keeps;   /* libcurl tells us of every socket it closes */
    struct watch *resting;
    struct sb_transfer *unheard; /* one that is still added, to be told; or NULL */
};

/* A descriptor of libcurl's, from its first to its last interest in it; where it tells us when it
 * closes it, until then: between two requests of a kept connection it rests. Adding it to the set and
 * taking it out for each would cost some 2 us. */
struct watch {
    struct sb_source source;
    struct sb_multi *multi;
    struct watch *next; /* of those that rest */
};

/* The one for `fd`, off the list, or NULL. */
static struct watch *take_resting(struct sb_multi *multi, curl_socket_t fd)
{
    struct watch **link = &multi->resting, *watch;
    while ((watch = *link) != NULL && watch->source.fd != fd)
        link = &watch->next;
    if (watch != NULL)
        *link = watch->next;
    return watch;
}

static void drop(struct watch *watch)
{
    sb_source_remove(&watch->source);
    free(watch);
}

static int on_close(void *clientp, curl_socket_t fd)
{
    struct watch *watch = take_resting(clientp, fd);
    if (watch != NULL)
        drop(watch);
    return close(fd);
}

static struct sb_transfer *transfer_of(CURL *easy)
{
    char *private = NULL;
    curl_easy_getinfo(easy, CURLINFO_PRIVATE, &private);
    return (struct sb_transfer *)(void *)private;
}

static void forget(struct sb_multi *multi, const struct sb_transfer *transfer)
{
    if (multi->unheard == transfer)
        multi->unheard = NULL;
}

static void hand_out(struct sb_multi *multi)
{
    if (multi->reading)
        return; /* the outer loop sees what is new */
    multi->reading = 1;
    int left;
    for (CURLMsg *msg; (msg = curl_multi_info_read(multi->curl, &left)) != NULL;) {
        if (msg->msg != CURLMSG_DONE)
            continue;
        CURL *easy = msg->easy_handle;
        CURLcode code = msg->data.result; /* msg dies with the removal */
        struct sb_transfer *transfer = transfer_of(easy);
        if (!transfer->stays)
            curl_multi_remove_handle(multi->curl, easy);
        forget(multi, transfer);
        transfer->done(transfer, code);
    }
    struct sb_transfer *unheard = multi->unheard;
    multi->unheard = NULL;
    if (unheard != NULL)
        unheard->unheard(unheard);
    multi->reading = 0;
}

static void act(struct sb_multi *multi, curl_socket_t fd, int mask)
{
    int running;
    curl_multi_socket_action(multi->curl, fd, mask, &running);
    hand_out(multi);
}

static void on_ready(struct sb_source *source, uint32_t events)
{
    struct watch *watch = SB_OF(source, struct watch, source);
    int mask = 0;
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP))
        mask |= CURL_CSELECT_IN;
    if (events & EPOLLOUT)
        mask |= CURL_CSELECT_OUT;
    if (events & EPOLLERR)
        mask |= CURL_CSELECT_ERR;
    act(watch->multi, source->fd, mask); /* the watch may be gone after it */
}

static void on_timer(struct sb_timer *timer)
{
    act(SB_OF(timer, struct sb_multi, timer), CURL_SOCKET_TIMEOUT, 0);
}

static int has_ended(curl_socket_t fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *userp, void *socketp)
{
    struct sb_multi *multi = userp;
    struct watch *watch = socketp;
    if (what == CURL_POLL_REMOVE) {
        struct sb_transfer *transfer = transfer_of(easy);
        if (transfer != NULL && transfer->unheard != NULL && has_ended(fd))
            multi->unheard = transfer;
        if (watch != NULL && multi->keeps) {
            sb_source_rest(&watch->source);
            watch->next = multi->resting;
            multi->resting = watch;
        } else if (watch != NULL) {
            drop(watch);
        }
        return 0;
    }
    uint32_t events =
        ((what & CURL_POLL_IN) != 0 ? EPOLLIN : 0u) | ((what & CURL_POLL_OUT) != 0 ? EPOLLOUT : 0u);
    if (watch == NULL) {
        watch = take_resting(multi, fd);
        if (watch != NULL)
            curl_multi_assign(multi->curl, fd, watch);
    }
    if (watch != NULL) {
        sb_source_change(&watch->source, events);
        return 0;
    }
    watch = calloc(1, sizeof *watch);
    if (watch == NULL)
        return -1;
    watch->source = (struct sb_source){fd, events, on_ready};
    watch->multi = multi;
    if (sb_source_add(&watch->source, NULL) < 0) {
        free(watch);
        return -1;
    }
    curl_multi_assign(multi->curl, fd, watch);
    return 0;
}

static int on_timeout(CURLM *curl, long ms, void *userp)
{
    struct sb_multi *multi = userp;
    (void)curl;
    if (ms < 0)
        sb_timer_clear(&multi->timer);
    else /* 0 too: libcurl must not be entered from its own callback */
        sb_timer_set(&multi->timer, sb_now() + (uint64_t)ms * 1000000u);
    return 0;
}

struct sb_multi *sb_multi_new(int shares, long idle, struct sb_error *err)
{
    struct sb_multi *multi = calloc(1, sizeof *multi);
    if (multi != NULL)
        multi->curl = curl_multi_init();
    if (multi == NULL || multi->curl == NULL) {
        free(multi);
        sb_fail(err, SB_ERR_INTERNAL, "out of memory");
        return NULL;
    }
    multi->timer.fire = on_timer;
    curl_multi_setopt(multi->curl, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl_multi_setopt(multi->curl, CURLMOPT_SOCKETDATA, multi);
    curl_multi_setopt(multi->curl, CURLMOPT_TIMERFUNCTION, on_timeout);
    curl_multi_setopt(multi->curl, CURLMOPT_TIMERDATA, multi);
    curl_multi_setopt(multi->curl, CURLMOPT_PIPELINING,
                      (long)(shares ? CURLPIPE_MULTIPLEX : CURLPIPE_NOTHING));
    curl_multi_setopt(multi->curl, CURLMOPT_MAXCONNECTS, idle);
    return multi;
}

void sb_multi_free(struct sb_multi *multi)
{
    if (multi == NULL)
        return;
    curl_multi_cleanup(multi->curl); /* closes all */
    sb_timer_clear(&multi->timer);
    free(multi);
}

void sb_multi_keep_watches(struct sb_multi *multi, CURL *easy)
{
    multi->keeps = 1;
    curl_easy_setopt(easy, CURLOPT_CLOSESOCKETFUNCTION, on_close);
    curl_easy_setopt(easy, CURLOPT_CLOSESOCKETDATA, multi);
}

int sb_multi_add(struct sb_multi *multi, struct sb_transfer *transfer, struct sb_error *err)
{
    curl_easy_setopt(transfer->easy, CURLOPT_PRIVATE, (char *)transfer);
    CURLMcode code = curl_multi_add_handle(multi->curl, transfer->easy);
    if (code != CURLM_OK)
        return sb_fail(err, SB_ERR_INTERNAL, "libcurl refuses a transfer: %s",
                       curl_multi_strerror(code));
    act(multi, CURL_SOCKET_TIMEOUT, 0); /* begins now instead of at the next turn */
    return 0;
}

void sb_multi_remove(struct sb_multi *multi, struct sb_transfer *transfer)
{
    curl_multi_remove_handle(multi->curl, transfer->easy);
    forget(multi, transfer);
}

void sb_multi_pause(struct sb_multi *multi, struct sb_transfer *transfer, int bits)
{
    curl_easy_pause(transfer->easy, bits);
    (void)multi;
}
