/* What is queued for a client, and who waits for it to be taken. */
#include <errno.h>

#include "server/peer.h"

static void wake_writers(struct sb_peer *peer)
{
    while (peer->writers != NULL) {
        struct sb_call *call = peer->writers;
        peer->writers = call->next;
        sb_call_done(call);
    }
    peer->writers_end = &peer->writers;
}

void sb_peer_wait_out(struct sb_peer *peer, struct sb_call *call)
{
    call->next = NULL;
    *peer->writers_end = call;
    peer->writers_end = &call->next;
}

static int broken(struct sb_peer *peer)
{
    struct sb_error err = {0};
    sb_fail(&err, SB_ERR_CLOSED, "the client has closed the connection");
    err.sys = errno;
    sb_peer_end(peer, 0, &err);
    return -1;
}

int sb_peer_flush(struct sb_peer *peer)
{
    struct sb_buffer *out = &peer->out;
    int moved = 0, begins = out->len > 0 && !peer->stalled;
    while (out->len > 0) {
        ssize_t n = sb_wire_write(&peer->wire, out->data + out->start, out->len);
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0)
            return broken(peer);
        out->start += (size_t)n;
        out->len -= (size_t)n;
        moved = 1;
    }
    if (moved || begins)
        peer->out_at = sb_now();
    if (out->len == 0)
        sb_buffer_drop(out);
    peer->stalled = out->len > 0;
    if (out->len <= SB_PEER_HIGH)
        wake_writers(peer);
    return moved;
}
