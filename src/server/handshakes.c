/* The queue of handshakes. */
#include "server/handshakes.h"

#include "server/peer.h"

#define PAUSE_MOST 20000000u /* ns: it was more than a signature that took so long */

static void on_timer(struct sb_timer *timer)
{
    struct sb_handshakes *h = SB_OF(timer, struct sb_handshakes, timer);
    struct sb_peer *peer = h->first;
    if (peer == NULL)
        return;
    sb_peer_ref(peer); /* and with it the listener, whose part this is */
    sb_handshakes_leave(h, peer);
    h->turn = peer;
    sb_peer_turn(peer);
    h->turn = NULL;
    if (h->first != NULL)
        sb_timer_set(timer, h->next);
    sb_peer_unref(peer);
}

void sb_handshakes_init(struct sb_handshakes *h)
{
    h->last = &h->first;
    h->timer.fire = on_timer;
}

int sb_handshakes_enter(struct sb_handshakes *h, struct sb_peer *peer)
{
    if (h->turn == peer || (h->first == NULL && sb_now() >= h->next))
        return 1;
    if (!peer->queued) {
        peer->queued = 1;
        peer->queue_next = NULL;
        *h->last = peer;
        h->last = &peer->queue_next;
    }
    if (!h->timer.set && h->turn == NULL)
        sb_timer_set(&h->timer, h->next);
    return 0;
}

void sb_handshakes_took(struct sb_handshakes *h, uint64_t began)
{
    uint64_t now = sb_now(), took = now - began;
    h->next = now + (took < PAUSE_MOST ? took : PAUSE_MOST);
}

void sb_handshakes_leave(struct sb_handshakes *h, struct sb_peer *peer)
{
    struct sb_peer **at = &h->first;
    if (!peer->queued)
        return;
    peer->queued = 0;
    while (*at != peer)
        at = &(*at)->queue_next;
    *at = peer->queue_next;
    if (*at == NULL)
        h->last = at;
    if (h->first == NULL)
        sb_timer_clear(&h->timer);
}
