/* The body of the request that is being served, out of what has been received. */
#include <string.h>

#include "server/peer.h"

void sb_intake_begin(struct sb_peer *peer, const struct sb_head *head)
{
    peer->intake = (struct sb_intake){
        .framing = head->framing,
        .left = head->length,
        .complete = head->framing == SB_FRAMED_NONE,
        .expects = head->expects,
    };
}

void sb_take_in(struct sb_peer *peer, size_t n)
{
    peer->in.start += n;
    peer->in.len -= n;
    if (peer->in.len == 0)
        sb_buffer_drop(&peer->in);
}

static size_t read_length(struct sb_peer *peer, unsigned char *out, size_t room)
{
    struct sb_intake *intake = &peer->intake;
    size_t n = room < peer->in.len ? room : peer->in.len;
    if (n > intake->left)
        n = (size_t)intake->left;
    if (out != NULL && n > 0)
        memcpy(out, peer->in.data + peer->in.start, n);
    sb_take_in(peer, n);
    intake->left -= n;
    intake->complete = intake->left == 0;
    return n;
}

static size_t read_tunnel(struct sb_peer *peer, unsigned char *out, size_t room)
{
    size_t n = room < peer->in.len ? room : peer->in.len;
    if (out != NULL && n > 0)
        memcpy(out, peer->in.data + peer->in.start, n);
    sb_take_in(peer, n);
    return n;
}

static size_t read_chunked(struct sb_peer *peer, unsigned char *out, size_t room)
{
    struct sb_intake *intake = &peer->intake;
    size_t used, made;
    int rc = sb_chunked_read(&intake->chunked, peer->in.data + peer->in.start, peer->in.len, out,
                             room, &used, &made);
    sb_take_in(peer, used);
    intake->complete = rc > 0;
    if (rc < 0) {
        sb_fail(&intake->error, SB_ERR_PROTOCOL, "the body is not in chunks as it should be");
        peer->last = 1;
    }
    return made;
}

size_t sb_intake_read(struct sb_peer *peer, unsigned char *out, size_t room)
{
    struct sb_intake *intake = &peer->intake;
    size_t made = 0;
    if (intake->complete || intake->error.kind != SB_OK)
        return 0;
    if (peer->in.len > 0 && intake->framing == SB_FRAMED_TUNNEL)
        made = read_tunnel(peer, out, room);
    else if (peer->in.len > 0)
        made = intake->framing == SB_FRAMED_LENGTH ? read_length(peer, out, room)
                                                   : read_chunked(peer, out, room);
    if (intake->framing == SB_FRAMED_TUNNEL)
        intake->complete = peer->eof && peer->in.len == 0;
    if (peer->eof && peer->in.len == 0 && !intake->complete && intake->error.kind == SB_OK) {
        sb_fail(&intake->error, SB_ERR_CLOSED, "the client closed the connection inside the body");
        peer->last = 1;
    }
    return made;
}
