/* A client's connection as bytes. */
#include "server/wire.h"

#include <errno.h>
#include <sys/socket.h>

ssize_t sb_wire_read(struct sb_wire *wire, void *buf, size_t len)
{
    ssize_t n;
    do
        n = recv(wire->fd, buf, len, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n;
}

ssize_t sb_wire_write(struct sb_wire *wire, const void *buf, size_t len)
{
    ssize_t n;
    do
        n = send(wire->fd, buf, len, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n;
}

void sb_wire_shut(struct sb_wire *wire)
{
    shutdown(wire->fd, SHUT_WR);
}
